"""Writing down one turn: its attempts, what they say, its steps and its one end.

The loop knows no database; it tells what happens to the callbacks here, and each becomes one command. All of them
are shielded by the loop, so they come to their end whoever stops the turn. A database that is away is waited for:
there is nothing better to do, and a command whose answer was lost may be repeated (R5).

Every ending drains the attempt's own row first, then ends it with what was said since (R4). What arrives while the
chat is being stopped ends the turn; the scope is then interrupted, so that the loop learns of it too.

Must stay true (tests/worker/test_turns.py): a turn ends exactly once, whichever of its ends come together.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import msgspec

from indelible.concurrency.scope import CancelScope, Cause
from indelible.concurrency.tasks import Backoff
from indelible.content import Message, Part, PartialReason, ToolResult
from indelible.errors import LeaseLost, StoreFailed
from indelible.logs import set_log_attempt
from indelible.loop.result import FinishedStep
from indelible.machine.commands import (
    AnnounceRetry,
    AwaitAction,
    CommitStep,
    Fail,
    FinishInterruption,
    FinishTurn,
    KeepSummary,
    Release,
    StartAttempt,
)
from indelible.models.protocol import Model
from indelible.models.retry import RetryEvent
from indelible.store.database.tables import RunStatus
from indelible.store.journal.writer import JournalWriter
from indelible.store.payloads import (
    AttemptStart,
    AwaitedStep,
    C,
    CompactionResult,
    Failure,
    Leftover,
    Payload,
    RetryScheduled,
    StepResult,
    Summary,
    Timings,
    WithStep,
)
from indelible.store.protocol import Outcome
from indelible.store.queries.open_turn import OpenWork
from indelible.tools.tool import ToolCallRecord
from indelible.worker.dependencies import RunLog, WorkerDependencies
from indelible.worker.ledger import JournalLedger

_log: Final = logging.getLogger(__name__)
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 2.0
_PATIENCE_WHEN_LEAVING_S: Final = 0.5
_STATUS_OF: Final[dict[PartialReason | None, RunStatus]] = {"failed": "error", "interrupted": "interrupted"}
"""What is recorded of a step that was cut for this reason; any other is complete."""


_NOTHING_MORE: Final = StepResult()
W = TypeVar("W", bound=WithStep[Any])


class OutOfStep(Exception):
    """What the loop knows of the conversation is no longer what is stored: begin the turn anew from the database."""


class TurnWriter:
    """The callbacks of one turn. `ended` is true once the turn has its end, or is another worker's.

    `model` is who answers; it is set before the first attempt.
    """

    def __init__(
        self, deps: WorkerDependencies, work: OpenWork, scope: CancelScope, worker_scope: CancelScope, record: RunLog
    ) -> None:
        assert work.turn_id is not None
        self.ended = False
        self.record = record
        self.model: Model | None = None
        self._deps = deps
        self._chat_id = work.chat_id
        self._turn_id: str = work.turn_id
        self._epoch = work.epoch
        self._scope = scope
        self._worker_scope = worker_scope
        self._writer: JournalWriter | None = None
        self._ledger: JournalLedger | None = None
        if work.attempt is not None:
            self._take_up(work.attempt.id, n=work.n, begun=work.parts)

    # --- what the loop calls ---

    async def open_attempt(self, step: int, _number: int) -> None:
        assert self.model is not None
        self.record.begin_step(step)
        start = AttemptStart(pending=await self._close_writer(), model=self.model.name, provider=self.model.provider)
        outcome = await self._carry_out(StartAttempt(epoch=self._epoch, turn_id=self._turn_id), start)
        assert outcome.attempt is not None
        self._take_up(outcome.attempt.id)
        set_log_attempt(outcome.attempt.id)

    def publish(self, part: Part) -> Awaitable[None] | None:
        """The hot path: once per part."""
        assert self._writer is not None
        assert self._ledger is not None
        if self._ledger.has_recorded(part):
            return None
        return self._writer.publish(part)

    async def starting(self, call: ToolCallRecord) -> None:
        assert self._ledger is not None
        await self._ledger.starting(call)

    async def settled(self, call: ToolCallRecord, result: ToolResult) -> None:
        assert self._ledger is not None
        await self._ledger.settled(call, result)

    async def announce_retry(self, event: RetryEvent) -> None:
        self.record.note_failure()
        told = msgspec.to_builtins(event)
        told["number"] = told.pop("attempt")
        error = {"kind": event.kind, "message": event.message}
        scheduled = RetryScheduled(pending=await self._close_writer(), retry=told, error=error)
        await self._carry_out(AnnounceRetry(epoch=self._epoch, turn_id=self._turn_id), scheduled)

    async def keep_summary(self, summary: Message) -> None:
        command = KeepSummary(epoch=self._epoch, turn_id=self._turn_id)
        await self._carry_out(command, Summary(summary=summary))

    async def persist(self, step: FinishedStep, _scope: CancelScope) -> list[Message]:
        """Keep a step; what is returned goes before the next prompt."""
        if step.reason == "failed" and step.last:
            return []  # the failure itself comes next, and ends the turn with this in one transaction
        self.record.end_step(_STATUS_OF.get(step.reason, "completed"))
        if step.reason == "interrupted":
            await self._end(FinishInterruption, self._describe(step, StepResult()))
            return []
        if step.awaiting:
            waiting = AwaitedStep(deadline_s=self._deps.settings.client_tool_timeout_s or None)
            await self._end(AwaitAction, self._describe(step, waiting))
            return []
        if step.last:
            await self._end(FinishTurn, self._describe(step, StepResult()))
            return []
        return await self._commit(step)

    async def _commit(self, step: FinishedStep) -> list[Message]:
        attempt_id, result = await self._close_attempt(self._describe(step, StepResult()))
        failed = step.reason == "failed"
        command = CommitStep(epoch=self._epoch, turn_id=self._turn_id, attempt_id=attempt_id, failed=failed)
        outcome = await self._carry_out(command, result)
        if outcome.turn_id != self._turn_id:
            self._note_end()
            return []
        if not outcome.effective:
            raise OutOfStep
        return [message for message in outcome.messages if message.role == "user"]

    # --- how a turn ends ---

    async def finish(self, result: StepResult | CompactionResult = _NOTHING_MORE) -> None:
        """The turn has nothing more to say: what the open attempt left, if one is open, is nothing."""
        result = msgspec.structs.replace(result, pending=await self._close_writer())
        await self._end_turn(FinishTurn(epoch=self._epoch, turn_id=self._turn_id), result)

    async def end_stopped(self) -> None:
        await self._end_with_what_is_kept(FinishInterruption, StepResult())

    async def fail(self, error: dict[str, Any]) -> None:
        await self._end_with_what_is_kept(Fail, Failure(error=error, notice=error.get("message")))

    async def hand_over(self) -> None:
        """Let go of the chat. Everything is flushed first, so that whoever takes it finds a finished reply finished."""
        if self._writer is not None:
            await self._deps.journal.drain(self._writer)
        pending = await self._close_writer()
        await self._end_turn(Release(epoch=self._epoch), Leftover(pending=pending))

    def drop(self) -> None:
        """The chat is another worker's: what is not written yet is not ours to write."""
        if self._writer is not None:
            self._writer.end(LeaseLost("The chat is another worker's."))
        self._forget_writer()
        self.ended = True

    async def _end_with_what_is_kept(self, kind: Any, result: WithStep[Any]) -> None:
        """What the database will never take does not keep the turn from ending (R6): the journal has the rest."""
        try:
            await self._end(kind, result)
        except Exception:
            if self._writer is None or self._writer.over is None:
                raise
            self._forget_writer()
            await self._end(kind, result)

    async def _end(self, kind: Any, result: WithStep[Any]) -> None:
        """End the turn with its open attempt, if there is one."""
        if self._writer is None:
            await self._end_turn(kind(epoch=self._epoch, turn_id=self._turn_id), result)
            return
        attempt_id, result = await self._close_attempt(result)
        await self._end_turn(kind(epoch=self._epoch, turn_id=self._turn_id, attempt_id=attempt_id), result)

    async def _end_turn(self, command: C, payload: Payload[C]) -> None:
        await self._carry_out(command, payload)
        self.ended = True

    def _note_end(self) -> None:
        """The step came while the chat was being stopped: it is kept, and the turn has ended with it."""
        self.ended = True
        self._scope.interrupt()

    # --- the open attempt ---

    def _take_up(self, attempt_id: str, *, n: int = 0, begun: Sequence[Part] = ()) -> None:
        self._writer = self._deps.journal.open(self._chat_id, attempt_id, self._epoch, n=n)
        self._ledger = JournalLedger(self._writer, self._turn_id, begun=begun, metrics=self._deps.metrics)

    async def _close_attempt(self, result: W) -> tuple[str, W]:
        assert self._writer is not None
        attempt_id = self._writer.attempt_id
        return attempt_id, msgspec.structs.replace(result, pending=await self._close_writer())

    async def _close_writer(self) -> list[Part]:
        """What was said since the last flush. If somebody ended the attempt from the journal, he has it all (1.8)."""
        if self._writer is None:
            return []
        try:
            rest = await self._writer.close()
        except LeaseLost:
            rest = []
        self._forget_writer()
        return rest

    def _forget_writer(self) -> None:
        self._writer = self._ledger = None

    def _describe(self, step: FinishedStep, result: W) -> W:
        first_part_at = None
        if step.started_at is not None and step.first_part_s is not None:
            first_part_at = step.started_at + timedelta(seconds=step.first_part_s)
        timings = Timings(started_at=step.started_at, first_part_at=first_part_at, ended_at=step.ended_at)
        return msgspec.structs.replace(
            result,
            response_id=step.provider_response_id,
            usage=step.usage,
            cost_nanousd=self._price(step),
            timings=timings if step.started_at is not None else None,
        )

    def _price(self, step: FinishedStep) -> int | None:
        """What the step cost, if the model knows its prices."""
        price = getattr(self.model, "price", None)
        return price(step.usage) if price is not None and step.usage.total_tokens else None

    async def forget_responses(self) -> None:
        """No reply of this chat is chained to again: the provider may not know them any more (SPEC 4.4)."""
        await self._deps.store.forget_responses(self._chat_id, epoch=self._epoch)

    async def _carry_out(self, command: C, payload: Payload[C]) -> Outcome:
        """Carry out a command, however long the database is away; a process that is leaving does not wait for it."""
        backoff = Backoff(self._deps.clock, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
        while True:
            try:
                return await self._deps.store.execute(self._chat_id, command, payload)
            except StoreFailed as error:
                is_leaving = self._worker_scope.cancelled or self._scope.cause is Cause.SHUTDOWN
                if is_leaving and backoff.delay_s > _PATIENCE_WHEN_LEAVING_S:
                    raise
                _log.warning("%s waits for the database: %s", command.name, error, extra={"chat": self._chat_id})
            await backoff.wait()
