"""What a command costs the database: transactions and statements, counted where they go to the driver.

The numbers are upper bounds that a change may lower. Beginning and ending a transaction is not a statement here, nor
is a setting of it, and one statement by itself is no transaction; PostgreSQL is asked for its clock in a statement of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, settle_in
from tests.store.statements import is_of_transaction, observed
from tests.support.engine import get_database

from indelible.content import Finish, TextDelta
from indelible.machine import commands as c
from indelible.store.payloads import ChatPatch, UserInput
from indelible.store.store import Store


class Count:
    """`transactions` are those with a BEGIN of their own; one statement by itself needs none."""

    def __init__(self) -> None:
        self.transactions = 0
        self.statements: list[str] = []


@contextmanager
def counting(engine: AsyncEngine) -> Iterator[Count]:
    count = Count()
    with observed(get_database(engine)) as sent:
        yield count
    count.transactions = sum(statement.startswith("BEGIN") for statement in sent)
    count.statements = [" ".join(statement.split()) for statement in sent if not is_of_transaction(statement)]


PLAIN_TURN = {
    "create": {"sqlite": 5, "postgresql": 3},
    "acquire": {"sqlite": 2, "postgresql": 3},
    "start": {"sqlite": 5, "postgresql": 4},
    "finish": {"sqlite": 8, "postgresql": 5},
    "send": {"sqlite": 6, "postgresql": 4},
}
"""What PostgreSQL gets as one statement is counted as one (store/database/postgres_transaction.py)."""


async def test_a_plain_turn_costs_each_command_this_many_statements(engine: AsyncEngine) -> None:
    await settle_in(engine)
    chat = Driver(Store(get_database(engine)), engine)
    counted: dict[str, int] = {}

    @contextmanager
    def noting(name: str) -> Iterator[None]:
        with counting(engine) as count:
            yield
        assert count.transactions == 1
        counted[name] = len(count.statements)

    with noting("create"):
        await chat.create("Is it raining?")
    with noting("acquire"):
        await chat.do(c.Acquire(worker_id="live"))
    with noting("start"):
        await chat.start()
    await chat.say(TextDelta("1", "Yes"), Finish("stop"))
    with noting("finish"):
        await chat.end(c.FinishTurn)
    with noting("send"):
        await chat.do(c.Send(), "And tomorrow?")
    dialect = get_database(engine).dialect
    assert counted == {name: bounds[dialect] for name, bounds in PLAIN_TURN.items()}


async def test_a_stop_of_a_held_chat_and_its_answer_cost_one_transaction_and_five_statements(
    chat: Driver, engine: AsyncEngine
) -> None:
    await chat.work("live")
    for _ in range(50):
        await chat.say(TextDelta("1", "more "))
    with counting(engine) as count:
        stopped = await chat.store.execute(chat.id, c.Interrupt())
        now = await chat.store.status(chat.id)
    assert (stopped.effective, now.status, now.turn_id) == (True, "interrupting", chat.turn_id)
    assert count.transactions == 1
    assert len(count.statements) <= 5, count.statements
    read = [statement for statement in count.statements if "parts" in statement or "blocks" in statement]
    assert read == [], "a stop reads neither the running reply nor the conversation"


async def test_a_stop_of_a_chat_whose_holder_is_dead_ends_its_turn_in_eleven_statements(
    chat: Driver, engine: AsyncEngine
) -> None:
    await chat.work("live")
    await chat.bury()
    with counting(engine) as count:
        stopped = await chat.store.execute(chat.id, c.Interrupt())
        now = await chat.store.status(chat.id)
    assert (stopped.effective, now.status, now.turn_id) == (True, "idle", None)
    assert count.transactions == 1
    assert len(count.statements) <= 11, count.statements  # one of them adds to the usage of the day


async def test_a_stop_that_finds_nothing_to_stop_costs_two_statements_at_most(
    chat: Driver, engine: AsyncEngine
) -> None:
    await chat.work("live")
    await chat.end(c.FinishTurn)
    with counting(engine) as count:
        assert not (await chat.store.execute(chat.id, c.Interrupt())).effective
    assert len(count.statements) <= 2, count.statements


async def test_a_message_to_a_busy_chat_does_not_read_the_conversation(chat: Driver, engine: AsyncEngine) -> None:
    await chat.work("live")
    with counting(engine) as count:
        await chat.store.execute(chat.id, c.Send(), UserInput(blocks=[]))
    assert not [statement for statement in count.statements if statement.startswith("SELECT") and "blocks" in statement]


async def test_s76_an_update_that_also_archives_is_one_transaction(chat: Driver, engine: AsyncEngine) -> None:
    await chat.do(c.Interrupt())
    with counting(engine) as count:
        done = await chat.store.update(chat.id, ChatPatch(title="Rain"), archived=True)
    assert done.summary is not None
    assert (done.summary.title, done.summary.archived) == ("Rain", True)
    assert count.transactions == 1
    assert len(count.statements) <= 9, count.statements


async def test_a_question_that_is_asked_again_costs_one_statement_more_for_its_model(
    chat: Driver, engine: AsyncEngine
) -> None:
    await chat.do(c.Interrupt())
    with counting(engine) as count:
        await chat.do(c.Retry())
    assert len([statement for statement in count.statements if "SELECT model FROM messages" in statement]) == 1


@pytest.mark.parametrize("length", [1, 40])
async def test_the_status_of_a_chat_costs_the_same_however_long_it_is(
    chat: Driver, engine: AsyncEngine, length: int
) -> None:
    await chat.work("live")
    for _ in range(length):
        await chat.say(TextDelta("1", "more "))
    with counting(engine) as count:
        now = await chat.store.status(chat.id)
    assert (now.owner_id, now.status, now.turn_id) == ("user_ada", "running", chat.turn_id)
    assert count.transactions == 0
    assert len(count.statements) == 1, count.statements
