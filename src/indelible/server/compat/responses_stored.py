"""Responses and items that are stored, found again by their names.

A request may refer to an item instead of repeating it (`item_reference`), as the AI SDK does with everything that the
assistant said. The model must get what was stored, so a reference becomes the stored block, with the signatures that
its provider wants back. An item that left nothing in history (a crash cut it before anything was visible) is read as
its client saw it. A name that leads to nothing of this user is refused: to leave it out would change the conversation.

A reference is short, and what it stands for may be long: together they may be as long as a request that repeats it.
The items of one response are named one after the other, so it is projected once.

Must stay true (tests/server/compat/test_item_references.py): the model gets the same history whether the items of the
assistant are repeated or referred to; nobody refers to an item of somebody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from indelible.api.events import Position
from indelible.api.shapes import ChatMessage
from indelible.content import Block, Message, Reasoning, Role, Text, ToolCall, ToolResult, encode
from indelible.errors import Invalid, NotFound, TooLarge
from indelible.server.access import MAX_BODY_BYTES
from indelible.server.compat import openai
from indelible.server.compat.openai_items import read_items
from indelible.server.compat.projection import project_stored
from indelible.server.compat.requests import read_note
from indelible.server.compat.responses_items import Item, OwnCallItem, ReasoningItem, TextItem
from indelible.server.compat.responses_projection import ResponseProjection, read_call_id
from indelible.server.state import ServerState
from indelible.service.turns import TurnService
from indelible.store.queries.turn_facts import TurnFacts

_REFERENCE: Final = "item_reference"
_NAMES: Final = {Text: "message", Reasoning: "reasoning", ToolCall: "function_call"}


async def load_projection(state: ServerState, turns: TurnService, name: openai.ResponseName) -> ResponseProjection:
    """The projection of this response, at its beginning. Raises `NotFound` if the user has no such response."""
    facts = await turns.turn_facts(name.chat_id, name.seq)
    return make_projection(state, name, read_note(facts.request).response, model=facts.model, at=facts.asked_at)


def make_projection(
    state: ServerState, name: openai.ResponseName, repeated: dict[str, Any], *, model: str | None, at: datetime
) -> ResponseProjection:
    """The projection of this response, whose request is to be repeated, at its beginning."""
    tools = frozenset(tool.get("name", "") for tool in repeated.get("tools") or ())
    return ResponseProjection(
        str(name),
        request=repeated,
        model=repeated.get("model") or model or state.settings.model,
        created_at=at,
        client_tools=tools | state.client_tools,
    )


async def load_response(state: ServerState, turns: TurnService, name: openai.ResponseName) -> ResponseProjection:
    """The projection of this response, with everything that is stored of it."""
    projection = await load_projection(state, turns, name)
    await project_stored(state.app.feed.replay(name.chat_id, Position(name.seq)), projection)
    return projection


async def load_previous(turns: TurnService, text: str) -> tuple[openai.ResponseName, TurnFacts]:
    """The response that a request continues. For one that is gone, OpenAI has a refusal that agents know."""
    name = openai.find_response_name(text)
    try:
        if name is not None:
            return name, await turns.turn_facts(name.chat_id, name.seq)
    except NotFound:
        pass
    message = f"Previous response with id {text[:100]!r} not found."
    raise openai.RefusedByName(message, status=400, code="previous_response_not_found", param="previous_response_id")


async def read_input(state: ServerState, turns: TurnService, given: Any) -> list[Message]:
    """The messages of an `input`, with what it refers to. Raises `NotFound` for an item that this user does not have.

    It is read twice: a mistake anywhere in it is found before anything is looked for.
    """
    if not isinstance(given, list) or not any(map(_is_reference, given)):
        return read_items(given)
    read_items([item for item in given if not _is_reference(item)])
    stored = _StoredItems(state, turns)
    return read_items([await stored.find(item["id"]) if _is_reference(item) else item for item in given])


async def check_replies(turns: TurnService, chat_id: str, given: Sequence[Message], *, upto: str | None = None) -> None:
    """A request that continues a chat may repeat what the assistant said in it; it can add nothing of that kind.

    Raises `Invalid` if it does: to leave it out would change the conversation. `upto` is the end of what it continues.
    """
    blocks = [block for message in given if message.role == "assistant" for block in message.blocks]
    if not blocks:
        return
    path = await turns.list_whole_path(chat_id, upto=upto)
    known = {_identify(block) for message in path if message.role == "assistant" for block in message.blocks}
    for block in blocks:
        if _identify(block) not in known:
            raise Invalid(
                f"input: the conversation that this request continues has no such {_NAMES.get(type(block), 'item')} of "
                "the assistant. Omit it, or send the whole conversation."
            )


async def check_results(
    turns: TurnService, chat_id: str, results: Sequence[ToolResult], *, upto: str | None = None
) -> None:
    """No call waits for these outputs. Raises `Invalid` unless the conversation has them already."""
    if not results:
        return
    path = await turns.list_whole_path(chat_id, upto=upto)
    known = {_identify(block) for message in path for block in message.blocks if isinstance(block, ToolResult)}
    for result in results:
        if _identify(result) not in known:
            raise Invalid(f"No function call {result.call_id[:100]!r} waits for this output.")


def _identify(block: Block) -> tuple[str, ...]:
    """What two blocks have in common if one repeats the other."""
    match block:
        case Text() | Reasoning():
            return type(block).__name__, block.text
        case ToolCall():
            return "call", block.id, block.name
        case ToolResult():
            output = block.output if isinstance(block.output, str) else encode(block.output).decode()
            return "result", block.call_id, output
        case _:
            return "other", encode(block).decode()


def _is_reference(item: Any) -> bool:
    """A reference names no type if its client is lazy: nothing else has an id and neither type nor role."""
    if not isinstance(item, dict):
        return False
    is_one = item.get("type") == _REFERENCE or (item.get("type") is None and "role" not in item and "id" in item)
    if is_one and not isinstance(item.get("id"), str):
        raise Invalid("input: an item_reference needs the id of an item.")
    return is_one


class _StoredItems:
    """The items that one request refers to."""

    def __init__(self, state: ServerState, turns: TurnService) -> None:
        self._state = state
        self._turns = turns
        self._latest: tuple[openai.ResponseName, ResponseProjection] | None = None
        self._left_bytes = MAX_BODY_BYTES

    async def find(self, text: str) -> list[Message]:
        """The messages of this item, as they are stored."""
        try:
            found = await self._find(openai.find_item_name(text))
        except NotFound:
            found = None
        if found is None:
            raise NotFound(f"Item with id {text[:100]!r} not found.")
        self._left_bytes -= sum(len(encode(message.blocks)) for message in found)
        if self._left_bytes < 0:
            raise TooLarge(f"The items that the input refers to are too long (limit {MAX_BODY_BYTES:,} bytes).")
        return found

    async def _find(self, name: openai.ItemName | None) -> list[Message] | None:
        match name:
            case openai.ItemName(openai.MessageName(chat_id, message_id), place):
                path = await self._turns.list_path(chat_id, upto=message_id, limit=1)
                return _restore_block(path[-1], place) if path and path[-1].id == message_id else None
            case openai.ItemName(openai.ResponseName() as parent, place):
                return _restore_item(await self._load(parent), place)
        return None

    async def _load(self, name: openai.ResponseName) -> ResponseProjection:
        if self._latest is None or self._latest[0] != name:
            self._latest = (name, await load_response(self._state, self._turns, name))
        return self._latest[1]


def _restore_block(message: ChatMessage, place: int) -> list[Message] | None:
    """The item at this place of a message. What a user or the system said is one item."""
    role = cast("Role", message.role)
    blocks = message.blocks
    if role in ("user", "system"):
        return [_make_message(role, blocks, None)] if place == 0 else None
    return [_make_message(role, [blocks[place]], message.model)] if place < len(blocks) and role != "notice" else None


def _restore_item(response: ResponseProjection, place: int) -> list[Message] | None:
    """The item at this place of a response: what was stored of it, or else what its client saw."""
    if place >= len(response.items):
        return None
    item = response.items[place]
    begin = max((step.first_item for step in response.written if step.first_item <= place), default=None)
    step = [written.message for written in response.written if written.first_item == begin]
    left = [block for message in step for block in msgspec.convert(message["blocks"], list[Block])]
    block: Block | None = None
    for each in response.items[begin or 0 : place + 1]:  # texts may repeat, and are stored in their order
        block = next((block for block in left if _is_written_as(each, block)), None)
        left = [other for other in left if other is not block]
    if block is None:
        return read_items([item.done or item.show("incomplete")])
    model = step[0]["model"]
    if not isinstance(item, OwnCallItem):
        return [_make_message("assistant", [block], model)]
    results = [block for block in left if isinstance(block, ToolResult) and block.call_id == item.call_id][:1]
    if all(result.provider_executed for result in results):
        return [_make_message("assistant", [block, *results], model)]
    return [_make_message("assistant", [block], model), _make_message("tool", list(results), None)]


def _is_written_as(item: Item, block: Block) -> bool:
    match block:
        case Text():
            return isinstance(item, TextItem) and item.text == block.text
        case Reasoning():
            return isinstance(item, ReasoningItem) and item.text == block.text
        case ToolCall():
            return read_call_id(getattr(item, "call_id", "")) == block.id
        case _:
            return False


def _make_message(role: Role, blocks: list[Block], model: str | None) -> Message:
    """Who wrote it comes along: a signature is good for its own model only."""
    return Message(role=role, blocks=blocks, model=model)
