"""`/v1/conversations`: a conversation is a chat, and its items are the messages of its active branch.

Metadata are the chat's labels, one `key=value` each, so that the page and the native API show them too. A label has at
most 100 characters, and so has a pair of metadata. Items cannot be deleted: an answer that was given stays (P10).
"""

from __future__ import annotations

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.inputs import ChatChanges
from indelible.errors import NotFound
from indelible.ids import new_id, read_creation_ms
from indelible.server.compat.openai import PREFIX, name_conversation, read_conversation_name, show_list, show_page
from indelible.server.compat.openai_items import write_items
from indelible.server.compat.requests import Metadata, WireBody, read_body
from indelible.server.compat.responses_stored import read_input
from indelible.server.router import Router
from indelible.server.state import Reads, State, Writes, answer_json
from indelible.service.turns import Given, TurnService, TurnSettings, read_metadata

router = Router(prefix=PREFIX)


class ConversationRequest(WireBody, kw_only=True):
    items: list[dict[str, Any]] | None = None
    metadata: Metadata | None = None


@router.post("/conversations")
async def create_conversation(request: Request, state: State, service: Writes) -> Response:
    """Create a conversation, optionally with items that stand at its beginning."""
    body = await read_body(request, ConversationRequest)
    conversations = TurnService(service)
    given = Given(history=await read_input(state, conversations, body.items or []))
    start = await conversations.create(new_id("chat"), given, TurnSettings(), metadata=body.metadata)
    return answer_json(_show(start.chat_id, body.metadata or {}))


@router.get("/conversations/{conversation_id}")
async def get_conversation(conversation_id: str, service: Reads) -> Response:
    """Get a conversation."""
    chat_id = read_conversation_name(conversation_id)
    unchanged = await service.update_chat(chat_id, ChatChanges())
    return answer_json(_show(chat_id, read_metadata(unchanged.labels)))


@router.post("/conversations/{conversation_id}")
async def update_conversation(conversation_id: str, request: Request, service: Writes) -> Response:
    """Replace the metadata of a conversation. Labels of another form are the user's own, and stay."""
    chat_id = read_conversation_name(conversation_id)
    body = await read_body(request, ConversationRequest)
    return answer_json(_show(chat_id, await TurnService(service).set_metadata(chat_id, body.metadata or {})))


@router.delete("/conversations/{conversation_id}")
async def delete_conversation(conversation_id: str, service: Writes) -> Response:
    """Delete a conversation: the chat, with all its data."""
    await service.delete_chat(read_conversation_name(conversation_id))
    return answer_json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/conversations/{conversation_id}/items")
async def list_items(
    conversation_id: str,
    service: Reads,
    *,
    limit: int = 20,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """List the items of the active branch."""
    chat_id = read_conversation_name(conversation_id)
    path = await TurnService(service).list_whole_path(chat_id)
    return answer_json(show_page(write_items(chat_id, path), limit=limit, after=after, order=order))


@router.post("/conversations/{conversation_id}/items")
async def add_items(conversation_id: str, request: Request, state: State, service: Writes) -> Response:
    """Add items to the end of a conversation. Nothing is answered; while a response runs, this is refused."""
    chat_id = read_conversation_name(conversation_id)
    body = await read_body(request, ConversationRequest)
    conversations = TurnService(service)
    added = await conversations.add_messages(chat_id, await read_input(state, conversations, body.items or []))
    return answer_json(show_list(write_items(chat_id, added)))


@router.get("/conversations/{conversation_id}/items/{item_id}")
async def get_item(conversation_id: str, item_id: str, service: Reads) -> Response:
    """Get one item."""
    chat_id = read_conversation_name(conversation_id)
    for item in write_items(chat_id, await TurnService(service).list_whole_path(chat_id)):
        if item["id"] == item_id:
            return answer_json(item)
    raise NotFound(f"Item with id {item_id[:100]!r} not found.")


def _show(chat_id: str, metadata: dict[str, str]) -> dict[str, Any]:
    created_at = read_creation_ms(chat_id) // 1000
    return {"id": name_conversation(chat_id), "object": "conversation", "created_at": created_at, "metadata": metadata}
