"""Runs, steps and attempts on their way to the database, off the hot path.

A run is recorded by the task that works on it: entering it makes it the `recording` of that task (models/exchange.py),
and every exchange of it becomes an attempt of the step that is open. Telling of it only puts a record into a queue; one
writer per process redacts what is in it, in a thread, and writes it, a moment later and together with what else there
is by then, in short transactions. A database that is away is waited for, by the writer alone. The queue is bounded:
exchanges that do not fit are dropped and counted, and so is what the database refuses. Runs and steps are small, and
nobody begins one while the database is away, so they always fit: their ends are not lost.

With the mode `errors` everything is held back until a step fails or is tried again. Only then are the run and what was
held of this step written, and what follows in this step as it comes: a step that goes well costs no write and no
redaction.

Must stay true (tests/debug/test_recorder.py, test_recorder_in_trouble.py): a run that was begun has an end, whichever
way it is left; a step that was completed stays so; whatever goes wrong here, the exchange goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Token
from datetime import UTC, datetime, timedelta
from functools import wraps
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Protocol, Self

from msgspec.structs import replace

from indelible.clock import Clock
from indelible.debug.secrets import redact_text
from indelible.debug.sink import Attempt, Sink
from indelible.debug.transport import SinkRecording
from indelible.ids import new_id
from indelible.models.exchange import Exchange, HttpRequest, Recording, recording
from indelible.store.failures import DatabaseUnreachable, DatabaseUnusable
from indelible.store.records import AttemptRecord, Record, RecordStore, RunRecord, StepRecord
from indelible.store.tables import DebugMode, RunKind, RunStatus

P = ParamSpec("P")
_log: Final = logging.getLogger(__name__)

MAX_WAITING: Final = 1000
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
_BATCH: Final = 200
_BATCH_BYTES: Final = 1024 * 1024
_LINGER_S: Final = 0.25
_PAUSE_S: Final = 1.0
_LAST_WORDS_S: Final = 2.0
_GIVEN_UP: Final = "It was given up."

Told = Record | tuple[StepRecord, Attempt]
"""What waits to be written: a record, or an exchange of a step that is not redacted yet."""


class DebugMetrics(Protocol):
    def exchange_dropped(self) -> None:
        """An exchange could not be recorded. The exchange itself is not concerned."""


class Recorder:
    """One per process: `run` writes, until it is cancelled."""

    def __init__(
        self,
        store: RecordStore,
        *,
        mode: DebugMode,
        kept_s: float,
        dead_after_s: float,
        clock: Clock,
        metrics: DebugMetrics | None = None,
    ) -> None:
        self.clock = clock
        self._store = store
        self._mode: DebugMode = mode
        self._kept_s = kept_s
        self._dead_after_s = dead_after_s
        self._metrics = metrics
        self._waiting: deque[Told] = deque()
        self._waiting_bytes = 0
        self._waiting_exchanges = 0
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        self._due = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def record(
        self,
        *,
        chat_id: str,
        turn_id: str | None,
        kind: RunKind,
        model: str | None,
        worker_id: str,
        mode: DebugMode | None = None,
    ) -> RecordedRun:
        """What this task exchanges with providers until the end of the block."""

        def describe() -> RunRecord:
            return RunRecord(
                id=new_id("run"),
                chat_id=chat_id,
                turn_id=turn_id,
                kind=kind,
                status="in_progress",
                worker_id=worker_id,
                model=model,
                started_at=self.clock.now(),
            )

        return RecordedRun(self, describe, mode or self._mode)

    async def clean_up(self) -> None:
        """Close what dead workers left open, and forget what is too old."""
        await self._store.close_dead(dead_after_s=self._dead_after_s)
        await self._store.forget_before(self.clock.now() - timedelta(seconds=self._kept_s), clock=self.clock)

    # --- what is to be written ---

    def put(self, record: Told) -> None:
        """Have it written, some time soon. From any thread."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._put(record)
        else:
            self._loop.call_soon_threadsafe(self._put, record)

    def _put(self, record: Told) -> None:
        if isinstance(record, tuple):
            if self._waiting_exchanges >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES:
                self.count_dropped()
                return
            self._waiting_exchanges += 1
        self._waiting.append(record)
        self._waiting_bytes += _measure(record)
        self._idle.clear()
        self._stirred.set()

    def count_dropped(self) -> None:
        try:
            if self._metrics is not None:
                self._metrics.exchange_dropped()
        except Exception as bug:
            _log.warning("A dropped exchange could not be counted: %s.", type(bug).__name__)

    # --- writing ---

    async def run(self) -> None:
        while True:
            await self._stirred.wait()
            await self._linger()
            self._stirred.clear()
            while self._waiting:
                await self._write(self._take_batch())
            self._idle.set()

    async def _linger(self) -> None:
        """More is about to come: a transaction costs as much as the tokens of half a reply."""
        timer = self.clock.call_later(_LINGER_S, self._due.set)
        try:
            await self._due.wait()
        finally:
            timer.cancel()
        self._due.clear()

    async def drain(self) -> None:
        """Wait until what was told is written, but not for long."""
        deadline = self.clock.call_later(_LAST_WORDS_S, self._idle.set)
        self._due.set()
        try:
            await self._idle.wait()
        finally:
            deadline.cancel()

    def _take_batch(self) -> list[Told]:
        """No more than a short transaction holds: others want to write, too."""
        batch: list[Told] = []
        size_bytes = 0
        while self._waiting and len(batch) < _BATCH and size_bytes < _BATCH_BYTES:
            batch.append(self._waiting.popleft())
            size_bytes += _measure(batch[-1])
        self._waiting_bytes -= size_bytes
        self._waiting_exchanges -= sum(isinstance(told, tuple) for told in batch)
        return batch

    async def _write(self, batch: Sequence[Told]) -> None:
        try:
            records = await asyncio.to_thread(_spell_out, batch)
            while not await self._try_to_write(records):
                await self.clock.sleep(_PAUSE_S)
        except Exception as error:
            _log.warning("Debug records could not be written: %s.", type(error).__name__)
            for _ in batch:
                self.count_dropped()

    async def _try_to_write(self, records: Sequence[Record]) -> bool:
        """Whether the database was there. What is new is written before what it ends: that may have its own end."""
        try:
            await self._store.write(records)
            for run in (record for record in records if isinstance(record, RunRecord)):
                if run.status == "in_progress" and run.kind != "title":
                    await self._store.close_earlier(run.chat_id, run.id)
        except (DatabaseUnreachable, DatabaseUnusable):
            return False
        return True


def _measure(record: Told) -> int:
    """How much of the memory it is to blame for, in bytes."""
    if not isinstance(record, tuple):
        return 0
    _, attempt = record
    return attempt.request.size_bytes + attempt.response.size_bytes


def _spell_out(batch: Sequence[Told]) -> list[Record]:
    """In a thread: this is where bodies are redacted."""
    return [_describe(*record) if isinstance(record, tuple) else record for record in batch]


def _describe(step: StepRecord, attempt: Attempt) -> AttemptRecord:
    return AttemptRecord(
        run_id=step.run_id,
        step=step.step,
        number=attempt.number,
        status=attempt.status,
        status_code=attempt.status_code,
        method=attempt.method,
        url=attempt.url,
        request_headers=attempt.request_headers,
        request_body=attempt.request_body,
        response_headers=attempt.response_headers if attempt.status_code is not None else None,
        response_body=attempt.response_body,
        error=attempt.error,
        started_at=attempt.started_at or attempt.ended_at,
        head_at=attempt.answered_at,
        ended_at=attempt.ended_at,
    )


def _best_effort(
    do: Callable[Concatenate[RecordedRun, P], None],
) -> Callable[Concatenate[RecordedRun, P], None]:
    """What raises costs the rest of what would have been recorded of this run, and nobody else notices."""

    @wraps(do)
    def do_or_give_up(run: RecordedRun, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not run.is_recording:
            return
        try:
            do(run, *args, **kwargs)
        except Exception as bug:
            run.give_up(bug)

    return do_or_give_up


class RecordedRun:
    """One run, on its way. It is a `Recording` of models/exchange.py, and what the worker tells of itself."""

    _run: RunRecord

    def __init__(self, recorder: Recorder, describe: Callable[[], RunRecord], mode: DebugMode) -> None:
        self.is_recording = mode != "off"
        self._recorder = recorder
        self._describe = describe
        self._mode = mode
        self._step: StepRecord | None = None
        self._is_asked = False
        self._last_step = 0
        self._sink = Sink()
        self._held: list[Attempt] = []
        self._is_told = False
        self._told_steps: set[int] = set()
        self._token: Token[Recording | None] | None = None

    def __enter__(self) -> Self:
        self._begin_run()
        if self.is_recording:
            self._token = recording.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            recording.reset(self._token)
        self.end("interrupted", _GIVEN_UP)

    def give_up(self, bug: Exception) -> None:
        """Record nothing more of this run. If it was told of, it has its end now."""
        self.is_recording = False
        _log.warning("A run is recorded no further: %s.", type(bug).__name__)
        self._recorder.count_dropped()
        if self._is_told and self._run.status == "in_progress":
            ended_at = max(datetime.now(UTC), self._run.started_at)
            self._recorder.put(replace(self._run, status="error", error=_GIVEN_UP, ended_at=ended_at))

    # --- what the worker tells ---

    @_best_effort
    def _begin_run(self) -> None:
        self._run = self._describe()
        if self._mode == "all":
            self._tell_run()

    @_best_effort
    def begin_step(self, step: int) -> None:
        """The model is asked for this step; if it was asked before, that has failed."""
        if self._step is None or self._step.step != step:
            self._open_step(step)
        elif self._is_asked or any(_has_failed(attempt) for attempt in self._sink.attempts):
            self._tell_step()
        self._is_asked = True

    @_best_effort
    def note_failure(self) -> None:
        """The model has failed, and will be asked again: whoever looks meanwhile shall see why."""
        self._tell_step()

    @_best_effort
    def end_step(self, status: RunStatus, error: str | None = None) -> None:
        self._close_step(status, error)

    @_best_effort
    def end(self, status: RunStatus, error: str | None = None) -> None:
        """The first end counts."""
        if self._run.status != "in_progress":
            return
        self._close_step(status, error)
        if status == "error":
            self._tell_run()
        error = None if error is None else redact_text(error)
        self._run = replace(self._run, status=status, error=error, ended_at=self._recorder.clock.now())
        if self._is_told:
            self._recorder.put(self._run)
        self.is_recording = False

    # --- what the wire tells ---

    def begin(self, request: HttpRequest) -> Exchange | None:
        """An exchange that belongs to no step is the beginning of the next one."""
        self._open_next_step()
        return SinkRecording(self._sink).begin(request) if self.is_recording else None

    @_best_effort
    def _open_next_step(self) -> None:
        if self._step is None:
            self._open_step(self._last_step + 1)

    def _note_attempt(self, step: StepRecord, attempt: Attempt) -> None:
        """Also what is told late, of a step that is over: a close that failed."""
        if step.step in self._told_steps:
            self._recorder.put((step, attempt))
        elif step is self._step:
            self._held.append(attempt)

    # --- steps ---

    def _open_step(self, step: int) -> None:
        self._close_step("completed", None)
        self._last_step = step
        begun = StepRecord(run_id=self._run.id, step=step, status="in_progress", started_at=self._recorder.clock.now())
        self._step = begun
        self._is_asked = False
        self._held = []
        self._sink = Sink(
            clock=self._recorder.clock,
            on_change=lambda attempt: self._note_attempt(begun, attempt),
            on_drop=self._recorder.count_dropped,
        )
        if self._mode == "all":
            self._tell_step()

    def _close_step(self, status: RunStatus, error: str | None) -> None:
        if self._step is None:
            return
        self._sink.finalise()
        if status == "error":
            self._tell_step()
        if self._step.step in self._told_steps:
            error = None if error is None else redact_text(error)
            self._recorder.put(replace(self._step, status=status, error=error, ended_at=self._recorder.clock.now()))
        self._step = None
        self._held = []
        self._sink = Sink()  # a connection of the pool may remember this run for long, and what it exchanged with it

    # --- telling ---

    def _tell_run(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._recorder.put(self._run)

    def _tell_step(self) -> None:
        """From now on, and what was held back of it."""
        if self._step is None or self._step.step in self._told_steps:
            return
        self._tell_run()
        self._told_steps.add(self._step.step)
        self._recorder.put(self._step)
        for attempt in self._held:
            self._recorder.put((self._step, attempt))
        self._held = []


def _has_failed(attempt: Attempt) -> bool:
    return attempt.status == "failed" or (attempt.status_code or 0) >= 400
