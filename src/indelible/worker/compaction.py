"""A requested compaction: a turn that adds no reply and leaves a summary.

The model is called and retried as for a reply; readers see the wait. Its output is not streamed to readers, so
there is no attempt and no journal: after a crash it starts over (tests/worker/test_compaction_turns.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from indelible.concurrency.scope import CancelScope
from indelible.content import Message
from indelible.errors import ModelFailed
from indelible.loop.hooks import Hooks
from indelible.loop.prompt.compact import summarise
from indelible.loop.result import TurnEnd
from indelible.models.protocol import Model
from indelible.models.retry import RetryPolicy, announce_retry
from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.turn_writer import TurnWriter


class TurnCompacted(TurnEnd, frozen=True, kw_only=True):
    """The end of a compaction. Without a summary there was nothing to leave out."""

    summary: Message | None


class Compaction:
    """One summary, however many tries it takes."""

    def __init__(
        self, deps: WorkerDependencies, model: Model, writer: TurnWriter, scope: CancelScope, policy: RetryPolicy
    ) -> None:
        self._deps = deps
        self._model = model
        self._writer = writer
        self._scope = scope
        self._policy = policy
        self._started_s = deps.clock.monotonic()
        self._failures = 0

    async def make(self, messages: Sequence[Message]) -> Message | None:
        """The summary, or None if nothing can be left out. Raises `ModelFailed` when the retries are exhausted."""
        while True:
            self._writer.log.begin_step(1)
            try:
                return await summarise(
                    self._model,
                    messages,
                    scope=self._scope,
                    clock=self._deps.clock,
                    context_limit=self._model.context_limit,
                    limits=self._deps.limit_reply(self._model),
                )
            except ModelFailed as failure:
                await self._wait_for_retry(failure)

    async def _wait_for_retry(self, failure: ModelFailed) -> None:
        clock = self._deps.clock
        self._failures += 1
        delay_s = self._policy.decide_retry(
            failed_attempts=self._failures,
            elapsed_s=clock.monotonic() - self._started_s,
            failure=failure,
            chance=self._deps.chance(),
        )
        if delay_s is None:
            raise failure
        event = announce_retry(failure, attempt=self._failures, delay_s=delay_s, now=clock.now())
        await self._writer.schedule_retry(event)
        await Hooks(self._scope, clock=clock, grace_s=0.0).call_cancellable(clock.sleep, delay_s)
