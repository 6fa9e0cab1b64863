"""A model that says nothing (rule 1.7), with a clock that is moved by hand.

The guard is per attempt, armed at open, reset by every part and by keep-alives, and it runs only while
the loop waits for the model. What it ends is an attempt: retryable, kind `stream_silence_timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from tests.support.loop_harness import raise_failure

from indelible import tool
from indelible.content import Part, Reasoning, Text, TextDelta, ToolStarted
from indelible.errors import ModelFailed
from indelible.loop import RetryPolicy, TurnEnd, TurnInterrupted, TurnShutDown
from indelible.models import Call
from indelible.testing import ScriptedModel, parts

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness

ONCE = RetryPolicy(max_attempts=1)
HELLO = parts.text_delta("1", "Hello")


class Line:
    """A model that says what it is told, when it is told."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.cancelled = False
        self.closed = False
        self._said: asyncio.Queue[Part] = asyncio.Queue()

    def say(self, part: Part) -> None:
        self._said.put_nowait(part)

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        self.opened.set()
        try:
            while True:
                yield await self._said.get()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.closed = True


async def test_two_minutes_of_nothing_end_the_attempt(harness: LoopHarness) -> None:
    line = Line()
    task = harness.start(ScriptedModel([line.stream]), retry=ONCE)
    await line.opened.wait()
    await harness.clock.advance(299.9)
    assert not task.done()
    await harness.clock.advance(0.1)
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(task)
    assert (caught.value.kind, caught.value.retryable) == ("stream_silence_timeout", True)
    assert caught.value.provider == "scripted"
    assert line.cancelled
    assert line.closed
    assert harness.saved == []


async def test_the_time_is_a_setting(harness: LoopHarness) -> None:
    line = Line()
    task = harness.start(ScriptedModel([line.stream]), retry=ONCE, silence_timeout_s=7)
    await line.opened.wait()
    await harness.clock.advance(7)
    with pytest.raises(ModelFailed, match="stopped responding"):
        await raise_failure(task)


@pytest.mark.parametrize("part", [HELLO, parts.keep_alive(), parts.reasoning_delta("r", "hm"), parts.text_start("1")])
async def test_every_part_and_every_keep_alive_starts_the_time_anew(harness: LoopHarness, part: Part) -> None:
    line = Line()
    task = harness.start(ScriptedModel([line.stream]), retry=ONCE)
    await line.opened.wait()
    for _ in range(5):  # below the time for keep-alives alone (test_reply_limits.py)
        await harness.clock.advance(299)
        line.say(part)
        await harness.clock.advance(0)
    assert not task.done(), "a stream has no total time limit"
    await harness.clock.advance(299)
    assert not task.done()
    await harness.clock.advance(1)
    with pytest.raises(ModelFailed):
        await raise_failure(task)


async def test_a_part_that_is_held_back_starts_the_time_anew(harness: LoopHarness) -> None:
    """Half a tag is not published yet, but the model did speak."""
    line = Line()
    task = harness.start(ScriptedModel([line.stream]), retry=ONCE)
    await line.opened.wait()
    await harness.clock.advance(100)
    line.say(parts.text_delta("1", "<thi"))
    await harness.clock.advance(0)
    await harness.clock.advance(100)
    assert not task.done()
    line.say(HELLO)
    line.say(parts.finish())
    assert (await task).reason == "stop"


async def test_what_was_written_before_the_silence_is_kept(harness: LoopHarness) -> None:
    line = Line()
    line.say(HELLO)
    task = harness.start(ScriptedModel([line.stream]), retry=ONCE)
    await harness.heard(TextDelta)
    await harness.clock.advance(300)
    with pytest.raises(ModelFailed):
        await raise_failure(task)
    assert harness.only.blocks == [Text("Hello")]
    assert (harness.only.partial, harness.only.reason) == (True, "failed")


async def test_a_silent_attempt_is_tried_again_and_the_next_has_its_own_time(harness: LoopHarness) -> None:
    first, second = Line(), Line()
    task = harness.start(ScriptedModel([first.stream, second.stream]))
    await first.opened.wait()
    await harness.clock.advance(300)
    await harness.clock.advance(1)
    await second.opened.wait()
    await harness.clock.advance(299)
    second.say(HELLO)
    second.say(parts.finish())
    result = await task
    assert result.reason == "stop"
    assert [event.kind for event in harness.retries] == ["stream_silence_timeout"]
    assert harness.attempts == [(1, 1), (1, 2)]


async def test_a_stream_that_does_not_open_is_silent(harness: LoopHarness) -> None:
    begun = asyncio.Event()

    class SlowToOpen:
        provider = name = "slow"
        context_limit = None

        async def stream(self, call: Call) -> AsyncIterator[Part]:
            begun.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    task = harness.start(SlowToOpen(), retry=ONCE)  # type: ignore[arg-type]
    await begun.wait()
    await harness.clock.advance(300)
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(task)
    assert caught.value.kind == "stream_silence_timeout"


async def test_time_that_publish_takes_does_not_count(harness: LoopHarness) -> None:
    line = Line()
    line.say(HELLO)
    held, may_go_on = asyncio.Event(), asyncio.Event()

    async def publish(part: Part) -> None:
        held.set()
        await may_go_on.wait()
        harness.publish(part)

    task = harness.start(ScriptedModel([line.stream]), retry=ONCE, publish=publish)
    await held.wait()
    await harness.clock.advance(1000)
    may_go_on.set()
    await harness.clock.advance(0)
    assert not task.done()
    await harness.clock.advance(299)
    assert not task.done(), "the time begins when the loop waits for the model again"
    await harness.clock.advance(1)
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(task)
    assert caught.value.kind == "stream_silence_timeout"


async def test_time_that_publish_takes_is_not_added_to_the_time_before_it(harness: LoopHarness) -> None:
    line = Line()
    held, may_go_on = asyncio.Event(), asyncio.Event()

    async def publish(part: Part) -> None:
        held.set()
        await may_go_on.wait()

    task = harness.start(ScriptedModel([line.stream]), retry=ONCE, publish=publish)
    await line.opened.wait()
    await harness.clock.advance(100)
    line.say(HELLO)
    await held.wait()
    await harness.clock.advance(100)
    may_go_on.set()
    await harness.clock.advance(0)
    await harness.clock.advance(100)
    assert not task.done()
    line.say(parts.finish())
    assert (await task).reason == "stop"


async def test_time_that_tools_take_does_not_count(harness: LoopHarness) -> None:
    may_go_on = asyncio.Event()

    @tool
    async def slow() -> str:
        await may_go_on.wait()
        return "done"

    model = ScriptedModel([[parts.tool_call("c1", "slow", "{}"), parts.finish("tool_calls")], [HELLO, parts.finish()]])
    task = harness.start(model, tools=[slow])
    await harness.heard(ToolStarted)
    await harness.clock.advance(200)
    may_go_on.set()
    assert (await task).reason == "stop"
    assert harness.retries == []


async def test_time_that_the_save_takes_does_not_count(harness: LoopHarness) -> None:
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def save_slowly() -> None:
        begun.set()
        await may_go_on.wait()

    harness.answers = [save_slowly]
    task = harness.start(ScriptedModel([[HELLO, parts.finish()]]))
    await begun.wait()
    await harness.clock.advance(1000)
    may_go_on.set()
    assert (await task).reason == "stop"


async def test_no_timer_is_left_behind(harness: LoopHarness) -> None:
    await harness.start(ScriptedModel([[HELLO, parts.finish()]]))
    assert harness.clock.pending == 0


async def test_no_timer_is_left_behind_by_a_stop(harness: LoopHarness) -> None:
    await harness.interrupt_at(TextDelta, ScriptedModel([[HELLO, parts.hang()]]))
    assert harness.clock.pending == 0


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_a_model_that_ignores_the_end_of_its_time_is_left_behind_and_heard_no_more(harness: LoopHarness) -> None:
    let_go, opened = asyncio.Event(), asyncio.Event()

    async def ignore(call: Call) -> AsyncIterator[Part]:
        opened.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        yield parts.text_delta("1", "too late")
        yield parts.finish()

    task = harness.start(ScriptedModel([ignore, [HELLO, parts.finish()]]))
    await opened.wait()
    await harness.clock.advance(300)
    await harness.clock.advance(5)
    await harness.clock.advance(1)
    assert (await task).reason == "stop"
    let_go.set()
    await harness.clock.advance(0)
    assert harness.published == [HELLO, parts.finish()]
    assert harness.only.blocks == [Text("Hello")]


@pytest.mark.parametrize(("stop", "end"), [("interrupt", TurnInterrupted), ("shutdown", TurnShutDown)])
async def test_a_stop_goes_before_the_silence_it_came_in(harness: LoopHarness, stop: str, end: type[TurnEnd]) -> None:
    let_go = asyncio.Event()

    async def slow_to_stop(call: Call) -> AsyncIterator[Part]:
        yield HELLO
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await let_go.wait()
            raise

    task = harness.start(ScriptedModel([slow_to_stop]))
    await harness.heard(TextDelta)
    await harness.clock.advance(300)
    getattr(harness.scope, stop)()
    let_go.set()
    assert type(await task) is end
    assert harness.retries == []
    assert [step.reason for step in harness.saved] == (["interrupted"] if end is TurnInterrupted else [])


async def test_thinking_that_fell_silent_is_ended_and_kept_when_nothing_better_comes(harness: LoopHarness) -> None:
    line = Line()
    line.say(parts.reasoning_start("r"))
    line.say(parts.reasoning_delta("r", "Let me see"))
    task = harness.start(ScriptedModel([line.stream]), retry=ONCE)
    await line.opened.wait()
    await harness.clock.advance(0)
    await harness.clock.advance(300)
    with pytest.raises(ModelFailed):
        await raise_failure(task)
    (reasoning,) = harness.only.blocks
    assert isinstance(reasoning, Reasoning)
    assert reasoning.ended_at == harness.clock.now()
    assert not harness.only.partial
