"""The feed of a chat: every event from the reader's cursor on, as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

from indelible.server.dependencies import Reads, State
from indelible.server.feed_slots import WithSlot
from indelible.server.problem_details import NotReady
from indelible.server.sse import FeedResponse

router = APIRouter(tags=["feed"])


@router.get(
    "/chats/{chat_id}/events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events; see docs/feed.md."}},
)
async def stream_events(
    chat_id: str,
    state: State,
    service: Reads,
    after: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> WithSlot:
    """Stream the chat's events (SSE). Without a cursor: a snapshot, then new events. `after=start`: all events."""
    if not state.is_ready:
        raise NotReady
    user_id = await service.get_user_id()
    feed = FeedResponse(state.app.feed, chat_id, last_event_id or after, pace=state.pace, user_id=user_id)
    return WithSlot(feed, state.feed_slots, user_id)
