"""Writing journal rows: the one statement on the hot path.

One transaction carries the rows of all running chats of a process. It touches attempts, never chats, and
does not wait: an attempt whose row is locked is being ended, so its rows are skipped and kept for
the next flush (R7). Whether an attempt is closed is then read from its row, not guessed from the skip.

Nearly always every attempt is open and every row new, so one statement does it all: it locks the attempts,
checks them and inserts. It goes to the driver as it stands, because building it anew for every group would
cost more than writing the rows (`python -m bench store`); on SQLite the whole transaction is one visit to the
connection's thread. Only rows that it left out are examined further, and on SQLite, where a transaction is
cheap to repeat, the group is then written again step by step. That the lock and the reading are one statement
here is no breach of R1: what it reads is the locked row itself, and of that PostgreSQL gives the version that
was locked.

A row that already exists with the same bytes is a success: the response to an earlier commit was lost (R5).

Must stay true (tests/store/test_append.py): of an attempt that has ended, or that another epoch holds, nothing
is written; a group whose data is refused writes nothing at all; no transaction is left open, cancelled or not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import insert, select, tuple_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.concurrency.tasks import run_to_completion
from indelible.errors import StoreFailed
from indelible.store.database.engine import begin_write, is_sqlite, run_on_sqlite
from indelible.store.database.tables import attempts, journal
from indelible.store.database.types import format_time
from indelible.store.journal.tool_ledger import RunChange, write_change

_INSERT_SQLITE: Final = """
INSERT INTO journal (chat_id, attempt_id, n, parts, at)
SELECT chat_id, id, ?, ?, ? FROM attempts WHERE id = ? AND chat_id = ? AND epoch = ? AND ended_at IS NULL
ON CONFLICT (chat_id, attempt_id, n) DO NOTHING
"""
# Asks for the attempts by key, and checks outside of the locking part, so that a plan that was made once for
# groups of any size finds no other index to choose: with one, 300 rows took eight times as long.
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


class BadRows(StoreFailed):
    """The database refuses the content of a row; a retry would not help."""


class JournalRow(NamedTuple):
    """Row `n` of an attempt of a chat, written under the epoch of its holder's lease, with its changes of the ledger.

    A row names its chat, so that the receiver of `on_committed` needs no table of attempts.
    """

    chat_id: str
    attempt_id: str
    epoch: int
    n: int
    parts: bytes
    changes: tuple[RunChange, ...] = ()


class Appended(NamedTuple):
    """Which attempts have their row now, and which are over for this holder. The others were skipped."""

    written: frozenset[str]
    closed: frozenset[str]


async def append_group(engine: AsyncEngine, rows: Sequence[JournalRow], at: datetime) -> Appended:
    """Write these rows, at most one per attempt, in a transaction of their own, as `append_rows` would.

    Raises `BadRows` if the data itself is refused; then nothing was written. A caller that is cancelled waits for the
    end of a transaction that has begun, whichever way it was written (whole.py).
    """
    try:
        if is_sqlite(engine.url) and await _append_in_one_visit(engine, rows, at):
            return Appended(frozenset(row.attempt_id for row in rows), frozenset())
        return await _append_in_steps(engine, rows, at)
    except (DBAPIError, sqlite3.Error) as error:
        cause = getattr(error, "orig", error)
        raise BadRows(f"The database refused a journal row: {cause}") from error


@run_to_completion
async def _append_in_steps(engine: AsyncEngine, rows: Sequence[JournalRow], at: datetime) -> Appended:
    async with begin_write(engine) as connection:
        return await append_rows(connection, rows, at)


async def append_rows(connection: AsyncConnection, rows: Sequence[JournalRow], at: datetime) -> Appended:
    """Write these rows, at most one per attempt, as far as their attempts are open and theirs."""
    appended = await _append(connection, rows, at)
    for row in rows:
        if row.attempt_id in appended.written:
            for change in row.changes:
                await write_change(connection, row.chat_id, change, at)
    return appended


async def _append_in_one_visit(engine: AsyncEngine, rows: Sequence[JournalRow], at: datetime) -> bool:
    """Write all rows or none, in one visit to the connection's thread; returns whether all were written."""
    if any(row.changes for row in rows):
        return False
    values = _list_values(rows, at)

    def write(file: sqlite3.Connection) -> bool:
        file.execute("BEGIN IMMEDIATE")
        complete = file.executemany(_INSERT_SQLITE, values).rowcount == len(values)
        if complete:
            file.execute("COMMIT")
        return complete

    return await run_on_sqlite(engine, write)


async def _append(connection: AsyncConnection, rows: Sequence[JournalRow], at: datetime) -> Appended:
    left_out = await _insert(connection, rows, at)
    if not left_out:
        return Appended(frozenset(row.attempt_id for row in rows), frozenset())
    by_id = {row.attempt_id: row for row in left_out}
    free = await _lock_open(connection, by_id)
    there = await _insert(connection, [by_id[attempt_id] for attempt_id in free], at)
    await _refuse_different(connection, there, at)
    skipped = by_id.keys() - free
    written = frozenset(row.attempt_id for row in rows if row.attempt_id not in skipped)
    return Appended(written, await _find_closed(connection, by_id, skipped))


async def _insert(connection: AsyncConnection, rows: Sequence[JournalRow], at: datetime) -> list[JournalRow]:
    """Insert what can be inserted; returns the rows left out. SQLite only counts, so it returns all rows if any was."""
    if not rows:
        return []
    if connection.dialect.name == "sqlite":
        count = (await connection.exec_driver_sql(_INSERT_SQLITE, _list_values(rows, at))).rowcount
        return [] if count == len(rows) else list(rows)
    columns = (list(column) for column in zip(*(row[:5] for row in rows), strict=True))
    inserted = await connection.exec_driver_sql(_INSERT_POSTGRES, (*columns, at))
    done = set(inserted.scalars())
    return [row for row in rows if row.attempt_id not in done]


def _list_values(rows: Sequence[JournalRow], at: datetime) -> list[tuple[int, bytes, str, str, str, int]]:
    time = format_time(at)
    return [(row.n, row.parts, time, row.attempt_id, row.chat_id, row.epoch) for row in rows]


async def _lock_open(connection: AsyncConnection, by_id: dict[str, JournalRow]) -> set[str]:
    found = select(attempts.c.id, attempts.c.epoch).where(
        attempts.c.id.in_(by_id.keys()), attempts.c.ended_at.is_(None)
    )
    rows = await connection.execute(found.with_for_update(read=True, skip_locked=True))
    return {row.id for row in rows if row.epoch == by_id[row.id].epoch}


async def _refuse_different(connection: AsyncConnection, rows: Sequence[JournalRow], at: datetime) -> None:
    """These rows exist. The same bytes are a success; for others the INSERT raises the database's own error."""
    if not rows:
        return
    names = [(row.chat_id, row.attempt_id, row.n) for row in rows]
    present = await connection.execute(
        select(journal).where(tuple_(journal.c.chat_id, journal.c.attempt_id, journal.c.n).in_(names))
    )
    there = {(row.attempt_id, row.n): row.parts for row in present}
    for row in rows:
        if there[row.attempt_id, row.n] != row.parts:
            again = {"chat_id": row.chat_id, "attempt_id": row.attempt_id, "n": row.n, "parts": row.parts, "at": at}
            await connection.execute(insert(journal).values(**again))


async def _find_closed(connection: AsyncConnection, by_id: dict[str, JournalRow], skipped: set[str]) -> frozenset[str]:
    """The skipped attempts that are not open under their holder's epoch, or no longer exist."""
    if not skipped:
        return frozenset()
    rows = await connection.execute(select(attempts).where(attempts.c.id.in_(skipped)))
    still_open = {row.id for row in rows if row.ended_at is None and row.epoch == by_id[row.id].epoch}
    return frozenset(skipped - still_open)
