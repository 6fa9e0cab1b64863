"""Chain mode over real HTTP: S42–S55 against the simulated Responses API, S44 against Anthropic's.

tests/loop/test_chain.py tests the rules themselves with a scripted model. Here the requests are read as the provider
received them, byte for byte, and the provider really stores, and really loses, responses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.app_harness import AppHarness, make_settings
from tests.support.loop_harness import run_turn
from tests.support.stored import load_path

from indelible import tool
from indelible.content import Message, Text
from indelible.errors import ModelFailed
from indelible.loop import FinishedStep, RetryPolicy
from indelible.models.catalog import Catalog
from indelible.models.http.http_model import HttpModel
from indelible.models.protocol import CallOptions
from indelible.models.retry import RetryEvent
from indelible.server.health import PrometheusMetrics
from indelible.settings import load_settings
from indelible.testing import ManualClock, SimulatedProvider, parts
from indelible.testing.model import Script, Step
from indelible.testing.provider.faults import Cut, ErrorEvent, Fault, Status

ANSWER: list[Step] = [parts.text_delta("1", "Better."), parts.finish("stop")]
ASK: list[Step] = [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]
NOT_FOUND = "Previous response with id 'resp_x' not found."
FORGOTTEN = CallOptions(store=True, previous_response_id="resp_forgotten")


@tool
async def weather(city: str) -> str:
    return f"rain in {city}"


def make_message(role: Any, text: str, **more: Any) -> Message:
    return Message(role=role, blocks=[Text(text)], **more)


SYSTEM = make_message("system", "Be brief.")
WHOLE = [SYSTEM, make_message("user", "Rain?"), make_message("assistant", "Yes."), make_message("user", "And now?")]
NEWS = [SYSTEM, make_message("user", "And now?")]
REMINDER = make_message("user", "(Mind the time.)")
TOLD_WHOLE = [("user", "Rain?"), ("assistant", "Yes."), ("user", "And now?")]


class Caller:
    """Whoever calls the loop: which callback was called when, and what was kept."""

    def __init__(self, messages: Sequence[Message] = WHOLE) -> None:
        self.told: list[str] = []
        self.steps: list[FinishedStep] = []
        self.retries: list[RetryEvent] = []
        self.metrics = PrometheusMetrics()
        self.reload_error: Exception | None = None
        self._messages = list(messages)

    def disable(self) -> None:
        self.told.append("disable")

    def reload(self) -> list[Message]:
        self.told.append("reload")
        if self.reload_error is not None:
            raise self.reload_error
        return self._messages

    def prepare(self, messages: list[Message]) -> list[Message]:
        self.told.append("prepare")
        return [*messages, REMINDER]

    def save(self, step: FinishedStep) -> None:
        self.steps.append(step)

    async def ask(self, model: HttpModel, messages: Sequence[Message] = NEWS, **more: Any) -> None:
        given: dict[str, Any] = {
            "call": FORGOTTEN,
            "forget_responses": self.disable,
            "reload_messages": self.reload,
        }
        await run_turn(
            model=model,
            messages=list(messages),
            persist_step=self.save,
            schedule_retry=self.retries.append,
            metrics=self.metrics,
            clock=ManualClock(skip_sleeps=True),
            **(given | more),
        )


@asynccontextmanager
async def serve(
    scripts: Sequence[Script], faults: Sequence[Fault | None] = (), *, wire: Any = "openai"
) -> AsyncIterator[tuple[SimulatedProvider, HttpModel]]:
    async with SimulatedProvider(scripts, faults) as provider:
        name = f"{wire}:gpt@{provider.base_url(wire)}"
        catalog = Catalog(load_settings(model=name), environment={})
        try:
            model = catalog.find(name)
            assert isinstance(model, HttpModel)
            yield provider, model
        finally:
            await catalog.aclose()


def read(provider: SimulatedProvider, at: int) -> list[tuple[str, str]]:
    """The messages of a request, as the provider got them."""
    body = provider.requests[at].body
    assert body is not None
    return [(item["role"], _read_text(item["content"])) for item in body["input"] if "role" in item]


def _read_text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(piece.get("text", "") for piece in content)


def list_ids(provider: SimulatedProvider) -> list[str | None]:
    return [request.body.get("previous_response_id") for request in provider.requests if request.body is not None]


async def test_s42_a_broken_chain_is_left_and_the_whole_history_sent() -> None:
    caller = Caller()
    async with serve([ANSWER]) as (provider, model):
        await caller.ask(model)
    assert caller.told == ["disable", "reload"]
    assert list_ids(provider) == ["resp_forgotten", None]
    assert read(provider, 0) == [("user", "And now?")]
    assert read(provider, 1) == TOLD_WHOLE
    assert all(request.body and request.body["instructions"] == "Be brief." for request in provider.requests)


async def test_s43_the_whole_preparation_runs_on_the_reloaded_history() -> None:
    caller = Caller()
    async with serve([ANSWER]) as (provider, model):
        await caller.ask(model, prepare_messages=caller.prepare)
    assert caller.told == ["prepare", "disable", "reload", "prepare"]
    assert read(provider, 1)[:2] == TOLD_WHOLE[:2]
    assert "And now?" in read(provider, 1)[-2][1] + read(provider, 1)[-1][1]
    assert "(Mind the time.)" in read(provider, 1)[-1][1]


async def test_s44_at_anthropic_the_reloaded_history_gets_its_cache_markers() -> None:
    five = [make_message("system", "One."), make_message("system", "Two."), *WHOLE[1:]]
    not_found = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "Previous response with id 'x' not found."},
    }
    caller = Caller(five)
    async with serve([ANSWER], [Status(400, not_found)], wire="anthropic") as (provider, model):
        await caller.ask(model)
    assert caller.told == ["disable", "reload"]
    body = provider.requests[1].body
    assert body is not None
    entries = [*body["system"], *(message["content"][-1] for message in body["messages"])]
    assert [entry["text"] for entry in entries] == ["One.", "Two.", "Rain?", "Yes.", "And now?"]
    assert [at for at, entry in enumerate(entries) if "cache_control" in entry] == [1, 3, 4]
    assert "previous_response_id" not in body


async def test_s45_a_reload_without_a_disable_is_legal() -> None:
    caller = Caller()
    async with serve([ANSWER]) as (provider, model):
        await caller.ask(model, forget_responses=None)
    assert caller.told == ["reload"]
    assert list_ids(provider) == ["resp_forgotten", None]
    assert read(provider, 1) == TOLD_WHOLE


async def test_s46_after_a_recovery_no_step_has_an_id() -> None:
    caller = Caller()
    async with serve([ASK, ANSWER]) as (provider, model):
        await caller.ask(model, tools=[weather])
    assert list_ids(provider) == ["resp_forgotten", None, None]
    last = provider.requests[2].body
    assert last is not None
    assert [item["type"] for item in last["input"] if "role" not in item] == ["function_call", "function_call_output"]
    assert last["input"][-1]["output"] == "rain in Oslo"


@pytest.mark.may_log("the history could not be reloaded")
async def test_s47_a_failing_reload_keeps_the_prompt_that_was_prepared() -> None:
    caller = Caller()
    caller.reload_error = OSError("the database is away")
    async with serve([ANSWER]) as (provider, model):
        await caller.ask(model, prepare_messages=caller.prepare)
    assert caller.told == ["prepare", "disable", "reload"]
    assert list_ids(provider) == ["resp_forgotten", None]
    first, second = (request.body for request in provider.requests)
    assert first is not None
    assert second is not None
    assert first["input"] == second["input"]
    assert "(Mind the time.)" in str(second["input"])


async def test_s48_without_a_chain_it_is_a_plain_retry() -> None:
    caller = Caller()
    unasked = Status(400, {"error": {"message": NOT_FOUND, "type": "invalid_request_error"}})
    async with serve([ANSWER], [unasked]) as (provider, model):
        await caller.ask(model, WHOLE, call=CallOptions(), forget_responses=None, reload_messages=None)
    assert list_ids(provider) == [None, None]
    assert read(provider, 0) == read(provider, 1) == TOLD_WHOLE


async def test_s49_a_503_while_chained_keeps_the_chain() -> None:
    caller = Caller()
    async with serve([ANSWER, ANSWER], [None, Status(503)]) as (provider, model):
        await caller.ask(model, call=CallOptions(store=True))
        [stored] = caller.steps
        kept = CallOptions(store=True, previous_response_id=stored.provider_response_id)
        await caller.ask(model, call=kept)
    assert caller.told == []
    assert stored.provider_response_id is not None
    assert list_ids(provider) == [None, stored.provider_response_id, stored.provider_response_id]


async def test_s50_a_broken_chain_is_classified_as_one_and_retryable() -> None:
    caller = Caller()
    async with serve([]) as (_, model):
        with pytest.raises(ModelFailed) as caught:
            await caller.ask(model, retry=RetryPolicy(max_attempts=1))
    assert (caught.value.kind, caught.value.retryable, caught.value.chain_broken) == ("chain_broken", True, True)
    assert caught.value.provider == "openai"


async def test_s51_the_retry_metric_says_whether_the_chain_was_broken() -> None:
    caller = Caller()
    async with serve([ANSWER], [None, Status(503)]) as (_, model):
        await caller.ask(model)

    def count(kind: str, chain_broken: str) -> float | None:
        labels = {"provider": "openai", "model": model.name, "kind": kind, "chain_broken": chain_broken}
        return caller.metrics.registry.get_sample_value("indelible_stream_retries_total", labels)

    assert (count("chain_broken", "true"), count("timeout", "false")) == (1, 1)
    assert (count("chain_broken", "false"), count("timeout", "true")) == (None, None)
    assert [event.kind for event in caller.retries] == ["chain_broken", "timeout"]


@pytest.mark.parametrize("clean", [True, False], ids=["as if it were whole", "by a reset"])
async def test_s52_a_truncated_chained_stream_is_never_stored_as_a_success(*, clean: bool) -> None:
    caller = Caller()
    async with serve([ANSWER, ANSWER], [None, Cut(at_byte=2500, clean=clean)]) as (provider, model):
        await caller.ask(model, call=CallOptions(store=True))
        kept = CallOptions(store=True, previous_response_id=caller.steps[0].provider_response_id)
        with pytest.raises(ModelFailed) as caught:
            await caller.ask(model, call=kept, retry=RetryPolicy(max_attempts=1))
    assert caught.value.kind == "timeout"
    assert list_ids(provider)[1] == kept.previous_response_id
    assert [step.provider_response_id for step in caller.steps[1:]] == [None] * len(caller.steps[1:])
    assert all(step.reason == "failed" for step in caller.steps[1:])


@pytest.mark.both_databases
@pytest.mark.parametrize("is_known", [True, False], ids=["by its code", "any 404"])
async def test_s53_a_poisoned_chat_heals_by_itself_and_the_new_answer_is_the_anchor(
    engine: AsyncEngine, *, is_known: bool
) -> None:
    """Through the whole stack, on both databases: the stored bad id is gone, and the next turn is chained again."""
    async with AppHarness(engine).opened() as harness, SimulatedProvider([ANSWER] * 4) as provider:
        name = f"openai:gpt@{provider.base_url('openai')}"
        settings = make_settings(model=name, chain_models=[name])
        catalog = Catalog(settings, environment={})
        try:
            await harness.start_worker(catalog.find(name), settings=settings)
            chat = await harness.app.create_chat(system="Be brief.")
            for text in ("One?", "Two?"):
                await chat.send(text)
            if is_known:
                provider.forget_responses()
            else:
                provider.faults.append(Status(404, {"error": {"message": "Response with id 'resp_x' not found."}}))
            for text in ("Three?", "Four?"):
                await chat.send(text)
            said = await load_path(harness.store, chat.id)
        finally:
            await catalog.aclose()
    kept = [message.response_id for message in said if message.role == "assistant"]
    first, second, broken, healed, chained = list_ids(provider)
    assert first is None
    assert second is not None
    assert broken is not None
    assert healed is None
    assert [read(provider, at) for at in (1, 2)] == [[("user", "Two?")], [("user", "Three?")]]
    assert [text for role, text in read(provider, 3) if role == "user"] == ["One?", "Two?", "Three?"]
    assert kept[:2] == [None, None]
    assert kept[2] == chained
    assert kept[3] is not None


@pytest.mark.parametrize(
    "fault",
    [
        Status(400, {"error": {"message": "Bad request", "code": "previous_response_not_found"}}),
        Status(404, {"error": {"message": "Previous response with id 'resp_other' not found.", "code": None}}),
        Status(403, {"error": {"message": "Previous response with id 'resp_x' not found in this project."}}),
        Status(400, b"Previous response with id 'resp_x' not found."),
        Status(404, {"error": {"message": "Response with id 'resp_x' not found.", "code": None}}),
        ErrorEvent(0, {"type": "error", "code": "previous_response_not_found", "message": "?"}),
        ErrorEvent(2, {"type": "error", "code": None, "message": "Previous response with id 'r' not found."}),
    ],
    ids=["by its code", "another id", "another project", "no JSON", "any 404", "an event at once", "an event later"],
)
async def test_s54_whatever_the_reason_that_the_provider_does_not_know_the_id(fault: Fault) -> None:
    caller = Caller()
    async with serve([ANSWER, ANSWER, ANSWER], [None, fault]) as (provider, model):
        await caller.ask(model, call=CallOptions(store=True))
        kept = CallOptions(store=True, previous_response_id=caller.steps[0].provider_response_id)
        await caller.ask(model, call=kept)
    assert caller.told == ["disable", "reload"]
    assert list_ids(provider) == [None, kept.previous_response_id, None]
    assert read(provider, 2) == TOLD_WHOLE


async def test_s55_store_and_the_previous_id_are_sent_together_on_a_copy() -> None:
    caller = Caller()
    given = CallOptions(store=True, parameters={"effort": "low"})
    async with serve([ANSWER, ANSWER]) as (provider, model):
        await caller.ask(model, call=given)
        chained = CallOptions(store=True, previous_response_id=caller.steps[0].provider_response_id)
        await caller.ask(model, call=chained)
    assert given == CallOptions(store=True, parameters={"effort": "low"})
    first, second = (request.body for request in provider.requests)
    assert first is not None
    assert second is not None
    assert (first["store"], "previous_response_id" in first) == (True, False)
    assert (second["store"], second["previous_response_id"]) == (True, chained.previous_response_id)


async def test_without_chain_mode_nothing_is_stored_and_nothing_is_leaned_on(engine: AsyncEngine) -> None:
    async with AppHarness(engine).opened() as harness, SimulatedProvider([ANSWER] * 2) as provider:
        name = f"openai:gpt@{provider.base_url('openai')}"
        catalog = Catalog(make_settings(model=name), environment={})
        try:
            await harness.start_worker(catalog.find(name))
            chat = await harness.app.create_chat()
            for text in ("One?", "Two?"):
                await chat.send(text)
        finally:
            await catalog.aclose()
    assert list_ids(provider) == [None, None]
    assert [request.body["store"] for request in provider.requests if request.body] == [False, False]
