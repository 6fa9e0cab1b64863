"""Models that do not behave: the loop gives a clear error or an error result, loses nothing, and never hangs.

A model is foreign code behind a small port, so everything the port does not forbid (and some of what it
does) is tried here: odd streams, odd iterators, odd reactions to being stopped. Rules: 1.1, 1.2, 1.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.loop_harness import raise_failure
from tests.support.timing import untimed

from indelible import tool
from indelible.content import (
    Block,
    Part,
    Reasoning,
    Text,
    TextDelta,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    ToolStarted,
    Usage,
    encode,
)
from indelible.errors import ModelFailed
from indelible.loop import RetryPolicy, TurnInterrupted, TurnShutDown
from indelible.models import Call
from indelible.models.failures.classify import to_error_part
from indelible.testing import ScriptedModel, parts
from indelible.tools.tool import ToolCallRecord

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness

Spell = Callable[[Sequence[Block]], list[tuple[str, ...]]]

ONCE = RetryPolicy(max_attempts=1)
HELLO = parts.text_delta("1", "Hello")


class OddModel:
    """A model whose `stream` is whatever it is given."""

    provider = "odd"
    name = "odd"
    context_limit = None

    def __init__(self, stream: Callable[[Call], Any]) -> None:
        self.stream = stream


async def wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


@tool
async def note(text: str) -> str:
    return f"noted {text}"


# --- odd parts ---------------------------------------------------------------------------


async def test_a_delta_before_its_start_opens_its_block(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel(
        [
            [
                parts.text_delta("t", "a"),
                parts.text_start("t"),
                parts.text_delta("t", "b"),
                parts.reasoning_delta("r", "c"),
                parts.reasoning_start("r"),
                parts.reasoning_delta("r", "d"),
                parts.finish(),
            ]
        ]
    )
    await harness.start(model)
    assert spell(harness.only.blocks) == [("text", "ab"), ("reasoning", "cd")]


async def test_a_tool_input_delta_before_its_start_gets_its_name_later(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_input_delta("c1", '{"text": '),
                parts.tool_input_start("c1", "note"),
                parts.tool_input_delta("c1", '"x"}'),
                parts.tool_input_end("c1"),
                parts.finish("tool_calls"),
            ],
            [HELLO, parts.finish()],
        ]
    )
    await harness.start(model, tools=[note])
    assert spell(harness.saved[0].blocks) == [("call", "c1", "note", '{"text": "x"}'), ("result", "c1", "note")]


async def test_a_call_that_never_got_a_name_is_answered_with_an_error(harness: LoopHarness) -> None:
    model = ScriptedModel(
        [
            [parts.tool_input_delta("c1", "{}"), parts.tool_input_end("c1"), parts.finish("tool_calls")],
            [HELLO, parts.finish()],
        ]
    )
    result = await harness.start(model, tools=[note])
    assert result.reason == "stop"
    answer = harness.saved[0].blocks[-1]
    assert isinstance(answer, ToolResult)
    assert answer.is_error


async def test_an_end_without_a_start_does_no_harm(harness: LoopHarness) -> None:
    model = ScriptedModel([[parts.text_end("t"), parts.reasoning_end("r"), HELLO, parts.finish()]])
    await harness.start(model)
    assert harness.only.blocks == [Text("Hello")]


async def test_the_complete_call_wins_over_its_deltas(harness: LoopHarness) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_input_start("c1", "note"),
                parts.tool_input_delta("c1", '{"text": "dra'),
                parts.tool_call("c1", "note", '{"text": "final"}'),
                parts.finish("tool_calls"),
            ],
            [HELLO, parts.finish()],
        ]
    )
    await harness.start(model, tools=[note])
    assert untimed(harness.saved[0].blocks)[-1] == ToolResult(call_id="c1", name="note", output="noted final")


class Telepathy(msgspec.Struct):
    thought: str = "?"


@pytest.mark.parametrize("thing", [Telepathy(), None, "Hello", 42, {"type": "text_delta"}, TextDelta, Text("Hi")])
async def test_something_that_is_no_part_is_a_clear_failure_and_what_came_before_is_kept(
    harness: LoopHarness, thing: Any
) -> None:
    with pytest.raises(ModelFailed, match=r"expected a part \(see indelible.content\)\.$"):
        await raise_failure(harness.start(ScriptedModel([[HELLO, thing, parts.finish()]])))
    assert harness.only.blocks == [Text("Hello")]
    assert (harness.only.partial, harness.only.reason) == (True, "failed")


ODD_FIELDS: dict[str, Any] = {
    "text that is None": TextDelta("1", None),  # type: ignore[arg-type]
    "text that is bytes": TextDelta("1", b"bytes"),  # type: ignore[arg-type]
    "reasoning that is a number": parts.reasoning_delta("r", 3),  # type: ignore[arg-type]
    "a piece of arguments that is a dict": parts.tool_input_delta("c1", {"text": "x"}),  # type: ignore[arg-type]
    "arguments that are a dict": parts.tool_call("c1", "note", {"text": "x"}),  # type: ignore[arg-type]
    "a call without a name": parts.tool_call("c1", None, "{}"),  # type: ignore[arg-type]
    "a call without an id": parts.tool_call(None, "note", "{}"),  # type: ignore[arg-type]
    "a result that JSON has no word for": parts.tool_result("c1", "search", object(), provider_executed=True),
    "a finish for a reason nobody knows": parts.finish("because"),  # type: ignore[arg-type]
    "usage that is a dict": parts.finish("stop", usage={"input_tokens": 3}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("part", ODD_FIELDS.values(), ids=ODD_FIELDS)
async def test_a_part_with_the_wrong_things_inside_is_a_clear_failure_or_an_error_result(
    harness: LoopHarness, part: Part
) -> None:
    model = ScriptedModel([[HELLO, part, parts.finish("tool_calls")], [HELLO, parts.finish()]])
    try:
        await harness.start(model, tools=[note], retry=ONCE)
    except ModelFailed:
        assert harness.only.blocks[0] == Text("Hello")
    else:
        assert harness.saved[0].blocks[0] == Text("Hello")
    for step in harness.saved:
        encode(step.blocks)
    for published in harness.published:
        encode(published)


async def test_a_keep_alive_is_neither_published_nor_folded(harness: LoopHarness) -> None:
    model = ScriptedModel([[parts.keep_alive(), HELLO, parts.keep_alive(), parts.finish(), parts.keep_alive()]])
    await harness.start(model)
    assert harness.published == [HELLO, parts.finish()]
    assert harness.only.blocks == [Text("Hello")]


async def test_what_comes_after_the_finish_is_not_read(harness: LoopHarness) -> None:
    closed = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        try:
            yield HELLO
            yield parts.finish("stop", usage=Usage(output_tokens=1))
            yield parts.text_delta("1", " again")
        finally:
            closed.set()

    await harness.start(ScriptedModel([stream]))
    assert harness.only.blocks == [Text("Hello")]
    assert closed.is_set()


# --- streams that do not end well --------------------------------------------------------


async def test_nothing_at_all_is_a_truncated_stream(harness: LoopHarness) -> None:
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(ScriptedModel([[]]), retry=ONCE))
    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)
    assert harness.saved == []


async def test_a_stream_without_a_finish_is_never_a_success(harness: LoopHarness) -> None:
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(ScriptedModel([[HELLO, parts.text_end("1")]]), retry=ONCE))
    assert caught.value.retryable
    assert (harness.only.partial, harness.only.reason) == (True, "failed")


async def test_calls_of_a_truncated_stream_are_never_run(harness: LoopHarness, spell: Spell) -> None:
    with pytest.raises(ModelFailed):
        await raise_failure(
            harness.start(ScriptedModel([[parts.tool_call("c1", "note", '{"text": "x"}')]]), tools=[note], retry=ONCE)
        )
    assert harness.count(ToolStarted) == 0
    assert spell(harness.only.blocks)[1:] == [("error", "c1", "note")]


async def test_half_received_arguments_are_never_executed_even_if_they_happen_to_be_json(
    harness: LoopHarness, spell: Spell
) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_input_start("c1", "note"),
                parts.tool_input_delta("c1", '{"text": "x"}'),
                parts.finish("tool_calls"),
            ],
            [HELLO, parts.finish()],
        ]
    )
    await harness.start(model, tools=[note])
    assert harness.count(ToolStarted) == 0
    assert spell(harness.saved[0].blocks) == [("call", "c1", "note", '{"text": "x"}'), ("error", "c1", "note")]


def raise_at_once(error: BaseException) -> Callable[[Call], Any]:
    def stream(call: Call) -> AsyncIterator[Part]:
        raise error

    return stream


def raise_in_a_coroutine(error: BaseException) -> Callable[[Call], Any]:
    async def stream(call: Call) -> AsyncIterator[Part]:
        raise error

    return stream


def raise_in_the_iterator(error: BaseException) -> Callable[[Call], Any]:
    async def stream(call: Call) -> AsyncIterator[Part]:
        yield parts.keep_alive()
        raise error

    return stream


def yield_as_a_part(error: BaseException) -> Callable[[Call], Any]:
    async def stream(call: Call) -> AsyncIterator[Part]:
        yield to_error_part(error) if isinstance(error, ModelFailed) else parts.error(error)

    return stream


FAILING = [raise_at_once, raise_in_a_coroutine, raise_in_the_iterator, yield_as_a_part]


@pytest.mark.parametrize("fail", FAILING)
@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (ConnectionResetError("reset by peer"), "timeout", True),
        (RuntimeError("received status 503 from upstream"), "timeout", True),
        (ValueError("what?"), "unknown", False),
        (ModelFailed("No key.", kind="missing_key"), "missing_key", False),
        (ModelFailed("Slow down.", kind="rate_limit", status=429, retry_after_s=7.0), "rate_limit", True),
    ],
    ids=["reset", "503", "unknown", "missing_key", "rate_limit"],
)
@pytest.mark.may_log("the model odd:odd raised an error")
async def test_an_error_is_the_same_wherever_it_comes_from(
    harness: LoopHarness, fail: Callable[[BaseException], Any], error: Exception, kind: str, *, retryable: bool
) -> None:
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(OddModel(fail(error)), retry=ONCE))
    failure = caught.value
    assert (failure.kind, failure.retryable, failure.provider) == (kind, retryable, "odd")
    if isinstance(error, ModelFailed):
        assert (failure.message, failure.status) == (error.message, error.status)
        assert failure.retry_after_s == error.retry_after_s


async def test_an_error_part_is_not_published_and_what_came_before_is_kept(harness: LoopHarness) -> None:
    model = ScriptedModel([[HELLO, parts.error(ConnectionResetError()), parts.text_delta("1", " more")]])
    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(model, retry=ONCE))
    assert harness.published == [HELLO]
    assert harness.only.blocks == [Text("Hello")]


# --- odd iterators -----------------------------------------------------------------------


async def test_stream_may_be_a_coroutine(harness: LoopHarness) -> None:
    async def stream(call: Call) -> AsyncIterator[Part]:
        await asyncio.sleep(0)
        return ScriptedModel([[HELLO, parts.finish()]]).stream(call)

    await harness.start(OddModel(stream))
    assert harness.only.blocks == [Text("Hello")]


async def test_a_coroutine_that_never_gives_a_stream_is_stopped_like_any_read(harness: LoopHarness) -> None:
    begun = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        begun.set()
        await wait_for_ever()
        raise AssertionError

    task = harness.start(OddModel(stream))
    await begun.wait()
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)


@pytest.mark.parametrize("thing", [None, 42, [HELLO, parts.finish()]])
@pytest.mark.may_log("the model odd:odd raised an error")
async def test_a_stream_that_is_no_async_iterator_is_a_clear_failure(harness: LoopHarness, thing: Any) -> None:
    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(OddModel(lambda call: thing)))
    assert harness.retries == []


class BareIterator:
    """Only what the protocol asks for: no `aclose`."""

    def __init__(self, *said: Part) -> None:
        self._said = list(said)

    def __aiter__(self) -> BareIterator:
        return self

    async def __anext__(self) -> Part:
        if not self._said:
            await wait_for_ever()
        return self._said.pop(0)


async def test_an_iterator_without_aclose_is_read_to_its_finish(harness: LoopHarness) -> None:
    await harness.start(OddModel(lambda call: BareIterator(HELLO, parts.finish())))
    assert harness.only.blocks == [Text("Hello")]


async def test_an_iterator_without_aclose_is_stopped(harness: LoopHarness) -> None:
    await harness.interrupt_at(TextDelta, OddModel(lambda call: BareIterator(HELLO)))
    assert harness.only.blocks == [Text("Hello")]


class ClosingIterator(BareIterator):
    """Counts how often it is closed, and does then what it is told."""

    def __init__(self, *said: Part, on_close: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(*said)
        self.closed = 0
        self._on_close = on_close

    async def aclose(self) -> None:
        self.closed += 1
        if self._on_close is not None:
            await self._on_close()


async def test_the_iterator_is_closed_exactly_once(harness: LoopHarness) -> None:
    finished, stopped = ClosingIterator(HELLO, parts.finish()), ClosingIterator(HELLO)
    await harness.start(OddModel(lambda call: finished))
    assert finished.closed == 1
    await harness.interrupt_at(TextDelta, OddModel(lambda call: stopped), times=2)
    assert stopped.closed == 1


async def raise_on_close() -> None:
    raise RuntimeError("the socket is gone")


async def cancel_on_close() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("on_close", [raise_on_close, cancel_on_close])
async def test_an_error_of_aclose_changes_nothing(
    harness: LoopHarness, on_close: Callable[[], Awaitable[None]]
) -> None:
    result = await harness.start(OddModel(lambda call: ClosingIterator(HELLO, parts.finish(), on_close=on_close)))
    assert result.reason == "stop"
    assert harness.only.blocks == [Text("Hello")]


@pytest.mark.parametrize("on_close", [raise_on_close, cancel_on_close])
async def test_an_error_of_aclose_after_a_stop_changes_nothing(
    harness: LoopHarness, on_close: Callable[[], Awaitable[None]]
) -> None:
    await harness.interrupt_at(TextDelta, OddModel(lambda call: ClosingIterator(HELLO, on_close=on_close)))
    assert harness.only.blocks == [Text("Hello")]


async def test_a_generator_that_goes_on_talking_when_it_is_closed_changes_nothing(harness: LoopHarness) -> None:
    async def stream(call: Call) -> AsyncIterator[Part]:
        try:
            yield HELLO
            yield parts.finish()
        finally:
            yield parts.text_delta("1", " and another thing")

    result = await harness.start(ScriptedModel([stream]))
    assert result.reason == "stop"
    assert harness.only.blocks == [Text("Hello")]


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_an_aclose_that_hangs_costs_a_complete_reply_no_more_than_the_grace_time(harness: LoopHarness) -> None:
    let_go = asyncio.Event()

    async def hang() -> None:
        await let_go.wait()

    task = harness.start(OddModel(lambda call: ClosingIterator(HELLO, parts.finish(), on_close=hang)))
    await harness.heard(TextDelta)
    await harness.clock.advance(5)
    result = await task
    assert result.reason == "stop"
    assert not harness.only.partial
    let_go.set()
    await harness.clock.advance(0)


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_an_aclose_that_hangs_does_not_hold_up_a_stop(harness: LoopHarness) -> None:
    let_go = asyncio.Event()

    async def hang() -> None:
        await let_go.wait()

    task = harness.start(OddModel(lambda call: ClosingIterator(HELLO, on_close=hang)))
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    await harness.clock.advance(5)
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]
    let_go.set()
    await harness.clock.advance(0)


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_a_stop_while_a_complete_reply_is_being_closed_keeps_it_whole(harness: LoopHarness) -> None:
    closing = asyncio.Event()

    async def hang() -> None:
        closing.set()
        await wait_for_ever()

    task = harness.start(OddModel(lambda call: ClosingIterator(HELLO, parts.finish(), on_close=hang)))
    await closing.wait()
    harness.scope.interrupt()
    await harness.clock.advance(5)
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]
    (left,) = asyncio.all_tasks() - {asyncio.current_task()}
    left.cancel()
    await asyncio.wait([left])


# --- odd reactions to a stop -------------------------------------------------------------


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_a_model_that_ignores_cancellation_is_abandoned_after_the_grace_time(harness: LoopHarness) -> None:
    let_go = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        yield HELLO
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        yield parts.text_delta("1", " from the grave")
        yield parts.finish()

    task = harness.start(ScriptedModel([stream]))
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    await harness.clock.advance(4.9)
    assert not task.done()
    await harness.clock.advance(0.1)
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]
    let_go.set()
    await harness.clock.advance(0)
    assert harness.published == [HELLO], "nobody listens to an abandoned model"


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_a_model_that_ignores_cancellation_does_not_hold_up_a_shutdown(harness: LoopHarness) -> None:
    let_go = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        yield HELLO
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    task = harness.start(ScriptedModel([stream]))
    await harness.heard(TextDelta)
    harness.scope.shutdown()
    await harness.clock.advance(5)
    assert isinstance(await task, TurnShutDown)
    let_go.set()
    await harness.clock.advance(0)


async def test_the_one_answer_to_a_stop_is_taken_and_no_more(harness: LoopHarness) -> None:
    async def stream(call: Call) -> AsyncIterator[Part]:
        yield HELLO
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            yield parts.text_delta("1", ", last words")
            yield parts.text_delta("1", ", and more")

    await harness.interrupt_at(TextDelta, ScriptedModel([stream]))
    assert harness.only.blocks == [Text("Hello, last words")] == harness.finalized(harness.only)


async def test_the_pending_read_is_cancelled_once_however_often_one_presses_stop(harness: LoopHarness) -> None:
    cancellations = 0
    let_go = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        nonlocal cancellations
        yield HELLO
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                cancellations += 1

    task = harness.start(ScriptedModel([stream]))
    await harness.heard(TextDelta)
    for press in (harness.scope.interrupt, harness.scope.interrupt, harness.scope.shutdown, harness.scope.interrupt):
        press()
        await harness.clock.advance(1)
    let_go.set()
    assert isinstance(await task, TurnInterrupted)
    assert cancellations == 1


async def test_a_finish_that_answers_a_stop_makes_the_reply_complete(harness: LoopHarness) -> None:
    async def stream(call: Call) -> AsyncIterator[Part]:
        yield HELLO
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            yield parts.finish("stop", usage=Usage(output_tokens=5))

    await harness.interrupt_at(TextDelta, ScriptedModel([stream]))
    assert harness.only.usage == Usage(output_tokens=5)
    assert not harness.only.partial, "content that is complete is kept as complete"


# --- floods ------------------------------------------------------------------------------


async def test_ten_thousand_parts_without_a_pause_leave_room_for_a_stop(harness: LoopHarness) -> None:
    said = 0

    async def stream(call: Call) -> AsyncIterator[Part]:
        nonlocal said
        for _ in range(10_000):
            said += 1
            yield parts.text_delta("1", "x")
        yield parts.finish()

    await harness.interrupt_at(TextDelta, ScriptedModel([stream]))
    assert said < 10_000
    assert harness.only.blocks == [Text("x" * harness.count(TextDelta))]


async def test_ten_thousand_keep_alives_without_a_pause_leave_room_for_a_stop(harness: LoopHarness) -> None:
    said = 0

    async def stream(call: Call) -> AsyncIterator[Part]:
        nonlocal said
        yield HELLO
        for _ in range(10_000):
            said += 1
            yield parts.keep_alive()
        yield parts.finish()

    await harness.interrupt_at(TextDelta, ScriptedModel([stream]))
    assert said < 10_000


async def test_ten_thousand_parts_all_arrive(harness: LoopHarness) -> None:
    model = ScriptedModel([[*(parts.text_delta("1", str(number % 10)) for number in range(10_000)), parts.finish()]])
    await harness.start(model)
    assert harness.only.blocks == [Text("0123456789" * 1000)]


# --- odd ids and characters --------------------------------------------------------------


async def test_two_calls_under_one_id_both_run_and_have_a_result_each(harness: LoopHarness) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_call("c", "note", '{"text": "one"}'),
                parts.tool_call("c", "note", '{"text": "two"}'),
                parts.finish("tool_calls"),
            ],
            [HELLO, parts.finish()],
        ]
    )
    await harness.start(model, tools=[note])
    calls = [block for block in harness.saved[0].blocks if isinstance(block, ToolCall)]
    results = [block for block in harness.saved[0].blocks if isinstance(block, ToolResult)]
    assert [call.id for call in calls] == [result.call_id for result in results]
    assert len({call.id for call in calls}) == 2
    assert [result.output for result in results] == ["noted one", "noted two"]


async def test_two_streamed_calls_under_one_id_stay_two(harness: LoopHarness) -> None:
    """Some compatible servers give every call of a reply the same id, or none."""

    def stream_call(text: str) -> list[Part]:
        return [
            ToolInputStart(id="", name="note"),
            ToolInputDelta("", f'{{"text": "{text}"}}'),
            ToolInputEnd(""),
        ]

    model = ScriptedModel(
        [[*stream_call("one"), *stream_call("two"), parts.finish("tool_calls")], [HELLO, parts.finish()]]
    )
    await harness.start(model, tools=[note])
    outputs = [block.output for block in harness.saved[0].blocks if isinstance(block, ToolResult)]
    assert outputs == ["noted one", "noted two"]


async def test_a_call_id_that_comes_again_in_the_next_step_is_another_call(harness: LoopHarness) -> None:
    def ask(text: str) -> list[Any]:
        return [parts.tool_call("c", "note", f'{{"text": "{text}"}}'), parts.finish("tool_calls")]

    model = ScriptedModel([ask("one"), ask("two"), [HELLO, parts.finish()]])
    await harness.start(model, tools=[note])
    assert [step.blocks[-1].output for step in harness.saved[:2]] == ["noted one", "noted two"]  # type: ignore[union-attr]


async def test_a_text_id_that_is_opened_again_is_another_block(harness: LoopHarness) -> None:
    said: list[Part] = [HELLO, parts.text_end("1"), parts.reasoning_delta("r", "hm"), parts.text_delta("1", "again")]
    await harness.start(ScriptedModel([[*said, parts.finish()]]))
    assert [block.text for block in harness.only.blocks if isinstance(block, Text)] == ["Hello", "again"]


HALVES = [("\ud83d", "\ude00"), ("a\ud83d", "\ude00b")]


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("delta", [parts.text_delta, parts.reasoning_delta, parts.tool_input_delta])
async def test_a_surrogate_pair_that_was_cut_apart_is_joined(
    harness: LoopHarness, delta: Callable[[str, str], Part], halves: tuple[str, str]
) -> None:
    said = [delta("1", half) for half in halves]
    await harness.start(ScriptedModel([[*said, parts.finish()], [parts.finish()]]))
    block = harness.saved[0].blocks[0]
    kept = block.arguments if isinstance(block, ToolCall) else block.text
    assert kept == "".join(halves).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    assert all(encode(part) for part in harness.published)


async def test_pairs_of_two_blocks_that_are_cut_at_once_are_not_mixed(harness: LoopHarness) -> None:
    said: list[Part] = [
        parts.text_delta("1", "\ud83d"),
        parts.reasoning_delta("1", "\ud83d"),
        parts.text_delta("1", "\ude00"),
        parts.reasoning_delta("1", "\ude01"),
    ]
    await harness.start(ScriptedModel([[*said, parts.finish()]]))
    kept = {type(block): block.text for block in harness.only.blocks if isinstance(block, Text | Reasoning)}
    assert kept == {Text: "😀", Reasoning: "😁"}


@pytest.mark.parametrize("lone", [chr(0xD83D), chr(0xDE00), chr(0xDE00) + chr(0xD83D)])
async def test_a_half_that_stays_alone_is_replaced(harness: LoopHarness, lone: str) -> None:
    await harness.start(ScriptedModel([[parts.text_delta("1", f"a{lone}"), parts.finish()]]))
    assert harness.only.blocks == [Text("a" + "\ufffd" * len(lone))] == harness.finalized(harness.only)


async def test_half_a_pair_at_a_stop_is_published_before_it_is_saved(harness: LoopHarness) -> None:
    await harness.interrupt_at(
        TextDelta, ScriptedModel([[HELLO, parts.text_delta("1", " \ud83d"), parts.hang()]]), times=2
    )
    assert harness.only.blocks == [Text("Hello \ufffd")] == harness.finalized(harness.only)


# --- those who listen --------------------------------------------------------------------


async def test_an_error_of_publish_ends_the_run_with_it_and_keeps_what_was_published(harness: LoopHarness) -> None:
    def publish(part: Part) -> None:
        if part != HELLO:
            raise OSError("journal is closed")
        harness.publish(part)

    with pytest.raises(OSError, match="journal is closed"):
        await raise_failure(
            harness.start(ScriptedModel([[HELLO, parts.text_delta("1", "!"), parts.finish()]]), publish=publish)
        )
    assert harness.only.blocks == [Text("Hello")] == harness.finalized(harness.only)
    assert harness.retries == [], "the model did nothing wrong"


async def record_only_starts(part: Part, call: ToolCallRecord) -> None:
    if isinstance(part, ToolResult):
        raise OSError("journal is closed")


@pytest.mark.parametrize("who", ["publish", "ledger"])
async def test_a_tool_that_ran_is_never_reported_as_not_run(harness: LoopHarness, who: str) -> None:
    """P5: its result could not be recorded, so its outcome is unknown; a model told otherwise would pay twice."""
    paid = []

    @tool
    async def pay() -> str:
        paid.append("once")
        return "paid"

    def publish(part: Part) -> None:
        if who == "publish" and isinstance(part, ToolResult):
            raise OSError("journal is closed")
        harness.publish(part)

    model = ScriptedModel([[parts.tool_call("c1", "pay", "{}"), parts.finish("tool_calls")]])
    record = record_only_starts if who == "ledger" else None
    with pytest.raises(OSError, match="journal is closed"):
        await raise_failure(harness.start(model, tools=[pay], publish=publish, record=record))
    assert paid == ["once"]
    for step in harness.saved:
        answer = step.blocks[-1]
        assert isinstance(answer, ToolResult)
        assert "not run" not in answer.output
