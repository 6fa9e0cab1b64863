"""Stopping a turn: what is kept in each phase (rule 1.5), and which cause it was (1.6).

S1–S3, S6–S8, S13–S15, S19 and S23–S25 are here, as far as the loop alone can show them.

Every test stops at a named moment; a stop at every other moment is test_stop_everywhere.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from indelible import tool
from indelible.content import (
    Block,
    Finish,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolInputDelta,
    ToolResult,
    ToolStarted,
)
from indelible.errors import Interrupted, ModelFailed
from indelible.loop import CancelScope, Cause, TurnEnd, TurnInterrupted, TurnLeaseLost, TurnShutDown
from indelible.metrics import NoMetrics
from indelible.models import Call
from indelible.testing import ManualClock, ScriptedModel, parts

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness
from tests.support.timing import untimed

Spell = Callable[[Sequence[Block]], list[tuple[str, ...]]]

HELLO: list[Part] = [parts.text_start("1"), parts.text_delta("1", "Hel"), parts.text_delta("1", "lo")]
ASK: list[Part] = [parts.tool_call("c1", "blocked", "{}"), parts.finish("tool_calls")]
ASK_BOTH: list[Part] = [
    parts.tool_call("c1", "blocked", "{}"),
    parts.tool_call("c2", "quick", "{}"),
    parts.finish("tool_calls"),
]


HELLO_AND_ASK: list[Part] = [*HELLO, parts.tool_call("c1", "quick", "{}"), parts.finish("tool_calls")]
ALL_OF_IT = [("text", "Hello"), ("call", "c1", "quick", "{}"), ("result", "c1", "quick")]


async def wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


@tool
async def blocked() -> str:
    await wait_for_ever()
    return "never"


@tool
async def quick() -> str:
    return "quick result"


def hang_after(*said: Part) -> ScriptedModel:
    return ScriptedModel([[*said, parts.hang()]])


# --- a partial reply survives a stop -----------------------------------------------------


async def test_s1_a_stop_that_the_provider_reports_as_a_cancellation_keeps_the_text(harness: LoopHarness) -> None:
    await harness.interrupt_at(TextDelta, hang_after(*HELLO), times=2)
    assert harness.only.blocks == [Text("Hello")] == harness.finalized(harness.only)
    assert harness.only.partial
    assert harness.only.reason == "interrupted"


async def answer_the_stop_with(error: type[BaseException] | BaseException | None) -> AsyncIterator[Part]:
    for part in HELLO:
        yield part
    try:
        await wait_for_ever()
    except asyncio.CancelledError:
        if error is not None:
            raise error from None


async def test_s2_a_provider_that_passes_our_interrupt_on_keeps_the_text(harness: LoopHarness) -> None:
    await harness.interrupt_at(TextDelta, ScriptedModel([lambda call: answer_the_stop_with(Interrupted)]), times=2)
    assert harness.only.blocks == [Text("Hello")]
    assert harness.only.partial


async def test_s3_a_stream_that_just_ends_on_a_stop_keeps_the_text(harness: LoopHarness) -> None:
    await harness.interrupt_at(TextDelta, ScriptedModel([lambda call: answer_the_stop_with(None)]), times=2)
    assert harness.only.blocks == [Text("Hello")]
    assert harness.only.partial


@pytest.mark.parametrize("answer", [asyncio.CancelledError, Interrupted, ConnectionResetError, None])
async def test_s1_s2_s3_hold_when_the_stop_comes_from_inside_the_stream(
    harness: LoopHarness, answer: type[BaseException] | None
) -> None:
    async def stream(call: Call) -> AsyncIterator[Part]:
        for part in HELLO:
            yield part
        harness.scope.interrupt()
        if answer is not None:
            raise answer

    assert isinstance(await harness.start(ScriptedModel([stream])), TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]
    assert harness.only.partial


async def test_a_part_that_follows_a_stop_from_inside_the_stream_is_published_whole(harness: LoopHarness) -> None:
    async def stream(call: Call) -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Hel")
        harness.scope.interrupt()
        yield parts.text_delta("1", "lo")

    async def publish(part: Part) -> None:
        await asyncio.sleep(0)
        harness.publish(part)

    assert isinstance(await harness.start(ScriptedModel([stream]), publish=publish), TurnInterrupted)
    assert harness.only.blocks == harness.finalized(harness.only)
    assert harness.only.blocks[0] in (Text("Hel"), Text("Hello"))


async def test_s6_what_the_page_showed_is_what_was_saved(harness: LoopHarness) -> None:
    """A half tag is held back from the page, and comes out before it is saved."""
    await harness.interrupt_at(TextDelta, hang_after(parts.text_delta("1", "Hello"), parts.text_delta("1", " <thi")))
    shown = "".join(part.delta for part in harness.published if isinstance(part, TextDelta))
    assert shown == "Hello <thi"
    assert harness.only.blocks == [Text(shown)]


async def test_s7_two_chunks_a_hang_and_a_stop_give_an_assistant_message(harness: LoopHarness) -> None:
    await harness.interrupt_at(TextDelta, hang_after(*HELLO))
    (message,) = harness.only.messages()
    assert (message.role, message.text, message.partial) == ("assistant", "Hello", True)


@pytest.mark.may_log("the reply could not be saved after the stop")
async def test_s8_a_failing_save_after_a_stop_is_reported_and_the_run_is_still_interrupted(
    harness: LoopHarness,
) -> None:
    error = OSError("disk full")
    harness.answers = [error]
    await harness.interrupt_at(TextDelta, hang_after(*HELLO))
    assert harness.save_errors == [error]
    assert len(harness.saved) == 1


@pytest.mark.may_log("the reply could not be saved after the stop")
async def test_s8_holds_when_nobody_wants_to_know(harness: LoopHarness) -> None:
    harness.answers = [OSError("disk full")]
    await harness.interrupt_at(TextDelta, hang_after(*HELLO), report_unsaved=None)


@pytest.mark.may_log("report_unsaved failed", "the reply could not be saved after the stop")
async def test_s8_holds_when_the_listener_fails_too(harness: LoopHarness) -> None:
    async def fail(error: BaseException) -> None:
        raise RuntimeError("no line to the monitoring either") from error

    harness.answers = [OSError("disk full")]
    await harness.interrupt_at(TextDelta, hang_after(*HELLO), report_unsaved=fail)


# --- half-written calls ------------------------------------------------------------------

HALF_A_CALL: tuple[Part, ...] = (
    parts.tool_input_start("c1", "read_file"),
    parts.tool_input_delta("c1", '{"path": "/et'),
    parts.text_start("1"),
    parts.text_delta("1", "Reading"),
)


async def stop_in_half_a_call(harness: LoopHarness) -> None:
    await harness.interrupt_at(TextDelta, hang_after(*HALF_A_CALL))


async def test_s13_a_stop_in_tool_arguments_keeps_the_text_and_saves_on_a_live_scope(harness: LoopHarness) -> None:
    await stop_in_half_a_call(harness)
    assert Text("Reading") in harness.only.blocks
    assert harness.only.partial
    assert harness.only.blocks == harness.finalized(harness.only)


async def test_s14_a_stop_in_tool_arguments_keeps_the_call_with_its_raw_arguments(harness: LoopHarness) -> None:
    await stop_in_half_a_call(harness)
    assert harness.only.blocks[0] == ToolCall(id="c1", name="read_file", arguments='{"path": "/et')


async def test_s15_a_stop_in_tool_arguments_answers_the_call_with_an_error(harness: LoopHarness) -> None:
    await stop_in_half_a_call(harness)
    result = harness.only.blocks[-1]
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.name, result.is_error) == ("c1", "read_file", True)
    assert "interrupted" in result.output.lower()
    assert [message.role for message in harness.only.messages()] == ["assistant", "tool"]


# --- the table of rule 1.5 ---------------------------------------------------------------


async def test_stop_before_the_first_part_keeps_nothing(harness: LoopHarness) -> None:
    opened = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        opened.set()
        await wait_for_ever()
        yield parts.finish()

    task = harness.start(ScriptedModel([stream]))
    await opened.wait()
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)
    assert harness.saved == []
    assert harness.published == []


async def test_stop_before_the_run_asks_no_model(harness: LoopHarness) -> None:
    harness.scope.interrupt()
    model = ScriptedModel()
    assert isinstance(await harness.start(model), TurnInterrupted)
    assert model.calls == []
    assert harness.saved == []


@pytest.mark.parametrize("hook", ["open_attempt", "prepare_messages", "prepare_tools"])
async def test_stop_inside_a_plain_hook_asks_no_model(harness: LoopHarness, hook: str) -> None:
    def stop(*given: Any) -> Any:
        harness.scope.interrupt()
        return given[0]

    model = ScriptedModel()
    assert isinstance(await harness.start(model, **{hook: stop}), TurnInterrupted)
    assert model.calls == []
    assert harness.saved == []


@pytest.mark.parametrize("hook", ["prepare_messages", "prepare_tools"])
async def test_stop_cuts_a_preparation_that_hangs(harness: LoopHarness, hook: str) -> None:
    begun = asyncio.Event()

    async def hang(given: Any) -> None:
        begun.set()
        await wait_for_ever()

    task = harness.start(ScriptedModel(), **{hook: hang})
    await begun.wait()
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_stop_abandons_a_preparation_that_ignores_it(harness: LoopHarness) -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    async def ignore(messages: list[Message]) -> list[Message]:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return messages

    task = harness.start(ScriptedModel(), prepare_messages=ignore)
    await begun.wait()
    harness.scope.interrupt()
    await harness.clock.advance(5)
    assert isinstance(await task, TurnInterrupted)
    let_go.set()
    await harness.clock.advance(0)


async def test_stop_before_an_async_hook_begins_leaves_no_coroutine_behind(harness: LoopHarness) -> None:
    """`-W error` makes a coroutine that nobody awaited a failure of this test."""

    def stop(tools: Any) -> Any:
        harness.scope.interrupt()
        return tools

    async def prepare(messages: list[Message]) -> list[Message]:
        return messages

    assert isinstance(
        await harness.start(ScriptedModel(), prepare_tools=stop, prepare_messages=prepare), TurnInterrupted
    )


async def test_stop_in_text_keeps_the_text_so_far(harness: LoopHarness) -> None:
    await harness.interrupt_at(TextDelta, hang_after(*HELLO))
    assert harness.only.blocks == [Text("Hello")]


async def test_stop_in_reasoning_ends_it_at_the_time_of_the_stop(harness: LoopHarness) -> None:
    began_at = harness.clock.now()
    task = harness.start(hang_after(parts.reasoning_start("r"), parts.reasoning_delta("r", "Let me see")))
    await harness.heard(ReasoningDelta)
    await harness.clock.advance(3)
    stopped_at = harness.clock.now()
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Reasoning(text="Let me see", started_at=began_at, ended_at=stopped_at)]
    assert not harness.only.partial, "thinking alone is no visible reply"
    assert harness.only.reason == "interrupted"


async def test_stop_in_reasoning_ends_it_when_the_stop_came_and_not_when_the_model_let_go(harness: LoopHarness) -> None:
    let_go = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        yield parts.reasoning_delta("r", "Hm")
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            await let_go.wait()

    task = harness.start(ScriptedModel([stream]))
    await harness.heard(ReasoningDelta)
    stopped_at = harness.clock.now()
    harness.scope.interrupt()
    await harness.clock.advance(4)
    let_go.set()
    assert isinstance(await task, TurnInterrupted)
    (reasoning,) = harness.only.blocks
    assert isinstance(reasoning, Reasoning)
    assert reasoning.ended_at == stopped_at


async def test_stop_drops_empty_unsigned_reasoning_and_keeps_signed(harness: LoopHarness) -> None:
    await harness.interrupt_at(
        TextDelta,
        hang_after(
            parts.reasoning_start("empty"),
            parts.reasoning_start("signed", signature="sig"),
            parts.text_delta("1", "So"),
        ),
    )
    signed, text = harness.only.blocks
    assert isinstance(signed, Reasoning)
    assert signed.signature == "sig"
    assert text == Text("So")


async def test_stop_in_nothing_but_empty_reasoning_keeps_nothing(harness: LoopHarness) -> None:
    await harness.interrupt_at(ReasoningDelta, hang_after(parts.reasoning_start("r"), parts.reasoning_delta("r", "")))
    assert harness.saved == []


SEARCH: list[list[Part]] = [
    [parts.tool_input_start("s1", "web_search", provider_executed=True), parts.tool_input_delta("s1", '{"q": "rai')],
    [
        parts.tool_call("s1", "web_search", '{"q": "rain"}', provider_executed=True),
        parts.reasoning_delta("r", "idle"),
    ],
]


@pytest.mark.parametrize("said", SEARCH, ids=["in its arguments", "while it runs"])
@pytest.mark.parametrize(("provider", "kept"), [("anthropic", False), ("openai", True)])
async def test_stop_in_provider_executed_work_never_answers_it_for_the_provider(
    harness: LoopHarness, said: list[Part], provider: str, kept: bool
) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Looking."), *said, parts.hang()]], provider=provider)
    await harness.interrupt_at(type(said[-1]), model)
    assert not any(isinstance(block, ToolResult) for block in harness.only.blocks)
    assert any(isinstance(block, ToolCall) for block in harness.only.blocks) is kept
    assert harness.only.blocks[0] == Text("Looking.")


async def test_stop_after_a_provider_executed_result_keeps_both_in_place(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_call("s1", "web_search", "{}", provider_executed=True),
                parts.tool_result("s1", "web_search", {"pages": 3}, provider_executed=True),
                parts.text_delta("1", "Three"),
                parts.hang(),
            ]
        ],
        provider="anthropic",
    )
    await harness.interrupt_at(TextDelta, model)
    assert spell(harness.only.blocks) == [
        ("call", "s1", "web_search", "{}"),
        ("result", "s1", "web_search"),
        ("text", "Three"),
    ]


async def test_stop_between_stream_and_tools_answers_every_call(harness: LoopHarness, spell: Spell) -> None:
    started = []

    def publish(part: Part) -> None:
        harness.publish(part)
        if isinstance(part, Finish):
            harness.scope.interrupt()

    @tool
    async def note() -> None:
        started.append("note")

    model = ScriptedModel(
        [[*HELLO, parts.tool_call("c1", "note", "{}"), parts.tool_call("c2", "note", "{}"), parts.finish("tool_calls")]]
    )
    assert isinstance(await harness.start(model, tools=[note], publish=publish), TurnInterrupted)
    assert started == []
    assert spell(harness.only.blocks) == [
        ("text", "Hello"),
        ("call", "c1", "note", "{}"),
        ("call", "c2", "note", "{}"),
        ("error", "c1", "note"),
        ("error", "c2", "note"),
    ]
    assert harness.only.reason == "interrupted"


async def test_stop_while_tools_run_keeps_the_results_that_came(harness: LoopHarness, spell: Spell) -> None:
    await harness.interrupt_at(ToolResult, ScriptedModel([ASK_BOTH]), tools=[blocked, quick])
    assert spell(harness.only.blocks)[2:] == [("error", "c1", "blocked"), ("result", "c2", "quick")]
    assert harness.only.blocks == harness.finalized(harness.only)
    assert untimed(harness.only.blocks)[-1] == ToolResult(call_id="c2", name="quick", output="quick result")


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_stop_abandons_a_tool_that_ignores_it_after_the_grace_time(harness: LoopHarness) -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    task = harness.start(
        ScriptedModel([[parts.tool_call("c1", "stubborn", "{}"), parts.finish("tool_calls")]]), tools=[stubborn]
    )
    await begun.wait()
    harness.scope.interrupt()
    await harness.clock.advance(4.9)
    assert not task.done()
    await harness.clock.advance(0.1)
    assert isinstance(await task, TurnInterrupted)
    result = harness.only.blocks[-1]
    assert isinstance(result, ToolResult)
    assert result.is_error
    assert "abandoned" in result.output
    said = len(harness.published)
    let_go.set()
    await harness.clock.advance(0)
    assert len(harness.published) == said, "nobody listens to an abandoned tool"


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_stop_abandons_a_tool_that_blocks_in_a_thread(harness: LoopHarness) -> None:
    begun, let_go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool
    def native() -> str:
        loop.call_soon_threadsafe(begun.set)
        let_go.wait()
        return "too late"

    task = harness.start(
        ScriptedModel([[parts.tool_call("c1", "native", "{}"), parts.finish("tool_calls")]]), tools=[native]
    )
    await begun.wait()
    harness.scope.interrupt()
    await harness.clock.advance(5)
    assert isinstance(await task, TurnInterrupted)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    let_go.set()
    await asyncio.wait(left)
    result = harness.only.blocks[-1]
    assert isinstance(result, ToolResult)
    assert "abandoned" in result.output


async def test_stop_by_the_tool_itself_keeps_what_it_returned(harness: LoopHarness) -> None:
    @tool
    async def stop_me() -> str:
        harness.scope.interrupt()
        return "done"

    model = ScriptedModel([[parts.tool_call("c1", "stop_me", "{}"), parts.finish("tool_calls")]])
    assert isinstance(await harness.start(model, tools=[stop_me]), TurnInterrupted)
    assert untimed(harness.only.blocks)[-1] == ToolResult(call_id="c1", name="stop_me", output="done")


async def test_stop_in_the_last_result_saves_everything_once(harness: LoopHarness, spell: Spell) -> None:
    def publish(part: Part) -> None:
        harness.publish(part)
        if isinstance(part, ToolResult):
            harness.scope.interrupt()

    model = ScriptedModel([HELLO_AND_ASK])
    assert isinstance(await harness.start(model, tools=[quick], publish=publish), TurnInterrupted)
    assert spell(harness.only.blocks) == ALL_OF_IT


async def test_stop_answers_the_clients_calls_too(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_call("c1", "blocked", "{}"),
                parts.tool_call("c2", "pick_file", "{}"),
                parts.finish("tool_calls"),
            ]
        ]
    )
    await harness.interrupt_at(ToolStarted, model, tools=[blocked], client_tools=["pick_file"])
    assert spell(harness.only.blocks)[2:] == [("error", "c1", "blocked"), ("error", "c2", "pick_file")]
    assert harness.only.awaiting == []


@pytest.mark.parametrize("keep_failed", [False, True])
async def test_stop_in_a_retry_wait_keeps_the_partial_of_the_failed_attempt(
    harness: LoopHarness, keep_failed: bool
) -> None:
    task = harness.start(ScriptedModel([[*HELLO, ConnectionResetError()]]), keep_failed=keep_failed)
    await harness.sleeping.wait()
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]
    assert harness.only.partial
    assert harness.only.reason == ("failed" if keep_failed else "interrupted")


async def test_stop_between_a_failure_and_its_wait_leaves_no_coroutine_behind(harness: LoopHarness) -> None:
    """The stop lands after `schedule_retry` returned and before the wait's own task first ran."""

    def stop_soon(event: object) -> None:
        asyncio.get_running_loop().call_soon(harness.scope.interrupt)

    assert isinstance(
        await harness.start(ScriptedModel([[*HELLO, ConnectionResetError()]]), schedule_retry=stop_soon),
        TurnInterrupted,
    )
    assert harness.only.blocks == [Text("Hello")]


async def test_stop_in_the_second_step_keeps_that_step_only(harness: LoopHarness) -> None:
    model = ScriptedModel([[parts.tool_call("c1", "quick", "{}"), parts.finish("tool_calls")], [*HELLO, parts.hang()]])
    await harness.interrupt_at(TextDelta, model, tools=[quick])
    first, second = harness.saved
    assert (first.index, first.partial, first.last) == (1, False, False)
    assert (second.index, second.blocks, second.partial) == (2, [Text("Hello")], True)


async def test_stop_waits_for_a_publish_that_has_begun(harness: LoopHarness) -> None:
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def publish(part: Part) -> None:
        begun.set()
        await may_go_on.wait()
        harness.publish(part)

    task = harness.start(hang_after(parts.text_delta("1", "Hello")), publish=publish)
    await begun.wait()
    harness.scope.interrupt()
    await harness.clock.advance(1000)
    assert not task.done()
    may_go_on.set()
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")] == harness.finalized(harness.only)


async def test_stop_from_another_thread_comes_through(harness: LoopHarness) -> None:
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    await asyncio.to_thread(harness.scope.interrupt)
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]


# --- saving under a stop -----------------------------------------------------------------


async def test_s23_text_reasoning_call_and_its_answer_are_all_saved_on_a_live_scope(
    harness: LoopHarness, spell: Spell
) -> None:
    said = [parts.text_delta("1", "Text"), parts.reasoning_delta("r", "Reasoning"), parts.reasoning_end("r"), *ASK]
    await harness.interrupt_at(ToolStarted, ScriptedModel([said]), tools=[blocked])
    assert spell(harness.only.blocks) == [
        ("text", "Text"),
        ("reasoning", "Reasoning"),
        ("call", "c1", "blocked", "{}"),
        ("error", "c1", "blocked"),
    ]


async def test_s24_a_save_that_answers_interrupted_is_made_exactly_once_more(
    harness: LoopHarness, spell: Spell
) -> None:
    harness.answers = [Interrupted()]
    model = ScriptedModel([HELLO_AND_ASK])
    assert isinstance(await harness.start(model, tools=[quick]), TurnInterrupted)
    assert len(harness.saved) == 2
    assert spell(harness.saved[1].blocks) == ALL_OF_IT
    assert harness.cancellations == [0, 0]
    assert harness.save_errors == []


@pytest.mark.may_log("the reply could not be saved after the stop")
async def test_s24_a_save_that_keeps_answering_interrupted_is_reported_after_the_second(harness: LoopHarness) -> None:
    harness.answers = [Interrupted(), Interrupted(), Interrupted()]
    assert isinstance(await harness.start(ScriptedModel([[*HELLO, parts.finish()]])), TurnInterrupted)
    assert len(harness.saved) == 2
    assert len(harness.save_errors) == 1


@pytest.mark.may_log("the reply could not be saved after the stop")
async def test_s24_holds_for_the_save_after_a_stop(harness: LoopHarness) -> None:
    harness.answers = [Interrupted(), Interrupted(), Interrupted()]
    await harness.interrupt_at(TextDelta, hang_after(*HELLO))
    assert len(harness.saved) == 2
    assert len(harness.save_errors) == 1


@pytest.mark.may_log("the reply could not be saved after the stop")
async def test_s24_holds_for_the_save_of_a_failed_attempt(harness: LoopHarness) -> None:
    harness.answers = [Interrupted(), OSError("disk full"), OSError("disk full")]
    assert isinstance(
        await harness.start(ScriptedModel([[*HELLO, ConnectionResetError()]]), keep_failed=True), TurnInterrupted
    )
    assert len(harness.saved) == 2
    assert len(harness.save_errors) == 1


@pytest.mark.may_log("the reply could not be saved after the stop")
async def test_s24_holds_for_a_step_that_another_was_to_follow(harness: LoopHarness, spell: Spell) -> None:
    harness.answers = [Interrupted(), Interrupted(), Interrupted()]
    model = ScriptedModel([HELLO_AND_ASK])
    assert isinstance(await harness.start(model, tools=[quick]), TurnInterrupted)
    assert [spell(step.blocks) for step in harness.saved] == [ALL_OF_IT, ALL_OF_IT]
    assert len(harness.save_errors) == 1


@pytest.mark.may_log("the reply could not be saved after the stop")
async def test_s24_holds_for_the_save_of_a_final_failure(harness: LoopHarness) -> None:
    harness.answers = [Interrupted(), OSError("disk full"), OSError("disk full")]
    assert isinstance(await harness.start(ScriptedModel([[*HELLO, ModelFailed("no", kind="auth")]])), TurnInterrupted)
    assert len(harness.saved) == 2
    assert len(harness.save_errors) == 1


async def test_s24_the_second_save_answers_the_clients_calls(harness: LoopHarness, spell: Spell) -> None:
    harness.answers = [Interrupted()]
    model = ScriptedModel([[parts.tool_call("c1", "pick_file", "{}"), parts.finish("tool_calls")]])
    assert isinstance(await harness.start(model, client_tools=["pick_file"]), TurnInterrupted)
    first, second = harness.saved
    assert first.awaiting == [ToolCall(id="c1", name="pick_file", arguments="{}")]
    assert second.awaiting == []
    assert spell(second.blocks) == [("call", "c1", "pick_file", "{}"), ("error", "c1", "pick_file")]


class StopAtStepEnd(NoMetrics):
    """Metrics that press Stop in the one moment between the last check and the save."""

    def __init__(self, scope: CancelScope) -> None:
        super().__init__()
        self._scope = scope

    def step_ended(self, provider: str, model: str) -> None:
        self._scope.interrupt()


async def test_s25_a_stop_between_the_last_check_and_the_save_loses_nothing(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel([HELLO_AND_ASK])
    assert isinstance(await harness.start(model, tools=[quick], metrics=StopAtStepEnd(harness.scope)), TurnInterrupted)
    assert spell(harness.saved[-1].blocks) == ALL_OF_IT
    assert len(model.calls) == 1


async def test_s25_a_stop_during_the_save_lets_it_finish_and_saves_no_second_time(harness: LoopHarness) -> None:
    harness.answers = [harness.scope.interrupt]
    assert isinstance(await harness.start(ScriptedModel([[*HELLO, parts.finish()]])), TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]
    assert not harness.only.partial


# --- which cause (rule 1.6) --------------------------------------------------------------


async def test_s19_a_server_that_shuts_down_while_a_tool_is_blocked_is_no_interrupt(harness: LoopHarness) -> None:
    server = CancelScope()
    task = harness.start(ScriptedModel([ASK]), tools=[blocked], scope=CancelScope(server))
    await harness.heard(ToolStarted)
    server.shutdown()
    assert isinstance(await task, TurnShutDown)
    assert harness.saved == []


async def test_s19_cancelling_the_task_while_a_tool_is_blocked_is_no_interrupt(harness: LoopHarness) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def watched() -> None:
        begun.set()
        try:
            await wait_for_ever()
        finally:
            ended.set()

    model = ScriptedModel([[parts.tool_call("c1", "watched", "{}"), parts.finish("tool_calls")]])
    task = harness.start(model, tools=[watched])
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert harness.saved == []


async def test_cancelling_the_task_in_text_saves_nothing(harness: LoopHarness) -> None:
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert harness.saved == []
    assert harness.retries == []


async def test_cancelling_the_task_without_a_scope_saves_nothing(harness: LoopHarness) -> None:
    task = harness.start(hang_after(*HELLO), scope=None)
    await harness.heard(TextDelta)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.saved == []


async def test_cancelling_the_task_in_a_retry_wait_saves_nothing(harness: LoopHarness) -> None:
    task = harness.start(ScriptedModel([[*HELLO, ConnectionResetError()]]))
    await harness.sleeping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.saved == []


async def test_cancelling_the_task_during_the_save_lets_it_finish(harness: LoopHarness) -> None:
    begun, may_go_on, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def save_slowly() -> None:
        begun.set()
        await may_go_on.wait()
        finished.set()

    harness.answers = [save_slowly]
    task = harness.start(ScriptedModel([[*HELLO, parts.finish()]]))
    await begun.wait()
    task.cancel()
    await harness.clock.advance(60)
    assert not task.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished.is_set()
    assert len(harness.saved) == 1


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_cancelling_the_task_after_an_interrupt_is_part_of_the_interrupt(
    harness: LoopHarness, cancellations: int
) -> None:
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    for _ in range(cancellations):
        task.cancel()
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]
    assert task.cancelling() == 0


async def test_repeated_cancellations_after_an_interrupt_leave_nothing_pending(harness: LoopHarness) -> None:
    """One cancellation per await: each is a request of its own that the task still counts."""
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def save_slowly() -> None:
        begun.set()
        await may_go_on.wait()

    harness.answers = [save_slowly]
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    await begun.wait()
    for _ in range(3):
        task.cancel()
        await harness.clock.advance(0)
    may_go_on.set()
    assert isinstance(await task, TurnInterrupted)
    assert task.cancelling() == 0
    assert len(harness.saved) == 1


async def test_interrupting_after_the_task_was_cancelled_does_not_turn_a_shutdown_into_a_stop(
    harness: LoopHarness,
) -> None:
    let_go = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Hello")
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            await let_go.wait()
            raise

    task = harness.start(ScriptedModel([stream]))
    await harness.heard(TextDelta)
    task.cancel()
    await harness.clock.advance(0)
    harness.scope.interrupt()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.saved == []


async def test_a_shutdown_ends_with_shutdown_and_saves_nothing(harness: LoopHarness) -> None:
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    harness.scope.shutdown()
    assert isinstance(await task, TurnShutDown)
    assert harness.saved == []


@pytest.mark.parametrize("answer", [asyncio.CancelledError, Interrupted, None])
async def test_a_shutdown_is_a_shutdown_whatever_the_provider_calls_it(
    harness: LoopHarness, answer: type[BaseException] | None
) -> None:
    task = harness.start(ScriptedModel([lambda call: answer_the_stop_with(answer)]))
    await harness.heard(TextDelta, times=2)
    harness.scope.shutdown()
    assert isinstance(await task, TurnShutDown)
    assert harness.saved == []


async def test_a_shutdown_in_a_retry_wait_saves_nothing(harness: LoopHarness) -> None:
    task = harness.start(ScriptedModel([[*HELLO, ConnectionResetError()]]))
    await harness.sleeping.wait()
    harness.scope.shutdown()
    assert isinstance(await task, TurnShutDown)
    assert harness.saved == []


async def test_a_shutdown_during_the_save_lets_it_finish_and_is_still_a_shutdown(harness: LoopHarness) -> None:
    harness.answers = [harness.scope.shutdown]
    assert isinstance(await harness.start(ScriptedModel([[*HELLO, parts.finish()]])), TurnShutDown)
    assert len(harness.saved) == 1


@pytest.mark.parametrize(("stop", "end"), [(Cause.SHUTDOWN, TurnShutDown), (Cause.LEASE_LOST, TurnLeaseLost)])
async def test_a_save_that_answers_interrupted_does_not_outweigh_a_shutdown_or_a_lost_lease(
    harness: LoopHarness, stop: Cause, end: type[TurnEnd]
) -> None:
    def stop_and_answer_interrupted() -> Interrupted:
        harness.scope.cancel(stop)
        return Interrupted()

    harness.answers = [stop_and_answer_interrupted]
    assert isinstance(await harness.start(ScriptedModel([[*HELLO, parts.finish()]])), end)
    assert len(harness.saved) == 1


async def test_the_first_cause_stands(harness: LoopHarness) -> None:
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    harness.scope.shutdown()
    harness.scope.interrupt()
    assert isinstance(await task, TurnShutDown)
    assert harness.saved == []


async def test_a_shutdown_that_follows_an_interrupt_lets_it_save(harness: LoopHarness) -> None:
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    harness.scope.shutdown()
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]


async def test_a_lost_lease_saves_nothing(harness: LoopHarness) -> None:
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    harness.scope.cancel(Cause.LEASE_LOST)
    assert isinstance(await task, TurnLeaseLost)
    assert harness.saved == []


async def test_a_lease_that_is_lost_while_a_stopped_tool_ends_saves_nothing(harness: LoopHarness) -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    @tool
    async def slow_to_stop() -> None:
        begun.set()
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            await let_go.wait()
            raise

    model = ScriptedModel([[parts.tool_call("c1", "slow_to_stop", "{}"), parts.finish("tool_calls")]])
    task = harness.start(model, tools=[slow_to_stop])
    await begun.wait()
    harness.scope.interrupt()
    await harness.clock.advance(1)
    harness.scope.cancel(Cause.LEASE_LOST)
    let_go.set()
    assert isinstance(await task, TurnLeaseLost)
    assert harness.saved == []


async def test_a_lease_that_is_lost_after_the_stop_makes_nothing_be_saved(harness: LoopHarness) -> None:
    let_go = asyncio.Event()

    async def stream(call: Call) -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Hello")
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            await let_go.wait()
            raise

    task = harness.start(ScriptedModel([stream]))
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    await harness.clock.advance(0)
    harness.scope.cancel(Cause.LEASE_LOST)
    let_go.set()
    assert isinstance(await task, TurnLeaseLost)
    assert harness.saved == []


async def test_a_lease_that_is_lost_between_two_saves_makes_nothing_be_saved_again(harness: LoopHarness) -> None:
    def lose_it() -> Interrupted:
        harness.scope.cancel(Cause.LEASE_LOST)
        return Interrupted()

    harness.answers = [lose_it]
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    assert isinstance(await task, TurnLeaseLost)
    assert len(harness.saved) == 1


async def test_a_lease_that_is_lost_during_the_save_after_a_stop_ends_so(harness: LoopHarness) -> None:
    harness.answers = [partial(harness.scope.cancel, Cause.LEASE_LOST)]
    task = harness.start(hang_after(*HELLO))
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    assert isinstance(await task, TurnLeaseLost)
    assert len(harness.saved) == 1


async def test_what_was_held_back_is_published_when_the_task_is_cancelled(harness: LoopHarness) -> None:
    task = harness.start(hang_after(parts.text_delta("1", "a <thi")))
    await harness.heard(TextDelta)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "".join(part.delta for part in harness.published if isinstance(part, TextDelta)) == "a <thi"
    assert harness.saved == []


async def test_nothing_is_published_after_the_lease_is_lost(harness: LoopHarness) -> None:
    async def stream(call: Call) -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Hello")
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            yield parts.text_delta("1", " from the grave")

    task = harness.start(ScriptedModel([stream]))
    await harness.heard(TextDelta)
    harness.scope.cancel(Cause.LEASE_LOST)
    assert isinstance(await task, TurnLeaseLost)
    assert harness.published == [parts.text_delta("1", "Hello")]


@pytest.mark.parametrize(("stop", "end"), [(Cause.SHUTDOWN, TurnShutDown), (Cause.LEASE_LOST, TurnLeaseLost)])
@pytest.mark.parametrize("hook", ["publish", "schedule_retry", "open_attempt"])
async def test_a_hook_that_fails_because_of_a_shutdown_or_a_lost_lease_makes_nothing_be_saved(
    harness: LoopHarness, hook: str, stop: Cause, end: type[TurnEnd]
) -> None:
    """The journal refuses the next part, or the store the next attempt: that is how a lost lease is often met."""

    def fail(*given: Any) -> None:
        if hook == "publish" and not isinstance(given[0], Finish):
            harness.publish(given[0])
        elif given != (1, 1):
            harness.scope.cancel(stop)
            raise OSError("refused")

    last: Any = parts.finish() if hook == "publish" else ConnectionResetError()
    harness.clock = ManualClock(skip_sleeps=True)
    assert isinstance(await harness.start(ScriptedModel([[*HELLO, last]]), **{hook: fail}), end)
    assert harness.saved == []


async def test_a_publish_that_fails_while_the_user_stops_is_still_a_stop(harness: LoopHarness) -> None:
    def publish(part: Part) -> None:
        if isinstance(part, Finish):
            harness.scope.interrupt()
            raise OSError("refused")
        harness.publish(part)

    assert isinstance(await harness.start(ScriptedModel([[*HELLO, parts.finish()]]), publish=publish), TurnInterrupted)
    assert harness.only.blocks == [Text("Hello")]


@pytest.mark.parametrize("answer", [asyncio.CancelledError, Interrupted, None])
async def test_a_provider_that_says_cancelled_on_a_live_scope_is_tried_again(
    harness: LoopHarness, answer: type[BaseException] | None
) -> None:
    broken = [*HELLO] if answer is None else [*HELLO, answer()]
    task = harness.start(ScriptedModel([broken, [parts.text_delta("1", "Hello!"), parts.finish()]]))
    await harness.sleeping.wait()
    await harness.clock.advance(harness.clock.slept[0])
    result = await task
    assert result.reason == "stop"
    assert [event.kind for event in harness.retries] == ["timeout"]
    assert harness.only.blocks == [Text("Hello!")]


async def test_a_stop_is_never_counted_as_a_retry(harness: LoopHarness) -> None:
    model = hang_after(*HELLO)
    await harness.interrupt_at(TextDelta, model)
    assert harness.retries == []
    assert harness.attempts == [(1, 1)]
    assert len(model.calls) == 1


async def test_a_stop_is_not_hidden_by_a_model_that_fails_meanwhile(harness: LoopHarness) -> None:
    await harness.interrupt_at(
        TextDelta, ScriptedModel([lambda call: answer_the_stop_with(ModelFailed("bad key", kind="auth"))]), times=2
    )
    assert harness.only.reason == "interrupted"


async def test_half_of_a_call_is_kept_as_it_was_published(harness: LoopHarness) -> None:
    await harness.interrupt_at(
        ToolInputDelta,
        hang_after(
            parts.tool_input_start("c1", "write"), *(parts.tool_input_delta("c1", piece) for piece in '{"a": "')
        ),
        times=7,
    )
    assert harness.only.blocks[0] == ToolCall(id="c1", name="write", arguments='{"a": "')
    assert harness.only.blocks == harness.finalized(harness.only)
