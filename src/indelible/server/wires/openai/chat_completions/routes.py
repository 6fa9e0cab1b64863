"""`POST /v1/chat/completions`: one turn, with the messages as they are given, or in a durable chat.

Without a header, every request is a chat of its own that begins with the given messages. It is archived when its reply
is complete, unless the request says `store`: a program that calls this a thousand times a day would fill the list of
chats. With `X-Indelible-Chat`, the request continues that chat: the server has its history, and only what is new in
the messages counts, what the user says last or the results of tools. Any name will do; the first request creates the
chat. Every answer has the chat's id in the same header.

The setting `completions_on_disconnect` says what happens to a reply whose client has left: it is finished (the default)
or stopped. Either way it is kept.

Must stay true (tests/server/wires/test_chat_completions.py): the official SDK gets what it expects, with and without a
chat.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Final

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.inputs import ChatChanges, Interruption
from indelible.content import Message, ToolResult
from indelible.errors import Invalid
from indelible.ids import new_id
from indelible.server.dependencies import Reads, ReadyState, Writes, answer_json
from indelible.server.limits.feed_slots import WithSlot
from indelible.server.router import HEADER, Router
from indelible.server.wires.content import continue_with, divide
from indelible.server.wires.openai.chat_completions.projection import CompletionProjection
from indelible.server.wires.openai.chat_completions.request import CompletionRequest, read_messages
from indelible.server.wires.openai.error_middleware import PREFIX
from indelible.server.wires.openai.failures import answer_failure
from indelible.server.wires.openai.models import find_model_name
from indelible.server.wires.requests import read_body
from indelible.server.wires.streaming import WireStream, collect
from indelible.service.turns import TurnService, TurnStart

CHAT: Final = "x-indelible-chat"
router = Router(prefix=PREFIX)


@router.post("/chat/completions")
async def create_completion(
    request: Request,
    state: ReadyState,
    service: Reads,
    once: Writes,
    x_indelible_chat: Annotated[str | None, HEADER] = None,
) -> Response:
    """Create a chat completion: streamed, or when it is complete."""
    body = await read_body(request, CompletionRequest)
    body.model = await find_model_name(service, body.model)
    if body.stream:
        state.feed_slots.check(await service.get_user_id())
    conversations = TurnService(once)
    messages = read_messages(body.messages)
    start = await conversations.start_turn(partial(_start, conversations, x_indelible_chat, messages, body))
    headers = {CHAT: start.chat_id, **body.left_out}
    is_archived = x_indelible_chat is None and not body.store
    projection = CompletionProjection(
        f"chatcmpl-{start.chat_id.rpartition('_')[2]}{start.seq}",
        model=body.model or state.settings.model,
        created_at=int(time.time()),
        with_usage=body.wants_usage,
    )

    async def stop() -> None:
        await service.interrupt(start.chat_id, Interruption(turn=start.turn_id))

    async def archive() -> None:
        if projection.outcome == "waiting":  # the results come with another request, which brings everything along
            await stop()
        await service.update_chat(start.chat_id, ChatChanges(archived=True))

    on_leave = stop if state.settings.completions_on_disconnect == "stop" else None
    on_end = archive if is_archived else None
    if body.stream:
        user_id = await service.get_user_id()
        stream = WireStream(
            state.app.feed,
            start,
            projection,
            pace=state.pace,
            user_id=user_id,
            headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            on_leave=on_leave,
            on_end=on_end,
        )
        return WithSlot(stream, state.feed_slots, user_id)
    await collect(request, state.app.feed, start, projection, on_leave=on_leave)
    if on_end is not None:
        await on_end()
    answer = answer_failure(projection.error) if projection.outcome == "failed" else answer_json(projection.show())
    answer.headers.update(headers)
    return answer


async def _start(
    conversations: TurnService, name: str | None, messages: list[Message], body: CompletionRequest
) -> TurnStart:
    """Go on with the chat of this name, or begin it. Without a name, begin one."""
    chat_id = new_id("chat") if name is None else await conversations.find_chat_id(name)
    system, given = divide(messages)
    settings = body.to_settings(system)
    if name is None or not await conversations.exists(chat_id):
        return await conversations.create(chat_id, given, settings)
    if given.progress and (await conversations.get_status(chat_id)).status == "requires_action":
        awaited = {call.id for call in (await conversations.service.get_chat(chat_id)).action.calls}  # type: ignore[union-attr]
        results: list[ToolResult] = continue_with(given.progress).results
        wanted = [result for result in results if result.call_id in awaited]
        return await conversations.submit(chat_id, wanted, settings=settings.to_patch(given_only=True))
    if given.progress:
        raise Invalid("No call of this chat waits for the output of a tool.")
    patch = settings.to_patch(given_only=True)
    return await conversations.send(chat_id, given.blocks, model=body.model, settings=patch)
