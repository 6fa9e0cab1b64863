"""Bytes in a directory: one file each, readable by nobody else, and whole or not there.

A file is written under another name, made durable (fsync) and then renamed, and the directory is made durable too:
after a crash there is the whole file or none under its name. All calls run in threads: a disk may take its time.

The files are spread over 1,024 directories by the last characters of their ids, which are random.

Must stay true (tests/files/test_byte_stores.py): mode 0600; a commit is durable; an aborted or crashed write is never
readable, and `delete` removes what it left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from indelible.concurrency.tasks import run_to_completion
from indelible.errors import Invalid, StoredFileNotFound, StoreFailed
from indelible.files.protocol import CHUNK_BYTES, VARIANT_SUFFIX
from indelible.store.database.tables.enumerations import FilePlace, FileVariant

T = TypeVar("T")


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
