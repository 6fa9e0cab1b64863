"""A step in progress: its attempts, its collected parts, the record made of them; and saving the last one of a turn.

Only `conclude` (content/assemble.py) decides whether the record is partial, and why; `decide_end`, a pure function of
the output of the model and the tools, decides whether the turn ends with the step.

The last step is saved once, shielded, and once more if the save raises `Interrupted`. `run` returns it unsaved, so that
a runner can save it and end the turn in one transaction. What makes that hard is a stop between the two, or during the
save. `save_end` handles it for every runner: the save outlasts a cancellation of its task; a save that raises
`Interrupted`, or fails while the turn is being interrupted, is followed by exactly one more, of an interrupted end that
holds everything (rule 1.5); if that one fails too, the host is notified and the turn has ended nevertheless, because
the user asked for that. A runner that has lost its lease saves nothing.

Must stay true (tests/loop/test_acceptance_stop.py, S8, S24 and S25): what was published is saved once, and the end that
is returned names the cause that the scope names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from indelible.concurrency.scope import CancelScope, Cause
from indelible.content import PartialReason, ToolCall
from indelible.content.assemble import PartAssembler, conclude
from indelible.errors import Interrupted, Lost
from indelible.logs import get_logger
from indelible.loop.attempt import AdoptedAttempt, Attempt
from indelible.loop.host import (
    FinishedStep,
    TurnEnd,
    TurnHost,
    TurnInterrupted,
    TurnLeaseLost,
    TurnReason,
    TurnShutDown,
    call_shielded,
)
from indelible.loop.options import TurnSetup
from indelible.loop.thinking import SplitterState
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


_log: Final = get_logger(__name__)
SaveEnd = Callable[[TurnEnd], Awaitable[Any] | Any]
"""Saves an end and its last step, if there is one. It receives every end except that of a lost lease."""


async def save_end(end: TurnEnd, save: SaveEnd, *, scope: CancelScope, host: TurnHost | None = None) -> TurnEnd:
    """Save how a turn ended; returns the actual end, because a stop may have arrived meanwhile.

    Raises what `save` raised, unless the turn is being interrupted, and `CancelledError` if the task was cancelled.
    """
    host = host or TurnHost()
    if isinstance(end, TurnLeaseLost):
        return end
    if _has_lost_lease(scope):
        return _lose(end, scope.error())
    if scope.cause is Cause.SHUTDOWN:
        end = _name_cause(end, scope)
    try:
        await call_shielded(scope, save, end)
    except (Exception, asyncio.CancelledError) as error:
        end = await _handle_failure(end, error, save, scope=scope, host=host)
    return _name_cause(end, scope)


async def _handle_failure(
    end: TurnEnd, error: BaseException, save: SaveEnd, *, scope: CancelScope, host: TurnHost
) -> TurnEnd:
    """The first save failed: try once more if a stop caused that; otherwise the error goes to the runner."""
    if isinstance(error, Lost) or _has_lost_lease(scope):
        return _lose(end, error if isinstance(error, Exception) else scope.error())
    if isinstance(error, Interrupted) and scope.cause is Cause.SHUTDOWN:
        return TurnShutDown(messages=end.messages, steps=end.steps)
    if isinstance(error, asyncio.CancelledError) and not scope.interrupted:
        raise error
    if isinstance(end, TurnInterrupted):
        if end.tried or not isinstance(error, Interrupted):
            await _report(error, scope=scope, host=host)
            return end
    elif not isinstance(error, Interrupted) and not scope.interrupted:
        raise error
    end = interrupt(end)
    try:
        await call_shielded(scope, save, end)
    except Lost as lost:
        return _lose(end, lost)
    except (Exception, asyncio.CancelledError) as second:
        if isinstance(second, asyncio.CancelledError) and not scope.interrupted:
            raise
        if not _has_lost_lease(scope):
            await _report(second, scope=scope, host=host)
    return end


def interrupt(end: TurnEnd) -> TurnInterrupted:
    """The same end, interrupted: for a stop that arrived before it was saved."""
    if isinstance(end, TurnInterrupted):
        return end
    step = end.step.interrupt() if end.step is not None else None
    steps = end.steps if step is None else [*end.steps[:-1], step]
    messages = end.messages
    if end.step is not None and step is not None:
        messages = [*end.messages[: len(end.messages) - len(end.step.messages())], *step.messages()]
    return TurnInterrupted(messages=messages, steps=steps, step=step)


def _name_cause(end: TurnEnd, scope: CancelScope) -> TurnEnd:
    """If a stop arrived during the save, everything is saved, and the turn has ended for that cause."""
    match scope.cause:
        case Cause.LEASE_LOST:
            return _lose(end, scope.error())
        case Cause.SHUTDOWN if not isinstance(end, TurnInterrupted):
            return TurnShutDown(messages=end.messages, steps=end.steps)
        case Cause.INTERRUPTED if not isinstance(end, TurnInterrupted):
            return TurnInterrupted(messages=end.messages, steps=end.steps)
        case _:
            return end


def _has_lost_lease(scope: CancelScope) -> bool:
    return scope.cause is Cause.LEASE_LOST


def _lose(end: TurnEnd, error: Exception) -> TurnEnd:
    return end if isinstance(end, TurnLeaseLost) else TurnLeaseLost(error=error)


async def _report(error: BaseException, *, scope: CancelScope, host: TurnHost) -> None:
    _log.error("the reply could not be saved after the stop: %r", error)
    try:
        await call_shielded(scope, host.report_unsaved, error)
    except Exception:
        _log.exception("report_unsaved failed")
