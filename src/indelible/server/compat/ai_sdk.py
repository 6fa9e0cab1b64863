"""`/ai-sdk/chat`: the endpoint that `useChat` and `DefaultChatTransport` post to, and its resume route.

The hook sends its whole list of messages with every request, or only the last one, as `message`. The server has the
conversation already, so only what is new in it counts: what the user says, an edit, a regeneration, or the outputs of
the client's tools. Messages of the user that never arrived, because the server was away, come along with the next one.
A chat that the hook has named and that does not exist yet begins with the given messages.

A reply does not stop when its reader leaves: reloads and lost connections look like `stop()` of the hook. The stop that
reaches the server is `POST …/stop`. A message that arrives while a reply runs interrupts the reply: users who stopped
it only on their screen expect that.

Must stay true (tests/server/compat/test_ai_sdk.py): a resumed stream has the whole reply from its beginning, with the
same ids; a message that is posted twice is sent once, and gets its reply again; what the user sees of their own
messages, the model gets, in that order, and nothing that the assistant never said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.inputs import Interruption
from indelible.api.shapes import ChatMessage
from indelible.content import ToolResult, encode
from indelible.errors import Invalid, NotAllowed
from indelible.server.compat import ai_sdk_messages as ui
from indelible.server.compat.projection import answer_stream
from indelible.server.compat.requests import WireBody, divide, read_body
from indelible.server.router import Router
from indelible.server.state import Reads, ReadyState, ServerState, State, Writes, answer_json
from indelible.service.turns import PATH_AT_ONCE, TurnService, TurnSettings, TurnStart

router = Router(prefix="/ai-sdk")


class ChatRequest(WireBody, kw_only=True):
    """What the transport posts. `model` and `system` may be set in its `body`."""

    id: str
    messages: list[dict[str, Any]] | None = None
    message: dict[str, Any] | None = None
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: str | None = None  # noqa: N815 - the AI SDK's own name
    model: str | None = None
    system: str | None = None

    @property
    def given(self) -> list[dict[str, Any]]:
        return self.messages or ([] if self.message is None else [self.message])


@router.post("/chat")
async def post_chat(request: Request, state: ReadyState, service: Reads, once: Writes) -> Response:
    """Send, edit, regenerate or bring outputs of tools, and stream the reply."""
    body = await read_body(request, ChatRequest)
    if not body.given and body.trigger != "regenerate-message":
        raise Invalid("messages: at least one is needed.")
    state.feed_slots.check(await service.get_user_id())
    conversations = TurnService(once)
    chat_id = await conversations.find_chat_id(body.id)
    start, asked = await _start(conversations, chat_id, body)
    return await _stream(state, conversations, start, asked)


@router.get("/chat/{name}/stream")
async def resume_chat(name: str, state: ReadyState, service: Reads) -> Response:
    """Stream the running reply from its beginning; 204 if none is running."""
    conversations = TurnService(service)
    chat_id = await conversations.find_chat_id(name)
    start = await conversations.find_running(chat_id) if await conversations.exists(chat_id) else None
    if start is None:
        return Response(status_code=204)
    return await _stream(state, conversations, start)


@router.post("/chat/{name}/stop")
async def stop_chat(name: str, service: Reads) -> Response:
    """Stop the running reply; what was written is kept. If none is running, nothing happens."""
    chat_id = await TurnService(service).find_chat_id(name)
    return answer_json(await service.interrupt(chat_id, Interruption(wait_s=10)))


@router.get("/chat/{name}/messages")
async def list_ui_messages(name: str, state: State, service: Reads) -> Response:
    """The conversation as UI messages, to begin the hook with. A running reply is left out: it is resumed."""
    conversations = TurnService(service)
    chat_id = await conversations.find_chat_id(name)
    if not await conversations.exists(chat_id):
        return answer_json([])
    start = await conversations.find_running(chat_id)
    upto = None if start is None else (await conversations.turn_facts(chat_id, start.seq)).asked_id
    path = await conversations.list_whole_path(chat_id, upto=upto)
    action = (await service.get_chat(chat_id)).action
    awaited = frozenset(call.name for call in action.calls) if action is not None else frozenset()
    return answer_json(ui.write_ui_messages(path, awaited | state.client_tools))


async def _stream(
    state: ServerState, conversations: TurnService, start: TurnStart, asked: str | None = None
) -> Response:
    """`asked` is the message that the reply answers, as the hook knows it; None: the one that started the turn."""
    user_id = await conversations.service.get_user_id()
    facts = await conversations.turn_facts(start.chat_id, start.seq)
    projection = ui.UiMessageProjection(
        ui.name_reply(asked or facts.asked_id),
        client_tools=facts.client_tools | state.client_tools,
        queued=start.queued,
        answered=start.answered,
    )
    return answer_stream(state, start, projection, user_id, headers=ui.HEADERS)


async def _start(conversations: TurnService, chat_id: str, body: ChatRequest) -> tuple[TurnStart, str | None]:
    """Start the turn, or find the one that an earlier request started; returns where, and the message it answers."""
    last = body.given[-1] if body.given else {}
    if not await conversations.exists(chat_id):
        try:
            return await _begin(conversations, chat_id, body)
        except NotAllowed:
            pass  # another message has just begun it
    ui_id = ui.get_ui_id(last)
    queue = await conversations.list_queued(chat_id)
    path = await conversations.list_path(chat_id)
    for waiting, blocks in queue.items:
        if waiting.queued is not None and ui_id is not None and ui.is_in(blocks, ui_id):
            return waiting, waiting.queued
    # Of two that are the same and come together, both find the chat at this event and neither finds the other's work.
    named = await conversations.named(
        str(queue.seq), chat_id, encode([body.trigger, body.messageId, ui_id, last]).decode()
    )
    if body.trigger == "regenerate-message":
        ui_ids = (body.messageId, ui_id) if body.messageId or ui_id else (_last_asked(path),)
        asked = await _find(conversations, chat_id, path, *ui_ids)
        if asked is not None:
            return await _regenerate(named, chat_id, asked, body, ui_id)
        if last.get("role") != "user":
            raise Invalid(f"messageId: this chat has no message {str(body.messageId)[:100]!r}.")
    elif last.get("role") == "assistant":
        return await _bring_outputs(named, chat_id, last, path)
    elif (edited := await _find(conversations, chat_id, path, body.messageId)) is not None:
        return await _edit(named, chat_id, edited, body)
    known = ui.find_user_message(path, ui_id or "")
    if known is not None:
        return await _join(named, chat_id, known)
    unsent = ui.list_unsent(path, [blocks for _, blocks in queue.items], body.given)
    blocks = [block for message in unsent for block in ui.read_user_blocks(message)]
    start = await named.interject(chat_id, blocks, if_busy="interrupt", model=body.model)
    asked_id = start.message_id or start.queued
    assert asked_id is not None
    return start, asked_id


async def _begin(conversations: TurnService, chat_id: str, body: ChatRequest) -> tuple[TurnStart, str | None]:
    """A chat that the hook has named: it begins with the hook's messages."""
    system, given = divide(ui.read_ui_messages(body.given))
    settings = TurnSettings(model=body.model, system=body.system or system)
    named = await conversations.named("create", chat_id, encode(given).decode())
    return await named.create(chat_id, given, settings), None


async def _edit(
    conversations: TurnService, chat_id: str, edited: ChatMessage, body: ChatRequest
) -> tuple[TurnStart, str]:
    """Replace a message of the hook, and what came after it."""
    above, _ = ui.split_user(edited, body.messageId)
    blocks = above + ui.read_user_blocks(body.given[-1])
    if blocks == edited.blocks:
        return await _join(conversations, chat_id, edited)
    start = await conversations.edit(chat_id, edited.id, blocks, model=body.model)
    return start, start.message_id or edited.id


async def _regenerate(
    conversations: TurnService, chat_id: str, asked: ChatMessage, body: ChatRequest, ui_id: str | None
) -> tuple[TurnStart, str]:
    """Answer a message of the hook anew. What was stored together with it, below it, the hook shows no more."""
    _, kept = ui.split_user(asked, ui_id)
    if kept == asked.blocks:
        start = await conversations.regenerate(chat_id, asked.id, model=body.model)
    else:
        start = await conversations.edit(chat_id, asked.id, kept, model=body.model)
    return start, start.message_id or asked.id


async def _bring_outputs(
    conversations: TurnService, chat_id: str, reply: dict[str, Any], path: list[ChatMessage]
) -> tuple[TurnStart, str]:
    action = (await conversations.service.get_chat(chat_id)).action
    outputs = ui.read_outputs(reply)
    awaited = [] if action is None else [call.id for call in action.calls]
    results: list[ToolResult] = [outputs[call_id] for call_id in awaited if call_id in outputs]
    if results:
        start = await conversations.submit(chat_id, results)
        return start, _last_asked(path) or str(reply.get("id"))
    path = await conversations.list_path(chat_id)  # an equal request may have just brought them
    asked = ui.find_user_message(path, ui.get_ui_id(reply) or "")
    given = {block.call_id for message in path for block in message.blocks if isinstance(block, ToolResult)}
    if asked is not None and outputs and given.issuperset(outputs):
        resumed = await conversations.find_answering(chat_id, asked.id, resumed=True)
        if resumed is not None:
            return resumed, asked.id
    raise Invalid("No call of this chat waits for these outputs.")


async def _join(conversations: TurnService, chat_id: str, known: ChatMessage) -> tuple[TurnStart, str]:
    """The message is here already: the request was repeated, and gets the same reply, at the same price."""
    answering = await conversations.find_answering(chat_id, known.id)
    if answering is None:  # it came in another way, and was never answered here
        answering = await conversations.regenerate(chat_id, known.id)
    return answering, known.id


async def _find(
    conversations: TurnService, chat_id: str, path: list[ChatMessage], *ui_ids: str | None
) -> ChatMessage | None:
    """The message of the user that the first of these ids names. Few are above the end of the path."""
    found = _find_in(path, ui_ids)
    if found is not None or len(path) < PATH_AT_ONCE or not any(ui_ids):
        return found
    return _find_in(await conversations.list_whole_path(chat_id), ui_ids)


def _find_in(path: list[ChatMessage], ui_ids: Sequence[str | None]) -> ChatMessage | None:
    found = (ui.find_user_message(path, ui_id) for ui_id in ui_ids if ui_id)
    return next((message for message in found if message is not None), None)


def _last_asked(path: list[ChatMessage]) -> str | None:
    return next((message.id for message in reversed(path) if message.role == "user"), None)
