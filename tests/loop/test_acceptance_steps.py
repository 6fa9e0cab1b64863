"""A turn that nobody stops: prompts, steps, tools, saves and ends.

S9–S12, S16–S18, S20–S22 and S26 are here, as far as the loop alone can show them, and the rules
of `run` that have no number.

What a prompt must look like in general is test_prompt.py; what a tool's result looks like, tests/tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.loop_harness import raise_failure
from tests.support.timing import untimed

from indelible import tool
from indelible.content import Block, Message, Part, Text, TextDelta, ToolCall, ToolResult, ToolSpec, ToolStarted, Usage
from indelible.errors import Interrupted, LeaseLost, ModelFailed, Shutdown
from indelible.loop import (
    Cause,
    FinishedStep,
    RetryPolicy,
    TurnCompleted,
    TurnEnd,
    TurnHost,
    TurnInterrupted,
    TurnLeaseLost,
    TurnShutDown,
    run,
)
from indelible.models import CallOptions
from indelible.testing import ManualClock, ScriptedModel, parts

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness

Spell = Callable[[Sequence[Block]], list[tuple[str, ...]]]

ANSWER: list[Part] = [parts.text_delta("1", "It rains."), parts.finish("stop")]
ASK: list[Part] = [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]


@tool
async def weather(city: str) -> str:
    return f"rain in {city}"


@tool
async def news() -> str:
    return "none"


def say(role: Any, text: str) -> Message:
    return Message(role=role, blocks=[Text(text)])


def ask_for(*names: str) -> list[Any]:
    calls = [parts.tool_call(f"c{number}", name, "{}") for number, name in enumerate(names, 1)]
    return [*calls, parts.finish("tool_calls")]


# --- what the model is told --------------------------------------------------------------


async def test_s9_a_whitelist_of_one_advertises_exactly_that_one(harness: LoopHarness) -> None:
    model = ScriptedModel([ANSWER])
    await harness.start(model, tools=[weather, news], active_tools=["news"])
    assert [spec.name for spec in model.calls[0].tools] == ["news"]


async def test_s9_the_whitelist_holds_for_executing_too(harness: LoopHarness) -> None:
    model = ScriptedModel([ASK, ANSWER])
    await harness.start(model, tools=[weather, news], active_tools=["news"])
    result = harness.saved[0].blocks[-1]
    assert isinstance(result, ToolResult)
    assert result.is_error
    assert harness.count(ToolStarted) == 0


async def test_s9_the_providers_own_tools_are_always_advertised(harness: LoopHarness) -> None:
    search = ToolSpec(name="web_search", provider_executed=True)
    model = ScriptedModel([ANSWER])
    await harness.start(model, tools=[weather, news, search], active_tools=["news"])
    assert [spec.name for spec in model.calls[0].tools] == ["news", "web_search"]


async def test_s10_the_fallback_is_the_context_limit_of_a_model_that_does_not_know_its_own(
    harness: LoopHarness,
) -> None:
    await harness.start(ScriptedModel([ANSWER]), context_limit_fallback=4096)
    assert harness.only.context_limit == 4096


async def test_s10_the_models_own_limit_goes_before_the_fallback(harness: LoopHarness) -> None:
    await harness.start(ScriptedModel([ANSWER], context_limit=200_000), context_limit_fallback=4096)
    assert harness.only.context_limit == 200_000


async def test_s10_a_limit_that_nobody_knows_stays_unknown(harness: LoopHarness) -> None:
    await harness.start(ScriptedModel([ANSWER]))
    assert harness.only.context_limit is None


async def test_s11_the_prompt_holds_exactly_the_messages_given(harness: LoopHarness) -> None:
    history = [say("system", "Be brief."), say("user", "hi"), say("assistant", "Hello."), say("user", "Rain?")]
    model = ScriptedModel([ANSWER])
    await harness.start(model, messages=history)
    assert [(message.role, message.blocks) for message in model.calls[0].messages] == [
        (message.role, message.blocks) for message in history
    ]


async def test_s11_no_messages_at_all_are_legal(harness: LoopHarness) -> None:
    model = ScriptedModel([ANSWER])
    result = await harness.start(model, messages=[])
    assert model.calls[0].messages == []
    assert result.reason == "stop"


async def test_s12_cache_markers_stand_where_spec_5_5_puts_them(harness: LoopHarness) -> None:
    history = [
        say("system", "Be brief."),
        say("system", "Be kind."),
        say("user", "hi"),
        say("assistant", "Hello."),
        say("user", "Rain?"),
    ]
    model = ScriptedModel([ANSWER], provider="anthropic")
    await harness.start(model, messages=history)
    assert [at for at, message in enumerate(model.calls[0].messages) if message.cache] == [1, 3, 4]


async def test_s12_other_providers_get_no_markers(harness: LoopHarness) -> None:
    model = ScriptedModel([ANSWER], provider="openai")
    await harness.start(model)
    assert not any(message.cache for message in model.calls[0].messages)


@pytest.mark.parametrize("is_async", [False, True])
async def test_preparation_is_run_once_per_step_and_may_be_plain_or_async(
    harness: LoopHarness, *, is_async: bool
) -> None:
    seen: list[str] = []

    def prepare_messages(messages: list[Message]) -> list[Message]:
        seen.append("messages")
        return [say("system", "prepared"), *messages]

    def prepare_tools(tools: list[ToolSpec]) -> list[ToolSpec]:
        seen.append("tools")
        return [spec for spec in tools if spec.name != "news"]

    async def prepare_messages_later(messages: list[Message]) -> list[Message]:
        await asyncio.sleep(0)
        return prepare_messages(messages)

    async def prepare_tools_later(tools: list[ToolSpec]) -> list[ToolSpec]:
        await asyncio.sleep(0)
        return prepare_tools(tools)

    model = ScriptedModel([ASK, ANSWER])
    await harness.start(
        model,
        tools=[weather, news],
        prepare_messages=prepare_messages_later if is_async else prepare_messages,
        prepare_tools=prepare_tools_later if is_async else prepare_tools,
    )
    assert sorted(seen) == ["messages", "messages", "tools", "tools"]
    for call in model.calls:
        assert [spec.name for spec in call.tools] == ["weather"]
        systems = [message for message in call.messages if message.role == "system"]
        assert [message.blocks for message in systems] == [[Text("prepared")]]


async def test_preparation_is_not_run_again_for_a_plain_retry(harness: LoopHarness) -> None:
    prepared = []

    def prepare(messages: list[Message]) -> list[Message]:
        prepared.append(len(messages))
        return messages

    harness.clock = ManualClock(skip_sleeps=True)
    model = ScriptedModel([ConnectionResetError(), ConnectionResetError(), ANSWER])
    await harness.start(model, prepare_messages=prepare)
    assert prepared == [1]
    assert model.calls[0] == model.calls[2]


async def test_what_preparation_adds_is_not_saved(harness: LoopHarness) -> None:
    result = await harness.start(
        ScriptedModel([ANSWER]), prepare_messages=lambda messages: [*messages, say("user", "secret")]
    )
    assert [message.role for message in result.messages] == ["assistant"]


async def test_an_error_of_a_hook_ends_the_run_with_it(harness: LoopHarness) -> None:
    def fail(messages: list[Message]) -> list[Message]:
        raise LookupError("no such template")

    with pytest.raises(LookupError, match="no such template"):
        await raise_failure(harness.start(ScriptedModel(), prepare_messages=fail))
    assert harness.saved == []


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_what_is_required_is_missed_at_once(missing: str) -> None:
    given: dict[str, Any] = {"model": ScriptedModel(), "messages": []}
    with pytest.raises(TypeError, match=missing):
        await run(**(given | {missing: None}))
    del given[missing]
    with pytest.raises(TypeError, match=missing):
        await run(**given)


# --- steps -------------------------------------------------------------------------------


async def test_s16_a_tool_step_and_a_text_step_make_two_calls_and_two_saves(harness: LoopHarness) -> None:
    model = ScriptedModel([ASK, ANSWER])
    result = await harness.start(model, tools=[weather], max_steps=5)
    assert len(model.calls) == 2
    assert len(harness.saved) == 2
    assert result.reason == "stop"
    assert [step.index for step in harness.saved] == [1, 2]
    assert [step.last for step in harness.saved] == [False, True]
    assert not any(step.partial for step in harness.saved)
    assert [step.reason for step in harness.saved] == [None, None]


async def test_s17_the_second_prompt_holds_the_call_and_a_tool_message_with_its_result(harness: LoopHarness) -> None:
    model = ScriptedModel([ASK, ANSWER])
    await harness.start(model, tools=[weather])
    user, assistant, answer = model.calls[1].messages
    assert (user.role, assistant.role, answer.role) == ("user", "assistant", "tool")
    assert assistant.blocks == [ToolCall(id="c1", name="weather", arguments='{"city": "Oslo"}')]
    assert untimed(answer.blocks) == [ToolResult(call_id="c1", name="weather", output="rain in Oslo")]


async def test_s17_an_empty_result_is_still_sent(harness: LoopHarness) -> None:
    @tool
    async def quiet() -> None: ...

    model = ScriptedModel([ask_for("quiet"), ANSWER])
    await harness.start(model, tools=[quiet])
    assert untimed(model.calls[1].messages[-1].blocks) == [ToolResult(call_id="c1", name="quiet", output="")]


async def test_s18_an_error_of_the_save_ends_the_run_with_it(harness: LoopHarness) -> None:
    harness.answers = [RuntimeError("database write failed")]
    model = ScriptedModel([ASK])
    with pytest.raises(RuntimeError, match="database write failed"):
        await raise_failure(harness.start(model, tools=[weather]))
    assert len(harness.saved) == 1
    assert harness.save_errors == [], "report_unsaved is for the save after a stop"


async def test_s18_holds_for_a_plain_save(harness: LoopHarness) -> None:
    def save(step: object) -> None:
        raise RuntimeError("database write failed")

    with pytest.raises(RuntimeError, match="database write failed"):
        await raise_failure(harness.start(ScriptedModel([ANSWER]), persist_step=save))


async def test_s20_a_save_during_a_shutdown_or_a_lost_lease_never_makes_the_run_interrupted(
    harness: LoopHarness,
) -> None:
    harness.answers = [partial(harness.scope.cancel, Cause.LEASE_LOST)]
    assert isinstance(await harness.start(ScriptedModel([ASK]), tools=[weather]), TurnLeaseLost)
    assert len(harness.saved) == 1


@pytest.mark.parametrize(("stop", "end"), [("interrupt", TurnInterrupted), ("shutdown", TurnShutDown)])
async def test_s21_an_interrupt_differs_from_a_shutdown(harness: LoopHarness, stop: str, end: type[TurnEnd]) -> None:
    task = harness.start(ScriptedModel([[parts.text_delta("1", "It"), parts.hang()]]))
    await harness.heard(TextDelta)
    getattr(harness.scope, stop)()
    assert type(await task) is end


async def test_s22_only_local_results_go_to_the_tool_message(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_call("p1", "web_search", '{"q": "rain"}', provider_executed=True),
                parts.tool_result("p1", "web_search", {"pages": 3}, provider_executed=True),
                *ASK,
            ],
            ANSWER,
        ],
        provider="anthropic",
    )
    await harness.start(model, tools=[weather])
    assistant, answer = harness.saved[0].messages()
    assert spell(assistant.blocks) == [
        ("call", "p1", "web_search", '{"q": "rain"}'),
        ("result", "p1", "web_search"),
        ("call", "c1", "weather", '{"city": "Oslo"}'),
    ]
    assert (answer.role, spell(answer.blocks)) == ("tool", [("result", "c1", "weather")])
    assert [message.role for message in model.calls[1].messages] == ["user", "assistant", "tool"]


async def test_s26_a_stream_of_nothing_but_a_finish_ends_after_one_call(harness: LoopHarness) -> None:
    model = ScriptedModel([[parts.finish("stop", usage=Usage(input_tokens=7))]])
    result = await harness.start(model)
    assert result.reason == "stop"
    assert len(model.calls) == 1
    assert harness.saved == [], "a step with no content is not saved"
    assert result.messages == []
    assert result.usage == Usage(input_tokens=7)


async def test_a_finish_that_promises_calls_and_brings_none_ends_the_turn(harness: LoopHarness) -> None:
    result = await harness.start(ScriptedModel([[parts.text_delta("1", "Hm"), parts.finish("tool_calls")]]))
    assert result.reason == "stop"
    assert harness.only.last


async def test_usage_is_added_up_and_every_step_keeps_its_own(harness: LoopHarness) -> None:
    model = ScriptedModel(
        [
            [*ASK[:-1], parts.finish("tool_calls", usage=Usage(input_tokens=10, output_tokens=1))],
            [*ANSWER[:-1], parts.finish("stop", usage=Usage(input_tokens=20, output_tokens=2))],
        ]
    )
    result = await harness.start(model, tools=[weather])
    assert result.usage == Usage(input_tokens=30, output_tokens=3)
    assert [step.usage.input_tokens for step in harness.saved if step.usage is not None] == [10, 20]
    assert result.steps == harness.saved


# --- how many steps ----------------------------------------------------------------------


@pytest.mark.parametrize(("max_steps", "calls"), [(-3, 1), (0, 1), (1, 1), (2, 2)])
async def test_max_steps_counts_complete_steps_and_is_at_least_one(
    harness: LoopHarness, max_steps: int, calls: int
) -> None:
    model = ScriptedModel([ASK] * calls)
    result = await harness.start(model, tools=[weather], max_steps=max_steps)
    assert result.reason == "max_steps"
    assert len(model.calls) == calls
    assert [step.last for step in harness.saved] == [False] * (calls - 1) + [True]
    assert untimed(harness.saved[-1].blocks)[-1] == ToolResult(call_id="c1", name="weather", output="rain in Oslo")


async def test_a_turn_that_ends_by_itself_in_its_last_step_just_stops(harness: LoopHarness) -> None:
    result = await harness.start(ScriptedModel([ANSWER]), max_steps=1)
    assert result.reason == "stop"


async def test_steps_are_counted_on_from_the_first_one_given(harness: LoopHarness) -> None:
    await harness.start(ScriptedModel([ASK, ANSWER]), tools=[weather], first_step=4)
    assert [step.index for step in harness.saved] == [4, 5]
    assert harness.attempts == [(4, 1), (5, 1)]


# --- tools that end the turn, or must be alone -------------------------------------------


async def test_stop_after_ends_the_turn_with_a_successful_result(harness: LoopHarness) -> None:
    model = ScriptedModel([ASK])
    result = await harness.start(model, tools=[weather], stop_after=["weather"])
    assert result.reason == "stop_after"
    assert harness.only.last
    assert untimed(harness.only.blocks)[-1] == ToolResult(call_id="c1", name="weather", output="rain in Oslo")


async def test_stop_after_does_not_end_the_turn_with_an_error_result(harness: LoopHarness) -> None:
    model = ScriptedModel([ask_for("weather"), ANSWER])
    result = await harness.start(model, tools=[weather], stop_after=["weather"])
    assert result.reason == "stop"
    assert len(model.calls) == 2


async def test_client_calls_end_the_run_and_are_named(harness: LoopHarness) -> None:
    result = await harness.start(ScriptedModel([ask_for("pick_file")]), client_tools=["pick_file"])
    assert result.reason == "client_tools"
    assert harness.only.awaiting == [ToolCall(id="c1", name="pick_file", arguments="{}")]
    assert not harness.only.last, "the turn stays open until the client has answered"
    assert not harness.only.partial
    assert [message.role for message in harness.only.messages()] == ["assistant"]


async def test_a_client_tool_that_is_not_active_is_not_the_clients_to_run(harness: LoopHarness) -> None:
    model = ScriptedModel([ask_for("pick_file"), ANSWER])
    result = await harness.start(model, client_tools=["pick_file"], tools=[weather], active_tools=["weather"])
    assert result.reason == "stop"
    assert harness.saved[0].awaiting == []


async def test_a_client_call_with_broken_arguments_is_answered_here(harness: LoopHarness) -> None:
    model = ScriptedModel([[parts.tool_call("c1", "pick_file", "{"), parts.finish("tool_calls")], ANSWER])
    result = await harness.start(model, client_tools=["pick_file"])
    assert result.reason == "stop"
    assert harness.saved[0].blocks[-1].is_error  # type: ignore[union-attr]


async def test_mixed_calls_run_here_first_and_then_wait_for_the_client(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel([ask_for("pick_file", "news")])
    result = await harness.start(model, tools=[news], client_tools=["pick_file"])
    assert result.reason == "client_tools"
    assert spell(harness.only.blocks)[2:] == [("result", "c2", "news")]
    assert [call.name for call in harness.only.awaiting] == ["pick_file"]


async def test_mixed_calls_wait_for_the_client_even_if_a_stop_after_tool_succeeded(harness: LoopHarness) -> None:
    model = ScriptedModel([ask_for("news", "pick_file")])
    result = await harness.start(model, tools=[news], client_tools=["pick_file"], stop_after=["news"], max_steps=1)
    assert result.reason == "client_tools"
    assert len(harness.only.awaiting) == 1


@pytest.mark.parametrize("other", ["news", "pick_file", "no_such_tool"])
async def test_an_exclusive_tool_together_with_another_call_runs_neither(
    harness: LoopHarness, spell: Spell, other: str
) -> None:
    model = ScriptedModel([ask_for("deploy", other), ANSWER])

    @tool
    async def deploy() -> str:
        return "deployed"

    await harness.start(model, tools=[deploy, news], client_tools=["pick_file"], exclusive=["deploy"])
    assert harness.count(ToolStarted) == 0
    assert spell(harness.saved[0].blocks)[2:] == [("error", "c1", "deploy"), ("error", "c2", other)]
    assert harness.saved[0].awaiting == []


async def test_an_exclusive_tool_alone_runs_also_beside_the_providers_own_call(harness: LoopHarness) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_call("p1", "web_search", "{}", provider_executed=True),
                parts.tool_result("p1", "web_search", "3 pages", provider_executed=True),
                *ask_for("news"),
            ],
            ANSWER,
        ]
    )
    await harness.start(model, tools=[news], exclusive=["news"])
    assert untimed(harness.saved[0].blocks)[-1] == ToolResult(call_id="c1", name="news", output="none")


@pytest.mark.may_log("the tool broken raised an error")
async def test_bad_calls_never_abort_the_step(harness: LoopHarness, spell: Spell) -> None:
    @tool
    async def broken() -> str:
        raise ValueError("out of paper")

    model = ScriptedModel(
        [
            [
                parts.tool_call("c1", "no_such_tool", "{}"),
                parts.tool_call("c2", "weather", '{"city": '),
                parts.tool_call("c3", "broken", "{}"),
                parts.tool_call("c4", "weather", '{"town": "Oslo"}'),
                parts.tool_call("c5", "weather", '{"city": "Oslo"}'),
                parts.finish("tool_calls"),
            ],
            ANSWER,
        ]
    )
    result = await harness.start(model, tools=[weather, broken])
    assert result.reason == "stop"
    assert spell(harness.saved[0].blocks)[5:] == [
        ("error", "c1", "no_such_tool"),
        ("error", "c2", "weather"),
        ("error", "c3", "broken"),
        ("error", "c4", "weather"),
        ("result", "c5", "weather"),
    ]
    assert "out of paper" in str(harness.saved[0].blocks[7])


@pytest.mark.parametrize(
    "error", [Interrupted, Shutdown, LeaseLost, asyncio.CancelledError, SystemExit, StopAsyncIteration, TimeoutError]
)
@pytest.mark.may_log("the tool rude raised an error")
async def test_a_tool_can_not_end_the_run_by_what_it_raises(harness: LoopHarness, error: type[BaseException]) -> None:
    @tool
    async def rude() -> str:
        raise error

    result = await harness.start(ScriptedModel([ask_for("rude"), ANSWER]), tools=[rude])
    assert result.reason == "stop"
    answer = harness.saved[0].blocks[-1]
    assert isinstance(answer, ToolResult)
    assert answer.is_error


async def test_results_are_published_as_they_come_and_stand_in_call_order(harness: LoopHarness, spell: Spell) -> None:
    second_done = asyncio.Event()

    @tool
    async def first() -> str:
        await second_done.wait()
        return "1"

    @tool
    async def second() -> str:
        second_done.set()
        return "2"

    await harness.start(ScriptedModel([ask_for("first", "second"), ANSWER]), tools=[first, second])
    came = [part.call_id for part in harness.published if isinstance(part, ToolResult)]
    assert sorted(came) == ["c1", "c2"]
    assert spell(harness.saved[0].blocks)[2:] == [("result", "c1", "first"), ("result", "c2", "second")]


# --- saves that answer -------------------------------------------------------------------


async def test_what_a_save_returns_stands_before_the_next_prompt(harness: LoopHarness) -> None:
    harness.answers = [[say("user", "and tomorrow?")]]
    model = ScriptedModel([ASK, ANSWER])
    await harness.start(model, tools=[weather])
    assert [message.role for message in model.calls[1].messages] == ["user", "assistant", "tool", "user"]
    assert model.calls[1].messages[-1].blocks == [Text("and tomorrow?")]


async def test_a_steer_stays_where_it_came_in(harness: LoopHarness) -> None:
    harness.answers = [[say("user", "and tomorrow?")], None]
    model = ScriptedModel([ASK, ASK, ANSWER])
    await harness.start(model, tools=[weather])
    assert [message.role for message in model.calls[2].messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
        "tool",
    ]


async def test_only_a_step_that_another_follows_is_given_to_the_host(harness: LoopHarness) -> None:
    saved: list[FinishedStep] = []

    class Host(TurnHost):
        def persist_step(self, step: FinishedStep) -> None:
            saved.append(step)

    end = await run(ScriptedModel([ASK, ANSWER]), [say("user", "Rain?")], Host(), [weather])
    assert isinstance(end, TurnCompleted)
    assert (end.steps[:-1], end.steps[-1]) == (saved, end.step)
    assert [message.role for message in end.messages] == ["assistant", "tool", "assistant"]


async def test_a_turn_needs_no_host() -> None:
    end = await run(ScriptedModel([ANSWER]), [])
    assert isinstance(end, TurnCompleted)
    assert end.step is not None
    assert end.messages == end.step.messages()


async def test_the_callers_messages_are_not_changed(harness: LoopHarness) -> None:
    history = [say("user", "Rain?")]
    result: TurnCompleted = await harness.start(ScriptedModel([ASK, ANSWER]), tools=[weather], messages=history)
    assert history == [say("user", "Rain?")]
    assert [message.role for message in result.messages] == ["assistant", "tool", "assistant"]


async def test_publish_and_save_may_be_plain_functions(harness: LoopHarness) -> None:
    saved: list[FinishedStep] = []
    published: list[Part] = []
    await harness.start(ScriptedModel([ANSWER]), persist_step=saved.append, publish=published.append)
    assert len(saved) == 1
    assert published == ANSWER


# --- how a reply finished ----------------------------------------------------------------


@pytest.mark.parametrize(("store", "kept"), [(True, "resp_1"), (False, None)])
async def test_the_providers_response_id_is_kept_only_if_it_stored_the_reply(
    harness: LoopHarness, *, store: bool, kept: str | None
) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Hi"), parts.finish("stop", response_id="resp_1")]])
    await harness.start(model, call=CallOptions(store=store))
    assert harness.only.provider_response_id == kept
    assert harness.only.messages()[0].response_id == kept


@pytest.mark.parametrize("reason", ["length", "tool_calls"])
async def test_a_reply_that_was_cut_carries_no_response_id(harness: LoopHarness, reason: Any) -> None:
    """Cut by its length limit, or by a stop before its tools ran."""
    model = ScriptedModel(
        [
            [
                parts.text_delta("1", "Hi"),
                parts.tool_call("c1", "weather", '{"city": "Oslo"}'),
                parts.finish(reason, response_id="resp_1"),
            ]
        ]
    )

    def publish(part: Any) -> None:
        if part == parts.finish("tool_calls", response_id="resp_1"):
            harness.scope.interrupt()

    if reason == "length":
        await harness.start(model, tools=[weather], call=CallOptions(store=True), publish=publish)
    else:
        assert isinstance(
            await harness.start(model, tools=[weather], call=CallOptions(store=True), publish=publish), TurnInterrupted
        )
    assert harness.only.partial
    assert harness.only.provider_response_id is None


async def test_a_reply_that_reached_its_length_limit_is_kept_and_marked(harness: LoopHarness) -> None:
    result = await harness.start(ScriptedModel([[parts.text_delta("1", "It rai"), parts.finish("length")]]))
    assert result.reason == "length"
    assert harness.only.blocks == [Text("It rai")]
    assert (harness.only.partial, harness.only.reason, harness.only.last) == (True, "length", True)


async def test_calls_of_a_reply_that_reached_its_length_limit_are_never_run(harness: LoopHarness, spell: Spell) -> None:
    model = ScriptedModel(
        [
            [
                parts.tool_call("c1", "weather", '{"city": "Oslo"}'),
                parts.tool_input_start("c2", "weather"),
                parts.tool_input_delta("c2", '{"ci'),
                parts.finish("length"),
            ]
        ]
    )
    result = await harness.start(model, tools=[weather])
    assert result.reason == "length"
    assert harness.count(ToolStarted) == 0
    assert spell(harness.only.blocks)[2:] == [("error", "c1", "weather"), ("error", "c2", "weather")]


async def test_a_filtered_reply_with_nothing_visible_is_a_terminal_failure(harness: LoopHarness) -> None:
    model = ScriptedModel([[parts.reasoning_delta("r", "Should I?"), parts.finish("content_filter")]])
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model))
    assert (caught.value.kind, caught.value.retryable) == ("content_filter", False)
    assert harness.retries == []
    assert [type(block).__name__ for block in harness.only.blocks] == ["Reasoning"]


async def test_a_filtered_reply_with_visible_text_is_kept(harness: LoopHarness) -> None:
    result = await harness.start(ScriptedModel([[parts.text_delta("1", "It ra"), parts.finish("content_filter")]]))
    assert result.reason == "content_filter"
    assert harness.only.blocks == [Text("It ra")]
    assert harness.only.last


async def test_the_step_tells_how_long_it_took(harness: LoopHarness) -> None:
    async def stream(call: object) -> Any:
        await harness.clock.advance(2)
        yield parts.text_delta("1", "Hi")
        await harness.clock.advance(3)
        yield parts.finish("stop")

    began_at = harness.clock.now()
    await harness.start(ScriptedModel([stream]))
    assert harness.only.started_at == began_at
    assert harness.only.first_part_s == 2
    assert harness.only.ended_at == harness.clock.now()
    assert (harness.only.provider, harness.only.model) == ("scripted", "scripted")


async def test_a_policy_of_one_attempt_never_retries(harness: LoopHarness) -> None:
    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(ScriptedModel([ConnectionResetError()]), retry=RetryPolicy(max_attempts=1)))
    assert harness.retries == []


@pytest.mark.parametrize("returned", [5, "abc", {"id": 1}, [1]])
async def test_a_save_that_returns_something_odd_is_a_clear_error(harness: LoopHarness, returned: Any) -> None:
    harness.answers = [lambda: returned]
    with pytest.raises(TypeError, match="persist_step returned"):
        await raise_failure(harness.start(ScriptedModel([ASK]), tools=[weather]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"active_tools": "read"},
        {"retry": {}},
        {"call": {"store": True}},
        {"scope": "x"},
        {"tool_limits": 5},
        {"tools": "read"},
    ],
)
async def test_a_wrong_argument_is_a_clear_error_at_once(harness: LoopHarness, wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"takes a .* for {next(iter(wrong))}"):
        await raise_failure(harness.start(ScriptedModel(), **wrong))


async def test_a_tool_that_must_be_used_is_forced_once_and_then_the_model_may_answer(harness: LoopHarness) -> None:
    model = ScriptedModel(
        [
            [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")],
            [parts.text_delta("1", "Rain."), parts.finish("stop")],
        ]
    )
    forced = CallOptions(parameters={"tool_choice": "required", "temperature": 0.5})
    await harness.start(model, tools=[weather], call=forced)
    assert [call.parameters for call in model.calls] == [
        {"tool_choice": "required", "temperature": 0.5},
        {"tool_choice": "auto", "temperature": 0.5},
    ]
