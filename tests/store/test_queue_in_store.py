"""The queue, and results from outside: in order, whole, and safe from many hands at once (rule 3.0, 3.3)."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, dump, fill_payload, settle_in
from tests.support.engine import get_database
from tests.support.tables import queue

from indelible.content import Finish, Text, TextDelta, ToolCall, ToolResult
from indelible.errors import Invalid, NotAllowed, NotFound, TooLarge, TooMany
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.outcome import Outcome
from indelible.store.store import Store

REPLY = [TextDelta("1", "Done."), Finish()]
CALLS = ("c1", "c2")


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """A live worker is in the middle of a sentence."""
    return await (await Driver(store, engine).create()).work()


async def send(chat: Driver, *texts: str) -> dict[str, str]:
    """Queue messages whose first letter says how; their rows by text."""
    kinds: dict[str, c.Command] = {"q": c.Send(), "s": c.SendSteer(), "i": c.SendInterrupt()}
    rows = {text: (await chat.do(kinds[text[0]], text)).queued_id for text in texts}
    return {text: row for text, row in rows.items() if row is not None}


# --- order ---


async def test_rows_stand_by_rank_and_within_a_rank_in_the_order_they_came(chat: Driver) -> None:
    rows = await send(chat, "q1", "s1", "q2", "s2")
    assert await chat.queued() == ["s1", "s2", "q1", "q2"]
    await send(chat, "i1")
    rows |= await send(chat, "i2", "q3")
    assert await chat.queued() == ["i1", "i2", "s1", "s2", "q1", "q2", "q3"]
    await chat.do(c.PromoteQueued(queued_id=rows["q2"]))
    await chat.do(c.PromoteQueued(queued_id=rows["s2"]))
    assert await chat.queued() == ["q2", "s2", "i1", "i2", "s1", "q1", "q3"]
    await chat.check()


async def test_users_may_put_rows_in_any_order_and_new_ones_still_find_their_place(chat: Driver) -> None:
    rows = await send(chat, "q1", "s1", "q2")
    wanted = ("q2", "s1", "q1")
    await chat.do(c.ReorderQueue(queued_ids=tuple(rows[text] for text in wanted)))
    assert await chat.queued() == list(wanted)
    await send(chat, "s2", "q3")
    assert await chat.queued() == ["s2", "q2", "s1", "q1", "q3"]
    for wrong in ((rows["q1"],), (*rows.values(), rows["q1"])):
        with pytest.raises(Invalid):
            await chat.do(c.ReorderQueue(queued_ids=wrong))


async def test_a_queued_message_can_be_rewritten_and_withdrawn(chat: Driver) -> None:
    rows = await send(chat, "q1", "q2", "q3")
    await chat.do(c.EditQueued(queued_id=rows["q2"]), "second")
    await chat.do(c.DeleteQueued(queued_id=rows["q1"]))
    assert await chat.queued() == ["second", "q3"]
    kind, _, payload = (await chat.list_events())[-1]
    assert (kind, payload["ids"]) == ("queue", await chat.queued_ids())


async def test_each_row_becomes_a_turn_of_its_own_with_the_same_holder(chat: Driver) -> None:
    await send(chat, "q1", "q2")
    for expected in (State.RUNNING_QUEUED, State.RUNNING, State.IDLE):
        epoch, turn_id = chat.epoch, chat.turn_id
        await chat.end(c.FinishTurn, pending=REPLY)
        await chat.check()
        assert await chat.state() is expected
        if expected is not State.IDLE:
            assert chat.epoch == epoch
            assert chat.turn_id != turn_id
            assert (await chat.row()).holder == "live"
            await chat.start()
    users = [text for role, text in await chat.said() if role == "user"]
    assert users == ["Hello", "q1", "q2"]


async def test_the_model_chosen_at_enqueue_time_travels_with_the_message(chat: Driver) -> None:
    await chat.do(c.Send(), "with the big one", model="big")
    await chat.do(c.Send(), "with any")
    await chat.end(c.FinishTurn, pending=REPLY)
    assert (await chat.path())[-1].model == "big"
    await chat.start()
    await chat.end(c.FinishTurn, pending=REPLY)
    assert (await chat.path())[-1].model is None


async def test_in_an_error_a_new_message_waits_behind_those_that_were_there(chat: Driver) -> None:
    await send(chat, "q1")
    await chat.end(c.Fail)
    await chat.do(c.Send(), "q2")
    await chat.check()
    assert (await chat.said())[-1] == ("user", "q1")
    assert await chat.queued() == ["q2"]
    assert (await chat.row()).error is None


# --- steers ---


async def test_steers_enter_with_the_step_and_are_handed_to_the_running_turn(chat: Driver) -> None:
    await send(chat, "q1", "s1", "s2")
    done = await chat.end(c.CommitStep, pending=REPLY)
    await chat.check()
    assert [message.text for message in done.steers] == ["s1", "s2"]
    assert (await chat.said())[-3:] == [("assistant", "It isDone."), ("user", "s1"), ("user", "s2")]
    assert [message.id for message in done.messages] == [message.id for message in await chat.path()][-3:]
    assert await chat.queued() == ["q1"]


async def test_the_last_step_moves_no_steer_in_and_the_first_becomes_the_next_turn(chat: Driver) -> None:
    await send(chat, "s1", "s2")
    turn_id = chat.turn_id
    done = await chat.end(c.FinishTurn, pending=REPLY)
    assert done.steers == []
    assert chat.turn_id != turn_id
    assert (await chat.said())[-1] == ("user", "s1")
    assert await chat.queued() == ["s2"]
    await chat.start()
    assert [message.text for message in (await chat.end(c.CommitStep, pending=REPLY)).steers] == ["s2"]


# --- what is told ---


async def test_a_message_that_came_from_the_queue_says_which_row_it_was(chat: Driver) -> None:
    rows = await send(chat, "q1", "s1")
    await chat.end(c.CommitStep, pending=REPLY)
    await chat.start()
    await chat.end(c.FinishTurn, pending=REPLY)
    entered = {message.text: message.id for message in await chat.path() if message.role == "user"}
    told = {ref: payload.get("queued") for kind, ref, payload in await chat.list_events() if kind == "message"}
    assert {text: told[entered[text]] for text in ("Hello", "s1", "q1")} == {"Hello": None, **rows}
    steers = [ref for kind, ref, payload in await chat.list_events() if kind == "message" and payload.get("steers")]
    assert steers == [entered["s1"]], "one that a running turn took in says so"


async def test_a_promoted_message_says_so_too(chat: Driver) -> None:
    rows = await send(chat, "q1")
    await chat.end(c.Fail)
    await chat.do(c.PromoteQueued(queued_id=rows["q1"]))
    told = [payload for kind, _, payload in await chat.list_events() if kind == "message"]
    assert told[-1] == {"queued": rows["q1"]}


async def test_the_next_turn_is_announced_though_the_chat_runs_on(chat: Driver) -> None:
    await send(chat, "q1")
    seq, first = (await chat.row()).seq, chat.turn_id
    await chat.end(c.FinishTurn, pending=REPLY)
    told = (await chat.list_events())[seq:]
    assert [kind for kind, _, _ in told] == ["message", "message", "status", "queue"]
    assert chat.turn_id != first
    ended = {"turn": first, "outcome": "complete"}
    assert [(ref, payload) for kind, ref, payload in told if kind == "status"] == [
        (chat.turn_id, {"status": "running", "ended": ended})
    ]


async def test_a_step_in_the_middle_of_a_turn_tells_no_status(chat: Driver) -> None:
    seq = (await chat.row()).seq
    await chat.end(c.CommitStep, pending=REPLY)
    assert [kind for kind, _, _ in (await chat.list_events())[seq:]] == ["message"]


# --- results from outside ---


async def ask(chat: Driver, *, deadline_s: float | None = None) -> Driver:
    await chat.say(*(ToolCall(id=id_, name="ask") for id_ in CALLS), Finish("tool_calls"))
    await chat.end(c.AwaitAction, deadline_s=deadline_s)
    return chat


def answer(*call_ids: str) -> list[ToolResult]:
    return [ToolResult(call_id=id_, name="?", output=f"answer to {id_}") for id_ in call_ids]


async def submit(chat: Driver, *call_ids: str) -> Outcome:
    return await chat.do(c.ToolResults(call_ids=call_ids), results=answer(*call_ids))


async def test_results_that_do_not_match_are_refused_as_a_whole(chat: Driver, engine: AsyncEngine) -> None:
    await ask(chat)
    before = await dump(engine)
    for given in (("c1",), ("c1", "c2", "c3"), ("c1", "c1"), ("c1", "c3"), ()):
        with pytest.raises(Invalid):
            await submit(chat, *given)
    assert await dump(engine) == before


async def test_results_stand_in_the_order_of_their_calls_and_continue_the_turn(chat: Driver) -> None:
    await ask(chat)
    turn_id = chat.turn_id
    await submit(chat, "c2", "c1")
    await chat.check()
    assert (await chat.path())[-1].blocks == [
        ToolResult(call_id=id_, name="ask", output=f"answer to {id_}") for id_ in CALLS
    ]
    assert (chat.turn_id, await chat.state()) == (turn_id, State.RUNNING)


async def test_of_ten_that_answer_at_once_exactly_one_is_heard(chat: Driver) -> None:
    await ask(chat)
    answers = await asyncio.gather(*(submit(chat, *CALLS) for _ in range(10)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in answers) == ["NotAllowed"] * 9 + ["Outcome"]
    await chat.check()
    assert [role for role, _ in await chat.said()] == ["user", "assistant", "tool"]


async def test_calls_expire_only_when_their_time_is_over(chat: Driver, engine: AsyncEngine) -> None:
    await ask(chat, deadline_s=3600)
    before = await dump(engine)
    assert not (await chat.do(c.ActionExpired(turn_id=chat.turn_id))).effective
    assert await dump(engine) == before


async def test_expired_calls_are_answered_with_errors_and_the_turn_goes_on(chat: Driver) -> None:
    await ask(chat, deadline_s=1e-6)
    await chat.do(c.ActionExpired(turn_id=chat.turn_id))
    await chat.check()
    results = [block for block in (await chat.path())[-1].blocks if isinstance(block, ToolResult)]
    assert [(result.call_id, result.is_error) for result in results] == [(id_, True) for id_ in CALLS]
    assert await chat.state() is State.RUNNING


@pytest.mark.parametrize("command", [c.SendInterrupt(), c.Interrupt()])
async def test_a_users_message_never_follows_a_call_that_nobody_answered(chat: Driver, command: c.Command) -> None:
    await ask(chat)
    await chat.do(command, payload=fill_payload(command, blocks=[Text("never mind")]))
    await chat.check()
    roles = [role for role, _ in await chat.said()]
    assert roles[1:3] == ["assistant", "tool"]


# --- many hands, and limits ---


async def test_of_twenty_messages_sent_at_once_none_is_lost_and_seq_has_no_gaps(chat: Driver) -> None:
    texts = [f"message {number}" for number in range(20)]
    sent = await asyncio.gather(*(chat.do(c.Send(), text) for text in texts))
    await chat.check()
    assert sorted(await chat.queued()) == sorted(texts)
    assert {outcome.queued_id for outcome in sent} == set(await chat.queued_ids())
    seqs = [outcome.seq for outcome in sent]
    assert sorted(seqs) == list(range(min(seqs), min(seqs) + 20)), "one event each, one after the other"


async def test_twenty_messages_may_wait_and_no_more(chat: Driver, engine: AsyncEngine) -> None:
    await asyncio.gather(*(chat.do(c.Send(), "again") for _ in range(20)))
    before = await dump(engine)
    for command in (c.Send(), c.SendSteer(), c.SendInterrupt()):
        with pytest.raises(TooMany):
            await chat.do(command, "one too many")
    assert await dump(engine) == before


async def test_a_message_that_is_too_large_is_refused(chat: Driver, engine: AsyncEngine) -> None:
    before = await dump(engine)
    with pytest.raises(TooLarge):
        await chat.do(c.Send(), blocks=[Text("x" * 256 * 1024)])
    assert await dump(engine) == before


async def test_of_five_workers_that_want_a_chat_at_once_one_gets_it(store: Store, engine: AsyncEngine) -> None:
    """The others find it held, or busy, which for a worker is as good as not there (R2)."""
    chat = await Driver(store, engine).create()
    taken = await asyncio.gather(*(chat.do(c.Acquire(worker_id="live")) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(one, Outcome) for one in taken) == 1
    assert sum(isinstance(one, NotAllowed | NotFound) for one in taken) == 4
    assert (await chat.row()).epoch == 1


async def test_rows_keep_their_positions_apart(chat: Driver) -> None:
    await send(chat, "q1", "s1", "i1", "q2", "i2")
    positions = [row.position for row in await chat.rows(queue, queue.c.position)]
    assert len(set(positions)) == 5
