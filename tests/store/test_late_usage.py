"""Who may still say what an ended attempt cost: whoever held it when it ended, and nobody who came after (rule 1.8)."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, dump, settle_in
from tests.support.engine import get_database

from indelible.api.shapes import Timings
from indelible.content import Usage
from indelible.machine import commands as c
from indelible.store.store import Store


async def test_a_later_holder_says_nothing_of_an_attempt_that_it_never_held(engine: AsyncEngine) -> None:
    await settle_in(engine)
    chat = await (await Driver(Store(get_database(engine)), engine).create()).work("dead")
    await chat.do(c.Acquire(worker_id="live"))
    before = await dump(engine)

    late = {"usage": Usage(input_tokens=7), "cost_nanousd": 9, "timings": Timings(started_at=datetime.now(UTC))}
    outcome = await chat.end(c.CommitStep, **late)

    assert not outcome.effective
    assert await dump(engine) == before
