"""What the loop counts: the names and labels of docs/operations.md, and that a model can not invent a label.

Everything here is counted by a real turn through `run` and read back from the registry, as a scrape would.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.loop_harness import run_turn

from indelible import tool
from indelible.content import Message, Text
from indelible.errors import ModelFailed
from indelible.loop import FinishedStep
from indelible.metrics import NO_METRICS, Metrics
from indelible.models import Call
from indelible.server.health import PrometheusMetrics
from indelible.testing import ManualClock, ScriptedModel, parts
from indelible.testing.model import Step

ANSWER: list[Step] = [parts.text_delta("1", "It rains."), parts.finish("stop")]
MODEL = {"provider": "openai", "model": "gpt"}
RETRY = {"kind": "timeout", "chain_broken": "false"}
OLD = Message(role="user", blocks=[Text("Tell me all about rain. " * 100)])
HISTORY = [OLD, *(Message(role="user", blocks=[Text(text)]) for text in ("Snow?", "Hail?", "And now?"))]


@tool
async def weather(city: str) -> str:
    return f"rain in {city}"


@tool
async def library() -> str:
    return "x" * 100_000


@tool
async def failing() -> str:
    raise LookupError("no such city")


def ask(*calls: tuple[str, str]) -> list[Any]:
    made = [parts.tool_call(f"c{number}", name, arguments) for number, (name, arguments) in enumerate(calls)]
    return [*made, parts.finish("tool_calls")]


class Counted:
    """A registry, read by short names."""

    def __init__(self) -> None:
        self.metrics = PrometheusMetrics()

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"indelible_{name}", labels)

    @property
    def names(self) -> set[str]:
        return {sample.name for family in self.metrics.registry.collect() for sample in family.samples}

    def label_values(self, label: str) -> set[str]:
        samples = [sample for family in self.metrics.registry.collect() for sample in family.samples]
        return {sample.labels[label] for sample in samples if label in sample.labels}


@pytest.fixture
def counted() -> Counted:
    return Counted()


async def play(counted: Counted, streams: list[Any], **more: Any) -> list[FinishedStep]:
    saved: list[FinishedStep] = []

    given: dict[str, Any] = {"messages": HISTORY, "clock": ManualClock(skip_sleeps=True)}
    model = ScriptedModel(streams, provider="openai", name="gpt")
    await run_turn(model=model, persist_step=saved.append, metrics=counted.metrics, **(given | more))
    return saved


async def test_a_turn_counts_its_steps_its_prompts_and_the_time_to_the_first_part(counted: Counted) -> None:
    clock = ManualClock()

    async def stream(call: Call) -> Any:
        clock.advance(2)
        for part in ANSWER:
            yield part

    await play(counted, [ask(("weather", '{"city": "Oslo"}')), stream], tools=[weather], clock=clock)
    assert counted.value("steps_total", **MODEL) == 2
    assert counted.value("ttft_seconds_count", **MODEL) == 2
    assert counted.value("ttft_seconds_sum", **MODEL) == 2
    assert counted.value("message_count_count", **MODEL) == 2
    assert counted.value("message_count_sum", **MODEL) == len(HISTORY) + len(HISTORY) + 2
    assert (counted.value("prompt_size_bytes_sum", **MODEL) or 0) > 2 * len(OLD.text)


async def test_a_tool_is_counted_with_its_time_and_the_size_of_its_result(counted: Counted) -> None:
    clock = ManualClock()

    @tool
    async def slow() -> str:
        clock.advance(3)
        return "é"

    await play(counted, [ask(("slow", "{}")), ANSWER], tools=[slow], clock=clock)
    assert counted.value("tool_seconds_sum", tool="slow") == 3
    assert counted.value("tool_result_size_bytes_sum", tool="slow") == 2
    assert counted.value("tool_errors_total", tool="slow") is None
    assert counted.value("tool_result_truncated_total", tool="slow") is None


async def test_a_result_that_was_cut_is_counted(counted: Counted) -> None:
    await play(counted, [ask(("library", "{}")), ANSWER], tools=[library])
    assert counted.value("tool_result_truncated_total", tool="library") == 1
    assert (counted.value("tool_result_size_bytes_sum", tool="library") or 0) <= 64 * 1024


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("failing", "{}"), ("weather", '{"city"'), ("weather", "[]"), ("weather", "{}"), ("weather", '{"city": {}}')],
    ids=["it raised", "half the arguments", "no object", "an argument is missing", "an argument is wrong"],
)
@pytest.mark.may_log("the tool failing raised an error")
async def test_every_error_result_is_counted_under_its_tool(counted: Counted, name: str, arguments: str) -> None:
    await play(counted, [ask((name, arguments)), ANSWER], tools=[weather, failing])
    assert counted.value("tool_errors_total", tool=name) == 1


async def test_a_name_that_no_tool_has_is_counted_as_unknown(counted: Counted) -> None:
    calls = [("rm_rf", "{}"), ("", "{}"), ("weather ", "{}"), ("weather", '{"city": "Oslo"}')]
    await play(counted, [ask(*calls), ANSWER], tools=[weather])
    assert counted.label_values("tool") == {"unknown", "weather"}
    assert counted.value("tool_errors_total", tool="unknown") == 3
    assert counted.value("tool_seconds_count", tool="weather") == 1


async def test_a_tool_that_is_not_active_keeps_its_name(counted: Counted) -> None:
    await play(counted, [ask(("weather", "{}")), ANSWER], tools=[weather, failing], active_tools=["failing"])
    assert counted.value("tool_errors_total", tool="weather") == 1
    assert counted.label_values("tool") == {"weather"}


async def test_retries_are_counted_by_kind(counted: Counted) -> None:
    streams = [RuntimeError("received status 503 from upstream"), [], ModelFailed("busy", kind="overloaded"), ANSWER]
    await play(counted, streams)
    assert counted.value("stream_retries_total", **MODEL, **RETRY) == 2
    assert counted.value("stream_retries_total", **MODEL, **(RETRY | {"kind": "overloaded"})) == 1
    assert counted.value("steps_total", **MODEL) == 1


async def test_a_failure_that_is_not_tried_again_is_no_retry(counted: Counted) -> None:
    with pytest.raises(ModelFailed):
        await play(counted, [ModelFailed("no key", kind="auth")])
    assert "indelible_stream_retries_total" not in counted.names
    assert "indelible_steps_total" not in counted.names


def overflow() -> ModelFailed:
    return ModelFailed("too long", kind="context_overflow")


async def test_a_compaction_is_counted_by_its_result(counted: Counted) -> None:
    await play(counted, [overflow(), ANSWER, ANSWER])
    assert counted.value("compaction_total", result="done") == 1
    assert counted.label_values("result") == {"done"}


@pytest.mark.may_log("the conversation could not be summarised")
async def test_a_compaction_that_failed_is_not_counted_as_one_that_was_not_needed(counted: Counted) -> None:
    with pytest.raises(ModelFailed):
        await play(counted, [overflow(), ModelFailed("busy", kind="overloaded")])
    (failed,) = counted.label_values("result")
    with pytest.raises(ModelFailed):
        await play(counted, [overflow()], messages=[])
    assert len(counted.label_values("result")) == 2
    assert counted.value("compaction_total", result=failed) == 1


LOOP_NAMES = [
    "steps_total",
    "stream_retries_total",
    "ttft_seconds_count",
    "inter_part_seconds_count",
    "prompt_size_bytes_count",
    "message_count_count",
    "tool_seconds_count",
    "tool_result_size_bytes_count",
    "tool_result_truncated_total",
    "tool_errors_total",
    "compaction_total",
]


@pytest.mark.parametrize("name", LOOP_NAMES)
@pytest.mark.may_log("the tool failing raised an error")
async def test_everything_that_spec_8_names_for_the_loop_is_counted_under_that_name(
    counted: Counted, name: str
) -> None:
    calls = ask(("library", "{}"), ("failing", "{}"))
    streams = [ConnectionResetError(), overflow(), ANSWER, calls, ANSWER]
    await play(counted, streams, tools=[library, failing])
    assert f"indelible_{name}" in counted.names


def test_no_metrics_accepts_everything_that_prometheus_counts() -> None:
    counted = {name for name in vars(Metrics) if not name.startswith("_")}
    assert {name for name in counted if name not in vars(PrometheusMetrics)} == set()
    for name in counted:
        method = getattr(NO_METRICS, name)
        arguments = inspect.signature(method).parameters.values()
        positional = [0 for argument in arguments if argument.kind is not inspect.Parameter.KEYWORD_ONLY]
        named = {argument.name: 0 for argument in arguments if argument.kind is inspect.Parameter.KEYWORD_ONLY}
        assert method(*positional, **named) is None


def test_the_library_does_not_import_prometheus() -> None:
    script = "import sys, indelible, indelible.app.compose; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_two_registries_do_not_count_into_each_other(counted: Counted) -> None:
    registry = CollectorRegistry()
    other = PrometheusMetrics(registry)
    await play(counted, [ANSWER])
    assert other.registry is registry
    assert registry.get_sample_value("indelible_steps_total", MODEL) is None
    assert counted.value("steps_total", **MODEL) == 1


async def test_a_scrape_can_be_read(counted: Counted) -> None:
    await play(counted, [ANSWER])
    assert (
        'indelible_steps_total{model="gpt",provider="openai"} 1.0' in generate_latest(counted.metrics.registry).decode()
    )
