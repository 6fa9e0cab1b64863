"""What the loop got wrong when it was tried: S78, S79, S80 and S100."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.loop_harness import LoopHarness

from indelible.content import Message, Text, ToolCall, ToolResult, ToolSpec, ToolStarted
from indelible.content.assemble import OUTCOME_UNKNOWN
from indelible.errors import ModelFailed
from indelible.loop import TurnCompleted, TurnFailed
from indelible.models.failures.classify import classify_response
from indelible.models.profile import find_profile
from indelible.models.protocol import CallOptions
from indelible.models.retry import RetryPolicy
from indelible.settings import load_settings
from indelible.testing import ManualClock, ScriptedModel, parts
from indelible.tools.tool import tool

DONE = [parts.text_delta("1", "Done"), parts.finish()]


def find_results(blocks: Any) -> list[tuple[str, bool]]:
    return [(block.output, block.is_error) for block in blocks if isinstance(block, ToolResult)]


def call(name: str) -> list[Any]:
    return [parts.tool_call("c", name, "{}"), parts.finish("tool_calls")]


# --- S100 ---


@pytest.mark.parametrize("idempotent", [True, False])
async def test_s100_a_tool_that_had_begun_and_is_gone_has_an_unknown_outcome(*, idempotent: bool) -> None:
    @tool(idempotent=idempotent)
    def other() -> str:
        return ""

    harness = LoopHarness()
    begun = [ToolCall(id="c", name="pay", arguments="{}"), parts.finish("tool_calls"), ToolStarted("c", "pay")]
    end = await harness.start(ScriptedModel([DONE]), adopt=begun, tools=[other])
    assert isinstance(end, TurnCompleted)
    assert find_results(harness.saved[0].blocks) == [(OUTCOME_UNKNOWN, True)]


async def test_s100_a_tool_that_never_began_and_is_gone_is_named() -> None:
    harness = LoopHarness()
    called = [ToolCall(id="c", name="pay", arguments="{}"), parts.finish("tool_calls")]
    await harness.start(ScriptedModel([DONE]), adopt=called)
    ((output, _),) = find_results(harness.saved[0].blocks)
    assert output.startswith("There is no tool named 'pay'.")


# --- S78 ---


def dig() -> str:
    """Digs."""
    return "A hole"


@pytest.mark.parametrize("added", [dig, tool(dig)], ids=["function", "tool"])
async def test_s78_a_tool_that_prepare_tools_adds_is_advertised_and_run(added: Any) -> None:
    harness, model = LoopHarness(), ScriptedModel([call("dig"), DONE])
    end = await harness.start(model, prepare_tools=lambda tools: [*tools, added])
    assert isinstance(end, TurnCompleted)
    assert [[spec.name for spec in each.tools] for each in model.calls] == [["dig"], ["dig"]]
    assert find_results(harness.saved[0].blocks) == [("A hole", False)]


async def test_s78_a_tool_that_prepare_tools_adds_is_run_beside_a_whitelist() -> None:
    def other() -> str:
        return ""

    harness, model = LoopHarness(), ScriptedModel([call("dig"), DONE])
    await harness.start(model, tools=[other], active_tools=["other"], prepare_tools=lambda tools: [*tools, dig])
    assert find_results(harness.saved[0].blocks) == [("A hole", False)]


async def test_s78_a_tool_that_cannot_be_run_is_refused_before_the_model_is_asked() -> None:
    harness, model = LoopHarness(), ScriptedModel([])
    end = await harness.start(model, prepare_tools=lambda tools: [*tools, ToolSpec(name="dig")])
    assert isinstance(end, TurnFailed)
    assert "prepare_tools" in str(end.error)
    assert "'dig'" in str(end.error)
    assert model.calls == []


async def test_s78_a_tool_that_the_provider_or_the_client_runs_may_be_added_as_a_spec() -> None:
    harness, model = LoopHarness(), ScriptedModel([DONE])
    search = ToolSpec(name="web_search", provider_executed=True)
    end = await harness.start(
        model, client_tools=["ask"], prepare_tools=lambda tools: [*tools, search, ToolSpec(name="ask")]
    )
    assert isinstance(end, TurnCompleted)
    assert [spec.name for spec in model.calls[0].tools] == ["web_search", "ask"]


# --- S79 ---

REFUSED = [
    "No tool output found for function call call_1Z.",
    "No tool output found for custom tool call call_1Z.",
    "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.",
    "Item 'msg_1' of type 'message' was provided without its required 'reasoning' item: 'rs_1'.",
    "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
    "Previous response with id 'resp_1' not found.",
]


def refuse(message: str) -> ModelFailed:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": None}}
    return classify_response(provider="openai", status=400, body=body)


@pytest.mark.parametrize("message", REFUSED)
async def test_s79_a_chain_that_the_provider_refuses_heals(message: str) -> None:
    failure = refuse(message)
    assert (failure.kind, failure.retryable) == ("chain_broken", True)
    harness, model = LoopHarness(), ScriptedModel([[failure], DONE])
    forgotten: list[bool] = []
    end = await harness.start(
        model,
        call=CallOptions(store=True, previous_response_id="resp_1"),
        forget_responses=lambda: forgotten.append(True),
        reload_messages=lambda: [Message(role="user", blocks=[Text("all of it")])],
    )
    assert isinstance(end, TurnCompleted)
    assert forgotten == [True]
    assert [each.options.previous_response_id for each in model.calls] == ["resp_1", None]
    assert [block.text for block in model.calls[1].messages[0].blocks] == ["all of it"]


async def test_s79_a_refusal_that_no_chain_explains_is_not_retried_for_ever() -> None:
    harness, model = LoopHarness(), ScriptedModel([[refuse(REFUSED[0])], [refuse(REFUSED[0])], [refuse(REFUSED[0])]])
    end = await harness.start(model, retry=RetryPolicy(max_attempts=3))
    assert isinstance(end, TurnFailed)
    assert isinstance(end.error, ModelFailed)
    assert len(model.calls) <= 3


# --- S80 ---


async def test_s80_a_provider_that_is_away_for_ten_minutes_is_asked_until_then() -> None:
    settings = load_settings()
    policy = RetryPolicy(
        base_s=settings.retry_base_s,
        max_delay_s=settings.retry_max_delay_s,
        max_attempts=settings.retry_max_attempts,
        budget_s=settings.retry_budget_s,
    )
    harness = LoopHarness()
    harness.clock = clock = ManualClock(skip_sleeps=True)
    away = ModelFailed("Away.", kind="timeout")

    class AwayModel(ScriptedModel):
        def stream(self, call: Any) -> Any:
            self.calls.append(call)
            return ScriptedModel([[away] if clock.monotonic() < 600 else DONE]).stream(call)

    for chance in (0.0, 0.5, 1.0):
        model = AwayModel()
        end = await harness.start(model, retry=policy, clock=clock, chance=lambda chance=chance: chance)
        assert isinstance(end, TurnCompleted), chance
        assert len(model.calls) <= settings.retry_max_attempts
        harness.clock = clock = ManualClock(skip_sleeps=True)


def test_s80_a_profile_may_allow_a_longer_silence() -> None:
    assert find_profile("openai", "o3-pro", provider_id=None).silence_timeout_s == 1800
    assert find_profile("openai", "gpt-5.1", provider_id=None).silence_timeout_s == 0


def test_s80_patience_is_a_quarter_of_an_hour_and_silence_five_minutes() -> None:
    settings = load_settings()
    assert (settings.retry_max_attempts, settings.retry_budget_s, settings.silence_timeout_s) == (25, 900, 300)
    assert (RetryPolicy().max_attempts, RetryPolicy().budget_s) == (25, 900)
