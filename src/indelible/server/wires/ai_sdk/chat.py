"""`/ai-sdk/chat`: the endpoint that `useChat` and `DefaultChatTransport` post to, and its resume route.

The hook sends its whole list of messages with every request. The server has the conversation already, so only what is
new in it counts: the last message of the user, an edit of one, a regeneration, or the outputs of the client's tools.
A chat that the hook has named and that does not exist yet begins with the given messages.

A reply does not stop when its reader leaves: reloads and lost connections look like `stop()` of the hook. The stop that
reaches the server is `POST …/stop`. A message that arrives while a reply runs interrupts the reply: users who stopped
it only on their screen expect that.

Must stay true (tests/server/wires/test_ai_sdk.py): a resumed stream has the whole reply from its beginning, with the
same ids; a message that is posted twice is sent once.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from indelible.content import Block, ToolResult
from indelible.errors import Invalid
from indelible.server.dependencies import Reads, ReadyState, ServerState, State, Writes, answer_json
from indelible.server.limits.feed_slots import WithSlot
from indelible.server.wires.ai_sdk.messages import (
    find_user_message,
    name_reply,
    read_outputs,
    read_ui_messages,
    read_user_blocks,
    write_ui_messages,
)
from indelible.server.wires.ai_sdk.projection import HEADERS, UiMessageProjection
from indelible.server.wires.content import divide
from indelible.server.wires.requests import WireBody, read_body
from indelible.server.wires.streaming import WireStream
from indelible.service.conversations import ConversationService, Given, TurnSettings, TurnStart, note_request, start_of
from indelible.service.local import LocalService
from indelible.service.results import ChatMessage

router = APIRouter(tags=["ai-sdk"], include_in_schema=False)


class ChatRequest(WireBody):
    """What the transport posts. `model` and `system` may be set in its `body`."""

    id: str
    messages: list[dict[str, Any]]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: str | None = None  # noqa: N815 - the wire's own name
    model: str | None = None
    system: str | None = None


@router.post("/chat")
async def post_chat(request: Request, state: ReadyState, service: Reads, once: Writes) -> Response:
    """Send, edit, regenerate or bring outputs of tools, and stream the reply."""
    body = await read_body(request, ChatRequest)
    if not body.messages:
        raise Invalid("messages: at least one is needed.")
    state.feed_slots.check(await service.get_user_id())
    conversations = ConversationService(service, once)
    chat_id = await conversations.find_chat_id(body.id)
    start, asked = await _start(conversations, chat_id, body)
    return await _stream(state, service, start, asked)


@router.get("/chat/{name}/stream")
async def resume_chat(name: str, state: ReadyState, service: Reads) -> Response:
    """Stream the running reply from its beginning; 204 if none is running."""
    conversations = ConversationService(service)
    chat_id = await conversations.find_chat_id(name)
    start = await conversations.find_running(chat_id) if await conversations.exists(chat_id) else None
    if start is None:
        return Response(status_code=204)
    origin = await conversations.find_origin(chat_id, start.seq)
    return await _stream(state, service, start, origin.id)


@router.post("/chat/{name}/stop")
async def stop_chat(name: str, service: Reads) -> Response:
    """Stop the running reply; what was written is kept. If none is running, nothing happens."""
    chat_id = await ConversationService(service).find_chat_id(name)
    return answer_json(await service.interrupt(chat_id, wait_s=10))


@router.get("/chat/{name}/messages")
async def list_ui_messages(name: str, state: State, service: Reads) -> Response:
    """The conversation as UI messages, to begin the hook with. A running reply is left out: it is resumed."""
    conversations = ConversationService(service)
    chat_id = await conversations.find_chat_id(name)
    if not await conversations.exists(chat_id):
        return answer_json([])
    start = await conversations.find_running(chat_id)
    upto = None if start is None else (await conversations.find_origin(chat_id, start.seq)).id
    path = await conversations.list_path(chat_id, upto=upto)
    action = (await service.get_chat(chat_id)).action
    awaited = frozenset(call.name for call in action.calls) if action is not None else frozenset()
    return answer_json(write_ui_messages(path, awaited | state.client_tools))


async def _stream(state: ServerState, service: LocalService, start: TurnStart, asked: str) -> Response:
    user_id = await service.get_user_id()
    projection = UiMessageProjection(
        name_reply(asked),
        client_tools=await ConversationService(service).list_client_tools(start.chat_id) | state.client_tools,
        queued=start.queued,
        answered=start.answered,
    )
    stream = WireStream(state.app.feed, start, projection, pace=state.pace, user_id=user_id, headers=HEADERS)
    return WithSlot(stream, state.feed_slots, user_id)


async def _start(conversations: ConversationService, chat_id: str, body: ChatRequest) -> tuple[TurnStart, str]:
    """Start the turn; returns where, and the message that it answers."""
    last = body.messages[-1]
    if not await conversations.exists(chat_id):
        return await _begin(conversations, chat_id, body)
    path = await conversations.list_path(chat_id)
    if body.trigger == "regenerate-message":
        asked = _find(path, body.messageId or str(last.get("id")))
        accepted = await conversations.service.regenerate(chat_id, asked.id, model=body.model)
        return start_of(chat_id, accepted), asked.id
    if last.get("role") == "assistant":
        return await _bring_outputs(conversations, chat_id, last, path)
    blocks = _note_id(read_user_blocks(last), last)
    if body.messageId is not None:
        edited = _find(path, body.messageId)
        accepted = await conversations.service.edit(chat_id, edited.id, blocks, model=body.model)
        return start_of(chat_id, accepted), accepted.message or edited.id
    known = find_user_message(path, str(last.get("id")))
    if known is not None and known.id == _last_asked(path):
        return await _join(conversations, chat_id, known)
    start = await conversations.interject(chat_id, blocks, if_busy="interrupt", model=body.model)
    asked_id = start.message_id or start.queued
    assert asked_id is not None
    return start, asked_id


async def _begin(conversations: ConversationService, chat_id: str, body: ChatRequest) -> tuple[TurnStart, str]:
    """A chat that the hook has named: it begins with the hook's messages."""
    system, given = divide(read_ui_messages(body.messages))
    noted = Given(history=given.history, blocks=_note_id(given.blocks, body.messages[-1]), progress=given.progress)
    settings = TurnSettings(model=body.model, system=body.system or system)
    start = await conversations.create(chat_id, noted, settings)
    origin = await conversations.find_origin(chat_id, start.seq)
    return start, origin.id


async def _bring_outputs(
    conversations: ConversationService, chat_id: str, reply: dict[str, Any], path: list[ChatMessage]
) -> tuple[TurnStart, str]:
    action = (await conversations.service.get_chat(chat_id)).action
    outputs = read_outputs(reply)
    awaited = [] if action is None else [call.id for call in action.calls]
    results: list[ToolResult] = [outputs[call_id] for call_id in awaited if call_id in outputs]
    if not results:
        raise Invalid("No call of this chat waits for these outputs.")
    start = await conversations.submit(chat_id, results)
    return start, _last_asked(path) or str(reply.get("id"))


async def _join(conversations: ConversationService, chat_id: str, known: ChatMessage) -> tuple[TurnStart, str]:
    """The message is here already: the request was repeated, or its answer never arrived."""
    running = await conversations.find_running(chat_id)
    if running is not None:
        return running, known.id
    accepted = await conversations.service.regenerate(chat_id, known.id)
    return start_of(chat_id, accepted), known.id


def _find(path: list[ChatMessage], ui_id: str) -> ChatMessage:
    found = find_user_message(path, ui_id)
    if found is None:
        raise Invalid(f"messageId: this chat has no message {ui_id[:100]!r}.")
    return found


def _last_asked(path: list[ChatMessage]) -> str | None:
    return next((message.id for message in reversed(path) if message.role == "user"), None)


def _note_id(blocks: list[Block], ui_message: dict[str, Any]) -> list[Block]:
    return note_request(Given(blocks=blocks), {"ui_id": str(ui_message.get("id"))[:200]}).blocks
