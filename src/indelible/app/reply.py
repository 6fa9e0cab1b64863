"""A reply, as whoever sent the message reads it: the parts of the turn that answers it, from the first to the last.

It is made of the chat's feed and of nothing else, so it is what was committed, in order, without gap or repetition,
whichever worker wrote it and however often it was taken over: a reply that was cut by a crash pauses and goes on.
Thinking may begin anew after a failure; text that was shown is never taken back.

A message may wait in the queue first, or join a running turn (a steer). Which turn is its own is read off the events
that tell of it entering history: one that opens a turn is followed by that turn's `status`, one that joins is not.

Must stay true (tests/app/test_reply.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack
from typing import Any, Literal, cast

from indelible.content import Part
from indelible.errors import FailureKind, ModelFailed, NotFound, Shutdown
from indelible.feed import Cursors, Feed
from indelible.machine.events import FeedEvent, Position
from indelible.store.protocol import Outcome

ReplyOutcome = Literal["complete", "interrupted", "failed", "edited", "requires_action", "withdrawn", "deleted"]


class Reply:
    """Read it with `async for part in reply`, or `await reply` for all of it. Nothing is sent before that.

    `text` is what was read of the answer so far. `outcome` is known at the end: "complete"; "interrupted" by the user;
    "edited" away by a branch; "requires_action" if client tools are to be run; "withdrawn" if the message was taken out
    of the queue. A reply that failed raises `ModelFailed`, after its last part.
    """

    def __init__(self, feed: Feed, chat_id: str, begin: Callable[[], Awaitable[Outcome]] | Outcome) -> None:
        self.text = ""
        self.turn_id: str | None = None
        self.outcome: ReplyOutcome | None = None
        self._feed = feed
        self._chat_id = chat_id
        self._begin = begin
        self._queued_id: str | None = None
        self._has_entered = False
        self._attempts: set[str] = set()
        self._cursor: str | None = None
        self._current_turn: str | None = None
        self._error: dict[str, Any] | None = None

    def __aiter__(self) -> AsyncIterator[Part]:
        return self._read()

    def __await__(self) -> Generator[Any, None, Reply]:
        return self._read_all().__await__()

    async def begin(self) -> Outcome:
        """Send what is to be sent, once. When this returns it is durable; the reply may be read then, or never."""
        if not isinstance(self._begin, Outcome):
            self._begin = await self._begin()
        return self._begin

    async def wait(self) -> None:
        """Wait until the turn has ended, however it ended."""
        try:
            await self
        except ModelFailed:
            return

    async def _read_all(self) -> Reply:
        async for _ in self:
            pass
        return self

    async def _read(self) -> AsyncIterator[Part]:
        if self._cursor is None:
            begun = await self.begin()
            self._current_turn = begun.turn_id
            self._queued_id = begun.queued_id
            self._has_entered = begun.queued_id is None
            self.turn_id = begun.turn_id if self._has_entered else None
            self._cursor = Cursors(self._chat_id).write(Position(seq=begun.seq, attempt=begun.live_id))
        while not self._has_ended():
            async with AsyncExitStack() as stack:
                try:
                    events = await stack.enter_async_context(self._feed.open(self._chat_id, after=self._cursor))
                except NotFound:
                    self.outcome = "deleted"
                    return
                async for event in events:
                    if event.kind == "resync":  # we were slow: come back to where we were
                        break
                    self._cursor = event.cursor or self._cursor
                    self._note(event)
                    if event.kind == "part" and event.data["attempt"] in self._attempts:
                        for part in event.parts:
                            self.text += part.text
                            yield part
                    if self._has_ended():
                        break
        if self.outcome == "failed":
            raise self._describe_failure()

    def _has_ended(self) -> bool:
        return self.outcome is not None

    def _note(self, event: FeedEvent) -> None:
        data = event.data if event.kind != "part" else {}
        if event.kind == "message" and self._queued_id is not None and data.get("queued") == self._queued_id:
            self._has_entered = True
        elif event.kind == "status":
            self._note_status(data)
        elif event.kind == "queue":
            self._note_queue(data)
        elif event.kind == "attempt" and self.turn_id is not None and self._current_turn == self.turn_id:
            self._attempts.add(data["attempt"])
        elif event.kind == "error":
            self._error = data
        elif event.kind == "end" and data["reason"] == "deleted":
            self.outcome = "deleted"
        elif event.kind == "end" and data["reason"] == "shutdown":
            raise Shutdown("The program is closing. The reply goes on when it is started again.")

    def _note_status(self, data: dict[str, Any]) -> None:
        ended = data.get("ended")
        if ended is not None and self.turn_id is not None and ended["turn"] == self.turn_id:
            self.outcome = ended["outcome"]
        elif data["status"] == "requires_action" and data["turn"] == self.turn_id is not None:
            self.outcome = "requires_action"
        self._current_turn = data["turn"]
        if self._has_entered and self.turn_id is None:
            self.turn_id = data["turn"]

    def _note_queue(self, data: dict[str, Any]) -> None:
        if self._queued_id is None or self.turn_id is not None:
            return
        if self._has_entered:
            self.turn_id = self._current_turn
        elif self._queued_id not in data["ids"]:
            self.outcome = "withdrawn"

    def _describe_failure(self) -> ModelFailed:
        error = self._error or {}
        return ModelFailed(
            error.get("message") or "The reply failed.",
            kind=cast("FailureKind", error.get("kind", "unknown")),
            retryable=False,
            status=error.get("status"),
            provider=error.get("provider"),
            detail=error.get("detail"),
        )
