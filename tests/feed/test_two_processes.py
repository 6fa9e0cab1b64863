"""Readers in another process than the worker's, on one PostgreSQL: told by hints, without a poll (rule 6.3, R10)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.feed.feed_harness import FeedHarness
from tests.store.driver import settle_in
from tests.support.engine import close_databases, open_engine

from indelible.clock import SystemClock
from indelible.content import Finish
from indelible.feed.events import START
from indelible.machine.commands import FinishTurn, Interrupt
from indelible.notify import SEND_INTERVAL_S, PostgresNotifier
from indelible.store.database.address import parse_address


@pytest.fixture
async def processes(own_postgres: str) -> AsyncIterator[tuple[FeedHarness, FeedHarness]]:
    """Two that share nothing but the database. Their feeds do not poll: nobody moves their clocks."""
    here, there = await open_engine(own_postgres), await open_engine(own_postgres)
    await settle_in(here)
    options = parse_address(own_postgres).make_postgres_options()
    one = FeedHarness(here, PostgresNotifier(options, clock=SystemClock()))
    other = FeedHarness(there, PostgresNotifier(options, clock=SystemClock()))
    with one.notifier.subscribe() as hints_here, other.notifier.subscribe() as hints_there:
        async with one.running(), other.running():
            while not (await hints_here.wait()).everything:
                pass  # it does not listen yet
            while not (await hints_there.wait()).everything:
                pass
            yield one, other
    await close_databases()
    await here.dispose()
    await there.dispose()


async def test_readers_elsewhere_see_the_same_without_a_poll(processes: tuple[FeedHarness, FeedHarness]) -> None:
    """Within 250 ms, of which a hint may wait for a part. How long the rest takes is the machine's affair."""
    assert SEND_INTERVAL_S < 0.25
    writing, reading = processes
    chat = await writing.create_streaming()
    async with reading.read(chat) as seen, writing.read(chat) as beside:
        await seen.catch_up()
        await beside.catch_up()
        for number in range(15):
            await chat.write(f"{number},")
            await seen.wait_until(lambda: seen.text.endswith(f"{number},"))  # noqa: B023  (it is waited for here and now)
        await chat.close(FinishTurn, Finish("stop"))
        await seen.wait_for("status")
        await beside.wait_for("status")

    assert seen.text == beside.text == "".join(f"{number}," for number in range(15))
    assert seen.kinds == beside.kinds


async def test_a_cursor_of_one_process_is_good_in_another(processes: tuple[FeedHarness, FeedHarness]) -> None:
    writing, reading = processes
    chat = await writing.create_streaming()
    async with writing.read(chat, START) as seen:
        await chat.write("It is ")
        cursor = (await seen.wait_for("part"))[-1].cursor
    async with reading.read(chat, cursor) as elsewhere:
        await chat.write("raining")
        await elsewhere.wait_for_text("raining")
        await chat.do(Interrupt())
        told = await elsewhere.wait_for("status")

    assert told[-1].data == {"status": "interrupting", "turn": chat.turn_id}
