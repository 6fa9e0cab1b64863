"""A projection over HTTP: streamed as server-sent events, or read to its end and answered at once.

A stream is a reader of the chat's feed like any other (server/streaming/sse.py): frames exist only for what is on disk,
a disconnect stops nothing, and a client that does not read holds up nobody. The frames of events that are ready
together are sent together. A reader that fell too far behind gets `resync` on the native feed; here the stream
continues from the reader's true position instead, because its client knows no snapshots.

A client of a wire has no cursor either. So at shutdown its reader *stays* while the process drains, and a stream that
has to end before its turn does (the drain is over, the chat was deleted, the token revoked) is cut: its connection is
aborted, which every SDK raises on. A stream that merely ended would pass for a complete reply.

`on_leave` is called if the client disconnects before the end: the setting `completions_on_disconnect` may stop the
reply then. It runs in the response's own task, so that no task is left without a parent.

Must stay true (tests/server/wires/test_streams.py): a stream that is cut at any frame leaves nothing running, and the
reply is finished. tests/server/test_draining.py: at shutdown a stream is whole, or its client raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from indelible.errors import ChatNotFound
from indelible.feed import Feed, FeedEvent, Reader
from indelible.server.problem_details import NotReady
from indelible.server.streaming.sse import FeedResponse, Pace
from indelible.server.streaming.sse_pieces import Events
from indelible.server.wires.projection import TurnProjection
from indelible.service.turns import TurnStart

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
        headers: Iterable[tuple[bytes, bytes]] = (),
        on_leave: Leave | None = None,
        on_end: Leave | None = None,
    ) -> None:
        super().__init__(lambda: _open(feed, start, self._after, user_id=user_id, stays=lambda: True), pace=pace)
        self._after: str | None = start.cursor
        self._projection = projection
        self._skip = skip
        self.more_headers = list(headers)
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
    leaving = asyncio.create_task(_wait_for_leave(request), name="watching for a disconnect")
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


async def _wait_for_leave(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
