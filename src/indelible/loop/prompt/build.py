"""From a history to a prompt (rules 5.3 to 5.6).

The store keeps the conversation; a provider accepts only what its rules allow. This module adapts the one to the other
for every call, and never writes the result back: switching the provider, or fixing a rule, needs no migration. All of
it is pure.

Three steps: choose the messages that a model may see, from the newest summary on (compact.py); clean
each one (clean.py); answer every call right after its message (pair.py). A clean history does not
change: one entry per message in the given order. The adapter merges neighbours and hoists system
text.

One thing is added. When the last message is a partial reply, a short remark in the user's role says so, so that the
model does not merely extend it by a word or two. Claude models from 4.6 on reject any conversation that ends with the
assistant, so for Anthropic a remark follows a complete reply as well.

An instruction to continue a reply is for that reply only. If its turn ended without a reply and the user then asked
something else, the instruction would come right before that question, so it is left out (`find_stale`).

One more thing may be left out. A model that `continues_prefix` continues a reply at the end of the prompt character by
character; then the stored instruction to continue it is not needed (docs/worker.md).

Must stay true (tests/loop/test_any_history.py): testing/legality.py finds no violation; no text of a message that the
model may see is lost; building is idempotent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from indelible.content import Message, Reasoning, Text, has_visible
from indelible.loop.prompt.call_ids import CallIds
from indelible.loop.prompt.clean import COMPACTION, clean_message
from indelible.loop.prompt.pair import Entry, pair_calls
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
