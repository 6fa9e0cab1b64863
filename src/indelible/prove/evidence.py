"""What is compared at the end of a proof: all that is known about one chat, the rows of its files, and what a fault is.

For every chat there are the transcripts of its live readers, over all their reconnects; the transcript of a new reader
who reads everything afterwards; the conversation, the snapshot, the tree and every branch as the server shows them; the
event numbers and the faults of the stored rows, if the database is accessible; and what its user did. For all chats
together there are the files: what was uploaded, and what the server has.

In the database every row of a file has its bytes, and nothing is kept that nobody will remove. An upload that a kill
interrupted leaves a row in the state `uploading`, which the sweep finds a day later. Bytes without a row would be found
by nobody: in the database a foreign key prevents them, and a directory is searched for them. What was deleted goes
within moments, whichever server is left, so this waits for it before it judges.

Must stay true (tests/prove/test_lost_files.py): bytes without a row, and rows without bytes, are found.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from indelible.prove.reader import ReaderTranscript
from indelible.prove.script import Kind, ProofFile, make_file
from indelible.store.database.transaction import Database, Row, Transaction


class UserLog(msgspec.Struct, kw_only=True):
    """What a user did, as far as the server accepted it.

    `sent` are messages, edits included. `stops`, `edits` and `again` count the requests to stop a reply, to go on
    elsewhere while one may be running, and to answer a question again. `models` are the names of the models that a
    message, by its text, or a turn was to be answered by. `submitted` are the notes of the client's calls that got a
    result, by turn. `counts` are for the report.
    """

    sent: list[str] = []
    stops: int = 0
    edits: int = 0
    again: int = 0
    models: dict[str, str] = {}
    turn_models: dict[str, str] = {}
    submitted: dict[str, list[str]] = {}
    counts: dict[str, int] = {}

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


class BranchVisit(msgspec.Struct, frozen=True):
    """A branch that was gone back to: its last message, and the conversation that was shown there."""

    end_id: str
    messages: Sequence[dict[str, Any]]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about one chat. `seqs` are the stored numbers of its events, if the database is accessible."""

    chat_id: str
    log: UserLog
    live: Sequence[ReaderTranscript]
    stored: ReaderTranscript
    messages: Sequence[dict[str, Any]]
    snapshot: dict[str, Any]
    tree: dict[str, Any] | None = None
    branches: Sequence[BranchVisit] = ()
    seqs: Sequence[int] | None = None
    row_faults: Sequence[str] = ()


class UploadLog(msgspec.Struct, kw_only=True):
    """What became of the uploads of all users. `accepted` are the keys of files by the ids that the server gave them.

    `broken_off` are keys of uploads that the client ended in the middle.
    """

    accepted: dict[str, str] = {}
    broken_off: list[str] = []
    last_number: int = 0

    def name_another(self, kind: Kind) -> ProofFile:
        """A file of this kind that belongs to no message."""
        while True:
            self.last_number += 1
            file = make_file(f"0.{self.last_number}")
            if file.kind == kind:
                return file

    def count(self) -> dict[str, int]:
        """How many files of each kind were uploaded, for the report."""
        counts = Counter[str](make_file(key).kind for key in self.accepted.values())
        return dict(counts + Counter({"broken off": len(self.broken_off)}))


class StoredCopy(NamedTuple):
    """A file that the server lists. `brought` is the hash of the downloaded bytes, or why there were none."""

    id: str
    name: str
    media_type: str
    sha256: str
    brought: str


class Fault(msgspec.Struct, frozen=True):
    """A broken promise, and its chat, if it has one."""

    sentence: str
    chat_id: str | None = None


_CONTEXT: Final = 30


def describe_difference(one: str, other: str) -> str:
    """The first difference between two texts, with some context."""
    if one == other:
        return "the texts are the same, their rows are not"
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(0, at - _CONTEXT)
    pieces = [text[begin : at + _CONTEXT] for text in (one, other)]
    return f"after {at} characters …{pieces[0]!r} and …{pieces[1]!r}"


# --- rows of files ---


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
