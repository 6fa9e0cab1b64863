"""`RecordingHarness`: an app harness whose workers record what they exchange with a simulated provider.

Everything is real, from the chat in the database to the bytes on a socket. Each worker has a recorder of its own, as
each process has. A worker that is killed takes its recorder with it: what that had not written yet, nobody will write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self, cast

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.models.wires_under_test import find_model
from tests.recording.recorded import load_run
from tests.support.app_harness import AppHarness, RunningWorker
from tests.support.waiting import Watched, deadline, wait_for_task

from indelible.api.records import WholeRun
from indelible.api.shapes import DebugMode
from indelible.app.chat import Chat
from indelible.clock import Clock
from indelible.content import Usage
from indelible.models.protocol import Model
from indelible.recording.recorder import DebugRecorder
from indelible.recording.storage import RecordStore
from indelible.server.health import PrometheusMetrics
from indelible.testing import SimulatedProvider, parts
from indelible.testing.model import Script, Step
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import Fault

KEPT_S: Final = 30 * 86400.0
USAGE: Final = Usage(input_tokens=100, output_tokens=7)
_WRITES: Final = frozenset({"write", "close_dead", "close_earlier", "forget_before", "forget_chat"})


def say(text: str) -> list[Step]:
    return [parts.text_delta("1", text), parts.finish("stop", usage=USAGE)]


def call_tool(name: str) -> list[Step]:
    return [parts.text_delta("1", "Let me see."), parts.tool_call("c1", name, "{}"), parts.finish("tool_calls")]


def count_drops(metrics: PrometheusMetrics) -> float:
    return metrics.registry.get_sample_value("indelible_debug_dropped_total") or 0.0


class WatchedRecords(Watched):
    """The real records; whoever waits for them is woken after every write."""

    def __init__(self, records: RecordStore) -> None:
        super().__init__()
        self._records = records

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._records, name)
        if name not in _WRITES:
            return method

        async def write(*given: Any, **named: Any) -> Any:
            try:
                return await method(*given, **named)
            finally:
                self.changed()

        return write


class RecordingHarness(AppHarness):
    """`model` is the provider's, as the catalog makes it; `model_name` is what chats call it."""

    model: Model

    def __init__(
        self,
        engine: AsyncEngine,
        scripts: Sequence[Script] | Any,
        faults: Iterable[Fault | None] = (),
        *,
        wire: WireName = "openai-chat",
    ) -> None:
        super().__init__(engine)
        self.provider = SimulatedProvider(scripts, faults)
        self.metrics = PrometheusMetrics()
        self.recorders: dict[str, DebugRecorder] = {}
        self._wire: WireName = wire
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._records = WatchedRecords(RecordStore(self.store.database))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with (
            self.provider,
            find_model(self._wire, self.provider.base_url(self._wire)) as self.model,
            super().running(),
        ):
            yield self

    @property
    def model_name(self) -> str:
        return f"{self._wire}:m@{self.provider.base_url(self._wire)}"

    @property
    def records(self) -> RecordStore:
        return cast(RecordStore, self._records)

    async def start_recording_worker(
        self,
        mode: DebugMode = "all",
        *,
        records: Any = None,
        clock: Clock | None = None,
        metrics: Any = None,
        **more: Any,
    ) -> RunningWorker:
        """A worker that records; `records` is where to, and `clock` is the recorder's own."""
        recorder = DebugRecorder(
            records or self.records,
            mode=mode,
            retention_s=KEPT_S,
            lease_timeout_s=8.0,
            clock=clock or self.clock,
            metrics=metrics or self.metrics,
            linger_s=0.0,
        )
        running = await self.start_worker(models={self.model_name: self.model}, recorder=recorder, **more)
        self.recorders[running.worker.id] = recorder
        self._writing[running.worker.id] = self.start_service(recorder.run())
        return running

    async def kill_worker(self, running: RunningWorker) -> None:
        """It ends in the middle of whatever it was writing."""
        writing = self._writing.pop(running.worker.id)
        writing.cancel()
        await wait_for_task(writing, what="a recorder that was killed")
        await super().kill_worker(running)

    # --- chats and what was recorded of them ---

    async def create_chat(self, message: str | None = "Hello", *, debug: DebugMode | None = None) -> Chat:
        chat = await self.app.create_chat(model=self.model_name)
        await chat.update(debug=debug)
        if message is not None:
            await chat.post(message)
        return chat

    async def load_runs(self, chat: Chat) -> list[WholeRun]:
        """What the database holds now, the oldest first."""
        found = [await load_run(self.records, chat.id, run.id) for run in await self.records.list_runs(chat.id)]
        return [run for run in reversed(found) if run is not None]

    async def drain_runs(self, chat: Chat) -> list[WholeRun]:
        """What the database holds when no recorder has anything left to write."""
        for recorder in self.recorders.values():
            async with deadline("a recorder that has nothing left to write"):
                await recorder.drain()
        return await self.load_runs(chat)

    async def wait_for_runs(self, chat: Chat, condition: Callable[[list[WholeRun]], bool]) -> list[WholeRun]:
        """Look at the records after every write until this is true of them."""
        runs: list[WholeRun] = []

        async def is_true() -> bool:
            runs[:] = await self.load_runs(chat)
            return condition(runs)

        await self._records.wait_until(is_true, what=f"the records of {chat.id}")
        return runs

    async def wait_for_ended_runs(self, chat: Chat, count: int = 1) -> list[WholeRun]:
        """Wait for so many runs that have all ended."""
        return await self.wait_for_runs(
            chat, lambda runs: len(runs) == count and all(run.ended_at is not None for run in runs)
        )


def outline_run(run: WholeRun) -> tuple[str, str, Sequence[object]]:
    """A run in short: kind, status, and of each step its number, status and exchanges."""
    steps = [
        (step.step, step.status, [(each.number, each.status, each.status_code) for each in step.attempts])
        for step in run.steps
    ]
    return run.kind, run.status, steps


def has_exchange(runs: Sequence[WholeRun]) -> bool:
    """Whether the first step of the first run shows an exchange."""
    return bool(runs and runs[0].steps and runs[0].steps[0].attempts)


def assert_closed(runs: Iterable[WholeRun]) -> None:
    """Everything has an end."""
    for run in runs:
        assert run.ended_at is not None
        assert all(step.ended_at is not None for step in run.steps)
