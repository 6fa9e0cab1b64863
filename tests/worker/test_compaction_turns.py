"""Compaction through the whole stack: on request, at the threshold, and when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.app_harness import AppHarness, LongSleeps, make_settings
from tests.support.messages import find_notices, outline, read_text
from tests.support.stored import load_path
from tests.support.waiting import poll_until

from indelible.app.chat import Chat
from indelible.content import Message, Part, TextDelta, Usage
from indelible.errors import ModelFailed
from indelible.loop.prompt.compact import INSTRUCTION
from indelible.models.protocol import Call
from indelible.store.commands.change import CONTINUE
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

LONG = "a long story " * 40


def say(text: str, *, used: int = 0) -> Script:
    return [parts.text_delta("1", text), parts.finish(usage=Usage(input_tokens=used))]


def is_summary_asked(call: Call) -> bool:
    return read_text(call.messages[0].blocks) == INSTRUCTION


async def talk(harness: AppHarness, model: ScriptedModel) -> Chat:
    """Two turns, the first of which is long."""
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("Tell me a story")
    await chat.send("And another")
    return chat


def find_summaries(path: list[Message]) -> list[str]:
    return [read_text(message.blocks) for message in path if message.visibility == "model"]


async def test_a_summary_is_the_models_alone_and_older_messages_stay_visible(harness: AppHarness) -> None:
    model = ScriptedModel([say(LONG), say("Short"), say("They told stories."), say("Hi")])
    chat = await talk(harness, model)
    before = await chat.messages()
    reply = await chat.compact()
    assert (reply.text, reply.outcome) == ("", "complete")
    assert is_summary_asked(model.calls[2])
    after = await chat.messages()
    assert after[:-1] == before
    (notice,) = find_notices(after)
    assert notice.startswith("The conversation was summarised for the model: about ")
    (summary,) = find_summaries(await load_path(harness.store, chat.id))
    assert "They told stories." in summary
    assert (await chat.send("Hello")).text == "Hi"
    prompt = [read_text(message.blocks) for message in model.calls[3].messages]
    assert prompt == [summary, "And another", "Short", "Hello"]


async def test_a_reply_that_was_stopped_is_continued_after_a_compaction_with_its_words_in_the_prompt(
    harness: AppHarness,
) -> None:
    model = ScriptedModel(
        [say(LONG), [parts.text_delta("1", "One"), parts.hang()], say("They told stories."), say(" two")]
    )
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("Tell me a story")
    await chat.post("Count")
    await harness.wait_for_text(chat, "One")
    await chat.interrupt()
    await chat.compact()
    assert (await chat.continue_()).text == " two"
    summary, *_ = find_summaries(await load_path(harness.store, chat.id))
    prompt = [read_text(message.blocks) for message in model.calls[3].messages]
    assert prompt == [summary, "Count", "One", CONTINUE]
    path = await load_path(harness.store, chat.id)
    assert path[-1].continues == next(message.id for message in path if message.text == "One")


@pytest.mark.parametrize("is_asked_before", [False, True])
async def test_a_long_reply_that_was_stopped_stays_in_the_prompt_that_continues_it(
    harness: AppHarness, *, is_asked_before: bool
) -> None:
    stopped: Script = [parts.text_delta("1", LONG), parts.hang()]
    script = [say("Hi."), stopped, *([[parts.hang()]] if is_asked_before else []), say("They met."), say(" The end.")]
    model = ScriptedModel(script)
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("Hello")
    await chat.post("Write a long essay")
    await harness.wait_for_text(chat, LONG)
    await chat.interrupt()
    if is_asked_before:
        async with chat.continue_():
            await poll_until(lambda: len(model.calls) == 3)
            await chat.interrupt()
    await chat.compact()
    assert (await chat.continue_()).text == " The end."
    prompt = [read_text(message.blocks) for message in model.calls[-1].messages]
    assert "They met." in prompt[0]
    assert prompt[1:] == [LONG, CONTINUE]


async def test_a_compaction_with_nothing_to_summarise_says_so(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([[parts.finish()]]))
    chat = await harness.app.create_chat()
    await chat.send("Hello")
    assert (await chat.compact()).outcome == "complete"
    assert find_summaries(await load_path(harness.store, chat.id)) == []
    assert find_notices(await chat.messages())[-1] == "Nothing to summarise yet."


async def test_a_compaction_that_fails_is_an_error_and_retry_compacts_again(harness: AppHarness) -> None:
    wrong = ModelFailed("The key is wrong.", kind="auth")
    model = ScriptedModel([say(LONG), say("Short"), [wrong], say("In short")])
    chat = await talk(harness, model)
    with pytest.raises(ModelFailed, match="The key is wrong"):
        await chat.compact()
    assert await chat.status() == "error"
    assert (await chat.retry()).outcome == "complete"
    assert len(find_summaries(await load_path(harness.store, chat.id))) == 1


async def test_readers_learn_that_a_compaction_waits_to_be_tried_again(harness: AppHarness) -> None:
    clock = LongSleeps()
    busy = ModelFailed("Busy.", kind="overloaded", retry_after_s=30.0)
    model = ScriptedModel([say(LONG), say("Short"), [busy], say("In short")])
    await harness.start_worker(model, clock=clock)
    chat = await harness.app.create_chat()
    await chat.send("Tell me a story")
    await chat.send("And another")
    compacting = asyncio.create_task(chat.compact()._read_all())
    await clock.waiting.wait()
    snapshot = await harness.feed.snapshot(chat.id)
    assert (snapshot.retry["kind"], snapshot.retry["delay_ms"]) == ("overloaded", 30000)
    clock.continue_.set()
    assert (await compacting).outcome == "complete"
    assert (await harness.store.view(chat.id)).retry is None


async def test_a_message_sent_meanwhile_is_answered_with_the_summary(harness: AppHarness) -> None:
    gate, asked = asyncio.Event(), asyncio.Event()

    async def ponder() -> AsyncIterator[Part]:
        asked.set()
        await gate.wait()
        yield TextDelta("1", "In short")
        yield parts.finish()

    model = ScriptedModel([say(LONG), say("Short"), lambda call: ponder(), say("Hi")])
    chat = await talk(harness, model)
    compacting = asyncio.create_task(chat.compact()._read_all())
    await asked.wait()
    sending = asyncio.create_task(chat.send("Hello")._read_all())
    await harness.wait_until(chat, lambda view: len(view.queue) == 1)
    gate.set()
    assert ((await compacting).outcome, (await sending).text) == ("complete", "Hi")
    assert "In short" in read_text(model.calls[3].messages[0].blocks)


async def test_at_the_threshold_a_summary_comes_before_the_next_step(harness: AppHarness) -> None:
    model = ScriptedModel([say(LONG), say("Short", used=850), say("In short"), say("Hi")], context_limit=1000)
    chat = await talk(harness, model)
    assert (await chat.send("Hello")).text == "Hi"
    assert [is_summary_asked(call) for call in model.calls] == [False, False, True, False]
    (summary,) = find_summaries(await load_path(harness.store, chat.id))
    prompt = [read_text(message.blocks) for message in model.calls[3].messages]
    assert (prompt[0], prompt[-1]) == (summary, "Hello")
    assert LONG not in prompt
    assert outline(await chat.messages())[1] == ("assistant", LONG)


async def test_below_the_threshold_nothing_is_summarised(harness: AppHarness) -> None:
    model = ScriptedModel([say(LONG), say("Short", used=799), say("Hi")], context_limit=1000)
    chat = await talk(harness, model)
    assert (await chat.send("Hello")).text == "Hi"


async def test_a_conversation_that_was_just_summarised_is_not_summarised_again(harness: AppHarness) -> None:
    """The last reply still says how much there was before the summary."""
    model = ScriptedModel([say(LONG), say("Short", used=850), say("In short"), say("Hi")], context_limit=1000)
    chat = await talk(harness, model)
    await chat.compact()
    assert (await chat.send("Hello")).text == "Hi"
    assert [is_summary_asked(call) for call in model.calls] == [False, False, True, False]


@pytest.mark.may_log("the conversation could not be summarised")
async def test_a_summary_that_fails_at_the_threshold_fails_no_reply(harness: AppHarness) -> None:
    broken = ModelFailed("Broken.", kind="server_error", retryable=False)
    model = ScriptedModel([say(LONG), say("Short", used=850), [broken], say("Hi")], context_limit=1000)
    chat = await talk(harness, model)
    assert (await chat.send("Hello")).text == "Hi"
    assert find_summaries(await load_path(harness.store, chat.id)) == []


async def test_an_overflow_is_mended_by_a_summary_once(harness: AppHarness) -> None:
    overflow = ModelFailed("The prompt is too long.", kind="context_overflow")
    model = ScriptedModel([say(LONG), say("Short"), [overflow], say("In short"), say("Hi")])
    chat = await talk(harness, model)
    assert (await chat.send("Hello")).text == "Hi"
    assert len(find_summaries(await load_path(harness.store, chat.id))) == 1


async def test_compacting_after_a_stop_tells_nobody_to_go_on(harness: AppHarness) -> None:
    cut: Script = [parts.text_delta("1", "Half"), parts.hang()]
    model = ScriptedModel([say(LONG), cut, say("In short"), say("Hi")])
    await harness.start_worker(model, settings=make_settings())
    chat = await harness.app.create_chat()
    await chat.send("Tell me a story")
    await chat.post("And another")
    await harness.wait_for_text(chat, "Half")
    await chat.interrupt()
    await chat.compact()
    assert len(find_summaries(await load_path(harness.store, chat.id))) == 1
    assert (await chat.send("Hello")).text == "Hi"
    assert [read_text(message.blocks) for message in model.calls[3].messages][1:] == ["And another", "Half", "Hello"]
