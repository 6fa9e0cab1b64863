"""Where the bytes of files are stored, whichever of three places that is.

A file is a row in the database (store.py) and bytes somewhere, chosen by the setting `files`: the database itself, a
directory (bytes.py) or S3-compatible storage (s3.py).

Must stay true (tests/files/test_byte_stores.py): every sentence below, in each of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final, Literal, Protocol

FilePlace = Literal["database", "directory", "s3"]
FileVariant = Literal["content", "preview"]
CHUNK_BYTES: Final = 256 * 1024
"""How much of a file is in memory at a time, and in one row of the database."""
VARIANT_SUFFIX: Final[dict[FileVariant, str]] = {"content": "", "preview": ".preview"}
"""How the names of a file's bytes end, where bytes have names: in a directory and in S3."""


def split_chunks(data: bytes) -> Iterator[bytes]:
    """The same bytes in chunks of `CHUNK_BYTES`, the last one perhaps smaller."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


class ByteWriter(Protocol):
    """Receives the bytes of one file, in order."""

    async def write(self, chunk: bytes) -> None:
        """Add bytes. Every chunk but the last has `CHUNK_BYTES`."""

    async def commit(self) -> None:
        """Make the bytes durable and readable."""

    async def abort(self) -> None:
        """Release what the writer holds in this process. What is stored already is removed by `delete`."""


class ByteStore(Protocol):
    @property
    def place(self) -> FilePlace: ...

    def open_writer(self, file_id: str, variant: FileVariant) -> ByteWriter:
        """A writer for this variant of a file. Nothing is readable before its `commit`, or afterwards changed."""

    def read(
        self, file_id: str, variant: FileVariant, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `stop`. Raises `NotFound` if there are none under this name."""

    async def delete(self, file_id: str) -> None:
        """Remove every variant, and what a crash left of it. It may be gone already."""

    async def close(self) -> None:
        """Release connections."""
