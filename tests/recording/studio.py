"""A workshop (tests/worker/workshop.py) whose workers record what they exchange with a simulated provider.

Everything is real, from the chat in the database to the bytes on a socket. Each worker has a recorder of its own, as
each process has. A worker that is killed takes its recorder with it: what that had not written yet, nobody will write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from tests.models.wires_under_test import find_model
from tests.worker.workshop import PATIENCE_S, Hired, Workshop

from indelible.app.chat import Chat
from indelible.clock import Clock, SystemClock
from indelible.content import Usage
from indelible.models.http.http_model import HttpModel
from indelible.recording.recorder import DebugRecorder
from indelible.recording.storage.protocol import RecordStore, WholeRun
from indelible.recording.storage.sql_records import SqlRecords
from indelible.server.prometheus import PrometheusMetrics
from indelible.store.database.tables import DebugMode
from indelible.testing import SimulatedProvider, parts
from indelible.testing.model import Script, Step
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import Fault

KEPT_S: Final = 30 * 86400.0
LOOK_EVERY_S: Final = 0.005
SOME: Final = Usage(input_tokens=100, output_tokens=7)


def say(text: str) -> list[Step]:
    return [parts.text_delta("1", text), parts.finish("stop", usage=SOME)]


def call_tool(name: str) -> list[Step]:
    return [parts.text_delta("1", "Let me see."), parts.tool_call("c1", name, "{}"), parts.finish("tool_calls")]


def count_drops(metrics: PrometheusMetrics) -> float:
    return metrics.registry.get_sample_value("indelible_debug_dropped_total") or 0.0


class Studio:
    """`model` is the provider's, as the catalog makes it; `name` is what chats call it."""

    def __init__(self, workshop: Workshop, provider: SimulatedProvider, wire: WireName, model: HttpModel) -> None:
        self.workshop = workshop
        self.provider = provider
        self.name = f"{wire}:m@{provider.base_url(wire)}"
        self.model = model
        self.metrics = PrometheusMetrics()
        self.recorders: dict[str, DebugRecorder] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}

    @property
    def records(self) -> RecordStore:
        return SqlRecords(self.workshop.store.engine)

    async def hire(
        self,
        mode: DebugMode = "all",
        *,
        records: RecordStore | None = None,
        clock: Clock | None = None,
        metrics: Any = None,
        **more: Any,
    ) -> Hired:
        """A worker that records; `records` is where to, and `clock` is the recorder's own."""
        recorder = DebugRecorder(
            records or self.records,
            mode=mode,
            kept_s=KEPT_S,
            lease_timeout_s=8.0,
            clock=clock or self.workshop.clock,
            metrics=metrics or self.metrics,
            linger_s=0.0,
        )
        hired = await self.workshop.hire(models={self.name: self.model}, recorder=recorder, **more)
        self.recorders[hired.worker.id] = recorder
        self._writing[hired.worker.id] = asyncio.create_task(recorder.run())
        return hired

    async def kill(self, hired: Hired) -> None:
        """It dies without a word, in the middle of whatever it was writing."""
        await self._end(self._writing.pop(hired.worker.id))
        await self.workshop.kill(hired)

    async def close(self) -> None:
        for hired in self.workshop.hired:
            await self.workshop.dismiss(hired)
        for task in self._writing.values():
            await self._end(task)

    async def _end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), "the recorder broke"

    # --- chats and what was recorded of them ---

    async def create(self, message: str | None = "Hello", *, debug: DebugMode | None = None) -> Chat:
        chat = await self.workshop.app.create_chat(model=self.name)
        await chat.update(debug=debug)
        if message is not None:
            await chat.post(message)
        return chat

    async def load(self, chat: Chat) -> list[WholeRun]:
        """What the database holds of it now, the oldest first."""
        found = [await self.records.load_run(chat.id, run.id) for run in await self.records.list_runs(chat.id)]
        return [run for run in reversed(found) if run is not None]

    async def until(self, chat: Chat, holds: Callable[[list[WholeRun]], bool]) -> list[WholeRun]:
        """Look at the records until this holds of them."""
        runs: list[WholeRun] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(runs := await self.load(chat)):
                    await SystemClock().sleep(LOOK_EVERY_S)  # spinning would keep the recorder from writing
        except TimeoutError:
            raise AssertionError(f"it did not come true of {[tell(run) for run in runs]}") from None
        return runs

    async def until_ended(self, chat: Chat, count: int = 1) -> list[WholeRun]:
        """Wait for so many runs that have all ended."""
        return await self.until(chat, lambda runs: len(runs) == count and all(run.ended_at is not None for run in runs))

    async def load_drained(self, chat: Chat) -> list[WholeRun]:
        """What there is when nobody has anything left to write."""
        for recorder in self.recorders.values():
            await recorder.drain()
        return await self.load(chat)


def tell(run: WholeRun) -> tuple[str, str, Sequence[object]]:
    """A run in short: kind, status, and of each step its number, status and exchanges."""
    steps = [
        (step.step, step.status, [(each.number, each.status, each.status_code) for each in step.attempts])
        for step in run.steps
    ]
    return run.kind, run.status, steps


def assert_closed(runs: Iterable[WholeRun]) -> None:
    """Everything has an end."""
    for run in runs:
        assert run.ended_at is not None
        assert all(step.ended_at is not None for step in run.steps)


@asynccontextmanager
async def open_studio(
    workshop: Workshop,
    scripts: Sequence[Script] | Any,
    faults: Iterable[Fault | None] = (),
    *,
    wire: WireName = "openai-chat",
) -> AsyncIterator[Studio]:
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(SimulatedProvider(scripts, faults))
        model = await stack.enter_async_context(find_model(wire, provider.base_url(wire)))
        studio = Studio(workshop, provider, wire, model)
        stack.push_async_callback(studio.close)
        yield studio
