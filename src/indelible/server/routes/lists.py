"""Beside a conversation: read marks, drafts, export and import, usage, and the live list of a tab."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from indelible.api.shapes import CreatedChat, Draft, ExportFormat, UsagePage
from indelible.feed import ListReader, Reader
from indelible.server.access.revocation import OpenRequest
from indelible.server.dependencies import JSON, Reads, ReadyState, Writes, answer_json
from indelible.server.limits.feed_slots import WithSlot
from indelible.server.openapi.documented_problems import document_problem
from indelible.server.openapi.response_schemas import answers
from indelible.server.schemas import DraftRequest, ReadRequest
from indelible.server.streaming.sse import FeedResponse

router = APIRouter(tags=["lists"])

_USAGE: Final = answers(UsagePage)
_USAGE["responses"][404] = document_problem(404)  # no user has the given name
_IMPORTED: Final = answers(CreatedChat, status=201)
_IMPORTED["responses"][404] = document_problem(404)  # the user has no such file
_MEDIA_TYPES: Final = {"json": JSON, "md": "text/markdown; charset=utf-8"}
_FILE: Final = {JSON: {"schema": {"$ref": "#/components/schemas/ChatFile"}}}
_EXPORTED: Final = {"description": "The file.", "content": {**_FILE, "text/markdown": {"schema": {"type": "string"}}}}


@router.post("/chats/{chat_id}/read", status_code=204, response_class=Response)
async def mark_read(chat_id: str, service: Writes, body: ReadRequest | None = None) -> Response:
    """Mark the chat as read, all of it or up to an event."""
    await service.lists.mark_read(chat_id, None if body is None else body.seq)
    return Response(status_code=204)


@router.get("/chats/{chat_id}/draft", **answers(Draft))
async def get_draft(chat_id: str, service: Reads) -> Response:
    """Get what you have typed in this chat and not sent yet. `new` instead of an id is the next chat."""
    return answer_json(await service.lists.get_draft(chat_id))


@router.put("/chats/{chat_id}/draft", status_code=204, response_class=Response)
async def save_draft(chat_id: str, body: DraftRequest, service: Writes) -> Response:
    """Replace the draft; an empty text deletes it."""
    await service.lists.save_draft(chat_id, body.text)
    return Response(status_code=204)


@router.get("/chats/{chat_id}/export", response_class=Response, responses={200: _EXPORTED})
async def export_chat(chat_id: str, service: Reads, format: ExportFormat = "json") -> Response:
    """Export the chat as a file: all of it as JSON, which can be imported, or the active branch as Markdown."""
    content = await service.lists.export_chat(chat_id, format)
    headers = {"content-disposition": f'attachment; filename="{chat_id}.{format}"'}
    return Response(content, media_type=_MEDIA_TYPES[format], headers=headers)


@router.post(
    "/chats/import",
    **_IMPORTED,
    openapi_extra={"requestBody": {"required": True, "content": _FILE}},
)
async def import_chat(request: Request, service: Writes) -> Response:
    """Create a chat from an exported one. A file with a mistake is refused as a whole."""
    return answer_json(await service.lists.import_chat(await request.body()), 201)


@router.get("/usage", **_USAGE)
async def get_usage(
    service: Reads,
    since: date | None = None,
    until: date | None = None,
    user: str | None = None,
    by: Annotated[str | None, Query(pattern="^user$")] = None,
) -> Response:
    """Get what your chats used, by day and model. Admins may name a user, or list all of them with `by=user`."""
    used = await service.lists.get_usage(since=since, until=until, user=user, by_user=by is not None)
    return answer_json(used)


@router.get(
    "/events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events; see docs/lists.md."}},
)
async def stream_tab(
    request: Request,
    state: ReadyState,
    service: Reads,
    *,
    chat: str | None = None,
    after: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
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
