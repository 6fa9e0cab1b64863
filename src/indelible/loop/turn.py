"""One turn, driven to its end: call the model, run the tools, save, repeat.

The sequence itself is simple. The difficulty is that the turn may end at every await, for one of
several reasons, and that everything published by then must be saved exactly once. So:

  * work that may be interrupted (reading the stream, loading data from the host, tools, the wait before a retry) runs
    in a task that can be cancelled and, after a grace time, abandoned (concurrency/tasks.py);
  * work that may not (publishing, recording, saving) is always awaited to its end (host.py);
  * every error in a step is an exception that reaches `_run_step`, and only `_end_cut` decides which end it is and
    what is saved of the step;
  * nothing infers the cause from a `CancelledError`: `self._scope` names it.

After a shutdown or a lost lease nothing is saved: the next holder of the chat continues from the journal.

Must stay true (tests/loop/test_stop_everywhere.py): the turn ends with the scope's cause; saved steps and the end's
own step hold everything that was published. attempt.py reads one attempt, context.py prepares the prompt, and step.py
saves the last step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from indelible.concurrency.scope import CancelScope, Cause
from indelible.concurrency.tasks import let_cancellation_through
from indelible.content import Message, Part, ToolCall, ToolResult, ToolStarted, has_visible
from indelible.content.assemble import UNANSWERED, answer_unrun, append_progress, lose_result
from indelible.errors import Interrupted, Lost, ModelFailed, Shutdown
from indelible.loop import host
from indelible.loop.attempt import AdoptedAttempt, Attempt
from indelible.loop.context import Context
from indelible.loop.normalize import Normalizer
from indelible.loop.options import TurnSetup
from indelible.loop.step import Step
from indelible.loop.thinking import SplitterState
from indelible.models.failures.classify import filtered
from indelible.models.protocol import Call
from indelible.models.retry import announce_retry
from indelible.tools.output import limit_for
from indelible.tools.run import ToolRunner
from indelible.tools.tool import ToolCallRecord
from indelible.tools.toolset import DeferToClient, RejectCall, RunHere, ToolPlan
from indelible.tracing import span


class Turn:
    def __init__(self, setup: TurnSetup, scope: CancelScope) -> None:
        options = setup.options
        self._setup = setup
        self._options = options
        self._host = setup.host
        self._named = {"provider": setup.model.provider, "model": setup.model.name}
        self._scope = scope
        self._hooks = host.Hooks(scope, clock=options.clock, grace_s=options.tool_limits.grace_s)
        self._context = Context(setup, scope, self._hooks)
        self._steps: list[host.FinishedStep] = []
        self._index = options.first_step - 1
        self._completed = 0
        self._failures = 0
        self._trying_since_s = options.clock.monotonic()
        self._thinking_state: SplitterState | None = None
        self._adopted = options.adopt
        self._stopped_at: datetime | None = None
        scope.on_cancel(self._note_stop)

    async def drive(self) -> host.TurnEnd:
        end: host.TurnEnd | None = None
        while end is None:
            end = await self._run_step()
        return end

    async def _run_step(self) -> host.TurnEnd | None:
        """Run one step; None if another follows."""
        self._index += 1
        step = Step(self._index, self._setup, self._find_end_time)
        with span("step", step=self._index) as traced:
            try:
                self._scope.check()
                if self._adopted is not None:
                    self._adopt(step, self._adopted)
                else:
                    step.call = await self._context.prepare_call()
                    if not await self._stream(step):
                        return None
                await self._run_tools(step)
                await let_cancellation_through(self._scope)
                self._scope.check()
                return await self._complete(step)
            except Exception as error:
                traced.fail(error)
                return self._end_cut(step, error)

    def _note_stop(self) -> None:
        self._stopped_at = self._options.clock.now()

    def _find_end_time(self) -> datetime:
        """When a step ended: at the stop, or now."""
        return self._stopped_at or self._options.clock.now()

    # --- ends ---

    async def _complete(self, step: Step) -> host.TurnEnd | None:
        """Complete a step: return the turn's end, or save the step if another follows."""
        self._completed += 1
        reason = step.decide_end(last_allowed=self._completed >= max(1, self._options.max_steps))
        record = replace(step.record(None), last=reason not in (None, "client_tools"), awaiting=step.awaiting)
        self._options.metrics.step_ended(self._setup.model.provider, self._setup.model.name)
        if reason is not None:
            self._scope.check()
            return self._end_complete(record, reason)
        await self._persist(step, record)
        self._context.used_tokens = 0 if record.usage is None else record.usage.total_tokens
        return None

    def _end_complete(self, record: host.FinishedStep, reason: host.TurnReason) -> host.TurnEnd:
        messages, steps = [*self._context.added, *record.messages()], [*self._steps, record]
        unsaved = record if record.blocks else None
        if reason == "client_tools":
            return host.TurnAwaitingClient(messages=messages, steps=steps, step=unsaved, calls=record.awaiting)
        return host.TurnCompleted(messages=messages, steps=steps, step=unsaved, reason=reason)

    def _end_cut(self, step: Step, error: Exception) -> host.TurnEnd:
        """The end of a turn that was cut short: the scope decides which one; the error, only if the scope is live."""
        if self._scope.cause is Cause.LEASE_LOST or isinstance(error, Lost):
            return host.TurnLeaseLost(error=error if isinstance(error, Lost) else self._scope.error())
        if isinstance(error, Shutdown) or self._scope.cause is Cause.SHUTDOWN:
            return host.TurnShutDown(messages=self._context.added, steps=self._steps)
        interrupted = isinstance(error, Interrupted) or self._scope.interrupted
        record = step.record("interrupted" if interrupted else "failed")
        if not interrupted and not record.blocks and step.latest_failed is not None:
            record = step.latest_failed
        unsaved = record if record.blocks and not step.closed else None
        messages: list[Message] = [*self._context.added, *(unsaved.messages() if unsaved is not None else ())]
        steps = [*self._steps, unsaved] if unsaved is not None else self._steps
        if interrupted:
            return host.TurnInterrupted(messages=messages, steps=steps, step=unsaved, tried=step.tried)
        return host.TurnFailed(messages=messages, steps=steps, step=unsaved, error=error)

    async def _persist(self, step: Step, record: host.FinishedStep) -> None:
        """Save a step that another follows. If a stop prevents the save, it becomes the end's unsaved step."""
        returned: Any = None
        step.closed = True
        if record.blocks:
            if self._scope.cause is Cause.LEASE_LOST:  # nothing is saved then, even if a stop came first
                raise self._scope.error()
            try:
                returned = await self._hooks.call_shielded(self._host.persist_step, record)
            except (Exception, asyncio.CancelledError) as error:
                if not self._scope.interrupted:
                    if not isinstance(error, Interrupted):
                        raise
                    self._scope.check()
                if isinstance(error, Lost):
                    raise
                step.closed, step.tried = False, True
                raise Interrupted from error
        returned = () if returned is None else returned
        if not isinstance(returned, Sequence) or not all(isinstance(message, Message) for message in returned):
            raise TypeError(f"persist_step returned {returned!r:.80}; it must return None or a list of messages.")
        self._steps.append(record)
        self._context.add([*record.messages(), *returned])
        self._scope.check()

    # --- attempts ---

    def _adopt(self, step: Step, parts: Sequence[Part]) -> None:
        """Continue a step that another worker read to its finish."""
        self._adopted = None
        step.call = Call(messages=[], options=self._options.call)
        step.number = step.attempts = 1
        step.attempt = AdoptedAttempt(parts)
        self._check_filter(step)

    def _check_filter(self, step: Step) -> None:
        if step.finish_reason == "content_filter" and not has_visible(step.assembler.blocks()):
            raise filtered(self._setup.model.provider)

    async def _stream(self, step: Step) -> bool:
        """Make attempts until one completes. False if a failed one was saved: the next step continues it."""
        while not step.closed:
            step.attempts += 1
            await self._hooks.call_shielded(self._host.open_attempt, step.index, step.attempts)
            self._scope.check()
            try:
                with span("attempt", attempt=step.attempts, **self._named):
                    await self._try(step)
            except ModelFailed as failure:
                await self._retry(step, failure)
            else:
                self._failures = 0
                self._thinking_state = None
                return True
        return False

    async def _try(self, step: Step) -> None:
        options, model = self._options, self._setup.model
        if self._failures == 0:
            self._trying_since_s = options.clock.monotonic()
        step.number = step.attempts
        step.attempt = attempt = Attempt(
            model,
            step.call,
            scope=self._scope,
            normalizer=Normalizer.of(model, clock=options.clock, thinking_state=self._thinking_state),
            publish=self._host.publish,
            limits=options.reply_limits,
            clock=options.clock,
        )
        await attempt.run()
        self._check_filter(step)
        if attempt.first_part_s is not None:
            options.metrics.first_part_received(model.provider, model.name, seconds=attempt.first_part_s)
            options.metrics.parts_received(model.provider, model.name, waits_s=attempt.waits_s)

    async def _retry(self, step: Step, failure: ModelFailed) -> None:
        """Prepare and announce the next attempt, and wait until it is due; or raise the failure if none is allowed."""
        options, model = self._options, self._setup.model
        self._failures += 1
        record = step.record("failed")
        if record.blocks:
            step.latest_failed = record
        elapsed_s = options.clock.monotonic() - self._trying_since_s
        delay_s = options.retry.decide_retry(
            failed_attempts=self._failures, elapsed_s=elapsed_s, failure=failure, chance=options.chance()
        )
        if failure.kind == "chain_broken" or options.retry.allows(self._failures, elapsed_s):
            mended = await self._context.mend_call(step.call, failure)
            if mended is not None:
                step.call = mended
                delay_s = 0.0 if failure.kind == "context_overflow" else delay_s
        self._scope.check()
        if delay_s is None:
            raise failure
        if options.keep_failed and has_visible(record.blocks):
            self._thinking_state = step.thinking_state
            await self._persist(step, replace(record, last=False))
        options.metrics.stream_retried(model.provider, model.name, kind=failure.kind, chain_broken=failure.chain_broken)
        event = announce_retry(failure, attempt=self._failures, delay_s=delay_s, now=options.clock.now())
        await self._hooks.call_shielded(self._host.schedule_retry, event)
        self._scope.check()
        if delay_s > 0:
            await self._hooks.call_cancellable(options.clock.sleep, delay_s)

    # --- tools ---

    async def _run_tools(self, step: Step) -> None:
        options, assembler = self._options, step.assembler
        calls = assembler.local_calls()
        if all(assembler.has_result(call) for call in calls) or step.finish_reason == "length":
            return
        self._scope.check()
        plans = self._plan_calls(step, calls)
        open_plans = [(at, plan) for at, plan in enumerate(plans) if not assembler.has_result(plan.call)]
        for _, plan in open_plans:
            if isinstance(plan, RejectCall):
                await self._reject(step, plan)
        step.awaiting = [plan.call for _, plan in open_plans if isinstance(plan, DeferToClient)]
        # Without a ledger, starts and results are published in turn, like other parts.
        has_ledger = getattr(self._host.record, "__func__", None) is not host.TurnHost.record
        keeps_files = getattr(self._host.keep_file, "__func__", None) is not host.TurnHost.keep_file
        runner = ToolRunner(
            turn_id=self._setup.turn_id,
            step=step.index,
            scope=self._scope,
            publish=lambda part: self._publish(step, part),
            record=(lambda part, call: self._record(step, part, call)) if has_ledger else None,
            limits=options.tool_limits,
            result_limit_bytes=limit_for(self._setup.context_limit),
            clock=options.clock,
            metrics=options.metrics,
            keep_file=self._host.keep_file if keeps_files else None,
            hide=options.hide_secrets,
        )
        await runner.run([(at, plan) for at, plan in open_plans if isinstance(plan, RunHere)])

    def _plan_calls(self, step: Step, calls: list[ToolCall]) -> list[ToolPlan]:
        """A plan for each call. Of those that another worker started, only the idempotent ones run again (P5).

        The outcome of any other such call is unknown, even if its tool no longer exists: a deploy may have removed it.
        """
        if step.finish_reason == "content_filter":
            text = UNANSWERED["content_filter"]
            return [RejectCall(call, answer_unrun(call, "content_filter", text)) for call in calls]
        plans = self._context.toolset.plan(calls, step.assembler.is_whole)
        return [
            _reject_lost(plan.call)
            if plan.call.started and not (isinstance(plan, RunHere) and plan.tool.idempotent)
            else plan
            for plan in plans
        ]

    async def _reject(self, step: Step, rejected: RejectCall) -> None:
        call, metrics = rejected.call, self._options.metrics
        name = self._context.toolset.label(call.name)
        size_bytes = len(rejected.result.output.encode())
        metrics.tool_ran(name, seconds=0.0, size_bytes=size_bytes, truncated=False, is_error=True)
        await self._publish(step, rejected.result)

    async def _publish(self, step: Step, part: Part) -> None:
        """Publish first, then collect: a saved step never holds more than was published."""
        await self._hooks.call_shielded(self._host.publish, part)
        step.assembler.add(part)

    async def _record(self, step: Step, part: ToolStarted | ToolResult, call: ToolCallRecord) -> None:
        """Record first, then collect."""
        await self._hooks.call_shielded(self._host.record, part, call)
        step.assembler.add(part)


def _reject_lost(call: ToolCall) -> RejectCall:
    """Another worker started this call, and nobody knows how it ended."""
    lost = lose_result(call)
    return RejectCall(call, replace(lost, output=append_progress(lost.output, call.progress)))
