"""The metrics of promises can leave zero: what they promise is broken on purpose, and they count it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from tests.support.app_harness import AppHarness, WatchedStore
from tests.worker.dead_worker import DeadWorker

from indelible.content import Part, ToolCall
from indelible.loop.turn import Turn
from indelible.metrics import Metrics
from indelible.store.journal.append import Appended, BadRows, JournalRow
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script
from indelible.tools.tool import tool
from indelible.tools.toolset import RunHere

pytestmark = pytest.mark.both_databases

HI: Script = [parts.text_delta("1", "Hi"), parts.finish()]


class CountingMetrics(Metrics):
    def __init__(self) -> None:
        self.ran_twice = self.lost = 0

    def tool_ran_twice(self) -> None:
        self.ran_twice += 1

    def parts_lost(self, count: int) -> None:
        self.lost += count


@pytest.mark.parametrize(("idempotent", "counted"), [(False, 1), (True, 0)])
async def test_a_build_that_runs_a_started_tool_again_is_counted(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch, *, idempotent: bool, counted: int
) -> None:
    runs: list[str] = []

    async def work() -> str:
        runs.append("run")
        return "done"

    made = tool(work, idempotent=idempotent)
    chat = await harness.app.create_chat("Go")
    dead = await (await DeadWorker.acquire(harness, chat)).start_attempt()
    await dead.write(parts.tool_call("c1", "work", "{}"), parts.finish("tool_calls"))
    await dead.start_tool(0, "c1", "work")

    def run_all(_turn: Turn, _step: object, calls: list[ToolCall]) -> list[RunHere]:
        return [RunHere(call, made) for call in calls]

    monkeypatch.setattr(Turn, "_plan_calls", run_all)
    metrics = CountingMetrics()
    await harness.start_worker(ScriptedModel([HI]), tools=[made], metrics=metrics)
    await harness.wait_for_end(chat)
    assert (runs, metrics.ran_twice) == (["run"], counted)


class RefusingStore(WatchedStore):
    """The database refuses what the second row holds."""

    def __init__(self, store: object, refused: asyncio.Event) -> None:
        super().__init__(store)  # type: ignore[arg-type]
        self._refused = refused

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        if any(row.n == 2 for row in rows):
            self._refused.set()
            raise BadRows("The database refused a journal row.")
        return await self._store.append(rows)


@pytest.mark.may_log("the turn failed: an error in the server .*BadRows")
async def test_parts_that_the_database_refuses_are_counted_as_lost(harness: AppHarness) -> None:
    refused, written = asyncio.Event(), asyncio.Event()

    async def say() -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Once")
        await written.wait()
        for word in (" upon", " a", " time"):
            yield parts.text_delta("1", word)
        await refused.wait()
        yield parts.finish()

    metrics = CountingMetrics()
    chat = await harness.app.create_chat("Go")
    store = RefusingStore(harness.store, refused)
    await harness.start_worker(ScriptedModel([lambda call: say()]), store=store, metrics=metrics)
    await harness.wait_for_text(chat, "Once")
    assert metrics.lost == 0
    written.set()
    view = await harness.wait_for_end(chat)
    assert view.status == "error"
    assert metrics.lost >= 3
