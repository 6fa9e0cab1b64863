"""Whatever goes wrong in recording, no reply is harmed, delayed or changed, and what is lost is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.recording.answers import JSON, Answer, read_all
from tests.recording.recording_harness import RecordingHarness, count_drops, has_exchange, outline_run, say

from indelible.api.records import Record
from indelible.app.chat import Chat
from indelible.clock import SystemClock
from indelible.errors import StoreFailed
from indelible.models.http.hooks import HttpRequest, recording
from indelible.recording.recorder import MAX_WAITING, MAX_WAITING_BYTES, MAX_WAITING_SMALL, DebugRecorder
from indelible.recording.run import MAX_HELD_BYTES, RecordedRun
from indelible.recording.storage import RecordStore
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable
from indelible.testing import ManualClock
from indelible.testing.provider.faults import Status

WELL = ("turn", "completed", [(1, "completed", [(1, "completed", 200)])])


class Troubled:
    """Stands before the records. Until `healed`, writing does as it is told: it waits, if it is not told to raise."""

    def __init__(self, records: RecordStore, error: Exception | None = None) -> None:
        self.healed = asyncio.Event()
        self.asked = asyncio.Event()
        self._records = records
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def write(self, records: Sequence[Record]) -> int:
        await self._suffer()
        return await self._records.write(records)

    async def close_earlier(self, begun: Mapping[str, str], *, lease_timeout_s: float) -> int:
        await self._suffer()
        return await self._records.close_earlier(begun, lease_timeout_s=lease_timeout_s)

    async def _suffer(self) -> None:
        self.asked.set()
        if self._error is None:
            await self.healed.wait()
        elif not self.healed.is_set():
            raise self._error


class Impatient(SystemClock):
    """Does not sleep between two tries."""

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)


# --- the database ---


@pytest.mark.parametrize("error", [DatabaseUnreachable("It is away."), DatabaseUnusable("The disk is full.")])
async def test_a_database_that_is_away_costs_nothing_and_gets_everything_when_it_is_back(
    engine: AsyncEngine, error: StoreFailed
) -> None:
    async with RecordingHarness(engine, [say("One."), say("Two.")], [Status(529)]).opened() as harness:
        records = Troubled(harness.records, error)
        await harness.start_recording_worker(records=records, clock=Impatient())
        chat = await harness.create_chat(None)
        assert (await chat.send("1")).text == "One."
        assert (await chat.send("2")).text == "Two."
        await records.asked.wait()
        assert await harness.load_runs(chat) == []
        records.healed.set()
        runs = await harness.wait_for_ended_runs(chat, 2)
    tries = [(1, "completed", 529), (2, "completed", 200)]
    assert [outline_run(run) for run in runs] == [("turn", "completed", [(1, "completed", tries)]), WELL]
    assert count_drops(harness.metrics) == 0


async def test_a_write_that_hangs_holds_nobody_up_and_leaving_waits_for_it_only_for_a_moment(
    engine: AsyncEngine,
) -> None:
    clock = ManualClock()
    async with RecordingHarness(engine, [say("One."), say("Two.")]).opened() as harness:
        records = Troubled(harness.records)
        running = await harness.start_recording_worker(records=records, clock=clock)
        chat = await harness.create_chat(None)
        assert (await chat.send("1")).text == "One."
        assert (await chat.send("2")).text == "Two."
        recorder = harness.recorders[running.worker.id]
        await clock.advance(1)
        await records.asked.wait()
        leaving = asyncio.create_task(recorder.drain())
        await clock.wait_for_timer()
        await clock.advance(1.9)
        assert not leaving.done()
        await clock.advance(0.2)
        await leaving
        records.healed.set()
        await recorder.drain()
        assert [outline_run(run) for run in await harness.wait_for_ended_runs(chat, 2)] == [WELL, WELL]


@pytest.mark.parametrize("error", [ValueError("sk-canarycanary"), StoreFailed("It could not do what it was asked.")])
@pytest.mark.may_log("Debug records could not be written")
async def test_what_the_database_refuses_is_dropped_and_counted_and_the_next_run_is_recorded(
    engine: AsyncEngine, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with RecordingHarness(engine, [say("One."), say("Two.")]).opened() as harness:
        records = Troubled(harness.records, error)
        await harness.start_recording_worker(records=records)
        chat = await harness.create_chat(None)
        assert (await chat.send("1")).text == "One."
        assert await harness.drain_runs(chat) == []
        assert count_drops(harness.metrics) >= 1
        records.healed.set()
        assert (await chat.send("2")).text == "Two."
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == WELL
    assert "Debug records could not be written" in caplog.text
    assert "canary" not in caplog.text


class Unforgiving(Troubled):
    """Ends nothing that others left."""

    async def write(self, records: Sequence[Record]) -> int:
        return await self._records.write(records)


@pytest.mark.may_log("Open runs of dead workers could not be ended yet")
async def test_what_is_written_is_not_counted_as_dropped_because_others_could_not_be_ended(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, [say("One.")]).opened() as harness:
        records = Unforgiving(harness.records, ValueError("no"))
        await harness.start_recording_worker(records=records)
        chat = await harness.create_chat()
        (run,) = await harness.wait_for_ended_runs(chat)
    assert outline_run(run) == WELL
    assert records.asked.is_set()
    assert count_drops(harness.metrics) == 0


async def test_tools_that_keep_every_thread_busy_keep_no_record_from_being_written(engine: AsyncEngine) -> None:
    loop = asyncio.get_running_loop()
    is_over = threading.Event()
    busy = [loop.run_in_executor(None, is_over.wait) for _ in range(64)]
    try:
        async with RecordingHarness(engine, [say("One.")]).opened() as harness:
            await harness.start_recording_worker()
            (run,) = await harness.wait_for_ended_runs(await harness.create_chat())
    finally:
        is_over.set()
        await asyncio.gather(*busy)
    assert outline_run(run) == WELL


# --- too much ---


def begin_exchange(run: RecordedRun, body: bytes, answer: Answer) -> Any:
    request = HttpRequest(url="https://provider.test/v1", headers={"content-type": JSON}, body=body)
    seen = run.begin(request)
    assert seen is not None
    return seen.wrap(answer)


async def exchange(run: RecordedRun, body: bytes = b"{}") -> None:
    await read_all(begin_exchange(run, body, Answer(body)))


def record(harness: RecordingHarness, chat: Chat) -> RecordedRun:
    ((worker_id, recorder),) = harness.recorders.items()
    return recorder.record(chat_id=chat.id, turn_id=None, kind="turn", model=None, worker_id=worker_id)


async def test_a_full_queue_drops_exchanges_counts_them_and_keeps_the_end_of_the_run(engine: AsyncEngine) -> None:
    told = MAX_WAITING + 100
    async with RecordingHarness(engine, []).opened() as harness:
        records = Troubled(harness.records)
        await harness.start_recording_worker(records=records)
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            run.begin_step(1)
            await records.asked.wait()
            for _ in range(told):
                await exchange(run)
            run.end("completed")
        drops = count_drops(harness.metrics)
        records.healed.set()
        (found,) = await harness.wait_for_ended_runs(chat)
    (step,) = found.steps
    assert (found.status, step.status) == ("completed", "completed")
    assert drops == 100
    assert len(step.attempts) == told - drops == count_drops(harness.metrics) + MAX_WAITING - 100


async def test_runs_that_nobody_can_write_fill_the_queue_at_last(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        records = Troubled(harness.records)
        await harness.start_recording_worker(records=records)
        chat = await harness.create_chat(None)
        with record(harness, chat):
            await records.asked.wait()
        for _ in range(MAX_WAITING_SMALL // 2):
            with record(harness, chat):
                pass
        drops = count_drops(harness.metrics)
    assert drops == 1


async def test_large_bodies_fill_the_queue_sooner(engine: AsyncEngine) -> None:
    body = b'{"a": "' + b"x" * 200_000 + b'"}'
    async with RecordingHarness(engine, []).opened() as harness:
        records = Troubled(harness.records)
        await harness.start_recording_worker(records=records)
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            run.begin_step(1)
            await records.asked.wait()
            fitting = MAX_WAITING_BYTES // (2 * len(body))
            for _ in range(fitting + 10):
                await exchange(run, body)
        assert count_drops(harness.metrics) == 10


async def test_with_errors_what_is_held_back_does_not_fill_the_queue(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker("errors")
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            run.begin_step(1)
            for _ in range(MAX_WAITING + 10):
                await exchange(run)
            run.end("completed")
        assert await harness.drain_runs(chat) == []
        assert count_drops(harness.metrics) == 0


async def test_with_errors_what_is_held_back_is_bounded_over_all_runs(engine: AsyncEngine) -> None:
    body = b'{"a": "' + b"x" * (MAX_HELD_BYTES // 5) + b'"}'
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker("errors")
        ((_, recorder),) = harness.recorders.items()
        chat = await harness.create_chat(None)
        with record(harness, chat) as one, record(harness, chat) as other:
            one.begin_step(1)
            other.begin_step(1)
            for run in (one, other) * 3:
                await read_all(begin_exchange(run, body, Answer(b"data: {}\n\n")))
            assert 0 < recorder.held_bytes <= MAX_HELD_BYTES
            assert count_drops(harness.metrics) >= 1
            one.end("completed")
            other.end("completed")
        assert recorder.held_bytes == 0


# --- the recorder itself ---


async def test_a_run_that_is_off_hides_the_recorder_around_it(engine: AsyncEngine) -> None:
    """A tool may open chats of its own."""
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        ((worker_id, recorder),) = harness.recorders.items()
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            off = recorder.record(
                chat_id=chat.id, turn_id=None, kind="turn", model=None, worker_id=worker_id, mode="off"
            )
            with off:
                assert recording.get() is None
            assert recording.get() is run


async def test_a_run_may_be_left_in_another_context_than_it_was_entered_in(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat(None)
        run = record(harness, chat)

        async def enter() -> None:
            run.__enter__()

        await asyncio.create_task(enter())
        run.__exit__(None, None, None)
        (found,) = await harness.wait_for_ended_runs(chat)
    assert found.status == "interrupted"


@pytest.mark.may_log("Its end could not be recorded either", "Recording of a run stopped")
def test_a_run_that_outlives_its_event_loop_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def begin() -> RecordedRun:
        nobody: Any = None
        recorder = DebugRecorder(
            nobody, mode="all", retention_s=1, lease_timeout_s=1, clock=SystemClock(), linger_s=0.0
        )
        run = recorder.record(chat_id="c", turn_id=None, kind="turn", model=None, worker_id="w")
        run.__enter__()
        run.begin_step(1)
        return run

    run = asyncio.run(begin())
    run.end_step("completed")
    run.__exit__(None, None, None)
    assert "Recording of a run stopped" in caplog.text


class Breaking(SystemClock):
    """Breaks when it is asked for the time for the `at`-th time."""

    def __init__(self, at: int) -> None:
        self.asked = count(1)
        self.broke = False
        self._at = at

    def now(self) -> datetime:
        if next(self.asked) == self._at:
            self.broke = True
            raise ZeroDivisionError
        return super().now()


class Uncountable:
    def exchange_dropped(self) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("mode", "metrics"),
    [("errors", None), ("all", None), ("all", Uncountable())],
    ids=["errors", "all", "all, uncountable"],
)
@pytest.mark.may_log(
    "A dropped exchange could not be counted",
    "An exchange could not be recorded",
    "Recording of a run stopped",
    "cleaning up debug records failed",
)
async def test_a_recorder_that_breaks_anywhere_harms_no_reply_and_is_counted(
    engine: AsyncEngine, mode: Any, metrics: Uncountable | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The recorder's own clock breaks at its first call, at its second, and so on, until it is not asked so often."""
    for at in count(1):
        clock = Breaking(at)
        async with RecordingHarness(engine, [say("Fine.")], [Status(529)]).opened() as harness:
            running = await harness.start_recording_worker(mode, clock=clock, metrics=metrics)
            chat = await harness.create_chat(None)
            assert (await chat.send("Hello")).text == "Fine."
            await harness.drain_runs(chat)
            await harness.stop_worker(running)
        if not clock.broke:
            break
        assert metrics is not None or count_drops(harness.metrics) >= 1 or "cleaning up debug records" in caplog.text
        caplog.clear()
    assert at > 5


@pytest.mark.may_log("An exchange could not be redacted")
async def test_what_can_not_be_redacted_is_not_kept_and_counted_and_the_rest_is_written(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    no_texts: Any = {"x": 1}
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            run.begin_step(1)
            await read_all(begin_exchange(run, b"{}", Answer(b"data: {}\n\n", headers=no_texts)))
            await exchange(run)
        (found,) = await harness.wait_for_runs(chat, has_exchange)
        await harness.wait_for_ended_runs(chat)
    assert [attempt.number for attempt in found.steps[0].attempts] == [2]
    assert count_drops(harness.metrics) == 1
    assert "An exchange could not be redacted: " in caplog.text


# --- threads ---


def run_in_loops(jobs: Iterator[Callable[[], Any]]) -> None:
    for job in jobs:
        asyncio.run(job())


async def test_exchanges_may_happen_in_other_threads(engine: AsyncEngine) -> None:
    async with RecordingHarness(engine, []).opened() as harness:
        await harness.start_recording_worker()
        chat = await harness.create_chat(None)
        with record(harness, chat) as run:
            run.begin_step(1)
            jobs = [iter([lambda: exchange(run)] * 25) for _ in range(4)]
            await asyncio.gather(*(asyncio.to_thread(run_in_loops, job) for job in jobs))
            await asyncio.sleep(0)
            run.end("completed")
        (found,) = await harness.wait_for_ended_runs(chat)
    assert [attempt.number for attempt in found.steps[0].attempts] == list(range(1, 101))
    assert count_drops(harness.metrics) == 0
