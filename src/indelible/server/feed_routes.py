"""Feeds as server-sent events: a chat's, the live list of a tab, and a reply in the response of its command.

A feed begins at the reader's cursor. A command and its reply are one response for a client that asks for
`text/event-stream` where a turn begins. The first event is then `accepted`: the result of the command, which is on disk
by then, as the JSON response would be. After it comes the chat's feed from there on, until the chat rests: it is idle,
in error, or waits for the client's tools. Every event has its cursor, so a client that loses the connection reads on at
`GET …/events`, and a repeated request with the same `Idempotency-Key` gets the reply from its beginning. While the
server drains, the stream goes on: its client has asked for this reply, and may be none that reconnects.

The response of a command must never say that it failed because of what comes after it. So if no more feeds may be
opened, the server is shutting down, or the token may write and not read, the client gets the usual JSON.

Must stay true (tests/server/test_reply_stream.py): what is streamed is the feed; the stream ends where the chat rests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, Final, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indelible.api.events import FeedEvent
from indelible.api.operations import PREFIX
from indelible.api.shapes import Accepted, CreatedChat
from indelible.content import encode
from indelible.errors import TooMany
from indelible.feed import ListReader, Reader
from indelible.server.limits import WithSlot
from indelible.server.revocation import OpenRequest
from indelible.server.router import HEADER, Router
from indelible.server.sse import Events, FeedResponse, Pace
from indelible.server.state import Reads, ReadyState, ServerState, answer_json, get_identity, get_state
from indelible.service.access import Identity
from indelible.service.chats import LocalService

router = Router(prefix=PREFIX, tag="chats")


@router.get(
    "/chats/{chat_id}/events",
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events; see docs/feed.md."}},
)
async def stream_events(
    chat_id: str,
    request: Request,
    state: ReadyState,
    service: Reads,
    *,
    after: str | None = None,
    last_event_id: Annotated[str | None, HEADER] = None,
) -> WithSlot:
    """Stream the chat's events (SSE). Without a cursor: a snapshot, then new events. `after=start`: all events."""
    return answer_feed(request, state, service, chat_id, last_event_id or after)


def answer_feed(
    request: Request,
    state: ServerState,
    service: LocalService,
    chat_id: str,
    after: str | None,
    *,
    as_guest: bool = False,
) -> WithSlot:
    """The feed of a chat that this user may read. It ends with the right to read it."""
    open_request: OpenRequest = request.scope["open_request"]

    @asynccontextmanager
    async def open_reader() -> AsyncIterator[Reader]:
        async with service.open_reader(chat_id, after, as_guest=as_guest) as (reader, share_id):
            open_request.depend_on(share_id)
            yield reader

    identity: Identity | None = request.scope["identity"]
    reader_id = identity.user_id if identity is not None else chat_id
    return WithSlot(FeedResponse(open_reader, pace=state.pace), state.feed_slots, reader_id)


@router.get(
    "/events", responses={200: {"content": {"text/event-stream": {}}, "description": "Events; see docs/feed.md."}}
)
async def stream_tab(
    request: Request,
    state: ReadyState,
    service: Reads,
    *,
    chat: str | None = None,
    after: str | None = None,
    last_event_id: Annotated[str | None, HEADER] = None,
) -> WithSlot:
    """Stream all that a tab shows (SSE): the newest chats, their changes and, with `chat`, that chat's feed."""
    open_request: OpenRequest = request.scope["open_request"]

    @asynccontextmanager
    async def open_reader() -> AsyncIterator[Reader | ListReader]:
        async with service.lists.open_tab_reader(chat, last_event_id or after) as (reader, share_id):
            open_request.depend_on(share_id)
            yield reader

    tab = FeedResponse(open_reader, pace=state.pace)
    return WithSlot(tab, state.feed_slots, await service.get_user_id())


EVENT_STREAM: Final = "text/event-stream"
_AT_REST: Final = frozenset({"idle", "error", "requires_action"})


def answer_turn(
    request: Request, arguments: Mapping[str, Any], result: Accepted | CreatedChat, status: int
) -> Response:
    """The response to a command that has begun a turn, or may have, as its client wants it."""
    answer = answer_json(result, status)
    identity, state = get_identity(request), get_state(request)
    wanted = request.headers.get("accept", "").partition(",")[0].partition(";")[0].strip().lower()
    if wanted != EVENT_STREAM or "read" not in identity.scopes or not state.is_ready:
        return answer
    feed, user_id = state.app.feed, identity.user_id
    chat_id = result.id if isinstance(result, CreatedChat) else arguments["chat_id"]
    may_be_repeated = "idempotency-key" in request.headers

    def open_reader() -> AbstractAsyncContextManager[Reader]:
        if may_be_repeated:  # the result may be of yesterday
            return feed.open(chat_id, result.cursor, user_id=user_id, stays=lambda: True)
        return feed.follow(chat_id, result.cursor, stays=lambda: True)

    return _OrElse(WithSlot(ReplyStream(open_reader, result, pace=state.pace), state.feed_slots, user_id), answer)


class ReplyStream(FeedResponse):
    """The result of a command, then the events of its chat until it rests."""

    def __init__(
        self,
        open_reader: Callable[[], AbstractAsyncContextManager[Reader]],
        result: Accepted | CreatedChat,
        *,
        pace: Pace,
    ) -> None:
        super().__init__(open_reader, pace=pace)
        self._result = result

    async def _send_events(self, reader: Events, send: Send) -> None:
        head = b"id: %b\nevent: accepted\ndata: %b\n\n" % (self._result.cursor.encode(), encode(self._result))
        await self.send_timed(head, send)
        if self._result.status not in _AT_REST:
            await super()._send_events(_UntilRest(reader), send)


class _UntilRest:
    """The events of a reader, up to and including the one with which the chat comes to rest."""

    def __init__(self, reader: Events) -> None:
        self._reader = reader
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FeedEvent:
        if self._is_over:
            raise StopAsyncIteration
        return self._note(await anext(self._reader))

    def get_nowait(self) -> FeedEvent | None:
        event = None if self._is_over else self._reader.get_nowait()
        return None if event is None else self._note(event)

    def _note(self, event: FeedEvent) -> FeedEvent:
        if event.kind in ("status", "snapshot"):
            self._is_over = event.data["status"] in _AT_REST
        return event


class _OrElse(Response):
    """A response, or another one if its user has no slot for it."""

    def __init__(self, response: Response, other: Response) -> None:
        super().__init__()
        self._response = response
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        except TooMany:
            await self._other(scope, receive, send)
