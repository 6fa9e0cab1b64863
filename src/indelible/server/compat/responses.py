"""`/v1/responses`: create, stream, retrieve, resume, cancel, count and delete responses (docs/openai.md).

A response is a turn of a chat, and every route is a projection of its events (projection.py). Creating one
without a predecessor creates a chat with the given input as its history. `previous_response_id` continues the chat
if the response is its end, and a copy of it otherwise: what was answered meanwhile stays as it is (P10).

How many tokens a request would take is told as far as that can be known without asking its model. What the chat has so
far was counted by the model that answered last: its input, and its reply. What came after that, and the request itself,
is estimated from its size, as for summaries (loop/prompt/compact.py).

Must stay true (tests/server/compat/test_responses.py): the official SDK, unmodified, gets what it expects; a response
that failed to be created has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from starlette.requests import Request
from starlette.responses import Response

from indelible.api.events import Position
from indelible.api.inputs import Interruption
from indelible.api.shapes import ChatMessage
from indelible.content import Message, Role, Text, ToolResult, encode
from indelible.errors import Invalid, NotAllowed
from indelible.ids import new_id
from indelible.loop.prompt.compact import estimate_tokens
from indelible.server.compat import openai, requests
from indelible.server.compat import responses_stored as stored
from indelible.server.compat.openai_items import write_items
from indelible.server.compat.projection import answer_stream, collect, project_stored
from indelible.server.router import Router
from indelible.server.state import Reads, ReadyState, ServerState, State, Writes, answer_json
from indelible.service.turns import TurnService, TurnSettings, TurnStart, start_at
from indelible.store.payloads import ChatPatch

router = Router(prefix=openai.PREFIX)
_CANCEL_WAIT_S = 30.0


@router.post("/responses")
async def create_response(request: Request, state: ReadyState, service: Reads, once: Writes) -> Response:
    """Create a response: streamed, in the background, or when it is complete."""
    body = await requests.read_body(request, requests.ResponseRequest)
    body.model = await openai.find_model_name(service, body.model)
    if body.stream:
        state.feed_slots.check(await service.get_user_id())
    turns = TurnService(once)
    start = await turns.start_turn(Starter(state, turns, body).start)
    name = openai.ResponseName(start.chat_id, start.seq)
    if start.at is None:
        projection = await stored.load_projection(state, turns, name)
    else:
        projection = stored.make_projection(state, name, body.to_repeated(), model=start.model, at=start.at)
    is_kept = body.store is not False or body.previous_response_id is not None or body.conversation is not None

    async def forget() -> None:
        await service.delete_chat(start.chat_id)

    if body.stream:
        user_id = await service.get_user_id()
        on_end = None if is_kept else forget
        return answer_stream(state, start, projection, user_id, headers=body.left_out, on_end=on_end)
    if body.background:
        await project_stored(state.app.feed.replay(start.chat_id, Position(name.seq)), projection)
    else:
        await collect(request, state.app.feed, start, projection)
        if not is_kept:
            await forget()
    has_failed = projection.outcome == "failed" and not body.background
    answer = openai.answer_failure(projection.error) if has_failed else answer_json(projection.show())
    answer.headers.update(body.left_out)
    return answer


@router.post("/responses/input_tokens")
async def count_input_tokens(request: Request, state: State, service: Reads) -> Response:
    """About how many input tokens a response to this request would take."""
    body = await requests.read_body(request, requests.ResponseRequest)
    body.model = await openai.find_model_name(service, body.model)
    turns = TurnService(service)
    given = [] if body.input is None else await stored.read_input(state, turns, body.input)
    path: list[ChatMessage] = []
    if body.previous_response_id is not None:
        name, previous = await stored.load_previous(turns, body.previous_response_id)
        path = await turns.list_whole_path(name.chat_id, upto=previous.last_id or previous.asked_id)
    elif body.chat_id is not None:
        path = await turns.list_whole_path(body.chat_id)
    tokens = estimate_input(path, given, body.to_settings())
    return answer_json({"object": "response.input_tokens", "input_tokens": tokens})


@router.get("/responses/{response_id}")
async def get_response(
    response_id: str, state: State, service: Reads, *, stream: bool = False, starting_after: int = -1
) -> Response:
    """Get a response as it is now, or its events after the one with this number."""
    name = openai.read_response_name(response_id)
    if not stream:
        return answer_json((await stored.load_response(state, TurnService(service), name)).show())
    projection = await stored.load_projection(state, TurnService(service), name)
    state.check_ready()
    user_id = await service.get_user_id()
    start = start_at(name.chat_id, name.seq)
    return answer_stream(state, start, projection, user_id, skip=max(0, starting_after + 1))


@router.post("/responses/{response_id}/cancel")
async def cancel_response(response_id: str, state: State, service: Reads) -> Response:
    """Stop a background response. What was written is kept, and is in its output."""
    name = openai.read_response_name(response_id)
    turns = TurnService(service)
    projection = await stored.load_projection(state, turns, name)
    if not projection.request["background"]:
        raise Invalid("Cannot cancel a synchronous response.")
    turn_id = (await turns.turn_facts(name.chat_id, name.seq)).turn_id
    await project_stored(state.app.feed.replay(name.chat_id, Position(name.seq)), projection)
    if not projection.is_over:
        await service.interrupt(name.chat_id, Interruption(turn=turn_id, wait_s=_CANCEL_WAIT_S))
        projection = await stored.load_response(state, turns, name)
    return answer_json(projection.show())


@router.delete("/responses/{response_id}")
async def delete_response(response_id: str, service: Reads) -> Response:
    """Delete a response with its chat. One of a longer conversation is refused: the others would go with it."""
    name = openai.read_response_name(response_id)
    turns = TurnService(service)
    facts = await turns.turn_facts(name.chat_id, name.seq)
    is_alone = not requests.read_note(facts.request).continues and facts.end_id == facts.last_id
    if facts.outcome is not None and not is_alone:
        detail = "This response is part of a longer conversation. Delete the conversation instead."
        raise NotAllowed(command="delete", state="idle", detail=detail)
    await service.delete_chat(name.chat_id)
    return answer_json({"id": response_id, "object": "response", "deleted": True})


@router.get("/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    service: Reads,
    *,
    limit: int = 20,
    after: str | None = None,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """List the items that came with the request."""
    name = openai.read_response_name(response_id)
    turns = TurnService(service)
    facts = await turns.turn_facts(name.chat_id, name.seq)
    path = await turns.list_path(name.chat_id, upto=facts.asked_id, limit=requests.read_note(facts.request).inputs)
    return answer_json(openai.show_page(write_items(name.chat_id, path), limit=limit, after=after, order=order))


class Starter:
    """Starts the turn of a request: in a new chat, in that of its predecessor, or in a copy of that."""

    def __init__(self, state: ServerState, turns: TurnService, body: requests.ResponseRequest) -> None:
        self._state = state
        self._turns = turns
        self._body = body
        self._repeated = body.to_repeated()

    async def start(self) -> TurnStart:
        messages = await stored.read_input(self._state, self._turns, self._body.input)
        if self._body.previous_response_id is not None:
            return await self._continue(self._body.previous_response_id, messages)
        if self._body.chat_id is not None:
            return await self._join(self._body.chat_id, messages)
        system, given = requests.divide(messages)
        settings = self._body.to_settings(system)
        request = self._note(settings, inputs=len(given.history) + 1 + len(given.progress))
        ephemeral = self._body.store is False
        return await self._turns.create(new_id("chat"), given, settings, ephemeral=ephemeral, request=request)

    async def _continue(self, previous_id: str, messages: Sequence[Message]) -> TurnStart:
        added = requests.continue_with(messages)
        previous, facts = await stored.load_previous(self._turns, previous_id)
        chat_id, end = previous.chat_id, facts.last_id or facts.asked_id
        if facts.outcome is None:
            detail = f"The previous response {previous} is still in progress."
            raise NotAllowed(command="send", state="running", detail=detail)
        await stored.check_replies(self._turns, chat_id, messages, upto=facts.last_id)
        settings = self._body.to_settings(added.system)
        is_new = requests.read_note(facts.request).settings != requests.hash_settings(settings)
        patch = settings.to_patch() if is_new else None
        if facts.outcome == "waiting":
            _check_answered(facts.awaited, added.results)
            return await self._resume(chat_id, added, settings, patch)
        if added.results and not added.blocks:
            raise Invalid(f"No function call of {previous} waits for this output.")
        await stored.check_results(self._turns, chat_id, added.results, upto=facts.last_id)
        is_free = facts.status in ("idle", "error") and not facts.has_queue
        copy_at = None if facts.end_id == end and is_free else end
        return await self._send(chat_id, added, settings, patch, copy_at=copy_at)

    async def _join(self, chat_id: str, messages: Sequence[Message]) -> TurnStart:
        added = requests.continue_with(messages)
        await stored.check_replies(self._turns, chat_id, messages)
        settings = self._body.to_settings(added.system)
        status = (await self._turns.get_status(chat_id)).status
        if status == "requires_action" and added.results:
            return await self._resume(chat_id, added, settings)
        if not added.blocks:
            raise Invalid("No function call of this conversation waits for this output.")
        await stored.check_results(self._turns, chat_id, added.results)
        return await self._send(chat_id, added, settings, settings.to_patch(given_only=True))

    async def _resume(
        self, chat_id: str, added: requests.Continuation, settings: TurnSettings, patch: ChatPatch | None = None
    ) -> TurnStart:
        """Bring the results that the turn waits for; what the user says beside them joins it."""
        request = self._note(settings, continues=True)
        return await self._turns.submit(chat_id, added.results, blocks=added.blocks, settings=patch, request=request)

    async def _send(
        self,
        chat_id: str,
        added: requests.Continuation,
        settings: TurnSettings,
        patch: ChatPatch | None,
        *,
        copy_at: str | None = None,
    ) -> TurnStart:
        return await self._turns.send(
            chat_id,
            added.blocks,
            model=self._body.model,
            settings=patch,
            copy_at=copy_at,
            request=self._note(settings, continues=True),
        )

    def _note(self, settings: TurnSettings, *, inputs: int = 1, continues: bool = False) -> dict[str, Any]:
        more = {"continues": True} if continues else {}
        return {
            "response": self._repeated,
            "settings": requests.hash_settings(settings),
            "inputs": min(inputs, requests.MOST_INPUTS),
            **more,
        }


def _check_answered(awaited: Sequence[dict[str, Any]], results: Sequence[ToolResult]) -> None:
    """Every awaited call needs its output: OpenAI refuses a request without it."""
    given = {result.call_id for result in results}
    missing = [call["id"] for call in awaited if call["id"] not in given]
    if missing:
        raise Invalid(f"No tool output found for function call {missing[0]}.")


def estimate_input(path: Sequence[ChatMessage], given: Sequence[Message], settings: TurnSettings) -> int:
    """About how many tokens the model would read: this path, what is given, and the settings of a new chat."""
    counted, uncounted = 0, list(path)
    for at in reversed(range(len(path))):
        usage = path[at].usage
        if usage is not None and usage.total_tokens:
            counted, uncounted = usage.total_tokens, list(path[at + 1 :])
            break
    declared: list[Any] = [] if path else [each for each in (settings.system, settings.tools) if each]
    written = [Message(role="system", blocks=[Text(encode(each).decode())]) for each in declared]
    left = [Message(role=cast("Role", each.role), blocks=each.blocks) for each in uncounted if each.role != "notice"]
    return counted + estimate_tokens([*written, *left, *given])
