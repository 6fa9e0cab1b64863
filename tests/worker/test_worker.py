"""A worker as a whole: what it holds, how much, and what becomes of it when hints or the database fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.app_harness import AppHarness, DroppingNotifier, WatchedStore, make_settings
from tests.support.messages import outline, read_text
from tests.support.waiting import poll_until, wait_for_task

from indelible.clock import SystemClock, Timer
from indelible.content import Part, TextDelta, ToolResult
from indelible.errors import ModelFailed
from indelible.machine.commands import Acquire, Command, FinishTurn
from indelible.models.protocol import Call, ModelTraits
from indelible.server.health import PrometheusMetrics
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.journal.append import BadRows
from indelible.store.queries.open_turn import Held
from indelible.testing import ScriptedModel, parts
from indelible.testing.clock import Settling
from indelible.testing.model import Script

pytestmark = pytest.mark.both_databases


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


HANG: Script = [parts.text_delta("1", "Well"), parts.hang()]


class Echo:
    """Answers with what it was asked; hangs if it is told to."""

    provider = name = "echo"
    context_limit = None
    traits = ModelTraits(makes_titles=False)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def stream(self, call: Call) -> AsyncIterator[Part]:
        asked = read_text(call.messages[-1].blocks)
        self.asked.append(asked)

        async def stream() -> AsyncIterator[Part]:
            yield TextDelta("1", asked)
            if asked.startswith("hang"):
                await asyncio.get_running_loop().create_future()
            yield parts.finish()

        return stream()


def list_hanging(model: Echo) -> list[str]:
    return [asked for asked in model.asked if asked.startswith("hang")]


def read_metric(metrics: PrometheusMetrics, name: str) -> float:
    value = metrics.registry.get_sample_value(f"indelible_{name}")
    assert value is not None
    return value


# --- with every hint lost ---


async def test_with_every_hint_lost_everything_happens_at_the_next_poll(engine: AsyncEngine) -> None:
    async def ask() -> str:
        raise NotImplementedError

    call: Script = [parts.tool_call("c1", "ask", "{}"), parts.finish("tool_calls")]
    async with AppHarness(engine, notifier=DroppingNotifier()).opened() as harness:
        settings = make_settings(poll_interval_s=0.05)
        await harness.start_worker(
            ScriptedModel([say("One"), HANG, call, say("Four")]), settings=settings, client_tools=[ask]
        )
        chat = await harness.app.create_chat()
        assert (await chat.send("1")).text == "One"
        await chat.post("2")
        await harness.wait_for_text(chat, "Well")
        await chat.post("3")
        assert (await chat.interrupt()).stopped
        await harness.wait_until(chat, lambda view: view.status == "requires_action")
        reply = await chat.submit_tool_results([ToolResult(call_id="c1", name="ask", output="yes")])
        assert (reply.text, reply.outcome) == ("Four", "complete")
        assert [role for role, _ in outline(await chat.messages())] == [
            "user", "assistant", "user", "assistant", "notice", "user", "assistant", "tool", "assistant"
        ]  # fmt: skip


# --- how much, and whose ---


async def test_a_user_with_many_chats_does_not_keep_another_waiting(harness: AppHarness) -> None:
    greedy = [await harness.app.create_chat(f"hang {number}") for number in range(5)]
    modest = await harness.app.user("bob").create_chat("hello")
    model = Echo()
    await harness.start_worker(model, settings=make_settings(worker_max_chats=3, user_max_chats=2))
    await harness.wait_for_end(modest)
    await poll_until(lambda: len(list_hanging(model)) == 2)
    held = [chat for chat in greedy if (await harness.load(chat)).chat.holder is not None]
    for chat in held:
        await harness.wait_for_text(chat, "hang")
    assert (len(held), len(list_hanging(model))) == (2, 2)
    waiting = next(chat for chat in greedy if chat not in held)
    await held[0].interrupt()
    await harness.wait_for_text(next(chat for chat in greedy[2:]), "hang 2")
    assert (await harness.load(greedy[4])).chat.holder is None
    assert (await waiting.interrupt()).stopped
    await asyncio.gather(*(chat.interrupt() for chat in greedy))


async def test_a_worker_takes_no_more_chats_than_it_may(harness: AppHarness) -> None:
    chats = [await harness.app.create_chat(f"hang {number}") for number in range(4)]
    await harness.start_worker(Echo(), settings=make_settings(worker_max_chats=2))
    await harness.wait_for_text(chats[1], "hang 1")
    assert [(await chat.status()) for chat in chats] == ["running", "running", "pending", "pending"]
    await chats[0].interrupt()
    await harness.wait_for_text(chats[2], "hang 2")
    assert await chats[3].status() == "pending"
    await asyncio.gather(*(chat.interrupt() for chat in chats))


async def test_two_workers_answer_every_chat_once(harness: AppHarness) -> None:
    models = [Echo(), Echo()]
    for model in models:
        await harness.start_worker(model)
    chats = [await harness.app.create_chat() for _ in range(12)]
    replies = await asyncio.gather(*(chat.send(f"{number}")._read_all() for number, chat in enumerate(chats)))
    assert [reply.text for reply in replies] == [f"{number}" for number in range(12)]
    assert sorted([*models[0].asked, *models[1].asked], key=int) == [f"{number}" for number in range(12)]


async def test_a_chat_that_it_holds_without_working_on_it_is_let_go(harness: AppHarness) -> None:
    running = await harness.start_worker(
        Echo(), settings=make_settings(worker_max_chats=1, heartbeat_interval_s=0.1, poll_interval_s=0.05)
    )
    busy = await harness.app.create_chat("hang")
    await harness.wait_for_text(busy, "hang")
    orphan = await harness.app.create_chat("hello")
    taken = await harness.store.execute(orphan.id, Acquire(worker_id=running.worker.id))
    assert taken.epoch == 1
    await harness.start_worker(Echo())
    await harness.wait_for_end(orphan)
    assert outline(await orphan.messages()) == [("user", "hello"), ("assistant", "hello")]
    await busy.interrupt()


async def test_a_worker_that_has_left_holds_nothing(harness: AppHarness) -> None:
    running = await harness.start_worker(Echo())
    chats = [await harness.app.create_chat(f"hang {number}") for number in range(3)]
    for number, chat in enumerate(chats):
        await harness.wait_for_text(chat, f"hang {number}")
    await harness.stop_worker(running)
    assert [await chat.status() for chat in chats] == ["pending"] * 3
    assert await harness.store.held(running.worker.id) == []
    assert (await harness.load(chats[0])).open_attempt is None


# --- when the database fails ---


class Unsteady(WatchedStore):
    """A store that is away for as long as it is told."""

    away = False

    def __getattr__(self, name: str) -> Any:
        if self.away and name in {"held", "acquire", "beat", "expired", "work", "clean_up", "pack"}:
            return self._fail
        return super().__getattr__(name)

    async def execute(self, *arguments: Any) -> Any:
        return await (self._fail() if self.away else super().execute(*arguments))

    async def _fail(self, *_: Any, **__: Any) -> Any:
        raise DatabaseUnreachable("The database is away.")


@pytest.mark.may_log("failed and will be retried: The database is away", "waits for the database")
async def test_a_database_that_is_away_for_a_while_delays_and_loses_nothing(harness: AppHarness) -> None:
    gate, tried = asyncio.Event(), asyncio.Event()

    async def stream() -> AsyncIterator[Part]:
        yield TextDelta("1", "One, ")
        await gate.wait()
        yield TextDelta("1", "two.")
        yield parts.finish()

    class Noting(Unsteady):
        async def _fail(self, *_: Any, **__: Any) -> Any:
            tried.set()
            return await super()._fail()

    store = Noting(harness.store)
    await harness.start_worker(
        ScriptedModel([lambda call: stream(), say("Hi")]),
        store=store,
        settings=make_settings(heartbeat_interval_s=0.05),
    )
    chat = await harness.app.create_chat()
    reading = asyncio.create_task(chat.send("Count")._read_all())
    await harness.wait_for_text(chat, "One, ")
    store.away = True
    gate.set()
    await tried.wait()
    store.away = False
    reply = await reading
    assert (reply.text, reply.outcome) == ("One, two.", "complete")
    assert (await chat.send("Hello")).text == "Hi"


class Hasty(SystemClock):
    """Patience of ten seconds is over at once."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return super().call_later(0.0 if delay_s == 10.0 else delay_s, callback)


@pytest.mark.may_log("failed and will be retried: The database is away", "waits for the database")
async def test_a_worker_comes_to_its_end_though_the_database_is_away(harness: AppHarness) -> None:
    ending = asyncio.Event()
    store = Unsteady(harness.store)

    async def vanish(command: Command) -> None:
        if isinstance(command, FinishTurn):
            store.away = True
            ending.set()
            raise DatabaseUnreachable("The database is away.")

    store._before = vanish
    running = await harness.start_worker(ScriptedModel([say("Hi")]), store=store, clock=Hasty())
    chat = await harness.app.create_chat("Hello")
    await ending.wait()
    running.worker.stop()
    await wait_for_task(running.task)
    store.away, store._before = False, None
    await harness.retire_worker(running)
    await harness.start_worker(ScriptedModel([say("Hi")]))
    await harness.wait_for_end(chat)
    assert outline(await chat.messages())[-1] == ("assistant", "Hi")


async def test_a_worker_that_is_cancelled_while_a_flush_is_under_way_comes_to_its_end(harness: AppHarness) -> None:
    """The turn waits for that flush to save what was said, and the flusher is gone."""
    continue_, flushing, flush = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(WatchedStore):
        async def append(self, rows: Any) -> Any:
            if continue_.is_set():
                flushing.set()
                await flush.wait()
            return await self._store.append(rows)

    async def stream() -> AsyncIterator[Part]:
        yield TextDelta("1", "One, ")
        await continue_.wait()
        yield TextDelta("1", "two.")
        await flushing.wait()
        yield parts.finish()

    running = await harness.start_worker(ScriptedModel([lambda call: stream()]), store=Slow(harness.store))
    chat = await harness.app.create_chat("Count")
    await harness.wait_for_text(chat, "One, ")
    continue_.set()
    await flushing.wait()
    await Settling()
    running.task.cancel()
    await Settling()
    flush.set()
    await wait_for_task(running.task)
    await harness.retire_worker(running)
    await harness.start_worker(ScriptedModel([say("two.")]))
    await harness.wait_for_end(chat)
    assert outline(await chat.messages())[1][1].startswith("One, ")


@pytest.mark.may_log("the turn failed: an error in the server")
async def test_a_chat_that_breaks_its_worker_is_not_the_others_trouble(
    harness: AppHarness, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(command: Command) -> None:
        if type(command).__name__ in {"FinishTurn", "Fail"} and broken.is_set():
            broken.clear()
            raise RuntimeError("nobody expected this")

    broken = asyncio.Event()
    broken.set()
    model = Echo()
    await harness.start_worker(model, store=WatchedStore(harness.store, before=refuse))
    first = await harness.app.create_chat("hello")
    await harness.wait_for_end(first)
    assert (await harness.store.view(first.id)).error["kind"] == "internal"
    other = await harness.app.create_chat()
    assert (await other.send("there")).text == "there"
    assert "the turn failed" in caplog.text
    assert (await first.retry()).outcome == "complete"


# --- what it tells ---


async def test_the_time_of_a_stop_is_told(harness: AppHarness) -> None:
    metrics = PrometheusMetrics()
    await harness.start_worker(Echo(), metrics=metrics)
    chat = await harness.app.create_chat("hang")
    await harness.wait_for_text(chat, "hang")
    await chat.interrupt()
    await harness.stop_worker(harness.workers[0])
    assert read_metric(metrics, "interrupt_seconds_count") == 1
    assert read_metric(metrics, "stale_writes_refused_total") == 0


async def test_a_worker_that_ended_its_own_turn_was_refused_nothing(harness: AppHarness) -> None:
    """It looks at what it holds right after the commit that ended the turn, before it knows of that itself."""
    metrics = PrometheusMetrics()
    looked, committed = asyncio.Event(), asyncio.Event()

    class Watching(WatchedStore):
        async def held(self, worker_id: str) -> list[Held]:
            held: list[Held] = await self._store.held(worker_id)
            if committed.is_set():
                asyncio.get_running_loop().call_soon(looked.set)
            return held

    async def wait_for_a_look(command: Command) -> None:
        if isinstance(command, FinishTurn):
            committed.set()
            harness.notifier.notify([chat.id])
            await looked.wait()

    chat = await harness.app.create_chat()
    store = Watching(harness.store, after=wait_for_a_look)
    await harness.start_worker(ScriptedModel([say("Hi")]), store=store, metrics=metrics)
    assert (await chat.send("Hello")).text == "Hi"
    await looked.wait()
    await harness.stop_worker(harness.workers[0])
    assert read_metric(metrics, "stale_writes_refused_total") == 0


async def test_a_worker_that_lost_a_chat_says_so(harness: AppHarness) -> None:
    metrics = PrometheusMetrics()
    await harness.start_worker(Echo(), metrics=metrics)
    chat = await harness.app.create_chat("hang")
    await harness.wait_for_text(chat, "hang")
    asked = (await chat.messages())[0].id
    assert asked is not None
    assert (await chat.edit(asked, "hello")).text == "hello"
    await harness.stop_worker(harness.workers[0])
    assert read_metric(metrics, "stale_writes_refused_total") == 1


@pytest.mark.may_log("the turn failed: an error in the server")
async def test_a_reply_that_the_database_will_never_take_fails_and_is_not_asked_for_again(harness: AppHarness) -> None:
    """R6 in the worker: the guilty chat fails, with what the journal has; it does not go round in circles."""
    refused = asyncio.Event()

    class Refusing(WatchedStore):
        async def append(self, rows: Any) -> Any:
            refused.set()
            raise BadRows("The database refused a journal row.")

    async def stream() -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Hi")
        await refused.wait()  # a reply in one piece would be written with its end
        yield parts.finish()

    await harness.start_worker(ScriptedModel([lambda call: stream()]), store=Refusing(harness.store))
    chat = await harness.app.create_chat()
    with pytest.raises(ModelFailed, match="Internal server error"):
        await chat.send("Hello")
    assert await chat.status() == "error"


@pytest.mark.may_log("the chat failed; its turn will be ended from the journal")
async def test_a_chat_that_cannot_even_be_read_fails_and_does_not_hang(harness: AppHarness) -> None:
    class Garbled(WatchedStore):
        async def work(self, chat_id: str) -> Any:
            raise ValueError("an unknown kind of block")

    await harness.start_worker(
        ScriptedModel([]), store=Garbled(harness.store), settings=make_settings(heartbeat_interval_s=0.2)
    )
    chat = await harness.app.create_chat()
    with pytest.raises(ModelFailed, match="Internal server error"):
        await chat.send("Hello")
    assert await chat.status() == "error"
