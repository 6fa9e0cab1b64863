"""A worker as a whole: what it holds, how much, and what becomes of it when hints or the database fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.worker.workshop import PATIENCE_S, DeafNotifier, WatchedStore, Workshop, quick, read_text, tell

from indelible.app.app import App
from indelible.clock import SystemClock, Timer
from indelible.content import Part, TextDelta, ToolResult
from indelible.errors import ModelFailed
from indelible.machine.commands import Acquire, Command, FinishTurn
from indelible.models.protocol import Call, ModelTraits
from indelible.server.prometheus import PrometheusMetrics
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


def read_metric(metrics: PrometheusMetrics, name: str) -> float:
    value = metrics.registry.get_sample_value(f"indelible_{name}")
    assert value is not None
    return value


# --- with every hint lost ---


async def test_with_every_hint_lost_everything_happens_at_the_next_poll(engine: AsyncEngine) -> None:
    async def ask() -> str:
        raise NotImplementedError

    call: Script = [parts.tool_call("c1", "ask", "{}"), parts.finish("tool_calls")]
    async with Workshop(engine, notifier=DeafNotifier()).opened() as workshop:
        settings = quick(poll_interval_s=0.05)
        await workshop.hire(ScriptedModel([say("One"), HANG, call, say("Four")]), settings=settings, client_tools=[ask])
        chat = await workshop.app.create_chat()
        assert (await chat.send("1")).text == "One"
        await chat.post("2")
        await workshop.until_said(chat, "Well")
        await chat.post("3")
        assert (await chat.interrupt()).stopped
        await workshop.until(chat, lambda view: view.status == "requires_action")
        reply = await chat.submit_tool_results([ToolResult(call_id="c1", name="ask", output="yes")])
        assert (reply.text, reply.outcome) == ("Four", "complete")
        assert [role for role, _ in tell(await chat.messages())] == [
            "user", "assistant", "user", "assistant", "notice", "user", "assistant", "tool", "assistant"
        ]  # fmt: skip


# --- how much, and whose ---


async def test_a_user_with_many_chats_does_not_keep_another_waiting(workshop: Workshop) -> None:
    greedy = [await workshop.app.create_chat(f"hang {number}") for number in range(5)]
    other = App(workshop.store, workshop.feed, clock=workshop.clock, owner_id=await workshop.store.ensure_user("bob"))
    modest = await other.create_chat("hello")
    model = Echo()
    await workshop.hire(model, settings=quick(worker_max_chats=3, user_max_chats=2))
    await workshop.until_rest(modest)
    held = [chat for chat in greedy if (await workshop.load(chat)).chat.holder is not None]
    assert (len(held), len([asked for asked in model.asked if asked.startswith("hang")])) == (2, 2)
    waiting = next(chat for chat in greedy if chat not in held)
    await held[0].interrupt()
    await workshop.until_said(next(chat for chat in greedy[2:]), "hang 2")
    assert (await workshop.load(greedy[4])).chat.holder is None
    assert (await waiting.interrupt()).stopped
    await asyncio.gather(*(chat.interrupt() for chat in greedy))


async def test_a_worker_takes_no_more_chats_than_it_may(workshop: Workshop) -> None:
    chats = [await workshop.app.create_chat(f"hang {number}") for number in range(4)]
    await workshop.hire(Echo(), settings=quick(worker_max_chats=2))
    await workshop.until_said(chats[1], "hang 1")
    assert [(await chat.status()) for chat in chats] == ["running", "running", "pending", "pending"]
    await chats[0].interrupt()
    await workshop.until_said(chats[2], "hang 2")
    assert await chats[3].status() == "pending"
    await asyncio.gather(*(chat.interrupt() for chat in chats))


async def test_two_workers_answer_every_chat_once(workshop: Workshop) -> None:
    models = [Echo(), Echo()]
    for model in models:
        await workshop.hire(model)
    chats = [await workshop.app.create_chat() for _ in range(12)]
    replies = await asyncio.gather(*(chat.send(f"{number}")._read_all() for number, chat in enumerate(chats)))
    assert [reply.text for reply in replies] == [f"{number}" for number in range(12)]
    assert sorted([*models[0].asked, *models[1].asked], key=int) == [f"{number}" for number in range(12)]


async def test_a_chat_that_it_holds_without_working_on_it_is_let_go(workshop: Workshop) -> None:
    hired = await workshop.hire(
        Echo(), settings=quick(worker_max_chats=1, heartbeat_interval_s=0.1, poll_interval_s=0.05)
    )
    busy = await workshop.app.create_chat("hang")
    await workshop.until_said(busy, "hang")
    orphan = await workshop.app.create_chat("hello")
    taken = await workshop.store.execute(orphan.id, Acquire(worker_id=hired.worker.id))
    assert taken.epoch == 1
    await workshop.hire(Echo())
    await workshop.until_rest(orphan)
    assert tell(await orphan.messages()) == [("user", "hello"), ("assistant", "hello")]
    await busy.interrupt()


async def test_a_worker_that_has_left_holds_nothing(workshop: Workshop) -> None:
    hired = await workshop.hire(Echo())
    chats = [await workshop.app.create_chat(f"hang {number}") for number in range(3)]
    for number, chat in enumerate(chats):
        await workshop.until_said(chat, f"hang {number}")
    await workshop.dismiss(hired)
    assert [await chat.status() for chat in chats] == ["pending"] * 3
    assert await workshop.store.held(hired.worker.id) == []
    assert (await workshop.load(chats[0])).open_attempt is None


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


async def test_a_database_that_is_away_for_a_while_delays_and_loses_nothing(workshop: Workshop) -> None:
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

    store = Noting(workshop.store)
    await workshop.hire(
        ScriptedModel([lambda call: stream(), say("Hi")]), store=store, settings=quick(heartbeat_interval_s=0.05)
    )
    chat = await workshop.app.create_chat()
    reading = asyncio.create_task(chat.send("Count")._read_all())
    await workshop.until_said(chat, "One, ")
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


async def test_a_worker_comes_to_its_end_though_the_database_is_away(workshop: Workshop) -> None:
    ending = asyncio.Event()
    store = Unsteady(workshop.store)

    async def vanish(command: Command) -> None:
        if isinstance(command, FinishTurn):
            store.away = True
            ending.set()
            raise DatabaseUnreachable("The database is away.")

    store._before = vanish
    hired = await workshop.hire(ScriptedModel([say("Hi")]), store=store, clock=Hasty())
    chat = await workshop.app.create_chat("Hello")
    await ending.wait()
    hired.worker.stop()
    await asyncio.wait([hired.task], timeout=PATIENCE_S)
    came_to_its_end = hired.task.done()
    store.away, store._before = False, None
    assert came_to_its_end
    await workshop.bury(hired)
    await workshop.hire(ScriptedModel([say("Hi")]))
    await workshop.until_rest(chat)
    assert tell(await chat.messages())[-1] == ("assistant", "Hi")


async def test_a_worker_that_is_cancelled_while_a_flush_is_under_way_comes_to_its_end(workshop: Workshop) -> None:
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

    hired = await workshop.hire(ScriptedModel([lambda call: stream()]), store=Slow(workshop.store))
    chat = await workshop.app.create_chat("Count")
    await workshop.until_said(chat, "One, ")
    continue_.set()
    await flushing.wait()
    await Settling()
    hired.task.cancel()
    await Settling()
    flush.set()
    await asyncio.wait([hired.task], timeout=PATIENCE_S)
    assert hired.task.done()
    await workshop.bury(hired)
    await workshop.hire(ScriptedModel([say("two.")]))
    await workshop.until_rest(chat)
    assert tell(await chat.messages())[1][1].startswith("One, ")


async def test_a_chat_that_breaks_its_worker_is_not_the_others_trouble(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(command: Command) -> None:
        if type(command).__name__ in {"FinishTurn", "Fail"} and broken.is_set():
            broken.clear()
            raise RuntimeError("nobody expected this")

    broken = asyncio.Event()
    broken.set()
    model = Echo()
    await workshop.hire(model, store=WatchedStore(workshop.store, before=refuse))
    first = await workshop.app.create_chat("hello")
    await workshop.until_rest(first)
    assert (await workshop.store.view(first.id)).error["kind"] == "internal"
    other = await workshop.app.create_chat()
    assert (await other.send("there")).text == "there"
    assert "the turn failed" in caplog.text
    assert (await first.retry()).outcome == "complete"


# --- what it tells ---


async def test_the_time_of_a_stop_is_told(workshop: Workshop) -> None:
    metrics = PrometheusMetrics()
    await workshop.hire(Echo(), metrics=metrics)
    chat = await workshop.app.create_chat("hang")
    await workshop.until_said(chat, "hang")
    await chat.interrupt()
    await workshop.dismiss(workshop.hired[0])
    assert read_metric(metrics, "interrupt_seconds_count") == 1
    assert read_metric(metrics, "stale_writes_refused_total") == 0


async def test_a_worker_that_ended_its_own_turn_was_refused_nothing(workshop: Workshop) -> None:
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
            workshop.notifier.notify([chat.id])
            await looked.wait()

    chat = await workshop.app.create_chat()
    store = Watching(workshop.store, after=wait_for_a_look)
    await workshop.hire(ScriptedModel([say("Hi")]), store=store, metrics=metrics)
    assert (await chat.send("Hello")).text == "Hi"
    await looked.wait()
    await workshop.dismiss(workshop.hired[0])
    assert read_metric(metrics, "stale_writes_refused_total") == 0


async def test_a_worker_that_lost_a_chat_says_so(workshop: Workshop) -> None:
    metrics = PrometheusMetrics()
    await workshop.hire(Echo(), metrics=metrics)
    chat = await workshop.app.create_chat("hang")
    await workshop.until_said(chat, "hang")
    asked = (await chat.messages())[0].id
    assert asked is not None
    assert (await chat.edit(asked, "hello")).text == "hello"
    await workshop.dismiss(workshop.hired[0])
    assert read_metric(metrics, "stale_writes_refused_total") == 1


async def test_a_reply_that_the_database_will_never_take_fails_and_is_not_asked_for_again(workshop: Workshop) -> None:
    """R6 in the worker: the guilty chat fails, with what the journal has; it does not go round in circles."""

    class Refusing(WatchedStore):
        async def append(self, rows: Any) -> Any:
            raise BadRows("The database refused a journal row.")

    await workshop.hire(ScriptedModel([say("Hi")]), store=Refusing(workshop.store))
    chat = await workshop.app.create_chat()
    with pytest.raises(ModelFailed, match="Internal server error"):
        await chat.send("Hello")
    assert await chat.status() == "error"


async def test_a_chat_that_cannot_even_be_read_fails_and_does_not_hang(workshop: Workshop) -> None:
    class Garbled(WatchedStore):
        async def work(self, chat_id: str) -> Any:
            raise ValueError("an unknown kind of block")

    await workshop.hire(ScriptedModel([]), store=Garbled(workshop.store), settings=quick(heartbeat_interval_s=0.2))
    chat = await workshop.app.create_chat()
    with pytest.raises(ModelFailed, match="Internal server error"):
        await chat.send("Hello")
    assert await chat.status() == "error"
