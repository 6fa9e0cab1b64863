"""Bytes in the database: rows of a quarter of a megabyte.

Every chunk is a transaction of its own and shares its commit with nothing else (`slow`), so a large upload lets the
journal and every other writer in between two chunks, and holds nothing open (R12). A reader reads chunk by chunk as
well. Chunks are readable only through the file's row, which says `ready` after the last of them was committed.

Must stay true (tests/files/test_byte_stores.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from indelible.errors import StoredFileNotFound
from indelible.files.protocol import CHUNK_BYTES
from indelible.store.database.tables.enumerations import FilePlace, FileVariant
from indelible.store.database.transaction import Database, upsert

_READ: Final = "SELECT content FROM file_chunks WHERE file_id = $1 AND variant = $2 AND n = $3"
_DELETE_SOME: Final = """
DELETE FROM file_chunks WHERE file_id = $1 AND (variant, n) IN (
    SELECT variant, n FROM file_chunks WHERE file_id = $1 LIMIT 8
)
"""


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
