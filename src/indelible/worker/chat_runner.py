"""Answering one chat: turn after turn, as long as this worker holds it.

The runner is the error boundary of a chat: an error in a turn ends the turn, visibly, and never leaves the chat running
without a worker. A turn has one end (loop/host.py), and only `_write_end` turns that end into a command: exactly one.
The scope names why a turn was cut short; nothing here infers the cause from an exception. After a lost lease nothing is
written: another worker holds the chat.

Must stay true (tests/worker/test_turns.py, tests/worker/test_stops.py): every turn that was started is ended, handed
over, or held by another worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from indelible.api.records import RunKind
from indelible.concurrency.scope import CancelScope, Cause
from indelible.errors import Interrupted, Lost, ModelFailed, NotFound, Shutdown
from indelible.logs import get_logger, log_context
from indelible.loop import host
from indelible.loop.options import TurnOptions
from indelible.loop.prompt.compact import add_sizes
from indelible.loop.run import run
from indelible.loop.step import save_end
from indelible.machine.effects import ReplyLimit
from indelible.machine.states import Status
from indelible.models.http.hooks import reading_pace
from indelible.models.retry import RetryPolicy
from indelible.store.queries.open_turn import Begun, Held, OpenWork
from indelible.tools.run import ToolLimits
from indelible.tools.tool import ToolTurn, tool_turn
from indelible.tools.toolset import AnyTool, name_of
from indelible.tracing import span
from indelible.worker import resume
from indelible.worker.dependencies import RunLog, WorkerDependencies
from indelible.worker.outages import Pulse
from indelible.worker.summaries import Compaction, TurnCompacted
from indelible.worker.turn_writer import OutOfStep, TurnWriter

_log: Final = get_logger(__name__)
_LIMITS: Final[dict[host.TurnReason, ReplyLimit]] = {
    "length": "length",
    "content_filter": "content_filter",
    "max_steps": "max_steps",
}
"""The ends of a turn that are reported to the user."""

BROKEN: Final = {
    "kind": "internal",
    "message": "Internal server error. The partial reply is saved. Retry, or see the server log.",
}


class ChatRunner:
    """Runs one chat under one lease. It calls `on_turn` with the turn's `OpenWork` before each reply.

    `begun` is what the worker got with the lease, for the first turn.
    """

    def __init__(
        self,
        deps: WorkerDependencies,
        worker_id: str,
        chat_id: str,
        epoch: int,
        worker_scope: CancelScope,
        *,
        pulse: Pulse,
        on_turn: Callable[[OpenWork], None],
        may_go_on: Callable[[], bool] = lambda: True,
        begun: Begun | None = None,
    ) -> None:
        self.chat_id = chat_id
        self.epoch = epoch
        self.ended_turns = 0
        self.is_ending = False  # the end of its turn is being written, or was
        self._pulse = pulse
        self._on_turn = on_turn
        self._deps = deps
        self._worker_id = worker_id
        self._worker_scope = worker_scope
        self._may_go_on = may_go_on
        self._begun = begun
        self._scope: CancelScope | None = None
        self._writer: TurnWriter | None = None
        self._turn_id: str | None = None
        self._noticed_s: float | None = None

    async def run(self) -> None:
        """Run turns until none is left, another worker holds the chat, or this worker may begin no further turn."""
        while not self._worker_scope.cancelled and (self._may_go_on() or not self.ended_turns):
            begun, self._begun = self._begun, None
            work = None if begun is None else begun.work
            if work is None:
                work = await self._deps.store.work(self.chat_id)
            if (work.epoch, work.holder) != (self.epoch, self._worker_id):
                return
            plan = resume.plan_turn(work)
            if isinstance(plan, resume.Idle):
                return
            ids = {"chat_id": self.chat_id, "user_id": work.owner_id, "turn_id": work.turn_id}
            tool_turn.set(ToolTurn(**ids, deps=self._deps.tool_deps))
            if isinstance(plan, resume.AskModel):
                self._on_turn(work)
            if await self._run_turn(work, plan, begun):
                return

    def has_progressed(self, *, in_tool: bool) -> bool:
        """Whether the turn has a new part or, if a tool was running when its last worker died, a new tool result."""
        return self.ended_turns > 0 or (self._writer is not None and self._writer.has_progressed(in_tool=in_tool))

    def notice(self, held: Held | None) -> None:
        """Receive the current state of this chat: whether it is still ours, and whether the user stopped it."""
        if self._scope is None or self._writer is None or self._writer.ended:
            return
        if held is None or held.epoch != self.epoch:
            self._scope.cancel(Cause.LEASE_LOST)
        elif held.turn_id == self._turn_id and held.status is Status.INTERRUPTING and not self._scope.cancelled:
            self._noticed_s = self._deps.clock.monotonic()
            self._scope.interrupt()

    async def _run_turn(self, work: OpenWork, plan: resume.Plan, begun: Begun | None) -> bool:
        """Run one turn. Returns whether its end left nothing more to do in the chat."""
        kind: RunKind = "compaction" if work.kind == "compaction" else "turn"
        with (
            log_context(turn=work.turn_id),
            CancelScope(self._worker_scope) as scope,
            self._deps.record(work, kind=kind, worker_id=self._worker_id) as log,
            span("turn", chat=self.chat_id, turn=work.turn_id, kind=kind, epoch=self.epoch) as traced,
        ):
            writer = TurnWriter(self._deps, work, scope, self._worker_scope, log, pulse=self._pulse, begun=begun)
            self._scope, self._writer, self._turn_id = scope, writer, work.turn_id
            self.is_ending = False
            _log.info("turn started")
            try:
                end = await self._drive(work, plan, writer, scope)
                is_cut = self._log_cut(end, log)
                end = await self._save(end, writer, scope)
                traced.set(end=type(end).__name__.removeprefix("Turn").lower())
                if not is_cut and not self._log_cut(end, log):
                    log.end("completed")
                self._conclude(end, writer)
            except NotFound as gone:  # the chat was deleted
                writer.unsaved = None
                self._conclude(host.TurnLeaseLost(error=gone), writer)
            except BaseException:
                # Cancelled, or the database unexpectedly refuses the write: the lease will expire.
                writer.drop()
                raise
            finally:
                self._scope = self._writer = None
        return writer.was_last

    async def _drive(self, work: OpenWork, plan: resume.Plan, writer: TurnWriter, scope: CancelScope) -> host.TurnEnd:
        """Execute the plan. Every outcome is returned as an end."""
        try:
            match plan:
                case resume.FinishStopped():
                    return host.TurnInterrupted()
                case resume.FinishAnswered():
                    return host.TurnCompleted(reason="stop")
                case resume.AskModel():
                    return await self._answer(work, plan, writer, scope)
                case _:
                    return await self._compact(work, writer, scope)
        except Interrupted:
            return host.TurnInterrupted()
        except Shutdown:
            return host.TurnShutDown()
        except Lost as lost:
            return host.TurnLeaseLost(error=lost)
        except Exception as error:
            return host.TurnFailed(error=error)

    async def _save(self, end: host.TurnEnd, writer: TurnWriter, scope: CancelScope) -> host.TurnEnd:
        """Save an end; returns the actual one. A shutdown that comes after it was saved changes nothing of it.

        A reply that cannot be saved as complete fails, with the output in the journal (R6).
        """
        saved: list[host.TurnEnd] = []

        async def save(end: host.TurnEnd) -> None:
            await self._write_end(writer, end)
            saved.append(end)

        try:
            actual = await save_end(end, save, scope=scope, host=writer)
            return saved[-1] if saved and isinstance(actual, host.TurnShutDown) else actual
        except (Lost, NotFound):
            raise
        except Exception as error:
            if not isinstance(end, host.TurnCompleted | host.TurnAwaitingClient | TurnCompacted):
                raise
            return await save_end(host.TurnFailed(error=error), save, scope=scope, host=writer)

    async def _write_end(self, writer: TurnWriter, end: host.TurnEnd) -> None:
        """One end, one command. A step committed during a stop has already ended the turn."""
        if writer.ended:
            return
        self.is_ending = True
        match end:
            case host.TurnCompleted():
                await writer.finish(end.step, limit=_LIMITS.get(end.reason))
            case TurnCompacted():
                await writer.finish_compaction(end.summary)
            case host.TurnAwaitingClient():
                assert end.step is not None
                await writer.await_client(end.step)
            case host.TurnInterrupted():
                await writer.end_stopped(end.step)
            case host.TurnShutDown():
                await writer.hand_over()
            case host.TurnFailed(error=ModelFailed() as failure):
                await writer.fail(describe_failure(failure))
            case host.TurnFailed(error=NotFound() as gone):
                raise gone
            case host.TurnFailed(error=OutOfStep()):
                writer.drop()
            case host.TurnFailed():
                await writer.fail(BROKEN)
            case _:
                raise AssertionError(f"a turn cannot end with {end!r}")

    def _log_cut(self, end: host.TurnEnd, log: RunLog) -> bool:
        """Record for debugging how the run was interrupted; False if it was not."""
        match end:
            case host.TurnInterrupted():
                log.end("interrupted")
            case host.TurnShutDown():
                log.end("interrupted", "The worker was shut down; another worker continues.")
            case host.TurnFailed(error=ModelFailed() as failure):
                log.end("error", failure.message)
            case host.TurnFailed(error=NotFound()) | host.TurnLeaseLost():
                log.end("interrupted", "Another worker acquired the chat, or it was deleted.")
            case host.TurnFailed(error=OutOfStep()):
                log.end("interrupted", "The turn was restarted from the database.")
            case host.TurnFailed(error=error):
                _log.error("the turn failed: an error in the server", exc_info=error)
                log.end("error", BROKEN["message"])
            case _:
                return False
        return True

    def _conclude(self, end: host.TurnEnd, writer: TurnWriter) -> None:
        """After the end is written: count it."""
        if writer.unsaved is not None:
            raise writer.unsaved
        metrics, has_ended = self._deps.metrics, writer.ended
        if isinstance(end, host.TurnLeaseLost):
            if not has_ended:  # this worker may have just released it
                metrics.stale_write_refused()
            writer.drop()
        elif isinstance(end, host.TurnInterrupted):
            if self._noticed_s is not None:
                metrics.stop_ended(seconds=self._deps.clock.monotonic() - self._noticed_s)
            self._noticed_s = None
        is_handed_over = isinstance(end, host.TurnShutDown)
        is_out_of_step = isinstance(end, host.TurnFailed) and isinstance(end.error, OutOfStep)
        if has_ended and not is_handed_over and not is_out_of_step:
            self.ended_turns += 1
            _log.info("turn ended")

    # --- what to do ---

    async def _answer(
        self, work: OpenWork, plan: resume.AskModel, writer: TurnWriter, scope: CancelScope
    ) -> host.TurnEnd:
        deps, settings = self._deps, self._deps.settings
        writer.model = model = deps.find_model(work.model)
        reading_pace.set(writer.wait_for_row)
        history, call = resume.plan_call(work, model, self._deps.settings.system)
        limits = deps.limit_reply(model)
        options = TurnOptions(
            call=call,
            client_tools=self._list_client_tools(work),
            max_steps=settings.max_steps - work.completed_steps,
            tool_limits=ToolLimits(
                concurrency=settings.tool_concurrency, timeout_s=settings.tool_timeout_s, grace_s=settings.tool_grace_s
            ),
            retry=read_retry_policy(deps),
            chance=deps.chance,
            keep_failed=True,
            silence_timeout_s=limits.silence_timeout_s,
            keep_alive_timeout_s=limits.keep_alive_timeout_s,
            reply_max_characters=limits.max_characters,
            compact_at=settings.compact_at,
            used_tokens=resume.count_used(work),
            turn_id=work.turn_id,
            first_step=plan.first_step,
            adopt=plan.adopted,
            clock=deps.clock,
            metrics=deps.metrics,
            hide_secrets=deps.hide_secrets,
        )
        return await run(model, history, writer, deps.tools, options, scope=scope)

    def _list_client_tools(self, work: OpenWork) -> list[AnyTool]:
        """The client tools of the chat and, of other names, those of this process.

        The service refuses a chat's tool that has the name of one that the server runs, but only a worker knows all of
        these. One of the two would be replaced, and nobody would see which: the turn fails instead.
        """
        own, declared = set(map(name_of, self._deps.tools)), {tool.name for tool in work.tools}
        if both := sorted(own & declared):
            raise ModelFailed(
                f"The server and this chat both have a tool named {both[0]!r}. Rename or remove the chat's.",
                kind="config",
            )
        return [*(tool for tool in self._deps.client_tools if name_of(tool) not in declared), *work.tools]

    async def _compact(self, work: OpenWork, writer: TurnWriter, scope: CancelScope) -> host.TurnEnd:
        model = self._deps.find_model(work.model)
        compaction = Compaction(self._deps, model, writer, scope, read_retry_policy(self._deps))
        history = resume.build_history(work, self._deps.settings.system)
        summary = await compaction.make(history)
        sized = None if summary is None else add_sizes(summary, history, used_tokens=resume.count_used(work))
        return TurnCompacted(summary=sized)


def describe_failure(failure: ModelFailed) -> dict[str, Any]:
    """The error as stored on the chat and shown to the user."""
    fields = {"kind": failure.kind, "message": failure.message, "provider": failure.provider}
    return {**fields, "status": failure.status, "detail": failure.detail}


def read_retry_policy(deps: WorkerDependencies) -> RetryPolicy:
    settings = deps.settings
    return RetryPolicy(
        base_s=settings.retry_base_s,
        max_delay_s=settings.retry_max_delay_s,
        retry_after_cap_s=settings.retry_after_cap_s,
        max_attempts=settings.retry_max_attempts,
        budget_s=settings.retry_budget_s,
    )
