"""Whether a provider would accept a prompt: the rules of Anthropic and OpenAI as code.

Promise P8: the model always gets a legal history. This module checks it, so it shares no code with
loop/prompt/build.py and repeats every number: a mistake there must not hide a mistake here.

The prompt is checked as the adapter will send it: adjacent messages of one role merged, system text hoisted. Each rule
below comes from an error that a provider really returns. What depends on the model or on a parameter (whether thinking
is on, which file types are supported) is not checked here.

  both       known roles; blocks that have a place in their role; content in every message; no blank
             text; valid UTF-8; signed reasoning, never last in a message; arguments that are a JSON
             object; legal tool names; unique call ids; each local call answered once, in the tool
             messages right after it, and no other result; a provider's own result after its call
  anthropic  ids of [a-zA-Z0-9_-]; names up to 128 characters; the last message is the user's or a tool's;
             at most four cache markers
  openai     ids of 1 to 40 printable characters; names up to 64 characters

OpenAI's rules apply to any other provider. Must stay true (tests/testing/test_legality.py): for every rule there is a
prompt that breaks it, and it is caught.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from indelible.content import Block, File, Reasoning, Source, Text, ToolCall, ToolResult
from indelible.models.protocol import PromptMessage

_PLACES: Final[dict[str, tuple[type, ...]]] = {
    "system": (Text,),
    "user": (Text, File),
    "assistant": (Text, Reasoning, ToolCall, ToolResult, Source),
    "tool": (ToolResult,),
}
_MAX_CACHE_MARKERS: Final = 4


class _Wire(NamedTuple):
    call_id: re.Pattern[str]
    tool_name: re.Pattern[str]
    assistant_may_end: bool
    counts_cache_markers: bool


_ANTHROPIC: Final = _Wire(
    call_id=re.compile(r"[a-zA-Z0-9_-]+"),
    tool_name=re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    assistant_may_end=False,
    counts_cache_markers=True,
)
_OPENAI: Final = _Wire(
    call_id=re.compile(r"[\x21-\x7e]{1,40}"),
    tool_name=re.compile(r"[a-zA-Z0-9_-]{1,64}"),
    assistant_may_end=True,
    counts_cache_markers=False,
)


def check_legality(messages: Sequence[PromptMessage], *, provider: str) -> list[str]:
    """The provider's objections, each with its place. Empty if the prompt is legal."""
    wire = _ANTHROPIC if provider == "anthropic" else _OPENAI
    faults: list[str] = []
    for at, message in enumerate(messages):
        own_faults = (*_check_message(message), *_check_reasoning(message), *_check_provider_calls(message))
        faults += [f"message {at}: {fault}" for fault in own_faults]
        for position, block in enumerate(message.blocks):
            faults += [f"message {at}, block {position}: {fault}" for fault in _check_block(block, wire)]
    faults += _check_ids(messages)
    faults += _check_answers(messages)
    faults += _check_whole(messages, wire)
    return faults


def assert_legal(messages: Sequence[PromptMessage], *, provider: str) -> None:
    """Fail with all objections if the provider would reject these messages."""
    faults = check_legality(messages, provider=provider)
    if faults:
        listed = "\n  ".join(faults)
        raise AssertionError(f"{provider} would refuse this prompt:\n  {listed}")


# --- one block ---------------------------------------------------------------------------


def _check_block(block: Block, wire: _Wire) -> Iterator[str]:
    try:
        msgspec.json.encode(block)
    except (UnicodeEncodeError, TypeError):
        yield "no JSON in UTF-8"
    match block:
        case Text() if not block.text.strip():
            yield "blank text"
        case Reasoning() if not (block.signature or block.metadata):
            yield "reasoning without a signature"
        case File() if not (block.file_id or block.url or block.data):
            yield "a file without content"
        case ToolCall():
            if not wire.call_id.fullmatch(block.id):
                yield f"illegal call id {block.id!r}"
            if not wire.tool_name.fullmatch(block.name):
                yield f"illegal tool name {block.name!r}"
            if not _is_json_object(block.arguments):
                yield "arguments that are no JSON object"
        case ToolResult(provider_executed=False) if not isinstance(block.output, str):
            yield "a local result that is no text"


def _is_json_object(text: str) -> bool:
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


# --- one message -------------------------------------------------------------------------


def _check_message(message: PromptMessage) -> Iterator[str]:
    if message.role not in _PLACES:
        yield f"no provider knows the role {message.role!r}"
        return
    for block in message.blocks:
        local_result = isinstance(block, ToolResult) and not block.provider_executed
        misplaced = isinstance(block, ToolResult) and local_result != (message.role == "tool")
        if misplaced or not isinstance(block, _PLACES[message.role]):
            yield f"{type(block).__name__} has no place in a message of role {message.role!r}"
    if all(isinstance(block, Reasoning | Source) for block in message.blocks):
        yield "no content"


def _check_reasoning(message: PromptMessage) -> Iterator[str]:
    sent = [block for block in message.blocks if not isinstance(block, Source)]
    if sent and isinstance(sent[-1], Reasoning):
        yield "reasoning as the last block"


def _check_provider_calls(message: PromptMessage) -> Iterator[str]:
    """A provider's own calls and results, which stay in the assistant's message."""
    open_calls: dict[str, bool] = {}
    for block in message.blocks:
        match block:
            case ToolCall(provider_executed=True):
                open_calls[block.id] = block.standalone
            case ToolResult(provider_executed=True):
                if open_calls.pop(block.call_id, None) is None:
                    yield f"a provider's result without its call before it: {block.call_id!r}"
    for call_id, standalone in open_calls.items():
        if not standalone:
            yield f"a provider's call without its result: {call_id!r}"


# --- all of them -------------------------------------------------------------------------


def _check_ids(messages: Sequence[PromptMessage]) -> Iterator[str]:
    seen: set[str] = set()
    for at, message in enumerate(messages):
        for call in _calls_of(message):
            if call.id in seen:
                yield f"message {at}: the call id {call.id!r} was used before"
            seen.add(call.id)


def _check_answers(messages: Sequence[PromptMessage]) -> Iterator[str]:
    waiting: set[str] = set()
    for at, message in enumerate(messages):
        if message.role == "tool":
            for block in message.blocks:
                if isinstance(block, ToolResult) and block.call_id not in waiting:
                    yield f"message {at}: a result that answers no open call: {block.call_id!r}"
                elif isinstance(block, ToolResult):
                    waiting.remove(block.call_id)
        else:
            yield from _report_unanswered(waiting, f"before message {at}")
            waiting = {call.id for call in _calls_of(message) if not call.provider_executed}
    yield from _report_unanswered(waiting, "at the end")


def _report_unanswered(waiting: Iterable[str], where: str) -> Iterator[str]:
    for call_id in sorted(waiting):
        yield f"{where}: the call {call_id!r} is not answered"


def _calls_of(message: PromptMessage) -> list[ToolCall]:
    return [block for block in message.blocks if isinstance(block, ToolCall)]


def _check_whole(messages: Sequence[PromptMessage], wire: _Wire) -> Iterator[str]:
    conversation = [message for message in messages if message.role != "system"]
    if conversation and conversation[-1].role == "assistant" and not wire.assistant_may_end:
        yield "at the end: the assistant has the last word"
    if wire.counts_cache_markers and sum(message.cache for message in messages) > _MAX_CACHE_MARKERS:
        yield "more than four cache markers"
