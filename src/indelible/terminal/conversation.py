"""A chat that lives as long as its process: the loop, and a list to keep what was said.

There is no store here on purpose. The list gets the user's message, then whatever the loop hands
to `persist_step`, then a notice if the reply did not end by itself. So after a stop it holds what
was on the screen, and the next prompt is made of it.

Must stay true (tests/terminal/test_conversation.py): a reply that was stopped or that failed is
kept as far as it got, and the notice about it never reaches the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from indelible.clock import Clock
from indelible.content import Message, Part, Text
from indelible.errors import Interrupted, ModelFailed
from indelible.loop import Scope, StepRecord, run
from indelible.loop.prompt import build_prompt
from indelible.models.port import Model, PromptMessage
from indelible.models.retry import RetryEvent
from indelible.tools import Tool

STOPPED: Final = "Stopped by you. What was said is kept."


class Conversation:
    """Messages so far, and how to get the next reply."""

    def __init__(self, model: Model, *, clock: Clock, tools: Sequence[Tool[..., Any]] = ()) -> None:
        self.model = model
        self.history: list[Message] = []
        self._clock = clock
        self._tools = tools

    async def reply(
        self, words: str, *, scope: Scope, publish: Callable[[Part], None], tell: Callable[[str], None]
    ) -> bool:
        """Answer the user's words; whether the reply came to its own end.

        `publish` gets the reply, `tell` what people should know about it: that it was stopped, that it
        failed, that it is tried again.
        """
        self.history.append(Message(role="user", blocks=[Text(text=words)]))

        def tell_retry(event: RetryEvent) -> None:
            tell(f"{event.message} Trying again in {event.delay_ms / 1000:.0f} s.")

        try:
            await run(
                model=self.model,
                messages=list(self.history),
                persist_step=self._keep,
                tools=self._tools,
                scope=scope,
                publish=publish,
                on_retry=tell_retry,
                clock=self._clock,
            )
        except Interrupted:
            notice = STOPPED
        except ModelFailed as failure:
            notice = failure.message
        else:
            return True
        self.history.append(Message(role="notice", blocks=[Text(text=notice)]))
        tell(notice)
        return False

    def _keep(self, step: StepRecord, _scope: Scope) -> None:
        self.history.extend(step.messages())

    def build_prompt(self) -> list[PromptMessage]:
        """The history as the model would get it now."""
        return build_prompt(self.history, provider=self.model.provider, model=self.model.name)
