"""Rows that a real Redis carries between two processes on one PostgreSQL: no statement, no hint, nothing unasked."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.feed.fanned_harness import FannedHarness, run_two
from tests.store.statements import counted
from tests.support.engine import get_database
from tests.support.waiting import poll_until

from indelible.clock import SystemClock
from indelible.content import Finish
from indelible.feed.events import START
from indelible.feed.fanout import EXPIRES_S, MAX_ROW_BYTES, RENEW_INTERVAL_S, Fanout
from indelible.machine.commands import FinishTurn
from indelible.prove.redis import RedisServer
from indelible.testing import ManualClock


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with RedisServer().running() as running:
        yield running


@pytest.fixture
async def processes(own_postgres: str, redis: RedisServer) -> AsyncIterator[tuple[FannedHarness, FannedHarness]]:
    async with run_two(own_postgres, redis.url) as both:
        yield both


async def test_rows_come_through_redis_and_cost_no_statement_and_no_hint(
    processes: tuple[FannedHarness, FannedHarness],
) -> None:
    writing, reading = processes
    chat = await writing.create_streaming()
    await reading.receive_hints_of(writing)
    async with reading.read(chat) as seen:
        await seen.catch_up()
        await writing.wait_for_interest(chat)
        reading.store.calls.clear()
        with counted(get_database(reading.engine)) as sent:
            for number in range(20):
                await chat.write(f"{number},")
            await seen.wait_for_text("".join(f"{number}," for number in range(20)))

    assert (sent, reading.store.calls, writing.notifier.streaming) == ([], [], [])
    await writing.wait_for_published(20)
    assert reading.counted.received == 20
    assert reading.counted.missed == writing.counted.unpublished == 0


async def test_a_whole_reply_is_the_same_for_readers_here_and_elsewhere(
    processes: tuple[FannedHarness, FannedHarness],
) -> None:
    """Its beginning and its end come by hint, its rows through Redis, and the last one with the end."""
    writing, reading = processes
    chat = await (await writing.create_chat()).acquire()
    async with reading.read(chat, START) as seen, writing.read(chat, START) as beside:
        await writing.wait_for_interest(chat)
        await chat.start()
        for number in range(30):
            await chat.write(f"{number},")
        await chat.close(FinishTurn, Finish("stop"))
        await seen.wait_for("status", 2)
        await beside.wait_for("status", 2)

    assert seen.text == beside.text == "".join(f"{number}," for number in range(30))
    assert [event.kind for event in seen.events] == [event.kind for event in beside.events]
    assert [event.cursor for event in seen.events] == [event.cursor for event in beside.events]


async def test_rows_of_a_chat_that_nobody_elsewhere_reads_stay_here(
    processes: tuple[FannedHarness, FannedHarness],
) -> None:
    """They are hinted as without Redis, for processes that do not use it."""
    writing, reading = processes
    read, unread = await writing.create_streaming(), await writing.create_streaming()
    async with reading.read(read) as seen, writing.read(unread) as beside:
        await seen.catch_up()
        await beside.catch_up()
        await writing.wait_for_interest(read)
        writing.notifier.streaming.clear()
        await unread.write("to nobody there")
        await read.write("Rain")
        await seen.wait_for_text("Rain")

    assert writing.notifier.streaming == [unread.id]
    await writing.wait_for_published(1)
    assert reading.counted.received == 1


async def test_a_process_without_redis_gets_hints(own_postgres: str, redis: RedisServer) -> None:
    """In a deploy that introduces the setting, some processes have it and others do not."""
    async with run_two(own_postgres, redis.url, "") as (writing, reading):
        chat = await writing.create_streaming()
        async with reading.read(chat) as seen:
            await seen.catch_up()
            await chat.write("Rain")
            await seen.wait_for_text("Rain")
        assert chat.id in writing.notifier.streaming


async def test_a_row_too_large_for_redis_is_read_from_the_database(
    processes: tuple[FannedHarness, FannedHarness],
) -> None:
    writing, reading = processes
    chat = await writing.create_streaming()
    async with reading.read(chat) as seen:
        await seen.catch_up()
        await writing.wait_for_interest(chat)
        writing.notifier.streaming.clear()
        large = "x" * MAX_ROW_BYTES
        for text in ("It is ", large, " raining"):
            await chat.write(text)
        await seen.wait_for_text(f"It is {large} raining")

    assert writing.notifier.streaming == [chat.id]
    await writing.wait_for_published(2, unpublished=1)


async def test_a_process_whose_connection_is_gone_gets_hints_at_once(
    processes: tuple[FannedHarness, FannedHarness], redis: RedisServer
) -> None:
    """Nobody received the row: that is the answer of Redis, and the announcement is forgotten."""
    writing, reading = processes
    chat = await writing.create_streaming()
    async with reading.read(chat) as seen:
        await seen.catch_up()
        await writing.wait_for_interest(chat)
        assert reading.fanout is not None
        assert writing.fanout is not None
        gone = writing.fanout._inboxes[chat.id]
        gone["indelible:1:0:rows:process_gone"] = gone.pop(reading.fanout.inbox)
        writing.notifier.streaming.clear()
        await chat.write("Rain")
        await seen.wait_for_text("Rain")

    assert writing.notifier.streaming == [chat.id]
    assert chat.id not in writing.fanout._inboxes
    await writing.wait_for_published(0, unpublished=1)


async def test_two_databases_of_one_redis_know_nothing_of_each_other(own_postgres: str, redis: RedisServer) -> None:
    """Channels have no number of their own."""
    async with run_two(own_postgres, redis.url, redis.url.removesuffix("0") + "7") as (writing, reading):
        chat = await writing.create_streaming()
        async with reading.read(chat) as seen:
            await seen.catch_up()
            await chat.write("Rain")
            await seen.wait_for_text("Rain")
        assert writing.fanout is not None
        assert writing.fanout._inboxes == {}
    assert reading.counted.received == 0


async def test_readers_who_join_in_the_middle_miss_nothing(processes: tuple[FannedHarness, FannedHarness]) -> None:
    writing, reading = processes
    chat = await writing.create_streaming()
    for number in range(10):
        await chat.write(f"{number},")
        async with reading.read(chat, START) as seen:
            await chat.write(f"{number}.")
            wanted = "".join(f"{done},{done}." for done in range(number + 1))
            await seen.wait_for_text(wanted)
    assert reading.metrics.gaps == reading.metrics.resyncs == 0


async def test_an_announced_chat_is_announced_again_and_forgotten_when_nobody_reads_it(
    own_postgres: str, redis: RedisServer
) -> None:
    clock = ManualClock()
    async with run_two(own_postgres, redis.url, clock=clock) as (writing, reading):
        chat = await writing.create_streaming()

        async def let_pass(time_s: float) -> None:
            for _ in range(round(time_s / RENEW_INTERVAL_S)):
                await clock.advance(RENEW_INTERVAL_S)
                for harness in (writing, reading):
                    await harness.wait_for_answer()

        async with reading.read(chat) as seen:
            await writing.wait_for_interest(chat)
            await let_pass(3 * EXPIRES_S)
            await writing.wait_for_interest(chat)
            await chat.write("Rain")
            await seen.wait_for_text("Rain")
        await let_pass(EXPIRES_S + RENEW_INTERVAL_S)
        await writing.wait_for_interest(chat, exists=False)
        await chat.write("to nobody")
    assert writing.counted.published == 1
    assert writing.counted.connected == [True, False]


async def test_chats_that_are_opened_while_redis_is_away_are_announced_later_and_fill_no_memory(
    own_postgres: str, redis: RedisServer
) -> None:
    opened = [f"chat_{number}" for number in range(5_000)]
    async with run_two(own_postgres, redis.url) as (writing, _):
        assert writing.fanout is not None
        late = Fanout(
            redis.url,
            clock=SystemClock(),
            on_rows=lambda _: None,
            on_unsent=lambda _: None,
            watched=lambda: opened,
        )
        for chat_id in opened:
            late.announce(chat_id)
        assert len(late._new) < len(opened)
        task = writing.start_service(late.run())
        known = writing.fanout._inboxes
        await poll_until(lambda: len(known) == len(opened), what="all announcements")
        task.cancel()
