"""S90: readers are told that no worker is alive, and that one works again; on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.app_harness import AppHarness
from tests.support.waiting import deadline

from indelible.api.events import FeedEvent
from indelible.content import Part, TextDelta
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts


class HangingModel(ScriptedModel):
    async def stream(self, call: Call) -> AsyncIterator[Part]:
        yield TextDelta("1", "Half")
        async for part in ScriptedModel([[parts.hang()]]).stream(call):
            yield part


@pytest.fixture
async def app_harness(engine: AsyncEngine) -> AsyncIterator[AppHarness]:
    async with AppHarness(engine, poll_interval_s=0.01).opened() as opened:
        yield opened


async def wait_for(events: Any, kind: str, **fields: Any) -> FeedEvent:
    async with deadline():
        async for event in events:
            if event.kind == kind and fields.items() <= event.data.items():
                return event  # type: ignore[no-any-return]
    raise AssertionError("the feed ended too early")


async def test_s90_a_reader_learns_that_all_workers_are_dead_and_that_one_works_again(
    app_harness: AppHarness,
) -> None:
    harness = app_harness
    running = await harness.start_worker(HangingModel())
    chat = await harness.app.create_chat("Hello")
    async with harness.feed.open(chat.id) as events:
        part = await wait_for(events, "part")
        await harness.kill_worker(running)
        await harness.retire_worker(running)
        turn = (await harness.store.view(chat.id)).turn
        pending = await wait_for(events, "status", status="pending", turn=turn)
        async with harness.feed.open(chat.id, after=part.cursor) as others:
            await wait_for(others, "status", status="pending")
        async with harness.feed.open(chat.id, after=pending.cursor) as others:
            await wait_for(others, "status", status="pending")
        assert part.cursor is not None
        async with harness.feed.follow(chat.id, part.cursor) as others:
            await wait_for(others, "status", status="pending")
        await harness.start_worker(ScriptedModel([[parts.text_delta("1", " and half"), parts.finish()]]))
        await wait_for(events, "status", status="idle")


async def test_s90_a_reader_learns_that_a_worker_works_again_though_it_writes_nothing(app_harness: AppHarness) -> None:
    harness = app_harness
    running = await harness.start_worker(HangingModel())
    chat = await harness.app.create_chat("Hello")
    async with harness.feed.open(chat.id) as events:
        await wait_for(events, "part")
        await harness.kill_worker(running)
        await harness.retire_worker(running)
        await wait_for(events, "status", status="pending")
        await harness.start_worker(ScriptedModel([[parts.hang()]]))
        await wait_for(events, "status", status="running")
