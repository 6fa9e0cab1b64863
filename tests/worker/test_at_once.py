"""Turns that begin in the transaction of their message, because the worker is in the process that accepts it.

No hint arrives here and nobody polls, unless a test says so: what is answered began at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import Any, cast

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.statements import observed
from tests.store.test_begin import Losing
from tests.support.app_harness import AppHarness, DroppingNotifier, RunningWorker, WatchedStore, make_settings
from tests.support.engine import begin_read, get_database
from tests.support.messages import outline
from tests.support.tables import attempts, chats, turns
from tests.support.waiting import Watched
from tests.worker.test_hints import NO_POLL
from tests.worker.test_worker import Echo

from indelible.api.inputs import NewMessage
from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.clock import SystemClock
from indelible.content import Text, ToolResult, ToolSpec, Usage
from indelible.errors import StoreFailed
from indelible.machine.commands import Command, Interrupt, Send
from indelible.notify import Changed
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.payloads import UserInput
from indelible.store.queries.open_turn import Begun
from indelible.store.store import Store
from indelible.testing import ScriptedModel, parts
from indelible.worker.places import KeptPlace
from indelible.worker.worker import SearchPace

pytestmark = pytest.mark.both_databases

HI = [parts.text_delta("1", "Hi"), parts.finish()]


@pytest.fixture
async def silent(engine: AsyncEngine) -> AsyncIterator[AppHarness]:
    """A harness in which every hint to a worker is lost."""
    async with AppHarness(engine, notifier=DroppingNotifier()).opened() as opened:
        yield opened


class Noting(WatchedStore):
    """The store of a worker, which notes what the worker asks of it."""

    def __init__(self, store: Store) -> None:
        self.asked: list[str] = []
        super().__init__(store, before=self._note)

    async def _note(self, command: Command) -> None:
        self.asked.append(command.name.value)

    async def work(self, chat_id: str) -> Any:
        self.asked.append("work")
        return await self._store.work(chat_id)

    async def acquire(self, worker_id: str, **more: Any) -> Any:
        self.asked.append("acquire")
        return await self._store.acquire(worker_id, **more)


async def start(
    harness: AppHarness, model: Any, *, settings: dict[str, Any] | None = None, **more: Any
) -> RunningWorker:
    """A worker that has looked around once: it found a chat, answered it, and knows that no other waits."""
    first = await harness.app.create_chat("hello")
    chosen = make_settings(**{**NO_POLL, **(settings or {})})
    running = await harness.start_worker(model, settings=chosen, **more)
    await harness.wait_for_end(first)
    await wait_for_room(running)
    harness.reserve = running.worker.reserve
    return running


async def wait_for_room(running: RunningWorker, chat: Chat | None = None) -> None:
    """A runner ends a moment after its turn, and a place in doubt is free when the chat was read."""
    while (place := running.worker.reserve("chat_x" if chat is None else chat.id, "user_x")) is None:
        await asyncio.sleep(0)
    place.give_back()


async def stop(harness: AppHarness, chat: Chat) -> None:
    """A stop whose hint is not lost."""
    await harness.store.execute(chat.id, Interrupt())
    publish(harness, chat)


def publish(harness: AppHarness, chat: Chat) -> None:
    """A hint that is not lost."""
    cast(DroppingNotifier, harness.notifier).publish(Changed(frozenset({chat.id})))


async def load_attempts(harness: AppHarness, chat: Chat) -> list[tuple[int, int, str | None, str | None]]:
    async with begin_read(harness.engine) as connection:
        found = select(attempts).where(attempts.c.chat_id == chat.id).order_by(attempts.c.id)
        return [(row.step, row.number, row.model, row.outcome) for row in await connection.execute(found)]


# --- what begins at once ---


async def test_a_message_is_answered_without_a_hint_and_without_another_look_at_the_database(
    silent: AppHarness,
) -> None:
    store = Noting(silent.store)
    running = await start(silent, Echo(), store=store)
    chat = await silent.app.create_chat()
    store.asked.clear()
    assert (await chat.send("Rain?")).text == "Rain?"
    await wait_for_room(running, chat)
    assert (await chat.send("And now?")).text == "And now?"
    assert store.asked == ["finish_turn", "finish_turn"]
    assert [end for *_, end in await load_attempts(silent, chat)] == ["complete", "complete"]


async def test_a_turn_of_one_token_has_three_transactions_of_its_own(silent: AppHarness) -> None:
    """The message with all that begins with it, one row of the journal, and the end."""
    running = await start(silent, Echo())
    chat = await silent.app.create_chat()
    await chat.send("Rain?")
    await wait_for_room(running, chat)
    writing = "BEGIN IMMEDIATE" if silent.engine.dialect.name == "sqlite" else "BEGIN ISOLATION LEVEL READ COMMITTED"
    with observed(get_database(silent.engine)) as sent:
        await chat.send("And now?")
    begun = [statement for statement in sent if statement.startswith(writing)]
    assert len(begun) <= 3, sent


async def test_a_new_chat_with_a_message_and_every_way_to_ask_again_begin_at_once(silent: AppHarness) -> None:
    store = Noting(silent.store)
    running = await start(silent, Echo(), store=store)
    store.asked.clear()
    chat = await silent.app.create_chat("One")
    await silent.wait_for_end(chat)
    first, reply = await chat.messages()
    await wait_for_room(running, chat)
    await chat.regenerate(reply.id)
    await wait_for_room(running, chat)
    await chat.edit(first.id, "Two")
    assert store.asked == ["finish_turn"] * 3
    assert outline(await chat.messages()) == [("user", "Two"), ("assistant", "Two")]


async def test_results_resume_a_turn_at_once(silent: AppHarness) -> None:
    call = [parts.tool_call("c1", "look", "{}"), parts.finish("tool_calls")]
    store, look = Noting(silent.store), ToolSpec(name="look")
    running = await start(silent, ScriptedModel([HI, call, HI]), store=store)
    chat = await silent.app.create_chat(tools=[look])
    store.asked.clear()
    await chat.send("Look")
    await wait_for_room(running, chat)
    await chat.submit_tool_results([ToolResult("c1", "look", "a tree")])
    assert store.asked == ["await_action", "finish_turn"]
    assert [(step, number) for step, number, *_ in await load_attempts(silent, chat)] == [(1, 1), (2, 1)]


SET_BEFORE: ContextVar[str] = ContextVar("set before")


async def test_a_tool_sees_what_the_program_had_set_when_it_started_the_worker(silent: AppHarness) -> None:
    async def look() -> str:
        return SET_BEFORE.get()

    call = [parts.tool_call("c1", "look", "{}"), parts.finish("tool_calls")]
    SET_BEFORE.set("a tree")
    await start(silent, ScriptedModel([HI, call, HI]), tools=[look])
    SET_BEFORE.set("something else")
    chat = await silent.app.create_chat("Look")
    view = await silent.wait_for_end(chat)
    assert ("tool", "a tree") in outline(view.messages)


async def test_a_stop_right_after_the_message_stops_the_reply(harness: AppHarness) -> None:
    await start(harness, Echo())
    for _ in range(5):
        chat = await harness.app.create_chat("hang on")
        assert (await chat.interrupt()).stopped
        await harness.wait_for_end(chat)


async def test_many_messages_at_once_to_two_workers_are_each_answered_once(harness: AppHarness) -> None:
    here, there = Echo(), Echo()
    await start(harness, here)
    await harness.start_worker(there, settings=make_settings(**NO_POLL))
    made = [await harness.app.create_chat() for _ in range(12)]
    replies = await asyncio.gather(*(chat.send(f"{at}")._read_all() for at, chat in enumerate(made)))
    assert [reply.text for reply in replies] == [f"{at}" for at in range(12)]
    asked = [text for text in (*here.asked, *there.asked) if text != "hello"]
    assert sorted(asked, key=int) == [f"{at}" for at in range(12)]


# --- where it stops short ---


async def test_a_model_that_is_not_there_fails_the_turn_before_an_attempt(silent: AppHarness) -> None:
    store = Noting(silent.store)
    await start(silent, Echo(), store=store)
    store.asked.clear()
    chat = await silent.app.create_chat("Rain?", model="no-such-model")
    view = await silent.wait_for_end(chat)
    assert view.error["kind"] == "config"
    assert store.asked == ["fail"]
    assert await load_attempts(silent, chat) == []


async def test_a_model_is_known_after_its_first_reply(silent: AppHarness) -> None:
    store = Noting(silent.store)
    running = await start(silent, Echo(), models={"other": ScriptedModel([HI, HI], name="other-1")}, store=store)
    chat = await silent.app.create_chat(model="other")
    store.asked.clear()
    await chat.send("One")
    await wait_for_room(running, chat)
    await chat.send("Two")
    assert store.asked == ["start_attempt", "finish_turn", "finish_turn"]
    assert [model for *_, model, _ in await load_attempts(silent, chat)] == ["other-1", "other-1"]


async def test_a_model_that_was_exchanged_meanwhile_gets_an_attempt_of_its_own(silent: AppHarness) -> None:
    models: dict[str, Any] = {"other": ScriptedModel([HI], name="old")}
    running = await start(silent, Echo(), models=models)
    chat = await silent.app.create_chat(model="other")
    await chat.send("One")
    await wait_for_room(running, chat)
    models["other"] = ScriptedModel([HI], name="new")
    assert (await chat.send("Two")).text == "Hi"
    _, opened, used = await load_attempts(silent, chat)
    assert (opened, used) == ((1, 1, "old", "reset"), (1, 2, "new", "complete"))


async def test_a_chats_tool_of_the_name_of_a_tool_here_fails_the_turn_before_an_attempt(silent: AppHarness) -> None:
    async def look() -> str:
        raise NotImplementedError

    await start(silent, Echo(), tools=[look])
    chat = await silent.app.create_chat("Look", tools=[ToolSpec(name="look")])
    assert (await silent.wait_for_end(chat)).error["kind"] == "config"
    assert await load_attempts(silent, chat) == []


async def test_a_file_is_read_before_the_attempt_begins(silent: AppHarness) -> None:
    model, store = ScriptedModel([HI, HI]), Noting(silent.store)
    await start(silent, model, store=store)
    file = await silent.app.upload(b"# Rain", name="a.md")
    chat = await silent.app.create_chat()
    store.asked.clear()
    await chat.send(["Look", file])
    assert store.asked == ["start_attempt", "finish_turn"]
    assert model.calls[-1].messages[-1].blocks[1].data == b"# Rain"  # type: ignore[union-attr]


async def test_a_conversation_that_fills_the_window_is_shortened_before_the_attempt_begins(silent: AppHarness) -> None:
    full = [parts.text_delta("1", "Hi"), parts.finish(usage=Usage(input_tokens=90, output_tokens=9))]
    model, store = ScriptedModel([HI, full, HI, HI], context_limit=100), Noting(silent.store)
    running = await start(silent, model, store=store)
    chat = await silent.app.create_chat()
    await chat.send("One")
    await wait_for_room(running, chat)
    store.asked.clear()
    await chat.send("Two")
    assert store.asked == ["keep_summary", "start_attempt", "finish_turn"]


async def test_a_summary_that_is_asked_for_begins_with_its_lease(silent: AppHarness) -> None:
    store = Noting(silent.store)
    running = await start(silent, ScriptedModel([HI, HI, HI]), store=store)
    chat = await silent.app.create_chat()
    await chat.send("One")
    await wait_for_room(running, chat)
    store.asked.clear()
    await chat.compact()
    assert store.asked == ["finish_turn"]


async def test_a_worker_that_is_full_takes_no_further_chat(silent: AppHarness) -> None:
    await start(silent, Echo(), settings={"worker_max_chats": 1})
    first = await silent.app.create_chat("hang 1")
    await silent.wait_for_text(first, "hang 1")
    second = await silent.app.create_chat("hang 2")
    assert await second.status() == "pending"
    await stop(silent, first)
    await silent.wait_for_end(first)


async def test_a_user_at_the_limit_waits_and_others_do_not(harness: AppHarness) -> None:
    await start(harness, Echo(), settings={"user_max_chats": 1})
    first = await harness.app.create_chat("hang 1")
    second = await harness.app.create_chat("hang 2")
    other = await harness.app.user("bob").create_chat("hang 3")
    await harness.wait_for_text(other, "hang 3")
    assert [await chat.status() for chat in (first, second)] == ["running", "pending"]
    await first.interrupt()
    await harness.wait_for_text(second, "hang 2")
    await asyncio.gather(second.interrupt(), other.interrupt())


async def test_many_chats_of_a_user_at_the_same_moment_do_not_exceed_the_limit(harness: AppHarness) -> None:
    model = Echo()
    await start(harness, model, settings={"user_max_chats": 3})
    made = await asyncio.gather(*(harness.app.create_chat(f"hang {at}") for at in range(8)))
    async with begin_read(harness.engine) as connection:
        held = (await connection.execute(select(chats.c.id).where(chats.c.holder.is_not(None)))).all()
    assert len(held) <= 3
    for chat in made:
        await chat.interrupt()
    for chat in made:
        await harness.wait_for_end(chat)


async def test_a_chat_that_waits_longer_is_not_passed(silent: AppHarness) -> None:
    """Before its first look, and while the last one left a chat waiting, a worker reserves no place."""
    waiting = await silent.app.create_chat("hang 1")
    also = await silent.app.create_chat("hang 2")
    settings = make_settings(worker_max_chats=1, **NO_POLL)
    running = await silent.start_worker(Echo(), settings=settings)
    silent.reserve = running.worker.reserve
    await silent.wait_for_text(waiting, "hang 1")
    await stop(silent, waiting)
    await silent.wait_for_text(also, "hang 2")
    last = await silent.app.create_chat("hang 3")
    assert await last.status() == "pending"
    await stop(silent, also)
    await silent.wait_for_text(last, "hang 3")
    await stop(silent, last)


async def test_a_chat_that_found_no_room_beside_a_place_is_found_when_the_place_is_free(silent: AppHarness) -> None:
    running = await start(silent, Echo(), settings={"worker_max_chats": 1})
    place = running.worker.reserve("chat_x", "user_x")
    assert place is not None
    silent.reserve = None
    waiting = await silent.app.create_chat("Rain?")
    publish(silent, waiting)
    while not running.worker._has_backlog:
        await asyncio.sleep(0)
    place.give_back()
    await silent.wait_for_end(waiting)


async def test_a_place_counts_for_its_user_before_its_transaction_is_committed(silent: AppHarness) -> None:
    store = Noting(silent.store)
    running = await start(silent, Echo(), store=store, settings={"user_max_chats": 1})
    place = running.worker.reserve("chat_x", silent.app.owner_id)
    assert place is not None
    silent.reserve = None
    waiting = await silent.app.create_chat("Rain?")
    store.asked.clear()
    publish(silent, waiting)
    while not running.worker._has_users_at_limit:
        await asyncio.sleep(0)
    assert store.asked == []
    running.worker._must_poll = True
    publish(silent, waiting)
    while "acquire" not in store.asked:
        await asyncio.sleep(0)
    assert await waiting.status() == "pending"
    place.give_back()
    await silent.wait_for_end(waiting)


# --- what goes wrong in between ---


async def test_a_request_that_is_cancelled_at_any_moment_keeps_no_place(silent: AppHarness) -> None:
    """There is one place: if one were lost, nothing would be answered any more."""
    running = await start(silent, Echo(), settings={"worker_max_chats": 1})
    for steps in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377):
        chat = await silent.app.create_chat()
        sending = asyncio.create_task(silent.app.service.send(chat.id, NewMessage(content=[Text("Rain?")])))
        for _ in range(steps):
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        view = await silent.wait_for_end(chat)
        assert [message.role for message in view.messages] in ([], ["user", "assistant"])
        await wait_for_room(running)
        control = await silent.app.create_chat()
        assert (await control.send("Still there?")).text == "Still there?"
        await wait_for_room(running)


def _open_app(harness: AppHarness, database: Any) -> App:
    return App(
        Store(database, lease_timeout_s=3600),
        harness.feed,
        clock=harness.clock,
        owner_id=harness.app.owner_id,
        reserve=lambda chat_id, owner_id: harness.reserve(chat_id, owner_id) if harness.reserve else None,
    )


async def test_a_commit_whose_answer_was_lost_is_found_out_by_reading_and_answered_once(silent: AppHarness) -> None:
    model = Echo()
    running = await start(silent, model, settings={"worker_max_chats": 1})
    app = _open_app(silent, Losing(get_database(silent.engine)))
    chat = await silent.app.create_chat()
    with pytest.raises(StoreFailed):
        await (await app.chat(chat.id)).send("Rain?")
    await silent.wait_for_end(chat)
    assert model.asked == ["hello", "Rain?"]
    assert await load_attempts(silent, chat) == [(1, 1, "echo", "complete")]
    await wait_for_room(running)
    assert (await chat.send("And now?")).text == "And now?"


async def test_a_chat_that_was_acquired_while_its_place_was_in_doubt_is_answered_once(harness: AppHarness) -> None:
    model = Echo()
    running = await start(harness, model, settings={"worker_max_chats": 2})
    chat = await harness.app.create_chat()
    place = running.worker.reserve(chat.id, harness.app.owner_id)
    assert place is not None
    harness.reserve = None
    await chat.post("hang on")
    await harness.wait_for_text(chat, "hang on")
    place.doubt()
    await wait_for_room(running)
    assert model.asked == ["hello", "hang on"]
    await chat.interrupt()


class Failing:
    """A database that does not answer, and did nothing."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, *_work: Any, **_more: Any) -> Any:
        raise DatabaseUnreachable("It is away.")


async def test_a_transaction_that_failed_leaves_nothing_and_frees_its_place(silent: AppHarness) -> None:
    running = await start(silent, Echo(), settings={"worker_max_chats": 1})
    app = _open_app(silent, Failing(get_database(silent.engine)))
    chat = await silent.app.create_chat()
    with pytest.raises(StoreFailed):
        await (await app.chat(chat.id)).send("Rain?")
    await wait_for_room(running)
    assert (await chat.send("And now?")).text == "And now?"
    assert (await chat.messages())[0].text == "And now?"


class Unreadable(Noting):
    """The database fails the first reads of a chat."""

    failures = 2

    async def work(self, chat_id: str) -> Any:
        if self.failures:
            self.failures -= 1
            raise DatabaseUnreachable("It is away.")
        return await super().work(chat_id)


async def test_a_worker_reads_until_it_knows_what_became_of_a_commit(silent: AppHarness) -> None:
    store = Unreadable(silent.store)
    store.failures = 0
    model = Echo()
    await start(silent, model, store=store)
    store.failures = 2
    app = _open_app(silent, Losing(get_database(silent.engine)))
    chat = await silent.app.create_chat()
    with pytest.raises(StoreFailed):
        await (await app.chat(chat.id)).send("Rain?")
    await silent.wait_for_end(chat)
    assert store.failures == 0
    assert model.asked == ["hello", "Rain?"]


@pytest.mark.parametrize("drain_s", [0, 600])
async def test_a_worker_that_leaves_between_the_reservation_and_the_commit_hands_the_chat_over(
    silent: AppHarness, drain_s: float
) -> None:
    running = await start(silent, Echo(), settings={"drain_s": drain_s})

    def leave(chat_id: str, owner_id: str) -> KeptPlace | None:
        place = running.worker.reserve(chat_id, owner_id)
        assert place is not None
        running.worker.stop()
        return place

    silent.reserve = leave
    chat = await silent.app.create_chat("Rain?")
    silent.reserve = None
    await silent.stop_worker(running)
    other = Echo()
    await silent.start_worker(other, settings=make_settings(**NO_POLL))
    await silent.wait_for_end(chat)
    assert other.asked == ["Rain?"]
    async with begin_read(silent.engine) as connection:
        (turn,) = (await connection.execute(select(turns).where(turns.c.chat_id == chat.id))).all()
    assert turn.takeovers == 0
    assert [end for *_, end in await load_attempts(silent, chat)] == ["reset", "complete"]


async def test_a_worker_waits_for_its_places_before_it_is_gone(silent: AppHarness) -> None:
    running = await start(silent, Echo())
    place = running.worker.reserve("chat_x", "user_x")
    assert place is not None
    running.worker.stop()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not running.task.done()
    place.give_back()
    await silent.stop_worker(running)
    assert running.worker.reserve("chat_x", "user_x") is None


async def test_a_worker_that_is_killed_right_after_the_commit_is_taken_over(silent: AppHarness) -> None:
    running = await start(silent, Echo())

    def kill(chat_id: str, owner_id: str) -> KeptPlace | None:
        place = running.worker.reserve(chat_id, owner_id)
        running.task.cancel()
        return place

    silent.reserve = kill
    chat = await silent.app.create_chat("Rain?")
    silent.reserve = None
    await silent.kill_worker(running)
    await silent.retire_worker(running)
    other = Echo()
    await silent.start_worker(other, settings=make_settings(**NO_POLL))
    await silent.wait_for_end(chat)
    assert other.asked == ["Rain?"]


class Looking(Noting):
    """Counts how often the worker looks which chats it holds: at every poll, and at every heartbeat."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.looks = 0
        self.watched = Watched()

    async def held(self, worker_id: str) -> Any:
        self.looks += 1
        self.watched.changed()
        return await self._store.held(worker_id)


class Unsettled:
    """A place whose worker does not hear yet what became of it."""

    def __init__(self, place: KeptPlace) -> None:
        self.worker_id, self.per_user, self.plan = place.worker_id, place.per_user, place.plan

    def fill(self, begun: Begun) -> None: ...

    def give_back(self) -> None: ...

    def doubt(self) -> None: ...


async def test_a_chat_is_not_released_while_its_place_is_not_settled(silent: AppHarness) -> None:
    """A heartbeat that comes between the commit and the start of the runner must not take it for left behind."""
    model, store = Echo(), Looking(silent.store)
    settings = {"heartbeat_interval_s": 0.02, "poll_interval_s": 0.02}
    running = await start(silent, model, store=store, settings=settings)
    chat = await silent.app.create_chat()
    place = running.worker.reserve(chat.id, silent.app.owner_id)
    assert place is not None
    sent = UserInput(blocks=[Text("Rain?")])
    outcome = await silent.store.execute(chat.id, Send(), sent, reserve=lambda: Unsettled(place))
    assert outcome.begun is not None
    looks = store.looks
    await store.watched.wait_until(lambda: store.looks > looks + 8)
    assert (await silent.store.work(chat.id)).holder == running.worker.id
    place.fill(outcome.begun)
    await silent.wait_for_end(chat)
    assert model.asked == ["hello", "Rain?"]


# --- how often a worker looks ---


def test_a_look_after_a_quiet_time_is_at_once_and_a_storm_of_hints_is_read_in_batches() -> None:
    pace = SearchPace()
    assert [pace.count(10.0) for _ in range(8)] == [0.0] * 7 + [pytest.approx(0.005)]
    now_s, looks = 10.005, 0
    while now_s < 11.0:
        looks += 1
        now_s += pace.count(now_s)
    assert 190 <= looks <= 210
    assert pace.count(12.0) == 0.0


class Stopped(SystemClock):
    """Its time stands still while the test says so, and who sleeps is noted."""

    def __init__(self) -> None:
        self.stands_s: float | None = None
        self.pauses: list[float] = []
        self.paused = asyncio.Event()
        self.goes_on = asyncio.Event()

    def monotonic(self) -> float:
        return super().monotonic() if self.stands_s is None else self.stands_s

    async def sleep(self, delay_s: float) -> None:
        if self.stands_s is None or delay_s > 0.1:
            await super().sleep(delay_s)
            return
        self.pauses.append(delay_s)
        self.paused.set()
        await self.goes_on.wait()


class Probing(Noting):
    async def probe(self, worker_id: str, chat_ids: Sequence[str], **more: Any) -> Any:
        self.asked.append("probe")
        return await self._store.probe(worker_id, chat_ids, **more)


async def test_a_worker_does_not_spin_however_many_hints_come(harness: AppHarness) -> None:
    clock, store = Stopped(), Probing(harness.store)
    await start(harness, Echo(), store=store, clock=clock)
    store.asked.clear()
    clock.stands_s = clock.monotonic()
    number = 0
    while not clock.paused.is_set():
        number += 1
        harness.notifier.notify([f"chat_x{number}"])
        await asyncio.sleep(0)
    seen = store.asked.count("probe")
    assert 1 <= seen <= 8, "a few looks at once, and then a pause"
    for _ in range(50):
        number += 1
        harness.notifier.notify([f"chat_x{number}"])
        await asyncio.sleep(0)
    assert store.asked.count("probe") == seen
    assert len(clock.pauses) == 1
    clock.stands_s = None
    clock.goes_on.set()
