"""From a history to a prompt (rules 5.3 to 5.6), and the pairing of calls with their results.

The store keeps the conversation; a provider accepts only what its rules allow. This module adapts the one to the other
for every call, and never writes the result back: switching the provider, or fixing a rule, needs no migration. All of
it is pure.

Three steps: choose the messages that a model may see, from the newest summary on (compact.py); clean
each one (clean.py); answer every call right after its message. A clean history does not
change: one entry per message in the given order. The adapter merges neighbours and hoists system
text.

One thing is added. When the last message is a partial reply, a short remark in the user's role says so, so that the
model does not merely extend it by a word or two. Claude models from 4.6 on reject any conversation that ends with the
assistant, so for Anthropic a remark follows a complete reply as well.

An instruction to continue a reply is for that reply only. If its turn ended without a reply and the user then asked
something else, the instruction would come right before that question, so it is left out (`find_stale`).

One more thing may be left out. A model that `continues_prefix` continues a reply at the end of the prompt character by
character; then the stored instruction to continue it is not needed (docs/architecture.md).

Every local call is answered once, right after the message that made it. Histories have holes: a crash between call and
result, a client that submits results after the next message, results of two replies in one row, ids that every step
reuses. Providers accept none of that:

  * a result belongs to the nearest message above it that has a call of that id; if that message
    has several, they are answered in their order;
  * a second result for a call is dropped, the first one stands;
  * a call without a result gets an error that says so;
  * a result without a call becomes text in place: in a tool row, text of a user message,
    which is the only role that every provider accepts anywhere.

Results of one row stay together, in their order: a row of results is one entry,
moved up if other messages came between. Ids become legal here (`CallIds` of clean.py), on both sides at once.

Must stay true (tests/loop/test_any_history.py): testing/legality.py, which shares no code with this, finds no
violation; no text of a message that the model may see is lost; building is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec
from msgspec.structs import replace

from indelible.content import Block, Message, Reasoning, Role, Source, Text, ToolCall, ToolResult, has_visible
from indelible.loop.prompt.clean import COMPACTION, CallIds, clean_message, describe_orphan, drop_idle_reasoning
from indelible.models.protocol import PromptMessage

CUT_REMARK: Final = "(Your last message was cut off at this point.)"
NEXT_REMARK: Final = "(Your last message was complete. Please go on.)"
_NEVER_LAST: Final = frozenset({"anthropic"})
"""Providers that reject a conversation that ends with an assistant message."""


def build_prompt(
    messages: Sequence[Message], *, provider: str, model: str | None = None, prefix: bool = False
) -> list[PromptMessage]:
    """The prompt that a model of this provider gets for these messages.

    With `model` given, replies of other models count as foreign, even if they are the provider's own. With `prefix`,
    a partial reply to continue comes last.
    """
    stale = find_stale(messages)
    counting = [message for message in from_newest_compaction(messages) if id(message) not in stale]
    is_prefixed = prefix and _ends_to_be_continued(counting)
    if is_prefixed:
        counting = counting[:-1]
    ids = CallIds(provider=provider)
    entries = [
        Entry(
            role=message.role,
            blocks=clean_message(message, provider=provider, model=model, ids=ids),
            partial=message.partial,
        )
        for message in counting
    ]
    paired = pair_calls(entries, ids=ids)
    prompt = [PromptMessage(role=entry.role, blocks=entry.blocks) for entry in paired]
    remark = None if is_prefixed else _choose_remark(paired, provider=provider)
    if remark is not None:
        prompt.append(PromptMessage(role="user", blocks=[Text(remark)]))
    return prompt


def _ends_to_be_continued(messages: Sequence[Message]) -> bool:
    """Whether the last two are a reply that was interrupted in its text, and the instruction to continue it.

    Providers reject a prefix that ends with a space, and without the space the words would run together.
    """
    if len(messages) < 2:
        return False
    reply, instruction = messages[-2:]
    asks = is_instruction(instruction)
    is_cut = reply.role == "assistant" and reply.partial and bool(reply.blocks)
    last = reply.blocks[-1] if is_cut else None
    return asks and isinstance(last, Text) and bool(last.text) and not last.text[-1].isspace()


def _choose_remark(entries: Sequence[Entry], *, provider: str) -> str | None:
    """The remark to add after the last message. System messages are hoisted, so they do not count."""
    last = next((entry for entry in reversed(entries) if entry.role != "system"), None)
    if last is None or last.role != "assistant":
        return None
    if last.partial:
        return CUT_REMARK
    return NEXT_REMARK if provider in _NEVER_LAST else None


def mark_cache(messages: Sequence[PromptMessage], *, provider: str) -> list[PromptMessage]:
    """A copy with Anthropic's cache markers (rule 5.5); for other providers, an unmarked copy.

    Marked are the last message of the leading run of system messages and the last two messages. A
    message that contains only reasoning cannot carry a marker.
    """
    marked: set[int] = set()
    if provider == "anthropic":
        leading = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
        marked = {leading - 1, len(messages) - 2, len(messages) - 1}
    return [
        replace(message, cache=at in marked and not all(isinstance(block, Reasoning) for block in message.blocks))
        for at, message in enumerate(messages)
    ]


def from_newest_compaction(messages: Sequence[Message]) -> list[Message]:
    """What counts for a model since the newest summary: system messages, summary, and verbatim messages.

    A summary (`is_summary`) states how many of the messages that counted until then stay verbatim. They come
    after it, because it covers what was before them: so a second summary counts them in that order too.
    Notices and other messages for people only never count.
    """
    counting: list[Message] = []
    for message in messages:
        if message.role == "notice" or message.visibility == "people":
            continue
        keep_last = _read_keep_last(message)
        if keep_last is None:
            counting.append(message)
            continue
        leading = next((at for at, earlier in enumerate(counting) if earlier.role != "system"), len(counting))
        kept = counting[max(leading, len(counting) - keep_last) :]
        counting = [*counting[:leading], message, *kept]
    return counting


def find_stale(messages: Sequence[Message]) -> set[int]:
    """The identities of instructions that no reply followed: their turn ended before the user's next message.

    A turn that ends without a reply leaves a notice. Without one between them, the user's message is a steer of the
    same turn, and the instruction still holds.
    """
    stale: set[int] = set()
    pending: list[Message] = []
    has_ended = False
    for message in messages:
        if is_instruction(message):
            pending.append(message)
            has_ended = False
        elif message.role == "notice":
            has_ended = True
        elif message.role == "assistant" and has_visible(message.blocks):
            pending = []
        elif message.role == "user" and message.visibility == "both" and pending and has_ended:
            stale |= {id(instruction) for instruction in pending}
            pending = []
    return stale


def is_instruction(message: Message) -> bool:
    """Whether this message asks the model to continue its reply: only the model sees it, and it is no summary."""
    return message.role == "user" and message.visibility == "model" and not is_summary(message)


def is_summary(message: Message) -> bool:
    """Whether this message replaces everything before it: only the model sees it, and its metadata marks it."""
    return _read_keep_last(message) is not None


def _read_keep_last(message: Message) -> int | None:
    """How many messages before this summary stay verbatim; None if it is no summary."""
    if message.visibility != "model":
        return None
    for block in message.blocks:
        if isinstance(block, Text) and block.text.strip() and block.metadata and COMPACTION in block.metadata:
            mark = block.metadata[COMPACTION]
            keep_last = mark.get("keep_last") if isinstance(mark, dict) else None
            return keep_last if isinstance(keep_last, int) and keep_last > 0 else 0
    return None


NO_RESULT: Final = "No result: the call was not completed."


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the prompt under construction."""

    role: Role
    blocks: list[Block]
    partial: bool = False


class _AskedCall(msgspec.Struct):
    """A local call, and the result found for it at `(row, position)`."""

    call: ToolCall
    asked_in: int
    answer: ToolResult | None = None
    found_at: tuple[int, int] = (0, 0)

    def build_answer(self) -> ToolResult:
        answer = self.answer or ToolResult(call_id="", name="", output=NO_RESULT, outcome="unknown")
        return replace(answer, call_id=self.call.id, name=self.call.name)


class _OpenCalls:
    """For each call id in the history, the calls of the nearest message that uses it."""

    def __init__(self) -> None:
        self._nearest: dict[str, list[_AskedCall]] = {}

    def add(self, call: _AskedCall, *, id: str) -> None:
        same_id = self._nearest.setdefault(id, [])
        if same_id and same_id[0].asked_in != call.asked_in:
            same_id.clear()
        same_id.append(call)

    def settle(self, result: ToolResult, *, found_at: tuple[int, int]) -> bool:
        """Whether this result answers a call, even one that already has a result."""
        same_id = self._nearest.get(result.call_id, [])
        for call in same_id:
            if call.answer is None:
                call.answer, call.found_at = result, found_at
                break
        return bool(same_id)


def pair_calls(entries: Sequence[Entry], *, ids: CallIds) -> list[Entry]:
    """The entries with every call answered, and no result anywhere else."""
    spoken: list[list[Block]] = [[] for _ in entries]
    asked: list[list[_AskedCall]] = [[] for _ in entries]
    open_calls = _OpenCalls()
    for row, entry in enumerate(entries):
        for position, block in enumerate(entry.blocks):
            match block:
                case ToolCall(provider_executed=False):
                    call = _AskedCall(replace(block, id=ids.give(block.id)), asked_in=row)
                    open_calls.add(call, id=block.id)
                    asked[row].append(call)
                    spoken[row].append(call.call)
                case ToolResult(provider_executed=False):
                    if not open_calls.settle(block, found_at=(row, position)):
                        spoken[row].append(describe_orphan(block))
                case _:
                    spoken[row].append(block)

    paired: list[Entry] = []
    for entry, blocks, calls in zip(entries, spoken, asked, strict=True):
        if _has_content(blocks):
            role: Role = "user" if entry.role == "tool" else entry.role
            paired.append(Entry(role=role, blocks=drop_idle_reasoning(blocks), partial=entry.partial))
        paired.extend(_build_answers(calls))
    return paired


def _build_answers(calls: Sequence[_AskedCall]) -> Iterator[Entry]:
    """One tool entry per row of results. Errors for calls without a result join the last of them."""
    answered = sorted((call for call in calls if call.answer), key=lambda call: call.found_at)
    rows: list[list[Block]] = [
        [call.build_answer() for call in group] for _, group in groupby(answered, key=lambda call: call.found_at[0])
    ]
    missing = [call.build_answer() for call in calls if not call.answer]
    if missing and not rows:
        rows.append([])
    for row in rows[-1:]:
        row.extend(missing)
    return (Entry(role="tool", blocks=row) for row in rows)


def _has_content(blocks: Sequence[Block]) -> bool:
    """Reasoning and sources alone are no message: no provider accepts one."""
    return any(not isinstance(block, Reasoning | Source) for block in blocks)
