"""Chats: create, list, get, update, delete, fork."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from indelible.api.shapes import ChatDetails, ChatPage, CreatedChat, UpdatedChat
from indelible.server.dependencies import PageLimit, Reads, Sharing, Writes, answer_json
from indelible.server.openapi.response_schemas import answers, may_stream
from indelible.server.schemas import CreateChatRequest, Fork, UpdateChatRequest
from indelible.server.streaming.reply_stream import Streams

router = APIRouter(tags=["chats"])


@router.post("/chats", **may_stream(answers(CreatedChat, status=201)))
async def create_chat(body: CreateChatRequest, service: Writes, streams: Streams) -> Response:
    """Create a chat. With a message, the reply starts at once; the response may continue with it."""
    created = await service.create_chat(
        body.to_content(),
        model=body.model,
        system=body.system,
        title=body.title,
        parameters=body.parameters,
        tools=None if body.tools is None else [tool.to_spec() for tool in body.tools],
    )
    return streams.answer(created.id, created, 201)


@router.get("/chats", **answers(ChatPage))
async def list_chats(
    service: Reads,
    sharing: Sharing,
    q: str | None = None,
    label: str | None = None,
    *,
    pinned: bool | None = None,
    archived: bool = False,
    unread: bool | None = None,
    shared: bool = False,
    limit: PageLimit = 50,
    cursor: str | None = None,
) -> Response:
    """List the user's chats, pinned first, then most recently updated first; or search titles and messages (`q`).

    `shared`: the chats that others share with the user instead, most recently updated first.
    """
    if shared:
        return answer_json(await sharing.list_shared(limit=limit))
    chosen: dict[str, Any] = {"label": label, "pinned": pinned, "archived": archived, "unread": unread}
    return answer_json(await service.list_chats(search=q, **chosen, limit=limit, cursor=cursor))


@router.get("/chats/{chat_id}", **answers(ChatDetails))
async def get_chat(chat_id: str, service: Reads) -> Response:
    """Get the chat as it is now: its last messages, the running reply, the queue, and the cursor to continue from."""
    return answer_json(await service.get_chat(chat_id))


@router.patch("/chats/{chat_id}", **answers(UpdatedChat))
async def update_chat(chat_id: str, body: UpdateChatRequest, service: Writes) -> Response:
    """Update title, labels, pin, model or instructions; archive or unarchive. All of it is done, or nothing."""
    return answer_json(await service.update_chat(chat_id, body.to_changes()))


@router.delete("/chats/{chat_id}", status_code=204, response_class=Response)
async def delete_chat(chat_id: str, service: Writes) -> Response:
    """Delete the chat and all its data. This can't be undone."""
    await service.delete_chat(chat_id)
    return Response(status_code=204)


@router.post("/chats/{chat_id}/fork", **answers(CreatedChat, status=201))
async def fork_chat(chat_id: str, body: Fork, service: Writes) -> Response:
    """Create a chat that starts with a copy of this one, up to and including a message."""
    return answer_json(await service.fork_chat(chat_id, body.message_id), 201)
