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

from indelible.content import Message, Text
from indelible.errors import Interrupted, Lost, ModelFailed, NotFound, Shutdown
from indelible.loop.chain import plan_chain
from indelible.loop.prompt import is_summary
from indelible.loop.run import run
from indelible.machine.states import Status
from indelible.models.port import CallOptions, Model
from indelible.models.retry import RetryPolicy
from indelible.scope import Scope
from indelible.store.port import Words
from indelible.store.tables import RunKind
from indelible.store.work import Held, OpenWork
from indelible.tools.run import ToolLimits
from indelible.worker.compaction import Compaction
from indelible.worker.recover import Answer, EndAnswered, EndStopped, LetGo, Plan, plan_turn
from indelible.worker.scribe import OutOfStep, Scribe
from indelible.worker.setup import RunRecord, WorkerSetup

_log: Final = logging.getLogger(__name__)
BROKEN: Final = {
    "kind": "internal",
    "message": "Something went wrong in the server itself. What was said is kept. Try again; its log says more.",
}
_NOTHING_TO_SHORTEN: Final = "There is nothing yet that could be summarised."


class Runner:
    """One chat under one lease. `finished` holds the turns that came to their end here."""

    def __init__(self, setup: WorkerSetup, worker_id: str, chat_id: str, epoch: int, worker_scope: Scope) -> None:
        self.chat_id = chat_id
        self.epoch = epoch
        self.finished: list[OpenWork] = []
        self._setup = setup
        self._worker_id = worker_id
        self._worker_scope = worker_scope
        self._scope: Scope | None = None
        self._scribe: Scribe | None = None
        self._turn_id: str | None = None
        self._noticed_s: float | None = None

    async def run(self) -> None:
        """Answer until there is nothing left to answer, or the chat is not ours any more."""
        while not self._worker_scope.cancelled:
            work = await self._setup.store.work(self.chat_id)
            if (work.epoch, work.holder) != (self.epoch, self._worker_id):
                return
            plan = plan_turn(work)
            if isinstance(plan, LetGo):
                return
            await self._run_turn(work, plan)

    def notice(self, held: Held | None) -> None:
        """What the database says about this chat now: that it is still ours, that it is to be stopped."""
        if self._scope is None or self._scribe is None or self._scribe.ended:
            return
        if held is None or held.epoch != self.epoch:
            self._scope.lose_lease()
        elif held.turn_id == self._turn_id and held.status is Status.INTERRUPTING and not self._scope.cancelled:
            self._noticed_s = self._setup.clock.monotonic()
            self._scope.interrupt()

    async def _run_turn(self, work: OpenWork, plan: Plan) -> None:
        kind: RunKind = "compaction" if work.kind == "compaction" else "turn"
        with (
            Scope(self._worker_scope) as scope,
            self._setup.record(work, kind=kind, worker_id=self._worker_id) as record,
        ):
            scribe = Scribe(self._setup, work, scope, self._worker_scope, record)
            self._scope, self._scribe, self._turn_id = scope, scribe, work.turn_id
            try:
                if await self._go_on(work, plan, scribe, scope, record):
                    self.finished.append(work)
            except OutOfStep:
                scribe.drop()
            except BaseException:
                # Cancelled, or the database refuses what no database should: the lease will run out.
                scribe.drop()
                raise
            finally:
                self._scope = self._scribe = None

    async def _go_on(self, work: OpenWork, plan: Plan, scribe: Scribe, scope: Scope, record: RunRecord) -> bool:
        """Whether the turn came to an end here; else another worker goes on with it."""
        try:
            await self._carry_out(work, plan, scribe, scope)
            if not scribe.ended:
                await scribe.finish()
            record.end("completed")
        except Interrupted:
            record.end("interrupted")
            if not scribe.ended:
                await scribe.end_stopped()
            self._tell_stopped()
        except Shutdown:
            record.end("interrupted", "The worker was shut down; another goes on.")
            if not scribe.ended:
                await scribe.hand_over()
            return False
        except (Lost, NotFound):  # another worker has it, or it was deleted
            if self._setup.metrics is not None and not scribe.ended:  # we may have let go of it ourselves just now
                self._setup.metrics.stale_write_refused()
            record.end("interrupted", "The chat was taken by another worker, or deleted.")
            has_ended = scribe.ended
            scribe.drop()
            return has_ended
        except ModelFailed as failure:
            record.end("error", failure.message)
            await self._fail(scribe, describe_failure(failure))
        except OutOfStep:
            raise
        except Exception:
            _log.exception("the turn %s of %s broke", work.turn_id, self.chat_id)
            record.end("error", BROKEN["message"])
            await self._fail(scribe, BROKEN)
        return True

    async def _fail(self, scribe: Scribe, error: dict[str, Any]) -> None:
        if scribe.ended:
            return
        try:
            await scribe.fail(error)
        except (Lost, NotFound):
            scribe.drop()

    def _tell_stopped(self) -> None:
        if self._noticed_s is not None and self._setup.metrics is not None:
            self._setup.metrics.stop_ended(seconds=self._setup.clock.monotonic() - self._noticed_s)
        self._noticed_s = None

    # --- what there is to do ---

    async def _carry_out(self, work: OpenWork, plan: Plan, scribe: Scribe, scope: Scope) -> None:
        if isinstance(plan, EndStopped):
            await scribe.end_stopped()
        elif isinstance(plan, EndAnswered):
            await scribe.finish()
        elif isinstance(plan, Answer):
            await self._answer(work, plan, scribe, scope)
        else:
            await self._summarise(work, scribe, scope)

    async def _answer(self, work: OpenWork, plan: Answer, scribe: Scribe, scope: Scope) -> None:
        setup, settings = self._setup, self._setup.settings
        scribe.model = model = setup.find_model(work.model)
        history, options = plan_call(work, model)
        await run(
            model=model,
            messages=history,
            persist_step=scribe.persist,
            tools=setup.tools,
            client_tools=setup.client_tools,
            max_steps=settings.max_steps - work.completed_steps,
            scope=scope,
            publish=scribe.publish,
            ledger=scribe,
            options=options,
            reload_messages=self._reload,
            disable_chain_mode=scribe.forget_responses,
            on_compacted=scribe.keep_summary,
            on_attempt=scribe.open_attempt,
            keep_failed=True,
            on_retry=scribe.announce_retry,
            retry=read_retry_policy(setup),
            silence_timeout_s=settings.silence_timeout_s,
            tool_limits=ToolLimits(
                concurrency=settings.tool_concurrency, timeout_s=settings.tool_timeout_s, grace_s=settings.tool_grace_s
            ),
            clock=setup.clock,
            chance=setup.chance,
            metrics=setup.metrics,
            turn_id=work.turn_id,
            first_step=plan.first_step,
            adopt=plan.adopted,
            compact_at=settings.compact_at,
            used_tokens=count_used(work),
        )

    async def _reload(self) -> list[Message]:
        return build_history(await self._setup.store.work(self.chat_id))

    async def _summarise(self, work: OpenWork, scribe: Scribe, scope: Scope) -> None:
        model = self._setup.find_model(work.model)
        compaction = Compaction(self._setup, model, scribe, scope, read_retry_policy(self._setup))
        summary = await compaction.make(build_history(work))
        await scribe.finish(Words(summary=summary, notice=None if summary is not None else _NOTHING_TO_SHORTEN))


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


def read_retry_policy(setup: WorkerSetup) -> RetryPolicy:
    settings = setup.settings
    return RetryPolicy(
        base_s=settings.retry_base_s,
        max_delay_s=settings.retry_max_delay_s,
        retry_after_cap_s=settings.retry_after_cap_s,
        max_attempts=settings.retry_max_attempts,
        budget_s=settings.retry_budget_s,
    )
