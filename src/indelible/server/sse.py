"""The feed of a chat as server-sent events.

`id:` is the cursor, so a browser that reconnects sends its position by itself. A comment is sent every 15 s, so that
proxies keep the connection open and a dead one is noticed.

This module speaks ASGI itself instead of using a streaming response: it is the last step on the path of a token, and a
task and a queue per piece would cost more than everything else. A disconnect ends the response, and so does a send that
takes too long because the client does not read. Neither is an error, and neither stops the reply (P7).

A response that ends before its subject does (`is_cut`) must not look complete: its connection is aborted, so that the
chunked body has no end, and every HTTP client raises. So is one whose client does not read.

The response joins the feed when it starts, not before: a response that never starts leaves no reader behind. A chat
that was deleted by then, or is another user's, is an ordinary 404.

Events that are ready together are sent together, and large ones in pieces. A snapshot of a large chat has megabytes.
Written at once, all of it would be copied for every reader and wait in the memory of its connection until the client
has read it. In pieces, the connection accepts the next one when it has sent the last, and what was not sent yet is the
event's own JSON, which all readers share (feed/channel.py).

Must stay true (tests/server/test_sse.py): after a disconnect nothing is left running.
(tests/server/test_feed_limits.py): the pieces together are the event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indelible.api.events import FeedEvent
from indelible.feed import ListReader, Reader
from indelible.server.connections import abort
from indelible.server.problems import DATA_HEADERS
from indelible.server.router import refuse_head

PIECE_BYTES: Final = 64 * 1024


class Events(Protocol):
    """What a feed is read from: a reader."""

    def __aiter__(self) -> AsyncIterator[FeedEvent]: ...

    async def __anext__(self) -> FeedEvent: ...

    def get_nowait(self) -> FeedEvent | None:
        """The next event if there is one without waiting."""


def iterate_pieces(reader: Events, event: FeedEvent) -> Iterator[bytes]:
    """An event and those that are ready after it: small ones together, a large one in pieces."""
    together: list[bytes] = []
    size_bytes = 0
    following: FeedEvent | None = event
    while following is not None and len(following.json) <= PIECE_BYTES:
        together.append(write_event(following))
        size_bytes += len(together[-1])
        following = reader.get_nowait() if size_bytes < PIECE_BYTES else None
    if together:
        yield b"".join(together)
    if following is not None:
        yield from split_event(following)


def write_event(event: FeedEvent) -> bytes:
    return b"%b%b\n\n" % (_write_head(event), event.json)


def split_event(event: FeedEvent) -> Iterator[bytes]:
    """The event, in one piece if it is small."""
    if len(event.json) <= PIECE_BYTES:
        yield write_event(event)
        return
    yield _write_head(event)
    whole = memoryview(event.json)
    for start in range(0, len(whole), PIECE_BYTES):
        yield bytes(whole[start : start + PIECE_BYTES])
    yield b"\n\n"


def _write_head(event: FeedEvent) -> bytes:
    cursor = b"" if event.cursor is None else b"id: %b\n" % event.cursor.encode()
    return b"%bevent: %b\ndata: " % (cursor, event.kind.encode())


_COMMENT: Final = b": still here\n\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
    *(header for header in DATA_HEADERS if header[0] != b"cache-control"),
]


class Pace(NamedTuple):
    """The interval of comments, and how long one send may take before the client is disconnected."""

    heartbeat_interval_s: float = 15.0
    stuck_after_s: float = 30.0


DEFAULT_PACE: Final = Pace()


class FeedResponse(Response):
    """Sends one reader's events until the feed ends, the client disconnects, or it stops reading."""

    def __init__(
        self, open_reader: Callable[[], AbstractAsyncContextManager[Reader | ListReader]], *, pace: Pace
    ) -> None:
        super().__init__()
        self._open_reader = open_reader
        self._pace = pace
        self._sending_since_s: float | None = None
        self._comment: asyncio.Future[None] | None = None
        self.more_headers: list[tuple[bytes, bytes]] = []
        self.is_cut = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refuse_head(scope)
        async with self._open_reader() as reader:
            sending = asyncio.create_task(self._send_all(reader, send), name="sending a feed")
            leaving = asyncio.create_task(wait_for_leave(receive), name="watching for a disconnect")
            try:
                await self._watch([sending, leaving], send)
                if sending.done():
                    sending.result()
            except (TimeoutError, OSError):
                self.is_cut = True
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.gather(sending, leaving, return_exceptions=True)
        if self.is_cut:
            abort(scope)

    async def _watch(self, tasks: list[asyncio.Task[None]], send: Send) -> None:
        """Until a task ends: send a comment at every interval, and raise `TimeoutError` if a piece is not accepted.

        A stuck piece is found by looking now and then, so that a piece needs no timer of its own.
        """
        beat_s, stuck_s = self._pace
        check_interval_s = min(beat_s, stuck_s)
        now = asyncio.get_running_loop().time
        beat_at_s = now() + beat_s
        while not (await asyncio.wait(tasks, timeout=check_interval_s, return_when=asyncio.FIRST_COMPLETED))[0]:
            if self._sending_since_s is not None:
                if now() - self._sending_since_s >= stuck_s:
                    raise TimeoutError
            elif now() >= beat_at_s:
                beat_at_s = now() + beat_s
                await self._send_comment(send)

    async def _send_comment(self, send: Send) -> None:
        """Send a comment, only between two events. No event may begin until the client has accepted the comment."""
        self._comment = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._pace.stuck_after_s):
                await _send_piece(send, _COMMENT)
        finally:
            self._comment.set_result(None)
            self._comment = None

    async def _send_all(self, reader: Reader | ListReader, send: Send) -> None:
        now = asyncio.get_running_loop().time
        self._sending_since_s = now()
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *self.more_headers]})
        self._sending_since_s = None
        await self._send_events(reader, send)
        await self.wait_for_comment()
        if not self.is_cut:
            self._sending_since_s = now()
            await _send_piece(send, b"", is_last=True)

    async def _send_events(self, reader: Events, send: Send) -> None:
        now = asyncio.get_running_loop().time
        async for event in reader:
            if self._comment is not None:
                await asyncio.shield(self._comment)
            for piece in iterate_pieces(reader, event):
                self._sending_since_s = now()
                await _send_piece(send, piece)
            self._sending_since_s = None

    async def wait_for_comment(self) -> None:
        """No event may begin while a comment is being sent."""
        if self._comment is not None:
            await asyncio.shield(self._comment)

    async def send_timed(self, piece: bytes, send: Send) -> None:
        """Send a piece; a client that does not accept it for too long is disconnected."""
        self._sending_since_s = asyncio.get_running_loop().time()
        await _send_piece(send, piece)
        self._sending_since_s = None


async def _send_piece(send: Send, piece: bytes, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": not is_last})


async def wait_for_leave(receive: Receive) -> None:
    """Until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        continue
