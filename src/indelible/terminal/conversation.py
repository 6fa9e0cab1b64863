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
from indelible.loop import RetryPolicy, Scope, StepRecord, ToolLimits, run
from indelible.loop.prompt import build_prompt
from indelible.models.port import Model, PromptMessage
from indelible.models.retry import RetryEvent
from indelible.settings import Settings, load_settings
from indelible.tools import Tool

STOPPED: Final = "Stopped by you. What was said is kept."


class Conversation:
    """Messages so far, and how to get the next reply."""

    def __init__(
        self,
        model: Model,
        *,
        clock: Clock,
        tools: Sequence[Tool[..., Any]] = (),
        settings: Settings | None = None,
    ) -> None:
        self.model = model
        self.history: list[Message] = []
        self._clock = clock
        self._tools = tools
        self._settings = settings or load_settings()

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
                on_compacted=self.history.append,
                clock=self._clock,
                **self._limits(),
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

    def _limits(self) -> dict[str, Any]:
        """What the settings say about a turn."""
        settings = self._settings
        return {
            "max_steps": settings.max_steps,
            "silence_timeout_s": settings.silence_timeout_s,
            "tool_limits": ToolLimits(
                concurrency=settings.tool_concurrency,
                timeout_s=settings.tool_timeout_s,
                grace_s=settings.tool_grace_s,
            ),
            "retry": RetryPolicy(
                base_s=settings.retry_base_s,
                max_delay_s=settings.retry_max_delay_s,
                retry_after_cap_s=settings.retry_after_cap_s,
                max_attempts=settings.retry_max_attempts,
                budget_s=settings.retry_budget_s,
            ),
        }

    def _keep(self, step: StepRecord, _scope: Scope) -> None:
        self.history.extend(step.messages())

    def build_prompt(self) -> list[PromptMessage]:
        """The history as the model would get it now."""
        return build_prompt(self.history, provider=self.model.provider, model=self.model.name)
