"""Compaction: when a conversation outgrows the model's window, and how it is shortened; and one question to a model.

A compaction adds one message and removes none: a summary that only the model sees. It states how
many of the messages right before it stay verbatim; `from_newest_compaction` (build.py) reads that
and leaves out the summarised messages. People still see the older rows, and a branch
that forks off before the summary does not contain it.

The last few turns stay verbatim, as far as they fit in half of the conversation; a single long turn keeps
its last steps. The model reads the rest as a transcript in one user message, not as a conversation: so
it needs no tool pairing and no provider's rules, and a transcript that is itself too long can be cut in
the middle, where it matters least.

Summaries and titles (worker/summaries.py) are one question to a model beside the conversation: an instruction and a
text in, text out (`ask_once`). Nothing is published, saved or retried here. The answer is read like a reply, so its
thinking is not part of it (rule 5.6), and it has the limits of a reply: a summary that does not end is ended.

Must stay true (tests/loop/test_compact.py): the verbatim part begins at a user's message or at a reply,
never at a tool result; the user's last request is in the prompt word for word, and so is a reply that the model
may be asked to continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import to_builtins
from msgspec.structs import replace

from indelible.clock import Clock
from indelible.concurrency.scope import CancelScope
from indelible.content import Block, File, Message, Source, Text, ToolCall, ToolResult, encode, text_of
from indelible.content.unicode import clean_text, clean_value
from indelible.errors import ModelFailed
from indelible.loop.attempt import Attempt, ReplyLimits
from indelible.loop.normalize import Normalizer
from indelible.loop.prompt.build import from_newest_compaction, is_summary
from indelible.loop.prompt.clean import COMPACTION
from indelible.models.protocol import Call, Model, PromptMessage
from indelible.tools.output import cut_text

INSTRUCTION: Final = """\
You are given the first part of a conversation between a user and an assistant. The rest of it goes on \
after you. Write what the assistant has to know to go on as if it had read everything:

- what the user wants, with every wish, limit and correction that still holds;
- what was decided and found out, with exact names, numbers, paths, identifiers and quotations;
- what was done with tools, and what came of it; what was left undone, and what the next step is.

Write plainly and completely, in the language of the conversation. Do not answer the user, do not \
address anybody, and add nothing that was not said."""

KEEP_TURNS: Final = 3
_MIN_TRANSCRIPT_BYTES: Final = 16 * 1024
_UNKNOWN_WINDOW_TOKENS: Final = 32 * 1024
_TRANSCRIPT_BYTES_PER_TOKEN: Final = 2
_RESULT_BYTES: Final = 2 * 1024
_FILE_BYTES: Final = 1024
_BYTES_PER_TOKEN: Final = 4


def should_compact(used_tokens: int, context_limit: int | None, *, share: float) -> bool:
    """Whether a conversation that used this many tokens is due for compaction."""
    return context_limit is not None and used_tokens >= share * context_limit


def count_verbatim(messages: Sequence[Message], *, keep_turns: int = KEEP_TURNS) -> int | None:
    """How many messages at the end stay verbatim; None if there is nothing to summarise.

    As many turns as fit in half of the conversation, else as many steps, else none; but a user's
    message at the very end always stays, and so does a partial reply, which the model may be asked to continue.
    """
    first = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    turns = [at for at in range(first, len(messages)) if messages[at].role == "user"]
    steps = [at for at in range(first, len(messages)) if messages[at].role == "assistant"]
    ends = [len(messages)] if steps and (not turns or steps[-1] > turns[-1]) else []
    weights = [_weigh(message) for message in messages]
    half = sum(weights[first:]) / 2
    partial = _find_partial_reply(messages)
    last = len(messages) if partial is None else partial
    staying = partial if partial is not None or turns[-1:] != [len(messages) - 1] else turns[-1]
    cuts = (at for at in (*turns[-keep_turns:], *steps[-2:], *ends) if first < at <= last)
    fitting = [at for at in cuts if at == staying or sum(weights[at:]) <= half]
    return len(messages) - fitting[0] if fitting else None


def _find_partial_reply(messages: Sequence[Message]) -> int | None:
    """The place of the partial reply that the conversation ends with, whatever people or the model alone saw since."""
    for at in reversed(range(len(messages))):
        if messages[at].role != "notice" and messages[at].visibility == "both":
            return at if messages[at].role == "assistant" and messages[at].partial else None
    return None


def _weigh(message: Message) -> int:
    """The size of a message in bytes. A file counts a fixed size: its bytes do not reflect its cost for the model."""
    spoken = [clean_value(to_builtins(block)) for block in message.blocks if not isinstance(block, File)]
    files = len(message.blocks) - len(spoken)
    return len(encode(spoken)) + files * _FILE_BYTES


async def summarise(
    model: Model,
    messages: Sequence[Message],
    *,
    scope: CancelScope,
    clock: Clock,
    limits: ReplyLimits,
    keep_turns: int = KEEP_TURNS,
    context_limit: int | None = None,
) -> Message | None:
    """Ask the model for a summary, as the message to put after these; None if nothing can be left out.

    Raises `ModelFailed` if the model returns none, and the scope's error if it was cancelled.
    """
    counting = from_newest_compaction(messages)
    keep_last = count_verbatim(counting, keep_turns=keep_turns)
    older = counting[: len(counting) - (keep_last or 0)]
    transcript = to_transcript(older)
    if keep_last is None or not transcript:
        return None
    limit_bytes = max(_MIN_TRANSCRIPT_BYTES, (context_limit or _UNKNOWN_WINDOW_TOKENS) * _TRANSCRIPT_BYTES_PER_TOKEN)
    transcript = cut_text(transcript, limit_bytes).text
    text = (await ask_once(model, INSTRUCTION, transcript, scope=scope, clock=clock, limits=limits)).strip()
    if not text:
        raise ModelFailed(f"{model.provider} gave no summary of the conversation.", provider=model.provider)
    return make_summary(text, keep_last=keep_last, request=_find_request(counting, older))


def make_summary(text: str, *, keep_last: int, request: Sequence[Block] = ()) -> Message:
    """The message that replaces everything before the last `keep_last` messages.

    `request` is the user's last request, if it is among the messages left out.
    """
    text = f"Summary of the conversation so far:\n\n{text}"
    if request:
        text += "\n\nThe user's last request, word by word:\n\n"
    summary = Text(text, metadata={COMPACTION: {"keep_last": keep_last}})
    return Message(role="user", blocks=[summary, *request], visibility="model")


def add_sizes(summary: Message, messages: Sequence[Message], *, used_tokens: int) -> Message:
    """The summary of these messages, with how many tokens they took before and take now, for people.

    `used_tokens` is what the model last counted; 0 means that it is unknown. The rest is estimated from the sizes.
    """
    text, *rest = summary.blocks
    if not isinstance(text, Text) or text.metadata is None:
        return summary
    counting = from_newest_compaction(messages)
    before_bytes = sum(map(_weigh, counting))
    after_bytes = sum(map(_weigh, from_newest_compaction([*messages, summary])))
    before = used_tokens or before_bytes // _BYTES_PER_TOKEN
    after = before * after_bytes // max(1, before_bytes)
    sizes = {**text.metadata[COMPACTION], "before_tokens": before, "after_tokens": after}
    return replace(summary, blocks=[replace(text, metadata={**text.metadata, COMPACTION: sizes}), *rest])


def estimate_tokens(messages: Sequence[Message]) -> int:
    """About how many tokens these messages are. Only their model can count them."""
    return -(-sum(map(_weigh, messages)) // _BYTES_PER_TOKEN)


def describe_sizes(summary: Message) -> str | None:
    """The notice for people about this summary; None if its sizes are unknown."""
    metadata: Any = summary.blocks[0].metadata if isinstance(summary.blocks[0], Text) else None
    sizes = (metadata or {}).get(COMPACTION, {})
    if "before_tokens" not in sizes:
        return None
    tokens = f"about {sizes['before_tokens']:,} tokens before and {sizes['after_tokens']:,} after"
    return f"The conversation was summarised for the model: {tokens}. Everything above stays as it is for you."


def to_transcript(messages: Sequence[Message]) -> str:
    """The conversation as text, with long tool results cut."""
    visible = (message for message in from_newest_compaction(messages) if message.role != "system")
    return clean_text("\n\n".join(f"[{message.role}]\n{body}" for message in visible if (body := _to_body(message))))


def _to_body(message: Message) -> str:
    lines = []
    for block in message.blocks:
        match block:
            case Text() if block.text.strip():
                lines.append(block.text.strip())
            case ToolCall():
                lines.append(f"(calls {block.name} with {block.arguments or '{}'})")
            case ToolResult():
                output = block.output if isinstance(block.output, str) else encode(clean_value(block.output)).decode()
                label = "failed" if block.is_error else "gave"
                lines.append(f"({block.name} {label}: {cut_text(output, _RESULT_BYTES).text})")
            case Source():
                lines.append(f"(source: {block.title or ''} {block.url or ''})")
            case File():
                lines.append(f"(file: {block.name or block.media_type})")
    return "\n".join(lines)


def _find_request(counting: Sequence[Message], older: Sequence[Message]) -> Sequence[Block]:
    """The user's last request, if it is among `older`, even if only in an earlier summary."""
    asked = [message for message in counting if message.role == "user" and message.visibility == "both"]
    if not asked:
        return next((message.blocks[1:] for message in older if is_summary(message)), ())
    return asked[-1].blocks if any(message is asked[-1] for message in older) else ()


async def ask_once(
    model: Model, instruction: str, text: str, *, scope: CancelScope, clock: Clock, limits: ReplyLimits
) -> str:
    """The text that the model answers. Raises `ModelFailed`, and the scope's error if it was cancelled."""
    prompt = [
        PromptMessage(role="system", blocks=[Text(instruction)]),
        PromptMessage(role="user", blocks=[Text(text)]),
    ]
    attempt = Attempt(
        model,
        Call(messages=prompt),
        scope=scope,
        normalizer=Normalizer.of(model, clock=clock),
        publish=lambda _: None,
        limits=limits,
        clock=clock,
    )
    await attempt.run()
    return text_of(attempt.assembler.blocks())
