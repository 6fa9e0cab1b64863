"""The journal of a process: the parts of all its running chats, committed together.

The loop publishes parts to a writer, which only appends them to a list in memory. One flusher per process collects
the parts of many writers and commits them in one transaction: immediately after an idle period, otherwise every 20 ms
or as soon as 64 KiB are waiting. Neighbouring deltas of one block become one part. Readers get a row only after its
commit (`on_committed`), and each row names its chat, so no table of attempts is needed. So a token costs an append
to a list, and all running chats share a commit.

A row costs more than the tokens in it: a statement, a wake-up and a send per reader. So a flush writes a limited number
of rows, those that have waited longest; with few chats that is all of them, and with many a chat gets a row at least
every fourth flush, with all its tokens since the last one. Rows that a reader or a tool waits for come first: the first
one of an attempt, and ledger changes. For the same reason an attempt may wait until its last parts are in a row before
it reads from its provider again (`wait_for_row`): it is woken once per row, and not once per token.

A slow database slows the loop instead of filling the memory: above a limit, `publish` returns an awaitable on which the
loop waits. A failed commit is retried with the same bytes under the same number (R5). If the database refuses the data
itself, rows are written one by one and only the faulty chat fails (R6). A writer whose attempt is over refuses further
parts with `LeaseLost`, unless it closed the attempt itself (R4).

Every task that waits for a commit is woken whenever rows were committed or abandoned, and checks again. Every byte
that was accepted is released once: when its row is committed, or when its writer ends.

Must stay true (tests/store/test_journal.py): published means committed; numbers have no gaps; a chat that fails
fails alone; no task waits for a flush that will not come, and a cancelled caller leaves no writer half closed.

The SQL is append.py; app/compose.py joins `on_committed` to the feed and the notifier.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from indelible.clock import Clock
from indelible.concurrency.tasks import Backoff
from indelible.content import Part, encode
from indelible.content.parts import merge_deltas
from indelible.errors import LeaseLost, Shutdown
from indelible.logs import get_logger
from indelible.metrics import NO_METRICS, Metrics
from indelible.store.journal.append import Appended, BadRows, JournalRow, RunChange

_log: Final = get_logger(__name__)
_PART_OVERHEAD_BYTES: Final = 64
_LONGEST_TURN: Final = 4
"""Each writer gets its turn within this many flushes, however many writers there are."""

_LATE_S: Final = 1.0
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 5.0


class RowStore(Protocol):
    def append(self, rows: Sequence[JournalRow]) -> Coroutine[Any, Any, Appended]:
        """Write rows of running attempts in one durable transaction; `BadRows` if the data itself is refused."""


class JournalWriter:
    """Where one attempt's parts go. `n` is its last committed row; `accepted` and `committed` count parts."""

    def __init__(self, journal: Journal, chat_id: str, attempt_id: str, epoch: int, *, n: int = 0) -> None:
        self.chat_id = chat_id
        self.attempt_id = attempt_id
        self.epoch = epoch
        self.n = n
        self.in_flight: JournalRow | None = None
        self.over: Exception | None = None
        self.accepted = 0
        self.committed = 0
        self._journal = journal
        self._parts: list[Part] = []
        self._changes: list[RunChange] = []
        self._waiting_bytes = 0
        self._in_flight_bytes = 0
        self.in_flight_parts = 0
        self._closing = False
        self._row_made: asyncio.Future[None] | None = None

    def publish(self, part: Part) -> Awaitable[None] | None:
        """Accept a part. Await the result, if any: the journal is full."""
        return None if self._accept(part) else self._journal.wait_for_room()

    def _accept(self, part: Part) -> bool:
        """Returns whether there is room for more."""
        if self.over is not None:
            raise self.over
        if not self._parts:
            self._journal.enqueue(self, is_urgent=not self.accepted)
        self._parts.append(part)
        self.accepted += 1
        delta = getattr(part, "delta", None)
        size_bytes = _PART_OVERHEAD_BYTES + len(encode(part) if delta is None else delta)
        self._waiting_bytes += size_bytes
        return self._journal.note_accepted(size_bytes)

    def wait_for_row(self) -> Awaitable[None] | None:
        """An awaitable that completes when the waiting parts are put into a row; None if no parts are waiting.

        It does not wait for a database that fails or hangs: the attempt keeps reading, and `publish` limits how far.
        """
        if not self._parts or not self._journal.is_healthy:
            return None
        if self._row_made is None:
            self._row_made = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._row_made)

    def wake_reader(self) -> None:
        """Let the attempt read on."""
        made, self._row_made = self._row_made, None
        if made is not None and not made.done():
            made.set_result(None)

    async def record(self, change: RunChange, part: Part) -> None:
        """Record a ledger change together with its part; returns after their commit."""
        self._accept(part)
        self._changes.append(change)
        self._journal.enqueue(self, is_urgent=True)
        place = self.accepted
        await self._journal.drain(self)
        if self.over is not None and self.committed < place:
            raise self.over

    async def close(self) -> list[Part]:
        """Accept no more parts, because this holder ends the attempt now; returns the parts of its last row (R4).

        It waits for a row in flight, so that no part is in two rows or in none, and for a ledger change, which the
        last row could not carry. Call it before the transaction that ends the attempt begins. If it is cancelled, it
        has changed nothing.
        """
        self._closing = True
        try:
            await self._journal.wait_for_rows(self)
        except BaseException:
            self._closing = False
            if self.ready:
                self._journal.enqueue(self, is_urgent=False)
            raise
        if self.over is not None:
            raise self.over
        return self.end(LeaseLost("The attempt has ended."))

    def end(self, why: Exception) -> list[Part]:
        """Refuse parts from now on, with this error; returns those that are in no row yet."""
        self.over = why
        self.wake_reader()
        rest, self._parts, self._changes = self._parts, [], []
        freed_bytes = self._waiting_bytes + self._in_flight_bytes
        self._waiting_bytes = self._in_flight_bytes = 0
        self._journal.forget(self, freed_bytes)
        return rest

    @property
    def ready(self) -> bool:
        """Whether a row is waiting to be written, or can be made."""
        if self.over is not None:
            return False
        return self.in_flight is not None or bool(self._changes if self._closing else self._parts)

    def prepare_row(self) -> JournalRow | None:
        """The row to write now: the unconfirmed one, or a new one from all waiting parts."""
        if self.in_flight is None and self.ready:
            parts, changes = encode(merge_deltas(self._parts)), tuple(self._changes)
            self.in_flight = JournalRow(self.chat_id, self.attempt_id, self.epoch, self.n + 1, parts, changes)
            self.in_flight_parts = len(self._parts)
            self._in_flight_bytes, self._waiting_bytes = self._waiting_bytes, 0
            self._parts, self._changes = [], []
            self.wake_reader()
        return self.in_flight

    def confirm_row(self, row: JournalRow) -> None:
        """Note that the row is committed."""
        self.n, self.in_flight = row.n, None
        self.committed += self.in_flight_parts
        freed_bytes, self._in_flight_bytes = self._in_flight_bytes, 0
        self._journal.release(freed_bytes)


class Journal:
    """See the module header. The owner must keep `run` running in a task."""

    def __init__(
        self,
        store: RowStore,
        *,
        clock: Clock,
        on_committed: Callable[[Sequence[JournalRow]], None],
        interval_s: float = 0.02,
        rows_per_flush: int = 32,
        flush_bytes: int = 64 * 1024,
        limit_bytes: int = 4 * 1024 * 1024,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._on_committed = on_committed
        self._interval_s = interval_s
        self._rows_per_flush = rows_per_flush
        self._flush_bytes = flush_bytes
        self._limit_bytes = limit_bytes
        self._writers: dict[str, JournalWriter] = {}
        self._urgent: dict[JournalWriter, None] = {}  # in the order in which they came
        self._waiting: dict[JournalWriter, None] = {}
        self._is_failing = False
        self._is_late = False
        self._new_bytes = 0  # accepted since the last flush began
        self._held_bytes = 0  # accepted and neither committed nor abandoned
        self._dirty = asyncio.Event()
        self._full = asyncio.Event()
        self._has_stopped = False
        self._progress = asyncio.Event()  # set, and replaced, whenever rows were committed or abandoned

    def open(self, chat_id: str, attempt_id: str, epoch: int, *, n: int = 0) -> JournalWriter:
        """A writer for an attempt of this worker, whose last row is `n` (above 0 if the attempt was adopted)."""
        former = self._writers.get(attempt_id)
        if former is not None:
            former.end(LeaseLost("The attempt was adopted under another lease."))
        writer = self._writers[attempt_id] = JournalWriter(self, chat_id, attempt_id, epoch, n=n)
        return writer

    async def drain(self, writer: JournalWriter) -> None:
        """Wait until everything that the writer has accepted so far is committed, or its attempt is lost or ended."""
        place = writer.accepted
        while writer.over is None and writer.committed < place:
            await self._wait_for_progress()

    async def wait_for_rows(self, writer: JournalWriter) -> None:
        """Wait until a closing writer has no row in flight and none that must still be written."""
        while writer.ready:
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        """Raises if the flusher has stopped: no flush will come, and whether a row in flight arrived is unknown."""
        if self._has_stopped:
            raise Shutdown("The journal is closed.")
        await self._progress.wait()

    async def run(self) -> None:
        """Flush forever. Cancel it only when every writer is closed or drained."""
        flushed_at_s = -self._interval_s
        self._has_stopped = False
        for writer in self._writers.values():
            if writer.ready:
                self.enqueue(writer, is_urgent=True)
        try:
            while True:
                await self._dirty.wait()
                early_s = flushed_at_s + self._interval_s - self._clock.monotonic()
                if early_s > 0 and not self._full.is_set():
                    await self._wait_for_more(early_s)
                await self._flush()
                flushed_at_s = self._clock.monotonic()
        finally:
            self._has_stopped = True
            self._wake_waiters()
            self._wake_readers()

    # --- called by writers ---

    def note_accepted(self, size_bytes: int) -> bool:
        """Returns whether there is room for more."""
        self._new_bytes += size_bytes
        self._held_bytes += size_bytes
        if self._new_bytes >= self._flush_bytes:
            self._full.set()
        return self._held_bytes < self._limit_bytes

    async def wait_for_room(self) -> None:
        while self._held_bytes >= self._limit_bytes:
            await self._wait_for_progress()

    def enqueue(self, writer: JournalWriter, *, is_urgent: bool) -> None:
        """Queue a writer that has something for a row."""
        if is_urgent:
            self._waiting.pop(writer, None)
            self._urgent[writer] = None
        elif writer not in self._urgent:
            self._waiting[writer] = None
        self._dirty.set()

    def forget(self, writer: JournalWriter, freed_bytes: int) -> None:
        self._urgent.pop(writer, None)
        self._waiting.pop(writer, None)
        if self._writers.get(writer.attempt_id) is writer:
            del self._writers[writer.attempt_id]
        self.release(freed_bytes)
        self._wake_waiters()

    def release(self, freed_bytes: int) -> None:
        self._held_bytes -= freed_bytes

    def _wake_waiters(self) -> None:
        """Wake every waiting task to check again. It needs no lock, so a writer can end anywhere."""
        made, self._progress = self._progress, asyncio.Event()
        made.set()

    # --- flushing ---

    async def _wait_for_more(self, time_s: float) -> None:
        timer = self._clock.call_later(time_s, self._full.set)
        try:
            await self._full.wait()
        finally:
            timer.cancel()

    async def _flush(self) -> None:
        writers = self._choose_writers()
        if not self._waiting:
            self._dirty.clear()
        self._full.clear()
        self._new_bytes = 0
        rows: list[JournalRow] = []
        parts = 0
        for writer in writers:
            try:
                row = writer.prepare_row()
            except Exception as error:
                writer.end(error)
                continue
            if row is not None:
                rows.append(row)
                parts += writer.in_flight_parts
        if rows:
            began_s = self._clock.monotonic()
            alarm = self._clock.call_later(_LATE_S, self._note_late)
            try:
                await self._write(rows)
            finally:
                alarm.cancel()
                self._is_late = False
            self._metrics.flushed(parts=parts, seconds=self._clock.monotonic() - began_s)

    @property
    def is_healthy(self) -> bool:
        """Whether rows are written soon."""
        return not (self._is_failing or self._is_late or self._has_stopped)

    def _note_late(self) -> None:
        """Note that a write takes long. Attempts must not wait for it: that would look like silence of the provider."""
        self._is_late = True
        self._wake_readers()

    def _wake_readers(self) -> None:
        for writer in self._writers.values():
            writer.wake_reader()

    def _choose_writers(self) -> list[JournalWriter]:
        """The writers whose rows this flush writes; see the module header."""
        chosen, self._urgent = list(self._urgent), {}
        if self._full_of_bytes:
            limit = len(self._waiting)
        else:
            limit = max(self._rows_per_flush - len(chosen), -(-len(self._writers) // _LONGEST_TURN))
        for writer in list(itertools.islice(self._waiting, limit)):
            del self._waiting[writer]
            chosen.append(writer)
        return chosen

    @property
    def _full_of_bytes(self) -> bool:
        return self._new_bytes >= self._flush_bytes

    async def _write(self, rows: list[JournalRow]) -> None:
        """Write the group; if its data is refused, each row by itself."""
        try:
            self._settle(rows, await self._append(rows))
        except BadRows as error:
            if len(rows) == 1:
                writer = self._find_writer(rows[0])
                if writer is not None:
                    self._count_lost(writer)
                    writer.end(error)
                return
            for row in rows:
                await self._write([row])

    async def _append(self, rows: list[JournalRow]) -> Appended:
        """Write rows, retrying as often as needed. Raises only if the database will never accept the data."""
        backoff = Backoff(self._clock, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
        while True:
            try:
                appended = await self._store.append(rows)
            except BadRows:
                raise
            except Exception as error:
                self._is_failing = True
                self._wake_readers()
                _log.warning("writing the journal failed; trying again in %g s: %r", backoff.delay_s, error)
            else:
                self._is_failing = False
                return appended
            await backoff.wait()

    def _settle(self, rows: list[JournalRow], appended: Appended) -> None:
        for row in rows:
            writer = self._find_writer(row)
            if writer is None:
                continue
            if row.attempt_id in appended.written:
                writer.confirm_row(row)
            elif row.attempt_id in appended.closed:
                writer.end(LeaseLost("Another process ended the attempt."))
            if writer.ready:  # its row was skipped, or it accepted more parts while this row was retried
                self.enqueue(writer, is_urgent=False)
        self._wake_waiters()
        committed = [row for row in rows if row.attempt_id in appended.written]
        if committed:
            self._publish(committed)

    def _count_lost(self, writer: JournalWriter) -> None:
        self._metrics.parts_lost(writer.accepted - writer.committed)

    def _find_writer(self, row: JournalRow) -> JournalWriter | None:
        """The writer of this row; None if it has ended meanwhile."""
        writer = self._writers.get(row.attempt_id)
        return writer if writer is not None and writer.in_flight is row else None

    def _publish(self, committed: list[JournalRow]) -> None:
        """Publish committed rows to readers. A failure does not stop the journal: the rows are in the store."""
        try:
            self._on_committed(committed)
        except Exception:
            _log.exception("publishing %d committed rows failed; readers are delayed", len(committed))
