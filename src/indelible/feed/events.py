"""From stored rows to the events that a reader gets, and the position of a reader as text. Pure.

A `TimelineStep` is one step of a chat's stream: the event, if people may see it, and the position after it. Steps are
the same for all readers of the chat, and so are their JSON and their cursor, which are made here, once.

Rows and events advance a position independently, so two readers may meet a row and an event in different order, and
one may be ahead in rows and behind in events, or the reverse. `follow` decides whether a step is new for a reader at a
position; `covers` decides whether one position includes everything that another includes.

A cursor is a position to resume from: opaque, short, and safe in a URL and in a header. It names its chat, so that a
cursor of another chat is detected. The store checks whether a reader of that chat can have been at its position
(`Store.resume`). An invalid cursor means a full snapshot and never a skipped event, so reading one does not fail.

Must stay true: a reader that covers a channel and follows its steps from there meets each event and each row exactly
once (tests/feed/test_timeline.py); every position can be read back from its cursor, and text that we did not write
gives no position (tests/feed/test_cursor.py).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from indelible.api.events import BEGINNING, EventBody, EventKind, FeedEvent, MessageAdded, Position
from indelible.content import encode
from indelible.store.queries.changes import Changes, LoadedRow
from indelible.store.queries.chat_view import Event

_OVERHEAD_BYTES: Final = 512


class TimelineStep(msgspec.Struct, frozen=True):
    """`after` is the position of its channel or reader after it. A step without an event only moves the position."""

    after: Position
    event: FeedEvent | None = None
    is_row: bool = False

    @property
    def size_bytes(self) -> int:
        return _OVERHEAD_BYTES + (0 if self.event is None else len(self.event.body.json))


def build_timeline(cursors: Cursors, position: Position, changes: Changes) -> list[TimelineStep]:
    """The steps from this position through these changes."""
    steps: list[TimelineStep] = []
    for entry in changes.entries:
        if isinstance(entry, LoadedRow):
            step = make_row_step(cursors, position, entry.attempt, entry.n, entry.parts)
        else:
            step = _make_event_step(cursors, position, entry, changes)
        position = step.after
        steps.append(step)
    return steps


def follows(position: Position, changes: Changes) -> bool:
    """Whether these changes are what comes directly after this position."""
    seq, attempt, n = position.seq, position.attempt, position.n
    for entry in changes.entries:
        if isinstance(entry, LoadedRow):
            if (entry.attempt, entry.n) != (attempt, n + 1):
                return False
            n = entry.n
            continue
        if entry.seq != seq + 1:
            return False
        seq = entry.seq
        if isinstance(entry.payload, dict) and "last_n" in entry.payload:
            if (entry.payload["attempt"], entry.payload["last_n"]) != (attempt, n):
                return False
            attempt, n = None, 0
        if entry.kind == "attempt":
            attempt, n = entry.ref, 0
    return True


def is_past(position: Position, changes: Changes) -> bool:
    """Whether a reader at this position has the events of these changes, and so what came before each of them."""
    return all(isinstance(entry, LoadedRow) or entry.seq <= position.seq for entry in changes.entries)


def make_row_step(cursors: Cursors, position: Position, attempt_id: str, n: int, parts: bytes) -> TimelineStep:
    """The step of one journal row."""
    after = Position(position.seq, attempt_id, n)
    body = EventBody(b'{"attempt":%b,"n":%d,"parts":%b}' % (encode(attempt_id), n, parts))
    return TimelineStep(after, FeedEvent("part", cursors.write(after), body), is_row=True)


def follow(position: Position | None, step: TimelineStep) -> Position | None:
    """The position of a reader after the step; the same object if the step is not new."""
    after = step.after
    if position is None:
        return after
    if not step.is_row:
        if after.seq <= position.seq:
            return position
        is_ahead = after.attempt == position.attempt and after.n < position.n
        return Position(after.seq, position.attempt, position.n) if is_ahead else after
    if after.attempt != position.attempt or after.n <= position.n:
        return position
    return after if after.seq >= position.seq else Position(position.seq, after.attempt, after.n)


def covers(position: Position, other: Position) -> bool:
    """Whether a reader at this position has seen everything up to the other."""
    return position.seq >= other.seq and (position.attempt != other.attempt or position.n >= other.n)


def _make_event_step(cursors: Cursors, position: Position, event: Event, changes: Changes) -> TimelineStep:
    payload: dict[str, Any] = event.payload or {}
    after = Position(event.seq, position.attempt, position.n)
    if "last_n" in payload:
        after = Position(event.seq)
    if event.kind == "attempt":
        after = Position(event.seq, event.ref)
    make = _SHAPES.get(event.kind)  # type: ignore[call-overload]
    shape = None if make is None else make(event, payload, changes)
    if shape is None:
        return TimelineStep(after)
    kind: EventKind = event.kind  # type: ignore[assignment]
    return TimelineStep(after, FeedEvent(kind, cursors.write(after), EventBody(encode(shape))))


def _shape_message(event: Event, payload: dict[str, Any], changes: Changes) -> MessageAdded | None:
    """None for a message that only a model sees."""
    message = changes.messages.get(event.ref or "")
    if message is None:
        return None
    ended = {name: payload.get(name) for name in ("attempt", "last_n")}
    return MessageAdded(message=message, queued=payload.get("queued"), **ended)


def _shape_head(event: Event, _payload: dict[str, Any], changes: Changes) -> dict[str, Any]:
    return {"head": None if event.ref is None else changes.visible[event.ref]}


def _shape_attempt(event: Event, payload: dict[str, Any], _changes: Changes) -> dict[str, Any]:
    return {"attempt": event.ref, **payload}


def _shape_queue(_event: Event, payload: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """The order at that time, and those of its messages that are still queued."""
    waiting = {queued.id: queued for queued in changes.queue}
    return {**payload, "queue": [waiting[id_] for id_ in payload["ids"] if id_ in waiting]}


def _shape_of_turn(event: Event, payload: dict[str, Any], _changes: Changes) -> dict[str, Any]:
    return {**payload, "turn": event.ref}


def _shape_plainly(_event: Event, payload: dict[str, Any], _changes: Changes) -> dict[str, Any]:
    return payload


_SHAPES: Final[dict[EventKind, Callable[[Event, dict[str, Any], Changes], Any]]] = {
    "message": _shape_message,
    "head": _shape_head,
    "attempt": _shape_attempt,
    "reset": _shape_plainly,
    "status": _shape_of_turn,
    "queue": _shape_queue,
    "retry": _shape_of_turn,
    "action": _shape_of_turn,
    "error": _shape_plainly,
    "chat": _shape_plainly,
}
START: Final = "start"
"""As a cursor: everything from the beginning."""
_MARK_BYTES: Final = 6
_LONGEST: Final = 256
_LARGEST: Final = 2**63 - 1


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    mark: bytes
    seq: int
    attempt: str | None
    n: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Cursor).decode


class Cursors:
    """Writes and reads the cursors of one chat."""

    def __init__(self, chat_id: str) -> None:
        self._mark = blake2b(chat_id.encode(), digest_size=_MARK_BYTES).digest()

    def write(self, position: Position) -> str:
        content = _encode(_Cursor(self._mark, position.seq, position.attempt, position.n))
        return urlsafe_b64encode(content).rstrip(b"=").decode()

    def read(self, text: str) -> Position | None:
        """The position of this cursor; None if it is not a cursor of this chat."""
        if text == START:
            return BEGINNING
        if len(text) > _LONGEST or not text.isascii():
            return None
        try:
            cursor = _decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, msgspec.MsgspecError):
            return None
        position = Position(cursor.seq, cursor.attempt, cursor.n)
        is_possible = 0 <= cursor.seq <= _LARGEST and 0 <= cursor.n <= _LARGEST
        return position if is_possible and self.write(position) == text else None
