"""The feed of a chat: everything that happens in it, from wherever a reader was."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from indelible.server.office import Asking, OwnChat
from indelible.server.problems import NotReady
from indelible.server.stream import FeedResponse

router = APIRouter(tags=["feed"])


@router.get(
    "/chats/{chat_id}/events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events; see docs/feed.md."}},
)
async def read_feed(
    chat_id: OwnChat,
    caller: Asking,
    after: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> FeedResponse:
    """Server-sent events. Without a cursor: a snapshot, and then what happens. `after=start`: everything there was."""
    if not caller.office.is_ready:
        raise NotReady
    return FeedResponse(caller.feed, chat_id, last_event_id or after, pace=caller.office.pace)
