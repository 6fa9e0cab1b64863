"""One turn of a chat in the words of another API, streamed as server-sent events or read to its end.

`TurnProjection` is the one place that reads the events of a feed for these APIs: which of them belong to the turn,
where an attempt ends, and how the turn does. It is pure: the same events always give the same frames. An API implements
one method per fact. It gets

    open_attempt        an attempt began; its parts follow
    one method per part (`parts`)
    close_attempt       the attempt ended: complete, or cut short (a stop, a crash, a retry)
    add_message         a message entered history: the reply, or results
    close               the turn is over, or waits for results of the client

and calls `emit` with finished frames. Two readers may get events in different order only where no API depends on the
order: rows of an attempt always come between its beginning and its end, in order. That is why frames can be numbered,
and why the numbers are the same in every replay.

A stream is a reader of the chat's feed like any other (server/sse.py): frames exist only for what is on disk,
a disconnect stops nothing, and a client that does not read holds up nobody. The frames of events that are ready
together are sent together. A reader that fell too far behind gets `resync` on the native feed; here the stream
continues from the reader's true position instead, because its client knows no snapshots.

Such a client has no cursor either. So at shutdown its reader *stays* while the process drains, and a stream that
has to end before its turn does (the drain is over, the chat was deleted, the token revoked) is cut: its connection is
aborted, which every SDK raises on. A stream that merely ended would pass for a complete reply.

`on_leave` is called if the client disconnects before the end: the setting `completions_on_disconnect` may stop the
reply then. It runs in the response's own task, so that no task is left without a parent.

Must stay true (tests/server/compat/test_projections.py): for random turns, every prefix of the frames obeys the rules
of its API, and a replay gives the same frames. (tests/server/compat/test_streams.py): a stream that is cut at any
frame leaves nothing running, and the reply is finished. (tests/server/test_draining.py): at shutdown a stream is whole,
or its client raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, ClassVar, Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indelible.api.events import FeedEvent
from indelible.errors import ChatNotFound
from indelible.feed import Feed, Reader
from indelible.server.limits import WithSlot
from indelible.server.problems import NotReady
from indelible.server.sse import Events, FeedResponse, Pace, wait_for_leave
from indelible.server.state import ServerState
from indelible.service.turns import TurnStart

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
            read = self._readers.get(event.kind)
            if read is not None:
                read(self, event.data)
        return self._drain() if self._frames else []

    def emit(self, frame: bytes) -> None:
        self._frames.append(frame)

    # --- what an API implements ---

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

    _readers: ClassVar[Mapping[str, Callable[[Any, dict[str, Any]], None]]] = {
        "attempt": _read_attempt,
        "message": _read_message,
        "reset": _read_end_of_attempt,
        "retry": _read_end_of_attempt,
        "error": _read_error,
        "action": _read_action,
        "status": _read_status,
    }


Leave = Callable[[], Awaitable[object]]
_PIECE_BYTES: Final = 64 * 1024


class WireStream(FeedResponse):
    """Sends the frames of one turn from its beginning, except the first `skip`, until it is over."""

    def __init__(
        self,
        feed: Feed,
        start: TurnStart,
        projection: TurnProjection,
        *,
        pace: Pace,
        user_id: str,
        skip: int = 0,
        headers: Mapping[str, str] | None = None,
        on_leave: Leave | None = None,
        on_end: Leave | None = None,
    ) -> None:
        super().__init__(lambda: _open(feed, start, self._after, user_id=user_id, stays=lambda: True), pace=pace)
        self._after: str | None = start.cursor
        self._projection = projection
        self._skip = skip
        self.more_headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._on_leave = on_leave
        self._on_end = on_end
        self._is_feed_over = False
        self.is_cut = True  # until its turn is over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        if self._projection.is_over and self._on_end is not None:
            await self._on_end()
        if not self._projection.is_over and not self._is_feed_over and self._on_leave is not None:
            await self._on_leave()

    async def _send_events(self, reader: Events, send: Send) -> None:
        await self._send_frames(self._projection.begin(), send)
        goes_on = await self._follow(reader, send)
        while goes_on:
            async with self._open_reader() as again:
                goes_on = await self._follow(again, send)
        self.is_cut = not self._projection.is_over

    async def _follow(self, reader: Events, send: Send) -> bool:
        """Send until the turn is over or nothing more comes; True if the reader has to begin again where it is."""
        async for event in reader:
            following: FeedEvent | None = event
            frames: list[bytes] = []
            size = 0
            while following is not None:
                if following.kind in ("snapshot", "resync", "end"):
                    await self._send_frames(frames, send)
                    self._after = following.cursor
                    self._is_feed_over = following.kind == "end"
                    return following.kind == "resync"
                made = self._projection.project(following)
                frames += made
                size += sum(map(len, made))
                if self._projection.is_over:
                    await self._send_frames(frames, send)
                    return False
                following = reader.get_nowait() if size < _PIECE_BYTES else None
            await self._send_frames(frames, send)
        return False

    async def _send_frames(self, frames: Sequence[bytes], send: Send) -> None:
        if self._skip:
            skipped = min(self._skip, len(frames))
            self._skip -= skipped
            frames = frames[skipped:]
        if frames:
            await self.wait_for_comment()
            await self.send_timed(b"".join(frames), send)


def answer_stream(
    state: ServerState, start: TurnStart, projection: TurnProjection, user_id: str, **more: Any
) -> Response:
    """The response that streams a turn, in a slot of its user. `more` is for the `WireStream`."""
    stream = WireStream(state.app.feed, start, projection, pace=state.pace, user_id=user_id, **more)
    return WithSlot(stream, state.feed_slots, user_id)


def _open(
    feed: Feed, start: TurnStart, after: str | None, *, user_id: str | None = None, stays: Callable[[], bool]
) -> AbstractAsyncContextManager[Reader]:
    """A reader of a turn. Joining one that this request has just started costs no query."""
    if start.at is not None and after == start.cursor:
        return feed.follow(start.chat_id, start.cursor, stays=stays)
    return feed.open(start.chat_id, after, user_id=user_id, stays=stays)


async def collect(
    request: Request, feed: Feed, start: TurnStart, projection: TurnProjection, *, on_leave: Leave | None = None
) -> None:
    """Project the turn to its end; if the client disconnects first, call `on_leave` and continue.

    Raises `NotReady` if the process shuts down first. It drains for a client that is still there.
    """
    leaving = asyncio.create_task(wait_for_leave(request.receive), name="watching for a disconnect")
    reading = asyncio.create_task(_read_turn(feed, start, projection, leaving), name="reading a turn")
    try:
        await asyncio.wait([reading, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not reading.done() and on_leave is not None:
            await on_leave()
        await reading
    finally:
        for task in (reading, leaving):
            task.cancel()
        await asyncio.gather(reading, leaving, return_exceptions=True)


async def _read_turn(feed: Feed, start: TurnStart, projection: TurnProjection, leaving: asyncio.Task[None]) -> None:
    projection.begin()
    after: str | None = start.cursor
    while after is not None:
        async with _open(feed, start, after, stays=lambda: not leaving.done()) as reader:
            after = await _project(reader, projection)


async def _project(reader: Reader, projection: TurnProjection) -> str | None:
    """Project to the end of the turn, or return the cursor at which the reader has to begin again."""
    async for event in reader:
        if event.kind == "resync":
            return event.cursor
        if event.kind == "end" and event.data["reason"] == "deleted":
            raise ChatNotFound
        if event.kind == "end":
            raise NotReady
        projection.project(event)
        if projection.is_over:
            return None
    return None


async def project_stored(events: AsyncIterator[FeedEvent], projection: TurnProjection) -> None:
    """Project what is stored of the turn so far."""
    projection.begin()
    async with aclosing(events) as stored:  # type: ignore[type-var]
        async for event in stored:
            projection.project(event)
            if projection.is_over:
                return
