"""The writer of debug records: runs, steps and attempts reach the database off the hot path.

The task that works on a run records it (run.py) and only puts records into a queue; one writer per process redacts
them, in a thread, and writes them a moment later, together with others that have arrived, in short transactions. Only
the writer waits for a database that is down. The queue is bounded: records that do not fit are dropped and counted,
and so are those that the database refuses. Exchanges hit the limit first: runs and steps are small, and few start
while the database is down, so they have ten times the room, and their ends are not lost.

Must stay true (tests/recording/test_recorder_in_trouble.py): whatever the database does, no reply waits for it, the
memory is bounded, and unwritten records are counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, NamedTuple

from indelible.api.records import AttemptRecord, Record, RunRecord, StepRecord
from indelible.api.shapes import DebugMode
from indelible.clock import Clock
from indelible.ids import new_id
from indelible.metrics import NO_METRICS, Metrics
from indelible.recording.exchange import ExchangeRecord
from indelible.recording.run import QueueItem, RecordedRun
from indelible.recording.storage import RecordStore
from indelible.redaction.secrets import KnownSecrets
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable

_log: Final = logging.getLogger(__name__)

MAX_WAITING: Final = 1000
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
MAX_WAITING_SMALL: Final = 10 * MAX_WAITING
_BATCH: Final = 200
_BATCH_BYTES: Final = 1024 * 1024
LINGER_S: Final = 0.25
_PAUSE_S: Final = 1.0
DRAIN_S: Final = 2.0


class _Waiting(NamedTuple):
    """A queued record. `size_bytes` is the memory that it holds."""

    item: QueueItem
    size_bytes: int


class DebugRecorder:
    """One per process: `run` writes, until it is cancelled.

    secrets: values that no record may contain (redaction/secrets.py). linger_s: how long it waits for more to write.
    """

    def __init__(
        self,
        store: RecordStore,
        *,
        mode: DebugMode,
        retention_s: float,
        lease_timeout_s: float,
        clock: Clock,
        metrics: Metrics = NO_METRICS,
        secrets: Iterable[str] = (),
        linger_s: float = LINGER_S,
    ) -> None:
        self.clock = clock
        self._linger_s = linger_s
        self.known = KnownSecrets(secrets)
        self.held_bytes = 0
        self._store = store
        self._mode: DebugMode = mode
        self._retention_s = retention_s
        self._lease_timeout_s = lease_timeout_s
        self._metrics = metrics
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._waiting_exchanges = 0
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="debug records")  # tools may occupy the default pool
        self._woken = asyncio.Event()
        self._due = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def record(self, *, mode: DebugMode | None = None, **run: Any) -> RecordedRun:
        """Record this task's exchanges with providers until the end of the block. `run` are fields of a `RunRecord`."""

        def describe() -> RunRecord:
            return RunRecord(id=new_id("run"), status="in_progress", started_at=self.clock.now(), **run)

        return RecordedRun(self, describe, mode or self._mode)

    async def clean_up(self) -> None:
        """Close what dead workers left open, and delete what is too old."""
        await self._store.close_dead(lease_timeout_s=self._lease_timeout_s)
        await self._store.forget_before(self.clock.now() - timedelta(seconds=self._retention_s), clock=self.clock)

    # --- queueing ---

    def put(self, record: QueueItem) -> None:
        """Queue a record to be written soon. Callable from any thread."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._put(record)
        else:
            self._loop.call_soon_threadsafe(self._put, record)

    def _put(self, record: QueueItem) -> None:
        size_bytes = record[1].size_bytes if isinstance(record, tuple) else 0
        fits = self._has_room(size_bytes) if isinstance(record, tuple) else len(self._waiting) < MAX_WAITING_SMALL
        if not fits:
            self.count_dropped()
            return
        self._waiting.append(_Waiting(record, size_bytes))
        self._waiting_exchanges += isinstance(record, tuple)
        self._waiting_bytes += size_bytes
        self._idle.clear()
        self._woken.set()

    def _has_room(self, size_bytes: int) -> bool:
        """Whether an exchange of this size fits; the first one always does."""
        if not self._waiting_exchanges:
            return True
        return self._waiting_exchanges < MAX_WAITING and self._waiting_bytes + size_bytes <= MAX_WAITING_BYTES

    def count_dropped(self) -> None:
        try:
            self._metrics.exchange_dropped()
        except Exception as bug:
            _log.warning("A dropped exchange could not be counted: %s.", type(bug).__name__)

    # --- writing ---

    async def run(self) -> None:
        try:
            while True:
                await self._woken.wait()
                await self._linger()
                self._woken.clear()
                while self._waiting:
                    await self._write(self._next_batch())
                self._idle.set()
        finally:
            self._thread.shutdown(wait=False)

    async def _linger(self) -> None:
        """Wait for more records: a transaction costs as much as the tokens of half a reply."""
        timer = self.clock.call_later(self._linger_s, self._due.set)
        try:
            await self._due.wait()
        finally:
            timer.cancel()
        self._due.clear()

    async def drain(self, *, limit_s: float = DRAIN_S) -> None:
        """Wait until the queue is written, but no longer than this."""
        deadline = self.clock.call_later(limit_s, self._idle.set)
        self._due.set()
        try:
            await self._idle.wait()
        finally:
            deadline.cancel()

    def _next_batch(self) -> list[QueueItem]:
        """About as much as a short transaction holds, because others want to write too."""
        batch: list[QueueItem] = []
        size_bytes = 0
        while self._waiting and len(batch) < _BATCH:
            if batch and size_bytes + self._waiting[0].size_bytes > _BATCH_BYTES:
                break
            waiting = self._waiting.popleft()
            batch.append(waiting.item)
            size_bytes += waiting.size_bytes
        self._waiting_bytes -= size_bytes
        self._waiting_exchanges -= sum(isinstance(item, tuple) for item in batch)
        return batch

    async def _write(self, batch: Sequence[QueueItem]) -> None:
        try:
            redacted = await self._loop.run_in_executor(self._thread, _redact, batch)
            records = [record for record in redacted if record is not None]
            for _ in range(len(redacted) - len(records)):
                self.count_dropped()
            while not await self._try_to_write(records):
                await self.clock.sleep(_PAUSE_S)
        except Exception as error:
            _log.warning("Debug records could not be written: %s.", type(error).__name__)
            for _ in batch:
                self.count_dropped()

    async def _try_to_write(self, records: Sequence[Record]) -> bool:
        """Returns whether the database was reachable. A run that takes over ends what the dead worker left open."""
        try:
            refused = await self._store.write(records)
            await self._close_earlier(records)
        except (DatabaseUnreachable, DatabaseUnusable):
            return False
        for _ in range(refused):
            self.count_dropped()
        return True

    async def _close_earlier(self, records: Sequence[Record]) -> None:
        runs = [record for record in records if isinstance(record, RunRecord)]
        begun = {run.chat_id: run.id for run in runs if run.status == "in_progress"}
        try:
            if begun:
                await self._store.close_earlier(begun, lease_timeout_s=self._lease_timeout_s)
        except (DatabaseUnreachable, DatabaseUnusable):
            raise
        except Exception as error:
            _log.warning("Open runs of dead workers could not be ended yet: %s.", type(error).__name__)


def _redact(batch: Sequence[QueueItem]) -> list[Record | None]:
    """Runs in a thread, because it takes time. What cannot be redacted is not kept: None."""
    return [_describe(*item) if isinstance(item, tuple) else item for item in batch]


def _describe(step: StepRecord, attempt: ExchangeRecord) -> AttemptRecord | None:
    try:
        return AttemptRecord(
            chat_id=step.chat_id,
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
    except Exception as bug:
        _log.warning("An exchange could not be redacted: %s.", type(bug).__name__)
        return None
