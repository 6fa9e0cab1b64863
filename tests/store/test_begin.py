"""A turn that begins in the transaction of the command that asked for it: what it leaves, and where it stops short.

The worker here is a `KeptPlace`, which plans as it is told and notes what becomes of it. Whether the rows are right is
judged by the same chat, on which the commands were carried out one after the other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import asdict
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, fill_payload, make_payload, settle_in
from tests.store.statements import observed
from tests.store.test_statements import counting
from tests.support.engine import begin_read, begin_write, get_database
from tests.support.tables import attempts, chats, events, messages, queue, turns

from indelible.content import Finish, Message, Text, TextDelta, ToolCall, ToolResult
from indelible.errors import NotAllowed, NotFound
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.database.transaction import Database, Transaction, Work
from indelible.store.outcome import ForkPoint, IdempotencyKey, Outcome, RequestRepeated, StoredResponse
from indelible.store.payloads import AddedHistory, AttemptStart, ChatPatch, NewChat, ToolResultsInput, UserInput
from indelible.store.queries.open_turn import Begun, OpenWork
from indelible.store.store import Store

START = AttemptStart(model="demo-1", provider="demo")
IDS = re.compile(r"(chat|turn|attempt|message|queued)_[0-9A-Za-z]{26}")


class KeptPlace:
    """A worker's place: `planned` is the work that it saw, `settled` what became of it."""

    def __init__(self, *, worker_id: str = "live", per_user: int = 500, start: AttemptStart | None = START) -> None:
        self.worker_id = worker_id
        self.per_user = per_user
        self.planned: list[OpenWork] = []
        self.settled: list[Any] = []
        self._start = start

    def __call__(self) -> KeptPlace:
        return self

    def plan(self, work: OpenWork) -> AttemptStart | None:
        self.planned.append(work)
        return None if work.kind == "compaction" else self._start

    def fill(self, begun: Begun) -> None:
        self.settled.append(begun)

    def give_back(self) -> None:
        self.settled.append("given back")

    def doubt(self) -> None:
        self.settled.append("in doubt")


async def describe(chat: Driver, engine: AsyncEngine) -> Any:
    """All rows of a chat, with names in the order in which they appear, and without times."""
    found: list[Any] = []
    async with begin_read(engine) as connection:
        for table, column, order in (
            (events, events.c.chat_id, events.c.seq),
            (chats, chats.c.id, chats.c.id),
            (turns, turns.c.chat_id, turns.c.number),
            (attempts, attempts.c.chat_id, attempts.c.id),
            (messages, messages.c.chat_id, messages.c.id),
            (queue, queue.c.chat_id, queue.c.position),
        ):
            rows = (await connection.execute(select(table).where(column == chat.id).order_by(order))).all()
            found += [[table.name, *(_show(name, value) for name, value in row._mapping.items())] for row in rows]
    names: dict[str, str] = {}
    return [IDS.sub(lambda name: names.setdefault(name[0], f"{name[1]} {len(names)}"), repr(row)) for row in found]


def _show(column: str, value: Any) -> Any:
    if column == "at" or column.endswith("_at"):
        return column, value is not None
    if column == "timings":
        return column, value is not None
    return column, value


# --- how a chat comes to the command, and the command ---


async def be_new(chat: Driver) -> c.Command:
    return c.Create(with_message=True)


async def be_empty(chat: Driver) -> c.Command:
    await chat.create(None)
    return c.Send()


async def be_idle(chat: Driver) -> c.Command:
    await chat.create()
    await chat.work("live", TextDelta("1", "Hi."), Finish())
    await chat.end(c.FinishTurn)
    return c.Send()


async def be_idle_and_interrupted(chat: Driver) -> c.Command:
    await be_idle(chat)
    return c.SendInterrupt()


async def have_failed(chat: Driver) -> c.Command:
    await chat.create()
    await chat.work()
    await chat.end(c.Fail)
    return c.Send()


async def have_failed_and_retry(chat: Driver) -> c.Command:
    await have_failed(chat)
    return c.Retry()


async def have_failed_with_a_queue(chat: Driver) -> c.Command:
    await chat.create()
    await chat.work()
    await chat.do(c.Send(), "queued")
    await chat.end(c.Fail)
    return c.Send()


async def promote(chat: Driver) -> c.Command:
    await have_failed_with_a_queue(chat)
    return c.PromoteQueued(queued_id=(await chat.queued_ids())[0])


async def be_stopped_and_continue(chat: Driver) -> c.Command:
    await chat.create()
    await chat.work()
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption)
    return c.Continue()


async def have_a_partial_history(chat: Driver) -> c.Command:
    await chat.create(None)
    said = [
        Message(role="user", blocks=[Text("Go")]),
        Message(role="assistant", blocks=[Text("I")], partial=True, reason="failed"),
    ]
    await chat.do(c.AddMessages(), payload=AddedHistory(history=said))
    return c.Continue()


async def edit(chat: Driver) -> c.Command:
    await be_idle(chat)
    return c.Edit(message_id=await chat.last_id("user"))


async def edit_what_a_dead_worker_answers(chat: Driver) -> c.Command:
    await chat.create()
    await chat.work()
    await chat.bury()
    return c.Edit(message_id=await chat.last_id("user"))


async def regenerate(chat: Driver) -> c.Command:
    await be_idle(chat)
    return c.Regenerate(message_id=await chat.last_id("assistant"))


async def wait_for_results(chat: Driver) -> c.Command:
    await chat.create()
    await chat.work("live", ToolCall("call_0", "look", "{}"), Finish("tool_calls"))
    await chat.end(c.AwaitAction)
    return c.ToolResults(call_ids=("call_0",))


async def interrupt_a_wait(chat: Driver) -> c.Command:
    await wait_for_results(chat)
    return c.SendInterrupt()


async def compact(chat: Driver) -> c.Command:
    await be_idle(chat)
    return c.Compact()


Prepare = Callable[[Driver], Awaitable[c.Command]]
BEGINNINGS: list[Prepare] = [
    be_new,
    be_empty,
    be_idle,
    be_idle_and_interrupted,
    have_failed,
    have_failed_and_retry,
    have_failed_with_a_queue,
    promote,
    be_stopped_and_continue,
    have_a_partial_history,
    edit,
    edit_what_a_dead_worker_answers,
    regenerate,
    wait_for_results,
    interrupt_a_wait,
    compact,
]


async def carry_out(chat: Driver, command: c.Command, place: KeptPlace | None = None, **more: Any) -> Outcome:
    """As a user would send it."""
    given: Any = {"blocks": [Text("Go on")]}
    if isinstance(command, c.Create):
        given |= {"owner_id": OWNER, "suggested_title": "Go on"}
    if isinstance(command, c.ToolResults):
        given = {"results": [ToolResult("call_0", "look", "a tree")]}
    try:
        payload: Any = make_payload(command, **given)
    except AssertionError:
        payload = make_payload(command)
    return await chat.store.execute(chat.id, command, payload, user_id=OWNER, reserve=place, **more)


async def step_by_step(chat: Driver, command: c.Command) -> Outcome:
    outcome = await carry_out(chat, command)
    acquired = await chat.do(c.Acquire(worker_id="live"))
    work = await chat.store.work(chat.id)
    if work.kind == "reply":
        start = c.StartAttempt(epoch=acquired.epoch, turn_id=work.turn_id or "")
        await chat.store.execute(chat.id, start, START)
    return outcome


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.mark.parametrize("prepare", BEGINNINGS)
async def test_what_is_left_is_what_the_commands_leave_one_after_the_other(
    store: Store, engine: AsyncEngine, prepare: Prepare
) -> None:
    at_once, apart, place = Driver(store, engine), Driver(store, engine), KeptPlace()
    outcome = await carry_out(at_once, await prepare(at_once), place)
    told = await step_by_step(apart, await prepare(apart))
    assert await describe(at_once, engine) == await describe(apart, engine)
    await at_once.check()

    (begun, _given_back) = place.settled
    work = await store.work(at_once.id)
    assert (work.holder, work.epoch, work.turn_id) == ("live", begun.epoch, begun.turn_id)
    assert begun.attempt == work.attempt
    assert (outcome.queued_id is None) == (told.queued_id is None)
    seen = ("seq", "status", "live_id", "wakes_readers", "epoch", "attempt")
    assert [getattr(outcome, name) for name in seen] == [getattr(told, name) for name in seen]
    assert [message.role for message in outcome.messages] == [message.role for message in told.messages]
    assert not outcome.wakes_workers or prepare is edit_what_a_dead_worker_answers


@pytest.mark.parametrize("prepare", BEGINNINGS)
async def test_the_worker_gets_the_work_that_it_would_read_next(
    store: Store, engine: AsyncEngine, prepare: Prepare
) -> None:
    chat, place = Driver(store, engine), KeptPlace(start=None)
    await carry_out(chat, await prepare(chat), place)
    (begun, _given_back) = place.settled
    assert begun.work == place.planned[0] == await store.work(chat.id)
    assert begun.attempt is None


async def test_a_user_with_too_many_busy_chats_waits(store: Store, engine: AsyncEngine) -> None:
    await Driver(store, engine).create()
    chat, place = Driver(store, engine), KeptPlace(per_user=1)
    outcome = await carry_out(chat, c.Create(with_message=True), place)
    assert place.settled == ["given back"]
    assert (outcome.begun, outcome.wakes_workers) == (None, True)
    assert (await chat.row()).holder is None


async def test_busy_chats_of_others_do_not_count(store: Store, engine: AsyncEngine) -> None:
    other = await store.ensure_user("Bob")
    new = NewChat(owner_id=other, blocks=[Text("Hi")])
    await store.execute(new_id("chat"), c.Create(with_message=True), new)
    chat, place = Driver(store, engine), KeptPlace(per_user=1)
    await carry_out(chat, c.Create(with_message=True), place)
    assert isinstance(place.settled[0], Begun)


@pytest.mark.parametrize(("number", "length"), [(101, 1), (2, 150_000)])
async def test_a_long_conversation_is_not_read_in_the_transaction(
    store: Store, engine: AsyncEngine, number: int, length: int
) -> None:
    chat, place = await Driver(store, engine).create(None), KeptPlace()
    said = [Message(role="user", blocks=[Text("b" * length)])] * number
    await chat.do(c.AddMessages(), payload=AddedHistory(history=said))
    await carry_out(chat, c.Send(), place)
    (begun, _given_back) = place.settled
    assert (place.planned, begun.work, begun.attempt) == ([], None, None)
    assert (await store.work(chat.id)).holder == "live"


async def test_a_chat_that_has_gone_on_for_long_is_not_even_looked_at(store: Store, engine: AsyncEngine) -> None:
    chat, place = await Driver(store, engine).create(None), KeptPlace()
    async with begin_write(engine) as connection:
        await connection.execute(update(chats).where(chats.c.id == chat.id).values(seq=2000))
    with counting(engine) as count:
        await carry_out(chat, c.Send(), place)
    assert not [sent for sent in count.statements if "response_id" in sent and "WITH RECURSIVE" in sent]
    assert place.settled[0].work is None


async def test_what_cannot_be_read_is_left_to_the_worker(store: Store, engine: AsyncEngine) -> None:
    chat, place = Driver(store, engine), KeptPlace()
    await be_idle(chat)
    async with begin_write(engine) as connection:
        broken = update(messages).where(messages.c.chat_id == chat.id, messages.c.role == "user")
        await connection.execute(broken.values(blocks=b'[{"type":"nonsense"}]'))
    await carry_out(chat, c.Send(), place)
    assert place.settled[0].work is None
    assert (await chat.row()).holder == "live"


async def test_a_message_that_has_to_wait_takes_no_place(store: Store, engine: AsyncEngine) -> None:
    chat, place = await Driver(store, engine).create(), KeptPlace()
    await chat.work()
    outcome = await carry_out(chat, c.Send(), place)
    assert outcome.queued_id is not None
    assert place.settled == ["given back"]


async def test_a_refused_command_gives_the_place_back(store: Store, engine: AsyncEngine) -> None:
    chat, place = await Driver(store, engine).create(), KeptPlace()
    with pytest.raises(NotAllowed):
        await carry_out(chat, c.Retry(), place)
    with pytest.raises(NotFound):
        await store.execute(chat.id, c.Send(), fill_payload(c.Send()), user_id="user_bob", reserve=place)
    assert place.settled == ["given back", "given back"]


async def test_a_request_that_is_repeated_gets_its_response_and_takes_no_second_place(
    store: Store, engine: AsyncEngine
) -> None:
    def respond(outcome: Outcome) -> StoredResponse:
        return StoredResponse(200, str(outcome.seq).encode())

    chat, places = await Driver(store, engine).create(None), [KeptPlace(), KeptPlace()]
    key = IdempotencyKey(OWNER, "k1", "POST /messages", b"1", respond)
    first = await carry_out(chat, c.Send(), places[0], key=key)
    with pytest.raises(RequestRepeated) as repeated:
        await carry_out(chat, c.Send(), places[1], key=key)
    assert repeated.value.response == respond(first)
    assert places[1].settled == ["given back"]
    assert len(await chat.rows(attempts)) == 1


async def test_requests_with_one_key_at_the_same_moment_begin_one_turn(store: Store, engine: AsyncEngine) -> None:
    chat, places = await Driver(store, engine).create(None), [KeptPlace() for _ in range(6)]
    key = IdempotencyKey(OWNER, "k1", "POST /messages", b"1")
    sent = [carry_out(chat, c.Send(), place, key=key) for place in places]
    results = await asyncio.gather(*sent, return_exceptions=True)
    assert sum(isinstance(result, Outcome) for result in results) == 1
    assert sum(isinstance(place.settled[0], Begun) for place in places) == 1
    assert len(await chat.rows(attempts)) == 1


async def test_messages_to_one_chat_at_the_same_moment_begin_one_turn(store: Store, engine: AsyncEngine) -> None:
    chat, places = await Driver(store, engine).create(None), [KeptPlace() for _ in range(6)]
    await asyncio.gather(*(carry_out(chat, c.Send(), place) for place in places))
    assert sum(isinstance(place.settled[0], Begun) for place in places) == 1
    assert len(await chat.queued_ids()) == 5
    await chat.check()


def drive_on(store: Store, chat: Driver, engine: AsyncEngine) -> Driver:
    other = Driver(store, engine)
    other.id = chat.id
    return other


class Losing:
    """The database of a store, which commits, and whose answer is lost."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, work: Work[Any], **_more: Any) -> Any:
        await self._database.write(work)
        raise DatabaseUnreachable("The connection was lost.")


async def test_a_commit_whose_answer_is_lost_leaves_the_place_in_doubt(store: Store, engine: AsyncEngine) -> None:
    chat, place = await Driver(store, engine).create(None), KeptPlace()
    losing: Any = Losing(store.database)
    with pytest.raises(DatabaseUnreachable):
        await carry_out(drive_on(Store(losing), chat, engine), c.Send(), place)
    assert place.settled == ["in doubt"]
    assert (await store.work(chat.id)).holder == "live"


async def test_a_caller_that_is_cancelled_leaves_the_chat_to_the_worker(store: Store, engine: AsyncEngine) -> None:
    chat, place = await Driver(store, engine).create(None), KeptPlace()
    sending = asyncio.create_task(carry_out(chat, c.Send(), place))
    while not place.planned:
        await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert isinstance(place.settled[0], Begun)
    assert place.settled[0].attempt is not None


async def test_results_with_a_message_begin_after_the_message(store: Store, engine: AsyncEngine) -> None:
    chat, place = Driver(store, engine), KeptPlace()
    await wait_for_results(chat)
    results = ToolResultsInput(results=[ToolResult("call_0", "look", "a tree")])
    sent = UserInput(blocks=[Text("And?")])
    outcome = await store.continue_chat(chat.id, sent, results=results, user_id=OWNER, reserve=place)
    kinds = [row.kind for row in await chat.rows(events, events.c.seq)]
    assert kinds[outcome.seq - 1] == "queue"
    assert kinds[outcome.seq :] == ["attempt"]
    assert outcome.begun == place.settled[0]
    assert not outcome.wakes_workers


async def test_a_turn_begins_at_once_in_a_copy_with_its_settings(store: Store, engine: AsyncEngine) -> None:
    chat, place = Driver(store, engine), KeptPlace()
    await be_idle(chat)
    copy = ForkPoint(await chat.last_id("assistant"), new_id("chat"))
    patch = ChatPatch(system_prompt="Be brief.")
    sent = UserInput(blocks=[Text("And?")])
    await store.continue_chat(chat.id, sent, patch=patch, fork=copy, user_id=OWNER, reserve=place)
    (begun, _given_back) = place.settled
    assert begun.work.chat_id == copy.new_chat_id
    assert begun.work.system_prompt == "Be brief."
    assert asdict(begun.attempt)["chat_id"] == copy.new_chat_id


async def test_a_message_its_lease_its_work_and_its_attempt_cost_one_transaction_and_ten_statements(
    store: Store, engine: AsyncEngine
) -> None:
    chat, place = Driver(store, engine), KeptPlace()
    await be_idle(chat)
    with counting(engine) as count:
        await carry_out(chat, c.Send(), place)
    assert count.transactions == 1
    assert len(count.statements) <= 10, count.statements


async def test_the_chats_row_is_written_once(store: Store, engine: AsyncEngine) -> None:
    chat, place = Driver(store, engine), KeptPlace()
    await be_idle(chat)
    with observed(get_database(engine)) as sent:
        await carry_out(chat, c.Send(), place)
    assert sum(statement.count("UPDATE chats") for statement in sent) == 1
    assert sum(statement.count("INSERT INTO events") for statement in sent) == 1


async def test_without_a_place_nothing_is_different(store: Store, engine: AsyncEngine) -> None:
    chat = Driver(store, engine)
    await be_idle(chat)
    outcome = await store.execute(chat.id, c.Send(), UserInput(blocks=[Text("Hi")]), reserve=lambda: None)
    assert outcome.wakes_workers
    assert (await chat.row()).holder is None


async def test_work_that_runs_twice_begins_once(store: Store, engine: AsyncEngine) -> None:
    """SQLite runs a group again if the database ended its transaction."""

    class Twice:
        def __init__(self, database: Database) -> None:
            self._database = database

        def __getattr__(self, name: str) -> Any:
            return getattr(self._database, name)

        async def write(self, work: Work[Any], **more: Any) -> Any:
            async def undo(transaction: Transaction) -> None:
                await work(transaction)
                raise NotFound

            with pytest.raises(NotFound):
                await self._database.write(undo)
            return await self._database.write(work, **more)

    chat, place = await Driver(store, engine).create(None), KeptPlace()
    twice: Any = Twice(store.database)
    await carry_out(drive_on(Store(twice), chat, engine), c.Send(), place)
    assert len(place.planned) == 2
    assert len(place.settled) == 2
    assert len(await chat.rows(attempts)) == 1
