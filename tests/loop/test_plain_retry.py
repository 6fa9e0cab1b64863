"""Trying again in the loop (rule 2.1): what is dropped, what is kept, who is told, and when it is over.

The policy itself (delays, limits) is tests/models/test_retry.py; recovery from a broken chain is §4 and
has its own tests. Here `chance` is 1, so the waits are 1, 2, 4, … 60 seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.loop_harness import raise_failure

from indelible import tool
from indelible.content import Block, Message, Part, Reasoning, Text, TextDelta, ToolStarted, Usage
from indelible.errors import ModelFailed
from indelible.loop import RetryPolicy, TurnInterrupted
from indelible.models import Call
from indelible.testing import ManualClock, ScriptedModel, parts

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness

Spell = Callable[[Sequence[Block]], list[tuple[str, ...]]]

ANSWER: list[Part] = [parts.text_delta("1", "Hello!"), parts.finish()]


def say(role: Any, text: str, **more: Any) -> Message:
    return Message(role=role, blocks=[Text(text)], **more)


def break_off(text: str = "") -> list[Any]:
    """A stream that shows some text and then loses its connection."""
    said = [parts.text_delta("1", text)] if text else []
    return [*said, ConnectionResetError("reset by peer")]


def think_and_break_off(text: str) -> list[Any]:
    return [parts.reasoning_delta("r", text), ConnectionResetError("reset by peer")]


@pytest.fixture(autouse=True)
def _no_time_passes(harness: LoopHarness) -> None:
    harness.clock = ManualClock(skip_sleeps=True)


# --- before anything was visible ---------------------------------------------------------


@pytest.mark.parametrize("keep_failed", [False, True])
async def test_a_failure_before_anything_visible_is_simply_tried_again(
    harness: LoopHarness, *, keep_failed: bool
) -> None:
    model = ScriptedModel([break_off(), think_and_break_off("Let me see"), ANSWER])
    result = await harness.start(model, keep_failed=keep_failed)
    assert result.reason == "stop"
    assert harness.only.blocks == [Text("Hello!")]
    assert harness.only.attempt == 3
    assert harness.attempts == [(1, 1), (1, 2), (1, 3)]
    assert model.calls[0] == model.calls[1] == model.calls[2]


@pytest.mark.parametrize("blank", ["", " ", "\n\n"])
async def test_blank_text_is_not_visible(harness: LoopHarness, blank: str) -> None:
    model = ScriptedModel([[parts.text_start("1"), parts.text_delta("1", blank), ConnectionResetError()], ANSWER])
    await harness.start(model, keep_failed=True)
    assert harness.only.blocks == [Text("Hello!")]


# --- after something was visible, by default ---------------------------------------------


async def test_by_default_what_a_failed_attempt_showed_is_dropped(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off("Hel"), ANSWER])
    result = await harness.start(model)
    assert harness.only.blocks == [Text("Hello!")]
    assert (harness.only.index, harness.only.partial) == (1, False)
    assert model.calls[0] == model.calls[1]
    assert [message.text for message in result.messages] == ["Hello!"]


async def test_a_stop_in_the_next_attempt_keeps_that_attempt_only(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off("Hel"), [parts.text_delta("1", "Hi"), parts.hang()]])
    await harness.interrupt_at(TextDelta, model, times=2)
    assert harness.only.blocks == [Text("Hi")]


# --- after something was visible, kept ---------------------------------------------------


async def test_kept_what_a_failed_attempt_showed_is_saved_and_continued(harness: LoopHarness) -> None:
    go_on = say("user", "Please continue.", visibility="model")
    harness.answers = [[go_on]]
    model = ScriptedModel([break_off("Hel"), [parts.text_delta("1", "lo!"), parts.finish()]])
    result = await harness.start(model, keep_failed=True)
    failed, complete = harness.saved
    assert (failed.blocks, failed.partial, failed.reason, failed.last) == ([Text("Hel")], True, "failed", False)
    assert (complete.blocks, complete.partial, complete.reason, complete.last) == ([Text("lo!")], False, None, True)
    assert (failed.index, complete.index) == (1, 2)
    assert [(message.role, message.blocks) for message in model.calls[1].messages] == [
        ("user", [Text("hi")]),
        ("assistant", [Text("Hel")]),
        ("user", [Text("Please continue.")]),
    ]
    assert [message.text for message in result.messages] == ["Hel", "Please continue.", "lo!"]


async def test_kept_without_an_instruction_the_model_learns_that_it_was_cut(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off("Hel"), ANSWER])
    await harness.start(model, keep_failed=True)
    assert [message.role for message in model.calls[1].messages] == ["user", "assistant", "user"]


async def test_kept_a_call_that_was_cut_is_answered_and_never_run(harness: LoopHarness, spell: Spell) -> None:
    @tool
    async def note(text: str) -> str:
        return text

    cut: list[Any] = [
        parts.tool_input_start("c1", "note"),
        parts.tool_input_delta("c1", '{"te'),
        ConnectionResetError(),
    ]
    model = ScriptedModel([cut, ANSWER])
    await harness.start(model, tools=[note], keep_failed=True)
    assert spell(harness.saved[0].blocks) == [("call", "c1", "note", '{"te'), ("error", "c1", "note")]
    assert harness.count(ToolStarted) == 0
    assert [message.role for message in model.calls[1].messages] == ["user", "assistant", "tool"]


async def test_kept_steps_do_not_count_in_max_steps(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off("Hel"), break_off("lo"), ANSWER])
    result = await harness.start(model, keep_failed=True, max_steps=1)
    assert result.reason == "stop"
    assert [step.index for step in harness.saved] == [1, 2, 3]


async def test_kept_attempts_are_numbered_within_their_step(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off(), break_off("Hel"), break_off(), ANSWER])
    await harness.start(model, keep_failed=True)
    assert harness.attempts == [(1, 1), (1, 2), (2, 1), (2, 2)]


async def test_kept_preparation_runs_again_for_the_new_step(harness: LoopHarness) -> None:
    prepared = []

    def prepare(messages: list[Message]) -> list[Message]:
        prepared.append(len(messages))
        return messages

    await harness.start(ScriptedModel([break_off("Hel"), ANSWER]), keep_failed=True, prepare_messages=prepare)
    assert prepared == [1, 2]


async def test_kept_an_error_of_the_save_ends_the_run(harness: LoopHarness) -> None:
    harness.answers = [RuntimeError("database write failed")]
    with pytest.raises(RuntimeError, match="database write failed"):
        await raise_failure(harness.start(ScriptedModel([break_off("Hel")]), keep_failed=True))
    assert len(harness.saved) == 1


async def test_kept_thinking_goes_on_in_the_state_that_it_was_cut_in(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel(
        [
            break_off("Look: <think>it seems"),
            [parts.text_delta("1", " to rain</think>It rains."), parts.finish()],
        ]
    )
    await harness.start(model, keep_failed=True)
    assert spell(harness.saved[0].blocks) == [("text", "Look: "), ("reasoning", "it seems")]
    assert spell(harness.saved[1].blocks) == [("reasoning", " to rain"), ("text", "It rains.")]


async def test_a_plain_retry_starts_its_thinking_from_the_beginning(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel([break_off("<think>it seems"), ANSWER])
    await harness.start(model)
    assert spell(harness.only.blocks) == [("text", "Hello!")]


# --- when it is over ---------------------------------------------------------------------


async def test_exhausted_after_25_attempts_or_a_quarter_of_an_hour(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off()] * 20)
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model))
    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)
    assert len(model.calls) == 20
    assert [event.attempt for event in harness.retries] == list(range(1, 20))
    assert harness.clock.slept == [1, 2, 4, 8, 16, 32, *[60] * 13]  # the next would begin after the quarter
    assert harness.saved == []


@pytest.mark.parametrize("keep_failed", [False, True])
async def test_exhausted_the_latest_piece_that_is_not_saved_yet_is_saved(
    harness: LoopHarness, *, keep_failed: bool
) -> None:
    model = ScriptedModel([break_off("one"), break_off("two"), break_off()])
    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(model, keep_failed=keep_failed, retry=RetryPolicy(max_attempts=3)))
    texts = [step.blocks for step in harness.saved]
    assert texts == ([[Text("one")], [Text("two")]] if keep_failed else [[Text("two")]])
    assert all((step.partial, step.reason) == (True, "failed") for step in harness.saved)


async def test_exhausted_with_nothing_but_thinking_the_thinking_is_saved(harness: LoopHarness) -> None:
    model = ScriptedModel([think_and_break_off("one"), break_off()])
    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(model, keep_failed=True, retry=RetryPolicy(max_attempts=2)))
    (reasoning,) = harness.only.blocks
    assert isinstance(reasoning, Reasoning)
    assert reasoning.text == "one"
    assert not harness.only.partial


async def test_exhausted_attempts_count_on_over_kept_steps(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off("a"), break_off(), break_off("b"), break_off("c")])
    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(model, keep_failed=True, retry=RetryPolicy(max_attempts=4)))
    assert [event.attempt for event in harness.retries] == [1, 2, 3]
    assert [step.blocks for step in harness.saved] == [[Text("a")], [Text("b")], [Text("c")]]
    assert harness.saved[-1].last


async def test_a_step_that_completes_gives_the_next_one_all_attempts(harness: LoopHarness) -> None:
    @tool
    async def note() -> str:
        return "noted"

    ask: list[Part] = [parts.tool_call("c1", "note", "{}"), parts.finish("tool_calls")]
    model = ScriptedModel([break_off(), ask, break_off(), ANSWER])
    result = await harness.start(model, tools=[note], retry=RetryPolicy(max_attempts=2))
    assert result.reason == "stop"
    assert harness.clock.slept == [1, 1]
    assert harness.attempts == [(1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.parametrize("keep_failed", [False, True])
async def test_a_terminal_failure_is_not_tried_again_and_keeps_what_was_shown(
    harness: LoopHarness, *, keep_failed: bool
) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Hel"), ModelFailed("No.", kind="auth", status=401)]])
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model, keep_failed=keep_failed))
    assert (caught.value.kind, caught.value.retryable, caught.value.status) == ("auth", False, 401)
    assert harness.retries == []
    assert (harness.only.blocks, harness.only.reason, harness.only.last) == ([Text("Hel")], "failed", True)


async def test_a_terminal_failure_after_a_retry_keeps_what_the_first_attempt_showed(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off("Hel"), ModelFailed("No.", kind="auth")])
    with pytest.raises(ModelFailed, match="No"):
        await raise_failure(harness.start(model))
    assert harness.only.blocks == [Text("Hel")]


async def test_an_error_while_the_last_piece_is_saved_is_what_the_run_ends_with(harness: LoopHarness) -> None:
    harness.answers = [RuntimeError("database write failed")]
    model = ScriptedModel([[parts.text_delta("1", "Hel"), ModelFailed("No.", kind="auth")]])
    with pytest.raises(RuntimeError, match="database write failed"):
        await raise_failure(harness.start(model))


async def test_after_a_quarter_of_an_hour_no_further_attempt_is_started(harness: LoopHarness) -> None:
    async def slow(call: Call) -> AsyncIterator[Part]:
        for _ in range(10):
            await harness.clock.advance(100)
            yield parts.reasoning_delta("r", ".")
        raise ConnectionResetError

    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(ScriptedModel([slow])))
    assert harness.retries == []


async def test_a_live_stream_is_never_cut_by_the_quarter_of_an_hour(harness: LoopHarness) -> None:
    async def slow(call: Call) -> AsyncIterator[Part]:
        for _ in range(20):
            await harness.clock.advance(100)
            yield parts.text_delta("1", ".")
        yield parts.finish()

    result = await harness.start(ScriptedModel([break_off(), slow]))
    assert result.reason == "stop"
    assert harness.only.blocks == [Text("." * 20)]


async def test_the_quarter_of_an_hour_counts_on_over_kept_steps(harness: LoopHarness) -> None:
    async def slow(call: Call) -> AsyncIterator[Part]:
        for _ in range(5):
            await harness.clock.advance(100)
            yield parts.text_delta("1", ".")
        raise ConnectionResetError

    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(ScriptedModel([slow, slow]), keep_failed=True))
    assert len(harness.retries) == 1
    assert len(harness.saved) == 2


# --- who is told -------------------------------------------------------------------------


async def test_the_retry_event_says_what_happened_and_when_it_goes_on(harness: LoopHarness) -> None:
    failed_at = harness.clock.now()
    failure = ModelFailed("Scripted is busy.", kind="rate_limit", status=429, retry_after_s=30)
    await harness.start(ScriptedModel([failure, ANSWER]))
    (event,) = harness.retries
    assert (event.attempt, event.delay_ms, event.kind, event.status) == (1, 30_000, "rate_limit", 429)
    assert (event.provider, event.message) == ("scripted", "Scripted is busy.")
    assert event.retrying_at == failed_at + timedelta(seconds=30)
    assert harness.clock.slept == [30]


async def test_the_host_is_called_in_order(harness: LoopHarness) -> None:
    told: list[str] = []

    async def open_attempt(step: int, number: int) -> None:
        await asyncio.sleep(0)
        told.append(f"attempt {step}.{number}")

    async def schedule_retry(event: Any) -> None:
        await asyncio.sleep(0)
        told.append(f"retry after {event.attempt}, slept {len(harness.clock.slept)}")

    def save(step: Any) -> None:
        told.append(f"save {step.index}")

    async def stream(call: Call) -> AsyncIterator[Part]:
        told.append("call")
        yield parts.text_delta("1", "Hel")
        raise ConnectionResetError

    model = ScriptedModel([stream, ANSWER])
    await harness.start(
        model, keep_failed=True, open_attempt=open_attempt, schedule_retry=schedule_retry, persist_step=save
    )
    assert told == ["attempt 1.1", "call", "save 1", "retry after 1, slept 0", "attempt 2.1", "save 2"]


async def test_an_attempt_that_is_refused_is_not_made(harness: LoopHarness) -> None:
    def refuse(step: int, number: int) -> None:
        raise PermissionError("attempt is closed")

    model = ScriptedModel()
    with pytest.raises(PermissionError, match="attempt is closed"):
        await raise_failure(harness.start(model, open_attempt=refuse))
    assert model.calls == []


async def test_a_retry_without_anybody_to_tell_is_made_all_the_same(harness: LoopHarness) -> None:
    result = await harness.start(ScriptedModel([break_off(), ANSWER]), open_attempt=None, schedule_retry=None)
    assert result.reason == "stop"


async def test_a_stop_while_the_retry_is_announced_makes_no_further_attempt(harness: LoopHarness) -> None:
    model = ScriptedModel([break_off("Hel")])
    assert isinstance(
        await harness.start(model, schedule_retry=lambda event: harness.scope.interrupt()), TurnInterrupted
    )
    assert len(model.calls) == 1
    assert harness.clock.slept == []
    assert (harness.only.blocks, harness.only.reason) == ([Text("Hel")], "interrupted")


async def test_a_stop_before_the_next_attempt_begins_keeps_the_failed_one(harness: LoopHarness) -> None:
    """rule 2.1: blocks of a failed attempt are dropped when the next one *starts*."""

    def stop_at_the_second(step: int, number: int) -> None:
        if number == 2:
            harness.scope.interrupt()

    model = ScriptedModel([break_off("Hel")])
    assert isinstance(await harness.start(model, open_attempt=stop_at_the_second), TurnInterrupted)
    assert harness.only.blocks == [Text("Hel")]


async def test_the_attempt_that_was_kept_says_what_it_cost(harness: LoopHarness) -> None:
    model = ScriptedModel(
        [
            break_off("Hel"),
            [parts.text_delta("1", "lo"), parts.finish("stop", usage=Usage(output_tokens=2))],
        ]
    )
    result = await harness.start(model, keep_failed=True)
    assert result.usage == Usage(output_tokens=2)
    assert [step.attempt for step in harness.saved] == [1, 1]
