"""Chain mode: S42–S55 and the rules 4.1–4.4, through `run`.

The provider is always asked to go on from `resp_1`, and says that it does not know `resp_abc`: which id
it names must not matter. A `Chat` stands for whoever calls the loop. It keeps the whole history and
writes down which callback was called when, because the order of the callbacks is part of the rule.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.support.loop_harness import raise_failure

from indelible import tool
from indelible.content import File, Message, Reasoning, StreamError, Text, TextDelta, ToolCall, ToolResult
from indelible.errors import Interrupted, ModelFailed
from indelible.loop import FinishedStep, RetryPolicy, TurnFailed, TurnInterrupted
from indelible.loop.prompt.compact import make_summary
from indelible.loop.prompt.response_chain import plan_chain
from indelible.models import Call, CallOptions
from indelible.models.failures.classify import classify, classify_response
from indelible.server.health import PrometheusMetrics
from indelible.testing import ManualClock, ScriptedModel, parts
from indelible.testing.model import Script, Step

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness

NOT_FOUND = "Previous response with id 'resp_abc' not found."
UNAVAILABLE = "received status 503 from upstream"
CHAINED = CallOptions(store=True, previous_response_id="resp_1", parameters={"effort": "low"})

ANSWER: list[Step] = [parts.text_delta("1", "Better."), parts.finish("stop", response_id="resp_2")]
ASK: list[Step] = [
    parts.tool_call("c1", "weather", '{"city": "Oslo"}'),
    parts.finish("tool_calls", response_id="resp_2"),
]


@tool
async def weather(city: str) -> str:
    return f"rain in {city}"


def say(role: Any, text: str, **more: Any) -> Message:
    return Message(role=role, blocks=[Text(text)], **more)


SYSTEM = say("system", "Be brief.")
WHOLE = [SYSTEM, say("user", "Rain?"), say("assistant", "Yes."), say("user", "And now?")]
NEWS = [SYSTEM, say("user", "And now?")]
REMINDER = say("user", "(Mind the time.)")

BREAKS: dict[str, Callable[[], Script]] = {
    "raised by stream()": lambda: RuntimeError(NOT_FOUND),
    "raised by the iterator": lambda: [RuntimeError(NOT_FOUND)],
    "raised after a word": lambda: [parts.text_delta("1", "Wor"), RuntimeError(NOT_FOUND)],
    "an error part": lambda: [parts.error(RuntimeError(NOT_FOUND))],
    "an error part with nothing but the text": lambda: [StreamError(message=NOT_FOUND)],
    "a ModelFailed": lambda: ModelFailed(NOT_FOUND, kind="chain_broken"),
    "a ModelFailed inside the stream": lambda: [ModelFailed(NOT_FOUND, kind="chain_broken")],
    "a ModelFailed with nothing but the text": lambda: ModelFailed(NOT_FOUND),
}
every_set_of_callbacks = pytest.mark.parametrize(
    ("disable", "reload"), [(True, True), (True, False), (False, True), (False, False)]
)
every_break = pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS.keys())


class Chat:
    """The caller's side of a chained run."""

    def __init__(self, messages: list[Message], *, is_async: bool = False) -> None:
        self.messages = messages
        self.told: list[str] = []
        self.reload_error: BaseException | None = None
        self._is_async = is_async

    def _answer(self, value: Any, error: BaseException | None = None) -> Any:
        async def answer() -> Any:
            await asyncio.sleep(0)
            return self._say(value, error)

        return answer() if self._is_async else self._say(value, error)

    def _say(self, value: Any, error: BaseException | None) -> Any:
        if error is not None:
            raise error
        return value

    def disable(self) -> Any:
        self.told.append("disable")
        return self._answer(None)

    def reload(self) -> Any:
        self.told.append("reload")
        return self._answer(list(self.messages), self.reload_error)

    def prepare(self, messages: list[Message]) -> Any:
        self.told.append("prepare")
        return self._answer([*messages, REMINDER])

    def callbacks(self, *, disable: bool = True, reload: bool = True) -> dict[str, Any]:
        chosen = {"forget_responses": self.disable if disable else None}
        return chosen | {"reload_messages": self.reload if reload else None}


def read(call: Call) -> list[tuple[str, str]]:
    """What a call tells the model, in short."""
    return [(entry.role, "".join(getattr(block, "text", "") for block in entry.blocks)) for entry in call.messages]


def spell(messages: list[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


def ids_sent(model: ScriptedModel) -> list[str | None]:
    return [call.options.previous_response_id for call in model.calls]


# --- a broken chain ----------------------------------------------------------------------


@every_break
@pytest.mark.parametrize("is_async", [False, True], ids=["plain callbacks", "async callbacks"])
async def test_s42_a_broken_chain_is_left_and_the_whole_history_sent(
    harness: LoopHarness, broken: Callable[[], Script], *, is_async: bool
) -> None:
    chat = Chat(WHOLE, is_async=is_async)
    model = ScriptedModel([broken(), ANSWER], provider="openai")
    result = await harness.start(model, messages=NEWS, call=CHAINED, **chat.callbacks())
    assert len(model.calls) == 2
    assert chat.told == ["disable", "reload"]
    assert read(model.calls[0]) == spell(NEWS)
    assert read(model.calls[1]) == spell(WHOLE)
    assert ids_sent(model) == ["resp_1", None]
    assert model.calls[1].options == replace(CHAINED, previous_response_id=None)
    assert spell(result.messages) == [("assistant", "Better.")]
    assert [step.blocks for step in harness.saved] == [[Text("Better.")]]


GONE = "Response with id 'resp_abc' not found."
"""In the words of a server that has no code for it."""


async def test_any_404_to_a_chained_call_breaks_the_chain(harness: LoopHarness) -> None:
    """Rule 2.2. Without this, every later turn of the chat would ask for the same lost response."""
    for given in ({"error": {"message": GONE, "code": None}}, {"detail": "Not Found"}, None):
        body = None if given is None else json.dumps(given)
        chat = Chat(WHOLE)
        model = ScriptedModel([classify_response(provider="openai", status=404, body=body), ANSWER], provider="openai")
        result = await harness.start(model, messages=NEWS, call=CHAINED, **chat.callbacks())
        assert ids_sent(model) == ["resp_1", None]
        assert chat.told == ["disable", "reload"]
        assert spell(result.messages) == [("assistant", "Better.")]
    assert {(event.kind, event.delay_ms) for event in harness.retries} == {("chain_broken", 0)}


async def test_a_404_breaks_the_chain_once_in_a_turn_and_then_means_what_it_says(harness: LoopHarness) -> None:
    not_found = partial(
        classify_response, provider="openai", status=404, body='{"error": {"message": "No such model"}}'
    )
    model = ScriptedModel([not_found(), not_found()], provider="openai")
    result = await harness.start(model, messages=NEWS, call=CHAINED)
    assert isinstance(result, TurnFailed)
    assert isinstance(result.error, ModelFailed)
    assert (result.error.kind, result.error.status) == ("config", 404)
    assert ids_sent(model) == ["resp_1", None]
    plain = ScriptedModel([not_found()], provider="openai")
    assert isinstance(await harness.start(plain, messages=NEWS, call=CallOptions(store=True)), TurnFailed)
    assert len(plain.calls) == 1


async def test_s42_the_retry_is_at_once_and_announced(harness: LoopHarness) -> None:
    model = ScriptedModel([RuntimeError(NOT_FOUND), ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED)
    assert [(event.kind, event.delay_ms, event.attempt) for event in harness.retries] == [("chain_broken", 0, 1)]
    assert harness.clock.slept == []
    assert harness.attempts == [(1, 1), (1, 2)]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain callbacks", "async callbacks"])
async def test_s43_the_whole_preparation_runs_on_the_reloaded_history(harness: LoopHarness, *, is_async: bool) -> None:
    chat = Chat(WHOLE, is_async=is_async)
    model = ScriptedModel([RuntimeError(NOT_FOUND), ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED, prepare_messages=chat.prepare, **chat.callbacks())
    assert chat.told == ["prepare", "disable", "reload", "prepare"]
    assert read(model.calls[0]) == spell([*NEWS, REMINDER])
    assert read(model.calls[1]) == spell([*WHOLE, REMINDER])


async def test_s43_the_reloaded_history_is_made_legal_like_any_other(harness: LoopHarness) -> None:
    holed = [
        say("user", "Rain?"),
        Message(role="assistant", blocks=[ToolCall(id="c1", name="weather", arguments="{")]),
        say("notice", "Stopped by you."),
        say("user", "And now?"),
    ]
    model = ScriptedModel([RuntimeError(NOT_FOUND), ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED, **Chat(holed).callbacks())
    assert [entry.role for entry in model.calls[1].messages] == ["user", "assistant", "tool", "user"]


async def test_s44_the_reloaded_history_gets_its_cache_markers(harness: LoopHarness) -> None:
    history = [SYSTEM, say("system", "Be kind."), *WHOLE[1:]]
    model = ScriptedModel([RuntimeError(NOT_FOUND), ANSWER], provider="anthropic")
    await harness.start(model, messages=[say("user", "And now?")], call=CHAINED, **Chat(history).callbacks())
    assert len(model.calls[1].messages) == 5
    assert [at for at, entry in enumerate(model.calls[1].messages) if entry.cache] == [1, 3, 4]


async def test_s45_a_reload_without_a_disable_is_legal(harness: LoopHarness) -> None:
    chat = Chat(WHOLE)
    model = ScriptedModel([RuntimeError(NOT_FOUND), ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED, reload_messages=chat.reload)
    assert chat.told == ["reload"]
    assert ids_sent(model) == ["resp_1", None]
    assert read(model.calls[1]) == spell(WHOLE)


@every_set_of_callbacks
async def test_every_callback_may_be_absent_when_the_chain_breaks(
    harness: LoopHarness, *, disable: bool, reload: bool
) -> None:
    chat = Chat(WHOLE)
    model = ScriptedModel([RuntimeError(NOT_FOUND), ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED, **chat.callbacks(disable=disable, reload=reload))
    assert chat.told == [*(["disable"] if disable else []), *(["reload"] if reload else [])]
    assert ids_sent(model) == ["resp_1", None]
    assert read(model.calls[1]) == spell(WHOLE if reload else NEWS)


async def test_s46_after_a_recovery_no_step_has_an_id(harness: LoopHarness) -> None:
    chat = Chat(WHOLE)
    model = ScriptedModel([RuntimeError(NOT_FOUND), ASK, ANSWER], provider="openai")
    result = await harness.start(model, messages=NEWS, call=CHAINED, tools=[weather], **chat.callbacks())
    assert ids_sent(model) == ["resp_1", None, None]
    assert chat.told == ["disable", "reload"]
    assert [entry.role for entry in model.calls[2].messages] == [*(m.role for m in WHOLE), "assistant", "tool"]
    assert read(model.calls[2])[: len(WHOLE)] == spell(WHOLE)
    assert [message.role for message in result.messages] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain callbacks", "async callbacks"])
@pytest.mark.parametrize(
    "error", [OSError("database is locked"), TimeoutError(), Interrupted(), asyncio.CancelledError()], ids=repr
)
@pytest.mark.may_log("the history could not be reloaded")
async def test_s47_a_failing_reload_keeps_the_prompt_that_was_prepared(
    harness: LoopHarness, error: BaseException, *, is_async: bool
) -> None:
    chat = Chat(WHOLE, is_async=is_async)
    chat.reload_error = error
    model = ScriptedModel([RuntimeError(NOT_FOUND), ANSWER], provider="openai")
    result = await harness.start(
        model,
        messages=[*NEWS, say("notice", "Restarted.")],
        call=CHAINED,
        prepare_messages=chat.prepare,
        **chat.callbacks(),
    )
    assert result.reason == "stop"
    assert chat.told == ["prepare", "disable", "reload"]
    assert ids_sent(model) == ["resp_1", None]
    assert read(model.calls[1]) == spell([*NEWS, REMINDER])
    assert model.calls[1].messages == model.calls[0].messages


async def test_s47_a_reload_that_gives_nothing_at_all_has_failed(harness: LoopHarness) -> None:
    model = ScriptedModel([RuntimeError(NOT_FOUND), ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED, reload_messages=lambda: None)
    assert read(model.calls[1]) == spell(NEWS)


@every_break
async def test_s48_without_a_chain_it_is_a_plain_retry(harness: LoopHarness, broken: Callable[[], Script]) -> None:
    model = ScriptedModel([broken(), ANSWER], provider="openai")
    result = await harness.start(model, messages=WHOLE)
    assert result.reason == "stop"
    assert model.calls[0] == model.calls[1]
    assert ids_sent(model) == [None, None]


UNAVAILABLES: dict[str, Callable[[], Script]] = {
    "raised by stream()": lambda: RuntimeError(UNAVAILABLE),
    "raised by the iterator": lambda: [RuntimeError(UNAVAILABLE)],
    "an error part": lambda: [parts.error(RuntimeError(UNAVAILABLE))],
}


@pytest.mark.parametrize("failing", UNAVAILABLES.values(), ids=UNAVAILABLES.keys())
async def test_s49_a_503_while_chained_keeps_the_chain(harness: LoopHarness, failing: Callable[[], Script]) -> None:
    chat = Chat(WHOLE)
    model = ScriptedModel([failing(), ANSWER], provider="openai")
    await harness.start(
        model,
        messages=NEWS,
        call=CHAINED,
        prepare_messages=chat.prepare,
        clock=ManualClock(skip_sleeps=True),
        **chat.callbacks(),
    )
    assert chat.told == ["prepare"]
    assert ids_sent(model) == ["resp_1", "resp_1"]
    assert model.calls[0] == model.calls[1]
    assert [(event.kind, event.status) for event in harness.retries] == [("timeout", 503)]


@pytest.mark.parametrize("keep_failed", [False, True])
async def test_s49_holds_for_every_other_retryable_failure(harness: LoopHarness, *, keep_failed: bool) -> None:
    chat = Chat(WHOLE)
    failures: list[Script] = [
        ConnectionResetError(),
        ModelFailed("busy", kind="overloaded"),
        ModelFailed("slow down", kind="rate_limit", retry_after_s=7),
        [parts.reasoning_delta("r", "Let me see")],
    ]
    model = ScriptedModel([*failures, ANSWER], provider="openai")
    await harness.start(
        model,
        messages=NEWS,
        call=CHAINED,
        keep_failed=keep_failed,
        clock=ManualClock(skip_sleeps=True),
        **chat.callbacks(),
    )
    assert chat.told == []
    assert ids_sent(model) == ["resp_1"] * 5


@every_break
async def test_s50_a_broken_chain_is_classified_as_one_and_retryable(
    harness: LoopHarness, broken: Callable[[], Script]
) -> None:
    model = ScriptedModel([broken()], provider="openai")
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model, messages=NEWS, call=CHAINED, retry=RetryPolicy(max_attempts=1)))
    assert (caught.value.kind, caught.value.retryable, caught.value.chain_broken) == ("chain_broken", True, True)


async def test_s51_the_retry_metric_says_whether_the_chain_was_broken(harness: LoopHarness) -> None:
    metrics = PrometheusMetrics()
    model = ScriptedModel([RuntimeError(NOT_FOUND), RuntimeError(UNAVAILABLE), ANSWER], provider="openai", name="gpt")
    await harness.start(model, messages=NEWS, call=CHAINED, metrics=metrics, clock=ManualClock(skip_sleeps=True))

    def count(kind: str, chain_broken: str) -> float | None:
        labels = {"provider": "openai", "model": "gpt", "kind": kind, "chain_broken": chain_broken}
        return metrics.registry.get_sample_value("indelible_stream_retries_total", labels)

    assert count("chain_broken", "true") == 1
    assert count("timeout", "false") == 1
    assert count("chain_broken", "false") is None
    assert count("timeout", "true") is None


async def test_s52_a_truncated_chained_stream_is_never_stored_as_a_success(harness: LoopHarness) -> None:
    half: list[Step] = [parts.text_start("1"), parts.text_delta("1", "Bet")]
    model = ScriptedModel([half], provider="openai")
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model, messages=NEWS, call=CHAINED, retry=RetryPolicy(max_attempts=1)))
    assert caught.value.kind == "timeout"
    assert (harness.only.partial, harness.only.reason, harness.only.provider_response_id) == (True, "failed", None)
    assert [message.response_id for message in harness.only.messages()] == [None]


async def test_s52_a_truncated_chained_stream_is_tried_again(harness: LoopHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Bet")], ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED, clock=ManualClock(skip_sleeps=True))
    assert ids_sent(model) == ["resp_1", "resp_1"]
    assert (harness.only.blocks, harness.only.provider_response_id) == ([Text("Better.")], "resp_2")


class Store:
    """A chat on disk, small enough to see through: it keeps the ids of replies until it is told not to."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def send(self, text: str) -> None:
        self.messages.append(say("user", text))

    def save(self, step: FinishedStep) -> None:
        self.messages += step.messages()

    def forget_ids(self) -> None:
        self.messages = [replace(message, response_id=None) for message in self.messages]

    def load(self) -> list[Message]:
        return list(self.messages)

    @property
    def ids(self) -> list[str]:
        return [message.response_id for message in self.messages if message.response_id is not None]

    async def answer(self, harness: LoopHarness, model: ScriptedModel) -> None:
        plan = plan_chain(self.messages, model=model, options=CallOptions(store=True))
        await harness.start(
            model,
            messages=plan.messages,
            call=plan.options,
            persist_step=self.save,
            forget_responses=self.forget_ids,
            reload_messages=self.load,
        )


async def test_s53_a_poisoned_chat_heals_by_itself_and_the_new_answer_is_the_anchor(harness: LoopHarness) -> None:
    poisoned = say("assistant", "Yes.", provider="openai", model="gpt", response_id="resp_bad")
    store = Store([SYSTEM, say("user", "Rain?"), poisoned])
    better: list[Step] = [parts.text_delta("1", "No."), parts.finish("stop", response_id="resp_good")]
    model = ScriptedModel([RuntimeError(NOT_FOUND), better, ANSWER], provider="openai", name="gpt")

    store.send("And now?")
    await store.answer(harness, model)
    assert ids_sent(model) == ["resp_bad", None]
    assert store.ids == ["resp_good"]

    store.send("And tomorrow?")
    await store.answer(harness, model)
    assert ids_sent(model) == ["resp_bad", None, "resp_good"]
    assert read(model.calls[2]) == [("system", "Be brief."), ("user", "And tomorrow?")]
    assert store.ids == ["resp_good", "resp_2"]


async def test_s53_the_bad_id_is_erased_even_if_no_attempt_is_left(harness: LoopHarness) -> None:
    store = Store([say("user", "Rain?"), say("assistant", "Yes.", response_id="resp_bad"), say("user", "And now?")])
    model = ScriptedModel([RuntimeError(NOT_FOUND)], provider="openai")
    with pytest.raises(ModelFailed):
        await raise_failure(
            harness.start(
                model,
                messages=store.messages[-1:],
                call=CHAINED,
                retry=RetryPolicy(max_attempts=1),
                forget_responses=store.forget_ids,
            )
        )
    assert store.ids == []


def make_sdk_error(status: int, code: str | None, text: str) -> Exception:
    error = RuntimeError(text)
    error.status_code = status  # type: ignore[attr-defined]
    error.code = code  # type: ignore[attr-defined]
    return error


UNKNOWN_IDS: dict[str, Callable[[], Exception]] = {
    "another id": lambda: RuntimeError(NOT_FOUND),
    "the id that was sent": lambda: RuntimeError("Previous response with id 'resp_1' not found."),
    "in capitals": lambda: RuntimeError(NOT_FOUND.upper()),
    "inside other words": lambda: RuntimeError(f"Error code: 400 - {{'message': \"{NOT_FOUND}\"}}"),
    "a 400 with the code": lambda: make_sdk_error(400, "previous_response_not_found", "Bad request"),
    "a 404 with the code": lambda: make_sdk_error(404, "previous_response_not_found", "Not found"),
    "a 404 with the text": lambda: make_sdk_error(404, None, NOT_FOUND),
    "a 403 with the text": lambda: make_sdk_error(403, None, NOT_FOUND),
    "an answer's body": lambda: classify_response(
        provider="openai",
        status=400,
        body={"error": {"message": NOT_FOUND, "code": "previous_response_not_found", "type": "invalid_request_error"}},
    ),
    "an error event": lambda: classify_response(
        provider="openai", status=None, body={"type": "error", "code": "previous_response_not_found", "message": "?"}
    ),
}


@pytest.mark.parametrize("unknown", UNKNOWN_IDS.values(), ids=UNKNOWN_IDS.keys())
@pytest.mark.parametrize("provider", ["openai", "azure", "anthropic"])
async def test_s54_whatever_the_reason_that_the_provider_does_not_know_the_id(
    harness: LoopHarness, unknown: Callable[[], Exception], provider: str
) -> None:
    assert classify(unknown(), provider=provider).kind == "chain_broken"
    chat = Chat(WHOLE)
    model = ScriptedModel([unknown(), ANSWER], provider=provider)
    await harness.start(model, messages=NEWS, call=CHAINED, **chat.callbacks())
    assert chat.told == ["disable", "reload"]
    assert ids_sent(model) == ["resp_1", None]


async def test_s55_store_and_the_previous_id_are_sent_together_on_a_copy(harness: LoopHarness) -> None:
    given = CallOptions(store=True, parameters={"effort": "low"})
    model = ScriptedModel([ANSWER], provider="openai", name="gpt")
    plan = plan_chain([ASKED, ANCHOR, NEW], model=model, options=given)
    assert (plan.options.store, plan.options.previous_response_id) == (True, "resp_1")
    assert given == CallOptions(store=True, parameters={"effort": "low"})
    await harness.start(model, messages=plan.messages, call=plan.options)
    assert model.calls[0].options == CHAINED


# --- a chain that breaks in odd moments --------------------------------------------------


async def test_a_provider_that_goes_on_complaining_without_an_id_ends_by_the_retry_policy(harness: LoopHarness) -> None:
    model = ScriptedModel([RuntimeError(NOT_FOUND)] * 3, provider="openai")
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model, messages=NEWS, call=CHAINED, retry=RetryPolicy(max_attempts=3)))
    assert caught.value.chain_broken
    assert ids_sent(model) == ["resp_1", None, None]


async def test_a_failure_after_the_recovery_does_not_bring_the_id_back(harness: LoopHarness) -> None:
    chat = Chat(WHOLE)
    model = ScriptedModel([RuntimeError(NOT_FOUND), RuntimeError(UNAVAILABLE), ANSWER], provider="openai")
    clock = ManualClock(skip_sleeps=True)
    await harness.start(model, messages=NEWS, call=CHAINED, clock=clock, **chat.callbacks())
    assert ids_sent(model) == ["resp_1", None, None]
    assert chat.told == ["disable", "reload"]
    assert model.calls[1] == model.calls[2]


async def test_a_chain_that_breaks_after_visible_text_keeps_the_text_and_goes_on_without_the_id(
    harness: LoopHarness,
) -> None:
    chat = Chat(WHOLE)
    harness.answers = [[GO_ON]]
    model = ScriptedModel([[parts.text_delta("1", "Bet"), RuntimeError(NOT_FOUND)], ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED, keep_failed=True, **chat.callbacks())
    assert ids_sent(model) == ["resp_1", None]
    assert chat.told == ["disable", "reload"]
    assert read(model.calls[1]) == [*spell(WHOLE), ("assistant", "Bet"), ("user", "Go on.")]
    assert [step.provider_response_id for step in harness.saved] == [None, "resp_2"]


async def test_a_stop_while_the_history_is_reloaded_ends_the_run_and_keeps_what_was_written(
    harness: LoopHarness,
) -> None:
    reloading = asyncio.Event()

    async def reload() -> list[Message]:
        reloading.set()
        await asyncio.get_running_loop().create_future()
        return []

    model = ScriptedModel([[parts.text_delta("1", "Bet"), RuntimeError(NOT_FOUND)]], provider="openai")
    task = harness.start(model, messages=NEWS, call=CHAINED, reload_messages=reload)
    await reloading.wait()
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)
    assert harness.only.blocks == [Text("Bet")]


@pytest.mark.parametrize("hook", ["forget_responses", "reload_messages"])
async def test_a_stop_from_within_a_callback_asks_the_model_no_more(harness: LoopHarness, hook: str) -> None:
    def stop() -> list[Message]:
        harness.scope.interrupt()
        return WHOLE

    model = ScriptedModel([RuntimeError(NOT_FOUND)], provider="openai")
    assert isinstance(await harness.start(model, messages=NEWS, call=CHAINED, **{hook: stop}), TurnInterrupted)
    assert len(model.calls) == 1
    assert harness.saved == []


# --- 4.3: the second step ----------------------------------------------------------------


@every_set_of_callbacks
async def test_the_chain_is_left_before_the_second_step(harness: LoopHarness, *, disable: bool, reload: bool) -> None:
    chat = Chat(WHOLE)

    def save(step: FinishedStep) -> None:
        chat.messages = [*chat.messages, *step.messages()]

    model = ScriptedModel([ASK, ASK, ANSWER], provider="openai")
    await harness.start(
        model,
        messages=NEWS,
        call=CHAINED,
        tools=[weather],
        persist_step=save,
        **chat.callbacks(disable=disable, reload=reload),
    )
    assert chat.told == [*(["disable"] if disable else []), *(["reload"] if reload else [])]
    assert ids_sent(model) == ["resp_1", None, None]
    begun = spell(WHOLE if reload else NEWS)
    assert read(model.calls[1]) == [*begun, ("assistant", ""), ("tool", "")]
    assert read(model.calls[2]) == [*begun, ("assistant", ""), ("tool", ""), ("assistant", ""), ("tool", "")]


@pytest.mark.may_log("the history could not be reloaded")
async def test_a_reload_that_fails_before_the_second_step_leaves_the_step_appended(harness: LoopHarness) -> None:
    chat = Chat(WHOLE)
    chat.reload_error = OSError("database is locked")
    model = ScriptedModel([ASK, ANSWER], provider="openai")
    await harness.start(model, messages=NEWS, call=CHAINED, tools=[weather], **chat.callbacks())
    assert chat.told == ["disable", "reload"]
    assert ids_sent(model) == ["resp_1", None]
    assert read(model.calls[1]) == [*spell(NEWS), ("assistant", ""), ("tool", "")]


async def test_the_step_that_continues_a_failed_one_is_a_second_step(harness: LoopHarness) -> None:
    """What was half said is in no response that the provider stored, so its id can not be built on."""
    chat = Chat(NEWS)
    model = ScriptedModel([[parts.text_delta("1", "Bet"), RuntimeError(UNAVAILABLE)], ANSWER], provider="openai")
    clock = ManualClock(skip_sleeps=True)
    await harness.start(
        model, messages=NEWS, call=CHAINED, keep_failed=True, clock=clock, **chat.callbacks(reload=False)
    )
    assert chat.told == ["disable"]
    assert ids_sent(model) == ["resp_1", None]
    assert read(model.calls[1])[:3] == [*spell(NEWS), ("assistant", "Bet")]


async def test_a_run_that_is_not_chained_calls_nobody_between_steps(harness: LoopHarness) -> None:
    chat = Chat(WHOLE)
    model = ScriptedModel([ASK, ANSWER], provider="openai")
    await harness.start(model, messages=WHOLE, call=CallOptions(store=True), tools=[weather], **chat.callbacks())
    assert chat.told == []


# --- 4.2: which replies carry an id ------------------------------------------------------


@pytest.mark.parametrize(("store", "kept"), [(True, "resp_2"), (False, None)])
async def test_a_response_id_is_kept_only_if_the_provider_was_to_store_it(
    harness: LoopHarness, *, store: bool, kept: str | None
) -> None:
    await harness.start(ScriptedModel([ANSWER], provider="openai"), call=CallOptions(store=store))
    assert harness.only.provider_response_id == kept
    assert [message.response_id for message in harness.only.messages()] == [kept]


async def test_a_reply_that_reached_its_length_limit_carries_no_id(harness: LoopHarness) -> None:
    cut: list[Step] = [parts.text_delta("1", "Bet"), parts.finish("length", response_id="resp_2")]
    await harness.start(ScriptedModel([cut], provider="openai"), call=CHAINED)
    assert (harness.only.partial, harness.only.provider_response_id) == (True, None)


async def test_an_interrupted_reply_carries_no_id(harness: LoopHarness) -> None:
    model = ScriptedModel([[parts.text_delta("1", "Bet"), parts.hang()]], provider="openai")
    task = harness.start(model, messages=NEWS, call=CHAINED)
    await harness.heard(TextDelta)
    harness.scope.interrupt()
    assert isinstance(await task, TurnInterrupted)
    assert (harness.only.partial, harness.only.provider_response_id) == (True, None)


async def test_a_reply_whose_tools_were_stopped_carries_no_id(harness: LoopHarness) -> None:
    @tool
    async def stopping() -> str:
        harness.scope.interrupt()
        await asyncio.get_running_loop().create_future()
        return "never"

    ask: list[Step] = [parts.tool_call("c1", "stopping", "{}"), parts.finish("tool_calls", response_id="resp_2")]
    assert isinstance(
        await harness.start(ScriptedModel([ask], provider="openai"), call=CHAINED, tools=[stopping]), TurnInterrupted
    )
    assert (harness.only.partial, harness.only.provider_response_id) == (True, None)


async def test_a_reply_that_the_content_filter_withheld_carries_no_id(harness: LoopHarness) -> None:
    withheld: list[Step] = [parts.reasoning_delta("r", "Hm."), parts.finish("content_filter", response_id="resp_2")]
    with pytest.raises(ModelFailed):
        await raise_failure(harness.start(ScriptedModel([withheld], provider="openai"), call=CHAINED))
    assert (harness.only.reason, harness.only.provider_response_id) == ("failed", None)


# --- 4.1: when a chain is used -----------------------------------------------------------

ANCHOR = say("assistant", "Yes.", provider="openai", model="gpt", response_id="resp_1")
ASKED = say("user", "Rain?")
NEW = say("user", "And now?")
GPT = ScriptedModel(provider="openai", name="gpt")
STORING = CallOptions(store=True)
CALLING = replace(ANCHOR, blocks=[*ANCHOR.blocks, ToolCall(id="c1", name="weather", arguments="{}")])
ANSWERED = Message(role="tool", blocks=[ToolResult(call_id="c1", name="weather", output="rain")])
SEARCHING = replace(ANCHOR, blocks=[ToolCall(id="w1", name="web_search", provider_executed=True), *ANCHOR.blocks])
GO_ON = say("user", "Go on.", visibility="model")
PICTURE = Message(role="user", blocks=[File(media_type="image/png", file_id="f1")])


LINKED: dict[str, tuple[list[Message], list[Message]]] = {
    "the next message": ([SYSTEM, ASKED, ANCHOR, NEW], [SYSTEM, NEW]),
    "several messages": ([ASKED, ANCHOR, NEW, say("user", "Well?")], [NEW, say("user", "Well?")]),
    "system messages, wherever they stand": (
        [SYSTEM, ASKED, ANCHOR, say("system", "Be kind."), NEW],
        [SYSTEM, say("system", "Be kind."), NEW],
    ),
    "no notice": ([ASKED, ANCHOR, say("notice", "Hello"), NEW], [NEW]),
    "nothing for people only": ([ASKED, ANCHOR, say("user", "psst", visibility="people"), NEW], [NEW]),
    "a hidden instruction": ([ASKED, ANCHOR, GO_ON], [GO_ON]),
    "nothing from before": ([ASKED, CALLING, ANSWERED, ASKED, ANCHOR, NEW], [NEW]),
    "an anchor that nobody signed": ([ASKED, replace(ANCHOR, provider=None, model=None), NEW], [NEW]),
    "an anchor with a call that the provider ran": ([ASKED, SEARCHING, NEW], [NEW]),
    "a picture beside the words": ([ASKED, ANCHOR, PICTURE, NEW], [PICTURE, NEW]),
}


@pytest.mark.parametrize(("history", "sent"), LINKED.values(), ids=LINKED.keys())
def test_a_chained_prompt_is_the_system_messages_and_what_the_user_wrote_since(
    history: list[Message], sent: list[Message]
) -> None:
    plan = plan_chain(history, model=GPT, options=STORING)
    assert plan.options == replace(STORING, previous_response_id="resp_1")
    assert plan.messages == sent


REFUSED: dict[str, tuple[list[Message], CallOptions]] = {
    "store is off": ([ASKED, ANCHOR, NEW], CallOptions()),
    "there is no reply": ([ASKED, NEW], STORING),
    "there is nothing at all": ([], STORING),
    "the reply has no id": ([ASKED, replace(ANCHOR, response_id=None), NEW], STORING),
    "the reply is partial": ([ASKED, replace(ANCHOR, partial=True, reason="interrupted"), NEW], STORING),
    "the reply is partial for no reason": ([ASKED, replace(ANCHOR, partial=True), NEW], STORING),
    "the reply was cut while thinking": ([ASKED, replace(ANCHOR, reason="interrupted"), NEW], STORING),
    "another provider wrote it": ([ASKED, replace(ANCHOR, provider="azure"), NEW], STORING),
    "another model wrote it": ([ASKED, replace(ANCHOR, model="gpt-mini"), NEW], STORING),
    "the user said nothing since": ([ASKED, ANCHOR], STORING),
    "the user said nothing but blanks since": ([ASKED, ANCHOR, say("user", " \n")], STORING),
    "only a notice came since": ([ASKED, ANCHOR, say("notice", "Restarted.")], STORING),
    "only a row for people came since": ([ASKED, ANCHOR, say("user", "psst", visibility="people")], STORING),
    "a local call is unanswered": ([ASKED, CALLING, NEW], STORING),
    "a later reply has no id": ([ASKED, ANCHOR, NEW, replace(ANCHOR, response_id=None), NEW], STORING),
    "a later reply is reasoning that was stopped": (
        [ASKED, ANCHOR, NEW, Message(role="assistant", blocks=[Reasoning("Hm")], reason="interrupted"), NEW],
        STORING,
    ),
    "its calls were answered, which the provider does not know": ([ASKED, CALLING, ANSWERED, NEW], STORING),
    "the conversation was summarised since": ([ASKED, ANCHOR, make_summary("Rain.", keep_last=0), NEW], STORING),
}


@pytest.mark.parametrize(("history", "options"), REFUSED.values(), ids=REFUSED.keys())
def test_everything_is_sent_without_an_id_if(history: list[Message], options: CallOptions) -> None:
    given = replace(options, previous_response_id="resp_stale")
    plan = plan_chain(history, model=GPT, options=given)
    assert plan.messages == history
    assert plan.options == options


def test_planning_changes_neither_the_history_nor_the_options() -> None:
    history = [SYSTEM, ASKED, ANCHOR, NEW]
    plan = plan_chain(history, model=GPT, options=STORING)
    plan.messages.clear()
    assert history == [SYSTEM, ASKED, ANCHOR, NEW]
    assert plan_chain(history, model=GPT, options=STORING).messages == [SYSTEM, NEW]
