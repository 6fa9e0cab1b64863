"""Holding chats: one row with one heartbeat, and a task for each chat that is being answered.

A worker acts on a hint ("chat X changed") by reading chat X. One statement answers: does this worker hold the chat, and
is the user stopping it? Or is the chat runnable and free? A hint is never trusted, and may be lost, so every half
second the worker polls: it reads all chats that it holds, and acquires chats without a live holder, the oldest first
(R10).

A worker that was frozen reads all its chats before it publishes another part (outages.py).

Hints must not let new chats overtake old ones. While the last poll may have left a chat waiting and there is room for
it, a hint causes a poll instead, and so does the end of a turn, if it makes room. Two workers that receive the same
hint both try, and the lock decides (R2).

Whoever accepts a message in this process may reserve a place for its turn (`reserve`, places.py). The chat is then
acquired in the transaction of the message, without a hint, and `_fill` starts its runner.

A turn that has lost a worker before may kill this one too. So the worker takes such turns over one at a time
(`_trial`): it takes the next one when the current one has proved harmless, by a new part or, if its tool was running,
by a tool result (S96).

Shutting down is not stopping. The worker acquires no further chat, lets running turns end for `drain_s`, flushes the
parts of the others, releases its chats, and another worker continues. A worker that cannot reach the database keeps
trying. If that takes too long, other workers acquire its chats, and the store refuses every write with the old epoch.

Must stay true (tests/worker/test_worker.py, tests/faults/test_takeover.py): no chat is answered by two workers; after
`run` has returned, the worker holds no chat; it releases a chat that it holds but does not work on; a hint costs one
statement, is acted on at once after a quiet time, and never starves a waiting chat (tests/worker/test_hints.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from indelible.concurrency.scope import CancelScope
from indelible.errors import Lost, ModelFailed, NotFound, Refused, Shutdown, StoreFailed, TestBroken
from indelible.ids import new_id
from indelible.logs import get_logger, log_context
from indelible.machine.commands import ActionExpired, Fail, Release
from indelible.machine.states import Status
from indelible.notify import Notifier, Subscription
from indelible.store.payloads import AttemptStart, Failure
from indelible.store.queries.open_turn import Begun, Held, OpenWork
from indelible.tools.toolset import name_of
from indelible.worker.chat_runner import BROKEN, ChatRunner
from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.outages import Pulse
from indelible.worker.places import KeptPlace, KnownModels, Places, plan_start, settle
from indelible.worker.presence import Presence
from indelible.worker.summaries import Titles
from indelible.worker.upkeep import ListUpkeep

T = TypeVar("T")
_log: Final = get_logger(__name__)
_ACQUIRED_AT_ONCE: Final = 32
"""The worker acquires chats in groups of this size, and checks its own chats for stops in between."""

_HINTED_AT_ONCE: Final = 100
"""More hinted chats than this cause a poll, which is then cheaper."""

_SHORTEST_PAUSE_S: Final = 0.005
_SEARCHES_IN_A_ROW: Final = 8
"""The worker looks for work this often without a pause, after a quiet time. Then it pauses after each look, so that the
hints of a busy time are read together."""

_HAND_OVER_S: Final = 10.0
_CLEAN_UP_EVERY_S: Final = 60.0
_FORGET_DEAD_AFTER_S: Final = 24 * 3600.0
_EXPIRED_AT_A_TIME: Final = 100
_LONGEST_TRIAL_S: Final = 30.0


class SearchPace:
    """When the worker may look for work again: at once, unless it has looked too often in the last moments."""

    def __init__(self) -> None:
        self._left: float = _SEARCHES_IN_A_ROW
        self._counted_s = 0.0

    def count(self, now_s: float) -> float:
        """Count a look; returns the pause before the next one."""
        rested = (now_s - self._counted_s) / _SHORTEST_PAUSE_S
        self._left = min(self._left + rested, _SEARCHES_IN_A_ROW) - 1
        self._counted_s = now_s
        return max(0.0, 1 - self._left) * _SHORTEST_PAUSE_S


class Trial(NamedTuple):
    """A turn that has lost a worker before, and whether its tool was running."""

    runner: ChatRunner
    in_tool: bool
    since_s: float


class Worker:
    """See the module header. `run` works until `stop` is called; `ready` is set when it has begun."""

    def __init__(self, deps: WorkerDependencies, notifier: Notifier) -> None:
        self.id: Final = new_id("worker")
        self.ready = asyncio.Event()
        self._models = KnownModels(deps.find_model)
        self._deps = replace(deps, find_model=self._models.find)
        self._tools = frozenset(map(name_of, deps.tools))
        self._notifier = notifier
        self._scope = CancelScope()
        self._runners: dict[tuple[str, int], ChatRunner] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._titles = Titles(self._deps, self._scope, worker_id=self.id, may_begin=lambda: not self._stopping)
        self._broken: set[tuple[str, int]] = set()
        self._trial: Trial | None = None
        self._stopping = False
        self._drain_until_s = 0.0
        self._woken = asyncio.Event()
        self._pulse = Pulse(deps.clock, interval_s=deps.settings.heartbeat_interval_s, on_doubt=self._woken.set)
        self._hinted: set[str] = set()
        # Free chats that one of our runners has lost but is still finishing. The runner's last write may lock the chat,
        # and acquiring skips locked chats, so the hint would be lost. It is repeated when the runner has ended.
        self._leaving: set[str] = set()
        self._must_poll = True
        self._has_backlog = True  # whether the last poll may have left a chat waiting
        self._has_users_at_limit = False  # whether a chat was ever held back because its user has too many
        self._claimed = 0  # how many chats the search that is under way may acquire
        self._group: asyncio.TaskGroup | None = None  # while chats may be taken
        self._context = contextvars.copy_context()  # what a program has set is there for its tools
        self._places = Places(
            self.id,
            plan=self._plan_start,
            per_user=deps.settings.user_max_chats,
            on_filled=self._fill,
            on_freed=self._note_end,
            on_doubt=self._find_out,
        )
        self._idle = asyncio.Event()
        self._idle.set()

    def stop(self) -> None:
        """Claim no more chats, let running replies end for `drain_s`, hand over the others, and end.

        Only the first call counts.
        """
        if not self._stopping:
            self._drain_until_s = self._deps.clock.monotonic() + self._deps.settings.drain_s
            self._stopping = True
            self._woken.set()

    async def run(self) -> None:
        await self._deps.store.beat(self.id)
        with contextlib.suppress(ModelFailed):
            self._models.find(None)
        with self._notifier.subscribe() as changes:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(self._make_presence().run(), name="being there"),
                    group.create_task(self._listen(changes), name="listening for changes"),
                    group.create_task(self._clean_up(), name="cleaning up"),
                    group.create_task(self._deps.journal.run(), name="writing the journal"),
                ]
                self._group = group
                self.ready.set()
                try:
                    with self._pulse.beating():
                        await self._find_work(group)
                        await self._hand_over()
                finally:
                    self._group = None
                for service in services:
                    service.cancel()
        await self._leave()

    # --- turns that begin in this process ---

    def reserve(self, chat_id: str, owner_id: str) -> KeptPlace | None:
        """Keep a place for a turn that a command may begin now.

        None if another chat may be waiting for it, or a runner of this one is still at work: a hint finds it. One that
        is writing the end of its turn does not count: readers see that end first, and the locked row decides.
        """
        if self._group is None or self._stopping or self._has_backlog or self._pulse.is_doubtful or self._is_trying():
            return None
        if self._count_free() <= self._claimed + len(self._hinted) or chat_id in self._places:
            return None
        if any(chat_id == running and not runner.is_ending for (running, _), runner in self._runners.items()):
            return None
        self._idle.clear()
        return self._places.reserve(chat_id, owner_id)

    def _plan_start(self, work: OpenWork) -> AttemptStart | None:
        try:
            return plan_start(work, self._models.by_name, tools=self._tools, compact_at=self._deps.settings.compact_at)
        except Exception:  # it must not fail the message, and the runner meets it again
            _log.exception("the first attempt of %s cannot be planned", work.chat_id)
            return None

    def _fill(self, chat_id: str, begun: Begun) -> None:
        """The chat is ours since its message was committed. A worker that is leaving releases it."""
        if self._group is None:
            return  # too late: the lease ends with this worker
        if self._stopping:
            held = Held(chat_id, Status.RUNNING, begun.epoch, begun.turn_id)
            release = self._survive(partial(self._release, held), what="releasing a chat")
            self._group.create_task(release, name=f"releasing {chat_id}")
            self._note_end()
        elif (chat_id, begun.epoch) not in self._runners:
            self._start(self._group, chat_id, begun.epoch, begun)

    def _find_out(self, place: KeptPlace) -> None:
        """Nobody knows whether the transaction with this place was committed."""
        if self._group is None:
            place.give_back()
        else:
            read = partial(settle, place, self._deps, is_leaving=lambda: self._stopping)
            settling = self._survive(read, what="reading a chat whose commit was not answered")
            self._group.create_task(settling, name=f"reading {place.chat_id}")

    def _note_end(self) -> None:
        """A place or a runner is gone."""
        if self._has_backlog or self._has_users_at_limit:
            self._must_poll = True  # there is room for one more, of this worker or of this user
            self._woken.set()
        if not self._runners and not self._places:
            self._idle.set()
            self._woken.set()

    # --- finding work ---

    async def _find_work(self, group: asyncio.TaskGroup) -> None:
        """Act on hints, and poll when that is due, until the worker is stopped and has drained."""
        settings, clock = self._deps.settings, self._deps.clock
        polled_s = beaten_s = clock.monotonic()
        pace = SearchPace()
        while not self._stopping or self._is_draining():
            self._woken.clear()
            now_s = clock.monotonic()
            is_beat = now_s - beaten_s >= settings.heartbeat_interval_s
            beaten_s = now_s if is_beat else beaten_s
            more = False
            if self._is_poll_due(now_s - polled_s):
                polled_s = now_s
                more = bool(await self._survive(partial(self._poll, group), what="polling for work"))
            elif self._hinted:
                await self._survive(partial(self._probe, group), what="reading chats that changed")
            if is_beat:
                await self._survive(self._release_orphans, what="releasing chats")
                await self._survive(self._end_waits, what="ending waits for results")
            if more:
                self._must_poll = True
                continue
            pause_s = pace.count(clock.monotonic())
            if pause_s > 0:
                await clock.sleep(pause_s)
            wait_s = polled_s + settings.poll_interval_s - clock.monotonic()
            wait_s = min(wait_s, self._drain_until_s - clock.monotonic()) if self._stopping else wait_s
            timer = clock.call_later(max(0.0, wait_s), self._woken.set)
            try:
                await self._woken.wait()
            finally:
                timer.cancel()

    def _is_draining(self) -> bool:
        return bool(self._runners or self._places) and self._deps.clock.monotonic() < self._drain_until_s

    def _is_poll_due(self, since_s: float) -> bool:
        """Whether the interval is over, or acting on hints alone would be unfair to a waiting chat or cost more."""
        is_unfair = self._has_backlog and self._count_room() > 0
        must_poll = self._must_poll or (bool(self._hinted) and (is_unfair or len(self._hinted) > _HINTED_AT_ONCE))
        return must_poll or self._pulse.is_doubtful or since_s >= self._deps.settings.poll_interval_s

    async def _poll(self, group: asyncio.TaskGroup) -> bool:
        """Read our chats and acquire waiting ones; returns whether there may be more to acquire at once."""
        self._must_poll = False
        self._hinted.clear()
        self._claimed = _ACQUIRED_AT_ONCE
        known, doubts = dict(self._runners), self._pulse.doubts
        try:
            if known:
                self._notify_runners(known, await self._deps.store.held(self.id))
            self._pulse.confirm(doubts)
            limit = self._count_room()
            acquired = await self._acquire(group, limit) if limit > 0 else 0
        except BaseException:
            self._has_backlog = True
            raise
        finally:
            self._claimed = 0
        self._has_backlog = acquired >= limit
        return self._has_backlog and limit > 0

    async def _probe(self, group: asyncio.TaskGroup) -> None:
        """Read the hinted chats and acquire the free ones. If that fails, the next poll makes up for it."""
        hinted, self._hinted = self._hinted, set()
        self._claimed = len(hinted)
        try:
            await self._acquire_hinted(group, hinted)
        finally:
            self._claimed = 0

    async def _acquire_hinted(self, group: asyncio.TaskGroup, hinted: set[str]) -> None:
        known = {key: runner for key, runner in self._runners.items() if runner.chat_id in hinted}
        probe = await self._deps.store.probe(self.id, sorted(hinted), **self._places.limits)
        self._notify_runners(known, probe.held)
        self._has_users_at_limit = self._has_users_at_limit or bool(probe.held_back)
        limit = self._count_room()
        leaving = {chat_id for chat_id, _ in self._runners}.intersection(probe.runnable)
        runnable = [chat_id for chat_id in probe.runnable if chat_id not in leaving]
        self._leaving |= leaving
        if len(runnable) > limit:
            self._has_backlog = True
        if runnable and limit > 0:
            wanted = min(limit, len(runnable))
            if await self._acquire(group, limit, runnable) < wanted:  # one was locked, or another worker has it
                self._must_poll = True
                self._woken.set()

    def _count_room(self) -> int:
        if self._stopping:
            return 0
        return min(self._count_free(), _ACQUIRED_AT_ONCE)

    def _count_free(self) -> int:
        return self._deps.settings.worker_max_chats - len(self._runners) - len(self._places)

    def _notify_runners(self, known: dict[tuple[str, int], ChatRunner], held: Sequence[Held]) -> None:
        """Pass each runner the current state of its chat; `known` was read before `held`."""
        by_lease = {(chat.chat_id, chat.epoch): chat for chat in held}
        for lease, runner in known.items():
            runner.notice(by_lease.get(lease))

    async def _acquire(self, group: asyncio.TaskGroup, limit: int, chat_ids: Sequence[str] | None = None) -> int:
        of: dict[str, Any] = {"suspects": 0 if self._is_trying() else 1, **self._places.limits}
        acquired = await self._deps.store.acquire(self.id, limit=limit, chat_ids=chat_ids, **of)
        for outcome in acquired:
            if outcome.vacant_s is not None:
                self._deps.metrics.takeover_completed(after_s=outcome.vacant_s)
            if (outcome.chat_id, outcome.epoch) in self._runners:  # it was read meanwhile, for a place in doubt
                continue
            runner = self._start(group, outcome.chat_id, outcome.epoch)
            if outcome.takeovers > 1:
                self._trial = Trial(runner, outcome.in_tool, self._deps.clock.monotonic())
        return len(acquired)

    def _is_trying(self) -> bool:
        """Whether a turn that has lost a worker before has not yet shown that it is harmless."""
        trial = self._trial
        if trial is None:
            return False
        has_left = (trial.runner.chat_id, trial.runner.epoch) not in self._runners
        is_long = self._deps.clock.monotonic() - trial.since_s >= _LONGEST_TRIAL_S
        if has_left or is_long or trial.runner.has_progressed(in_tool=trial.in_tool):
            self._trial = None
        return self._trial is not None

    def _start(self, group: asyncio.TaskGroup, chat_id: str, epoch: int, begun: Begun | None = None) -> ChatRunner:
        runner = ChatRunner(
            self._deps,
            self.id,
            chat_id,
            epoch,
            self._scope,
            pulse=self._pulse,
            on_turn=partial(self._titles.begin, group),
            may_go_on=lambda: not self._stopping,
            begun=begun,
        )
        self._runners[chat_id, epoch] = runner
        self._idle.clear()
        task = group.create_task(self._answer(runner), name=f"answering {chat_id}", context=self._context.copy())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return runner

    async def _answer(self, runner: ChatRunner) -> None:
        """The boundary: an error in one chat never affects another."""
        try:
            with log_context(chat=runner.chat_id, epoch=runner.epoch):
                await runner.run()
        except (Lost, NotFound, Shutdown):
            pass
        except StoreFailed as error:
            _log.warning("chat released: the database failed: %s", error, extra=_about(runner))
        except (asyncio.CancelledError, TestBroken):
            raise
        except BaseException:
            # Acquiring it again would fail in the same way: `_release_orphans` ends its turn, from the journal alone.
            _log.exception("the chat failed; its turn will be ended from the journal", extra=_about(runner))
            self._broken.add((runner.chat_id, runner.epoch))
        finally:
            del self._runners[runner.chat_id, runner.epoch]
            if runner.chat_id in self._leaving:
                self._leaving.discard(runner.chat_id)
                self._hinted.add(runner.chat_id)
                self._woken.set()
            self._note_end()

    async def _end_waits(self) -> None:
        """Expire chats whose tool results did not arrive in time; the first worker to do so wins."""
        store = self._deps.store
        for expired in await store.expired(limit=_EXPIRED_AT_A_TIME):
            end = partial(store.execute, expired.chat_id, ActionExpired(turn_id=expired.turn_id))
            await self._survive(end, what="ending a wait for results")

    async def _release_orphans(self) -> None:
        """Release chats that this worker holds but does not work on, because of an earlier error."""
        for held in await self._deps.store.held(self.id):
            if (held.chat_id, held.epoch) not in self._runners and held.chat_id not in self._places:
                await self._survive(partial(self._release, held), what="releasing a chat")

    async def _release(self, held: Held) -> None:
        """Release a chat to other workers; a turn that cannot be answered fails, and its parts are kept."""
        lease = (held.chat_id, held.epoch)
        with contextlib.suppress(Lost, Refused):
            if lease in self._broken and held.turn_id is not None:
                failed = Fail(epoch=held.epoch, turn_id=held.turn_id)
                why = Failure(error=BROKEN, notice=BROKEN["message"])
                await self._deps.store.execute(held.chat_id, failed, why)
            else:
                await self._deps.store.execute(held.chat_id, Release(epoch=held.epoch))
        self._broken.discard(lease)

    # --- housekeeping ---

    def _make_presence(self) -> Presence:
        deps = self._deps
        return Presence(
            deps.store,
            self._notifier,
            clock=deps.clock,
            beats_s=deps.settings.heartbeat_interval_s,
            worker_id=self.id,
            open_session=deps.open_session,
            metrics=deps.metrics,
        )

    async def _listen(self, changes: Subscription) -> None:
        while True:
            changed = await changes.wait()
            self._hinted |= changed.chat_ids
            self._must_poll = self._must_poll or changed.everything
            if changed.everything or changed.chat_ids:
                self._woken.set()

    async def _clean_up(self) -> None:
        """Index messages, archive old chats, pack journals, and delete what is too old."""
        store, clock, settings = self._deps.store, self._deps.clock, self._deps.settings
        upkeep = ListUpkeep(self._deps, self._survive)
        while True:
            await upkeep.run()
            ended_before = clock.now() - timedelta(seconds=settings.pack_after_s)
            await self._survive(partial(store.pack, ended_before=ended_before, clock=clock), what="packing")
            await self._survive(partial(store.clean_up, dead_for_s=_FORGET_DEAD_AFTER_S), what="cleaning up")
            if self._deps.recorder is not None:
                await self._survive(self._deps.recorder.clean_up, what="cleaning up debug records")
            await clock.sleep(_CLEAN_UP_EVERY_S)

    async def _survive(self, do: Callable[[], Awaitable[T]], *, what: str) -> T | None:
        """Run a periodic job. A failure is only logged, because the next round repeats the job."""
        try:
            return await do()
        except (StoreFailed, Refused) as error:
            _log.warning("%s failed and will be retried: %s", what, error)
            return None
        except Exception:
            # One bad row must not stop the worker, and a restart would only hit it again.
            _log.exception("%s failed and will be retried", what)
            return None

    # --- shutting down ---

    async def _hand_over(self) -> None:
        """Cancel every turn with the cause shutdown, and wait until all chats are released."""
        self._scope.shutdown()
        self._titles.cancel()
        deadline = self._deps.clock.call_later(_HAND_OVER_S, self._idle.set)
        try:
            await self._idle.wait()
        finally:
            deadline.cancel()
        for task in self._running:
            task.cancel()

    async def _leave(self) -> None:
        await self._survive(partial(self._deps.store.beat, self.id), what="a heartbeat")  # its lock is free, it is here
        await self._survive(self._release_orphans, what="releasing chats")
        if self._deps.recorder is not None:
            await self._deps.recorder.drain()  # before `retire`: other workers end the open records of a retired one
        await self._survive(partial(self._deps.store.retire, self.id), what="retiring")


def _about(runner: ChatRunner) -> dict[str, object]:
    return {"chat": runner.chat_id, "epoch": runner.epoch}
