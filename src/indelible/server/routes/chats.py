"""Chats: create, list, read, change, delete, copy."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.server.dependencies import PageLimit, Reads, Writes, answer_json
from indelible.server.openapi import answers
from indelible.server.schemas import ChatChange, Fork, NewChat
from indelible.service.results import ChatDetails, ChatPage, CreatedChat

router = APIRouter(tags=["chats"])


@router.post("/chats", **answers(CreatedChat, status=201))
async def create_chat(body: NewChat, service: Writes) -> Response:
    """A new chat. With a message, it is answered at once."""
    created = await service.create_chat(
        body.to_content(), model=body.model, system=body.system, title=body.title, parameters=body.parameters
    )
    return answer_json(created, 201)


@router.get("/chats", **answers(ChatPage))
async def list_chats(
    service: Reads, q: str | None = None, *, archived: bool = False, limit: PageLimit = 50, cursor: str | None = None
) -> Response:
    """The user's chats, the last changed first. `q` looks at titles."""
    return answer_json(await service.list_chats(search=q, archived=archived, limit=limit, cursor=cursor))


@router.get("/chats/{chat_id}", **answers(ChatDetails))
async def get_chat(chat_id: str, service: Reads) -> Response:
    """The chat as it is now, with its last messages, the running reply, and the cursor to read on from."""
    return answer_json(await service.get_chat(chat_id))


@router.patch("/chats/{chat_id}", **answers(ChatDetails))
async def update_chat(chat_id: str, body: ChatChange, service: Writes) -> Response:
    """Change title, labels, pin, model, instructions; archive or bring back."""
    return answer_json(await service.update_chat(chat_id, body.to_changes()))


@router.delete("/chats/{chat_id}", status_code=204, response_class=Response)
async def delete_chat(chat_id: str, service: Writes) -> Response:
    """Remove the chat and everything that belongs to it. This cannot be undone."""
    await service.delete_chat(chat_id)
    return Response(status_code=204)


@router.post("/chats/{chat_id}/fork", **answers(CreatedChat, status=201))
async def fork_chat(chat_id: str, body: Fork, service: Writes) -> Response:
    """A new chat that begins with a copy of this one up to a message."""
    return answer_json(await service.fork_chat(chat_id, body.message_id), 201)
