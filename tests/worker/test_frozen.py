"""Workers that freeze: a stop takes effect without them, and when they wake they add nothing to it (rule 1.8).

Where no other worker is there to take the chat, any process with an open app ends the turn. A worker that wakes reads
its chats before it publishes what waited in its sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.support.app_harness import AppHarness, DroppingNotifier, make_settings
from tests.support.engine import get_name
from tests.support.messages import outline
from tests.support.waiting import deadline, poll_until
from tests.worker.dead_worker import DeadWorker

import indelible
from indelible.app.chat import Chat
from indelible.clock import SystemClock, Timer
from indelible.concurrency.scope import CancelScope
from indelible.content import Part, TextDelta, ToolResult
from indelible.ids import new_id
from indelible.machine.commands import Interrupt
from indelible.service.stop import StopSweeper
from indelible.store.journal.append import JournalRow
from indelible.store.queries.open_turn import Held
from indelible.store.store import Store
from indelible.testing import ManualClock, ScriptedModel, parts
from indelible.testing.model import Script
from indelible.worker.outages import Pulse

HI: Script = [parts.text_delta("1", "Hi"), parts.finish()]
STOPPED = ["Stopped by you."]
FAR_AWAY = make_settings(poll_interval_s=600, heartbeat_interval_s=4)


class JumpingClock(SystemClock):
    """Real time, until the test freezes the process: then much time has passed, and what looks at the clocks is due."""

    def __init__(self) -> None:
        self._frozen_s = 0.0
        self._checks: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return super().monotonic() + self._frozen_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        if getattr(callback, "__name__", "") == "_check_clocks":
            self._checks.append(callback)
        return super().call_later(delay_s, callback)

    def jump(self) -> None:
        self._frozen_s += 60.0
        checks, self._checks = self._checks, []
        for check in checks[-1:]:
            check()


@pytest.mark.both_databases
async def test_a_stop_is_carried_out_without_any_worker_when_the_holder_has_lost_its_lease(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("A story")
    frozen = await (await DeadWorker.acquire(harness, chat)).start_attempt()
    await frozen.write(parts.text_delta("1", "Once upon"))
    holder = (await harness.load(chat)).chat.holder
    await harness.store.beat(holder)
    settings = make_settings(heartbeat_interval_s=0.01)
    async with indelible.open(get_name(harness.engine), worker=False, settings=settings) as elsewhere, deadline():
        stopping = asyncio.create_task((await elsewhere.chat(chat.id)).interrupt())
        await poll_until(lambda: is_status(chat, "interrupting"), what="the stop to be accepted")
        await harness.store.retire(holder)  # as if its lease had run out
        await stopping
    assert stopping.result().status == "idle"
    late = [JournalRow(chat.id, frozen.attempt_id, frozen.epoch, 2, b"[]")]
    assert (await harness.store.append(late)).closed == {frozen.attempt_id}
    assert outline(await chat.messages()) == [("user", "A story"), ("assistant", "Once upon"), ("notice", *STOPPED)]


async def test_a_stop_of_a_chat_that_was_deleted_meanwhile_is_no_failure(harness: AppHarness) -> None:
    await StopSweeper(harness.store, clock=harness.clock, interval_s=1)._end(new_id("chat"), new_id("turn"))


async def is_status(chat: Chat, status: str) -> bool:
    return await chat.status() == status


async def answer_after_a_freeze(harness: AppHarness, words: asyncio.Event, *, clock: SystemClock) -> Chat:
    """A worker that knows of nothing by itself says "One", and its other words come when the test says so."""

    async def say() -> AsyncIterator[Part]:
        yield TextDelta("1", "One")
        await words.wait()
        for number in range(64):
            yield TextDelta("1", f" {number}")
        yield parts.finish()

    chat = await harness.app.create_chat("Count")
    model = ScriptedModel([lambda call: say(), HI])
    await harness.start_worker(model, clock=clock, notifier=DroppingNotifier(), settings=FAR_AWAY)
    await harness.wait_for_text(chat, "One")
    return chat


@pytest.mark.both_databases
async def test_a_worker_that_wakes_publishes_nothing_before_it_knows_of_the_stop(harness: AppHarness) -> None:
    clock, words = JumpingClock(), asyncio.Event()
    chat = await answer_after_a_freeze(harness, words, clock=clock)
    assert (await harness.store.execute(chat.id, Interrupt())).status == "interrupting"
    clock.jump()
    words.set()
    await harness.wait_for_end(chat)
    assert outline(await chat.messages()) == [("user", "Count"), ("assistant", "One"), ("notice", *STOPPED)]


@pytest.mark.both_databases
async def test_a_worker_that_wakes_goes_on_if_nobody_stopped_it(harness: AppHarness) -> None:
    clock, words = JumpingClock(), asyncio.Event()
    chat = await answer_after_a_freeze(harness, words, clock=clock)
    clock.jump()
    words.set()
    await harness.wait_for_end(chat)
    (said,) = [text for role, text in outline(await chat.messages()) if role == "assistant"]
    assert said == "One " + " ".join(str(number) for number in range(64))


class SlowToLook:
    """Stands before the store of a worker, which learns nothing of its chats until the test says so."""

    def __init__(self, store: Store) -> None:
        self.may_look = asyncio.Event()
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def held(self, worker_id: str) -> list[Held]:
        await self.may_look.wait()
        return await self._store.held(worker_id)


@pytest.mark.both_databases
async def test_a_worker_that_wakes_starts_no_tool_before_it_knows_of_the_stop(harness: AppHarness) -> None:
    clock, store = JumpingClock(), SlowToLook(harness.store)
    begun: list[str] = []
    first_runs, words = asyncio.Event(), asyncio.Event()

    @indelible.tool(serial=True)
    async def act(name: str) -> str:
        """Act."""
        begun.append(name)
        first_runs.set()
        await words.wait()
        return name

    calls = [parts.tool_call(name, "act", f'{{"name": "{name}"}}') for name in ("first", "second")]
    chat = await harness.app.create_chat("Act twice")
    model = ScriptedModel([[*calls, parts.finish("tool_calls")], HI])
    notifier = DroppingNotifier()
    await harness.start_worker(model, tools=[act], store=store, clock=clock, notifier=notifier, settings=FAR_AWAY)
    async with deadline():
        await first_runs.wait()
        assert (await harness.store.execute(chat.id, Interrupt())).status == "interrupting"
        clock.jump()
        words.set()
        await poll_until(lambda: has_result(harness, chat), what="the first tool's result")
        for _ in range(300):  # a tool that starts now has time to do so
            await harness.store.view(chat.id)

        store.may_look.set()
    await harness.wait_for_end(chat)
    assert begun == ["first"]
    results = [block for message in await chat.messages() for block in message.blocks if isinstance(block, ToolResult)]
    assert [(result.output[:16], result.is_error) for result in results] == [
        ("first", False),
        ("Interrupted: the", True),
    ]


async def has_result(harness: AppHarness, chat: Chat) -> bool:
    view = await harness.store.view(chat.id)
    return view.live is not None and any(isinstance(block, ToolResult) for block in view.live.blocks)


# --- noticing ---


class Clocks(ManualClock):
    """Its two clocks can be moved without anything that is due being called on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.day_s = self.elapsed_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.elapsed_s

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.elapsed_s + self.day_s)


@pytest.mark.parametrize("frozen", [{"elapsed_s": 3.0}, {"day_s": 3.0}], ids=["stopped", "suspended"])
async def test_a_jump_is_noticed_and_only_a_read_that_began_after_it_ends_the_doubt(frozen: dict[str, float]) -> None:
    clock, noticed = Clocks(), asyncio.Event()
    pulse = Pulse(clock, interval_s=2.0, on_doubt=noticed.set)
    with pulse.beating():
        clock.advance(600)
        before = pulse.doubts
        assert before == 0
        for name, seconds in frozen.items():
            setattr(clock, name, seconds)
        clock.advance(1)
        assert pulse.is_doubtful
        assert noticed.is_set()
        pulse.confirm(before)
        assert pulse.is_doubtful
        with CancelScope() as scope:
            waiting = asyncio.create_task(pulse.wait(scope))
            await clock.advance(0)
            assert not waiting.done()
            pulse.confirm(pulse.doubts)
            await waiting
    assert clock.pending == 0


async def test_a_cancelled_turn_does_not_wait_for_the_doubt_to_end() -> None:
    clock = Clocks()
    pulse = Pulse(clock, interval_s=2.0, on_doubt=lambda: None)
    with pulse.beating(), CancelScope() as scope:
        clock.elapsed_s = 3.0
        clock.advance(1)
        waiting = asyncio.create_task(pulse.wait(scope))
        await clock.advance(0)
        assert not waiting.done()
        scope.shutdown()
        await waiting
