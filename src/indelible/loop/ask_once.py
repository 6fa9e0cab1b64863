"""One question to a model beside the conversation: an instruction and a text in, text out.

Summaries (prompt/compact.py) and titles (worker/titles.py) are made this way. Nothing is published, saved or retried
here. The answer is read like a reply, so its thinking is not part of it (rule 5.6), and it has the limits of a reply:
a summary that does not end is ended (tests/loop/test_compact.py).
"""

from __future__ import annotations

from indelible.clock import Clock
from indelible.concurrency.scope import CancelScope
from indelible.content import Part, Text, text_of
from indelible.loop.attempt import Attempt, ReplyLimits
from indelible.loop.normalize import Normalizer
from indelible.models.protocol import Call, Model, PromptMessage


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
        publish=_publish_to_nobody,
        limits=limits,
        clock=clock,
    )
    await attempt.run()
    return text_of(attempt.assembler.blocks())


def _publish_to_nobody(part: Part) -> None:
    pass
