"""What a command costs the database: transactions and statements, counted where they go to the driver.

The numbers are upper bounds that a change may lower. Beginning and ending a transaction is not a statement here, nor
is a setting of it; PostgreSQL is asked for its clock in a statement of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver

from indelible.content import TextDelta
from indelible.machine import commands as c
from indelible.store.database.engine import is_sqlite
from indelible.store.payloads import UserInput

NOT_COUNTED = ("BEGIN", "SET ", "PRAGMA")


class Count:
    def __init__(self) -> None:
        self.transactions = 0
        self.statements: list[str] = []


@contextmanager
def counting(engine: AsyncEngine) -> Iterator[Count]:
    count = Count()

    def add_statement(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith(NOT_COUNTED):
            count.statements.append(" ".join(statement.split()))

    def add_transaction(_connection: object) -> None:
        count.transactions += 1

    event.listen(engine.sync_engine, "before_cursor_execute", add_statement)
    event.listen(engine.sync_engine, "begin", add_transaction)
    try:
        yield count
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", add_statement)
        event.remove(engine.sync_engine, "begin", add_transaction)


def clocks(engine: AsyncEngine, asked: int) -> int:
    """How many statements it costs to ask for the time so often."""
    return 0 if is_sqlite(engine.url) else asked


async def test_a_stop_of_a_held_chat_and_its_answer_cost_two_transactions_and_seven_statements(
    chat: Driver, engine: AsyncEngine
) -> None:
    await chat.work("live")
    for _ in range(50):
        await chat.say(TextDelta("1", "more "))
    with counting(engine) as count:
        stopped = await chat.store.execute(chat.id, c.Interrupt())
        now = await chat.store.status(chat.id)
    assert (stopped.effective, now.status, now.turn_id) == (True, "interrupting", chat.turn_id)
    assert count.transactions == 2
    assert len(count.statements) <= 7 + clocks(engine, 1), count.statements
    read = [statement for statement in count.statements if "FROM journal" in statement or "FROM messages" in statement]
    assert read == [], "a stop reads neither the running reply nor the conversation"


async def test_a_stop_of_a_chat_whose_holder_is_dead_ends_its_turn_in_fourteen_statements(
    chat: Driver, engine: AsyncEngine
) -> None:
    await chat.work("live")
    await chat.bury()
    with counting(engine) as count:
        stopped = await chat.store.execute(chat.id, c.Interrupt())
        now = await chat.store.status(chat.id)
    assert (stopped.effective, now.status, now.turn_id) == (True, "idle", None)
    assert count.transactions == 2
    assert len(count.statements) <= 14 + clocks(engine, 1), count.statements


async def test_a_stop_that_finds_nothing_to_stop_reads_the_chats_row_alone(chat: Driver, engine: AsyncEngine) -> None:
    await chat.work("live")
    await chat.end(c.FinishTurn)
    with counting(engine) as count:
        assert not (await chat.store.execute(chat.id, c.Interrupt())).effective
    assert len(count.statements) <= 1 + clocks(engine, 1), count.statements


async def test_a_message_to_a_busy_chat_does_not_read_the_conversation(chat: Driver, engine: AsyncEngine) -> None:
    await chat.work("live")
    with counting(engine) as count:
        await chat.store.execute(chat.id, c.Send(), UserInput(blocks=[]))
    assert not [statement for statement in count.statements if "FROM messages" in statement]


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
    assert count.transactions == 1
    assert len(count.statements) <= 2 + clocks(engine, 1), count.statements
