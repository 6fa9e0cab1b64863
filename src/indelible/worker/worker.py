"""Holding chats: one row with one heartbeat, and a task for each chat that is being answered.

A worker looks at the database when somebody tells it that a chat has changed, and every half a second if nobody
does. A look is two small queries: are the chats that I hold still mine, and is one of them to be stopped; are there
chats that nobody works on. What a hint says is never believed, only that there is something to look at.

Shutting down is not stopping. No further chat is taken, every turn is told to end where it is, what it said is
flushed, the chat is let go, and another worker goes on. A worker that is cut off from the database goes on trying:
if it was away for too long its chats have another holder, and its epoch, which every write carries, is worth nothing.

Must stay true (tests/worker/test_worker.py, tests/faults/test_takeover.py): no chat is answered by two workers; after
`run` has returned it holds no chat; a chat that it holds without working on it is let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from indelible.concurrency.scope import CancelScope
from indelible.errors import Lost, NotFound, Refused, Shutdown, StoreFailed
from indelible.ids import new_id
from indelible.logs import log_context
from indelible.machine.commands import ActionExpired, Fail, Release, UpdateChat
from indelible.notify import Notifier, Subscription
from indelible.store.payloads import ChatPatch, Failure
from indelible.store.queries.open_turn import Held, OpenWork
from indelible.worker.chat_runner import BROKEN, ChatRunner
from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.titles import make_title

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_TAKEN_AT_A_TIME: Final = 32
"""Between two handfuls of chats the worker looks whether one of its own is to be stopped."""

_LOOK_AT_MOST_EVERY_S: Final = 0.02
_HAND_OVER_S: Final = 10.0
_CLEAN_UP_EVERY_S: Final = 60.0
_FORGET_DEAD_AFTER_S: Final = 24 * 3600.0
_EXPIRED_AT_A_TIME: Final = 100


class Worker:
    """See the module header. `run` works until `stop` is called; `ready` is set when it has begun."""

    def __init__(self, deps: WorkerDependencies, notifier: Notifier) -> None:
        self.id: Final = new_id("worker")
        self.ready = asyncio.Event()
        self._deps = deps
        self._notifier = notifier
        self._scope = CancelScope()
        self._runners: dict[tuple[str, int], ChatRunner] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._titling: set[asyncio.Task[None]] = set()
        self._broken: set[tuple[str, int]] = set()
        self._stopping = False
        self._stirred = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def stop(self) -> None:
        """Hand everything over and come to an end."""
        self._stopping = True
        self._stirred.set()

    async def run(self) -> None:
        await self._deps.store.beat(self.id)
        with self._notifier.subscribe() as changes:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(self._beat(), name="heartbeat"),
                    group.create_task(self._listen(changes), name="listening for changes"),
                    group.create_task(self._clean_up(), name="cleaning up"),
                    group.create_task(self._deps.journal.run(), name="writing the journal"),
                ]
                self.ready.set()
                await self._watch(group)
                await self._hand_over()
                for service in services:
                    service.cancel()
        await self._leave()

    # --- looking ---

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        """Look until the worker is stopped."""
        settings, clock = self._deps.settings, self._deps.clock
        beaten_s = clock.monotonic()
        while not self._stopping:
            self._stirred.clear()
            is_beat = clock.monotonic() - beaten_s >= settings.heartbeat_interval_s
            beaten_s = clock.monotonic() if is_beat else beaten_s
            more = await self._survive(partial(self._look, group), what="looking for work")
            if is_beat:
                await self._survive(self._let_orphans_go, what="letting go of chats")
                await self._survive(self._end_waits, what="ending waits for results")
            if more:
                continue
            await clock.sleep(_LOOK_AT_MOST_EVERY_S)
            timer = clock.call_later(settings.poll_interval_s, self._stirred.set)
            try:
                await self._stirred.wait()
            finally:
                timer.cancel()

    async def _look(self, group: asyncio.TaskGroup) -> bool:
        """One look; whether there may be more to take at once."""
        store, settings = self._deps.store, self._deps.settings
        known = dict(self._runners)
        if known:
            held = {(chat.chat_id, chat.epoch): chat for chat in await store.held(self.id)}
            for key, runner in known.items():
                runner.notice(held.get(key))
        limit = min(settings.worker_max_chats - len(self._runners), _TAKEN_AT_A_TIME)
        if limit <= 0 or self._stopping:
            return False
        taken = await store.acquire(self.id, limit=limit, per_user=settings.user_max_chats)
        for outcome in taken:
            if outcome.vacant_s is not None:
                self._deps.metrics.chat_taken_over(after_s=outcome.vacant_s)
            self._start(group, outcome.chat_id, outcome.epoch)
        return len(taken) == limit

    def _start(self, group: asyncio.TaskGroup, chat_id: str, epoch: int) -> None:
        runner = ChatRunner(self._deps, self.id, chat_id, epoch, self._scope)
        self._runners[chat_id, epoch] = runner
        self._idle.clear()
        task = group.create_task(self._answer(runner, group), name=f"answering {chat_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, runner: ChatRunner, group: asyncio.TaskGroup) -> None:
        """The boundary: nothing that goes wrong with one chat is another's trouble."""
        try:
            with log_context(chat=runner.chat_id, epoch=runner.epoch):
                await runner.run()
        except (Lost, NotFound, Shutdown):
            pass
        except StoreFailed as error:
            _log.warning("chat released: the database failed: %s", error, extra=_about(runner))
        except Exception:
            # Taking it again would only meet the same again: the next beat ends its turn, from the journal alone.
            _log.exception("the chat failed; its turn will be ended from the journal", extra=_about(runner))
            self._broken.add((runner.chat_id, runner.epoch))
        finally:
            del self._runners[runner.chat_id, runner.epoch]
            self._stirred.set()
            if not self._runners:
                self._idle.set()
        for work in runner.finished:
            if not work.titled and self._deps.settings.auto_titles and not self._stopping:
                titling = group.create_task(self._title(work), name=f"a title for {work.chat_id}")
                self._titling.add(titling)
                titling.add_done_callback(self._titling.discard)
                break

    async def _end_waits(self) -> None:
        """Chats that have waited in vain for results from outside; whoever comes first ends the wait."""
        store = self._deps.store
        for expired in await store.expired(limit=_EXPIRED_AT_A_TIME):
            end = partial(store.execute, expired.chat_id, ActionExpired(turn_id=expired.turn_id))
            await self._survive(end, what="ending a wait for results")

    async def _let_orphans_go(self) -> None:
        """Chats that we hold and do not work on, because something went wrong in between."""
        for held in await self._deps.store.held(self.id):
            if (held.chat_id, held.epoch) not in self._runners:
                await self._survive(partial(self._let_go, held), what="letting go of a chat")

    async def _let_go(self, held: Held) -> None:
        """Somebody else goes on with it; a turn that cannot be answered fails, with what it said."""
        lease = (held.chat_id, held.epoch)
        with contextlib.suppress(Lost, Refused):
            if lease in self._broken and held.turn_id is not None:
                failed = Fail(epoch=held.epoch, turn_id=held.turn_id)
                why = Failure(error=BROKEN, notice=BROKEN["message"])
                await self._deps.store.execute(held.chat_id, failed, why)
            else:
                await self._deps.store.execute(held.chat_id, Release(epoch=held.epoch))
        self._broken.discard(lease)

    # --- beside ---

    async def _beat(self) -> None:
        while True:
            await self._survive(partial(self._deps.store.beat, self.id), what="the heartbeat")
            await self._deps.clock.sleep(self._deps.settings.heartbeat_interval_s)

    async def _listen(self, changes: Subscription) -> None:
        while True:
            changed = await changes.wait()
            if changed.everything or changed.chat_ids:
                self._stirred.set()

    async def _clean_up(self) -> None:
        """Pack journals, and forget what is too old."""
        store, clock, settings = self._deps.store, self._deps.clock, self._deps.settings
        while True:
            ended_before = clock.now() - timedelta(seconds=settings.pack_after_s)
            await self._survive(partial(store.pack, ended_before=ended_before, clock=clock), what="packing")
            await self._survive(partial(store.clean_up, dead_for_s=_FORGET_DEAD_AFTER_S), what="cleaning up")
            if self._deps.recorder is not None:
                await self._survive(self._deps.recorder.clean_up, what="cleaning up debug records")
            await clock.sleep(_CLEAN_UP_EVERY_S)

    async def _title(self, work: OpenWork) -> None:
        """Never anybody's trouble: a chat without a title is a chat."""
        deps = self._deps
        try:
            now = await deps.store.work(work.chat_id)
            messages = await deps.store.path(work.chat_id)
            with CancelScope(self._scope) as scope, deps.record(now, kind="title", worker_id=self.id) as record:
                model = deps.find_model(now.model)
                title = await make_title(model, messages, scope=scope, clock=deps.clock, record=record)
                record.end("completed")
            if title is not None:
                await deps.store.execute(work.chat_id, UpdateChat(only_untitled=True), ChatPatch(title=title))
        except Exception as error:
            _log.info("%s gets no title: %r", work.chat_id, error)

    async def _survive(self, do: Callable[[], Awaitable[T]], *, what: str) -> T | None:
        """Do something that is done again anyway, even if the database is away."""
        try:
            return await do()
        except (StoreFailed, Refused) as error:
            _log.warning("%s failed, and will be tried again: %s", what, error)
            return None
        except Exception:
            # What is wrong with one row is not the others' trouble, and would only be met again after a restart.
            _log.exception("%s failed, and will be tried again", what)
            return None

    # --- leaving ---

    async def _hand_over(self) -> None:
        """Tell every turn to end where it is, and wait until all have let go."""
        self._scope.shutdown()
        for titling in self._titling:
            titling.cancel()
        deadline = self._deps.clock.call_later(_HAND_OVER_S, self._idle.set)
        try:
            await self._idle.wait()
        finally:
            deadline.cancel()
        for task in self._running:
            task.cancel()

    async def _leave(self) -> None:
        await self._survive(self._let_orphans_go, what="letting go of chats")
        if self._deps.recorder is not None:
            await self._deps.recorder.drain()  # of a worker that is gone others judge: its own last words come first
        await self._survive(partial(self._deps.store.retire, self.id), what="retiring")


def _about(runner: ChatRunner) -> dict[str, object]:
    return {"chat": runner.chat_id, "epoch": runner.epoch}
