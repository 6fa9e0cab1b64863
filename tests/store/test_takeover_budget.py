"""Chats whose workers die again and again, on both databases: what counts, and when it is enough (rule 10.16).

Workers die by being buried: the chat names a holder that does not beat. The rules alone are
tests/machine/test_takeovers.py; that an attempt is closed with its text is test_finish_attempt.py.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, dump, fill_payload, settle_in
from tests.support.engine import get_database
from tests.support.tables import attempts, turns

from indelible.content import Finish, Part, ReasoningDelta, TextDelta, ToolCall, ToolResult
from indelible.errors import LeaseLost, NotAllowed
from indelible.machine import State
from indelible.machine import commands as c
from indelible.machine.decide_worker import MAX_STALLED_TAKEOVERS, MAX_TAKEOVERS
from indelible.store.commands.change import CONTINUE, NOTICES
from indelible.store.journal.append import JournalRow
from indelible.store.store import Store

GIVEN_UP = NOTICES["crashed"]
LOOK, ASK = ToolCall(id="c1", name="look", arguments="{}"), ToolCall(id="c2", name="ask", arguments="{}")


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """A worker is in the middle of a sentence."""
    return await (await Driver(store, engine).create("Is it raining?")).work("live", TextDelta("1", "It is"))


async def take_over(chat: Driver, *said: Part) -> None:
    """The holder dies; whoever takes the chat says this, if anything."""
    await chat.bury()
    await chat.do(c.Acquire(worker_id="live"))
    if said:
        await chat.start()
        await chat.say(*said)
    await chat.check()


async def count(chat: Driver) -> tuple[int, int, int]:
    (turn,) = [row for row in await chat.rows(turns) if row.id == chat.turn_id]
    return turn.takeovers, turn.stalled_takeovers, turn.journal_rows_at_takeover


async def expect_given_up(chat: Driver, queued: list[str]) -> None:
    await chat.check()
    row = await chat.row()
    assert await chat.state() is (State.ERROR_QUEUED if queued else State.ERROR)
    assert (row.holder, msgspec.json.decode(row.error)) == (None, {"kind": "crashed", "message": GIVEN_UP})
    assert (await chat.said())[-1] == ("notice", GIVEN_UP)
    assert await chat.queued() == queued
    (turn,) = [row for row in await chat.rows(turns) if row.id == chat.turn_id]
    assert turn.outcome == "failed"


# --- what counts ---


async def test_takeovers_are_counted_and_barren_ones_in_a_row(chat: Driver) -> None:
    await take_over(chat)
    assert await count(chat) == (1, 0, 1)
    await take_over(chat)
    assert await count(chat) == (2, 1, 1)
    await take_over(chat, ReasoningDelta("r", "Hm"))
    assert await count(chat) == (3, 2, 1)
    await take_over(chat)
    assert await count(chat) == (4, 0, 2), "thinking is a part too"


async def test_what_was_written_counts_whether_its_attempt_is_open_or_has_ended(chat: Driver) -> None:
    await chat.end(c.CommitStep, pending=[TextDelta("1", " raining."), Finish()])
    await chat.start()
    await chat.say(TextDelta("2", "And"))
    await take_over(chat)
    assert await count(chat) == (1, 0, 3), "two rows of the first step, one of them its last, and one of the second"


async def test_a_hand_over_does_not_count_however_often_it_happens(chat: Driver) -> None:
    for _ in range(MAX_TAKEOVERS + 1):
        await chat.end(c.Release)
        await chat.do(c.Acquire(worker_id="live"))
    await chat.check()
    assert (await chat.state(), await count(chat)) == (State.RUNNING, (0, 0, 0))


async def test_a_worker_that_was_retired_without_letting_go_counts(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    await store.beat("fresh")
    await chat.do(c.Acquire(worker_id="fresh"))
    await store.retire("fresh")
    await chat.do(c.Acquire(worker_id="live"))
    assert await count(chat) == (1, 1, 0)


async def test_a_chat_that_is_being_stopped_is_taken_over_for_ever(chat: Driver) -> None:
    await chat.do(c.Interrupt())
    for _ in range(MAX_TAKEOVERS + 1):
        await take_over(chat)
    assert (await chat.state(), await count(chat)) == (State.INTERRUPTING, (0, 0, 0))
    assert (await chat.path())[-1].reason == "interrupted"
    await chat.end(c.FinishInterruption, attempt_id=None)
    await chat.check()
    assert await chat.state() is State.IDLE


async def test_the_next_turn_begins_with_a_whole_budget(chat: Driver) -> None:
    await chat.do(c.Send(), "And now?")
    for _ in range(MAX_STALLED_TAKEOVERS):
        await take_over(chat)
    await chat.start()
    await chat.end(c.FinishTurn, pending=[TextDelta("1", " raining."), Finish()])
    assert await count(chat) == (0, 0, 0)
    await take_over(chat)
    assert (await chat.state(), await count(chat)) == (State.RUNNING, (1, 1, 0))


# --- adopted attempts ---


async def test_an_adopted_attempt_wears_its_budget_out_when_no_tool_settles(chat: Driver) -> None:
    await chat.say(LOOK, ASK, Finish("tool_calls"))
    attempt_id = chat.attempt_id
    for expected in ((1, 0, 2), (2, 1, 2), (3, 2, 2)):
        await take_over(chat)
        assert await count(chat) == expected
        assert (await chat.attempt()).ended_at is None
    await take_over(chat)
    await expect_given_up(chat, [])
    (attempt,) = await chat.rows(attempts)
    assert (attempt.id, attempt.outcome) == (attempt_id, "crashed")
    assert [role for role, _ in await chat.said()] == ["user", "assistant", "tool", "notice"]


async def test_every_settled_tool_of_an_adopted_attempt_earns_it_more_time(chat: Driver) -> None:
    calls = [ToolCall(id=f"c{number}", name="look", arguments="{}") for number in range(5)]
    await chat.say(*calls, Finish("tool_calls"))
    for number, call in enumerate(calls, 1):
        await take_over(chat)
        assert (await count(chat))[:2] == (number, 0)
        await chat.say(ToolResult(call_id=call.id, name="look", output="seen"))
    await chat.end(c.CommitStep)
    await chat.check()
    assert [role for role, _ in await chat.said()] == ["user", "assistant", "tool"]


async def test_an_attempt_that_was_handed_over_whole_is_adopted_and_not_counted(chat: Driver) -> None:
    await chat.say(LOOK, Finish("tool_calls"))
    attempt_id, epoch = chat.attempt_id, chat.epoch
    await chat.end(c.Release)
    await chat.check()
    left = await chat.attempt()
    assert (left.ended_at, left.epoch, (await chat.row()).holder) == (None, epoch, None)
    await chat.do(c.Acquire(worker_id="live"))
    await chat.check()
    adopted = await chat.attempt()
    assert (adopted.id, adopted.ended_at, adopted.epoch) == (attempt_id, None, epoch + 1)
    assert await count(chat) == (0, 0, 0)


async def test_of_an_adopted_attempt_only_the_new_holder_writes_on(chat: Driver, store: Store) -> None:
    await chat.say(LOOK, Finish("tool_calls"))
    attempt_id, old = chat.attempt_id, chat.epoch
    await take_over(chat)
    late = await store.append([JournalRow(chat.id, attempt_id, old, 3, b"[]")])
    assert (late.written, late.closed) == (frozenset(), frozenset({attempt_id}))
    on = await store.append([JournalRow(chat.id, attempt_id, chat.epoch, 3, b"[]")])
    assert on.written == {attempt_id}


# --- giving up ---


@pytest.mark.parametrize("queued", [[], ["And now?"]])
async def test_the_third_barren_takeover_in_a_row_fails_the_turn(chat: Driver, queued: list[str]) -> None:
    for text in queued:
        await chat.do(c.Send(), text)
    for _ in range(MAX_STALLED_TAKEOVERS):
        await take_over(chat)
    epoch = chat.epoch
    await take_over(chat)
    await expect_given_up(chat, queued)
    assert chat.epoch == epoch + 1
    assert (await chat.said())[:2] == [("user", "Is it raining?"), ("assistant", "It is")]


async def test_the_tenth_takeover_fails_a_turn_that_always_wrote_something(chat: Driver) -> None:
    for number in range(1, MAX_TAKEOVERS):
        await take_over(chat, TextDelta("1", f" {number}"))
        assert (await count(chat))[:2] == (number, 0)
    await take_over(chat)
    await expect_given_up(chat, [])
    spoken = [text for role, text in await chat.said() if role == "assistant"]
    assert spoken == ["It is", *(f" {number}" for number in range(1, MAX_TAKEOVERS))]
    assert (await count(chat))[:2] == (MAX_TAKEOVERS, 0)


async def test_giving_up_tells_readers_what_became_of_the_attempt_and_why(chat: Driver) -> None:
    for _ in range(MAX_STALLED_TAKEOVERS):
        await take_over(chat)
    await chat.start()
    seq = (await chat.row()).seq
    await take_over(chat)
    told = (await chat.list_events())[seq:]
    assert [kind for kind, _, _ in told] == ["reset", "message", "error", "status"]
    assert told[0][2]["attempt"] == chat.attempt_id
    ended = {"turn": chat.turn_id, "outcome": "failed"}
    assert (told[2][2]["kind"], told[3][2]) == ("crashed", {"status": "error", "ended": ended})


async def test_a_turn_that_is_given_up_is_not_in_the_answer_and_is_no_candidate_any_more(
    chat: Driver, store: Store, engine: AsyncEngine
) -> None:
    for _ in range(MAX_STALLED_TAKEOVERS):
        await take_over(chat)
    await chat.bury()
    fine = await Driver(store, engine).create()
    taken = await store.acquire("live", limit=1)
    assert [outcome.chat_id for outcome in taken] == [fine.id], "giving up takes no place"
    assert await chat.state() is State.ERROR
    assert await store.acquire("live", limit=9) == []


async def test_the_last_holder_of_a_turn_that_was_given_up_can_write_no_more(
    chat: Driver, store: Store, engine: AsyncEngine
) -> None:
    for _ in range(MAX_STALLED_TAKEOVERS):
        await take_over(chat)
    await chat.start()
    late = [chat.name(kind) for kind in (c.CommitStep, c.FinishTurn, c.Fail, c.AnnounceRetry, c.KeepSummary, c.Release)]
    row = JournalRow(chat.id, chat.attempt_id, chat.epoch, 1, b"[]")
    await take_over(chat)
    before = await dump(engine)
    for command in late:
        with pytest.raises(LeaseLost):
            await chat.do(command, payload=fill_payload(command, pending=[TextDelta("1", "late")]))
    assert (await store.append([row])).closed == {row.attempt_id}
    assert await dump(engine) == before


async def test_a_turn_that_was_given_up_can_be_retried_with_a_new_budget(chat: Driver) -> None:
    for _ in range(MAX_STALLED_TAKEOVERS + 1):
        await take_over(chat)
    await chat.do(c.Retry())
    await chat.do(c.Acquire(worker_id="live"))
    await chat.check()
    assert (await count(chat), (await chat.row()).error) == ((0, 0, 0), None)
    await chat.start()
    await chat.end(c.FinishTurn, pending=[TextDelta("1", " raining."), Finish()])
    assert await chat.state() is State.IDLE


# --- the instruction to go on ---


async def list_instructions(chat: Driver) -> list[str]:
    return [message.text for message in await chat.path() if message.visibility == "model"]


@pytest.mark.parametrize("way", ["crash", "hand-over"])
async def test_whoever_takes_a_chat_that_ends_with_a_partial_finds_one_instruction_to_go_on(
    chat: Driver, way: str
) -> None:
    if way == "hand-over":
        await chat.end(c.Release)
        assert await list_instructions(chat) == []
        await chat.do(c.Acquire(worker_id="live"))
    else:
        await take_over(chat)
    assert await list_instructions(chat) == [CONTINUE]
    await take_over(chat)
    await chat.end(c.Release)
    await chat.do(c.Acquire(worker_id="live"))
    await chat.check()
    assert await list_instructions(chat) == [CONTINUE]
    assert [message.reason for message in await chat.path() if message.partial] == [
        "handed_over" if way == "hand-over" else "crashed"
    ]


async def test_results_of_tools_need_no_instruction_to_go_on(chat: Driver) -> None:
    await chat.say(LOOK)
    await take_over(chat)
    assert await list_instructions(chat) == []
    assert [role for role, _ in await chat.said()] == ["user", "assistant", "tool"]


async def test_an_attempt_that_showed_nothing_needs_none(store: Store, engine: AsyncEngine) -> None:
    chat = await (await Driver(store, engine).create()).work("live", ReasoningDelta("r", "Hm"))
    await take_over(chat)
    assert await chat.said() == [("user", "Hello")]


# --- many at once ---


async def test_of_many_that_take_over_at_once_one_counts(chat: Driver, store: Store) -> None:
    await chat.bury()
    epoch = chat.epoch
    rivals = (store.acquire("live", limit=1) for _ in range(6))
    taken = [outcome for outcomes in await asyncio.gather(*rivals) for outcome in outcomes]
    await chat.check()
    assert [(outcome.chat_id, outcome.epoch) for outcome in taken] == [(chat.id, epoch + 1)]
    assert await count(chat) == (1, 0, 1)
    assert await list_instructions(chat) == [CONTINUE]


async def test_of_many_that_find_a_worn_out_turn_at_once_one_gives_it_up(chat: Driver) -> None:
    for _ in range(MAX_STALLED_TAKEOVERS):
        await take_over(chat)
    await chat.bury()
    epoch = chat.epoch
    rivals = (chat.do(c.Acquire(worker_id="live")) for _ in range(6))
    answers = await asyncio.gather(*rivals, return_exceptions=True)
    await expect_given_up(chat, [])
    assert sum(not isinstance(answer, Exception) for answer in answers) == 1
    assert (await chat.row()).epoch == epoch + 1
    assert [role for role, _ in await chat.said()].count("notice") == 1
    with pytest.raises(NotAllowed):
        await chat.do(c.Acquire(worker_id="live"))


async def test_a_takeover_knows_how_long_the_dead_worker_was_silent(chat: Driver) -> None:
    await chat.bury()
    taken = await chat.do(c.Acquire(worker_id="live"))
    assert taken.vacant_s is not None
    assert 24 * 3600 <= taken.vacant_s < 25 * 3600, "it died a day ago (driver.py)"
    await chat.end(c.Release)
    assert (await chat.do(c.Acquire(worker_id="live"))).vacant_s is None, "nobody died"
