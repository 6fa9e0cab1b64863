"""Traces: spans nest as turn → step → attempt → tool, through a failed attempt, and hold no text of anybody.

The exporter is the SDK's own, in memory, and the turn is a real one: a database, a worker, a tool.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import indelible
from indelible import tracing
from indelible.errors import ModelFailed
from indelible.settings import load_settings
from indelible.testing import ScriptedModel, parts

SECRET = "canary-4711"  # noqa: S105
FAILURE = ModelFailed(kind="overloaded", message=f"Try later: {SECRET}", provider="scripted", retryable=True)


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    """OpenTelemetry takes one provider per process; after this module it exports nothing any more."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    yield kept
    provider.shutdown()


@indelible.tool
async def look_up(word: str) -> str:
    """Look a word up."""
    trace.get_tracer("mine").start_span("inside the tool").end()
    return f"{word}: {SECRET}"


def show(span: ReadableSpan, by_id: dict[int, ReadableSpan]) -> str:
    """The names from the outermost span to this one."""
    above = "" if span.parent is None else f"{show(by_id[span.parent.span_id], by_id)} > "
    return above + span.name.removeprefix("indelible.")


async def run_traced_turn(database: Path) -> str:
    model = ScriptedModel(
        streams=[
            [parts.text_delta("t", SECRET), FAILURE],
            [parts.tool_call("c1", "look_up", json.dumps({"word": SECRET})), parts.finish("tool_calls")],
            [parts.text_delta("t", SECRET), parts.finish("stop")],
        ]
    )
    settings = load_settings(database=str(database), retry_base_s=0, auto_titles=False)
    async with indelible.open(settings=settings, model=model, tools=[look_up]) as app:
        chat = await app.create_chat(system=SECRET)
        return (await chat.send(f"What is {SECRET}?")).outcome or ""


async def test_a_turn_is_a_trace_of_steps_attempts_and_tools_without_any_text(
    exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    exporter.clear()

    assert await run_traced_turn(tmp_path / "chats.db") == "complete"

    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    shown = [show(span, by_id) for span in sorted(spans, key=lambda span: span.start_time or 0)]
    assert shown == [
        "turn",
        "turn > step",
        "turn > step > attempt",
        "turn > step",
        "turn > step > attempt",
        "turn > step > tool",
        "turn > step > tool > inside the tool",
        "turn > step",
        "turn > step > attempt",
    ]
    written = "".join(span.to_json() for span in spans)
    assert SECRET not in written
    assert [dict(span.attributes or {}).get("error.type") for span in spans if not span.status.is_ok] == ["overloaded"]
    turn = next(span for span in spans if span.name == "indelible.turn")
    assert {"indelible.chat", "indelible.turn", "indelible.epoch", "indelible.kind"} < set(turn.attributes or {})
    assert dict(turn.attributes or {})["indelible.end"] == "completed"


def test_a_program_that_does_not_use_opentelemetry_does_not_load_it() -> None:
    script = (
        "import sys, indelible.loop\nfrom indelible.tracing import span\nwith span('x') as traced: traced.set(a=1)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", f"{script}print('opentelemetry' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "False\n"


def test_nothing_is_exported_unless_a_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)

    with tracing.traces_exported() as exported:
        assert not exported
