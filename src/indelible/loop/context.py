"""The model's input: the growing history of a turn, and the call made from it.

Preparing runs once per step, not per plain retry: history, hook, the provider's rules (loop/prompt/build.py), cache
markers. It runs again when the history itself changed during the step: a broken chain reloads all of it
(loop/prompt/response_chain.py), and an overflow replaces the oldest messages with a summary (prompt/compact.py), once
in a turn. If the last reply used nearly the whole window, the summary is made before an overflow.

Compaction is bounded (rule 10.6): each step summarises at most once, and a turn fails after two summaries in a row that
did not help. Its replies then still used nearly the whole window, so the messages that cannot be left out are
themselves too long. Without this bound, every further step would pay for another useless summary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from indelible.concurrency.scope import CancelScope
from indelible.content import Message, encode
from indelible.errors import ModelFailed
from indelible.loop.host import Hooks
from indelible.loop.options import TurnSetup
from indelible.loop.prompt.build import build_prompt, mark_cache
from indelible.loop.prompt.compact import add_sizes, should_compact, summarise
from indelible.loop.prompt.response_chain import Chain
from indelible.models.failures.classify import overflowed
from indelible.models.protocol import Call, CallOptions, PromptMessage, traits_of

_log: Final = logging.getLogger(__name__)
_MAX_FUTILE: Final = 2


class Context:
    """The conversation so far, and `added`, the messages of this turn. `toolset` has the tools of the current step."""

    def __init__(self, setup: TurnSetup, scope: CancelScope, hooks: Hooks) -> None:
        self.added: list[Message] = []
        self.toolset = setup.toolset
        self.used_tokens = setup.options.used_tokens
        self._setup = setup
        self._scope = scope
        self._hooks = hooks
        self._history = list(setup.messages)
        self._chain = Chain(setup.options.call, host=setup.host, hooks=hooks)
        self._overflowed = False
        self._is_compacted = False  # before this step
        self._futile = 0

    def add(self, messages: Iterable[Message]) -> None:
        messages = list(messages)
        self._history += messages
        self.added += messages

    async def prepare_call(self) -> Call:
        """The next step's call. A chain serves one step only: it is left once messages were added."""
        setup = self._setup
        if setup.options.compact_at is not None:
            await self._compact_if_due(setup.options.compact_at)
        if self._chain.linked and self.added:
            await self._leave_chain()
        prepared = await self._hooks.call_cancellable(setup.host.prepare_tools, setup.toolset.advertised)
        self.toolset = setup.toolset.extend(_given("prepare_tools", prepared))
        tools = self.toolset.advertised
        return Call(messages=await self._prepare_prompt(), tools=tools, options=self._choose_options())

    async def mend_call(self, call: Call, failure: ModelFailed) -> Call | None:
        """The call without the cause of the failure; None if nothing can be repaired."""
        if failure.kind == "chain_broken":
            if not await self._leave_chain():
                return replace(call, options=self._choose_options())
        elif failure.kind != "context_overflow" or not await self._compact_once():
            return None
        return replace(call, messages=await self._prepare_prompt(), options=self._choose_options())

    async def _leave_chain(self) -> bool:
        """Continue without the chain, with the whole history if it can be loaded."""
        reloaded = await self._chain.leave()
        if reloaded is not None:
            self._history = reloaded
        return reloaded is not None

    async def _prepare_prompt(self) -> list[PromptMessage]:
        setup, model = self._setup, self._setup.model
        prepared = await self._hooks.call_cancellable(setup.host.prepare_messages, list(self._history))
        messages: Sequence[Message] = _given("prepare_messages", prepared)
        prompt = build_prompt(messages, provider=model.provider, model=model.name, prefix=self._may_prefix())
        prompt = mark_cache(prompt, provider=model.provider)
        size_bytes = len(encode(prompt))
        setup.options.metrics.prompt_sent(model.provider, model.name, size_bytes=size_bytes, messages=len(prompt))
        return prompt

    def _choose_options(self) -> CallOptions:
        """A forced tool choice applies to the first step only: otherwise the model could never answer."""
        options = self._chain.options
        is_first = all(message.role != "assistant" for message in self.added)
        if is_first or options.parameters.get("tool_choice") in (None, "auto", "none"):
            return options
        return replace(options, parameters={**options.parameters, "tool_choice": "auto"})

    def _may_prefix(self) -> bool:
        """Whether a reply may be continued as a prefix. A model that must think first cannot."""
        must_think = bool(self._chain.options.parameters.get("effort"))
        return traits_of(self._setup.model).continues_prefix and not must_think

    async def _compact_if_due(self, share: float) -> None:
        """Compact if the last reply used this share of the window. Raises `ModelFailed` once that proves futile."""
        setup = self._setup
        is_due = should_compact(self.used_tokens, setup.context_limit, share=share)
        self._futile = self._futile + 1 if is_due and self._is_compacted else 0
        self._is_compacted = False
        if self._futile >= _MAX_FUTILE:
            used = f"{self.used_tokens:,} of {setup.context_limit:,} tokens are used"
            raise overflowed(setup.model.provider, f"Older messages were summarised, and still {used}.")
        if is_due:
            await self._compact()
        self.used_tokens = 0

    async def _compact_once(self) -> bool:
        """Compact after an overflow. A second summary would not help against a second overflow."""
        is_first, self._overflowed = not self._overflowed and not self._is_compacted, True
        return is_first and await self._compact()

    async def _compact(self) -> bool:
        """Replace the oldest messages with a summary. Messages that only the provider has (a chain) load first."""
        if self._chain.linked:
            await self._leave_chain()
        metrics, make = self._setup.options.metrics, self._setup.options.compact or self._summarise
        result = "failed"
        try:
            summary = await self._hooks.call_cancellable(make, list(self._history))
            result = "nothing_to_do" if summary is None else "done"
        except ModelFailed as failure:
            _log.warning("the conversation could not be summarised: %s", failure)
            summary = None
        finally:
            metrics.compacted(result=result)
        if summary is None:
            return False
        summary = add_sizes(summary, self._history, used_tokens=self.used_tokens)
        self._is_compacted = True
        await self._hooks.call_shielded(self._setup.host.keep_summary, summary)
        self.add([summary])
        return True

    async def _summarise(self, messages: Sequence[Message]) -> Message | None:
        setup, options = self._setup, self._setup.options
        return await summarise(
            setup.model,
            messages,
            scope=self._scope,
            clock=options.clock,
            context_limit=setup.context_limit,
            limits=options.reply_limits,
        )


def _given(hook: str, answer: Any) -> Any:
    if answer is None:
        raise TypeError(f"{hook} returned None; it must return the messages or tools for the model.")
    return answer
