"""The two logs as one: what a reader at some position has not seen yet, in the order in which it is told.

The order is that of SPEC 6.2. What an attempt said stands between the event that opened it and the event that ended
it, which names its last row (`last_n`), so that an end is never told before what it ends. Other events stand between
the rows wherever they were found.

One call is one read transaction, so what it gives fits together, and one call is limited: it gives a piece of the
way, and whether that was all of it. Rows come as the bytes that they are; nothing is decoded on the way to a reader.

`load_positions` is what readers are woken by: one query for all chats that anybody watches.

Must stay true (tests/store/test_changes.py): reading on from any position, in pieces of any size, gives the same
entries in an order that 6.2 allows, each once; `has_reached` is true of exactly those positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.errors import NotFound
from indelible.machine.events import Position, ShownMessage, ShownQueued
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import attempts, chats, events, journal
from indelible.store.journal.pack import unpack_rows
from indelible.store.queries.chat_view import Event
from indelible.store.queries.history import find_visible, load_queued, load_shown

MAX_EVENTS: Final = 50
MAX_BYTES: Final = 1024 * 1024
_ROWS_AT_ONCE: Final = 256
_CHATS_AT_ONCE: Final = 500


class LoadedRow(NamedTuple):
    """Row `n` of an attempt, as it was written."""

    attempt: str
    n: int
    parts: bytes


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What comes after a position, as far as it was read.

    `messages` are those that the events tell of and people see. `visible` is, for each head that an event tells of,
    the nearest message that people see. `queue` is what waits now, if an event tells of the queue. `missing` counts
    what the logs should hold and do not; it is always 0.
    """

    entries: list[Event | LoadedRow]
    messages: dict[str, ShownMessage]
    visible: dict[str, str | None]
    queue: list[ShownQueued]
    missing: int
    complete: bool


async def load_changes(
    engine: AsyncEngine, chat_id: str, after: Position, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
) -> Changes:
    """What comes after this position, in order; about as much as the limits say, but always something if there is.

    It raises `NotFound` if there is no such chat: the first statement begins at the chat, so a reader that received a
    hint need not ask for its position first.
    """
    is_new = (events.c.chat_id == chats.c.id) & (events.c.seq > after.seq)
    wanted = select(events).outerjoin_from(chats, events, is_new).where(chats.c.id == chat_id)
    async with begin_read(engine) as connection:
        rows = (await connection.execute(wanted.order_by(events.c.seq).limit(max_events))).all()
        if not rows:
            raise NotFound("Chat not found. It may have been deleted.")
        found = [_to_event(row) for row in rows if row.seq is not None]
        merger = _LogMerger(connection, chat_id, after, max_bytes)
        complete = await merger.merge(found) and len(found) < max_events
        merged = [entry for entry in merger.entries if isinstance(entry, Event)]
        message_ids = [event.ref for event in merged if event.kind == "message" and event.ref is not None]
        head_ids = [event.ref for event in merged if event.kind == "head" and event.ref is not None]
        return Changes(
            entries=merger.entries,
            messages=await load_shown(connection, chat_id, message_ids) if message_ids else {},
            visible=await find_visible(connection, chat_id, head_ids) if head_ids else {},
            queue=await load_queued(connection, chat_id) if any(event.kind == "queue" for event in merged) else [],
            missing=merger.missing,
            complete=complete,
        )


async def load_positions(engine: AsyncEngine, chat_ids: Sequence[str]) -> dict[str, Position]:
    """The current position of each of these chats. A chat that does not exist is left out."""
    own = (journal.c.chat_id == attempts.c.chat_id, journal.c.attempt_id == attempts.c.id)
    last_n = select(func.max(journal.c.n)).where(*own).scalar_subquery()
    is_open = (attempts.c.chat_id == chats.c.id) & attempts.c.ended_at.is_(None)
    wanted = select(chats.c.id, chats.c.seq, attempts.c.id.label("attempt"), last_n.label("n"))
    positions: dict[str, Position] = {}
    async with begin_read(engine) as connection:
        for start in range(0, len(chat_ids), _CHATS_AT_ONCE):
            some = chats.c.id.in_(chat_ids[start : start + _CHATS_AT_ONCE])
            for row in await connection.execute(wanted.outerjoin_from(chats, attempts, is_open).where(some)):
                positions[row.id] = Position(row.seq, row.attempt, row.n or 0)
    return positions


async def has_reached(engine: AsyncEngine, chat_id: str, position: Position) -> bool:
    """Whether a reader of this chat can have reached exactly this position by now."""
    own = events.c.chat_id == chat_id
    opened = select(events.c.seq).where(own, events.c.seq <= position.seq, events.c.kind == "attempt")
    async with begin_read(engine) as connection:
        last_seq = (await connection.execute(select(chats.c.seq).where(chats.c.id == chat_id))).scalar()
        if last_seq is None or position.seq > last_seq:
            return False
        since = (await connection.execute(opened.order_by(events.c.seq.desc()).limit(1))).scalar()
        if since is None:
            return position.attempt is None and position.n == 0
        passed = select(events).where(own, events.c.seq >= since, events.c.seq <= position.seq).order_by(events.c.seq)
        first, *later = [_to_event(row) for row in await connection.execute(passed)]
        if any(_get_last_n(event) is not None for event in later):
            return position.attempt is None and position.n == 0
        return position.attempt == first.ref and position.n <= await _load_last_n(connection, chat_id, first.ref)


async def _load_last_n(connection: AsyncConnection, chat_id: str, attempt_id: str | None) -> int:
    ended = select(attempts.c.last_n).where(attempts.c.id == attempt_id)
    last_n = (await connection.execute(ended)).scalar()
    if last_n is None:
        written = select(func.max(journal.c.n)).where(journal.c.chat_id == chat_id, journal.c.attempt_id == attempt_id)
        last_n = (await connection.execute(written)).scalar()
    return last_n or 0


class _LogMerger:
    """Puts the rows of each attempt between its events."""

    def __init__(self, connection: AsyncConnection, chat_id: str, after: Position, max_bytes: int) -> None:
        self.entries: list[Event | LoadedRow] = []
        self.missing = 0
        self._connection = connection
        self._chat_id = chat_id
        self._seq = after.seq
        self._attempt = after.attempt
        self._n = after.n
        self._bytes_left = max_bytes

    async def merge(self, new: Sequence[Event]) -> bool:
        """False if it broke off because the limit was reached."""
        for event in new:
            last_n = _get_last_n(event)
            if last_n is not None:
                self._turn_to(event.payload["attempt"])
                if not await self._add_rows(last_n):
                    return False
                self.missing += last_n - self._n
                self._turn_to(None)
            if event.kind == "attempt":
                self._turn_to(event.ref)
            self.missing += event.seq - self._seq - 1
            self._seq = event.seq
            self.entries.append(event)
        return await self._add_rows(None)

    def _turn_to(self, attempt_id: str | None) -> None:
        if attempt_id != self._attempt:
            self._attempt, self._n = attempt_id, 0

    async def _add_rows(self, last_n: int | None) -> bool:
        """Add what the attempt said, up to a row or to its last one so far; False if there may be more of it."""
        while self._attempt is not None and self._n != last_n:
            if self._bytes_left <= 0:
                return False
            rows = await _load_rows(self._connection, self._chat_id, self._attempt, self._n)
            if not rows and last_n is not None:
                rows = await _load_packed_rows(self._connection, self._chat_id, self._attempt, self._n)
            for row in rows:
                self.missing += row.n - self._n - 1
                self._n = row.n
                self._bytes_left -= len(row.parts)
                self.entries.append(row)
            if len(rows) < _ROWS_AT_ONCE:
                break
        return True


async def _load_rows(connection: AsyncConnection, chat_id: str, attempt_id: str, after: int) -> list[LoadedRow]:
    own = (journal.c.chat_id == chat_id, journal.c.attempt_id == attempt_id)
    wanted = select(journal.c.n, journal.c.parts).where(*own, journal.c.n > after)
    rows = await connection.execute(wanted.order_by(journal.c.n).limit(_ROWS_AT_ONCE))
    return [LoadedRow(attempt_id, row.n, row.parts) for row in rows]


async def _load_packed_rows(connection: AsyncConnection, chat_id: str, attempt_id: str, after: int) -> list[LoadedRow]:
    """All of them at once: they are one row of the database (pack.py)."""
    own = (journal.c.chat_id == chat_id, journal.c.attempt_id == attempt_id)
    packed = select(journal.c.parts).where(*own, journal.c.n == 0)
    found = (await connection.execute(packed)).scalar()
    rows = [] if found is None else unpack_rows(found)
    return [LoadedRow(attempt_id, row.n, row.parts) for row in rows if row.n > after]


def _get_last_n(event: Event) -> int | None:
    """The last row of the attempt that this event ends, if it ends one."""
    last_n: int | None = event.payload.get("last_n") if isinstance(event.payload, dict) else None
    return last_n


def _to_event(row: Row[Any]) -> Event:
    payload = None if row.payload is None else msgspec.json.decode(row.payload)
    return Event(seq=row.seq, kind=row.kind, ref=row.ref, payload=payload, at=row.at)
