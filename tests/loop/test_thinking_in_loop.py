"""Thinking inside the text, through `run`: S61–S63 and rule 5.6 as far as it concerns a turn.

What the splitter does to a text is test_thinking.py. Here is what becomes of it: what is published and
saved, what a stop at any character leaves, what the next prompt holds, and how a retry goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.loop_harness import run_turn
from tests.support.thinking import split_thinking

from indelible import tool
from indelible.content import Block, Message, Part, Reasoning, ReasoningDelta, Text, TextDelta, ToolCall
from indelible.content.assemble import assemble, finalize
from indelible.errors import Interrupted, ModelFailed
from indelible.loop import CancelScope, FinishedStep, TurnInterrupted
from indelible.loop.prompt.build import CUT_REMARK, build_prompt
from indelible.models import Call, CallOptions
from indelible.models.protocol import ModelTraits
from indelible.testing import ManualClock, ScriptedModel, parts
from indelible.testing.model import Script, Step

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness

CLOSED = "<think>They ask for a number.</think>\nThe answer is 42."
OPEN = "<think>They ask for a number"
USER = Message(role="user", blocks=[Text("What is it?")])
AGAIN = Message(role="user", blocks=[Text("Well?")])
STOPPED = Message(role="notice", blocks=[Text("Stopped by you.")])

FAMILIES = {
    "a tag": "<think>plan</think>answer",
    "a tag in capitals, with an attribute": '<THINKING budget="3">plan</thinking>answer',
    "a pair of tokens": "<|begin_of_thought|>plan<|end_of_thought|>answer",
    "Harmony's channels": "<|channel|>analysis<|message|>plan<|end|><|channel|>final<|message|>answer",
}


class ThinksFirst(ScriptedModel):
    traits = ModelTraits(thinks_first=True)


class WritesTags(ScriptedModel):
    traits = ModelTraits(inline_thinking=False)


def stream(text: str, size: int) -> list[Part]:
    """The text as a provider sends it, `size` characters at a time."""
    deltas = [parts.text_delta("1", text[at : at + size]) for at in range(0, len(text), size)]
    return [parts.text_start("1"), *deltas]


def complete(text: str, size: int = 3) -> list[Step]:
    return [*stream(text, size), parts.text_end("1"), parts.finish("stop")]


def fail_after(text: str) -> list[Step]:
    return [*stream(text, 3), ConnectionResetError()]


def strip_times(blocks: Sequence[Block]) -> list[Block]:
    return [Reasoning(block.text) if isinstance(block, Reasoning) else block for block in blocks]


def join_text(blocks: Sequence[Block]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, Text))


def join_reasoning(blocks: Sequence[Block]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, Reasoning))


async def stop_after(text: str, *, size: int = 1, provider: str = "openai") -> tuple[list[FinishedStep], list[Part]]:
    """A turn that is stopped when the model has said exactly this."""
    scope = CancelScope()
    saved: list[FinishedStep] = []
    published: list[Part] = []

    async def speak(call: Call) -> AsyncIterator[Part]:
        for part in stream(text, size):
            yield part
        scope.interrupt()
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Interrupted):
        await run_turn(
            model=ScriptedModel([speak], provider=provider),
            messages=[USER],
            persist_step=saved.append,
            publish=published.append,
            scope=scope,
            clock=ManualClock(),
        )
    return saved, published


async def ask_next(history: list[Message], provider: str) -> list[tuple[str, list[Block]]]:
    """What the model is told in the next turn."""
    model = ScriptedModel([complete("Sure.")], provider=provider)
    await run_turn(model=model, messages=history, clock=ManualClock())
    return [(entry.role, entry.blocks) for entry in model.calls[0].messages]


# --- S61: closed thinking, then text -----------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_s61_closed_thinking_is_moved_and_the_text_is_kept(harness: LoopHarness, size: int) -> None:
    result = await harness.start(ScriptedModel([complete(CLOSED, size)]))
    assert strip_times(harness.only.blocks) == [Reasoning("They ask for a number."), Text("The answer is 42.")]
    assert not harness.only.partial
    assert result.messages[0].text == "The answer is 42."
    assert harness.finalized(harness.only) == harness.only.blocks


@pytest.mark.parametrize("expected", FAMILIES.values(), ids=FAMILIES.keys())
async def test_s61_holds_for_every_family_of_marks(harness: LoopHarness, expected: str) -> None:
    await harness.start(ScriptedModel([complete(expected)]))
    assert strip_times(harness.only.blocks) == [Reasoning("plan"), Text("answer")]
    shown = "".join(part.delta for part in harness.published if isinstance(part, TextDelta))
    thought = "".join(part.delta for part in harness.published if isinstance(part, ReasoningDelta))
    assert (shown, thought) == ("answer", "plan")


async def test_s61_a_stop_after_the_text_keeps_the_text_without_the_markup(harness: LoopHarness) -> None:
    task = harness.start(ScriptedModel([[*stream(CLOSED, 4), parts.hang()]]))
    await harness.heard(TextDelta, times=2)
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)
    assert strip_times(harness.only.blocks) == [Reasoning("They ask for a number."), Text("The answer is 42.")]
    assert (harness.only.partial, harness.only.reason) == (True, "interrupted")


@pytest.mark.parametrize("expected", [CLOSED, *FAMILIES.values()])
async def test_s61_a_stop_at_any_character_keeps_what_was_written_until_then(expected: str) -> None:
    """Of a mark that is not complete nobody can know that it is one: it is kept as it stands."""
    for length in range(1, len(expected) + 1):
        saved, published = await stop_after(expected[:length])
        text, thinking = split_thinking(expected[:length])
        blocks = saved[0].blocks if saved else []
        assert (join_text(blocks), join_reasoning(blocks)) == (text, thinking)
        for step in saved:
            assert step.partial == bool(text.strip())
            assert step.reason == "interrupted"
            assert step.blocks == finalize(assemble(published), "interrupted", step.ended_at)


async def test_thinking_is_stamped_with_the_time_it_took(harness: LoopHarness) -> None:
    async def speak(call: Call) -> AsyncIterator[Part]:
        yield parts.text_delta("1", "<think>Hm")
        harness.clock.advance(3)
        yield parts.text_delta("1", "</think>42")
        yield parts.finish("stop")

    began_at = harness.clock.now()
    await harness.start(ScriptedModel([speak]))
    thought = harness.only.blocks[0]
    assert isinstance(thought, Reasoning)
    assert (thought.started_at, thought.ended_at) == (began_at, harness.clock.now())


async def test_thinking_before_a_call_leaves_no_empty_text(harness: LoopHarness) -> None:
    @tool
    async def weather() -> str:
        return "rain"

    ask: list[Step] = [
        *stream("<think>I should look.</think>\n", 3),
        parts.text_end("1"),
        parts.tool_call("c1", "weather", "{}"),
    ]
    model = ScriptedModel([[*ask, parts.finish("tool_calls")], complete("Rain.")])
    await harness.start(model, tools=[weather])
    thought, call, _ = strip_times(harness.saved[0].blocks)
    assert thought == Reasoning("I should look.")
    assert call == ToolCall(id="c1", name="weather", arguments="{}")


# --- S62: unclosed thinking only ---------------------------------------------------------


async def test_s62_unclosed_thinking_alone_is_no_visible_reply() -> None:
    for length in range(len("<think>") + 1, len(OPEN) + 1):
        (step,), published = await stop_after(OPEN[:length])
        (thought,) = step.blocks
        assert isinstance(thought, Reasoning)
        assert thought.text == OPEN[len("<think>") : length]
        assert (step.partial, step.reason, step.provider_response_id) == (False, "interrupted", None)
        assert not [part for part in published if isinstance(part, TextDelta)]
        assert [message.partial for message in step.messages()] == [False]


@pytest.mark.parametrize("expected", ["\n\n<think>Hm", "<thinking>Hm", "<|channel|>analysis<|message|>Hm"])
async def test_s62_holds_for_blanks_before_it_and_for_other_marks(expected: str) -> None:
    (step,), _ = await stop_after(expected)
    assert strip_times(step.blocks) == [Reasoning("Hm")]
    assert not step.partial


@pytest.mark.parametrize("expected", ["<think>", "<think>\n", "\n<think>  "])
async def test_s62_a_tag_and_no_thought_is_nothing_at_all(expected: str) -> None:
    saved, _ = await stop_after(expected)
    assert saved == []


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_s62_the_next_prompt_omits_it(provider: str) -> None:
    (step,), _ = await stop_after(OPEN, provider=provider)
    history = [USER, *step.messages(), STOPPED]
    assert [(entry.role, entry.blocks) for entry in build_prompt(history, provider=provider)] == [("user", USER.blocks)]
    assert await ask_next([*history, AGAIN], provider) == [("user", USER.blocks), ("user", AGAIN.blocks)]


async def test_s62_thinking_that_ends_before_the_stop_is_still_no_visible_reply() -> None:
    (step,), _ = await stop_after("<think>Hm</think>\n")
    assert strip_times(step.blocks) == [Reasoning("Hm")]
    assert not step.partial


async def test_a_reply_that_ends_while_thinking_is_complete_and_has_nothing_to_show(harness: LoopHarness) -> None:
    await harness.start(ScriptedModel([complete(OPEN)]))
    assert strip_times(harness.only.blocks) == [Reasoning("They ask for a number")]
    assert (harness.only.partial, harness.only.reason) == (False, None)


# --- S63: the next prompt ----------------------------------------------------------------


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_s63_the_next_prompt_has_the_user_message_and_the_partial_but_not_the_notice(provider: str) -> None:
    (step,), _ = await stop_after(CLOSED[:-4], size=5, provider=provider)
    history = [USER, *step.messages(), STOPPED, AGAIN]
    assert await ask_next(history, provider) == [
        ("user", USER.blocks),
        ("assistant", [Text("The answer is")]),
        ("user", AGAIN.blocks),
    ]


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_s63_a_partial_that_nothing_follows_is_marked_as_cut(provider: str) -> None:
    (step,), _ = await stop_after(CLOSED[:-4], provider=provider)
    told = await ask_next([USER, *step.messages(), STOPPED], provider)
    assert told == [
        ("user", USER.blocks),
        ("assistant", [Text("The answer is")]),
        ("user", [Text(CUT_REMARK)]),
    ]


# --- what a model says of itself ---------------------------------------------------------


async def test_a_model_that_never_thinks_in_its_text_may_write_the_tags(harness: LoopHarness) -> None:
    await harness.start(WritesTags([complete(CLOSED)]))
    assert harness.only.blocks == [Text(CLOSED)]


async def test_what_such_a_model_says_is_not_held_back(harness: LoopHarness) -> None:
    task = harness.start(WritesTags([[*stream("<thi", 1), parts.hang()]]))
    await harness.heard(TextDelta, times=4)
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("<thi")]
    assert harness.only.partial


async def test_a_model_that_thinks_first_needs_no_opening_tag(harness: LoopHarness) -> None:
    await harness.start(ThinksFirst([complete("They ask.</think>\n\n42")]))
    assert strip_times(harness.only.blocks) == [Reasoning("They ask."), Text("42")]


async def test_elsewhere_a_closing_tag_without_an_opening_one_is_text(harness: LoopHarness) -> None:
    await harness.start(ScriptedModel([complete("They ask.</think>\n\n42")]))
    assert harness.only.blocks == [Text("They ask.</think>\n\n42")]


async def test_a_model_that_thinks_first_and_is_stopped_while_thinking_has_nothing_to_show(
    harness: LoopHarness,
) -> None:
    task = harness.start(ThinksFirst([[*stream("They ask", 3), parts.hang()]]))
    await harness.heard(ReasoningDelta, times=3)
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)
    assert strip_times(harness.only.blocks) == [Reasoning("They ask")]
    assert not harness.only.partial


async def test_a_model_that_thinks_first_does_so_in_every_step_but_only_at_its_beginning(harness: LoopHarness) -> None:
    @tool
    async def weather() -> str:
        return "rain"

    first: list[Step] = [
        *stream("Look.</think>Let me see.", 3),
        parts.text_end("1"),
        parts.text_delta("2", "One moment."),
        parts.tool_call("c1", "weather", "{}"),
        parts.finish("tool_calls"),
    ]
    await harness.start(ThinksFirst([first, complete("So it rains.</think>Rain.")]), tools=[weather])
    one, two = (strip_times(step.blocks) for step in harness.saved)
    assert one[:3] == [Reasoning("Look."), Text("Let me see."), Text("One moment.")]
    assert two == [Reasoning("So it rains."), Text("Rain.")]


# --- a retry -----------------------------------------------------------------------------


async def play(harness: LoopHarness, model: ScriptedModel, **more: Any) -> list[list[Block]]:
    await harness.start(model, clock=ManualClock(skip_sleeps=True), **more)
    return [strip_times(step.blocks) for step in harness.saved]


async def test_a_continuing_attempt_starts_in_the_thinking_that_the_last_one_broke_off_in(harness: LoopHarness) -> None:
    model = ScriptedModel([fail_after("It is <think>let me"), complete(" see</think>42.")])
    saved = await play(harness, model, keep_failed=True)
    assert saved == [[Text("It is "), Reasoning("let me")], [Reasoning(" see"), Text("42.")]]


async def test_a_continuing_attempt_starts_in_the_answer_that_the_last_one_broke_off_in(harness: LoopHarness) -> None:
    model = ThinksFirst([fail_after("They ask.</think>It is"), complete(" 42. </think>")])
    saved = await play(harness, model, keep_failed=True)
    assert saved == [[Reasoning("They ask."), Text("It is")], [Text(" 42. </think>")]]


async def test_a_continuing_attempt_starts_in_the_code_that_the_last_one_broke_off_in(harness: LoopHarness) -> None:
    model = ScriptedModel([fail_after("```\nfirst\n"), complete("<think>code</think>\n```\n<think>Hm</think>")])
    saved = await play(harness, model, keep_failed=True)
    assert saved == [[Text("```\nfirst\n")], [Text("<think>code</think>\n```\n"), Reasoning("Hm")]]


async def test_the_state_outlasts_an_attempt_that_showed_nothing(harness: LoopHarness) -> None:
    scripts: list[Script] = [
        fail_after("It is <think>let me"),
        ModelFailed("busy", kind="overloaded"),
        fail_after(" think"),
        complete(" see</think>42."),
    ]
    saved = await play(harness, ScriptedModel(scripts), keep_failed=True)
    assert saved == [[Text("It is "), Reasoning("let me")], [Reasoning(" see"), Text("42.")]]


async def test_the_step_after_a_continued_one_starts_afresh(harness: LoopHarness) -> None:
    @tool
    async def weather() -> str:
        return "rain"

    ask: list[Step] = [
        *stream(" see</think>Look:", 3),
        parts.tool_call("c1", "weather", "{}"),
        parts.finish("tool_calls"),
    ]
    model = ScriptedModel([fail_after("It is <think>let me"), ask, complete("42.</think>")])
    saved = await play(harness, model, keep_failed=True, tools=[weather])
    assert saved[1][:2] == [Reasoning(" see"), Text("Look:")]
    assert saved[2] == [Text("42.</think>")]


async def test_an_attempt_that_starts_over_starts_afresh(harness: LoopHarness) -> None:
    model = ScriptedModel([fail_after("It is <think>let me"), complete("42.</think>")])
    assert await play(harness, model) == [[Text("42.</think>")]]


@pytest.mark.parametrize("keep_failed", [False, True])
async def test_thinking_alone_is_not_visible_so_it_is_simply_tried_again(
    harness: LoopHarness, *, keep_failed: bool
) -> None:
    model = ScriptedModel([fail_after(OPEN), complete(CLOSED)])
    saved = await play(harness, model, keep_failed=keep_failed, call=CallOptions(store=True))
    assert saved == [[Reasoning("They ask for a number."), Text("The answer is 42.")]]
    assert harness.attempts == [(1, 1), (1, 2)]
