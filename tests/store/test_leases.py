"""Workers on both databases: who is alive, and who gets which chat (R2), fairly between users."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.statements import counted
from tests.support.engine import begin_read, begin_write, get_database, transact
from tests.support.tables import chats, turns, users, workers

from indelible.content import Finish, Text, ToolCall, ToolResult
from indelible.errors import LeaseLost, NotAllowed
from indelible.machine.commands import (
    Acquire,
    AwaitAction,
    Create,
    Fail,
    Interrupt,
    Release,
    Send,
    StartAttempt,
    UpdateChat,
)
from indelible.machine.states import Status
from indelible.store.journal.append import JournalRow, RunKey, RunSettled, RunStarted
from indelible.store.payloads import AwaitedStep, ChatPatch, NewChat, UserInput
from indelible.store.queries.leases import beat, find_candidates, retire
from indelible.store.store import Store

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
NEVER_S = 3600.0
"""Longer than any test: who has just beaten is alive until its end, and only who `let_die` is about is dead."""


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id="user_1", name="ada", created_at=LONG_AGO))
    return Store(get_database(engine), lease_timeout_s=NEVER_S)


async def run_chats(store: Store, *names: str, owner_id: str = "user_1") -> None:
    for name in names:
        await store.execute(name, Create(with_message=True), NewChat(owner_id=owner_id, blocks=[Text("hi")]))


async def hold(store: Store, *names: str, worker_id: str = "worker_x") -> None:
    """A live worker works on these."""
    await store.beat(worker_id)
    for name in names:
        await store.execute(name, Acquire(worker_id=worker_id))


async def find(store: Store, engine: AsyncEngine, *, per_user: int | None = None, limit: int = 99) -> list[str]:
    return await transact(
        engine, find_candidates, "worker_me", lease_timeout_s=store.lease_timeout_s, limit=limit, per_user=per_user
    )


async def let_die(engine: AsyncEngine, worker_id: str) -> None:
    async with begin_write(engine) as connection:
        await connection.execute(update(workers).where(workers.c.id == worker_id).values(heartbeat_at=LONG_AGO))


async def test_the_oldest_chats_are_taken_first_and_no_more_than_asked(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2", "chat_3")
    await transact(engine, beat, "worker_a")
    taken = await store.acquire("worker_a", limit=2)
    assert [outcome.chat_id for outcome in taken] == ["chat_1", "chat_2"]
    assert [outcome.epoch for outcome in taken] == [1, 1]


async def test_an_interrupted_chat_comes_before_running_ones(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await transact(engine, beat, "worker_a")
    await store.execute("chat_2", Acquire(worker_id="worker_a"))
    await store.execute("chat_2", Interrupt())
    await let_die(engine, "worker_a")
    await transact(engine, beat, "worker_b")
    taken = await store.acquire("worker_b", limit=1)
    assert [outcome.chat_id for outcome in taken] == ["chat_2"]


async def test_a_chat_of_a_live_worker_is_not_handed_out_and_one_of_a_dead_worker_is(
    store: Store, engine: AsyncEngine
) -> None:
    await run_chats(store, "chat_1")
    for worker in ("worker_a", "worker_b"):
        await transact(engine, beat, worker)
    (held,) = await store.acquire("worker_a", limit=9)
    assert await store.acquire("worker_b", limit=9) == []
    with pytest.raises(NotAllowed):
        await store.execute("chat_1", Acquire(worker_id="worker_b"))
    await let_die(engine, "worker_a")
    (taken,) = await store.acquire("worker_b", limit=9)
    assert taken.epoch == held.epoch + 1
    assert held.turn_id is not None
    with pytest.raises(LeaseLost):
        await store.execute("chat_1", StartAttempt(epoch=held.epoch, turn_id=held.turn_id))


async def test_a_candidate_that_came_alive_again_is_judged_anew_under_the_lock(
    store: Store, engine: AsyncEngine
) -> None:
    """The candidates are a hint: between choosing and locking, the holder's heartbeat comes through."""
    await run_chats(store, "chat_1")
    await transact(engine, beat, "worker_a")
    await store.acquire("worker_a", limit=1)
    await let_die(engine, "worker_a")
    assert await transact(engine, find_candidates, "worker_me", lease_timeout_s=store.lease_timeout_s, limit=9) == [
        "chat_1"
    ]
    await transact(engine, beat, "worker_a")
    with pytest.raises(NotAllowed):
        await store.execute("chat_1", Acquire(worker_id="worker_b"))


async def test_a_retired_worker_hands_over_at_once(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await transact(engine, beat, "worker_a")
    first, _ = await store.acquire("worker_a", limit=2)
    await store.execute("chat_1", Release(epoch=first.epoch))
    assert await transact(engine, find_candidates, "worker_me", lease_timeout_s=store.lease_timeout_s, limit=9) == [
        "chat_1"
    ]
    await transact(engine, retire, "worker_a")
    assert await transact(engine, find_candidates, "worker_me", lease_timeout_s=store.lease_timeout_s, limit=9) == [
        "chat_2",
        "chat_1",
    ]


async def test_a_heartbeat_moves_on_and_keeps_the_start(store: Store, engine: AsyncEngine) -> None:
    await transact(engine, beat, "worker_a")
    await let_die(engine, "worker_a")
    await transact(engine, beat, "worker_a")
    async with begin_read(engine) as connection:
        row = (await connection.execute(select(workers))).one()
    assert row.heartbeat_at - LONG_AGO > timedelta(days=1)
    assert row.started_at <= row.heartbeat_at


async def test_many_workers_at_once_never_get_the_same_chat(store: Store, engine: AsyncEngine) -> None:
    names = [f"chat_{number:02}" for number in range(12)]
    await run_chats(store, *names)
    rivals = [f"worker_{letter}" for letter in "abcd"]
    for worker in rivals:
        await transact(engine, beat, worker)
    taken: list[str] = []
    while len(taken) < len(names):
        rounds = await asyncio.gather(*(store.acquire(worker, limit=4) for worker in rivals))
        got = [outcome.chat_id for outcomes in rounds for outcome in outcomes]
        assert got, "nobody got anything although there was something to get"
        taken += got
    assert sorted(taken) == names
    async with begin_read(engine) as connection:
        epochs = (await connection.execute(select(chats.c.epoch))).scalars().all()
    assert set(epochs) == {1}


async def test_r2_a_chat_that_somebody_has_locked_is_passed_over_and_not_waited_for(
    store: Store, engine: AsyncEngine
) -> None:
    """Only PostgreSQL has row locks; SQLite's writers take turns."""
    await run_chats(store, "chat_1", "chat_2")
    await transact(engine, beat, "worker_a")
    if engine.dialect.name == "sqlite":
        taken = await store.acquire("worker_a", limit=2)
        assert [outcome.chat_id for outcome in taken] == ["chat_1", "chat_2"]
        return
    async with begin_write(engine) as connection:
        await connection.execute(select(chats).where(chats.c.id == "chat_1").with_for_update())
        taken = await store.acquire("worker_a", limit=2)
    assert [outcome.chat_id for outcome in taken] == ["chat_2"]


# --- between users ---


@pytest.fixture
async def crowd(store: Store) -> Store:
    """One user's three chats are older than the only one of another and the two of a third."""
    await run_chats(store, "ada_1", "ada_2", "ada_3", owner_id="user_1")
    await run_chats(store, "bob_1", owner_id=await store.ensure_user("bob"))
    await run_chats(store, "cyd_1", "cyd_2", owner_id=await store.ensure_user("cyd"))
    return store


async def test_every_users_first_chat_comes_before_anybodys_second(crowd: Store, engine: AsyncEngine) -> None:
    assert await find(crowd, engine) == ["ada_1", "bob_1", "cyd_1", "ada_2", "cyd_2", "ada_3"]
    assert await find(crowd, engine, limit=2) == ["ada_1", "bob_1"]


async def test_chats_that_are_being_worked_on_count_as_their_users_first(crowd: Store, engine: AsyncEngine) -> None:
    await hold(crowd, "ada_1", "ada_2")
    assert await find(crowd, engine) == ["bob_1", "cyd_1", "cyd_2", "ada_3"]


async def test_no_user_gets_more_than_the_limit_at_a_time(crowd: Store, engine: AsyncEngine) -> None:
    assert await find(crowd, engine, per_user=1) == ["ada_1", "bob_1", "cyd_1"]
    assert await find(crowd, engine, per_user=2) == ["ada_1", "bob_1", "cyd_1", "ada_2", "cyd_2"]
    await hold(crowd, "ada_3")
    assert await find(crowd, engine, per_user=1) == ["bob_1", "cyd_1"]
    await crowd.retire("worker_x")
    assert await find(crowd, engine, per_user=1) == ["ada_1", "bob_1", "cyd_1"], "a dead worker's chat is nobody's"


async def test_what_is_being_stopped_comes_first_and_never_has_to_wait(crowd: Store, engine: AsyncEngine) -> None:
    await hold(crowd, "ada_3", "cyd_2")
    for name in ("ada_3", "cyd_2"):
        await crowd.execute(name, Interrupt())
    await crowd.retire("worker_x")
    await hold(crowd, "ada_1", "cyd_1", worker_id="worker_y")
    assert await find(crowd, engine, per_user=1) == ["ada_3", "cyd_2", "bob_1"]


async def test_a_worker_takes_fairly_and_within_the_limit(crowd: Store, engine: AsyncEngine) -> None:
    await crowd.beat("worker_a")
    taken = await crowd.acquire("worker_a", limit=9, per_user=1)
    assert [outcome.chat_id for outcome in taken] == ["ada_1", "bob_1", "cyd_1"]
    assert await crowd.acquire("worker_a", limit=9, per_user=1) == []
    more = await crowd.acquire("worker_a", limit=1, per_user=2)
    assert [outcome.chat_id for outcome in more] == ["ada_2"]


async def test_chats_that_are_just_beginning_count_in_the_limit_of_their_user(crowd: Store) -> None:
    reserved = {"user_1": 1}
    await crowd.beat("worker_a")
    probe = await crowd.probe("worker_a", EVERY, per_user=1, reserved=reserved)
    assert (probe.runnable, probe.held_back[0]) == (["bob_1", "cyd_1"], "ada_1")
    taken = await crowd.acquire("worker_a", limit=9, per_user=2, reserved=reserved)
    assert [outcome.chat_id for outcome in taken] == ["ada_1", "bob_1", "cyd_1", "cyd_2"]


async def test_many_workers_at_once_keep_the_limit_of_a_user(crowd: Store, engine: AsyncEngine) -> None:
    rivals = [f"worker_{letter}" for letter in "abcd"]
    for worker in rivals:
        await crowd.beat(worker)
    for _ in range(3):
        await asyncio.gather(*(crowd.acquire(worker, limit=9, per_user=1) for worker in rivals))
        async with begin_read(engine) as connection:
            held = select(chats.c.id).where(chats.c.holder.is_not(None)).order_by(chats.c.id)
            assert (await connection.execute(held)).scalars().all() == ["ada_1", "bob_1", "cyd_1"]


async def test_chats_that_rest_or_wait_for_an_answer_are_no_candidates(crowd: Store, engine: AsyncEngine) -> None:
    await crowd.execute("empty", Create(), NewChat(owner_id="user_1"))
    assert "empty" not in await find(crowd, engine)


# --- probing hinted chats ---

EVERY = ["ada_1", "ada_2", "ada_3", "bob_1", "cyd_1", "cyd_2"]


async def test_a_probe_finds_what_a_full_search_finds_in_the_same_order(crowd: Store, engine: AsyncEngine) -> None:
    await crowd.execute("idle", Create(), NewChat(owner_id="user_1"))
    for per_user in (None, 1, 2):
        probe = await crowd.probe("worker_me", [*EVERY, "idle", "chat_gone"], per_user=per_user)
        assert (probe.held, probe.runnable) == ([], await find(crowd, engine, per_user=per_user))
    await hold(crowd, "ada_3", "cyd_2")
    await hold(crowd, "cyd_1", worker_id="worker_y")
    for name in ("ada_3", "cyd_1"):
        await crowd.execute(name, Interrupt())
    await crowd.retire("worker_y")
    for per_user in (None, 1, 2):
        probe = await crowd.probe("worker_me", EVERY, per_user=per_user)
        assert probe.runnable == await find(crowd, engine, per_user=per_user)


async def test_a_probe_finds_only_hinted_chats_and_counts_the_others_of_their_user(crowd: Store) -> None:
    assert (await crowd.probe("worker_me", ["ada_3", "bob_1"])).runnable == ["bob_1", "ada_3"]
    assert (await crowd.probe("worker_me", ["ada_3", "bob_1"], per_user=2)).runnable == ["bob_1"]
    await hold(crowd, "ada_1", "ada_2")
    assert (await crowd.probe("worker_me", ["ada_3"], per_user=2)).runnable == []
    await crowd.retire("worker_x")
    assert (await crowd.probe("worker_me", ["ada_1"], per_user=1)).runnable == [], "the third waits longer by now"
    assert (await crowd.probe("worker_me", ["ada_3"], per_user=1)).runnable == ["ada_3"]


async def test_a_probe_tells_a_worker_what_it_holds_and_what_is_wanted_of_it(crowd: Store, engine: AsyncEngine) -> None:
    await hold(crowd, "ada_1", "bob_1", worker_id="worker_me")
    await hold(crowd, "cyd_1")
    await crowd.execute("ada_1", Interrupt())
    await let_die(engine, "worker_me")  # what it holds itself is not runnable, however late its heartbeat is
    probe = await crowd.probe("worker_me", ["ada_1", "cyd_1", "cyd_2"])
    assert probe.held == [held for held in await crowd.held("worker_me") if held.chat_id == "ada_1"]
    assert [held.status for held in probe.held] == [Status.INTERRUPTING]
    assert probe.runnable == ["cyd_2"]


async def test_a_chat_that_is_renamed_or_written_to_keeps_its_place_among_those_that_wait(
    store: Store, engine: AsyncEngine
) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await store.execute("chat_1", UpdateChat(), ChatPatch(title="Rain"))
    await store.execute("chat_1", Send(), UserInput(blocks=[Text("More")]))
    found = await transact(engine, find_candidates, "worker_me", lease_timeout_s=store.lease_timeout_s, limit=9)
    assert found == ["chat_1", "chat_2"]
    assert (await store.probe("worker_me", ["chat_2", "chat_1"])).runnable == ["chat_1", "chat_2"]


async def test_a_probe_is_one_statement(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    with counted(get_database(engine)) as sent:
        probe = await store.probe("worker_me", ["chat_1", "chat_2"], per_user=1)
    assert probe.runnable == ["chat_1"]
    assert len(sent) == 1


async def test_only_the_named_chats_are_acquired_and_each_by_one_worker(crowd: Store) -> None:
    rivals = [f"worker_{letter}" for letter in "abcd"]
    for worker in rivals:
        await crowd.beat(worker)
    hinted = ["cyd_1", "ada_1", "idle", "chat_gone"]
    rounds = await asyncio.gather(*(crowd.acquire(worker, limit=9, chat_ids=hinted) for worker in rivals))
    taken = [outcome.chat_id for outcomes in rounds for outcome in outcomes]
    assert sorted(taken) == ["ada_1", "cyd_1"]
    assert await crowd.acquire("worker_a", limit=9, chat_ids=hinted) == []
    assert [outcome.chat_id for outcome in await crowd.acquire("worker_a", limit=1, chat_ids=EVERY)] == ["ada_2"]


async def test_turns_that_lost_a_worker_before_are_handed_out_one_at_a_time(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2", "chat_3", "chat_4")
    for worker_id in ("worker_1", "worker_2"):
        await hold(store, "chat_1", "chat_2", "chat_3", worker_id=worker_id)
        await let_die(engine, worker_id)
    taken = await store.acquire("worker_me", limit=9, suspects=1)
    assert [(outcome.chat_id, outcome.takeovers) for outcome in taken] == [("chat_4", 0), ("chat_1", 2)]
    assert await store.acquire("worker_me", limit=9, suspects=0) == []
    assert (await store.probe("worker_me", ["chat_2", "chat_3"])).runnable == []
    assert [outcome.chat_id for outcome in await store.acquire("worker_me", limit=9)] == ["chat_2", "chat_3"]


async def test_after_a_first_crash_everything_is_handed_out_at_once(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await hold(store, "chat_1", "chat_2", worker_id="worker_1")
    await let_die(engine, "worker_1")
    taken = await store.acquire("worker_me", limit=9, suspects=0)
    assert [(outcome.chat_id, outcome.takeovers) for outcome in taken] == [("chat_1", 1), ("chat_2", 1)]


async def test_a_running_chat_is_vacant_while_no_worker_is_alive(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await hold(store, "chat_1", worker_id="worker_1")

    async def find_vacant() -> dict[str, bool]:
        found = await store.vacant(["chat_1", "chat_2", "chat_3"])
        return {chat_id: vacancy.is_vacant for chat_id, vacancy in found.items()}

    assert await find_vacant() == {"chat_1": False, "chat_2": False}
    await let_die(engine, "worker_1")
    assert await find_vacant() == {"chat_1": True, "chat_2": False}, "nobody had time to claim the second one"
    await store.beat("worker_2")
    assert await find_vacant() == {"chat_1": False, "chat_2": False}


# --- chats that have had a turn before ---


async def end_badly(store: Store, engine: AsyncEngine, *names: str) -> None:
    """The turn of each chat kills nine workers, starts a tool that never settles, and fails. Then the next one begins.

    The next turn is an answer to another message, and nothing of this may be held against it.
    """
    for name in names:
        held = await start_tool(store, name, "worker_before")
        turn_id = await find_open_turn(engine, name)
        await store.execute(name, Fail(epoch=held.epoch, turn_id=turn_id, attempt_id=held.attempt_id))
        await store.execute(name, Send(), UserInput(blocks=[Text("again")]))
    await store.retire("worker_before")
    async with begin_write(engine) as connection:
        has_ended = turns.c.ended_at.is_not(None)
        await connection.execute(update(turns).where(has_ended).values(takeovers=9, stalled_takeovers=9))
        ended = (await connection.execute(select(turns).where(has_ended))).mappings().all()
        last = [{**turn, "id": "turn_z", "number": 9} for turn in ended]  # whatever comes last must not be the open one
        await connection.execute(insert(turns).values(last))


async def start_tool(store: Store, name: str, worker_id: str) -> JournalRow:
    """A worker acquires the chat and begins a tool; gives the row with which it did."""
    await store.beat(worker_id)
    held = await store.execute(name, Acquire(worker_id=worker_id))
    turn_id = held.turn_id or ""
    started = await store.execute(name, StartAttempt(epoch=held.epoch, turn_id=turn_id))
    assert started.attempt is not None
    run = RunStarted(RunKey(turn_id, 1, 0), started.attempt.id, "call_1", "pay", "{}", f"{turn_id}/1/0")
    row = JournalRow(name, started.attempt.id, held.epoch, 1, b"[]", (run,))
    assert (await store.append([row])).written == {started.attempt.id}
    return row


async def find_open_turn(engine: AsyncEngine, name: str) -> str:
    async with begin_read(engine) as connection:
        opened = select(turns.c.id).where(turns.c.chat_id == name, turns.c.ended_at.is_(None))
        return str((await connection.execute(opened)).scalar_one())


async def count_crashes(engine: AsyncEngine, name: str, *, stalled: int) -> None:
    """Of the open turn, whose worker is dead."""
    async with begin_write(engine) as connection:
        of_open = update(turns).where(turns.c.chat_id == name, turns.c.ended_at.is_(None))
        await connection.execute(of_open.values(takeovers=2, stalled_takeovers=stalled))


async def test_a_turn_is_no_suspect_because_of_the_turn_before(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await end_badly(store, engine, "chat_1", "chat_2")
    await hold(store, "chat_1", "chat_2", worker_id="worker_1")
    await let_die(engine, "worker_1")
    assert (await store.probe("worker_me", ["chat_1", "chat_2"])).runnable == ["chat_1", "chat_2"]
    taken = await store.acquire("worker_me", limit=9, suspects=0)
    assert [(outcome.chat_id, outcome.takeovers) for outcome in taken] == [("chat_1", 1), ("chat_2", 1)]


async def test_a_tool_of_the_turn_before_does_not_make_a_suspect_stronger(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await end_badly(store, engine, "chat_1")
    await hold(store, "chat_1", worker_id="worker_1")
    await start_tool(store, "chat_2", "worker_1")
    for name in ("chat_1", "chat_2"):
        await count_crashes(engine, name, stalled=1)
    await let_die(engine, "worker_1")
    assert [outcome.chat_id for outcome in await store.acquire("worker_me", limit=1, suspects=1)] == ["chat_2"]


async def test_a_tool_that_has_settled_does_not_make_a_suspect_stronger(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    began = [await start_tool(store, name, "worker_1") for name in ("chat_1", "chat_2")]
    settled = RunSettled(began[0].changes[0].key, ToolResult("call_1", "pay", "paid"))
    await store.append([began[0]._replace(n=2, changes=(settled,))])
    for name in ("chat_1", "chat_2"):
        await count_crashes(engine, name, stalled=1)
    await let_die(engine, "worker_1")
    assert [outcome.chat_id for outcome in await store.acquire("worker_me", limit=1, suspects=1)] == ["chat_2"]


async def test_crashes_of_the_turn_before_do_not_make_a_suspect_stronger(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await end_badly(store, engine, "chat_1", "chat_2")
    await hold(store, "chat_1", "chat_2", worker_id="worker_1")
    await count_crashes(engine, "chat_1", stalled=0)
    await count_crashes(engine, "chat_2", stalled=1)
    await let_die(engine, "worker_1")
    assert [outcome.chat_id for outcome in await store.acquire("worker_me", limit=1, suspects=1)] == ["chat_2"]


async def test_a_chat_with_an_earlier_turn_is_found_once_and_with_its_open_turn(
    store: Store, engine: AsyncEngine
) -> None:
    await run_chats(store, "chat_1", "chat_2")
    await end_badly(store, engine, "chat_1", "chat_2")
    opened = {name: await find_open_turn(engine, name) for name in ("chat_1", "chat_2")}
    await hold(store, "chat_1", worker_id="worker_1")

    probe = await store.probe("worker_1", ["chat_1", "chat_2"])
    assert [(held.chat_id, held.turn_id) for held in probe.held] == [("chat_1", opened["chat_1"])]
    assert (probe.runnable, probe.held_back) == (["chat_2"], [])
    assert await store.held("worker_1") == probe.held
    assert {name: vacancy.turn_id for name, vacancy in (await store.vacant([*opened])).items()} == opened
    assert await find(store, engine) == ["chat_2"]
    assert [(await store.work(name)).turn_id for name in opened] == [*opened.values()]


async def test_a_deadline_belongs_to_the_open_turn(store: Store, engine: AsyncEngine) -> None:
    await run_chats(store, "chat_1")
    await end_badly(store, engine, "chat_1")
    row = await start_tool(store, "chat_1", "worker_1")
    turn_id = await find_open_turn(engine, "chat_1")
    asked = AwaitedStep(pending=[ToolCall(id="c", name="ask", arguments="{}"), Finish("tool_calls")])
    await store.execute("chat_1", AwaitAction(epoch=row.epoch, turn_id=turn_id, attempt_id=row.attempt_id), asked)
    async with begin_write(engine) as connection:
        await connection.execute(update(chats).values(deadline_at=LONG_AGO))
    assert [(found.chat_id, found.turn_id) for found in await store.expired(limit=9)] == [("chat_1", turn_id)]
