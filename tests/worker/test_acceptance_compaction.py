"""S71: compaction ends (rule 10.6), through the whole stack and on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from tests.support.app_harness import AppHarness
from tests.support.messages import find_notices, read_text

from indelible.app.chat import Chat
from indelible.content import Message, Part, Text, Usage
from indelible.errors import ModelFailed, NotAllowed
from indelible.loop.prompt.compact import INSTRUCTION
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

pytestmark = pytest.mark.both_databases

LONG = "a long story " * 40


def say(text: str, *, used: int = 0) -> Script:
    return [parts.text_delta("1", text), parts.finish(usage=Usage(input_tokens=used))]


def call_tool(number: int, *, used: int) -> Script:
    return [
        parts.text_delta("1", f"Step {number}. " + LONG),
        parts.tool_call(f"call-{number}", "look", "{}"),
        parts.finish("tool_calls", usage=Usage(input_tokens=used)),
    ]


def look() -> str:
    return "Nothing new"


class FullModel(ScriptedModel):
    """Every reply uses 950 of 1000 tokens and asks for another step, for seven replies; summaries cost nothing."""

    def __init__(self) -> None:
        super().__init__(context_limit=1000)
        self.replies = 0

    def stream(self, call: Call) -> AsyncIterator[Part]:
        self.calls.append(call)
        if is_summary_asked(call):
            script: Script = say("In short")
        else:
            self.replies += 1
            script = call_tool(self.replies, used=950) if self.replies < 7 else say("Done", used=950)
        return ScriptedModel([script]).stream(call)


def is_summary_asked(call: Call) -> bool:
    return read_text(call.messages[0].blocks) == INSTRUCTION


def find_summaries(path: list[Message]) -> list[str]:
    return [read_text(message.blocks) for message in path if message.visibility == "model"]


async def talk(harness: AppHarness, model: ScriptedModel) -> Chat:
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("Tell me a story")
    await chat.send("And another")
    return chat


async def test_s71_a_turn_whose_summaries_do_not_help_ends_with_an_honest_overflow(harness: AppHarness) -> None:
    model = FullModel()
    await harness.start_worker(model, tools=[look])
    chat = await harness.app.create_chat()
    with pytest.raises(ModelFailed) as failed:
        await chat.send("Look for as long as it takes")
    assert failed.value.kind == "context_overflow"
    assert "Start a new chat, or choose a model with a larger context window." in failed.value.message
    asked = [is_summary_asked(call) for call in model.calls]
    assert asked == [False, True, False, True, False]  # never two summaries in a row, and in the end none
    assert (await harness.store.view(chat.id)).error["kind"] == "context_overflow"


async def test_s71_a_step_that_was_summarised_and_overflows_is_not_summarised_again(harness: AppHarness) -> None:
    overflow = ModelFailed("The prompt is too long.", kind="context_overflow")
    model = ScriptedModel([say(LONG), say("Short", used=950), say("In short"), [overflow]], context_limit=1000)
    chat = await talk(harness, model)
    with pytest.raises(ModelFailed, match="too long"):
        await chat.send("Hello")
    assert [is_summary_asked(call) for call in model.calls] == [False, False, True, False]


async def test_s71_a_second_compaction_with_nothing_new_is_refused(harness: AppHarness) -> None:
    model = ScriptedModel([say(LONG), say("Short"), say("In short"), say(LONG), say("In very short")])
    chat = await talk(harness, model)
    await chat.compact()
    seq = (await harness.store.view(chat.id)).seq
    with pytest.raises(NotAllowed, match="Nothing new to summarise"):
        await chat.compact()
    assert (await harness.store.view(chat.id)).seq == seq
    await chat.send("A long one")
    assert (await chat.compact()).outcome == "complete"


async def test_s71_a_chat_without_a_reply_has_nothing_to_summarise(harness: AppHarness) -> None:
    await harness.start_worker(ScriptedModel([]))
    chat = await harness.app.create_chat()
    with pytest.raises(NotAllowed, match="Nothing to summarise"):
        await chat.compact()


async def test_s71_every_compaction_leaves_a_notice_with_its_sizes_and_the_summary(harness: AppHarness) -> None:
    model = ScriptedModel([say(LONG), say("Short", used=950), say("In short"), say("Hi")], context_limit=1000)
    chat = await talk(harness, model)
    await chat.send("Hello")
    await check_notice(chat, "In short", before=lambda tokens: tokens == 950)


async def test_s71_a_requested_compaction_leaves_the_same_notice(harness: AppHarness) -> None:
    chat = await talk(harness, ScriptedModel([say(LONG), say("Short"), say("They told stories.")]))
    await chat.compact()
    await check_notice(chat, "They told stories.", before=lambda tokens: tokens > 0)


async def check_notice(chat: Chat, summary: str, *, before: Callable[[int], bool]) -> None:
    (notice,) = [message for message in await chat.messages() if message.role == "notice"]
    said, shown = notice.blocks
    assert isinstance(said, Text)
    assert isinstance(shown, Text)
    assert shown.metadata is not None
    sizes = shown.metadata["compaction"]
    assert before(sizes["before_tokens"])
    assert 0 < sizes["after_tokens"] < sizes["before_tokens"]
    assert f"about {sizes['before_tokens']:,} tokens before and {sizes['after_tokens']:,} after" in said.text
    assert summary in shown.text
    assert len(find_notices(await chat.messages())) == 1
