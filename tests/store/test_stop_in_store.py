"""A stop, as far as the store is concerned: S4, S5, S20, S21, S58 to S60, S63 and S64 on both databases.

What the loop does in a stop is tests/loop/test_acceptance_stop.py; what an ended attempt leaves is
test_finish_attempt.py.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, dump, fill_payload, settle_in
from tests.support.engine import begin_write, get_database
from tests.support.tables import chats, messages

from indelible.api.shapes import Timings
from indelible.content import Finish, Part, Text, TextDelta, ToolCall, ToolResult, Usage, encode
from indelible.errors import Interrupted, LeaseLost, NotAllowed
from indelible.loop.prompt.build import build_prompt
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.store import Store

NOTICE = "Stopped by you."
NOW = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """A live worker is in the middle of a sentence."""
    chat = await Driver(store, engine).create("Is it raining?")
    return await chat.work("live", TextDelta("1", "It is"))


async def test_s4_a_late_persist_is_accepted_though_the_stop_cleared_the_holder(
    chat: Driver, engine: AsyncEngine
) -> None:
    await chat.do(c.Interrupt())
    async with begin_write(engine) as connection:
        await connection.execute(update(chats).where(chats.c.id == chat.id).values(holder=None))
    assert (await chat.end(c.CommitStep, pending=[TextDelta("1", " raining."), Finish()])).effective
    await chat.check()
    assert await chat.said() == [("user", "Is it raining?"), ("assistant", "It is raining."), ("notice", NOTICE)]
    assert await chat.state() is State.IDLE


async def test_s4_a_persist_after_the_stop_ended_the_attempt_adds_only_what_is_missing(chat: Driver) -> None:
    """The stop found no live worker and kept what the journal held; the worker was alive after all."""
    await chat.bury()
    await chat.do(c.Interrupt())
    said, seq = await chat.said(), (await chat.row()).seq
    usage = Usage(input_tokens=7, output_tokens=5)
    late = await chat.end(c.CommitStep, pending=[TextDelta("1", " raining."), Finish()], usage=usage)
    await chat.check()
    assert not late.effective
    assert await chat.said() == said == [("user", "Is it raining?"), ("assistant", "It is"), ("notice", NOTICE)]
    assert (await chat.row()).seq == seq
    assert (await chat.attempt()).usage == encode(usage)
    assert [row.usage for row in await chat.rows(messages) if row.role == "assistant"] == [encode(usage)]


@pytest.mark.parametrize("said", [[], [Finish(usage=Usage(input_tokens=7, output_tokens=5))]])
async def test_s4_a_late_persist_adds_cost_and_times_that_the_journal_can_not_know(
    chat: Driver, said: list[Part]
) -> None:
    """Whether or not the journal knew the usage already."""
    await chat.say(TextDelta("1", " raining."), *said)
    await chat.bury()
    await chat.do(c.Interrupt())
    seq = (await chat.row()).seq
    usage, timings = Usage(input_tokens=7, output_tokens=5), Timings(started_at=NOW, ended_at=NOW)
    await chat.end(c.CommitStep, usage=usage, cost_nanousd=1200, timings=timings)
    await chat.check()
    (reply,) = [row for row in await chat.rows(messages) if row.role == "assistant"]
    assert (reply.usage, reply.cost_nanousd) == (encode(usage), 1200)
    assert (await chat.row()).seq == seq
    late = Timings(started_at=NOW)
    await chat.end(c.CommitStep, usage=Usage(output_tokens=9), cost_nanousd=9, timings=late)
    (again,) = [row for row in await chat.rows(messages) if row.role == "assistant"]
    assert again == reply, "what is known already is not missing"


async def test_a_reply_that_was_stopped_in_the_middle_of_its_tools_can_be_continued(chat: Driver) -> None:
    await chat.say(ToolCall(id="c1", name="look", arguments="{}"), Finish("tool_calls"))
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption)
    assert [role for role, _ in await chat.said()] == ["user", "assistant", "tool", "notice"]
    await chat.do(c.Continue())
    await chat.check()
    assert await chat.state() is State.RUNNING
    assert [role for role, _ in await chat.said()][-1] == "notice", "the answers are instruction enough"
    await chat.work("live", TextDelta("1", "Then not."), Finish())
    await chat.end(c.FinishTurn)
    assert (await chat.path())[-1].continues is None


async def test_a_reply_that_is_whole_can_not_be_continued_for_its_tools(chat: Driver, engine: AsyncEngine) -> None:
    call, seen = ToolCall(id="c1", name="look", arguments="{}"), ToolResult(call_id="c1", name="look", output="seen")
    await chat.end(c.FinishTurn, pending=[call, Finish("tool_calls"), seen])
    before = await dump(engine)
    with pytest.raises(NotAllowed, match="no text of a reply was cut off"):
        await chat.do(c.Continue())
    assert await dump(engine) == before


async def test_what_a_late_persist_knows_of_another_attempt_is_not_written(chat: Driver, engine: AsyncEngine) -> None:
    await chat.end(c.CommitStep, pending=[Finish(usage=Usage(output_tokens=5))])
    before = await dump(engine)
    await chat.end(c.CommitStep, usage=Usage(output_tokens=6))
    await chat.end(c.CommitStep, attempt_id="attempt_of_nobody", usage=Usage(output_tokens=6))
    assert await dump(engine) == before


async def test_s5_after_an_edit_a_late_persist_of_the_old_run_is_refused(chat: Driver, engine: AsyncEngine) -> None:
    kinds = (c.CommitStep, c.FinishTurn, c.Fail, c.FinishInterruption, c.StartAttempt, c.Release)
    late = [chat.name(kind) for kind in kinds]
    await chat.do(c.Edit(message_id=await chat.last_id("user")), "Is it dry?")
    before = await dump(engine)
    for command in late:
        with pytest.raises(LeaseLost):
            await chat.do(
                command,
                payload=fill_payload(command, pending=[TextDelta("1", " raining.")], usage=Usage(output_tokens=5)),
            )
    assert await dump(engine) == before
    assert await chat.said() == [("user", "Is it dry?")]


async def test_s20_only_a_chat_that_is_being_stopped_answers_interrupted(chat: Driver) -> None:
    begin = chat.name(c.StartAttempt)
    await chat.do(c.Interrupt())
    with pytest.raises(Interrupted):
        await chat.do(begin)


@pytest.mark.parametrize("taken", [False, True])
async def test_s20_a_shutdown_or_a_lost_lease_never_answers_interrupted(chat: Driver, taken: bool) -> None:
    begin, persist = chat.name(c.StartAttempt), chat.name(c.CommitStep)
    await chat.end(c.Release)
    if taken:
        await chat.do(c.Acquire(worker_id="live"))
        with pytest.raises(LeaseLost):
            await chat.do(persist)
    else:
        assert not (await chat.do(persist)).effective
    with pytest.raises(LeaseLost):
        await chat.do(begin)


async def test_s21_a_shutdown_leaves_the_turn_to_whoever_comes_next(chat: Driver) -> None:
    turn_id = chat.turn_id
    await chat.end(c.Release)
    await chat.check()
    row = await chat.row()
    assert (row.status, row.holder) == ("running", None)
    taken = await chat.do(c.Acquire(worker_id="live"))
    assert (taken.turn_id, taken.epoch) == (turn_id, row.epoch + 1)


async def test_s21_a_stop_leaves_the_chat_waiting(chat: Driver) -> None:
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption)
    await chat.check()
    row = await chat.row()
    assert (row.status, row.holder, row.error) == ("idle", None, None)


@pytest.mark.parametrize("alive", [True, False])
async def test_s58_s59_a_stop_keeps_the_partial_reply_and_a_notice_below_it(chat: Driver, alive: bool) -> None:
    await stop(chat, alive=alive)
    _, partial, notice = await chat.path()
    assert (partial.text, partial.partial, partial.reason) == ("It is", True, "interrupted")
    assert (notice.role, notice.visibility, notice.text) == ("notice", "people", NOTICE)
    assert await chat.state() is State.IDLE


@pytest.mark.parametrize("alive", [True, False])
async def test_s60_a_stop_before_any_token_leaves_only_the_notice(
    store: Store, engine: AsyncEngine, alive: bool
) -> None:
    chat = await Driver(store, engine).create("Is it raining?")
    await chat.do(c.Acquire(worker_id="live"))
    await chat.start()
    await stop(chat, alive=alive)
    assert await chat.said() == [("user", "Is it raining?"), ("notice", NOTICE)]


async def stop(chat: Driver, *, alive: bool) -> None:
    if not alive:
        await chat.bury()
    await chat.do(c.Interrupt())
    if alive:
        await chat.end(c.FinishInterruption)
    await chat.check()


async def test_a_failure_that_arrives_during_a_stop_is_reported_as_the_stop(chat: Driver) -> None:
    await chat.do(c.Interrupt())
    await chat.end(c.Fail, error={"kind": "timeout", "message": "Gone."}, notice="The provider is gone.")
    await chat.check()
    assert (await chat.said())[-1] == ("notice", NOTICE)
    assert await chat.state() is State.IDLE


async def test_s63_the_next_prompt_has_the_user_and_the_partial_but_not_the_notice(chat: Driver) -> None:
    await stop(chat, alive=True)
    await chat.do(c.Send(), "Go on.")
    prompt = build_prompt(await chat.path(), provider="demo")
    texts = [(entry.role, [block.text for block in entry.blocks if isinstance(block, Text)]) for entry in prompt]
    assert texts == [("user", ["Is it raining?"]), ("assistant", ["It is"]), ("user", ["Go on."])]


async def test_s64_chats_never_see_each_others_parts(store: Store, engine: AsyncEngine) -> None:
    ada, bob = Driver(store, engine), Driver(store, engine)
    for chat in (ada, bob):
        await chat.create()
        await chat.do(c.Acquire(worker_id="live"))
        await chat.start()
    for word in ("one", "two"):
        await ada.say(TextDelta("1", f"ada {word} "))
        await bob.say(TextDelta("1", f"bob {word} "))
    before = await bob.list_events()
    await stop(ada, alive=True)
    assert await bob.list_events() == before
    await bob.end(c.FinishTurn, pending=[TextDelta("1", "end"), Finish()])
    assert await ada.said() == [("user", "Hello"), ("assistant", "ada one ada two "), ("notice", NOTICE)]
    assert await bob.said() == [("user", "Hello"), ("assistant", "bob one bob two end")]
