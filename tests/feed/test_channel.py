"""A watched chat: rows are taken as they are committed, and what does not connect is read, once for all readers."""

from __future__ import annotations

import asyncio

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.process import Process, Talk, poll, wait_until

from indelible.feed.cursor import START
from indelible.machine.commands import UpdateChat
from indelible.store.payloads import ChatPatch
from indelible.store.queries.changes import MAX_EVENTS


async def begin(process: Process) -> Talk:
    talk = await (await process.talk()).hold()
    await talk.start()
    return talk


async def test_while_rows_connect_there_is_no_query(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as one, process.read(talk) as other:
        await one.everything()
        await other.everything()
        process.store.asked.clear()

        for number in range(20):
            await talk.speak(f"{number},")
        await wait_until(lambda: one.text == other.text == "".join(f"{number}," for number in range(20)))

    assert process.store.asked == []


async def test_all_readers_of_a_chat_get_the_same_object(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as one, process.read(talk, START) as other:
        await one.everything()
        await other.everything()
        await talk.speak("Hello")
        (told,) = (await one.until("part"))[-1:]
        (same,) = (await other.until("part"))[-1:]

    assert told.body is same.body
    assert told.cursor == same.cursor
    assert told.data["parts"] == [{"type": "text_delta", "id": "1", "delta": "Hello"}]
    assert told.parts is same.parts


async def test_rows_that_do_not_connect_are_read_from_the_store(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as seen:
        await seen.everything()
        process.is_deaf = True
        await talk.speak("somebody else ")
        await talk.speak("committed this, ")
        process.is_deaf = False
        await talk.speak("and we this.")
        await wait_until(lambda: seen.text == "somebody else committed this, and we this.")


async def test_rows_that_come_while_the_watch_reads_are_told_after_what_it_reads(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as seen:
        await seen.everything()
        process.store.gate.clear()
        process.store.asked.clear()
        await talk.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await wait_until(lambda: "changes" in process.store.asked)
        await talk.speak("It is ")
        await talk.speak("raining")
        process.store.gate.set()
        await wait_until(lambda: seen.text == "It is raining")

    assert seen.kinds == ["snapshot", "chat", "part", "part"]
    assert process.store.asked.count("changes") == 1


async def test_more_rows_than_are_kept_meanwhile_are_read(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as seen:
        await seen.everything()
        process.store.gate.clear()
        process.store.asked.clear()
        await talk.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await wait_until(lambda: "changes" in process.store.asked)
        for number in range(100):
            await talk.speak(f"{number},")
        process.store.gate.set()
        await wait_until(lambda: seen.text == "".join(f"{number}," for number in range(100)))

    assert seen.kinds == ["snapshot", "chat", *["part"] * 100]
    assert process.store.asked.count("changes") == 2


async def test_a_watch_that_is_far_behind_reads_on_until_nothing_is_new(engine: AsyncEngine, process: Process) -> None:
    talk = await process.talk()
    async with Process(engine).running() as elsewhere, elsewhere.read(talk) as seen:
        await seen.everything()
        for number in range(2 * MAX_EVENTS):
            await talk.do(UpdateChat(), payload=ChatPatch(title=f"Title {number}"))
        await poll(elsewhere)
        await seen.until("chat", 2 * MAX_EVENTS)

    assert seen.kinds == ["snapshot", *["chat"] * 2 * MAX_EVENTS]


async def test_a_chat_that_many_read_is_read_once(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as one, process.read(talk) as two, process.read(talk) as three:
        readers = (one, two, three)
        await asyncio.gather(*(seen.everything() for seen in readers))
        process.store.asked.clear()
        await talk.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await asyncio.gather(*(seen.until("chat") for seen in readers))

    assert process.store.asked == ["changes"]
