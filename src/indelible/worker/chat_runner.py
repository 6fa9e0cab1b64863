"""Answering one chat: turn after turn, as long as this worker holds it.

The runner is the one boundary of the worker's work: whatever goes wrong in a turn ends it, loudly, and never
leaves the chat running with nobody at it. How a turn ends is chosen once, here, by what the loop raised; the loop
in turn asked the scope. A lost lease ends it without a word: the chat is another worker's.

Must stay true (tests/worker/test_turns.py, tests/worker/test_stops.py): every turn that was begun has its end, is
handed over, or is somebody else's.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any, Final

from msgspec.structs import replace

from indelible.concurrency.scope import CancelScope, Cause
from indelible.content import Message, Text
from indelible.errors import Interrupted, Lost, ModelFailed, NotFound, Shutdown
from indelible.logs import log_context
from indelible.loop.prompt.build import is_summary
from indelible.loop.prompt.response_chain import plan_chain
from indelible.loop.run import run
from indelible.machine.states import Status
from indelible.models.protocol import CallOptions, Model
from indelible.models.retry import RetryPolicy
from indelible.store.database.tables import RunKind
from indelible.store.payloads import CompactionResult
from indelible.store.queries.open_turn import Held, OpenWork
from indelible.tools.run import ToolLimits
from indelible.tools.tool import ToolTurn, tool_turn
from indelible.worker.compaction import Compaction
from indelible.worker.dependencies import RunLog, WorkerDependencies
from indelible.worker.resume import AskModel, FinishAnswered, FinishStopped, Idle, Plan, plan_turn
from indelible.worker.turn_writer import OutOfStep, TurnWriter

_log: Final = logging.getLogger(__name__)
BROKEN: Final = {
    "kind": "internal",
    "message": "Something went wrong in the server itself. What was said is kept. Try again; its log says more.",
}
_NOTHING_TO_SHORTEN: Final = "There is nothing yet that could be summarised."


class ChatRunner:
    """One chat under one lease. `finished` holds the turns that came to their end here."""

    def __init__(
        self, deps: WorkerDependencies, worker_id: str, chat_id: str, epoch: int, worker_scope: CancelScope
    ) -> None:
        self.chat_id = chat_id
        self.epoch = epoch
        self.finished: list[OpenWork] = []
        self._deps = deps
        self._worker_id = worker_id
        self._worker_scope = worker_scope
        self._scope: CancelScope | None = None
        self._scribe: TurnWriter | None = None
        self._turn_id: str | None = None
        self._noticed_s: float | None = None

    async def run(self) -> None:
        """Answer until there is nothing left to answer, or the chat is not ours any more."""
        while not self._worker_scope.cancelled:
            work = await self._deps.store.work(self.chat_id)
            if (work.epoch, work.holder) != (self.epoch, self._worker_id):
                return
            plan = plan_turn(work)
            if isinstance(plan, Idle):
                return
            ids = {"chat_id": self.chat_id, "user_id": work.owner_id, "turn_id": work.turn_id}
            tool_turn.set(ToolTurn(**ids, deps=self._deps.tool_deps))
            await self._run_turn(work, plan)

    def notice(self, held: Held | None) -> None:
        """What the database says about this chat now: that it is still ours, that it is to be stopped."""
        if self._scope is None or self._scribe is None or self._scribe.ended:
            return
        if held is None or held.epoch != self.epoch:
            self._scope.cancel(Cause.LEASE_LOST)
        elif held.turn_id == self._turn_id and held.status is Status.INTERRUPTING and not self._scope.cancelled:
            self._noticed_s = self._deps.clock.monotonic()
            self._scope.interrupt()

    async def _run_turn(self, work: OpenWork, plan: Plan) -> None:
        kind: RunKind = "compaction" if work.kind == "compaction" else "turn"
        with (
            log_context(turn=work.turn_id),
            CancelScope(self._worker_scope) as scope,
            self._deps.record(work, kind=kind, worker_id=self._worker_id) as record,
        ):
            writer_ = TurnWriter(self._deps, work, scope, self._worker_scope, record)
            self._scope, self._scribe, self._turn_id = scope, writer_, work.turn_id
            _log.info("turn started")
            try:
                if await self._go_on(work, plan, writer_, scope, record):
                    self.finished.append(work)
                    _log.info("turn ended")
            except OutOfStep:
                writer_.drop()
            except BaseException:
                # Cancelled, or the database refuses what no database should: the lease will run out.
                writer_.drop()
                raise
            finally:
                self._scope = self._scribe = None

    async def _go_on(self, work: OpenWork, plan: Plan, writer_: TurnWriter, scope: CancelScope, record: RunLog) -> bool:
        """Whether the turn came to an end here; else another worker goes on with it."""
        try:
            await self._carry_out(work, plan, writer_, scope)
            if not writer_.ended:
                await writer_.finish()
            record.end("completed")
        except Interrupted:
            record.end("interrupted")
            if not writer_.ended:
                await writer_.end_stopped()
            self._tell_stopped()
        except Shutdown:
            record.end("interrupted", "The worker was shut down; another goes on.")
            if not writer_.ended:
                await writer_.hand_over()
            return False
        except (Lost, NotFound):  # another worker has it, or it was deleted
            if not writer_.ended:  # we may have let go of it ourselves just now
                self._deps.metrics.stale_write_refused()
            record.end("interrupted", "The chat was taken by another worker, or deleted.")
            has_ended = writer_.ended
            writer_.drop()
            return has_ended
        except ModelFailed as failure:
            record.end("error", failure.message)
            await self._fail(writer_, describe_failure(failure))
        except OutOfStep:
            raise
        except Exception:
            _log.exception("the turn failed: an error in the server")
            record.end("error", BROKEN["message"])
            await self._fail(writer_, BROKEN)
        return True

    async def _fail(self, writer_: TurnWriter, error: dict[str, Any]) -> None:
        if writer_.ended:
            return
        try:
            await writer_.fail(error)
        except (Lost, NotFound):
            writer_.drop()

    def _tell_stopped(self) -> None:
        if self._noticed_s is not None:
            self._deps.metrics.stop_ended(seconds=self._deps.clock.monotonic() - self._noticed_s)
        self._noticed_s = None

    # --- what there is to do ---

    async def _carry_out(self, work: OpenWork, plan: Plan, writer_: TurnWriter, scope: CancelScope) -> None:
        if isinstance(plan, FinishStopped):
            await writer_.end_stopped()
        elif isinstance(plan, FinishAnswered):
            await writer_.finish()
        elif isinstance(plan, AskModel):
            await self._answer(work, plan, writer_, scope)
        else:
            await self._summarise(work, writer_, scope)

    async def _answer(self, work: OpenWork, plan: AskModel, writer_: TurnWriter, scope: CancelScope) -> None:
        deps, settings = self._deps, self._deps.settings
        writer_.model = model = deps.find_model(work.model)
        history, options = plan_call(work, model)
        await run(
            model=model,
            messages=history,
            persist_step=writer_.persist,
            tools=deps.tools,
            client_tools=deps.client_tools,
            max_steps=settings.max_steps - work.completed_steps,
            scope=scope,
            publish=writer_.publish,
            ledger=writer_,
            options=options,
            reload_messages=self._reload,
            disable_chain_mode=writer_.forget_responses,
            on_compacted=writer_.keep_summary,
            on_attempt=writer_.open_attempt,
            keep_failed=True,
            on_retry=writer_.announce_retry,
            retry=read_retry_policy(deps),
            silence_timeout_s=settings.silence_timeout_s,
            tool_limits=ToolLimits(
                concurrency=settings.tool_concurrency, timeout_s=settings.tool_timeout_s, grace_s=settings.tool_grace_s
            ),
            clock=deps.clock,
            chance=deps.chance,
            metrics=deps.metrics,
            turn_id=work.turn_id,
            first_step=plan.first_step,
            adopt=plan.adopted,
            compact_at=settings.compact_at,
            used_tokens=count_used(work),
        )

    async def _reload(self) -> list[Message]:
        return build_history(await self._deps.store.work(self.chat_id))

    async def _summarise(self, work: OpenWork, writer_: TurnWriter, scope: CancelScope) -> None:
        model = self._deps.find_model(work.model)
        compaction = Compaction(self._deps, model, writer_, scope, read_retry_policy(self._deps))
        summary = await compaction.make(build_history(work))
        notice = None if summary is not None else _NOTHING_TO_SHORTEN
        await writer_.finish(CompactionResult(summary=summary, notice=notice))


def build_history(work: OpenWork) -> list[Message]:
    """What was said, with the chat's own instructions before it."""
    if not work.system_prompt:
        return work.messages
    return [Message(role="system", blocks=[Text(work.system_prompt)]), *work.messages]


def plan_call(work: OpenWork, model: Model) -> tuple[list[Message], CallOptions]:
    """What to send, and how. In chain mode the provider remembers what it can, and is sent what is new (SPEC §4)."""
    history, options = build_history(work), CallOptions(parameters=work.parameters)
    if not getattr(model, "chains", False):
        return history, options
    plan = plan_chain(history, model=model, options=replace(options, store=True))
    return plan.messages, plan.options


def count_used(work: OpenWork) -> int:
    """How much of the window the conversation took last; nothing is known of it once it was summarised since."""
    since_reply = itertools.takewhile(lambda message: message.role != "assistant", reversed(work.messages))
    if work.usage is None or any(is_summary(message) for message in since_reply):
        return 0
    return work.usage.total_tokens


def describe_failure(failure: ModelFailed) -> dict[str, Any]:
    """What stands at the chat, fit for the user."""
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
