"""GET /metrics has what docs/operations.md lists and somebody counts by now, and the counts are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, has_text, read_until, say, say_half, wait_until_idle

from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

DOCUMENTED = Path(__file__).parents[2] / "docs" / "operations.md"
PROMISES = ("lost_parts_total", "resume_gaps_total", "duplicate_tool_runs_total", "stale_writes_refused_total")
COUNTED = {
    "steps_total", "stream_retries_total", "ttft_seconds", "inter_part_seconds", "prompt_size_bytes", "message_count",
    "tool_seconds", "tool_result_size_bytes", "tool_result_truncated_total", "tool_errors_total", "compaction_total",
    "journal_flush_seconds", "journal_parts_total", "chats", "stuck_chats",
    "feed_readers", "feed_resyncs_total", "takeover_seconds", "interrupt_seconds", *PROMISES,
}  # fmt: skip


def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"{city}: rain"


async def test_what_a_server_did_can_be_read_from_its_metrics(harness: AppHarness) -> None:
    overloaded = ModelFailed("Busy.", kind="overloaded")
    call: list[Step] = [parts.tool_call("1", "get_weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]
    invented: list[Step] = [parts.tool_call("2", "x" * 50, "{}"), parts.finish("tool_calls")]
    model = ScriptedModel([overloaded, call, invented, say("It rains."), say_half("Again")])
    server: RunningServer = await harness.start_server(model, tools=[get_weather])
    chat = await server.client.create_chat("Is it raining?")
    await wait_until_idle(server.client, chat["id"])
    sent = await server.client.send(chat["id"], "And now?")
    await read_until(server.client, chat["id"], has_text("Again"), after=sent["cursor"])
    await server.client.interrupt(chat["id"], wait_s=60)

    async def read(name: str, **labels: str) -> float:
        return await server.read_metric(f"indelible_{name}", **labels)

    assert await read("stream_retries_total", kind="overloaded", chain_broken="false") == 1
    assert await read("steps_total", provider="scripted", model="scripted") == 3
    assert await read("ttft_seconds_count") >= 3
    assert await read("tool_seconds_count", tool="get_weather") == 1
    assert await read("tool_errors_total", tool="unknown") == 1
    assert await read("journal_flush_seconds_count") > 0
    assert await read("journal_parts_total") >= await read("journal_flush_seconds_count")
    assert await read("chats", state="idle") == 1
    assert await read("stuck_chats") == 0
    assert await read("interrupt_seconds_count") == 1
    assert await read("feed_readers") == 0
    for promise in PROMISES:
        assert await read(promise) == 0


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_every_metric_that_is_counted_is_there_from_the_start(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    async with server.request("GET", "//metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        page = await response.text()
    named = set(re.findall(r"^# TYPE indelible_(\w+) ", page, re.MULTILINE))
    assert named >= {name.removesuffix("_total") if name not in named else name for name in COUNTED}


def read_alerts() -> list[str]:
    """The first column of the table of alerts."""
    page = DOCUMENTED.read_text().partition("## Metrics and alerts")[2].partition("\n## ")[0]
    return [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")][1:]


@pytest.mark.both_databases
async def test_every_documented_alert_has_data_where_the_replies_are_written(harness: AppHarness) -> None:
    """With servers that have no worker, the workers are where most of it is counted."""
    model = ScriptedModel([ModelFailed("Busy.", kind="overloaded"), say("It rains."), ModelFailed("No.", kind="auth")])
    worker: RunningServer = await harness.start_server(model, only_health=True)
    server: RunningServer = await harness.start_server(worker=False)
    for text in ("Is it raining?", "And now?"):
        chat = await server.client.create_chat(text)
        await wait_until_idle(server.client, chat["id"])

    alerts = read_alerts()
    assert len(alerts) > 10
    for alert in alerts:
        for name in re.findall(r"`([^`]+)`", alert):
            if name.startswith("/"):
                async with worker.request("GET", f"/{name}") as response:
                    assert response.status == 200, alert
            elif name != "kind":
                metric, _, labels = name.rstrip("}").partition("{")
                wanted = dict(re.findall(r'(\w+)="(\w+)"', labels))
                suffix = "_bucket" if metric.endswith("_seconds") else ""
                await worker.read_metric(f"indelible_{metric}{suffix}", **wanted)
    assert await worker.read_metric("indelible_stream_retries_total", kind="overloaded") == 1
    assert await worker.read_metric("indelible_chats", state="error") == 1


async def test_a_workers_port_has_health_and_metrics_and_nothing_else(harness: AppHarness) -> None:
    worker: RunningServer = await harness.start_server(only_health=True, token="a-secret")  # noqa: S106  (nobody's)
    login = {"Authorization": "Bearer a-secret"}
    for path, headers, status in (
        ("//healthz", {}, 200), ("//readyz", {}, 200), ("//metrics", {}, 401), ("//metrics", login, 200),
        ("//", login, 404), ("/chats", login, 404), ("//web/app.js", login, 404), ("//v1/models", login, 404),
    ):  # fmt: skip
        async with worker.request("GET", path, headers=headers) as response:
            assert response.status == status, path
