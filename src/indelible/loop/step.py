"""A step in progress: its attempts, its collected parts, and the record made of them.

Only `conclude` (content/assemble.py) decides whether the record is partial, and why; `decide_end`, a pure function of
the output of the model and the tools, decides whether the turn ends with the step.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from indelible.content import PartialReason, ToolCall
from indelible.content.assemble import PartAssembler, conclude
from indelible.loop.attempt import AdoptedAttempt, Attempt
from indelible.loop.result import FinishedStep, TurnReason
from indelible.loop.setup import TurnSetup
from indelible.loop.thinking.splitter import SplitterState
from indelible.models.protocol import Call


class Step:
    """The state of one step. `closed`: the host received it to save, so the turn's end does not include it."""

    def __init__(self, index: int, setup: TurnSetup, find_end_time: Callable[[], datetime]) -> None:
        self.index = index
        self.call = Call(messages=[])
        self.attempts = 0
        self.attempt: Attempt | AdoptedAttempt | None = None
        self.number = 0
        self.awaiting: list[ToolCall] = []
        self.latest_failed: FinishedStep | None = None
        self.closed = False
        self.tried = False
        self._setup = setup
        self._find_end_time = find_end_time

    @property
    def assembler(self) -> PartAssembler:
        assert self.attempt is not None
        return self.attempt.assembler

    @property
    def finish_reason(self) -> str | None:
        finish = self.assembler.finish
        return finish.reason if finish is not None else None

    @property
    def thinking_state(self) -> SplitterState | None:
        return self.attempt.thinking_state if self.attempt is not None else None

    def record(self, reason: PartialReason | None) -> FinishedStep:
        """The step so far, ended for this reason."""
        setup = self._setup
        ended_at = self._find_end_time()
        if self.attempt is None:
            return FinishedStep(index=self.index, blocks=[], reason=reason, ended_at=ended_at)
        finish = self.assembler.finish
        concluded = conclude(self.assembler, reason, ended_at)
        return FinishedStep(
            index=self.index,
            blocks=concluded.blocks,
            last=True,
            partial=concluded.partial,
            reason=concluded.reason,
            finish_reason=finish.reason if finish is not None else None,
            usage=self.assembler.usage,
            context_limit=setup.context_limit,
            provider=setup.model.provider,
            model=setup.model.name,
            provider_response_id=finish.response_id
            if finish is not None and concluded.whole and self._is_stored(concluded.reason)
            else None,
            attempt=self.number,
            started_at=self.attempt.started_at,
            first_part_s=self.attempt.first_part_s,
            ended_at=ended_at,
            assembler=self.assembler,
        )

    def _is_stored(self, reason: PartialReason | None) -> bool:
        """Whether the provider stores this very reply: only then is its id useful."""
        return self.call.options.store and reason in (None, "interrupted")

    def decide_end(self, *, last_allowed: bool) -> TurnReason | None:
        """Why the turn ends with this complete step, or None if it continues."""
        calls = self.assembler.local_calls()
        results = [self.assembler.result_of(call) for call in calls]
        if self.finish_reason == "length":
            return "length"
        if self.finish_reason == "content_filter":
            return "content_filter"
        if self.awaiting:
            return "client_tools"
        if not calls:
            return "stop"
        if any(result and not result.is_error and result.name in self._setup.stop_after for result in results):
            return "stop_after"
        return "max_steps" if last_allowed else None
