"""Where the bytes of files are stored, whichever of three places that is, and two of the places.

A file is a row in the database (store.py) and bytes somewhere, as the setting `files` says it:

    database                                          in the database itself (the default)
    directory:/var/lib/indelible/files                one file each
    s3://bucket/prefix?endpoint=https://host&region=eu-north-1      (s3.py)

A mistake in it is reported at the start, in one sentence, and not with the first upload (app/compose.py).

In the database, bytes are rows of a quarter of a megabyte. Every chunk is a transaction of its own and shares its
commit with nothing else (`slow`), so a large upload lets the journal and every other writer in between two chunks, and
holds nothing open (R12). A reader reads chunk by chunk as well. Chunks are readable only through the file's row, which
says `ready` after the last of them was committed.

In a directory, a file is written under another name, made durable (fsync) and then renamed, and the directory is made
durable too: after a crash there is the whole file or none under its name. All calls run in threads: a disk may take its
time. The files are spread over 1,024 directories by the last characters of their ids, which are random.

Must stay true (tests/files/test_byte_stores.py): every sentence of the protocols below, in each of the places; in a
directory, mode 0600; a commit is durable; an aborted or crashed write is never readable, and `delete` removes what it
left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar

from indelible.concurrency.tasks import run_to_completion
from indelible.errors import Invalid, StoredFileNotFound, StoreFailed
from indelible.store.database.transaction import Database, upsert

FilePlace = Literal["database", "directory", "s3"]
FileVariant = Literal["content", "preview"]
CHUNK_BYTES: Final = 256 * 1024
"""How much of a file is in memory at a time, and in one row of the database."""
VARIANT_SUFFIX: Final[dict[FileVariant, str]] = {"content": "", "preview": ".preview"}
"""How the names of a file's bytes end, where bytes have names: in a directory and in S3."""

DATABASE: Final = "database"
_DIRECTORY: Final = "directory:"
PLACES: Final = "It must be database, directory:/path or s3://bucket/prefix?endpoint=URL&region=NAME"
"""What the setting may be."""

T = TypeVar("T")
_READ: Final = "SELECT content FROM file_chunks WHERE file_id = $1 AND variant = $2 AND n = $3"
_DELETE_SOME: Final = """
DELETE FROM file_chunks WHERE file_id = $1 AND (variant, n) IN (
    SELECT variant, n FROM file_chunks WHERE file_id = $1 LIMIT 8
)
"""


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


class DatabaseBytes:
    """Implements `ByteStore`."""

    place: FilePlace = "database"

    def __init__(self, database: Database) -> None:
        self._database = database

    def open_writer(self, file_id: str, variant: FileVariant) -> DatabaseWriter:
        return DatabaseWriter(self._database, file_id, variant)

    async def read(
        self, file_id: str, variant: FileVariant, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        n, place = start // CHUNK_BYTES, start - start % CHUNK_BYTES
        while stop is None or place < stop:
            number = n
            row = await self._database.read(
                lambda given: given.one(_READ, file_id, variant, number),  # noqa: B023  (it is carried out here)
                single=True,
            )
            if row is None:
                if n == 0 or stop is not None:
                    raise StoredFileNotFound
                return
            chunk = bytes(row["content"])
            yield chunk[max(0, start - place) : None if stop is None else stop - place]
            if len(chunk) < CHUNK_BYTES:
                return
            n, place = n + 1, place + CHUNK_BYTES

    async def delete(self, file_id: str) -> None:
        while await self._database.write(lambda given: given.run(_DELETE_SOME, file_id), slow=True):
            pass

    async def close(self) -> None:
        pass


class DatabaseWriter:
    def __init__(self, database: Database, file_id: str, variant: FileVariant) -> None:
        self._database = database
        self._file_id = file_id
        self._variant = variant
        self._n = 0

    async def write(self, chunk: bytes) -> None:
        key = {"file_id": self._file_id, "variant": self._variant, "n": self._n}
        await self._database.write(lambda given: upsert(given, "file_chunks", {"content": chunk}, **key), slow=True)
        self._n += 1

    async def commit(self) -> None:
        """Every chunk is durable already."""

    async def abort(self) -> None:
        pass


class DirectoryBytes:
    """Implements `ByteStore`."""

    place: FilePlace = "directory"

    def __init__(self, root: Path) -> None:
        self._root = root

    async def open(self) -> None:
        """Create the directory. Raises `Invalid` if it cannot be written."""
        try:
            await asyncio.to_thread(self._root.mkdir, mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"files: can't create {self._root}: {error.strerror}.") from error
        if not await asyncio.to_thread(os.access, self._root, os.W_OK | os.X_OK):
            raise Invalid(f"files: {self._root} is not writable. Change its owner, or choose another directory.")

    def open_writer(self, file_id: str, variant: FileVariant) -> DirectoryWriter:
        return DirectoryWriter(self._find(file_id, variant))

    async def read(
        self, file_id: str, variant: FileVariant, *, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        path = self._find(file_id, variant)
        place = start
        while stop is None or place < stop:
            size = CHUNK_BYTES if stop is None else min(CHUNK_BYTES, stop - place)
            chunk = await _run(_read_at, path, place, size)
            if not chunk:
                return
            place += len(chunk)
            yield chunk

    async def delete(self, file_id: str) -> None:
        for variant in VARIANT_SUFFIX:
            path = self._find(file_id, variant)
            await _run(path.unlink, missing_ok=True)
            await _run(_name_unfinished(path).unlink, missing_ok=True)

    async def close(self) -> None:
        pass

    def _find(self, file_id: str, variant: FileVariant) -> Path:
        return self._root / file_id[-2:] / f"{file_id}{VARIANT_SUFFIX[variant]}"


class DirectoryWriter:
    """The open file is used by one thread at a time, and closed however the upload ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    async def write(self, chunk: bytes) -> None:
        await _run(self._write, chunk)

    async def commit(self) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        await _run(_publish, file, _name_unfinished(self._path), self._path)

    async def abort(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            await _run(os.close, file)

    def _write(self, chunk: bytes) -> None:
        if self._file is None:
            self._file = _create(_name_unfinished(self._path))
        _write_all(self._file, chunk)


@run_to_completion
async def _run(do: Callable[..., T], *given: object, **named: object) -> T:
    """Run in a thread, to its end: a cancelled caller must not close a file that a thread writes to."""
    try:
        return await asyncio.to_thread(do, *given, **named)
    except FileNotFoundError as error:
        raise StoredFileNotFound from error
    except OSError as error:
        raise StoreFailed(f"A file could not be stored or read: {error}") from error


def _name_unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _create(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


def _write_all(file: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(file, left) :]


def _publish(file: int, unfinished: Path, path: Path) -> None:
    try:
        os.fsync(file)
    finally:
        os.close(file)
    unfinished.rename(path)
    for directory in (path.parent, path.parent.parent):
        opened = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _read_at(path: Path, place: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(place)
        return file.read(size)


def find_directory(place: str) -> Path | None:
    """The directory that the setting names; None if it names none."""
    name = place.removeprefix(_DIRECTORY)
    return Path(name).expanduser().absolute() if place.startswith(_DIRECTORY) and name else None
