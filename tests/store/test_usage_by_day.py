"""Usage by day on both databases: every attempt counts once, whatever became of it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.support.engine import get_database

from indelible.api.shapes import UsageDay
from indelible.content import Finish, TextDelta, Usage, UsageUpdate
from indelible.errors import NotFound
from indelible.machine import commands as c
from indelible.service.lists import add_up
from indelible.store.payloads import StepResult
from indelible.store.store import Store

LONG_AGO = date(2000, 1, 1)
FAR_AWAY = date(2099, 1, 1)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), lease_timeout_s=3600)


async def load(store: Store, user_id: str | None = OWNER) -> list[UsageDay]:
    return await store.usage(user_id, since=LONG_AGO, until=FAR_AWAY)


async def test_the_sums_of_the_days_are_the_sums_of_the_attempts(store: Store, engine: AsyncEngine) -> None:
    for _ in range(3):
        chat = await Driver(store, engine).create()
        await chat.work()
        usage = Usage(input_tokens=10, output_tokens=5, reasoning_tokens=2)
        await chat.end(c.FinishTurn, pending=[Finish()], usage=usage, cost_nanousd=1_500_000_000)
    (day,) = await load(store)
    assert (day.model, day.input_tokens, day.output_tokens, day.turns) == ("demo-1", 30, 15, 3)
    assert day.cost == pytest.approx(4.5)
    assert abs(datetime.fromisoformat(day.day).replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(days=2)
    (named,) = await load(store, None)
    assert named.user == "Ada"
    assert await store.usage(None, since=LONG_AGO, until=FAR_AWAY, name="Ada") == [named]
    assert await load(store, "user_nobody") == []
    assert await store.usage(OWNER, since=FAR_AWAY, until=FAR_AWAY) == []


async def test_a_retried_a_failed_and_a_stopped_attempt_count_with_what_was_reported(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await Driver(store, engine).create()
    await chat.work("live", UsageUpdate(Usage(input_tokens=7)))
    await chat.do(chat.name(c.AnnounceRetry), retry={"delay_ms": 1})
    await chat.start()
    await chat.say(UsageUpdate(Usage(input_tokens=8)), TextDelta("1", "Hi"))
    await chat.end(c.Fail, usage=Usage(input_tokens=8, output_tokens=1))
    (day,) = await load(store)
    assert (day.input_tokens, day.output_tokens, day.turns) == (15, 1, 1)


async def test_usage_that_only_a_worker_that_lost_its_turn_knows_is_added_once(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await Driver(store, engine).create()
    await chat.work()
    await chat.bury()
    await chat.do(c.Interrupt())
    (before,) = await load(store)
    assert (before.input_tokens, before.cost, before.turns) == (0, 0, 1)
    late: Any = chat.name(c.FinishInterruption)
    for _ in range(2):
        await store.execute(chat.id, late, StepResult(usage=Usage(input_tokens=9), cost_nanousd=10**9))
    (after,) = await load(store)
    assert (after.input_tokens, after.cost, after.turns) == (9, 1.0, 1)


async def test_usage_stays_when_a_chat_is_deleted(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    await chat.work()
    await chat.end(c.FinishTurn, pending=[Finish()], usage=Usage(input_tokens=1))
    before = await load(store)
    await chat.do(c.Delete())
    assert await load(store) == before


async def test_a_user_who_used_nothing_has_no_days_and_a_name_that_nobody_has_is_not_found(store: Store) -> None:
    assert await store.usage(None, since=LONG_AGO, until=FAR_AWAY, name="Ada") == []
    with pytest.raises(NotFound, match=r"There is no user named Bob\."):
        await store.usage(None, since=LONG_AGO, until=FAR_AWAY, name="Bob")


async def test_a_cost_that_nobody_knows_is_null_and_not_zero(store: Store, engine: AsyncEngine) -> None:
    """By day and in total; a day without tokens costs nothing, and a known cost is added to what is unknown."""
    chat = await Driver(store, engine).create()
    await chat.work()
    await chat.end(c.FinishTurn, pending=[Finish()], usage=Usage(input_tokens=10, output_tokens=5))
    days = await load(store)
    assert [day.cost for day in days] == [None]
    assert add_up(days).cost is None
    assert add_up([]).cost == 0
    other = await Driver(store, engine).create()
    await other.work()
    usage = Usage(input_tokens=1)
    await other.end(c.FinishTurn, pending=[Finish()], usage=usage, cost_nanousd=2_000_000_000)
    assert add_up([*days, *await load(store)]).cost == pytest.approx(2.0)
