"""A retry that is announced, on both databases: told to readers, kept for the wait, and not longer (rule 2.3).

The rules alone are tests/machine/test_retry_and_summary.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, dump, settle_in
from tests.support.engine import get_database
from tests.support.stored import load_journal
from tests.support.tables import attempts

from indelible.content import Finish, ReasoningDelta, TextDelta, ToolCall, Usage, encode
from indelible.errors import Interrupted, LeaseLost
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.store import Store

RETRY = {"delay_ms": 2000, "kind": "overloaded", "provider": "demo", "status": 529, "message": "Too busy."}
REPLY = [TextDelta("1", "It is raining."), Finish()]


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """A live worker's model has thought about it, and nothing more."""
    return await (await Driver(store, engine).create()).work("live", ReasoningDelta("r", "Hm"))


async def announce(chat: Driver, **words: Any) -> None:
    await chat.do(chat.name(c.AnnounceRetry), retry=RETRY, **words)


async def test_a_retry_ends_the_attempt_and_tells_of_it_in_one_event(chat: Driver) -> None:
    seq = (await chat.row()).seq
    await announce(chat)
    await chat.check()
    ((kind, ref, payload),) = (await chat.list_events())[seq:]
    assert (kind, ref) == ("retry", chat.turn_id)
    assert payload == {**RETRY, "attempt": chat.attempt_id, "last_n": 1}
    attempt = await chat.attempt()
    assert (attempt.outcome, attempt.last_n) == ("reset", 1)
    assert await chat.said() == [("user", "Hello")]


async def test_parts_that_were_not_flushed_become_the_last_row_of_the_attempt_that_failed(chat: Driver) -> None:
    await announce(
        chat, pending=[ReasoningDelta("r", ", rain")], error={"kind": "overloaded"}, usage=Usage(input_tokens=7)
    )
    await chat.check()
    attempt = await chat.attempt()
    assert (attempt.last_n, attempt.usage) == (2, encode(Usage(input_tokens=7)))
    assert msgspec.json.decode(attempt.error) == {"kind": "overloaded"}
    assert [len(row.parts) for row in await load_journal(chat.store, chat.id, chat.attempt_id)] == [1, 1]


async def test_a_retry_after_a_step_that_was_kept_ends_no_attempt(chat: Driver) -> None:
    await chat.say(TextDelta("1", "It is"))
    await chat.end(c.CommitStep, failed=True)
    said = await chat.said()
    await announce(chat)
    await chat.check()
    kind, ref, payload = (await chat.list_events())[-1]
    assert (kind, ref, payload) == ("retry", chat.turn_id, RETRY)
    assert await chat.said() == said


async def test_whoever_joins_in_the_wait_sees_the_retry(chat: Driver, store: Store) -> None:
    assert (await store.view(chat.id)).retry is None
    await announce(chat)
    view = await store.view(chat.id)
    assert (view.retry, view.status, view.live) == (RETRY, "running", None)


async def test_the_next_attempt_is_of_the_same_step_and_ends_the_wait(chat: Driver) -> None:
    await announce(chat)
    named = (await chat.start()).attempt
    await chat.check()
    assert named is not None
    assert (named.step, named.number) == (1, 2)
    assert (await chat.row()).retry is None
    await chat.end(c.FinishTurn, pending=REPLY)
    assert [row.outcome for row in await chat.rows(attempts, attempts.c.number)] == ["reset", "complete"]


async def test_a_retry_may_be_announced_again_and_again(chat: Driver) -> None:
    for number in range(1, 4):
        await announce(chat)
        await announce(chat)  # its answer was lost
        await chat.check()
        assert (await chat.start()).attempt is not None
        assert (await chat.attempt()).number == number + 1
    assert (await chat.kinds()).count("retry") == 6


# --- it does not outlive the wait: a chat that is not busy has none (the check `retry_is_busy`) ---


async def stop(chat: Driver) -> None:
    await chat.do(c.Interrupt())
    assert (await chat.row()).retry is not None, "it is being stopped, and still waits"
    await chat.end(c.FinishInterruption, attempt_id=None)


async def stop_the_dead(chat: Driver) -> None:
    await chat.bury()
    await chat.do(c.Interrupt())


async def commit_into_a_stop(chat: Driver) -> None:
    await chat.do(c.Interrupt())
    await chat.end(c.FinishTurn, attempt_id=None)


async def fail(chat: Driver) -> None:
    await chat.end(c.Fail, attempt_id=None)


async def finish(chat: Driver) -> None:
    await chat.end(c.FinishTurn, attempt_id=None)


async def take_over(chat: Driver) -> None:
    await chat.bury()
    await chat.do(c.Acquire(worker_id="live"))


async def hand_over(chat: Driver) -> None:
    await chat.end(c.Release)
    assert (await chat.row()).retry is not None, "nobody has taken it yet"
    await chat.do(c.Acquire(worker_id="live"))


async def give_up(chat: Driver) -> None:
    for _ in range(3):
        await take_over(chat)
        await announce(chat)
    await take_over(chat)


async def edit(chat: Driver) -> None:
    await chat.do(c.Edit(message_id=await chat.last_id("user")), "Rather this")


async def ask(chat: Driver) -> None:
    await chat.start()
    await chat.say(ToolCall(id="c1", name="ask"), Finish("tool_calls"))
    await chat.end(c.AwaitAction)


@pytest.mark.parametrize(
    ("way", "state"),
    [
        (stop, State.IDLE),
        (stop_the_dead, State.IDLE),
        (commit_into_a_stop, State.IDLE),
        (fail, State.ERROR),
        (finish, State.IDLE),
        (give_up, State.ERROR),
        (ask, State.REQUIRES_ACTION),
        (take_over, State.RUNNING),
        (hand_over, State.RUNNING),
        (edit, State.RUNNING),
    ],
)
async def test_a_retry_never_outlives_its_turn_or_its_holder(chat: Driver, way: Any, state: State) -> None:
    await announce(chat)
    await way(chat)
    await chat.check()
    assert (await chat.state(), (await chat.row()).retry) == (state, None)


async def test_a_stopped_wait_with_a_queue_goes_on_with_the_next_message_at_once(chat: Driver) -> None:
    await announce(chat)
    await chat.do(c.SendInterrupt(), "Never mind")
    await chat.end(c.FinishInterruption, attempt_id=None)
    await chat.check()
    assert (await chat.state(), (await chat.row()).retry) == (State.RUNNING, None)
    assert (await chat.said())[-1] == ("user", "Never mind")


# --- who may announce one ---


async def test_no_retry_is_announced_in_a_chat_that_is_being_stopped(chat: Driver, engine: AsyncEngine) -> None:
    await chat.do(c.Interrupt())
    before = await dump(engine)
    with pytest.raises(Interrupted):
        await announce(chat, pending=[TextDelta("1", "late")])
    assert await dump(engine) == before


async def test_no_retry_is_announced_in_a_turn_that_is_gone(chat: Driver, engine: AsyncEngine) -> None:
    await chat.do(c.Send(), "next")
    late = chat.name(c.AnnounceRetry)
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption)
    before = await dump(engine)
    with pytest.raises(Interrupted):
        await chat.do(late, retry=RETRY)
    assert await dump(engine) == before


async def test_a_worker_that_lost_the_chat_announces_nothing(chat: Driver, engine: AsyncEngine) -> None:
    late = chat.name(c.AnnounceRetry)
    await take_over(chat)
    before = await dump(engine)
    with pytest.raises(LeaseLost):
        await chat.do(late, retry=RETRY, pending=[TextDelta("1", "late")])
    assert await dump(engine) == before
