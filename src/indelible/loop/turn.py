"""One turn, driven to its end: ask the model, run the tools, save, go on.

The turn is a straight line; what makes it hard is that it may be ended at every await, for one of
several reasons, and that everything that was published until then must be saved exactly once. So:

  * what may be cut short (reading, hooks, tools, the wait before a retry) runs on a task (leash.py);
  * what may not (saving, the ledger, the callbacks that tell the worker something) is outlasted;
  * everything that goes wrong in a step is an exception that reaches `_take_step`, the only place that
    decides what is kept of it;
  * nobody looks at a `CancelledError` to learn why: `self._scope` says it.

With a shutdown or a lost lease nothing is saved: the journal has it, and its next holder.

Must stay true (tests/loop/test_stop_everywhere.py): the run ends with the scope's cause; one save holds
all that was published. Reading one attempt is attempt.py, saving save.py, what the model is told context.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from indelible.concurrency.scope import CancelScope
from indelible.concurrency.tasks import let_cancellation_through
from indelible.content import Part, ToolCall, ToolResult, Usage, has_visible
from indelible.content.assemble import OUTCOME_UNKNOWN
from indelible.errors import Interrupted, Lost, ModelFailed, Shutdown
from indelible.loop.attempt import AdoptedAttempt, Attempt
from indelible.loop.context import Context
from indelible.loop.hooks import Hooks
from indelible.loop.normalize import Normalizer
from indelible.loop.result import TurnReason, TurnResult
from indelible.loop.save import Saver
from indelible.loop.setup import TurnSetup
from indelible.loop.step import Step
from indelible.loop.thinking.splitter import SplitterState
from indelible.models.failures.classify import filtered
from indelible.models.protocol import Call
from indelible.models.retry import announce_retry
from indelible.tools.output import limit_for
from indelible.tools.run import ToolRunner
from indelible.tools.toolset import DeferToClient, RejectCall, RunHere, ToolPlan


class Turn:
    def __init__(self, setup: TurnSetup, scope: CancelScope) -> None:
        self._setup = setup
        self._scope = scope
        self._hooks = Hooks(scope, clock=setup.clock, grace_s=setup.tool_limits.grace_s)
        self._context = Context(setup, scope, self._hooks)
        self._saver = Saver(setup, scope, self._hooks, self._context)
        self._index = setup.first_step - 1
        self._completed = 0
        self._failures = 0
        self._trying_since_s = setup.clock.monotonic()
        self._thinking_state: SplitterState | None = None
        self._adopted = setup.adopt
        self._stopped_at: datetime | None = None
        scope.on_cancel(self._note_stop)

    async def drive(self) -> TurnResult:
        reason: TurnReason | None = None
        while reason is None:
            self._scope.check()
            reason = await self._take_step()
        steps = self._saver.steps
        usage = sum((step.usage for step in steps), Usage())
        return TurnResult(messages=self._context.added, steps=steps, usage=usage, reason=reason)

    async def _take_step(self) -> TurnReason | None:
        self._index += 1
        step = Step(self._index, self._setup, self._tell_time)
        try:
            if self._adopted is not None:
                self._adopt(step, self._adopted)
            else:
                step.call = await self._context.prepare_call()
                if not await self._stream(step):
                    return None
            await self._run_tools(step)
            await let_cancellation_through(self._scope)
            self._scope.check()
        except (Shutdown, Lost):
            raise
        except Exception as error:
            if isinstance(error, Interrupted) or self._scope.interrupted:
                await self._saver.save_interrupted(step)
                raise Interrupted from error
            self._scope.check()
            await self._saver.save_failed(step)
            self._scope.check()
            raise
        return await self._commit(step)

    def _note_stop(self) -> None:
        self._stopped_at = self._setup.clock.now()

    def _tell_time(self) -> datetime:
        """When a step ended: when the stop came, or now."""
        return self._stopped_at or self._setup.clock.now()

    async def _commit(self, step: Step) -> TurnReason | None:
        setup = self._setup
        self._completed += 1
        reason = step.decide_end(last_allowed=self._completed >= setup.max_steps)
        record = step.record(None)
        record = replace(record, last=reason not in (None, "client_tools"), awaiting=step.awaiting)
        setup.metrics.step_ended(setup.model.provider, setup.model.name)
        await self._saver.save(step, record)
        self._context.used_tokens = record.usage.total_tokens
        self._scope.check()
        return reason

    # --- attempts ---

    def _adopt(self, step: Step, parts: Sequence[Part]) -> None:
        """Go on with a step that was read to its finish elsewhere."""
        self._adopted = None
        step.call = Call(messages=[], options=self._setup.options)
        step.number = step.attempts = 1
        step.attempt = AdoptedAttempt(parts)
        self._check_filter(step)

    def _check_filter(self, step: Step) -> None:
        if step.finish_reason == "content_filter" and not has_visible(step.assembler.blocks()):
            raise filtered(self._setup.model.provider)

    async def _stream(self, step: Step) -> bool:
        """Attempts until one completes. False if a failed one was saved: the next step carries on from it."""
        while not step.closed:
            step.attempts += 1
            if self._setup.on_attempt is not None:
                await self._hooks.call_shielded(self._setup.on_attempt, step.index, step.attempts)
                self._scope.check()
            try:
                await self._try(step)
            except ModelFailed as failure:
                await self._retry(step, failure)
            else:
                self._failures = 0
                self._thinking_state = None
                return True
        return False

    async def _try(self, step: Step) -> None:
        setup, model = self._setup, self._setup.model
        if self._failures == 0:
            self._trying_since_s = setup.clock.monotonic()
        step.number = step.attempts
        step.attempt = attempt = Attempt(
            model,
            step.call,
            scope=self._scope,
            normalizer=Normalizer.of(model, clock=setup.clock, thinking_state=self._thinking_state),
            publish=setup.publish,
            silence_timeout_s=setup.silence_timeout_s,
            grace_s=setup.tool_limits.grace_s,
            clock=setup.clock,
        )
        await attempt.run()
        self._check_filter(step)
        if attempt.first_part_s is not None:
            setup.metrics.first_part_received(model.provider, model.name, seconds=attempt.first_part_s)
            setup.metrics.parts_received(model.provider, model.name, waits_s=attempt.waits_s)

    async def _retry(self, step: Step, failure: ModelFailed) -> None:
        """Make ready for the next attempt, tell of it, and wait for its time; or raise the failure."""
        setup = self._setup
        self._failures += 1
        record = step.record("failed")
        if record.blocks:
            step.latest_failed = record
        elapsed_s = setup.clock.monotonic() - self._trying_since_s
        delay_s = setup.retry.decide_retry(
            failed_attempts=self._failures, elapsed_s=elapsed_s, failure=failure, chance=setup.chance()
        )
        if failure.kind == "chain_broken" or setup.retry.allows(self._failures, elapsed_s):
            mended = await self._context.mend_call(step.call, failure)
            if mended is not None:
                step.call = mended
                delay_s = 0.0 if failure.kind == "context_overflow" else delay_s
        self._scope.check()
        if delay_s is None:
            raise failure
        if setup.keep_failed and has_visible(record.blocks):
            self._thinking_state = step.thinking_state
            await self._saver.save(step, replace(record, last=False))
        setup.metrics.stream_retried(
            setup.model.provider, setup.model.name, kind=failure.kind, chain_broken=failure.chain_broken
        )
        if setup.on_retry is not None:
            event = announce_retry(failure, attempt=self._failures, delay_s=delay_s, now=setup.clock.now())
            await self._hooks.call_shielded(setup.on_retry, event)
        self._scope.check()
        if delay_s > 0:
            await self._hooks.call_cancellable(setup.clock.sleep, delay_s)

    # --- tools ---

    async def _run_tools(self, step: Step) -> None:
        setup, assembler = self._setup, step.assembler
        calls = assembler.local_calls()
        if all(assembler.has_result(call) for call in calls) or step.finish_reason == "length":
            return
        self._scope.check()
        verdicts = self._judge(step, calls)
        waiting = [(at, verdict) for at, verdict in enumerate(verdicts) if not assembler.has_result(verdict.call)]
        for _, verdict in waiting:
            if isinstance(verdict, RejectCall):
                await self._answer(step, verdict)
        step.awaiting = [verdict.call for _, verdict in waiting if isinstance(verdict, DeferToClient)]
        run = ToolRunner(
            turn_id=setup.turn_id,
            step=step.index,
            scope=self._scope,
            publish=lambda part: self._publish(step, part),
            ledger=setup.ledger,
            limits=setup.tool_limits,
            result_limit_bytes=limit_for(setup.context_limit),
            clock=setup.clock,
            metrics=setup.metrics,
        )
        await run.run([(at, verdict) for at, verdict in waiting if isinstance(verdict, RunHere)])

    def _judge(self, step: Step, calls: list[ToolCall]) -> list[ToolPlan]:
        """A verdict for each call. Of those that had begun elsewhere only the idempotent ones are run again (P5)."""
        if step.finish_reason == "content_filter":
            return [RejectCall(call, "Not run: the provider's content filter ended the reply.") for call in calls]
        verdicts = self._setup.toolset.plan(calls, step.assembler.is_whole)
        return [
            RejectCall(verdict.call, OUTCOME_UNKNOWN)
            if isinstance(verdict, RunHere) and verdict.call.started and not verdict.tool.idempotent
            else verdict
            for verdict in verdicts
        ]

    async def _answer(self, step: Step, answer: RejectCall) -> None:
        call = answer.call
        name = self._setup.toolset.label(call.name)
        size_bytes = len(answer.text.encode())
        self._setup.metrics.tool_ran(name, seconds=0.0, size_bytes=size_bytes, truncated=False, is_error=True)
        await self._publish(step, ToolResult(call_id=call.id, name=call.name, output=answer.text, is_error=True))

    async def _publish(self, step: Step, part: Part) -> None:
        """Published first, collected after: what is saved never holds more than what was published."""
        await self._hooks.call_shielded(self._setup.publish, part)
        step.assembler.add(part)
