"""Feeds as server-sent events: a chat's, from the reader's cursor on, and the live list of a tab."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from starlette.requests import Request

from indelible.api.operations import PREFIX
from indelible.feed import ListReader, Reader
from indelible.server.access.revocation import OpenRequest
from indelible.server.dependencies import Reads, ReadyState, ServerState
from indelible.server.limits.feed_slots import WithSlot
from indelible.server.router import HEADER, Router
from indelible.server.streaming.sse import FeedResponse
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
    "/events",
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events; see docs/lists.md."}},
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
