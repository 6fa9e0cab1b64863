"""What a store of files promises, and what a store of bytes must do for it.

A file is a row in the database (its owner, name, type, hash, which chats use it) and bytes somewhere. The row is always
in the database, so that a message and the use of its file are one transaction; the bytes are in one of three byte
stores, chosen by the setting `files`: the database itself or a directory (bytes.py), or
S3-compatible storage (s3.py). sql_files.py implements `FileStore` for all of them.

Must stay true (tests/files/test_file_store.py, test_byte_stores.py): every sentence below, on both databases and in
each byte store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from indelible.api.shapes import StoredFile

FilePlace = Literal["database", "directory", "s3"]
"""Where the bytes of a file are."""
FileVariant = Literal["content", "preview"]
CHUNK_BYTES: Final = 256 * 1024
"""How much of a file is in memory at a time, and in one row of the database."""
VARIANT_SUFFIX: Final[dict[FileVariant, str]] = {"content": "", "preview": ".preview"}
"""How the names of a file's bytes end, where bytes have names: in a directory and in S3."""


def split_chunks(data: bytes) -> Iterator[bytes]:
    """The same bytes in chunks of `CHUNK_BYTES`, the last one perhaps smaller."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


class FileLimits(msgspec.Struct, frozen=True, kw_only=True):
    """See the settings `file_max_bytes`, `user_max_files`, `user_max_file_bytes` and `file_types`."""

    file_bytes: int = 32 * 1024 * 1024
    user_files: int = 10_000
    user_bytes: int = 10 * 1024 * 1024 * 1024
    types: Sequence[str] = ()


class UploadKey(NamedTuple):
    """The idempotency key of an upload, and its route. The body's hash is known only at its end."""

    key: str
    route: str


class FileStore(Protocol):
    async def upload(
        self,
        owner_id: str,
        chunks: AsyncIterator[bytes],
        *,
        name: str,
        hint: str | None = None,
        announced_bytes: int | None = None,
        key: UploadKey | None = None,
    ) -> StoredFile:
        """Store a file from a stream; when this returns, it is durable.

        * Memory is bounded: no more than a chunk of it is held, however large it is.
        * The type is found in its first bytes; the name and the `hint` only tell kinds of text apart.
        * A file that is too large is `TooLarge`, one of a refused type `UnsupportedType`, an empty one `Invalid`; more
          files or bytes than a user may have are `TooMany`. Then nothing is kept.
        * If the stream fails or the caller is cancelled, no file is visible, and what was written is swept.
        * With a `key`, a repeated upload of the same bytes gets the same file; of other bytes, `Invalid`.
        * Uploads that run at once never hold more bytes together than a user may have, whatever they announced.
        """

    async def list_files(self, owner_id: str, *, before: str | None = None, limit: int = 50) -> list[StoredFile]:
        """The files of a user, newest first, older than the file `before`."""

    async def get_file(self, owner_id: str, file_id: str) -> StoredFile:
        """One file of this user. Raises `NotFound` if there is none, or if it is another user's."""

    def read_file(self, file_id: str, *, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """The bytes of a file from `start` to before `stop`, in chunks. The caller has checked the owner."""

    async def load_preview(self, owner_id: str, file_id: str) -> bytes:
        """A small WebP picture of an image. It is made when it is first wanted, and stored.

        * Raises `NotFound` if the file has none, which an image that cannot be decoded has not.
        """

    async def delete_file(self, owner_id: str, file_id: str) -> None:
        """Delete a file. Raises `NotAllowed` while a chat uses it."""

    async def find_used(self, chat_id: str, file_ids: Sequence[str]) -> dict[str, StoredFile]:
        """Those of these files that the chat uses, by id."""

    async def is_shown(self, chat_id: str, file_id: str) -> bool:
        """Whether people see this file in the chat: a message of the active branch, or a running tool's result, has it.

        * A file that is only queued, only for the model, or only on another branch is not shown.
        """

    async def sweep(self, *, limit: int = 100) -> int:
        """Remove what is deleted, and what was uploaded a day ago and never used; returns how many files.

        * A file that a chat uses is never removed.
        * Bytes go in short transactions, so that other writers are not blocked (R12).
        """


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
