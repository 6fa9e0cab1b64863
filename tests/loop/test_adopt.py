"""A step that another worker read to its finish is gone on with: no second call, no tool twice in silence (P5).

And the summary that is made before a conversation outgrows the model's window, not after (rule 5.7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.loop_harness import raise_failure
from tests.support.timing import untimed

from indelible.content import Finish, Message, Part, Text, ToolCall, ToolResult, ToolStarted, Usage
from indelible.content.assemble import OUTCOME_UNKNOWN
from indelible.errors import ModelFailed
from indelible.loop import TurnInterrupted
from indelible.testing import ScriptedModel, parts
from indelible.tools import tool
from indelible.tools.tool import ToolCallRecord

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool
async def pay(amount: int) -> str:
    """Pay."""
    ran.append(f"pay {amount}")
    return "paid"


@tool(idempotent=True)
async def look() -> str:
    """Look."""
    ran.append("look")
    return "seen"


@tool(exclusive=True)
async def alone() -> str:
    """Be alone."""
    ran.append("alone")
    return "was alone"


def say(text: str) -> list[Part]:
    return [parts.text_start("1"), parts.text_delta("1", text), parts.text_end("1")]


def call(call_id: str, name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


FINISH = Finish(reason="tool_calls", usage=Usage(input_tokens=7))
PAY = call("p", "pay", '{"amount": 3}')


async def adopt(harness: LoopHarness, *said: Part, answers: int = 1, **more: Any) -> ScriptedModel:
    model = ScriptedModel([[*say("so"), parts.finish()]] * answers)
    await harness.start(model, tools=[pay, look, alone], adopt=list(said), turn_id="t", first_step=4, **more)
    return model


async def test_a_call_that_never_began_is_run_and_the_model_is_not_asked_for_the_step_again(
    harness: LoopHarness,
) -> None:
    model = await adopt(harness, PAY, FINISH)
    assert (ran, len(model.calls), harness.attempts) == (["pay 3"], 1, [(5, 1)])
    assert harness.saved[0].index == 4
    assert untimed(harness.saved[0].blocks) == [PAY, ToolResult(call_id="p", name="pay", output="paid")]
    assert (harness.saved[0].partial, harness.saved[0].usage) == (False, FINISH.usage)


async def test_a_call_that_had_begun_is_not_run_again_and_the_model_hears_that_its_outcome_is_unknown(
    harness: LoopHarness,
) -> None:
    model = await adopt(harness, PAY, FINISH, ToolStarted("p", "pay"))
    assert ran == []
    (_, result) = harness.saved[0].blocks
    assert result == ToolResult(call_id="p", name="pay", output=OUTCOME_UNKNOWN, outcome="unknown", reason="lost")
    assert model.calls[0].messages[-1].blocks == [result]


async def test_an_idempotent_call_that_had_begun_is_run_again_with_the_same_key(harness: LoopHarness) -> None:
    keys = []

    async def record(part: Part, call: ToolCallRecord) -> None:
        if isinstance(part, ToolStarted):
            keys.append(call.idempotency_key)
        harness.publish(part)

    await adopt(
        harness, call("a", "pay", '{"amount": 1}'), call("l", "look"), FINISH, ToolStarted("l", "look"), record=record
    )
    assert sorted(ran) == ["look", "pay 1"]
    assert sorted(keys) == ["t/4/0", "t/4/1"]


@pytest.mark.parametrize(
    ("begun", "expected"), [([ToolStarted("l", "look")], OUTCOME_UNKNOWN), ([], "before this tool began")]
)
async def test_a_stop_before_it_runs_again_does_not_say_that_an_earlier_worker_had_not_begun_it(
    begun: list[Part], expected: str, harness: LoopHarness
) -> None:
    async def record(part: Part, call: ToolCallRecord) -> None:
        if isinstance(part, ToolStarted):
            harness.scope.interrupt()
        harness.publish(part)

    await adopt(harness, call("l", "look"), FINISH, *begun, record=record, answers=0)
    assert ran == []
    (result,) = [block for block in harness.only.blocks if isinstance(block, ToolResult)]
    assert expected in result.output
    assert (result.interrupted, result.started_at) == (True, None)


async def test_results_that_are_known_are_used_as_they_are(harness: LoopHarness) -> None:
    known = ToolResult(call_id="p", name="pay", output="paid already")
    await adopt(harness, PAY, call("l", "look"), FINISH, ToolStarted("p", "pay"), known)
    assert ran == ["look"]
    assert untimed(harness.saved[0].blocks)[2:] == [known, ToolResult(call_id="l", name="look", output="seen")]


async def test_an_exclusive_tool_does_not_run_because_the_others_were_answered_before_the_crash(
    harness: LoopHarness,
) -> None:
    refused = ToolResult(call_id="p", name="pay", output="Not run", is_error=True)
    await adopt(harness, PAY, call("x", "alone"), FINISH, refused)
    assert ran == []
    assert harness.saved[0].blocks[-1].is_error  # type: ignore[union-attr]


async def test_a_reply_without_calls_is_saved_and_ends_the_turn(harness: LoopHarness) -> None:
    model = await adopt(harness, *say("all said"), Finish(reason="stop"), answers=0)
    assert (model.calls, harness.attempts, harness.saved[0].last) == ([], [], True)
    assert harness.saved[0].blocks == [Text("all said")]


async def test_a_filtered_reply_fails_as_if_it_had_been_read_here(harness: LoopHarness) -> None:
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(ScriptedModel(), adopt=[Finish(reason="content_filter")]))
    assert caught.value.kind == "content_filter"


async def test_a_stop_keeps_what_was_adopted(harness: LoopHarness) -> None:
    harness.scope.interrupt()
    assert isinstance(await harness.start(ScriptedModel(), tools=[pay], adopt=[PAY, FINISH]), TurnInterrupted)
    assert harness.saved == []  # nothing was begun here; whoever asked for the stop ends it from the journal


# --- a summary in time ---


def history(turns: int) -> list[Message]:
    said = []
    for turn in range(turns):
        said.append(Message(role="user", blocks=[Text(f"question {turn} " + "x" * 500)]))
        said.append(Message(role="assistant", blocks=[Text(f"answer {turn} " + "y" * 500)]))
    return [*said, Message(role="user", blocks=[Text("and now?")])]


async def test_a_conversation_that_nearly_fills_the_window_is_summarised_before_the_next_call(
    harness: LoopHarness,
) -> None:
    kept: list[Message] = []
    model = ScriptedModel([[*say("the gist"), parts.finish()], [*say("so"), parts.finish()]], context_limit=1000)
    await harness.start(model, messages=history(6), compact_at=0.8, used_tokens=800, keep_summary=kept.append)
    assert len(kept) == 1
    asked = [block.text for message in model.calls[1].messages for block in message.blocks]
    assert any("the gist" in text for text in asked)
    assert not any("question 0" in text for text in asked)
    assert "and now?" in asked


@pytest.mark.parametrize(("used", "share"), [(799, 0.8), (5000, None)])
async def test_one_that_has_room_is_left_alone(harness: LoopHarness, used: int, share: float | None) -> None:
    model = ScriptedModel([[*say("so"), parts.finish()]], context_limit=1000)
    await harness.start(model, messages=history(6), compact_at=share, used_tokens=used)
    assert len(model.calls) == 1


async def test_the_window_is_watched_between_steps(harness: LoopHarness) -> None:
    big = Finish(reason="tool_calls", usage=Usage(input_tokens=700, output_tokens=150))
    model = ScriptedModel(
        [[call("l", "look"), big], [*say("the gist"), parts.finish()], [*say("so"), parts.finish()]],
        context_limit=1000,
    )
    await harness.start(model, messages=history(6), tools=[look], compact_at=0.8)
    assert len(model.calls) == 3
    assert any("the gist" in block.text for message in model.calls[2].messages for block in message.blocks)


@pytest.mark.may_log("the conversation could not be summarised")
async def test_a_model_that_cannot_summarise_is_asked_all_the_same(harness: LoopHarness) -> None:
    model = ScriptedModel([ModelFailed("no", kind="overloaded"), [*say("so"), parts.finish()]], context_limit=1000)
    await harness.start(model, messages=history(6), compact_at=0.8, used_tokens=900)
    assert (len(model.calls), harness.saved[0].blocks) == (2, [Text("so")])
