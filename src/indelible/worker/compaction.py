"""A compaction that somebody asked for: a turn that says nothing and leaves a summary.

The model is asked as for a reply, and tried again as for a reply; readers are told of the wait. What it says in
between is nobody's business, so there is no attempt and no journal: a crash just begins it anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from indelible.content import Message
from indelible.errors import ModelFailed
from indelible.loop.callouts import Callouts
from indelible.loop.compact import summarise
from indelible.models.port import Model
from indelible.models.retry import RetryPolicy, announce_retry
from indelible.scope import Scope
from indelible.worker.scribe import Scribe
from indelible.worker.setup import WorkerSetup


class Compaction:
    """One summary, however many tries it takes."""

    def __init__(self, setup: WorkerSetup, model: Model, scribe: Scribe, scope: Scope, policy: RetryPolicy) -> None:
        self._setup = setup
        self._model = model
        self._scribe = scribe
        self._scope = scope
        self._policy = policy
        self._started_s = setup.clock.monotonic()
        self._failures = 0

    async def make(self, messages: Sequence[Message]) -> Message | None:
        """The summary, or None if nothing can be left out. Raises `ModelFailed` when there is no more trying."""
        settings, clock = self._setup.settings, self._setup.clock
        while True:
            self._scribe.record.begin_step(1)
            try:
                return await summarise(
                    self._model,
                    messages,
                    scope=self._scope,
                    clock=clock,
                    context_limit=self._model.context_limit,
                    silence_timeout_s=settings.silence_timeout_s,
                    grace_s=settings.tool_grace_s,
                )
            except ModelFailed as failure:
                await self._wait_for_retry(failure)

    async def _wait_for_retry(self, failure: ModelFailed) -> None:
        clock = self._setup.clock
        self._failures += 1
        delay_s = self._policy.decide_retry(
            failed_attempts=self._failures,
            elapsed_s=clock.monotonic() - self._started_s,
            failure=failure,
            chance=self._setup.chance(),
        )
        if delay_s is None:
            raise failure
        event = announce_retry(failure, attempt=self._failures, delay_s=delay_s, now=clock.now())
        await self._scribe.announce_retry(event)
        await Callouts(self._scope, clock=clock, grace_s=0.0).ask(clock.sleep, delay_s)
