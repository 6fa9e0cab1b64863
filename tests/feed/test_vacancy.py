"""The computed status of a running chat: readers learn in time that no worker is alive, and never too late."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.feed.feed_harness import FeedHarness, SeenEvents, StreamedChat

from indelible.content import Finish
from indelible.feed import feed
from indelible.machine import commands as c

POLLS = feed._POLLS_PER_VACANCY


def list_statuses(seen: SeenEvents) -> list[Any]:
    return [event.data["status"] for event in seen.events if event.kind in ("snapshot", "status")]


async def wait_for_status(seen: SeenEvents, status: str) -> None:
    await seen.wait_until(lambda: list_statuses(seen)[-1:] == [status], what=status)


async def answer(chat: StreamedChat) -> None:
    """A worker comes back and ends the turn at once."""
    await chat.write("Hello.", Finish("stop"))
    await chat.close(c.FinishTurn)


async def test_a_reader_that_joins_after_the_turn_has_ended_sees_no_waiting(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as first:
        await first.catch_up()
        await harness.store.retire_all()
        await harness.poll(POLLS)
        await wait_for_status(first, "pending")
        await answer(chat)
        await wait_for_status(first, "idle")
        async with harness.read(chat, first.events[0].cursor) as second:
            await second.catch_up()
            await harness.poll(POLLS)

    assert list_statuses(second) == ["idle"]


async def test_a_reader_that_is_behind_gets_no_pending_after_the_turn_has_ended(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as first:
        await first.catch_up()
        cursor = first.events[0].cursor
        await chat.write("Hm. ")
        await first.wait_for_text("Hm. ")
        async with harness.feed.open(chat.id, cursor) as behind:
            await harness.store.retire_all()
            await harness.poll(POLLS)
            await wait_for_status(first, "pending")
            await answer(chat)
            await wait_for_status(first, "idle")
            seen = SeenEvents(behind, chat)
            async with asyncio.TaskGroup() as tasks:
                collecting = tasks.create_task(seen.collect())
                await seen.catch_up()
                await harness.poll(POLLS)
                collecting.cancel()

    assert list_statuses(seen) == ["idle"]


async def test_a_snapshot_that_shows_pending_is_corrected_although_no_attempt_begins(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    await harness.store.retire_all()
    async with harness.read(chat) as seen, harness.read(chat, "start") as other:
        await seen.catch_up()
        await other.catch_up()
        await harness.store.beat("live")
        await harness.poll(POLLS)
        await wait_for_status(seen, "running")

    assert list_statuses(seen) == ["pending", "running"]
    assert list_statuses(other) == ["running"], "the event of the turn's begin; it was never told anything else"


async def test_a_turn_that_ends_while_the_feed_asks_for_live_workers_is_not_pending(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    ask = harness.store.vacant
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await harness.store.retire_all()

        async def ask_slowly(*given: Any) -> Any:
            running = await ask(*given)
            await answer(chat)
            await wait_for_status(seen, "idle")
            return running

        harness.store.vacant = ask_slowly  # type: ignore[method-assign, assignment]
        await harness.poll(POLLS)
        harness.store.vacant = ask  # type: ignore[method-assign]
        await harness.poll(POLLS)
        await wait_for_status(seen, "idle")

    assert list_statuses(seen) == ["running", "idle"]
