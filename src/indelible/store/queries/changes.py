"""The two logs merged: what a reader at some position has not seen yet, in the order of delivery.

The order is that of rule 6.2. The rows of an attempt come between the event that opened it and the event that ended
it, which names its last row (`last_n`), so that an end is never delivered before the content that it ends. Other
events may appear anywhere between the rows.

One call is one read transaction, so its result is consistent, and one call is limited: it returns a piece, and whether
that was everything. Rows stay bytes; nothing is decoded on the way to a reader.

`load_positions` finds the readers to wake: one query for all watched chats.

Must stay true (tests/store/test_changes.py): reading on from any position, in pieces of any size, gives the same
entries in an order that 6.2 allows, each once; exactly those positions are `is_reached`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from indelible.api.events import Position, ShownMessage, ShownQueued
from indelible.errors import ChatNotFound
from indelible.store.database.transaction import Row, Transaction
from indelible.store.journal.pack import unpack_rows
from indelible.store.queries.chat_view import Event, to_event
from indelible.store.queries.history import find_visible, load_shown, load_shown_queue, show_message

MAX_EVENTS: Final = 50
MAX_BYTES: Final = 1024 * 1024
_ROWS_AT_ONCE: Final = 256

# It starts from the chat: no row means that the chat does not exist, a row of nulls that nothing is new. The limit is
# inside, because PostgreSQL would read and sort all new events before it applied an outer one.
_NEW_EVENTS: Final = """
    SELECT e.seq, e.kind, e.ref, e.payload, e.at
    FROM chats AS c LEFT JOIN (
        SELECT seq, kind, ref, payload, at FROM events WHERE chat_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
    ) AS e ON TRUE
    WHERE c.id = $1
    ORDER BY e.seq
    """
_POSITIONS: Final = """
    SELECT c.id, c.owner_id, c.seq, a.id AS attempt_id,
        (SELECT max(n) FROM journal WHERE chat_id = a.chat_id AND attempt_id = a.id) AS last_n
    FROM chats AS c LEFT JOIN attempts AS a ON a.chat_id = c.id AND a.ended_at IS NULL
    WHERE c.id = ANY($1)
    """
# From the last start of an attempt up to a position. No row means that the chat has not got that far, a row of nulls
# that no attempt had started.
_PASSED: Final = """
    SELECT e.seq, e.kind, e.ref, e.payload, e.at
    FROM chats AS c LEFT JOIN events AS e ON e.chat_id = c.id AND e.seq <= $2 AND e.seq >= (
        SELECT seq FROM events WHERE chat_id = $1 AND seq <= $2 AND kind = 'attempt' ORDER BY seq DESC LIMIT 1
    )
    WHERE c.id = $1 AND c.seq >= $2
    ORDER BY e.seq
    """
_LAST_N: Final = """
    SELECT COALESCE(last_n, (SELECT max(n) FROM journal WHERE chat_id = $1 AND attempt_id = $2), 0) AS last_n
    FROM attempts WHERE chat_id = $1 AND id = $2
    """
_ROWS: Final = """
    SELECT n, parts FROM journal WHERE chat_id = $1 AND attempt_id = $2 AND n > $3 ORDER BY n LIMIT $4
    """
_PACKED: Final = "SELECT parts FROM journal WHERE chat_id = $1 AND attempt_id = $2 AND n = 0"


class LoadedRow(NamedTuple):
    """Row `n` of an attempt, as it was written."""

    attempt: str
    n: int
    parts: bytes


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What comes after a position, as far as it was read.

    `messages` are the visible messages that the events name. `visible` maps each head that an event names to the
    nearest message that people see. `queue` is the current queue, if an event changed it. `missing` counts what the
    logs should hold and do not; it is always 0.
    """

    entries: list[Event | LoadedRow]
    messages: dict[str, ShownMessage]
    visible: dict[str, str | None]
    queue: list[ShownQueued]
    missing: int
    complete: bool


class Additions(NamedTuple):
    """What a command appended to the logs of a chat, as it wrote it, and the rows of the messages that people see.

    A transaction knows what a reader would read after its commit, so that readers of its process need not ask.
    """

    entries: list[dict[str, Any] | LoadedRow]
    messages: list[dict[str, Any]]

    @property
    def last_seq(self) -> int:
        return max(int(entry["seq"]) for entry in self.entries if not isinstance(entry, LoadedRow))

    def to_changes(self, *, after: int = 0) -> Changes:
        """What `load_changes` gives to a reader who has seen everything before, or everything up to event `after`."""
        seen = [not isinstance(entry, LoadedRow) and entry["seq"] == after for entry in self.entries]
        new = self.entries[seen.index(True) + 1 :] if True in seen else self.entries
        return Changes(
            entries=[entry if isinstance(entry, LoadedRow) else to_event(entry) for entry in new],
            messages={row["id"]: show_message(row, row["parent_id"]) for row in self.messages},
            visible={},
            queue=[],
            missing=0,
            complete=True,
        )


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """Where a chat is now, for a reader that returns with a position: whether a reader can have reached it by now."""

    owner_id: str
    position: Position
    is_reached: bool


async def load_changes(
    transaction: Transaction, chat_id: str, after: Position, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
) -> Changes:
    """What comes after this position, in order; about as much as the limits allow, but always something if there is.

    Raises `NotFound` if the chat does not exist, so a reader that received a hint need not ask for its position first.
    """
    rows = await transaction.all(_NEW_EVENTS, chat_id, after.seq, max_events)
    if not rows:
        raise ChatNotFound
    found = [to_event(row) for row in rows if row["seq"] is not None]
    merger = _LogMerger(transaction, chat_id, after, max_bytes)
    complete = await merger.merge(found) and len(found) < max_events
    merged = [entry for entry in merger.entries if isinstance(entry, Event)]
    message_ids = [event.ref for event in merged if event.kind == "message" and event.ref is not None]
    head_ids = [event.ref for event in merged if event.kind == "head" and event.ref is not None]
    return Changes(
        entries=merger.entries,
        messages=await load_shown(transaction, chat_id, message_ids) if message_ids else {},
        visible=await find_visible(transaction, chat_id, head_ids) if head_ids else {},
        queue=await load_shown_queue(transaction, chat_id) if any(event.kind == "queue" for event in merged) else [],
        missing=merger.missing,
        complete=complete,
    )


async def load_positions(transaction: Transaction, chat_ids: Sequence[str]) -> dict[str, Position]:
    """The current position of each of these chats. A chat that does not exist is left out."""
    rows = await transaction.all(_POSITIONS, list(chat_ids))
    return {row["id"]: _to_position(row) for row in rows}


async def load_resumption(transaction: Transaction, chat_id: str, position: Position | None) -> Resumption | None:
    """Where the chat is, and whether a reader of it can have been at this position; None if there is no such chat."""
    rows = await transaction.all(_POSITIONS, [chat_id])
    if not rows:
        return None
    current = _to_position(rows[0])
    is_reached = position == current or (position is not None and await _has_reached(transaction, chat_id, position))
    return Resumption(owner_id=rows[0]["owner_id"], position=current, is_reached=is_reached)


def _to_position(row: Row) -> Position:
    return Position(row["seq"], row["attempt_id"], row["last_n"] or 0)


async def _has_reached(transaction: Transaction, chat_id: str, position: Position) -> bool:
    passed = await transaction.all(_PASSED, chat_id, position.seq)
    if not passed:
        return False
    events = [to_event(row) for row in passed if row["seq"] is not None]
    if not events or any(_get_last_n(event) is not None for event in events[1:]):
        return position.attempt is None and position.n == 0
    if position.attempt != events[0].ref:
        return False
    attempt = await transaction.one(_LAST_N, chat_id, position.attempt)
    return attempt is not None and bool(position.n <= attempt["last_n"])


class _LogMerger:
    """Puts the rows of each attempt between its events."""

    def __init__(self, transaction: Transaction, chat_id: str, after: Position, max_bytes: int) -> None:
        self.entries: list[Event | LoadedRow] = []
        self.missing = 0
        self._transaction = transaction
        self._chat_id = chat_id
        self._seq = after.seq
        self._attempt = after.attempt
        self._n = after.n
        self._bytes_left = max_bytes

    async def merge(self, new: Sequence[Event]) -> bool:
        """False if it stopped at the limit."""
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
        """Add the attempt's rows up to `last_n`, or up to the last one so far; False if there may be more."""
        while self._attempt is not None and self._n != last_n:
            if self._bytes_left <= 0:
                return False
            rows = await _load_rows(self._transaction, self._chat_id, self._attempt, self._n)
            if not rows and last_n is not None:
                rows = await _load_packed_rows(self._transaction, self._chat_id, self._attempt, self._n)
            for row in rows:
                self.missing += row.n - self._n - 1
                self._n = row.n
                self._bytes_left -= len(row.parts)
                self.entries.append(row)
            if len(rows) < _ROWS_AT_ONCE:
                break
        return True


async def _load_rows(transaction: Transaction, chat_id: str, attempt_id: str, after: int) -> list[LoadedRow]:
    rows = await transaction.all(_ROWS, chat_id, attempt_id, after, _ROWS_AT_ONCE)
    return [LoadedRow(attempt_id, row["n"], row["parts"]) for row in rows]


async def _load_packed_rows(transaction: Transaction, chat_id: str, attempt_id: str, after: int) -> list[LoadedRow]:
    """All rows at once: the database holds them as one (journal/pack.py)."""
    found = await transaction.one(_PACKED, chat_id, attempt_id)
    rows = [] if found is None else unpack_rows(found["parts"])
    return [LoadedRow(attempt_id, row.n, row.parts) for row in rows if row.n > after]


def _get_last_n(event: Event) -> int | None:
    """The last row of the attempt that this event ends; None if it ends none."""
    last_n: int | None = event.payload.get("last_n") if isinstance(event.payload, dict) else None
    return last_n
