"""Writing journal rows: the one statement on the hot path.

One transaction carries the rows of all running chats of a process. It locks rows of attempts, never of chats, and waits
for no lock: an attempt whose row is locked is being ended, so its journal rows are skipped and kept for the next flush
(R7). Whether such an attempt is closed is then read from its row, not inferred from the skip.

Nearly always every attempt is open and every row new, so one statement does it all: it locks the attempts, checks them
and inserts. On PostgreSQL that is one round trip, and on SQLite the rows share a commit with all concurrent writes.
Only if a row was left out is the group examined further. Locking and reading in one statement does not violate R1
here: the statement reads only the locked row itself, and PostgreSQL returns the version that it locked.

A row that already exists with the same bytes is a success: the response to an earlier commit was lost (R5).

The ledger has every local tool call, written before it starts and when it settles (P5). A change of it and the part
that reports it (`tool_started`, `tool_result`) are one journal row and one transaction, under the same condition: the
attempt is open under our epoch. So after a crash the journal and the ledger agree on what was started and how it ended,
and a worker that lost the chat can settle nothing. The key of a call is (turn, step, index), because providers' ids
repeat. The chat's use of files that a result names is part of it (tests/files/test_file_uses.py).

Must stay true (tests/store/test_append.py): nothing is written for an attempt that has ended or that another epoch
holds; a group whose data is refused writes nothing at all; the one exception is a row that exists with other content on
PostgreSQL, which does not undo the other rows, and a retry finds those written; no transaction is left open, cancelled
or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from indelible.content import ToolResult, encode
from indelible.errors import StoreFailed
from indelible.store.commands.history import use_result_files
from indelible.store.database.errors import is_about_data
from indelible.store.database.transaction import Database, Transaction

_INSERT_SQLITE: Final = """
INSERT INTO journal (chat_id, attempt_id, n, parts, at)
SELECT chat_id, id, $4, $5, $6 FROM attempts WHERE chat_id = $1 AND id = $2 AND epoch = $3 AND ended_at IS NULL
ON CONFLICT (chat_id, attempt_id, n) DO NOTHING
"""
# Finds the attempts by key and checks them outside the locking part, so that the cached generic plan has no other
# index to choose: with another index, 300 rows took eight times as long.
_INSERT_POSTGRES: Final = """
WITH held AS MATERIALIZED (
    SELECT given.*, attempts.epoch = given.lease AND attempts.ended_at IS NULL AS is_open
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bytea[])
        AS given (chat_id, attempt_id, lease, n, parts)
    JOIN attempts ON attempts.id = given.attempt_id AND attempts.chat_id = given.chat_id
    FOR SHARE OF attempts SKIP LOCKED
)
INSERT INTO journal (chat_id, attempt_id, n, parts, at)
SELECT chat_id, attempt_id, n, parts, $6::timestamptz FROM held WHERE is_open
ON CONFLICT (chat_id, attempt_id, n) DO NOTHING
RETURNING attempt_id
"""
_LOCK_OPEN: Final = """
SELECT id, epoch FROM attempts WHERE chat_id = ANY($1) AND ended_at IS NULL FOR SHARE SKIP LOCKED
"""
_FIND_OPEN: Final = "SELECT id, epoch FROM attempts WHERE chat_id = ANY($1) AND ended_at IS NULL"
_FIND_ROW: Final = "SELECT parts FROM journal WHERE chat_id = $1 AND attempt_id = $2 AND n = $3"


class BadRows(StoreFailed):
    """The database refuses the content of a row; a retry would not help."""


class JournalRow(NamedTuple):
    """Row `n` of an attempt of a chat, written under the epoch of its holder's lease, with its ledger changes.

    A row names its chat, so that the receiver of `on_committed` needs no table of attempts.
    """

    chat_id: str
    attempt_id: str
    epoch: int
    n: int
    parts: bytes
    changes: tuple[RunChange, ...] = ()


class Appended(NamedTuple):
    """The attempts whose row is written, and those that this holder has lost or ended. The others were skipped."""

    written: frozenset[str]
    closed: frozenset[str]


async def append_group(database: Database, rows: Sequence[JournalRow], at: datetime) -> Appended:
    """Write these rows, at most one per attempt, in a transaction of their own, like `append_rows`.

    Raises `BadRows` if the data itself is refused. Each row can be retried by itself.
    """
    try:
        if database.dialect == "postgresql" and not any(row.changes for row in rows):
            return await _append_at_once(database, rows, at)
        return await database.write(partial(append_rows, rows=rows, at=at), urgent=True)
    except BadRows:
        raise
    except Exception as error:
        if is_about_data(error):
            raise BadRows(f"The database refused a journal row: {str(error).partition(chr(10))[0]}") from error
        raise


async def _append_at_once(database: Database, rows: Sequence[JournalRow], at: datetime) -> Appended:
    """Rows that the one statement wrote stay written, even if their attempts end while the others are examined."""
    left_out = await database.write(partial(_insert, rows=rows, at=at), urgent=True, single=True)
    written = frozenset(row.attempt_id for row in rows) - {row.attempt_id for row in left_out}
    if not left_out:
        return Appended(written, frozenset())
    others = await database.write(partial(append_rows, rows=left_out, at=at), urgent=True)
    return Appended(written | others.written, others.closed)


async def append_rows(transaction: Transaction, rows: Sequence[JournalRow], at: datetime) -> Appended:
    """Write these rows, at most one per attempt, if their attempts are open under their epoch."""
    appended = await _append(transaction, rows, at)
    for row in rows:
        if row.attempt_id in appended.written:
            for change in row.changes:
                await write_change(transaction, row.chat_id, change, at)
    return appended


async def _append(transaction: Transaction, rows: Sequence[JournalRow], at: datetime) -> Appended:
    left_out = await _insert(transaction, rows, at)
    if not left_out:
        return Appended(frozenset(row.attempt_id for row in rows), frozenset())
    by_id = {row.attempt_id: row for row in left_out}
    free = await _find_open(transaction, by_id, _LOCK_OPEN)
    there = await _insert(transaction, [by_id[attempt_id] for attempt_id in free], at)
    await _refuse_different(transaction, there)
    skipped = by_id.keys() - free
    written = frozenset(row.attempt_id for row in rows if row.attempt_id not in skipped)
    still_open = await _find_open(transaction, by_id, _FIND_OPEN) if skipped else set()
    return Appended(written, frozenset(skipped - still_open))


async def _insert(transaction: Transaction, rows: Sequence[JournalRow], at: datetime) -> list[JournalRow]:
    """Insert what it can; returns the rows left out. SQLite only counts, so it returns all rows if any was left out."""
    if not rows:
        return []
    if transaction.dialect == "sqlite":
        count = await transaction.many(_INSERT_SQLITE, [(*row[:5], at) for row in rows])
        return [] if count == len(rows) else list(rows)
    columns = (list(column) for column in zip(*(row[:5] for row in rows), strict=True))
    done = {row["attempt_id"] for row in await transaction.all(_INSERT_POSTGRES, *columns, at)}
    return [row for row in rows if row.attempt_id not in done]


async def _find_open(transaction: Transaction, by_id: Mapping[str, JournalRow], sql: str) -> set[str]:
    """The attempts that are open under their holder's epoch."""
    found = await transaction.all(sql, [row.chat_id for row in by_id.values()])
    return {row["id"] for row in found if row["id"] in by_id and row["epoch"] == by_id[row["id"]].epoch}


async def _refuse_different(transaction: Transaction, rows: Sequence[JournalRow]) -> None:
    """Raise `BadRows` if one of these existing rows has other bytes; the same bytes are a success."""
    for row in rows:
        there = await transaction.one(_FIND_ROW, row.chat_id, row.attempt_id, row.n)
        if there["parts"] != row.parts:
            raise BadRows(f"Row {row.n} of the attempt {row.attempt_id} exists with other content.")


_SETTLE: Final = """
UPDATE tool_runs SET state = 'settled', result = $5, settled_at = $6
WHERE chat_id = $1 AND turn_id = $2 AND step = $3 AND call_index = $4 AND state = 'started'
"""
_START: Final = """
INSERT INTO tool_runs (chat_id, turn_id, step, call_index, attempt_id, call_id, name, arguments, state,
    idempotency_key, started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'started', $9, $10) ON CONFLICT DO NOTHING
"""


class RunKey(NamedTuple):
    turn_id: str
    step: int
    call_index: int


class RunStarted(NamedTuple):
    key: RunKey
    attempt_id: str
    call_id: str
    name: str
    arguments: str
    idempotency_key: str


class RunSettled(NamedTuple):
    key: RunKey
    result: ToolResult


RunChange = RunStarted | RunSettled


async def write_change(transaction: Transaction, chat_id: str, change: RunChange, at: datetime) -> None:
    """Record a change. Repeating it changes nothing: the response to its commit may have been lost."""
    if isinstance(change, RunSettled):
        await transaction.run(_SETTLE, chat_id, *change.key, encode(change.result), at)
        if change.result.files:
            await use_result_files(transaction, chat_id, change.result)
        return
    arguments = change.arguments.encode("utf-8", "replace")
    started = (change.attempt_id, change.call_id, change.name, arguments, change.idempotency_key, at)
    await transaction.run(_START, chat_id, *change.key, *started)
