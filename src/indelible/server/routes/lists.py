"""Beside a conversation: export and import."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.shapes import CreatedChat, ExportFormat
from indelible.server.dependencies import Reads, Writes
from indelible.server.openapi_document import refer_to
from indelible.server.router import JSON
from indelible.server.routes.operations import router
from indelible.store.transfer import ChatFile

_MEDIA_TYPES: Final = {"json": JSON, "md": "text/markdown; charset=utf-8"}
_FILE: Final = {JSON: {"schema": refer_to(ChatFile)}}
_EXPORTED: Final = {"description": "The file.", "content": {**_FILE, "text/markdown": {"schema": {"type": "string"}}}}


@router.get("/chats/{chat_id}/export", tag="chats", responses={200: _EXPORTED})
async def export_chat(chat_id: str, service: Reads, format: ExportFormat = "json") -> Response:
    """Export the chat as a file: all of it as JSON, which can be imported, or the active branch as Markdown."""
    content = await service.lists.export_chat(chat_id, format)
    headers = {"content-disposition": f'attachment; filename="{chat_id}.{format}"'}
    return Response(content, media_type=_MEDIA_TYPES[format], headers=headers)


@router.post(
    "/chats/import",
    tag="chats",
    status=201,
    problems=(404,),  # the user has no such file
    request_body={"required": True, "content": _FILE},
)
async def import_chat(request: Request, service: Writes) -> CreatedChat:
    """Create a chat from an exported one. A file with a mistake is refused as a whole."""
    return await service.lists.import_chat(await request.body())
