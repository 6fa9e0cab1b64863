"""Every command in every state, on both databases: what store/store.py promises of `execute`.

Chats are brought into a state by real commands. A command that the table allows leads to a state that it
names, and the rows agree with it (driver.py). One that it does not allow raises, and the dump of all tables
is the same afterwards: no row, no number, no event. Refused commands leave the chat as it was, so one
chat serves them all; each allowed command gets a copy of one.

Workers name what they know. Where the turn they speak of is over, that is no refusal: somebody ended it.

Neighbours: test_finish_attempt.py (what an ended attempt leaves), test_queue_in_store.py, test_history_in_store.py,
test_stop_in_store.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, dump, fill_payload, make_payload, settle_in
from tests.store.responses import respond
from tests.support.engine import get_database
from tests.support.tables import attempts

from indelible.content import Finish, Message, Text, TextDelta, ToolCall, ToolResult
from indelible.errors import ChatNotFound, IndelibleError, Interrupted, LeaseLost, NotAllowed, NotFound
from indelible.machine import TABLE, CommandName, State, Status, state_of
from indelible.machine import commands as c
from indelible.store.outcome import IdempotencyKey, Outcome, StoredResponse
from indelible.store.payloads import Payload, UserInput
from indelible.store.store import Store

Way = Callable[[Driver], Awaitable[Driver]]
Case = tuple[c.Command, Payload[Any] | None]

CALLS = ("call_1", "call_2")
KINDS: dict[CommandName, type[c.Command]] = {
    kind.name: kind
    for kind in vars(c).values()
    if isinstance(kind, type) and issubclass(kind, c.Command) and hasattr(kind, "name")
}
NEEDS_A_WORKER = {State.RUNNING, State.RUNNING_QUEUED, State.INTERRUPTING, State.INTERRUPTING_QUEUED}
BEGINNINGS = {CommandName.START_ATTEMPT, CommandName.ANNOUNCE_RETRY, CommandName.KEEP_SUMMARY}
ERROR = {"kind": "overloaded", "message": "The provider is overloaded."}
SUMMARY = Message(role="user", blocks=[Text("They spoke of rain.")], visibility="model")


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


# --- ways into a state ---


async def wait(chat: Driver) -> Driver:
    """Behind it a reply that was cut by a stop, so that it can be continued."""
    await chat.create()
    await chat.work("dead")
    await chat.do(c.Interrupt())
    return chat


async def run(chat: Driver, *, queued: bool) -> Driver:
    await chat.create()
    for command in (c.Send(), c.SendSteer()) if queued else ():
        await chat.do(command, command.name)
    return chat


async def work(chat: Driver, *, queued: bool, worker_id: str = "live") -> Driver:
    """In its second step, so that there is a reply to name."""
    await chat.create()
    await chat.do(c.Acquire(worker_id=worker_id))
    await chat.start()
    await chat.end(c.CommitStep, pending=[TextDelta("1", "Let me look."), Finish()])
    await chat.start()
    await chat.say(TextDelta("1", "It is"))
    for command in (c.Send(), c.SendSteer()) if queued else ():
        await chat.do(command, command.name)
    return chat


async def stop(chat: Driver, *, queued: bool) -> Driver:
    await work(chat, queued=queued)
    await chat.do(c.Interrupt())
    return chat


async def stop_the_dead(chat: Driver, *, queued: bool) -> Driver:
    await stop(chat, queued=queued)
    await chat.bury()
    return chat


async def ask(chat: Driver, *, queued: bool) -> Driver:
    await work(chat, queued=queued)
    await chat.say(*(ToolCall(id=id_, name="look") for id_ in CALLS), Finish("tool_calls"))
    await chat.end(c.AwaitAction, deadline_s=1e-6)
    return chat


async def fail(chat: Driver, *, queued: bool) -> Driver:
    await work(chat, queued=queued)
    await chat.end(c.Fail, error=ERROR)
    return chat


async def archive(chat: Driver, way: Way) -> Driver:
    await way(chat)
    await chat.do(c.Archive())
    return chat


async def leave(chat: Driver) -> Driver:
    return chat


def list_ways() -> Iterator[tuple[State, Way]]:
    """In the first way into a state a live worker holds the chat and speaks, wherever that is possible."""
    yield State.NONE, leave
    yield State.IDLE, wait
    yield State.IDLE_ARCHIVED, partial(archive, way=wait)
    for queued in (False, True):
        state = partial(state_of, queued=int(queued), archived=False)
        yield state(Status.RUNNING), partial(work, queued=queued)
        yield state(Status.RUNNING), partial(work, queued=queued, worker_id="dead")
        yield state(Status.RUNNING), partial(run, queued=queued)
        yield state(Status.INTERRUPTING), partial(stop, queued=queued)
        yield state(Status.INTERRUPTING), partial(stop_the_dead, queued=queued)
        yield state(Status.REQUIRES_ACTION), partial(ask, queued=queued)
        yield state(Status.ERROR), partial(fail, queued=queued)
        yield state(Status.ERROR, archived=True), partial(archive, way=partial(fail, queued=queued))


WAYS: dict[State, list[Way]] = {state: [] for state in State}
for _state, _way in list_ways():
    WAYS[_state].append(_way)


# --- commands that speak of what is there ---


async def make_case(name: CommandName, chat: Driver, state: State) -> Case:
    """A command that only the state can be against, and the payload that comes with it."""
    command = name_nothing(name) if state is State.NONE else await name_all(name, chat)
    results = [answer(id_) for id_ in CALLS]
    return command, fill_payload(command, error=ERROR, results=results, summary=SUMMARY)


async def name_all(name: CommandName, chat: Driver) -> c.Command:
    rows = await chat.queued_ids()
    kind = KINDS[name]
    fields: dict[str, Any] = {}
    if issubclass(kind, c.WorkerCommand):
        return chat.name(kind)
    for field in kind.__struct_fields__:
        match field:
            case "with_message":
                fields[field] = True
            case "message_id":
                fields[field] = await chat.last_id("assistant" if kind is c.Regenerate else "user")
            case "queued_id":
                fields[field] = rows[-1] if rows else "queued_none"
            case "queued_ids":
                fields[field] = tuple(reversed(rows))
            case "turn_id":
                fields[field] = chat.turn_id
            case "worker_id":
                fields[field] = "live"
            case "only_untitled":
                fields[field] = False
            case _:
                fields[field] = CALLS
    return kind(**fields)


def name_nothing(name: CommandName) -> c.Command:
    """In a chat that does not exist there is nothing to name."""
    kind = KINDS[name]
    some: dict[str, Any] = {"epoch": 0, "with_message": False, "failed": False, "queued_ids": (), "call_ids": ()}
    some["only_untitled"] = False
    return kind(**{field: some.get(field, "nothing") for field in kind.__struct_fields__})


def answer(call_id: str) -> ToolResult:
    return ToolResult(call_id=call_id, name="look", output="seen")


def get_refusal(name: CommandName, state: State) -> type[IndelibleError] | None:
    """What a command that the table does not allow is answered with; None: its turn is over, so it succeeds."""
    is_worker = issubclass(KINDS[name], c.WorkerCommand)
    if state is State.NONE:
        return LeaseLost if is_worker else ChatNotFound
    if name in BEGINNINGS:
        return Interrupted if state in NEEDS_A_WORKER else LeaseLost
    if name is CommandName.ACTION_EXPIRED:
        return NotAllowed if state in NEEDS_A_WORKER else None
    return None if is_worker and state not in NEEDS_A_WORKER else NotAllowed


async def expect_refusal(
    chat: Driver,
    engine: AsyncEngine,
    command: c.Command,
    payload: Payload[Any] | None,
    error: type[IndelibleError] | None,
) -> None:
    """It raises this (None: it succeeds and has nothing to do), and no table has changed."""
    before = await dump(engine)
    await be_refused(chat, command, payload, error)
    assert await dump(engine) == before, command


async def be_refused(
    chat: Driver, command: c.Command, payload: Payload[Any] | None, error: type[IndelibleError] | None
) -> None:
    if error is None:
        assert not (await chat.do(command, payload=payload)).effective, command
        return
    with pytest.raises(IndelibleError) as refusal:
        await chat.do(command, payload=payload)
    assert type(refusal.value) is error, command
    if isinstance(refusal.value, NotAllowed):
        assert refusal.value.command == command.name


# --- every pair ---


@pytest.mark.parametrize("state", State)
async def test_a_refused_command_raises_and_changes_no_row_of_any_table(
    state: State, store: Store, engine: AsyncEngine
) -> None:
    """Refused by the table, for an epoch that is over, or because a live worker holds the chat."""
    chat = await WAYS[state][0](Driver(store, engine))
    assert await chat.state() is state
    before = await dump(engine)
    for name in CommandName:
        if state not in TABLE[name]:
            command, payload = await make_case(name, chat, state)
            await be_refused(chat, command, payload, get_refusal(name, state))
            assert await dump(engine) == before, command
    for kind in KINDS.values():
        if issubclass(kind, c.WorkerCommand):
            late = chat.name(kind, epoch=chat.epoch - 1)
            given = fill_payload(late, pending=[TextDelta("1", "late")])
            await be_refused(chat, late, given, LeaseLost)
    if state in NEEDS_A_WORKER:
        await be_refused(chat, c.Acquire(worker_id="other"), None, NotAllowed)
    assert await dump(engine) == before


@pytest.mark.parametrize("state", State)
async def test_an_allowed_command_leads_where_the_table_says_and_the_rows_agree(
    state: State, store: Store, engine: AsyncEngine
) -> None:
    for way in WAYS[state]:
        original = await way(Driver(store, engine))
        assert await original.state() is state
        await original.check()
        for name in CommandName:
            if state not in TABLE[name] or way not in choose_ways(name, state):
                continue
            chat = await original.copy()
            command, payload = await make_case(name, chat, state)
            if TABLE[name][state]:
                await expect_effect(chat, command, payload, TABLE[name][state])
            else:
                await expect_refusal(chat, engine, command, payload, None)


def choose_ways(name: CommandName, state: State) -> list[Way]:
    """A worker has to hold the chat; one that takes it must find no live holder; a stop asks whether there is one."""
    ways = WAYS[state]
    if state not in NEEDS_A_WORKER:
        return ways
    if name is CommandName.ACQUIRE:
        return ways[1:]
    if name in {CommandName.INTERRUPT, CommandName.DELETE, CommandName.EDIT}:
        return ways
    return ways[:1]


async def expect_effect(
    chat: Driver, command: c.Command, payload: Payload[Any] | None, targets: frozenset[State]
) -> None:
    outcome = await chat.do(command, payload=payload)
    assert outcome.effective, command
    await chat.check()
    after = await chat.state()
    assert after in targets, command
    if after is State.NONE:
        assert outcome.status is None
    else:
        row = await chat.row()
        assert (outcome.status, outcome.seq, outcome.epoch) == (row.status, row.seq, row.epoch)
        running = [attempt.id for attempt in await chat.rows(attempts) if attempt.ended_at is None]
        assert [outcome.live_id] == (running or [None])


async def test_an_ending_whose_answer_was_lost_is_repeated_without_effect(store: Store, engine: AsyncEngine) -> None:
    original = await run(Driver(store, engine), queued=False)
    await original.work("live", TextDelta("1", "Done."), Finish())
    for kind in (c.CommitStep, c.FinishTurn, c.AwaitAction, c.Fail):
        chat = await original.copy()
        ending = chat.name(kind)
        error = {"error": ERROR} if kind is c.Fail else {}
        payload = make_payload(ending, pending=[TextDelta("2", " Really.")], **error)
        assert (await chat.do(ending, payload=payload)).effective
        await expect_refusal(chat, engine, ending, payload, None)


async def test_a_stop_whose_answer_was_lost_is_repeated_without_effect(store: Store, engine: AsyncEngine) -> None:
    chat = await stop(Driver(store, engine), queued=True)
    ending = chat.name(c.FinishInterruption)
    assert (await chat.do(ending)).effective
    await expect_refusal(chat, engine, ending, None, None)


async def test_a_late_stop_names_a_turn_that_is_over_and_does_not_stop_the_next(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await work(Driver(store, engine), queued=True)
    clicked = c.Interrupt(turn_id=chat.turn_id)
    await chat.say(Finish())
    await chat.end(c.FinishTurn)
    await expect_refusal(chat, engine, clicked, None, None)
    assert await chat.state() is State.RUNNING_QUEUED


async def test_a_name_that_is_not_in_this_chat_is_not_found_and_changes_nothing(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await work(Driver(store, engine), queued=True)
    for command in (
        c.Edit(message_id="message_nowhere"),
        c.Regenerate(message_id="message_nowhere"),
        c.DeleteQueued(queued_id="queued_nowhere"),
        c.EditQueued(queued_id="queued_nowhere"),
        c.PromoteQueued(queued_id="queued_nowhere"),
    ):
        await expect_refusal(chat, engine, command, fill_payload(command), NotFound)


async def test_the_names_of_another_chat_are_not_found(store: Store, engine: AsyncEngine) -> None:
    other = await work(Driver(store, engine), queued=True)
    chat = await work(Driver(store, engine), queued=True)
    (queued_id, _), message_id = await other.queued_ids(), await other.last_id("user")
    edit = c.Edit(message_id=message_id)
    await expect_refusal(chat, engine, edit, fill_payload(edit), NotFound)
    await expect_refusal(chat, engine, c.DeleteQueued(queued_id=queued_id), None, NotFound)


# --- what is told after a commit ---


class Listener:
    """Notes which chats it is told of."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def hear(self, outcome: Outcome) -> None:
        self.heard.append(outcome.chat_id)

    def take(self) -> list[str]:
        heard, self.heard = self.heard, []
        return heard


async def test_a_chat_is_announced_after_every_commit_that_changed_it_and_at_no_other_time(
    store: Store, engine: AsyncEngine
) -> None:
    listener = Listener()
    loud = Store(get_database(engine), on_committed=listener.hear)
    chat = await Driver(loud, engine).create()
    assert listener.take() == [chat.id]
    await chat.work()
    assert listener.take() == [chat.id] * 2, "acquired, and an attempt begun"
    assert not (await chat.do(c.Interrupt(turn_id="turn of yesterday"))).effective
    with pytest.raises(NotAllowed):
        await chat.do(c.Retry())
    with pytest.raises(LeaseLost):
        await chat.do(chat.name(c.CommitStep, epoch=chat.epoch - 1))
    assert listener.take() == [], "nothing happened, and nothing was heard"
    await chat.end(c.FinishTurn, pending=[Finish()])
    twin = Driver(loud, engine)
    await loud.fork(chat.id, await chat.last_id("user"), new_chat_id=twin.id, owner_id=OWNER)
    assert listener.take() == [chat.id, twin.id]
    await chat.do(c.Delete())
    assert listener.take() == [chat.id]


async def test_an_outcome_says_who_has_to_act(store: Store, engine: AsyncEngine) -> None:
    """Workers only if the chat waits for one, or its holder has to stop or has lost it."""
    woken: list[tuple[bool, bool]] = []
    loud = Store(
        get_database(engine), on_committed=lambda outcome: woken.append((outcome.wakes_readers, outcome.wakes_workers))
    )
    readers, both, nobody = (True, False), (True, True), (False, False)

    def take() -> list[tuple[bool, bool]]:
        found, woken[:] = list(woken), []
        return found

    chat = await Driver(loud, engine).create()
    assert take() == [both], "a new message waits for a worker"
    await chat.work()
    assert take() == [nobody, readers], "acquired by the one that asked; an attempt has begun"
    await chat.do(c.Send(), "next")
    assert take() == [readers], "its holder finds the queue when it has ended the turn"
    await chat.do(c.Interrupt())
    assert take() == [both]
    await chat.end(c.FinishInterruption)
    assert take() == [readers], "the next turn has the same holder"
    await chat.do(c.Release(epoch=chat.epoch))
    assert take() == [(False, True)], "nobody holds it now"
    await chat.work()
    take()
    await chat.end(c.FinishTurn, pending=[Finish()])
    assert take() == [readers], "nothing is left to do"
    await chat.do(c.Delete())
    assert take() == [both]


async def test_a_repeated_request_is_announced_once(store: Store, engine: AsyncEngine) -> None:
    listener = Listener()
    chat = await Driver(store, engine).create()
    loud = Store(get_database(engine), on_committed=listener.hear)
    request = IdempotencyKey(user_id=OWNER, key="k1", route="POST /messages", body_hash=b"1")
    send = partial(loud.execute, chat.id, c.Send(), UserInput(blocks=[]))
    for _ in range(2):
        await respond(send, request._replace(respond=lambda outcome: StoredResponse(202, b"{}")))
    assert listener.take() == [chat.id]
    late = IdempotencyKey(user_id=OWNER, key="k2", route="POST /interrupt", body_hash=b"1")
    stop = c.Interrupt(turn_id="turn of yesterday")
    await loud.execute(chat.id, stop, key=late._replace(respond=lambda outcome: StoredResponse(200, b"{}")))
    assert listener.take() == []


async def test_taking_or_giving_up_a_chat_is_reported(store: Store, engine: AsyncEngine) -> None:
    listener = Listener()
    loud = Store(get_database(engine), on_committed=listener.hear)
    chat = await Driver(loud, engine).create()
    for _ in range(4):
        listener.take()
        await chat.bury()
        await loud.acquire("live", limit=1)
        assert listener.take() == [chat.id]
        if await chat.state() is State.ERROR:
            break
    assert await chat.state() is State.ERROR


async def test_what_is_announced_is_committed_by_then(store: Store, engine: AsyncEngine) -> None:
    """P1: whoever is woken looks with a connection of its own, and finds it."""
    looks: list[asyncio.Task[int]] = []

    async def look(chat_id: str) -> int:
        return len(await store.events(chat_id, after=0))

    loud = Store(
        get_database(engine), on_committed=lambda outcome: looks.append(asyncio.create_task(look(outcome.chat_id)))
    )
    chat = await Driver(loud, engine).create()
    sent = await chat.do(c.Send(), "next")
    first, second = await asyncio.gather(*looks)
    assert 0 < first <= second == sent.seq


async def test_a_chat_without_an_owner_is_not_created(store: Store, engine: AsyncEngine) -> None:
    before = await dump(engine)
    with pytest.raises(TypeError, match="NewChat"):
        await store.execute("chat_1", c.Create())
    assert await dump(engine) == before


async def test_a_message_without_an_author_is_its_owners(store: Store, engine: AsyncEngine) -> None:
    chat = await work(Driver(store, engine), queued=False)
    await store.execute(chat.id, c.Send(), UserInput(blocks=[]))
    async with engine.connect() as connection:
        authors = (await connection.exec_driver_sql("SELECT author_id FROM queue")).scalars().all()
    assert authors == [OWNER]
