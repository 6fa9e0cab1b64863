"""The demo model: its texts, its timing, and that it knows where it was interrupted."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import DEADLINE_S

from indelible.content import (
    Finish,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    ToolSpec,
)
from indelible.content.assemble import assemble
from indelible.loop import CancelScope, TurnHost, TurnInterrupted, run
from indelible.models import Call, PromptMessage
from indelible.models.providers.demo import DemoModel
from indelible.testing import ManualClock
from indelible.tools import tool

QUESTIONS = ["help", "hello", "thank you", "show me a table", "show me some code", "a story, please", "why?", ""]
DIE = ToolSpec(name="roll_die")
CLOCK = ToolSpec(name="current_time")


def user(text: str) -> PromptMessage:
    return PromptMessage(role="user", blocks=[Text(text=text)])


def assistant(text: str) -> PromptMessage:
    return PromptMessage(role="assistant", blocks=[Text(text=text)])


async def ask(
    *messages: PromptMessage, tools: Sequence[ToolSpec] = (), seed: int | None = None, clock: ManualClock | None = None
) -> list[Part]:
    model = DemoModel(clock, pace_s=0, seed=seed)
    return [part async for part in model.stream(Call(messages=list(messages), tools=list(tools)))]


def text_of(parts: Sequence[Part]) -> str:
    return "".join(part.delta for part in parts if isinstance(part, TextDelta))


def calls_of(parts: Sequence[Part]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


# --- the stream --------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS)
async def test_every_reply_is_thinking_then_text_then_a_finish_with_usage(question: str) -> None:
    parts = await ask(user(question))
    blocks = assemble(parts)
    assert [type(block) for block in blocks] == [Reasoning, Text]
    assert all(isinstance(block, Reasoning | Text) and block.text.strip() for block in blocks)
    finish = parts[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == "stop"
    assert finish.usage is not None
    assert finish.usage.input_tokens > 0
    assert finish.usage.output_tokens > finish.usage.reasoning_tokens > 0


async def test_a_delta_is_about_a_word() -> None:
    deltas = [part.delta for part in await ask(user("a story")) if isinstance(part, TextDelta | ReasoningDelta)]
    assert len(deltas) > 500
    assert all(len(delta.split()) == 1 for delta in deltas)


async def test_the_replies_show_headings_lists_tables_code_quotes_and_emphasis() -> None:
    everything = "\n".join([text_of(await ask(user(question))) for question in QUESTIONS])
    for markup in (
        r"^# ",
        r"^## ",
        r"^- ",
        r"^1\. ",
        r"^\| ---",
        r"^```python$",
        r"^> ",
        r"\*\*\w",
        r"[^*]\*\w",
        r"`\w",
    ):
        assert re.search(markup, everything, re.MULTILINE), markup


async def test_the_same_prompt_gives_the_same_parts_and_another_seed_another_story() -> None:
    first = await ask(user("tell me a long story"))
    assert await ask(user("tell me a long story")) == first
    stories = {text_of(await ask(user("tell me a long story"), seed=seed)) for seed in range(8)}
    assert len(stories) > 1


# --- pace --------------------------------------------------------------------------------


async def test_a_pace_of_zero_sets_no_timer_and_still_lets_others_run() -> None:
    clock = ManualClock()
    others_ran = 0

    async def run_beside() -> None:
        nonlocal others_ran
        while True:
            others_ran += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(run_beside())
    parts = await ask(user("a story"), clock=clock)
    beside.cancel()
    assert clock.slept == []
    assert clock.pending == 0
    assert 10 < others_ran < len(parts)


async def test_it_speaks_one_word_per_beat_of_the_clock() -> None:
    clock = ManualClock()
    stream = DemoModel(clock, pace_s=0.5).stream(Call(messages=[user("hello")]))
    heard: list[Part] = []

    async def listen() -> None:
        async for part in stream:
            heard.append(part)  # noqa: PERF401 - the list is looked at meanwhile

    listening = asyncio.create_task(listen())
    await clock.advance(0)
    assert heard == []
    await clock.advance(30 * 0.5)
    early = len(heard)
    assert 0 < early < 30
    await clock.advance(0.5)
    assert len(heard) in (early, early + 1)
    while not listening.done():
        await clock.advance(0.5)
    assert isinstance(heard[-1], Finish)


async def test_it_rests_after_a_sentence() -> None:
    clock = ManualClock(skip_sleeps=True)
    parts = [part async for part in DemoModel(clock, pace_s=1.0).stream(Call(messages=[user("hello")]))]
    waits_s = [
        (before.delta, wait_s)
        for (before, part), wait_s in zip(pairwise(parts), clock.slept[1:], strict=True)
        if isinstance(before, TextDelta) and isinstance(part, TextDelta)
    ]
    rests_s = {wait_s for word, wait_s in waits_s if word.strip().endswith(".")}
    beats_s = {wait_s for word, wait_s in waits_s if word.strip().isalpha()}
    assert beats_s == {1.0}
    assert min(rests_s) > 1.0


# --- what it knows about a cut -----------------------------------------------------------


@given(question=st.sampled_from([q for q in QUESTIONS if q]), cuts=st.lists(st.floats(0, 1), max_size=4))
async def test_a_reply_cut_anywhere_and_continued_is_the_whole_reply(question: str, cuts: list[float]) -> None:
    whole = text_of(await ask(user(question)))
    history = [user(question)]
    said = ""
    for cut in cuts:
        piece = text_of(await ask(*history))
        kept = piece[: int(cut * (len(piece) - 1))]
        if kept.strip():  # a prompt holds no blank messages
            said += kept
            history.append(assistant(kept))
        history.append(user("continue"))
    assert said + text_of(await ask(*history)) == whole


async def test_another_question_after_a_cut_is_answered_with_a_remark_about_it() -> None:
    story = text_of(await ask(user("a story")))
    kept = story[: story.index("lamp") + 4]
    answer = text_of(await ask(user("a story"), assistant(kept), user("hello")))
    assert answer.startswith("> My last reply was cut short.")
    assert kept[-10:] in answer
    assert answer.endswith(text_of(await ask(user("hello"))))


async def test_continue_finds_the_reply_that_was_cut_before_another_question() -> None:
    story = text_of(await ask(user("a story")))
    history = [user("a story"), assistant(story[:300]), user("hello")]
    history.append(assistant(text_of(await ask(*history))))
    assert text_of(await ask(*history, user("please go on"))) == story[300:]


async def test_a_complete_reply_is_not_taken_for_a_cut_one() -> None:
    greeting = text_of(await ask(user("hello")))
    assert text_of(await ask(user("hello"), assistant(greeting), user("help"))) == text_of(await ask(user("help")))
    assert "nothing was cut" in text_of(await ask(user("hello"), assistant(greeting), user("continue")))


async def test_a_reply_of_another_model_is_not_taken_for_a_cut_one() -> None:
    answer = text_of(await ask(user("hello"), assistant("Good day to"), user("help")))
    assert answer == text_of(await ask(user("help")))


async def test_a_remark_that_the_last_message_was_cut_off_makes_it_go_on() -> None:
    story = text_of(await ask(user("a story")))
    remark = user("(Your last message was cut off at this point.)")
    assert text_of(await ask(user("a story"), assistant(story[:500]), remark)) == story[500:]


# --- tools -------------------------------------------------------------------------------


async def test_it_calls_a_tool_only_if_there_is_one() -> None:
    assert calls_of(await ask(user("roll a die"))) == []
    assert calls_of(await ask(user("roll a die"), tools=[CLOCK])) == []
    assert [call.name for call in calls_of(await ask(user("roll a die"), tools=[CLOCK, DIE]))] == ["roll_die"]
    assert [call.name for call in calls_of(await ask(user("What time is it?"), tools=[CLOCK, DIE]))] == ["current_time"]


async def test_the_arguments_are_streamed_and_then_the_call_is_whole() -> None:
    parts = await ask(user("roll a die"), tools=[DIE])
    kinds = [type(part) for part in parts]
    start = kinds.index(ToolInputStart)
    assert kinds[start:] == [ToolInputStart, ToolInputDelta, ToolInputDelta, ToolInputEnd, ToolCall, Finish]
    (call,) = calls_of(parts)
    assert "".join(part.delta for part in parts if isinstance(part, ToolInputDelta)) == call.arguments == '{"sides": 6}'
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason == "tool_calls"


async def test_any_tool_can_be_named_with_its_arguments() -> None:
    weather = ToolSpec(name="weather")
    (call,) = calls_of(await ask(user('weather {"city": "Tromsø"} please'), tools=[weather]))
    assert (call.name, call.arguments) == ("weather", '{"city": "Tromsø"}')
    (call,) = calls_of(await ask(user("weather {broken"), tools=[weather]))
    assert call.arguments == "{}"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ToolResult(call_id="1", name="roll_die", output="4"), "**4**"),
        (ToolResult(call_id="1", name="roll_die", output="no dice", is_error=True), "no dice"),
        (ToolResult(call_id="1", name="roll_die", output="a\n```\nb"), "````text\na\n```\nb\n````"),
        (ToolResult(call_id="1", name="roll_die", output=""), "nothing at all"),
    ],
)
async def test_it_reports_what_the_tool_answered(result: ToolResult, expected: str) -> None:
    call = ToolCall(id="1", name="roll_die", arguments="{}")
    parts = await ask(
        user("roll a die"),
        PromptMessage(role="assistant", blocks=[Text(text="Let me ask `roll_die`."), call]),
        PromptMessage(role="tool", blocks=[result]),
        tools=[DIE],
    )
    assert expected in text_of(parts)
    assert calls_of(parts) == []


async def test_continue_after_a_stopped_tool_calls_it_again_with_a_new_id() -> None:
    call = ToolCall(id="demo_call_1", name="roll_die", arguments='{"si')
    stopped = ToolResult(call_id="demo_call_1", name="roll_die", output="Interrupted", is_error=True)
    parts = await ask(
        user("roll a die"),
        PromptMessage(role="assistant", blocks=[Text(text="Let me ask `roll_die`."), call]),
        PromptMessage(role="tool", blocks=[stopped]),
        user("continue"),
        tools=[DIE],
    )
    assert [call.id for call in calls_of(parts)] == ["demo_call_2"]


# --- in odd company ----------------------------------------------------------------------


async def test_words_it_does_not_know_are_quoted() -> None:
    assert "> Do whales dream?" in text_of(await ask(user("Do whales\n dream?")))


async def test_a_prompt_without_a_question_is_answered_kindly() -> None:
    assert text_of(await ask()) == text_of(await ask(PromptMessage(role="system", blocks=[Text(text="Be brief.")])))
    assert "`help`" in text_of(await ask(assistant("Hello.")))


async def test_the_program_in_the_code_reply_runs() -> None:
    reply = text_of(await ask(user("show me some code")))
    program = reply.partition("```python\n")[2].partition("```")[0].replace("DemoModel()", "DemoModel(pace_s=0)")
    command = [sys.executable, "-c", program]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert done.stderr == ""
    assert done.stdout == text_of(await ask(user("hello"))) + "\n"


# --- in the loop -------------------------------------------------------------------------


@tool
def roll_die(sides: int = 6) -> str:
    """Roll a die that always shows its highest number."""
    return str(sides)


async def test_the_loop_runs_its_tool_and_it_answers_with_the_result() -> None:
    history = [Message(role="user", blocks=[Text(text="roll a die")])]
    end = await run(DemoModel(pace_s=0), history, tools=[roll_die])
    assert [message.role for message in end.messages] == ["assistant", "tool", "assistant"]
    assert "**6**" in end.messages[-1].text
    assert len(end.steps) == 2
    assert end.steps[0].context_limit == 32_000
    assert end.usage.output_tokens > 0


async def test_a_reply_stopped_in_the_loop_and_continued_is_the_whole_reply() -> None:
    history = [Message(role="user", blocks=[Text(text="tell me a long story")])]
    published: list[Part] = []
    scope = CancelScope()

    class Host(TurnHost):
        def publish(self, part: Part) -> None:
            published.append(part)
            if len(published) == 300:
                scope.interrupt()

    end = await run(DemoModel(pace_s=0), history, Host(), scope=scope)
    assert isinstance(end, TurnInterrupted)
    history += end.messages
    partial = history[-1]
    assert partial.partial
    assert partial.text == text_of(published)
    history.append(Message(role="user", blocks=[Text(text="continue")]))
    history += (await run(DemoModel(pace_s=0), history)).messages
    assert partial.text + history[-1].text == text_of(await ask(user("tell me a long story")))
