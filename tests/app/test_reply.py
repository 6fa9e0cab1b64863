"""What a program reads of a reply: its parts and its end, however the turn comes about and whatever becomes of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.support.app_harness import AppHarness, make_settings
from tests.support.messages import find_reply, outline, read_text
from tests.support.waiting import deadline, poll_until

from indelible.api.shapes import Accepted
from indelible.app.chat import Chat
from indelible.app.reply import NeverSent, Reply
from indelible.content import Part, TextDelta, ToolResult, Usage
from indelible.errors import Invalid, ModelFailed, NotAllowed, NotFound, TooMany
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script


def say(*words: str) -> Script:
    return [*(parts.text_delta("1", word) for word in words), parts.finish()]


def gated(gate: asyncio.Event, first: str, then: str = "") -> Script:
    async def stream() -> AsyncIterator[Part]:
        yield TextDelta("1", first)
        await gate.wait()
        yield TextDelta("1", then)
        yield parts.finish()

    return lambda call: stream()


HANG: Script = [parts.text_delta("1", "Well"), parts.hang()]


async def roll() -> str:
    return "4"


async def start(harness: AppHarness, *script: Script) -> Chat:
    await harness.start_worker(ScriptedModel(list(script)), tools=[roll])
    return await harness.app.create_chat()


# --- reading ---


async def test_what_was_read_is_what_is_stored(harness: AppHarness) -> None:
    said: Script = [
        parts.reasoning_delta("r", "hm"),
        parts.text_delta("1", "Let me roll. "),
        parts.tool_call("c1", "roll", "{}"),
        parts.finish("tool_calls"),
    ]
    chat = await start(harness, said, say("A ", "four", "."))
    reply = chat.send("Roll")
    read = [part async for part in reply]
    text = "".join(part.text for part in read)
    assert text == reply.text == "Let me roll. A four."
    replies = [message for message in await chat.messages() if message.role == "assistant"]
    assert "".join(read_text(message.blocks) for message in replies) == text
    assert [type(part).__name__ for part in read if "Tool" in type(part).__name__] == [
        "ToolCall", "ToolStarted", "ToolResult"
    ]  # fmt: skip
    assert "hm" not in text
    assert (reply.outcome, reply.turn_id) == ("complete", (await harness.load(chat)).turns[0].id)


async def test_nothing_is_sent_before_it_is_read(harness: AppHarness) -> None:
    chat = await start(harness, say("Hi"))
    reply = chat.send("Hello")
    assert await chat.messages() == []
    await reply
    assert outline(await chat.messages()) == [("user", "Hello"), ("assistant", "Hi")]


async def test_a_reply_that_is_dropped_unread_warns_that_nothing_was_sent(harness: AppHarness) -> None:
    chat = await start(harness)

    def drop() -> None:
        chat.send("Hello")
        gc.collect()

    with pytest.warns(NeverSent, match="was not sent"):
        drop()
    assert await chat.messages() == []


async def test_a_block_sends_when_it_begins_and_stops_reading_when_it_ends(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."))
    async with chat.stream("Count") as reply:
        assert outline(await chat.messages()) == [("user", "Count")]
        async for _ in reply:
            break
    assert harness.feed._readers == set()
    gate.set()
    assert (await reply).text == "One, two."


async def test_a_reply_knows_the_messages_the_usage_and_the_cost_of_its_turn(harness: AppHarness) -> None:
    first: Script = [
        parts.tool_call("c1", "roll", "{}"),
        parts.finish("tool_calls", usage=Usage(input_tokens=10, output_tokens=1)),
    ]
    second: Script = [parts.text_delta("1", "Four."), parts.finish(usage=Usage(input_tokens=20, output_tokens=2))]
    chat = await start(harness, first, second)
    reply = await chat.send("Roll")
    assert [message.role for message in reply.messages] == ["assistant", "tool", "assistant"]
    assert reply.message is reply.messages[-1]
    assert reply.message.text == "Four."
    assert (reply.usage, reply.cost) == (Usage(input_tokens=30, output_tokens=3), None)


async def test_a_loop_that_is_left_in_the_middle_of_an_event_loses_none_of_its_parts(harness: AppHarness) -> None:
    said: Script = [
        parts.reasoning_delta("r", "hm"),
        parts.text_delta("1", "One, "),
        parts.text_delta("2", "two."),
        parts.finish(),
    ]
    chat = await start(harness, said)
    reply = chat.send("Count")
    read: list[Part] = []
    while reply.outcome is None:
        async for part in reply:
            read.append(part)
            break
    assert "".join(part.text for part in read) == reply.text == "One, two."
    assert reply.text == read_text(find_reply(await chat.messages()).blocks)


async def test_a_reply_that_is_being_read_has_no_second_reader(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."))
    reply = chat.send("Count")
    waiting = asyncio.Event()

    async def read() -> str:
        async for _ in reply:
            waiting.set()
        return reply.text

    reading = asyncio.create_task(read())
    await waiting.wait()
    with pytest.raises(RuntimeError, match="This reply is being read already"):
        await reply
    gate.set()
    assert await reading == "One, two."


async def test_leaving_the_loop_stops_nothing(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."))
    async for part in chat.send("Count"):
        assert part.text == "One, "
        break
    gate.set()
    view = await harness.wait_for_end(chat)
    reply = find_reply(view.messages)
    assert (read_text(reply.blocks), reply.partial) == ("One, two.", False)


async def test_coming_back_reads_on_and_sends_nothing_again(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."))
    reply = chat.send("Count")
    async for _ in reply:
        break
    gate.set()
    await reply
    assert (reply.text, reply.outcome) == ("One, two.", "complete")
    assert outline(await chat.messages()) == [("user", "Count"), ("assistant", "One, two.")]


async def test_awaiting_twice_is_reading_once(harness: AppHarness) -> None:
    chat = await start(harness, say("Hi"))
    reply = chat.send("Hello")
    assert (await reply) is reply
    assert (await reply).text == "Hi"
    assert len(await chat.messages()) == 2


async def test_a_cancelled_reader_stops_nothing(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."))
    reading = asyncio.create_task(chat.send("Count")._read_all())
    await harness.wait_for_text(chat, "One, ")
    reading.cancel()
    await asyncio.wait([reading])
    gate.set()
    assert read_text(find_reply((await harness.wait_for_end(chat)).messages).blocks) == "One, two."


async def test_the_feed_takes_a_reply_up_again_from_its_cursor(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."))
    cursor, seen = None, ""
    await chat.post("Count")
    async with harness.feed.open(chat.id, after="start") as events:
        async for event in events:
            cursor = event.cursor
            seen += "".join(part.text for part in event.parts)
            if seen:
                break
    gate.set()
    await harness.wait_for_end(chat)
    async with harness.feed.open(chat.id, after=cursor) as events:
        async for event in events:
            seen += "".join(part.text for part in event.parts)
            if event.kind == "status" and event.data["status"] == "idle":
                break
    assert seen == "One, two."


async def test_other_turns_are_not_part_of_a_reply(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "first", "!"), say("second"), say("third"))
    replies = [chat.send(text) for text in "abc"]
    tasks = []
    for at, reply in enumerate(replies):
        tasks.append(asyncio.create_task(reply._read_all()))
        await harness.wait_until(chat, lambda view, at=at: (view.turn is not None) + len(view.queue) == at + 1)  # type: ignore[misc]
    gate.set()
    await asyncio.gather(*tasks)
    assert [reply.text for reply in replies] == ["first!", "second", "third"]
    assert len({reply.turn_id for reply in replies}) == 3


# --- ends ---


async def test_a_reply_that_was_stopped_is_interrupted(harness: AppHarness) -> None:
    chat = await start(harness, HANG)
    reply = chat.send("Talk")
    async for _ in reply:
        await chat.interrupt(wait=False)
    assert (reply.text, reply.outcome) == ("Well", "interrupted")


async def test_a_reply_that_failed_raises_after_its_last_part(harness: AppHarness) -> None:
    failure = ModelFailed("No.", kind="usage_limit", provider="scripted", status=402, detail="quota")
    chat = await start(harness, [parts.text_delta("1", "Half"), failure])
    reply = chat.send("Talk")
    with pytest.raises(ModelFailed) as raised:
        await reply
    error = raised.value
    assert (reply.text, reply.outcome) == ("Half", "failed")
    assert (error.kind, error.message, error.provider, error.status, error.detail, error.retryable) == (
        "usage_limit", "No.", "scripted", 402, "quota", False
    )  # fmt: skip


async def test_a_message_taken_out_of_the_queue_is_withdrawn(harness: AppHarness) -> None:
    chat = await start(harness, HANG)
    await chat.post("Talk")
    await harness.wait_for_text(chat, "Well")
    reading = asyncio.create_task(chat.send("Never mind")._read_all())
    view = await harness.wait_until(chat, lambda view: len(view.queue) == 1)
    await chat.delete_queued(view.queue[0].id)
    assert ((await reading).outcome, (await reading).text) == ("withdrawn", "")
    await chat.interrupt()


async def test_a_queued_message_that_was_edited_or_moved_still_has_its_reply(harness: AppHarness) -> None:
    chat = await start(harness, HANG, say("C"), say("B"))
    await chat.post("a")
    await harness.wait_for_text(chat, "Well")
    second = asyncio.create_task(chat.send("b")._read_all())
    view = await harness.wait_until(chat, lambda view: len(view.queue) == 1)
    third = asyncio.create_task(chat.send("c")._read_all())
    view = await harness.wait_until(chat, lambda view: len(view.queue) == 2)
    await chat.edit_queued(view.queue[0].id, "B?")
    await chat.reorder_queue([row.id for row in reversed(view.queue)])
    await chat.interrupt(wait=False)
    assert ((await third).text, (await second).text) == ("C", "B")
    assert [text for role, text in outline(await chat.messages()) if role == "user"] == ["a", "c", "B?"]


async def test_a_steer_that_was_stopped_before_it_joined_is_the_next_turn(harness: AppHarness) -> None:
    chat = await start(harness, HANG, say("Steered"))
    await chat.post("a")
    await harness.wait_for_text(chat, "Well")
    reading = asyncio.create_task(chat.send("b", if_busy="steer")._read_all())
    await harness.wait_until(chat, lambda view: len(view.queue) == 1)
    await chat.interrupt(wait=False)
    reply = await reading
    assert (reply.text, reply.outcome) == ("Steered", "complete")


async def test_interrupt_sends_are_answered_one_after_the_other(harness: AppHarness) -> None:
    """The chat is being stopped already when the second comes: it stops nothing more, and waits behind the first."""
    chat = await harness.app.create_chat("a")
    await harness.store.acquire("somebody", limit=1)
    await harness.store.beat("somebody")
    tasks = []
    for at, text in enumerate("bc"):
        tasks.append(asyncio.create_task(chat.send(text, if_busy="interrupt")._read_all()))
        await harness.wait_until(chat, lambda view, at=at: len(view.queue) == at + 1)  # type: ignore[misc]
    await harness.store.retire("somebody")
    await harness.start_worker(ScriptedModel([say("B"), say("C")]))
    assert [(await task).text for task in tasks] == ["B", "C"]
    assert [text for role, text in outline(await chat.messages()) if role == "user"] == ["a", "b", "c"]


async def test_a_deleted_chat_ends_its_readers(harness: AppHarness) -> None:
    chat = await start(harness, HANG)
    reading = asyncio.create_task(chat.send("a")._read_all())
    await harness.wait_for_text(chat, "Well")
    waiting = asyncio.create_task(chat.send("b")._read_all())
    await harness.wait_until(chat, lambda view: len(view.queue) == 1)
    await chat.delete()
    assert {(await reading).outcome, (await waiting).outcome} == {"deleted"}


async def test_a_chat_that_was_deleted_before_its_reply_was_read(harness: AppHarness) -> None:
    chat = await start(harness)
    reply = Reply(harness.app.service, chat.id, await chat.post("Hello", if_busy="queue"))
    await chat.delete()
    assert (await reply).outcome == "deleted"


async def test_stopping_a_chat_that_is_deleted_meanwhile_says_so(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Hello")
    await harness.store.acquire("somebody", limit=1)
    await harness.store.beat("somebody")
    stopping = asyncio.create_task(chat.interrupt())
    await harness.wait_until(chat, lambda view: view.status == "interrupting")
    await chat.delete()
    with pytest.raises(NotFound):
        await stopping


# --- a cursor that is of no use, as after a restored backup ---


def read_with_useless_cursor(harness: AppHarness, chat: Chat, begun: Accepted) -> Reply:
    return Reply(harness.app.service, chat.id, msgspec.structs.replace(begun, cursor="useless"))


async def test_a_reply_whose_turn_ended_behind_a_useless_cursor_is_what_is_stored(harness: AppHarness) -> None:
    called: Script = [
        parts.text_delta("1", "Let me roll. "),
        parts.tool_call("c1", "roll", "{}"),
        parts.finish("tool_calls"),
    ]
    chat = await start(harness, called, say("A ", "four."), say("Next"))
    begun = await chat.post("Roll")
    await harness.wait_for_end(chat)
    await chat.send("And now?")

    reply = read_with_useless_cursor(harness, chat, begun)
    async with deadline():
        read = [part async for part in reply]

    assert "".join(part.text for part in read) == reply.text == "Let me roll. A four."
    assert [message.role for message in reply.messages] == ["assistant", "tool", "assistant"]
    assert reply.outcome == "complete"


async def test_a_reply_that_runs_behind_a_useless_cursor_is_read_to_its_end(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."))
    begun = await chat.post("Count")
    await harness.wait_for_text(chat, "One, ")

    reply = read_with_useless_cursor(harness, chat, begun)
    read = []
    async with deadline():
        async for part in reply:
            read.append(part.text)
            gate.set()

    assert "".join(read) == reply.text == "One, two."
    assert (reply.outcome, [message.text for message in reply.messages]) == ("complete", ["One, two."])


async def test_a_reply_that_loses_its_place_half_way_repeats_nothing(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."))
    reply = chat.send("Count")
    async with deadline():
        async for part in reply:
            assert part.text == "One, "
            break
        await reply.aclose()
        gate.set()
        await harness.wait_for_end(chat)
        reply._cursor = "useless"
        assert [part.text async for part in reply] == ["two."]
    assert (reply.text, reply.outcome) == ("One, two.", "complete")


async def test_every_end_of_a_reply_is_known_behind_a_useless_cursor(harness: AppHarness) -> None:
    failure = ModelFailed("No.", kind="usage_limit", provider="scripted")
    chat = await start(harness, HANG, say("Edited"), [parts.text_delta("1", "Half"), failure])
    stopped = await chat.post("Talk")
    await harness.wait_for_text(chat, "Well")
    queued = await chat.post("Never mind")
    assert queued.queued is not None
    await chat.delete_queued(queued.queued)
    await chat.interrupt()
    async with deadline():
        reply = await read_with_useless_cursor(harness, chat, stopped)
        assert (reply.text, reply.outcome) == ("Well", "interrupted")
        assert (await read_with_useless_cursor(harness, chat, queued)).outcome == "withdrawn"

        assert stopped.message is not None
        await chat.edit(stopped.message, "Talk more")
        assert (await read_with_useless_cursor(harness, chat, stopped)).outcome == "edited"

        failed = await chat.post("Fail")
        await harness.wait_for_end(chat)
        reply = read_with_useless_cursor(harness, chat, failed)
        with pytest.raises(ModelFailed, match=r"No\.") as raised:
            await reply
    assert (reply.text, reply.outcome, raised.value.kind) == ("Half", "failed", "usage_limit")


async def test_a_message_that_waits_behind_a_useless_cursor_gets_its_reply(harness: AppHarness) -> None:
    gate = asyncio.Event()
    chat = await start(harness, gated(gate, "One, ", "two."), say("Three."))
    await chat.post("Count")
    await harness.wait_for_text(chat, "One, ")
    reply = read_with_useless_cursor(harness, chat, await chat.post("Go on"))
    reading = asyncio.create_task(reply._read_all())
    async with deadline():
        await poll_until(lambda: reply.cursor not in (None, "useless"))
        gate.set()
        await reading
    assert (reply.text, reply.outcome) == ("Three.", "complete")


# --- refusals ---


async def test_what_is_refused_raises_and_changes_nothing(harness: AppHarness) -> None:
    chat = await start(harness, say("Hi"))
    await chat.send("Hello")
    seq = (await harness.store.view(chat.id)).seq
    with pytest.raises(NotAllowed):
        await chat.retry()
    with pytest.raises(NotAllowed):
        await chat.continue_()
    with pytest.raises(NotAllowed):
        await chat.submit_tool_results([ToolResult(call_id="c1", name="ask", output="")])
    with pytest.raises(NotFound):
        await chat.edit("message_none", "x")
    with pytest.raises(Invalid):
        await chat.edit((await chat.messages())[-1].id, "x")
    for nothing in ("", "  \n"):
        with pytest.raises(Invalid):
            chat.send(nothing)
    with pytest.raises(Invalid):
        chat.send([])
    with pytest.raises(Invalid):
        chat.send("x", if_busy="never")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await chat.post("x", if_busy="never")  # type: ignore[arg-type]
    assert (await harness.store.view(chat.id)).seq == seq


async def test_a_full_queue_is_reported(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([HANG]), settings=make_settings())
    chat = await harness.app.create_chat("a")
    for number in range(20):
        await chat.post(f"{number}")
    with pytest.raises(TooMany):
        await chat.send("one too many")
    await chat.delete()


async def test_a_reply_that_is_begun_twice_at_once_or_after_a_cancellation_is_sent_once(harness: AppHarness) -> None:
    chat = await start(
        harness, [parts.text_delta("1", "One"), parts.finish()], [parts.text_delta("1", "Two"), parts.finish()]
    )
    twice = chat.send("first")
    assert (await asyncio.gather(twice.begin(), twice.begin()))[0] == await twice.begin()
    cut = chat.send("second")
    begun = asyncio.create_task(cut.begin())
    await asyncio.sleep(0)  # it is being sent
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun
    await twice
    await cut
    asked = [message.text for message in await chat.messages() if message.role == "user"]
    assert asked == ["first", "second"]
