"""What a hint costs a process that only reads: statements are counted on an engine of its own (HOUSE §3.5)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.process import Process, Talk, wait_until
from tests.store.statements import counted

from indelible.machine.commands import Delete, UpdateChat
from indelible.notify import Changed, LocalNotifier
from indelible.store.database.engine import open_engine
from indelible.store.payloads import ChatPatch


@pytest.fixture
async def elsewhere(engine: AsyncEngine) -> AsyncIterator[Process]:
    """Another process on the same database. It receives the hints that a test publishes, and never polls."""
    own = await open_engine(engine.url.render_as_string(hide_password=False))
    async with Process(own, LocalNotifier()).running() as started:
        yield started
    await own.dispose()


def hint(process: Process, *talks: Talk) -> None:
    assert isinstance(process.notifier, LocalNotifier)
    process.notifier.publish(Changed(streaming=frozenset(talk.id for talk in talks)))


async def begin(process: Process) -> Talk:
    talk = await (await process.talk()).hold()
    await talk.start()
    return talk


async def test_a_hint_of_new_rows_costs_two_statements(process: Process, elsewhere: Process) -> None:
    """One for events, one for rows. Asking for the position first would be a third."""
    talk = await begin(process)
    async with elsewhere.read(talk) as seen:
        await seen.everything()
        elsewhere.store.asked.clear()
        with counted(elsewhere.engine) as sent:
            await talk.speak("It is ")
            await talk.speak("raining")
            hint(elsewhere, talk)
            await wait_until(lambda: seen.text == "It is raining")

    assert elsewhere.store.asked == ["changes"]
    assert len(sent) == 2


async def test_a_hint_that_finds_nothing_new_costs_as_much_and_changes_nothing(
    process: Process, elsewhere: Process
) -> None:
    talk = await begin(process)
    async with elsewhere.read(talk) as seen:
        await seen.everything()
        elsewhere.store.asked.clear()
        with counted(elsewhere.engine) as sent:
            hint(elsewhere, talk)
            await wait_until(lambda: len(sent) == 2)
            await talk.speak("Rain")
            hint(elsewhere, talk)
            await wait_until(lambda: seen.text == "Rain")

    assert seen.kinds == ["snapshot", "part"]
    assert elsewhere.store.asked.count("positions") == 0


async def test_several_hinted_chats_are_one_query_and_one_more_for_each_that_has_news(
    process: Process, elsewhere: Process
) -> None:
    talks = [await begin(process) for _ in range(3)]
    async with elsewhere.read(talks[0]) as one, elsewhere.read(talks[1]) as two, elsewhere.read(talks[2]) as three:
        for seen in (one, two, three):
            await seen.everything()
        elsewhere.store.asked.clear()
        with counted(elsewhere.engine) as sent:
            await talks[0].speak("one")
            await talks[2].speak("three")
            hint(elsewhere, *talks)
            await wait_until(lambda: (one.text, three.text) == ("one", "three"))

    assert elsewhere.store.asked == ["positions", "changes", "changes"]
    assert len(sent) == 5
    assert two.kinds == ["snapshot"]


async def test_hints_about_chats_that_nobody_reads_here_cost_nothing(process: Process, elsewhere: Process) -> None:
    read, unread = await begin(process), await begin(process)
    async with elsewhere.read(read) as seen:
        await seen.everything()
        with counted(elsewhere.engine) as sent:
            await unread.speak("to nobody here")
            hint(elsewhere, unread)
            await read.speak("Rain")
            hint(elsewhere, read)
            await wait_until(lambda: seen.text == "Rain")

    assert len(sent) == 2


async def test_a_hint_of_a_command_brings_its_event_and_a_deletion_the_end(
    process: Process, elsewhere: Process
) -> None:
    talk = await process.talk()
    async with elsewhere.read(talk) as seen:
        await seen.everything()
        elsewhere.store.asked.clear()
        await talk.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        hint(elsewhere, talk)
        await seen.until("chat")
        await talk.do(Delete())
        hint(elsewhere, talk)
        await wait_until(lambda: seen.is_over)

    assert seen.events[-1].data == {"reason": "deleted"}
    assert elsewhere.store.asked == ["changes", "changes"]
