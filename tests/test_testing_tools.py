"""The tools that tests are built on: a clock that is moved by hand, a model that says what was written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.content import (
    Finish,
    KeepAlive,
    Part,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StreamError,
    StreamWarning,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
)
from indelible.errors import ModelFailed
from indelible.models.protocol import Call
from indelible.testing import ManualClock, ScriptedModel, ScriptEnded, parts
from indelible.testing.parts import Hang

CALL = Call(messages=[])


# --- ManualClock -------------------------------------------------------------------------


async def test_the_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    assert (clock.now(), clock.monotonic()) == (datetime(2026, 1, 1, tzinfo=UTC), 0.0)

    clock.advance(90)

    assert clock.now() == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)
    assert clock.monotonic() == 90.0


@given(st.lists(st.integers(0, 20), max_size=8), st.lists(st.integers(0, 8), min_size=1, max_size=6))
def test_timers_fire_once_in_the_order_of_their_time_and_at_it(delays: list[int], moves: list[int]) -> None:
    clock = ManualClock()
    fired: list[tuple[float, int]] = []
    for number, delay in enumerate(delays):
        clock.call_later(delay, lambda number=number: fired.append((clock.monotonic(), number)))  # type: ignore[misc]

    for seconds in moves:
        clock.advance(seconds)

    reached = sum(moves)
    assert fired == sorted((delay, number) for number, delay in enumerate(delays) if delay <= reached)
    assert clock.pending == len(delays) - len(fired)
    assert clock.monotonic() == reached


def test_a_timer_that_is_set_by_a_timer_fires_if_its_time_is_reached() -> None:
    clock = ManualClock()
    fired: list[float] = []

    def again() -> None:
        fired.append(clock.monotonic())
        clock.call_later(3, again)

    clock.call_later(3, again)
    clock.advance(10)

    assert fired == [3, 6, 9]


def test_a_cancelled_timer_does_not_fire() -> None:
    clock = ManualClock()
    fired: list[str] = []
    timer = clock.call_later(1, lambda: fired.append("cancelled"))
    clock.call_later(2, lambda: fired.append("kept"))

    timer.cancel()
    assert clock.pending == 1
    clock.advance(5)

    assert fired == ["kept"]


async def test_advance_wakes_sleepers_and_awaiting_it_lets_them_run() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(f"{seconds:g}")

    async with asyncio.TaskGroup() as tasks:
        for seconds in (2, 1, 3):
            tasks.create_task(sleep(seconds))
        await clock.advance(0)
        assert woken == []
        clock.advance(1)
        assert woken == []
        await clock.advance(1)
        assert woken == ["1", "2"]
        await clock.advance(1)
        assert woken == ["1", "2", "3"]
    assert clock.slept == [2, 1, 3]
    assert clock.pending == 0


async def test_a_sleeper_that_is_cancelled_leaves_no_timer() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.advance(0)
    assert clock.pending == 1

    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert clock.pending == 0


async def test_with_skip_sleeps_a_sleep_moves_the_clock_and_fires_what_it_passes() -> None:
    clock = ManualClock(skip_sleeps=True)
    fired: list[float] = []
    clock.call_later(3, lambda: fired.append(clock.monotonic()))
    clock.call_later(10, lambda: fired.append(clock.monotonic()))

    await clock.sleep(4)
    await clock.sleep(5)

    assert clock.monotonic() == 9
    assert clock.now() - ManualClock().now() == timedelta(seconds=9)
    assert clock.slept == [4, 5]
    assert fired == [3]


async def test_one_can_wait_until_somebody_sets_a_timer() -> None:
    clock = ManualClock()
    clock.call_later(1, lambda: None)
    waiting = asyncio.create_task(clock.wait_for_timer())
    await clock.advance(0)
    assert not waiting.done()

    clock.call_later(2, lambda: None)
    await clock.advance(0)

    assert waiting.done()


# --- ScriptedModel -----------------------------------------------------------------------


async def read_all(model: ScriptedModel, call: Call = CALL) -> list[Part]:
    return [part async for part in model.stream(call)]


async def test_each_call_plays_the_next_script_and_is_kept() -> None:
    first: list[Part] = [parts.text_delta("1", "a"), parts.finish()]
    model = ScriptedModel([first, [parts.finish("length")]], provider="anthropic", name="m", context_limit=1000)
    other_call = Call(messages=[], tools=[])

    assert await read_all(model) == first
    assert await read_all(model, other_call) == [Finish(reason="length")]
    assert model.calls == [CALL, other_call]
    assert model.calls[1] is other_call
    assert (model.provider, model.name, model.context_limit) == ("anthropic", "m", 1000)


async def test_a_script_may_be_an_exception() -> None:
    model = ScriptedModel([ModelFailed("busy", kind="overloaded"), [parts.finish()]])

    with pytest.raises(ModelFailed, match="busy"):
        model.stream(CALL)
    assert await read_all(model) == [Finish()]


async def test_an_exception_in_a_script_is_raised_at_its_place() -> None:
    model = ScriptedModel([[parts.text_delta("1", "a"), ConnectionResetError("gone"), parts.finish()]])
    stream = model.stream(CALL)

    assert await anext(stream) == TextDelta("1", "a")
    with pytest.raises(ConnectionResetError, match="gone"):
        await anext(stream)


async def test_a_script_may_be_a_function_of_the_call() -> None:
    async def echo(call: Call) -> AsyncIterator[Part]:
        yield parts.text_delta("1", f"{len(call.tools)} tools")
        yield parts.finish()

    assert await read_all(ScriptedModel([echo])) == [TextDelta("1", "0 tools"), Finish()]


async def test_a_hang_says_nothing_until_the_read_is_cancelled() -> None:
    model = ScriptedModel([[parts.text_delta("1", "a"), parts.hang(), parts.finish()]])
    stream = model.stream(CALL)
    assert await anext(stream) == TextDelta("1", "a")

    async def read() -> Part:
        return await anext(stream)

    reading = asyncio.create_task(read())
    await ManualClock().advance(0)
    assert not reading.done()

    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()


@pytest.mark.parametrize("streams", [[], [[parts.finish()]], [ValueError("no")]])
async def test_a_call_past_the_last_script_fails_whatever_catches_errors(streams: list[list[Part]]) -> None:
    model = ScriptedModel(streams)
    for _ in streams:
        try:
            await read_all(model)
        except ValueError:
            continue

    async def call_carelessly() -> str:
        try:
            await read_all(model)
        except Exception:
            return "caught"
        return "read"

    with pytest.raises(ScriptEnded, match=f"call {len(streams) + 1}"):
        await call_carelessly()
    assert not issubclass(ScriptEnded, Exception)


# --- parts -------------------------------------------------------------------------------


def test_every_builder_makes_its_part() -> None:
    usage = Usage(output_tokens=3)
    made = [
        (parts.text_start("1"), TextStart("1")),
        (parts.text_delta("1", "a"), TextDelta("1", "a")),
        (parts.text_end("1"), TextEnd("1")),
        (parts.reasoning_start("1"), ReasoningStart(id="1")),
        (parts.reasoning_delta("1", "a", signature="s"), ReasoningDelta(id="1", delta="a", signature="s")),
        (parts.reasoning_end("1", metadata={"m": 1}), ReasoningEnd(id="1", metadata={"m": 1})),
        (parts.tool_input_start("1", "weather"), ToolInputStart(id="1", name="weather")),
        (parts.tool_input_delta("1", "{"), ToolInputDelta("1", "{")),
        (parts.tool_input_end("1"), ToolInputEnd("1")),
        (parts.tool_call("1", "weather", "{}"), ToolCall(id="1", name="weather", arguments="{}")),
        (
            parts.tool_call("1", "search", "{}", provider_executed=True),
            ToolCall(id="1", name="search", arguments="{}", provider_executed=True),
        ),
        (
            parts.tool_result("1", "search", ["hit"], provider_executed=True),
            ToolResult(call_id="1", name="search", output=["hit"], provider_executed=True),
        ),
        (parts.source("1", url="https://example.org"), Source(id="1", url="https://example.org")),
        (parts.finish("stop", usage, "r1"), Finish(reason="stop", usage=usage, response_id="r1")),
        (parts.warning("old"), StreamWarning("old")),
        (parts.keep_alive(), KeepAlive()),
    ]

    for part, expected in made:
        assert part == expected
    assert isinstance(parts.hang(), Hang)


def test_an_error_part_says_what_the_exception_says() -> None:
    failure = ModelFailed("busy", kind="overloaded", status=529, retry_after_s=2.0)

    assert parts.error(failure) == StreamError(
        message="busy", kind="overloaded", retryable=True, status=529, retry_after_s=2.0
    )
    assert parts.error(ConnectionResetError("gone")).retryable
