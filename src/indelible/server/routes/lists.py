"""Beside a conversation: export and import, and the live list of a tab."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.shapes import CreatedChat, ExportFormat
from indelible.feed import ListReader, Reader
from indelible.server.access.revocation import OpenRequest
from indelible.server.dependencies import Reads, ReadyState, Writes
from indelible.server.limits.feed_slots import WithSlot
from indelible.server.openapi_document import refer_to
from indelible.server.router import HEADER, JSON, Router
from indelible.server.routes.operations import PREFIX
from indelible.server.streaming.sse import FeedResponse
from indelible.store.lists.transfer import ChatFile

router = Router(prefix=PREFIX, tag="chats")

_MEDIA_TYPES: Final = {"json": JSON, "md": "text/markdown; charset=utf-8"}
_FILE: Final = {JSON: {"schema": refer_to(ChatFile)}}
_EXPORTED: Final = {"description": "The file.", "content": {**_FILE, "text/markdown": {"schema": {"type": "string"}}}}


@router.get("/chats/{chat_id}/export", responses={200: _EXPORTED})
async def export_chat(chat_id: str, service: Reads, format: ExportFormat = "json") -> Response:
    """Export the chat as a file: all of it as JSON, which can be imported, or the active branch as Markdown."""
    content = await service.lists.export_chat(chat_id, format)
    headers = {"content-disposition": f'attachment; filename="{chat_id}.{format}"'}
    return Response(content, media_type=_MEDIA_TYPES[format], headers=headers)


@router.post(
    "/chats/import",
    status=201,
    problems=(404,),  # the user has no such file
    request_body={"required": True, "content": _FILE},
)
async def import_chat(request: Request, service: Writes) -> CreatedChat:
    """Create a chat from an exported one. A file with a mistake is refused as a whole."""
    return await service.lists.import_chat(await request.body())


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
