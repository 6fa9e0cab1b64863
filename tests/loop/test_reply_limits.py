"""A reply that does not end, and one that never begins (S103, S109)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from indelible import tool
from indelible.content import (
    Finish,
    KeepAlive,
    Part,
    ReasoningDelta,
    Source,
    StreamWarning,
    TextDelta,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from indelible.content.blocks import text_of
from indelible.errors import ModelFailed
from indelible.loop import RetryPolicy, TurnCompleted, TurnFailed
from indelible.models import Call
from indelible.testing import ScriptedModel, parts

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness


class Endless:
    """A model that says the same for ever. `closed`: nobody listens any more."""

    def __init__(self, *said: Part) -> None:
        self.closed = False
        self._said = said

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        try:
            while True:
                for part in self._said:
                    yield part
        finally:
            self.closed = True


@pytest.mark.parametrize("make", [parts.text_delta, parts.reasoning_delta, parts.tool_input_delta])
async def test_s103_a_reply_without_an_end_is_ended_at_its_limit_and_kept(harness: LoopHarness, make: object) -> None:
    endless = Endless(make("1", "word "))  # type: ignore[operator]
    end = await harness.start(ScriptedModel([endless.stream]), reply_max_characters=1000)
    assert isinstance(end, TurnCompleted)
    assert endless.closed
    said = sum(len(getattr(part, "delta", "")) for part in harness.published)
    assert 1000 <= said <= 1010
    assert harness.published[-1] == Finish("length")


async def test_s103_what_was_written_until_then_is_saved_and_marked(harness: LoopHarness) -> None:
    endless = Endless(parts.text_delta("1", "word "))
    await harness.start(ScriptedModel([endless.stream]), reply_max_characters=50)
    [step] = harness.saved
    assert text_of(step.blocks) == "word " * 11
    assert (step.partial, step.reason) == (True, "length")


async def test_s103_a_call_that_was_cut_at_the_limit_is_not_run(harness: LoopHarness) -> None:
    runs: list[str] = []

    @tool
    async def write(text: str) -> str:
        """Write."""
        runs.append(text)
        return "written"

    endless = Endless(parts.tool_input_delta("1", "x" * 100))
    await harness.start(ScriptedModel([endless.stream]), tools=[write], reply_max_characters=1000)
    assert runs == []


async def test_s103_a_call_that_comes_whole_counts_as_well(harness: LoopHarness) -> None:
    endless = Endless(ToolCall(id="1", name="write", arguments='{"text": "' + "x" * 2000 + '"}'), TextDelta("1", "on"))
    await harness.start(ScriptedModel([endless.stream]), reply_max_characters=1000)
    assert endless.closed


LONG_ID, LONG_NAME = "i" * 257, "n" * 129
CALL = ToolCall(id="c", name="write", arguments="{}")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (ToolInputStart("c", LONG_NAME), "a tool name of 129 characters (limit 128)"),
        (ToolInputStart(LONG_ID, "write"), "an id of 257 characters (limit 256)"),
        (replace(CALL, name=LONG_NAME), "a tool name of 129 characters (limit 128)"),
        (replace(CALL, id=LONG_ID), "an id of 257 characters (limit 256)"),
        (ToolInputDelta(LONG_ID, "{"), "an id of 257 characters (limit 256)"),
        (ToolInputEnd(LONG_ID), "an id of 257 characters (limit 256)"),
        (ToolResult(LONG_ID, "search", provider_executed=True), "an id of 257 characters (limit 256)"),
        (ToolResult("c", LONG_NAME, provider_executed=True), "a tool name of 129 characters (limit 128)"),
        (TextStart(LONG_ID), "an id of 257 characters (limit 256)"),
        (TextDelta(LONG_ID, "word"), "an id of 257 characters (limit 256)"),
        (ReasoningDelta(LONG_ID, "word"), "an id of 257 characters (limit 256)"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
async def test_an_id_or_a_name_without_end_fails_the_attempt_and_the_rest_is_kept(
    harness: LoopHarness, said: Part, why: str
) -> None:
    endless = Endless(TextDelta("1", "word "), CALL, said)
    end = await harness.start(ScriptedModel([endless.stream]))
    assert isinstance(end, TurnFailed)
    assert isinstance(end.error, ModelFailed)
    assert (why in end.error.message, end.error.retryable) == (True, False)
    assert endless.closed
    assert harness.published == [TextDelta("1", "word "), CALL]
    (step,) = harness.saved
    assert text_of(step.blocks) == "word "
    assert {block.id for block in step.blocks if isinstance(block, ToolCall)} == {"c"}


@pytest.mark.parametrize("make", [lambda id_: ToolInputStart(id_, "write"), lambda id_: replace(CALL, id=id_)])
@pytest.mark.parametrize("ids", [lambda number: f"c{number}", lambda number: "c"], ids=["different", "the same"])
async def test_a_reply_has_a_limited_number_of_calls_and_keeps_them(
    harness: LoopHarness, make: Callable[[str], Part], ids: Callable[[int], str]
) -> None:
    async def call_on() -> AsyncIterator[Part]:
        yield TextDelta("1", "word ")
        for number in range(10_000):
            call = make(ids(number))
            yield call
            if isinstance(call, ToolInputStart):
                yield ToolInputEnd(call.id)

    end = await harness.start(ScriptedModel([lambda call: call_on()]))
    assert isinstance(end, TurnFailed)
    assert "more than 128 tool calls in one reply" in str(end.error)
    (step,) = harness.saved
    assert len([block for block in step.blocks if isinstance(block, ToolCall)]) == 128
    assert text_of(step.blocks) == "word "


@pytest.mark.parametrize(
    "said", [replace(CALL, name="n" * 100), TextStart("t"), StreamWarning("w" * 90), Source(url="https://" + "u" * 90)]
)
async def test_what_is_no_delta_counts_in_the_limit_of_a_reply(harness: LoopHarness, said: Part) -> None:
    endless = Endless(said)
    await harness.start(ScriptedModel([endless.stream]), reply_max_characters=10_000)
    assert len(harness.published) < 10_000 / 20
    assert harness.published[-1] == Finish("length")


@pytest.mark.parametrize("delta", ["w", ""])
@pytest.mark.parametrize("make", [TextDelta, ReasoningDelta, ToolInputDelta])
async def test_a_reply_in_pieces_of_one_character_has_a_limited_number_of_blocks(
    harness: LoopHarness, make: Callable[[str, str], Part], delta: str
) -> None:
    async def begin_on() -> AsyncIterator[Part]:
        for number in range(2000):
            yield make(f"{number % 100 if make is ToolInputDelta else number}", delta)
        yield Finish("stop")

    await harness.start(ScriptedModel([lambda call: begin_on()]), reply_max_characters=64 * 50)
    assert len(harness.published) < 60
    assert harness.published[-1] == Finish("length")


async def test_the_finish_itself_ends_no_reply_twice(harness: LoopHarness) -> None:
    said = [TextDelta("1", "word"), Finish("stop", metadata={"long": "m" * 100})]
    await harness.start(ScriptedModel([said]), reply_max_characters=50)
    assert harness.published == said


class AliveOnly:
    """A model that only says that it is still there, once a minute."""

    def __init__(self, harness: LoopHarness, *before: Part) -> None:
        self.minutes = 0
        self.closed = False
        self._harness = harness
        self._before = before

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        try:
            for part in self._before:
                yield part
            while True:
                await self._harness.clock.advance(60)
                self.minutes += 1
                yield KeepAlive()
        finally:
            self.closed = True


@pytest.mark.parametrize("before", [(), (parts.text_delta("1", "Hm"),)], ids=["at once", "after a word"])
async def test_s109_a_stream_of_nothing_but_keep_alives_is_given_up(
    harness: LoopHarness, before: tuple[Part, ...]
) -> None:
    alive = AliveOnly(harness, *before)
    end = await harness.start(
        ScriptedModel([alive.stream]), retry=RetryPolicy(max_attempts=1), keep_alive_timeout_s=1800
    )
    assert isinstance(end, TurnFailed)
    assert isinstance(end.error, ModelFailed)
    assert end.error.kind == "stream_silence_timeout"
    assert alive.closed
    assert alive.minutes == 31
