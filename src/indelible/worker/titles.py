"""A name for a chat, after its first reply: asked of the model that gave it.

It is a convenience and behaves like one. It runs beside the chat and holds nothing up, it is asked once, and
where the model does not give a usable title (or makes none, as the demo model), the user's own first words do.
Thinking is not part of a title: the model's text goes through the same splitter as a reply (SPEC 5.6).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from indelible.clock import Clock
from indelible.concurrency.scope import CancelScope
from indelible.content import Message, Text
from indelible.errors import ModelFailed
from indelible.loop.attempt import Attempt, publish_to_nobody
from indelible.loop.normalize import Normalizer
from indelible.loop.prompt.compact import to_transcript
from indelible.models.protocol import Call, Model, PromptMessage, traits_of
from indelible.tools.output import cut_text
from indelible.worker.dependencies import RunLog

INSTRUCTION: Final = """\
You are given the beginning of a conversation. Give it a title of two to six words, in the language of the \
conversation, that its user will find it by. Answer with the title alone: no quotation marks, no full stop."""

MAX_TITLE_LENGTH: Final = 80
_TRANSCRIPT_BYTES: Final = 4 * 1024
_SILENCE_TIMEOUT_S: Final = 30.0


async def make_title(
    model: Model, messages: Sequence[Message], *, scope: CancelScope, clock: Clock, record: RunLog
) -> str | None:
    """A title for what was said, or None if nothing was."""
    if traits_of(model).makes_titles:
        record.begin_step(1)
        try:
            title = tidy_title(await _ask(model, messages, scope=scope, clock=clock))
        except ModelFailed as failure:
            record.end("error", failure.message)
            title = ""
        if title:
            return title
    return extract_first_words(messages)


async def _ask(model: Model, messages: Sequence[Message], *, scope: CancelScope, clock: Clock) -> str:
    transcript = cut_text(to_transcript(messages), _TRANSCRIPT_BYTES).text
    prompt = [
        PromptMessage(role="system", blocks=[Text(INSTRUCTION)]),
        PromptMessage(role="user", blocks=[Text(transcript)]),
    ]
    attempt = Attempt(
        model,
        Call(messages=prompt),
        scope=scope,
        normalizer=Normalizer.of(model, clock=clock),
        publish=publish_to_nobody,
        silence_timeout_s=_SILENCE_TIMEOUT_S,
        grace_s=0.0,
        clock=clock,
    )
    await attempt.run()
    return "".join(block.text for block in attempt.assembler.blocks() if isinstance(block, Text))


def extract_first_words(messages: Sequence[Message]) -> str | None:
    """The beginning of what the user said first."""
    for message in messages:
        if message.role == "user" and message.visibility == "both":
            title = tidy_title(" ".join(block.text for block in message.blocks if isinstance(block, Text)))
            return title or None
    return None


def tidy_title(text: str) -> str:
    """One line without decoration, cut at a word where it is too long."""
    line = re.sub(r"\s+", " ", next((line for line in text.splitlines() if line.strip()), "")).strip(" \"'“”„«»*_#`.")
    if len(line) <= MAX_TITLE_LENGTH:
        return line
    cut = line[:MAX_TITLE_LENGTH].rsplit(" ", 1)[0]
    return f"{cut.rstrip(' ,;:.')}…"
