"""Reading a chat by a link, without a login. The key in the path is the right; it is never logged (logs.py).

The same bodies as those of the chat's own routes, as a guest sees them (service/guests.py), and nothing that
changes anything: there is no other route below `/shared`. A feed begins with a snapshot whatever the cursor is.
"""

from __future__ import annotations

from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.operations import PageLimit
from indelible.api.shapes import ChatDetails, MessagePage, StoredFile
from indelible.server.dependencies import ReadyState, State
from indelible.server.limits.feed_slots import WithSlot
from indelible.server.router import HEADER
from indelible.server.routes.feed import answer_feed
from indelible.server.routes.files import SENDS_BYTES, SENDS_PICTURE, answer_download, answer_preview
from indelible.server.routes.operations import router
from indelible.service.accounts import open_link
from indelible.service.guests import show_chat


@router.get("/shared/{key}", tag="shared")
async def get_shared_chat(key: str, state: State) -> ChatDetails:
    """Get the chat behind a link, as it is now."""
    link = await open_link(state.app.shares, key)
    return show_chat(await state.app.service_of(link.owner_id).get_chat(link.chat_id))


@router.get("/shared/{key}/messages", tag="shared")
async def list_shared_messages(key: str, state: State, before: str | None = None, limit: PageLimit = 50) -> MessagePage:
    """List the messages of the chat behind a link."""
    link = await open_link(state.app.shares, key)
    owners = state.app.service_of(link.owner_id)
    return await owners.list_messages(link.chat_id, before=before, limit=limit, as_guest=True)


@router.get("/shared/{key}/files/{file_id}", tag="shared", **SENDS_BYTES)
async def download_shared_file(key: str, file_id: str, request: Request, state: State) -> Response:
    """Download a file that the chat behind a link shows, or a range of it."""
    link = await open_link(state.app.shares, key)
    files = state.app.service_of(link.owner_id).files
    return answer_download(request, files, await files.find_grant(file_id, link))


@router.get("/shared/{key}/files/{file_id}/preview", tag="shared", **SENDS_PICTURE)
async def show_shared_preview(key: str, file_id: str, request: Request, state: State) -> Response:
    """A small picture of an image that the chat behind a link shows."""
    link = await open_link(state.app.shares, key)
    files = state.app.service_of(link.owner_id).files
    return await answer_preview(request, files, await files.find_grant(file_id, link))


@router.get("/shared/{key}/files/{file_id}/info", tag="shared")
async def get_shared_file(key: str, file_id: str, state: State) -> StoredFile:
    """Get what is known about a file that the chat behind a link shows."""
    link = await open_link(state.app.shares, key)
    return (await state.app.service_of(link.owner_id).files.find_grant(file_id, link)).file


@router.get(
    "/shared/{key}/events",
    tag="shared",
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events; see docs/feed.md."}},
)
async def stream_shared_events(
    key: str,
    request: Request,
    state: ReadyState,
    after: str | None = None,
    last_event_id: Annotated[str | None, HEADER] = None,
) -> WithSlot:
    """Stream the events of the chat behind a link (SSE)."""
    link = await open_link(state.app.shares, key)
    request.scope["open_request"].depend_on(link.share_id)
    service = state.app.service_of(link.owner_id)
    return answer_feed(request, state, service, link.chat_id, last_event_id or after, as_guest=True)
