"""Chats: create, list, read, change, delete, copy."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from indelible.content import encode
from indelible.errors import Invalid
from indelible.ids import new_id
from indelible.machine import commands
from indelible.server.dependencies import Context, OwnedChatId, answer_json, check_name, describe_outcome
from indelible.server.schemas import ChatChange, Fork, NewChat
from indelible.store import payloads
from indelible.store.commands.idempotency import Request
from indelible.store.protocol import Outcome
from indelible.store.queries.listing import ChatSummary, ListCursor

router = APIRouter(tags=["chats"])
PageLimit = Annotated[int, Query(ge=1, le=200)]


@router.post("/chats", status_code=201)
async def create_chat(body: NewChat, context: Context) -> Response:
    """A new chat. With a message, it is answered at once."""
    chat_id = new_id("chat")
    given = payloads.NewChat(
        owner_id=context.owner_id,
        blocks=body.to_blocks(),
        model=body.model,
        system_prompt=body.system,
        title=body.title,
        parameters=body.parameters,
    )

    def describe(outcome: Outcome) -> dict[str, Any]:
        message_id = outcome.messages[0].id if outcome.messages else None
        beside = {"title": body.title, "model": body.model, "message": message_id}
        return {"id": chat_id, **describe_outcome(outcome), **beside}

    command = commands.Create(with_message=body.message is not None)
    return await context.execute(chat_id, command, given, answer=describe, status=201)


@router.get("/chats")
async def list_chats(
    context: Context, q: str | None = None, *, archived: bool = False, limit: PageLimit = 50, cursor: str | None = None
) -> Response:
    """The caller's chats, the last changed first. `q` looks at titles."""
    found = await context.store.list_chats(
        context.owner_id, archived=archived, search=q, after=_read_place(cursor), limit=limit + 1
    )
    page = found[:limit]
    return answer_json({"items": page, "next": _write_place(page[-1]) if len(found) > limit else None})


@router.get("/chats/{chat_id}")
async def get_chat(chat_id: OwnedChatId, context: Context) -> Response:
    """The chat as it is now, with its last messages, the running reply, and the cursor to read on from."""
    return answer_json(await context.feed.snapshot(chat_id))


@router.patch("/chats/{chat_id}")
async def update_chat(chat_id: OwnedChatId, body: ChatChange, context: Context) -> Response:
    """Change title, labels, pin, model, instructions; archive or bring back."""
    if body.changes_archived:
        command = commands.Archive() if body.archived else commands.Unarchive()
        await context.store.execute(chat_id, command)
    description = body.to_description()
    if description is not None:
        await context.store.execute(chat_id, commands.UpdateChat(), description)
    return answer_json(await context.feed.snapshot(chat_id))


@router.delete("/chats/{chat_id}", status_code=204)
async def delete_chat(chat_id: OwnedChatId, context: Context) -> Response:
    """Remove the chat and everything that hangs on it. There is no way back."""
    await context.store.execute(chat_id, commands.Delete())
    return Response(status_code=204)


@router.post("/chats/{chat_id}/fork", status_code=201)
async def fork_chat(chat_id: OwnedChatId, body: Fork, context: Context) -> Response:
    """A new chat that begins with a copy of this one up to a message."""
    request = await context.read_key()
    copy_id = new_id("chat") if request is None else _name_copy(request)
    if request is None or await context.store.owner(copy_id) is None:
        message_id = check_name(body.message_id)
        await context.store.fork(chat_id, message_id, new_chat_id=copy_id, owner_id=context.owner_id)
    copy = await context.feed.snapshot(copy_id)
    return answer_json({"id": copy_id, "status": copy.status, "cursor": copy.cursor}, 201)


def _name_copy(request: Request) -> str:
    """The same request makes the same chat: a copy is not a command of the chat, and its key is kept by its name."""
    said = encode([request.user_id, request.key, request.route, request.body_hash])
    return f"chat_{hashlib.sha256(said).hexdigest()[:26]}"


def _write_place(chat: ChatSummary) -> str:
    place = msgspec.json.encode(ListCursor(chat.updated_at, chat.id))
    return base64.urlsafe_b64encode(place).rstrip(b"=").decode()


def _read_place(cursor: str | None) -> ListCursor | None:
    if cursor is None:
        return None
    try:
        place = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=ListCursor)
    except (binascii.Error, ValueError):
        place = None
    if place is None or place.updated_at.tzinfo is None:
        raise Invalid("cursor: take it from `next` of the page before.")
    return place
