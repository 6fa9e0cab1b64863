"""Writing one turn: its attempts, their parts, its steps and its one end.

The loop knows no database. It calls a host (loop/host.py), and `TurnWriter` is the worker's host. Each call from the
loop becomes one command, and so does each end that the loop returns (chat_runner.py). All of them are shielded, so that
they complete even if the turn is stopped meanwhile. If the database is down, they wait for it, as every read does
(outages.py).

A part is published or recorded. A published part waits for the next flush. A recorded part, the start or the result of
a tool, is written together with the tool ledger in one transaction (store/journal/append.py), which requires that
the attempt is open under our epoch. `record` returns after the commit, so a tool call is on disk before the tool runs,
and its result before any reader sees it (P5).

Every end first waits for the attempt's row in flight, then ends the attempt with the parts published since (R4). A step
that is committed while the chat is being stopped ends the turn; the writer then interrupts the scope, so that the loop
stops too.

Must stay true (tests/worker/test_turns.py): a turn ends exactly once, even if several of its ends coincide.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from indelible.api.records import RunStatus
from indelible.api.shapes import Timings
from indelible.concurrency.scope import CancelScope, Cause
from indelible.content import File, Message, Part, PartialReason, ToolProgress, ToolResult, ToolStarted
from indelible.errors import LeaseLost
from indelible.logs import set_log_attempt
from indelible.loop.host import FinishedStep, TurnHost
from indelible.loop.prompt.compact import describe_sizes
from indelible.machine import commands
from indelible.machine.effects import ReplyLimit
from indelible.machine.states import BUSY
from indelible.models.protocol import Model, traits_of
from indelible.models.retry import RetryEvent
from indelible.store import payloads
from indelible.store.journal.append import RunKey, RunSettled, RunStarted
from indelible.store.journal.writer import JournalWriter
from indelible.store.outcome import Outcome
from indelible.store.queries.open_turn import Begun, OpenWork
from indelible.tools.tool import ToolCallRecord
from indelible.worker.attachments import Attachments
from indelible.worker.dependencies import RunLog, WorkerDependencies
from indelible.worker.outages import Outages, Pulse
from indelible.worker.resume import build_history

_NOTHING_TO_SHORTEN: Final = "Nothing to summarise yet."
_STATUS_OF: Final[dict[PartialReason | None, RunStatus]] = {"failed": "error", "interrupted": "interrupted"}
"""The recorded status of a step that was interrupted for this reason; any other step is complete."""
_OF_TOOLS: Final = (ToolProgress, ToolResult)
"""What running tools publish: a stop keeps it, whenever it comes."""

W = TypeVar("W", bound=payloads.WithStep[Any])


class OutOfStep(Exception):
    """The loop's copy of the conversation is out of date: restart the turn from the database."""


class TurnWriter(TurnHost):
    """The host of one turn. `ended` is true once the turn has its end, or another worker holds it.

    `was_last` is true if the end left nothing more to do in the chat, which then no longer has a holder.
    `model` is set before the first attempt. `unsaved` is why the save after a stop failed. With `begun`, the first
    attempt may be open already.
    """

    def __init__(
        self,
        deps: WorkerDependencies,
        work: OpenWork,
        scope: CancelScope,
        worker_scope: CancelScope,
        log: RunLog,
        *,
        pulse: Pulse,
        begun: Begun | None = None,
    ) -> None:
        assert work.turn_id is not None
        self.ended = False
        self.was_last = False
        self.unsaved: BaseException | None = None
        self._settled = 0
        self._first_n = work.n
        self.log = log
        self.model: Model | None = None
        self._deps = deps
        self._chat_id = work.chat_id
        self._turn_id: str = work.turn_id
        self._epoch = work.epoch
        self._scope = scope
        self._worker_scope = worker_scope
        self._pulse = pulse
        self._writer: JournalWriter | None = None
        self._tools_begun: frozenset[str] = frozenset()
        self._outages = Outages(deps.clock, chat_id=work.chat_id, is_leaving=self._is_leaving)
        self._attachments = Attachments(deps.files, chat_id=work.chat_id, owner_id=work.owner_id, outages=self._outages)
        if work.attempt is not None:
            self._open_writer(work.attempt.id, n=work.n)
            self._tools_begun = frozenset(part.call_id for part in work.parts if isinstance(part, ToolStarted))
        self._opened = begun
        if begun is not None and begun.attempt is not None:
            self._open_writer(begun.attempt.id)

    # --- called by the loop ---

    async def open_attempt(self, step: int, number: int) -> None:  # noqa: ARG002
        assert self.model is not None
        self.log.begin_step(step)
        if self._is_opened_for(self.model):
            return
        start = payloads.AttemptStart(
            pending=await self._close_writer(), model=self.model.name, provider=self.model.provider
        )
        outcome = await self._execute(commands.StartAttempt(epoch=self._epoch, turn_id=self._turn_id), start)
        assert outcome.attempt is not None
        self._open_writer(outcome.attempt.id)

    def _is_opened_for(self, model: Model) -> bool:
        """Whether the attempt was opened in the transaction that began the turn. It serves the first call alone."""
        opened, self._opened = self._opened, None
        if opened is None or opened.attempt is None:
            return False
        return (opened.model, opened.provider) == (model.name, model.provider)

    def publish(self, part: Part) -> Awaitable[None] | None:
        """The hot path: once per part."""
        assert self._writer is not None
        if self._pulse.is_doubtful and type(part) not in _OF_TOOLS:
            return self._publish_when_known(part)
        return self._writer.publish(part)

    async def _publish_when_known(self, part: Part) -> None:
        """Publish a part of the model when the chat was read, unless the turn was stopped or lost meanwhile."""
        await self._pulse.wait(self._scope)
        self._scope.check()
        assert self._writer is not None
        room = self._writer.publish(part)
        if room is not None:
            await room

    def has_progressed(self, *, in_tool: bool) -> bool:
        """Whether a part was written since this worker acquired the chat; with `in_tool`, whether a tool settled."""
        if in_tool:
            return self._settled > 0
        return self._writer is not None and self._writer.n > self._first_n

    def wait_for_row(self) -> Awaitable[None] | None:
        """What to await before reading from the provider again, once per row; None: read on at once."""
        return None if self._writer is None else self._writer.wait_for_row()

    async def record(self, part: ToolStarted | ToolResult, call: ToolCallRecord) -> None:
        """Write the ledger and its part in one transaction; returns after the commit (rule 1.3)."""
        assert self._writer is not None
        key = RunKey(self._turn_id, call.step, call.index)
        if isinstance(part, ToolResult):
            await self._writer.record(RunSettled(key=key, result=part), part)
            self._settled += 1
            return
        if self._pulse.is_doubtful:
            await self._pulse.wait(self._scope)
            if not self._scope.interrupted:  # a stopped turn's tool has a result that says that it did not begin
                self._scope.check()
        if call.id in self._tools_begun and not call.idempotent:
            self._deps.metrics.tool_ran_twice()
        started = RunStarted(
            key=key,
            attempt_id=self._writer.attempt_id,
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
            idempotency_key=call.idempotency_key,
        )
        await self._writer.record(started, part)

    async def prepare_messages(self, messages: list[Message]) -> Sequence[Message]:
        """Load the files that the messages name, as far as the model takes them."""
        assert self.model is not None
        return await self._attachments.load(messages, traits_of(self.model))

    async def keep_file(self, file: File) -> File | str:
        return await self._attachments.keep(file)

    async def schedule_retry(self, event: RetryEvent) -> None:
        self.log.note_failure()
        retry = msgspec.to_builtins(event)
        retry["number"] = retry.pop("attempt")
        error = {"kind": event.kind, "message": event.message}
        scheduled = payloads.RetryScheduled(pending=await self._close_writer(), retry=retry, error=error)
        await self._execute(commands.AnnounceRetry(epoch=self._epoch, turn_id=self._turn_id), scheduled)

    async def keep_summary(self, summary: Message) -> None:
        command = commands.KeepSummary(epoch=self._epoch, turn_id=self._turn_id)
        await self._execute(command, payloads.Summary(summary=summary, notice=describe_sizes(summary)))

    async def persist_step(self, step: FinishedStep) -> list[Message]:
        """Commit a step that another follows; the returned messages are added before the next model call."""
        self._log_step(step)
        attempt_id, result = await self._close_attempt(self._describe(step, payloads.StepResult()))
        failed = step.reason == "failed"
        command = commands.CommitStep(epoch=self._epoch, turn_id=self._turn_id, attempt_id=attempt_id, failed=failed)
        outcome = await self._execute(command, result)
        if outcome.turn_id != self._turn_id:
            # The chat was being stopped: the step is kept, and the turn has ended with it.
            self.ended = True
            self._scope.interrupt()
            return []
        if not outcome.effective:
            raise OutOfStep
        return [message for message in outcome.messages if message.role == "user"]

    async def forget_responses(self) -> None:
        forget = partial(self._deps.store.forget_responses, self._chat_id, epoch=self._epoch)
        await self._outages.wait_out(forget, what="leaving the response chain")

    async def reload_messages(self) -> list[Message]:
        load = partial(self._deps.store.work, self._chat_id)
        work = await self._outages.wait_out(load, what="reading the history")
        return build_history(work, self._deps.settings.system)

    def report_unsaved(self, error: BaseException) -> None:
        self.unsaved = error

    # --- the one end of a turn ---

    async def finish(self, step: FinishedStep | None, *, limit: ReplyLimit | None = None) -> None:
        """The turn is complete. Without a step there is nothing to add: an open attempt produced nothing.

        `limit` is what ended the reply, if the model did not end it itself.
        """
        if step is None:
            result = payloads.StepResult(pending=await self._close_writer())
            await self._end_turn(commands.FinishTurn(epoch=self._epoch, turn_id=self._turn_id, limit=limit), result)
            return
        self._log_step(step)
        await self._end(partial(commands.FinishTurn, limit=limit), self._describe(step, payloads.StepResult()))

    async def finish_compaction(self, summary: Message | None) -> None:
        notice = describe_sizes(summary) if summary is not None else _NOTHING_TO_SHORTEN
        result = payloads.CompactionResult(summary=summary, notice=notice, pending=await self._close_writer())
        await self._end_turn(commands.FinishTurn(epoch=self._epoch, turn_id=self._turn_id), result)

    async def await_client(self, step: FinishedStep) -> None:
        """The turn stays open until the client has answered its calls, or for as long as the setting allows."""
        self._log_step(step)
        waiting = payloads.AwaitedStep(deadline_s=self._deps.settings.client_tool_timeout_s or None)
        await self._end(commands.AwaitAction, self._describe(step, waiting))

    async def end_stopped(self, step: FinishedStep | None) -> None:
        if step is not None:
            self._log_step(step)
        await self._end_with_what_is_kept(commands.FinishInterruption, self._describe(step, payloads.StepResult()))

    async def fail(self, error: dict[str, Any]) -> None:
        """The turn failed. Its output, and its usage as far as it is known, is in the journal."""
        await self._end_with_what_is_kept(commands.Fail, payloads.Failure(error=error, notice=error.get("message")))

    async def hand_over(self) -> None:
        """Release the chat. Everything is flushed first, so that the next worker finds a finished reply finished."""
        if self._writer is not None:
            await self._deps.journal.drain(self._writer)
        pending = await self._close_writer()
        await self._end_turn(commands.Release(epoch=self._epoch), payloads.Leftover(pending=pending))

    def drop(self) -> None:
        """Another worker holds the chat: discard what is not written yet."""
        if self._writer is not None:
            self._writer.end(LeaseLost("The chat is another worker's."))
        self._forget_writer()
        self.ended = True

    async def _end_with_what_is_kept(self, kind: Any, result: payloads.WithStep[Any]) -> None:
        """End the turn even if the database refuses the last parts for good (R6): the journal has the rest."""
        try:
            await self._end(kind, result)
        except Exception:
            if self._writer is None or self._writer.over is None:
                raise
            self._forget_writer()
            await self._end(kind, result)

    async def _end(self, kind: Any, result: payloads.WithStep[Any]) -> None:
        """End the turn with its open attempt, if there is one."""
        if self._writer is None:
            await self._end_turn(kind(epoch=self._epoch, turn_id=self._turn_id), result)
            return
        attempt_id, result = await self._close_attempt(result)
        await self._end_turn(kind(epoch=self._epoch, turn_id=self._turn_id, attempt_id=attempt_id), result)

    async def _end_turn(self, command: payloads.C, payload: payloads.Payload[payloads.C]) -> None:
        outcome = await self._execute(command, payload)
        self.ended = True
        self.was_last = outcome.effective and outcome.status not in BUSY

    def _log_step(self, step: FinishedStep) -> None:
        self.log.end_step(_STATUS_OF.get(step.reason, "completed"))

    # --- the open attempt ---

    def _open_writer(self, attempt_id: str, *, n: int = 0) -> None:
        set_log_attempt(attempt_id)
        self._writer = self._deps.journal.open(self._chat_id, attempt_id, self._epoch, n=n)

    async def _close_attempt(self, result: W) -> tuple[str, W]:
        assert self._writer is not None
        attempt_id = self._writer.attempt_id
        return attempt_id, msgspec.structs.replace(result, pending=await self._close_writer())

    async def _close_writer(self) -> list[Part]:
        """The parts since the last flush. If another process ended the attempt, nothing is left to write (1.8)."""
        if self._writer is None:
            return []
        try:
            pending = await self._writer.close()
        except LeaseLost:
            pending = []
        self._forget_writer()
        self._first_n = 0
        return pending

    def _forget_writer(self) -> None:
        self._writer = None
        self._tools_begun = frozenset()

    def _describe(self, step: FinishedStep | None, result: W) -> W:
        """Add what the journal does not hold about a step: timings by this worker's clock, usage and cost."""
        if step is None:
            return result
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
        """The cost of the step, if the model's prices are known."""
        price = traits_of(self.model).price if self.model is not None else None
        usage = step.usage
        return price(usage) if price is not None and usage is not None and usage.total_tokens else None

    async def _execute(self, command: payloads.C, payload: payloads.Payload[payloads.C]) -> Outcome:
        """Execute a command, and wait for a database that is down."""
        execute = partial(self._deps.store.execute, self._chat_id, command, payload)
        return await self._outages.wait_out(execute, what=command.name)

    def _is_leaving(self) -> bool:
        return self._worker_scope.cancelled or self._scope.cause is Cause.SHUTDOWN
