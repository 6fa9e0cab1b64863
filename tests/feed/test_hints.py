"""What a hint costs a process that only reads: statements are counted on an engine of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.feed_harness import FeedHarness, StreamedChat
from tests.store.statements import counted
from tests.support.engine import get_database, open_engine

from indelible.machine.commands import Delete, UpdateChat
from indelible.notify import Changed, LocalNotifier
from indelible.store.payloads import ChatPatch


@pytest.fixture
async def elsewhere(engine: AsyncEngine) -> AsyncIterator[FeedHarness]:
    """Another process on the same database. It receives the hints that a test publishes, and never polls."""
    own = await open_engine(engine.url.render_as_string(hide_password=False))
    async with FeedHarness(own, LocalNotifier()).running() as started:
        yield started
    await own.dispose()


def hint(harness: FeedHarness, *chats: StreamedChat) -> None:
    assert isinstance(harness.notifier, LocalNotifier)
    harness.notifier.publish(Changed(for_readers=frozenset(chat.id for chat in chats)))


async def test_a_hint_of_new_rows_costs_two_statements(harness: FeedHarness, elsewhere: FeedHarness) -> None:
    """One for events, one for rows. Asking for the position first would be a third."""
    chat = await harness.create_streaming()
    async with elsewhere.read(chat) as seen:
        await seen.catch_up()
        elsewhere.store.calls.clear()
        with counted(get_database(elsewhere.engine)) as sent:
            await chat.write("It is ")
            await chat.write("raining")
            hint(elsewhere, chat)
            await seen.wait_for_text("It is raining")

    assert elsewhere.store.calls == ["changes"]
    assert len(sent) == 2


async def test_a_hint_that_finds_nothing_new_costs_as_much_and_changes_nothing(
    harness: FeedHarness, elsewhere: FeedHarness
) -> None:
    chat = await harness.create_streaming()
    async with elsewhere.read(chat) as seen:
        await seen.catch_up()
        elsewhere.store.calls.clear()
        with counted(get_database(elsewhere.engine)) as sent:
            hint(elsewhere, chat)
            await elsewhere.store.watched.wait_until(lambda: len(sent) == 2)
            await chat.write("Rain")
            hint(elsewhere, chat)
            await seen.wait_for_text("Rain")

    assert seen.kinds == ["snapshot", "part"]
    assert elsewhere.store.calls.count("positions") == 0


async def test_several_hinted_chats_are_one_query_and_one_more_for_each_that_has_news(
    harness: FeedHarness, elsewhere: FeedHarness
) -> None:
    chats = [await harness.create_streaming() for _ in range(3)]
    async with elsewhere.read(chats[0]) as one, elsewhere.read(chats[1]) as two, elsewhere.read(chats[2]) as three:
        for seen in (one, two, three):
            await seen.catch_up()
        elsewhere.store.calls.clear()
        with counted(get_database(elsewhere.engine)) as sent:
            await chats[0].write("one")
            await chats[2].write("three")
            hint(elsewhere, *chats)
            await one.wait_for_text("one")
            await three.wait_for_text("three")

    assert elsewhere.store.calls == ["positions", "changes", "changes"]
    assert len(sent) == 5
    assert two.kinds == ["snapshot"]


async def test_hints_about_chats_that_nobody_reads_here_cost_nothing(
    harness: FeedHarness, elsewhere: FeedHarness
) -> None:
    read, unread = await harness.create_streaming(), await harness.create_streaming()
    async with elsewhere.read(read) as seen:
        await seen.catch_up()
        with counted(get_database(elsewhere.engine)) as sent:
            await unread.write("to nobody here")
            hint(elsewhere, unread)
            await read.write("Rain")
            hint(elsewhere, read)
            await seen.wait_for_text("Rain")

    assert len(sent) == 2


async def test_a_hint_of_a_command_brings_its_event_and_a_deletion_the_end(
    harness: FeedHarness, elsewhere: FeedHarness
) -> None:
    chat = await harness.create_chat()
    async with elsewhere.read(chat) as seen:
        await seen.catch_up()
        elsewhere.store.calls.clear()
        await chat.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        hint(elsewhere, chat)
        await seen.wait_for("chat")
        await chat.do(Delete())
        hint(elsewhere, chat)
        await seen.wait_until_over()

    assert seen.events[-1].data == {"reason": "deleted"}
    assert elsewhere.store.calls == ["changes", "changes"]
