"""One turn of a chat in the words of another wire. Pure: the same events always give the same frames.

`TurnProjection` is the one place that reads the events of a feed for the wires: which of them belong to the turn,
where an attempt ends, and how the turn does. A wire implements one method per fact. It gets

    open_attempt        an attempt began; its parts follow
    one method per part (`parts`)
    close_attempt       the attempt ended: complete, or cut short (a stop, a crash, a retry)
    add_message         a message entered history: the reply, or results
    close               the turn is over, or waits for results of the client

and calls `emit` with finished frames. Two readers may get events in different order only where no wire depends on the
order: rows of an attempt always come between its beginning and its end, in order. That is why frames can be numbered,
and why the numbers are the same in every replay.

Must stay true (tests/server/wires/test_projections.py): for random turns, every prefix of the frames obeys the rules
of its wire, and a replay gives the same frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from indelible.api.events import FeedEvent

TurnOutcome = Literal["complete", "waiting", "interrupted", "failed", "edited"]
PartHandlers = Mapping[type, Callable[[Any, Any], object]]


class TurnProjection:
    """See the module header.

    With `queued`, the turn begins when this queued message enters history. `answered` waits for results are
    over already, and do not end the turn.
    """

    parts: ClassVar[PartHandlers] = {}

    def __init__(self, *, queued: str | None = None, answered: int = 0) -> None:
        self.is_over = False
        self.outcome: TurnOutcome | None = None
        self.error: dict[str, Any] | None = None
        self.reason: str | None = None
        self.awaited: list[dict[str, Any]] = []
        self._queued = queued
        self._answered = answered
        self._is_turn_unknown = False
        self._frames: list[bytes] = []

    def begin(self) -> list[bytes]:
        """The frames before anything has happened."""
        self.open()
        return self._drain()

    def project(self, event: FeedEvent) -> list[bytes]:
        """The frames of one event; none after the end."""
        if self.is_over or not self._has_begun(event):
            return []
        if event.kind == "part":
            handlers = self.parts
            for part in event.parts:
                handler = handlers.get(type(part))
                if handler is not None:
                    handler(self, part)
        else:
            read = _READERS.get(event.kind)
            if read is not None:
                read(self, event.data)
        return self._drain() if self._frames else []

    def emit(self, frame: bytes) -> None:
        self._frames.append(frame)

    # --- what a wire implements ---

    def open(self) -> None:
        """The turn is about to begin."""

    def open_attempt(self, attempt_id: str, model: str | None) -> None:
        """An attempt began."""

    def close_attempt(self, *, complete: bool) -> None:
        """The attempt ended. Whatever is still open stays as it is."""

    def add_message(self, message: dict[str, Any]) -> None:
        """A message entered history."""

    def close(self) -> None:
        """The turn is over, or waits for results: `outcome`, `error`, `reason` and `awaited` say how."""

    # --- events ---

    def _drain(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        return frames

    def _has_begun(self, event: FeedEvent) -> bool:
        if self._queued is not None and event.kind == "message" and event.data["queued"] == self._queued:
            self._queued = None
            self._is_turn_unknown = True
        return self._queued is None

    def _read_attempt(self, data: dict[str, Any]) -> None:
        self.error = None
        self.open_attempt(data["attempt"], data.get("model"))

    def _read_message(self, data: dict[str, Any]) -> None:
        message = data["message"]
        if data["last_n"] is not None:
            self.reason = message["reason"]
            self.close_attempt(complete=not message["partial"] and message["reason"] is None)
        self.add_message(message)

    def _read_end_of_attempt(self, data: dict[str, Any]) -> None:
        if data.get("last_n") is not None:
            self.close_attempt(complete=False)

    def _read_error(self, data: dict[str, Any]) -> None:
        self._read_end_of_attempt(data)
        self.error = data

    def _read_action(self, data: dict[str, Any]) -> None:
        if self._answered:
            self._answered -= 1
            return
        self.awaited = data["calls"]
        self._finish("waiting")

    def _read_status(self, data: dict[str, Any]) -> None:
        self._read_end_of_attempt(data)
        if self._is_turn_unknown:  # the status that begins the turn tells of the end of the one before it
            self._is_turn_unknown = False
        elif data.get("ended") is not None:
            self._finish(data["ended"]["outcome"])

    def _finish(self, outcome: TurnOutcome) -> None:
        self.outcome = outcome
        self.close()
        self.is_over = True


_READERS: Mapping[str, Callable[[TurnProjection, dict[str, Any]], None]] = {
    "attempt": TurnProjection._read_attempt,
    "message": TurnProjection._read_message,
    "reset": TurnProjection._read_end_of_attempt,
    "retry": TurnProjection._read_end_of_attempt,
    "error": TurnProjection._read_error,
    "action": TurnProjection._read_action,
    "status": TurnProjection._read_status,
}
