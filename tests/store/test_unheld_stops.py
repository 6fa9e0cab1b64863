"""Stopped turns that no live worker holds: found on both databases, and ended by repeating the stop."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, settle_in
from tests.support.engine import get_database

from indelible.content import Text
from indelible.machine.commands import Acquire, Create, Interrupt, Release, Send
from indelible.machine.states import Status
from indelible.store.payloads import NewChat, UserInput
from indelible.store.queries.liveness import UnheldStop
from indelible.store.store import Store


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), lease_timeout_s=3600)


async def hold_second_turn(store: Store, chat_id: str, worker_id: str) -> Acquire:
    """A chat whose first turn has ended, and whose second is held by this worker, which is alive."""
    await store.execute(chat_id, Create(with_message=True), NewChat(owner_id=OWNER, blocks=[Text("hi")]))
    await store.execute(chat_id, Interrupt())
    await store.execute(chat_id, Send(), UserInput(blocks=[Text("again")]))
    await store.beat(worker_id)
    held = Acquire(worker_id=worker_id)
    await store.execute(chat_id, held)
    return held


async def test_stops_without_a_live_holder_are_found_the_longest_waiting_first(store: Store) -> None:
    for number in (2, 1, 3, 4):
        await hold_second_turn(store, f"chat_{number}", f"worker_{number}")
    stops = {number: await store.execute(f"chat_{number}", Interrupt()) for number in (2, 1, 3)}
    assert {stop.status for stop in stops.values()} == {Status.INTERRUPTING}
    assert await store.unheld_stops(limit=9) == []
    for number in (1, 2, 4):
        await store.retire(f"worker_{number}")
    found = [UnheldStop(f"chat_{number}", stops[number].turn_id or "") for number in (2, 1)]
    assert await store.unheld_stops(limit=9) == found
    assert await store.unheld_stops(limit=1) == found[:1]


async def test_a_repeated_stop_ends_the_turn_only_when_its_holder_is_dead_or_gone(store: Store) -> None:
    """What was found is a hint: the holder may have come alive again, and a released chat has none."""
    await hold_second_turn(store, "chat_1", "worker_1")
    await store.execute("chat_1", Interrupt())
    await store.retire("worker_1")
    (found,) = await store.unheld_stops(limit=9)
    await store.beat("worker_1")
    again = await store.execute("chat_1", Interrupt(turn_id=found.turn_id))
    assert (again.status, await store.unheld_stops(limit=9)) == (Status.INTERRUPTING, [])
    await store.execute("chat_1", Release(epoch=again.epoch))
    assert await store.unheld_stops(limit=9) == [found]
    ended = await store.execute("chat_1", Interrupt(turn_id=found.turn_id))
    assert (ended.status, await store.unheld_stops(limit=9)) == (Status.IDLE, [])
