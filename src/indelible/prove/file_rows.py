"""The rows of files in the database of a proof: every row has its bytes, and nothing is kept that nobody will remove.

An upload that a kill interrupted leaves a row in the state `uploading`, which the sweep finds a day later. Bytes
without a row would be found by nobody: in the database a foreign key prevents them, and a directory is searched for
them. What was deleted goes within moments, whichever server is left, so this waits for it before it judges.
clients/uploads.py reads the bytes through the servers; this reads the database itself.

Must stay true (tests/prove/test_lost_files.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from indelible.store.database.transaction import Database, Row, Transaction

_SWEPT_WITHIN_S: Final = 60.0
_POLL_INTERVAL_S: Final = 0.05
_KNOWN: Final = "SELECT id FROM files"
_LEFT: Final = "SELECT name FROM files WHERE state = 'deleted'"
_READY: Final = "SELECT name FROM files WHERE state <> 'uploading'"
_UNUSED: Final = "SELECT id FROM files WHERE state = 'ready' AND unused_since IS NOT NULL"
_WITHOUT_BYTES: Final = """
SELECT f.name, f.size_bytes, coalesce(sum(length(c.content)), 0) AS stored FROM files AS f
LEFT JOIN file_chunks AS c ON c.file_id = f.id AND c.variant = 'content'
WHERE f.state = 'ready' AND f.place = 'database'
GROUP BY f.id, f.name, f.size_bytes HAVING f.size_bytes <> coalesce(sum(length(c.content)), 0)
"""
_NEVER_SWEPT: Final = """
SELECT name, state FROM files AS f WHERE unused_since IS NULL
    AND (state <> 'ready' OR NOT EXISTS (SELECT 1 FROM file_uses AS u WHERE u.file_id = f.id))
"""
_SWEPT_IN_USE: Final = """
SELECT name, state FROM files AS f WHERE (unused_since IS NOT NULL OR state <> 'ready')
    AND EXISTS (SELECT 1 FROM file_uses AS u WHERE u.file_id = f.id)
"""


async def find_row_faults(database: Database, directory: Path | None = None) -> list[str]:
    """What is wrong with the rows of files, once everything that was deleted is gone. `directory` has their bytes."""
    left = await _wait_until_gone(database, _LEFT)
    bytes_of = {} if directory is None else await asyncio.to_thread(_list_bytes, directory)

    async def find(transaction: Transaction) -> list[str]:
        broken = await transaction.all(_WITHOUT_BYTES)
        known = {row["id"] for row in await transaction.all(_KNOWN)}
        lasting, endangered = await transaction.all(_NEVER_SWEPT), await transaction.all(_SWEPT_IN_USE)
        return [
            *(f"{row['name']} was deleted, and its bytes are not removed" for row in left),
            *(f"{row['name']} has {row['stored']} of its {row['size_bytes']} bytes" for row in broken),
            *(f"{name} has bytes of a file, and no row" for file_id, name in bytes_of.items() if file_id not in known),
            *(f"{row['name']} ({row['state']}) is used by no chat, and would never be removed" for row in lasting),
            *(f"{row['name']} ({row['state']}) is used by a chat, and would be removed" for row in endangered),
        ]

    return await database.read(find)


async def find_unused_files(database: Database) -> list[str]:
    """The files that no chat uses, and that would go a day later.

    They are uploads that nobody sent, and pictures of tools whose server died before it recorded their result.
    """
    return [row["id"] for row in await database.read(lambda transaction: transaction.all(_UNUSED))]


async def find_left_files(database: Database) -> list[str]:
    """The files that are still there although every chat and every unused file was deleted."""
    return [
        f"{row['name']} is still stored after its chats were deleted"
        for row in await _wait_until_gone(database, _READY)
    ]


def _list_bytes(directory: Path) -> dict[str, str]:
    """The names in the directory of files, by the ids of the files, finished or not."""
    names = [path.name for path in directory.rglob("*") if path.is_file()]
    return {name.strip(".").partition(".")[0]: name for name in names}


async def _wait_until_gone(database: Database, sql: str) -> Sequence[Row]:
    ends_s = asyncio.get_running_loop().time() + _SWEPT_WITHIN_S
    while True:
        rows = await database.read(lambda transaction: transaction.all(sql))
        if not rows or asyncio.get_running_loop().time() > ends_s:
            return rows
        await asyncio.sleep(_POLL_INTERVAL_S)
