"""Stopping a reply: in every phase in which a stop can come (rule 1.5), and in the product (S6, S7, S58–S65).

What happens when a stop and an end of the same turn meet is test_stop_races.py, on both databases. Here the phases are
the worker's and the loop's, so most tests need one database.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.app_harness import AppHarness, LongSleeps, make_settings
from tests.support.messages import find_notices, find_reply, outline, read_text
from tests.support.waiting import DEADLINE_S, deadline

from indelible.app.app import App
from indelible.content import Part, Reasoning, Text, TextDelta, ToolCall, ToolResult
from indelible.errors import ModelFailed
from indelible.models.protocol import Call, ModelTraits
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script
from indelible.tools.tool import ToolContext, tool

STOPPED = ["Stopped by you."]
HI: Script = [parts.text_delta("1", "Hi"), parts.finish()]


def list_results(messages: Any) -> dict[str, ToolResult]:
    return {block.call_id: block for message in messages for block in message.blocks if isinstance(block, ToolResult)}


# --- in the product ---


@pytest.mark.both_databases
async def test_s06_after_a_stop_the_text_is_on_the_page_and_in_the_database(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.text_delta("1", "Once upon"), parts.hang()]]))
    chat = await harness.app.create_chat("A story")
    await harness.wait_for_text(chat, "Once upon")
    await chat.interrupt()
    page = await harness.feed.snapshot(chat.id)
    shown = [message for message in page.messages if message.role == "assistant"]
    assert [(message.partial, b"Once upon" in bytes(message.blocks)) for message in shown] == [(True, True)]
    assert page.live is None
    stored = await harness.load(chat)
    assert [row.blocks for row in stored.messages if row.role == "assistant"] == [
        b'[{"type":"text","text":"Once upon"}]'
    ]


@pytest.mark.both_databases
async def test_s07_hanging_provider_stop_keeps_what_a_reader_has_seen(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "It is "), parts.text_delta("1", "raining"), parts.hang()]])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    reply = chat.send("Weather?")
    seen = ""
    async for part in reply:
        seen += part.text
        if seen == "It is raining":
            await chat.interrupt(wait=False)
    assert reply.outcome == "interrupted"
    kept = find_reply(await chat.messages())
    assert (read_text(kept.blocks), kept.partial, kept.reason) == (seen, True, "interrupted")


async def test_s58_a_reloaded_chat_has_the_partial_and_the_stop_notice(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.text_delta("1", "Half an"), parts.hang()]]))
    chat = await harness.app.create_chat("Answer")
    await harness.wait_for_text(chat, "Half an")
    await chat.interrupt()
    reopened = App(harness.open_store(), harness.feed, clock=harness.clock, owner_id=harness.app.owner_id)
    messages = await (await reopened.chat(chat.id)).messages()
    assert outline(messages) == [("user", "Answer"), ("assistant", "Half an"), ("notice", *STOPPED)]


async def test_s59_the_partial_is_no_error_and_the_notice_never_reaches_the_model(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Half an"), parts.hang()], HI])
    await harness.start_worker(model)
    chat = await harness.app.create_chat("Answer")
    await harness.wait_for_text(chat, "Half an")
    await chat.interrupt()
    view = await harness.store.view(chat.id)
    assert (view.status, view.error) == ("idle", None)
    reply, notice = view.messages[-2:]
    assert (reply.role, reply.partial, reply.reason, notice.role) == ("assistant", True, "interrupted", "notice")
    await chat.send("Go on")
    told = [block.text for message in model.calls[-1].messages for block in message.blocks if isinstance(block, Text)]
    assert not any("Stopped" in text for text in told)


async def test_s60_a_stop_before_any_token_leaves_only_the_notice(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.hang()]]))
    chat = await harness.app.create_chat("Answer")
    await harness.wait_until(chat, lambda view: view.live is not None)
    await chat.interrupt()
    assert outline(await chat.messages()) == [("user", "Answer"), ("notice", *STOPPED)]


async def test_s61_closed_thinking_then_visible_text_is_parted(harness: AppHarness) -> None:
    said: Script = [
        parts.text_delta("1", "<think>secret"),
        parts.text_delta("1", " plan</think>\nThe answer"),
        parts.hang(),
    ]
    await harness.start_worker(ScriptedModel([said]))
    chat = await harness.app.create_chat("Answer")
    await harness.wait_for_text(chat, "answer")
    await chat.interrupt()
    reply = find_reply(await chat.messages())
    assert read_text(reply.blocks) == "The answer"
    assert [block.text for block in reply.blocks if isinstance(block, Reasoning)] == ["secret plan"]


async def test_s62_unclosed_thinking_is_no_visible_reply(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "<think>still at it, for a while"), parts.hang()], HI])
    await harness.start_worker(model)
    chat = await harness.app.create_chat("Answer")
    await harness.wait_until(chat, lambda view: view.live is not None and bool(view.live.blocks))
    await chat.interrupt()
    messages = await chat.messages()
    assert find_notices(messages) == STOPPED
    for reply in (message for message in messages if message.role == "assistant"):
        assert (reply.partial, reply.reason, read_text(reply.blocks)) == (False, "interrupted", "")
    await chat.send("Go on")
    assert [message.role for message in model.calls[-1].messages] == ["user", "user"]


async def test_s63_the_next_prompt_has_the_message_and_the_partial(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Half an"), parts.hang()], HI])
    await harness.start_worker(model)
    chat = await harness.app.create_chat("Answer")
    await harness.wait_for_text(chat, "Half an")
    await chat.interrupt()
    await chat.send("Go on")
    prompt = [(message.role, read_text(message.blocks)) for message in model.calls[-1].messages]
    assert prompt == [("user", "Answer"), ("assistant", "Half an"), ("user", "Go on")]


async def test_s64_chats_never_see_each_others_buffers(harness: AppHarness) -> None:
    def answer(call: Call) -> AsyncIterator[Part]:
        async def say() -> AsyncIterator[Part]:
            asked = read_text(call.messages[-1].blocks)
            for word in ("you", "said", asked):
                yield TextDelta("1", f"{word} ")
            await asyncio.get_running_loop().create_future()

        return say()

    await harness.start_worker(ScriptedModel([answer] * 8))
    chats = [await harness.app.create_chat(f"thing {number}") for number in range(8)]
    for number, chat in enumerate(chats):
        await harness.wait_for_text(chat, f"thing {number} ")
    await asyncio.gather(*(chat.interrupt() for chat in chats))
    for number, chat in enumerate(chats):
        assert read_text(find_reply(await chat.messages()).blocks) == f"you said thing {number} "


async def test_s65_tokens_go_to_their_own_stream_only(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", letter), parts.finish()] for letter in "AB"])
    await harness.start_worker(model, settings=make_settings(worker_max_chats=1))
    first, second = await harness.app.create_chat(), await harness.app.create_chat()
    assert (await first.send("1")).text == "A"
    assert (await second.send("2")).text == "B"
    for chat, letter in ((first, "A"), (second, "B")):
        told = [part.text for event in await harness.read_events(chat) for part in event.parts]
        assert "".join(told) == letter


class Unready(ScriptedModel):
    """A model that is still being connected to."""

    def stream(self, call: Call) -> Any:
        super().stream(call)
        return self._connect()

    async def _connect(self) -> AsyncIterator[Part]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")


async def test_s65_a_stop_works_before_the_model_is_ready(harness: AppHarness) -> None:
    await harness.start_worker(Unready([[]]))
    chat = await harness.app.create_chat("Answer")
    await harness.wait_until(chat, lambda view: view.live is not None)
    assert (await chat.interrupt()).status == "idle"
    assert outline(await chat.messages()) == [("user", "Answer"), ("notice", *STOPPED)]


# --- the phases ---


async def test_stop_in_reasoning_keeps_it_and_ends_it(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.reasoning_delta("r", "Let me see"), parts.hang()]]))
    chat = await harness.app.create_chat("Answer")
    await harness.wait_until(chat, lambda view: view.live is not None and bool(view.live.blocks))
    await chat.interrupt()
    reply = find_reply(await chat.messages())
    (reasoning,) = reply.blocks
    assert isinstance(reasoning, Reasoning)
    assert (reasoning.text, reasoning.ended_at is not None) == ("Let me see", True)
    assert (reply.partial, reply.reason) == (False, "interrupted")


async def test_stop_in_tool_arguments_keeps_them_raw_and_answers_the_call(harness: AppHarness) -> None:
    said: Script = [parts.tool_input_start("c1", "search"), parts.tool_input_delta("c1", '{"q": "os'), parts.hang()]
    model = ScriptedModel([said, HI])
    await harness.start_worker(model)
    chat = await harness.app.create_chat("Answer")
    await harness.wait_until(chat, lambda view: view.live is not None and bool(view.live.blocks))
    await chat.interrupt()
    messages = await chat.messages()
    (call,) = find_reply(messages).blocks
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments, find_reply(messages).partial) == ("search", '{"q": "os', True)
    result = list_results(messages)["c1"]
    assert (result.is_error, "Interrupted" in result.output) == (True, True)
    assert find_notices(messages) == STOPPED
    await chat.send("Go on")


async def test_stop_between_the_stream_and_the_tools_answers_every_call(harness: AppHarness) -> None:
    """The one tool that may run at a time is busy; the other has not begun."""
    began = asyncio.Event()

    async def dig() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    said: Script = [parts.tool_call("c1", "dig", "{}"), parts.tool_call("c2", "dig", "{}"), parts.finish("tool_calls")]
    await harness.start_worker(ScriptedModel([said]), tools=[dig], settings=make_settings(tool_concurrency=1))
    chat = await harness.app.create_chat("Dig")
    await began.wait()
    await chat.interrupt()
    results = list_results(await chat.messages())
    assert "while this tool was running" in results["c1"].output
    assert "before this call was run" in results["c2"].output
    assert all(result.is_error for result in results.values())


async def test_stop_while_tools_run_keeps_results_that_are_there(harness: AppHarness) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_call("c1", "quick_one", "{}"),
                parts.tool_call("c2", "slow_one", "{}"),
                parts.finish("tool_calls"),
            ]
        ]
    )
    cancelled = asyncio.Event()

    async def quick_one() -> str:
        return "done at once"

    async def slow_one() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    await harness.start_worker(model, tools=[quick_one, slow_one])
    chat = await harness.app.create_chat("Both")
    await harness.wait_until(
        chat,
        lambda view: view.live is not None and any(isinstance(block, ToolResult) for block in view.live.blocks),
    )
    await chat.interrupt()
    assert cancelled.is_set()
    messages = await chat.messages()
    results = list_results(messages)
    assert (results["c1"].output, results["c1"].is_error) == ("done at once", False)
    assert results["c2"].is_error
    reply = find_reply(messages)
    assert (reply.partial, reply.reason) == (True, "interrupted")


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_stop_abandons_a_tool_that_ignores_cancellation(harness: AppHarness) -> None:
    began, let_go = asyncio.Event(), asyncio.Event()
    ended = asyncio.Event()

    async def stubborn() -> str:
        began.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "too late"

    said: Script = [parts.tool_call("c1", "stubborn", "{}"), parts.finish("tool_calls")]
    await harness.start_worker(ScriptedModel([said, HI]), tools=[stubborn])
    chat = await harness.app.create_chat("Try")
    await began.wait()
    assert (await chat.interrupt()).status == "idle"
    assert "abandoned" in list_results(await chat.messages())["c1"].output
    let_go.set()
    await ended.wait()
    assert (await chat.send("And now?")).text == "Hi"
    assert "abandoned" in list_results(await chat.messages())["c1"].output


async def test_stop_reaches_a_plain_function_through_its_scope(harness: AppHarness) -> None:
    """It runs in a thread, which nobody can cancel: it looks at its scope, and what it says then is kept."""
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    stopped = threading.Event()

    @tool
    def count(context: ToolContext) -> str:
        loop.call_soon_threadsafe(context.scope.on_cancel, stopped.set)
        loop.call_soon_threadsafe(began.set)
        stopped.wait()
        return "as far as I came"

    said: Script = [parts.tool_call("c1", "count", "{}"), parts.finish("tool_calls")]
    await harness.start_worker(ScriptedModel([said]), tools=[count], settings=make_settings(tool_grace_s=DEADLINE_S))
    chat = await harness.app.create_chat("Count")
    await began.wait()
    await chat.interrupt()
    assert list_results(await chat.messages())["c1"].output == "as far as I came"


FAILS = ModelFailed("It is overloaded.", kind="overloaded", retry_after_s=30.0)


@pytest.mark.parametrize("shown", ["", "I was saying"])
async def test_stop_in_a_retry_wait_keeps_what_was_shown(harness: AppHarness, shown: str) -> None:
    clock = LongSleeps()
    said: Script = [parts.text_delta("1", shown), FAILS]
    await harness.start_worker(ScriptedModel([said]), clock=clock)
    chat = await harness.app.create_chat("Answer")
    await clock.waiting.wait()
    assert (await chat.interrupt()).status == "idle"
    messages = await chat.messages()
    journal_rows_at_takeover = [("assistant", shown)] if shown else []
    assert outline(messages) == [("user", "Answer"), *journal_rows_at_takeover, ("notice", *STOPPED)]
    assert (await harness.store.view(chat.id)).retry is None


async def test_stop_of_a_compaction_leaves_the_conversation_as_it_is(harness: AppHarness) -> None:
    asked = asyncio.Event()

    async def ponder() -> AsyncIterator[Part]:
        asked.set()
        yield TextDelta("1", "In short")
        await asyncio.get_running_loop().create_future()

    model = ScriptedModel([[parts.text_delta("1", "x" * 200), parts.finish()], HI, lambda call: ponder(), HI])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("first")
    await chat.send("second")
    async with asyncio.TaskGroup() as group:
        compacting = group.create_task(chat.compact().wait())
        await asked.wait()
        assert (await chat.interrupt()).status == "idle"
    assert compacting.done()
    assert (await chat.send("third")).text == "Hi"
    assert [message.role for message in model.calls[-1].messages] == ["user", "assistant", "user", "assistant", "user"]


# --- which turn, and whose ---


async def test_a_second_stop_and_one_after_the_end_find_nothing_to_do(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.text_delta("1", "A"), parts.hang()]]))
    chat = await harness.app.create_chat("Answer")
    await harness.wait_for_text(chat, "A")
    stops = await asyncio.gather(chat.interrupt(), chat.interrupt(), chat.interrupt())
    assert {stop.status for stop in stops} == {"idle"}
    assert any(stop.stopped for stop in stops)
    late = await chat.interrupt()
    assert (late.stopped, late.status, late.turn) == (False, "idle", None)
    assert find_notices(await chat.messages()) == STOPPED


@pytest.mark.both_databases
async def test_a_stop_that_names_an_old_turn_does_not_stop_the_next(harness: AppHarness) -> None:
    second: Script = [parts.text_delta("1", "two"), parts.hang()]
    await harness.start_worker(ScriptedModel([[parts.text_delta("1", "one"), parts.finish()], second]))
    chat = await harness.app.create_chat()
    reply = await chat.send("1")
    await chat.post("2")
    await harness.wait_for_text(chat, "two")
    late = await chat.interrupt(turn=reply.turn_id)
    assert (late.stopped, late.status) == (False, "running")
    running = (await harness.store.view(chat.id)).turn
    assert (await chat.interrupt(turn=running)).stopped


@pytest.mark.both_databases
async def test_a_stop_before_any_worker_began_ends_the_turn_by_itself(harness: AppHarness) -> None:
    chat = await harness.app.create_chat("Answer")
    stopped = await chat.interrupt()
    assert (stopped.stopped, stopped.status) == (True, "idle")
    await harness.start_worker(ScriptedModel([HI]))
    assert (await chat.send("And now?")).text == "Hi"
    assert outline(await chat.messages())[:2] == [("user", "Answer"), ("notice", *STOPPED)]


@pytest.mark.both_databases
async def test_a_stop_with_a_dead_holder_ends_the_turn_from_the_journal(harness: AppHarness) -> None:
    dying = await harness.start_worker(ScriptedModel([[parts.text_delta("1", "Last words"), parts.hang()]]))
    chat = await harness.app.create_chat("Answer")
    await harness.wait_for_text(chat, "Last words")
    await harness.kill_worker(dying)
    await harness.retire_worker(dying)
    assert (await chat.interrupt()).status == "idle"
    assert outline(await chat.messages()) == [("user", "Answer"), ("assistant", "Last words"), ("notice", *STOPPED)]


@pytest.mark.both_databases
async def test_a_stop_that_a_dying_worker_never_saw_is_carried_out_by_the_next(harness: AppHarness) -> None:
    """Its row is still warm: the chat is being stopped until somebody finds the worker dead."""
    dying = await harness.start_worker(ScriptedModel([[parts.text_delta("1", "Last words"), parts.hang()]]))
    chat = await harness.app.create_chat("Answer")
    await harness.wait_for_text(chat, "Last words")
    await harness.kill_worker(dying)
    assert (await chat.interrupt(wait=False)).status == "interrupting"
    await harness.start_worker(
        ScriptedModel([HI]),
        store=harness.open_store(lease_timeout_s=1.0),
        settings=make_settings(heartbeat_interval_s=0.1),
    )
    await harness.wait_for_end(chat)
    assert outline(await chat.messages()) == [("user", "Answer"), ("assistant", "Last words"), ("notice", *STOPPED)]
    assert (await chat.send("And now?")).text == "Hi"


@pytest.mark.both_databases
async def test_a_stop_of_a_worker_that_is_only_taken_for_dead_silences_it(harness: AppHarness) -> None:
    more = asyncio.Event()

    async def say() -> AsyncIterator[Part]:
        yield TextDelta("1", "One")
        await more.wait()
        yield TextDelta("1", " two")
        yield parts.finish()

    running = await harness.start_worker(
        ScriptedModel([lambda call: say(), HI]), settings=make_settings(poll_interval_s=600, heartbeat_interval_s=4)
    )
    chat = await harness.app.create_chat("Count")
    await harness.wait_for_text(chat, "One")
    await harness.retire_worker(running)
    assert (await chat.interrupt()).status == "idle"
    more.set()
    await harness.store.beat(running.worker.id)
    assert (await chat.send("Hello?")).text == "Hi"
    told = outline(await chat.messages())
    assert told == [
        ("user", "Count"),
        ("assistant", "One"),
        ("notice", *STOPPED),
        ("user", "Hello?"),
        ("assistant", "Hi"),
    ]


class Dawdler:
    """Says a word and then nothing."""

    provider = name = "dawdler"
    context_limit = None
    traits = ModelTraits(makes_titles=False)

    def stream(self, call: Call) -> AsyncIterator[Part]:
        async def say() -> AsyncIterator[Part]:
            yield TextDelta("1", "Well")
            await asyncio.get_running_loop().create_future()

        return say()


@pytest.mark.both_databases
async def test_stop_then_send_at_once_two_hundred_times(harness: AppHarness) -> None:
    """On each database: nothing is lost, nothing is doubled, nothing gets stuck."""
    await harness.start_worker(Dawdler())
    chats = [await harness.app.create_chat() for _ in range(10)]

    async def hurry(chat: Any, seed: int) -> None:
        for round_ in range(20):
            await chat.post(f"message {round_}", if_busy=("queue", "interrupt", "steer")[(seed + round_) % 3])
            await chat.interrupt(wait=(seed + round_) % 4 != 0)
        while (await harness.store.view(chat.id)).status != "idle":
            await chat.interrupt()

    async with deadline():
        await asyncio.gather(*(hurry(chat, seed) for seed, chat in enumerate(chats)))
    for chat in chats:
        said = [text for role, text in outline(await chat.messages()) if role == "user"]
        assert sorted(said) == sorted(f"message {round_}" for round_ in range(20))
        stored = await harness.load(chat)
        assert len(stored.turns) == 20
        assert {turn.outcome for turn in stored.turns} == {"interrupted"}
        assert find_notices(await chat.messages()) == STOPPED * 20
