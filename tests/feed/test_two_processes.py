"""Readers in another process than the worker's, on one PostgreSQL: told by hints, without a poll (SPEC 6.3, R10)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.feed.process import Process, wait_until
from tests.store.driver import settle_in

from indelible.clock import SystemClock
from indelible.content import Finish
from indelible.feed.cursor import START
from indelible.machine.commands import FinishTurn, Interrupt
from indelible.notify import SEND_INTERVAL_S, PostgresNotifier
from indelible.store.database.engine import open_engine
from indelible.store.database.migrate import migrate


@pytest.fixture
async def processes(new_postgres: str) -> AsyncIterator[tuple[Process, Process]]:
    """Two that share nothing but the database. Their feeds do not poll: nobody moves their clocks."""
    await migrate(new_postgres)
    here, there = await open_engine(new_postgres), await open_engine(new_postgres)
    await settle_in(here)
    one = Process(here, PostgresNotifier(here.url, clock=SystemClock()))
    other = Process(there, PostgresNotifier(there.url, clock=SystemClock()))
    with one.notifier.subscribe() as hints_here, other.notifier.subscribe() as hints_there:
        async with one.running(), other.running():
            while not (await hints_here.wait()).everything:
                pass  # it does not listen yet
            while not (await hints_there.wait()).everything:
                pass
            yield one, other
    await here.dispose()
    await there.dispose()


async def test_readers_elsewhere_see_the_same_without_a_poll(processes: tuple[Process, Process]) -> None:
    """Within 250 ms, of which a hint may wait for a part. How long the rest takes is the machine's affair."""
    assert SEND_INTERVAL_S < 0.25
    writing, reading = processes
    talk = await (await writing.talk()).hold()
    await talk.start()
    async with reading.read(talk) as seen, writing.read(talk) as beside:
        await seen.everything()
        for number in range(15):
            await talk.speak(f"{number},")
            await wait_until(lambda: seen.text.endswith(f"{number},"))  # noqa: B023  (it is waited for here and now)
        await talk.close(FinishTurn, Finish("stop"))
        await seen.until("status")
        await beside.until("status")

    assert seen.text == beside.text == "".join(f"{number}," for number in range(15))
    assert seen.kinds == beside.kinds


async def test_a_cursor_of_one_process_is_good_in_another(processes: tuple[Process, Process]) -> None:
    writing, reading = processes
    talk = await (await writing.talk()).hold()
    await talk.start()
    async with writing.read(talk, START) as seen:
        await talk.speak("It is ")
        cursor = (await seen.until("part"))[-1].cursor
    async with reading.read(talk, cursor) as elsewhere:
        await talk.speak("raining")
        await wait_until(lambda: elsewhere.text == "raining")
        await talk.do(Interrupt())
        told = await elsewhere.until("status")

    assert told[-1].data == {"status": "interrupting", "turn": talk.turn_id}
