"""The journal of a process: the parts of all its running chats, committed together.

The loop publishes parts to a writer, which only appends them to a list in memory. Flushers collect the parts of many
writers and commit them in one transaction. Neighbouring deltas of one block become one part. Readers get a row only
after its commit (`on_committed`), and each row names its chat, so no table of attempts is needed. So a token costs an
append to a list, and all running chats share a commit.

There are two flushers, each with a lane of its own (lane.py). The *regular* one writes the rows of all chats that wait:
immediately after an idle period, otherwise 20 ms after its last flush, or as soon as 64 KiB are waiting; if that
becomes too much, it writes those that have waited longest (pace.py). The *urgent* one writes rows that a reader or a
tool waits for: the first one of an attempt, and ledger changes. They wait for no interval and for no other chat. Those
that become urgent while it writes go together afterwards. An attempt has a row in one lane at a time: what it accepts
meanwhile waits until that row is settled, so its rows are committed and published in order.

An attempt may wait until its row is due before it reads from its provider again (`wait_for_row`). It then reads what
has arrived, and the row is made: it is woken once per row, and not once per token. Under pressure it reads meanwhile.

A slow database slows the loop instead of filling the memory: above a limit, `publish` returns an awaitable. A writer
whose attempt is over refuses further parts with `LeaseLost`, unless it closed the attempt itself (R4). Every task that
waits for a commit is woken whenever rows were committed or abandoned, and checks again. Every byte that was accepted is
released once: when its row is committed, or when its writer ends.

Must stay true (tests/store/test_journal.py, test_journal_lanes.py): published means committed; numbers have no gaps; a
chat that fails fails alone; no task waits for a flush that will not come, and a cancelled caller leaves no writer half
closed; no two rows of an attempt are written at the same time.

The SQL is append.py; app/compose.py joins `on_committed` to the feed and the notifier.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from indelible.clock import Clock
from indelible.content import Part, encode
from indelible.content.parts import merge_deltas
from indelible.errors import LeaseLost, Shutdown
from indelible.logs import get_logger
from indelible.metrics import NO_METRICS, Metrics
from indelible.store.journal.append import Appended, BadRows, JournalRow, RunChange
from indelible.store.journal.lane import Lane, RowStore
from indelible.store.journal.pace import Spread, follow_load

_log: Final = get_logger(__name__)
_PART_OVERHEAD_BYTES: Final = 64
_LOOP_TURNS: Final = 5
"""So many turns of the event loop urgent rows wait. The end of a reply in one piece comes within them, and has it."""


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
        self._has_row = False
        self._row_is_due: asyncio.Future[None] | None = None

    def publish(self, part: Part) -> Awaitable[None] | None:
        """Accept a part. Await the result, if any: the journal is full."""
        return None if self._accept(part) else self._journal.wait_for_room()

    def _accept(self, part: Part) -> bool:
        """Returns whether there is room for more."""
        if self.over is not None:
            raise self.over
        if not self._parts:
            self._journal.enqueue(self)
        self._parts.append(part)
        self.accepted += 1
        delta = getattr(part, "delta", None)
        size_bytes = _PART_OVERHEAD_BYTES + len(encode(part) if delta is None else delta)
        self._waiting_bytes += size_bytes
        return self._journal.note_accepted(size_bytes)

    def wait_for_row(self) -> Awaitable[None] | None:
        """An awaitable that completes when a row is about to be made; None if no parts are waiting. For one task.

        It does not wait for a database that fails or hangs: the attempt keeps reading, and `publish` limits how far.
        """
        if not self._parts or not self._journal.is_healthy:
            return None
        if not self.is_paused:
            self._row_is_due = asyncio.get_running_loop().create_future()
        return self._row_is_due

    @property
    def is_paused(self) -> bool:
        """Whether the attempt waits for its row before it reads on."""
        return self._row_is_due is not None and not self._row_is_due.done()

    def wake_reader(self) -> bool:
        """Let the attempt read on; returns whether it was paused."""
        due, self._row_is_due = self._row_is_due, None
        if due is None or due.done():
            return False
        due.set_result(None)
        return True

    async def record(self, change: RunChange, part: Part) -> None:
        """Record a ledger change together with its part; returns after their commit."""
        self._accept(part)
        self._changes.append(change)
        self._journal.enqueue(self)
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
                self._journal.enqueue(self)
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

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for its next row: it is the first one, or carries a ledger change.

        A row that was skipped is not: it waits for a transaction that holds its attempt.
        """
        return self.in_flight is None and (bool(self._changes) or not self._has_row)

    def prepare_row(self) -> JournalRow | None:
        """The row to write now: the unconfirmed one, or a new one from all waiting parts; None if there is none."""
        if not self.ready:
            return None
        if self.in_flight is None:
            parts, changes = encode(merge_deltas(self._parts)), tuple(self._changes)
            self.in_flight = JournalRow(self.chat_id, self.attempt_id, self.epoch, self.n + 1, parts, changes)
            self.in_flight_parts = len(self._parts)
            self._in_flight_bytes, self._waiting_bytes = self._waiting_bytes, 0
            self._parts, self._changes = [], []
            self._has_row = True
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
        self._on_their_way: set[str] = set()  # attempts with a row in a lane
        self._has_urgent = asyncio.Event()
        self._has_waiting = asyncio.Event()
        self._new_bytes = 0  # accepted since the last regular flush began
        self._held_bytes = 0  # accepted and neither committed nor abandoned
        self._full = asyncio.Event()
        self._has_stopped = False
        self._progress = asyncio.Event()  # set, and replaced, whenever rows were committed or abandoned
        make_lane = partial(
            Lane, store, self._settle, self._refuse, self._wake_all_readers, clock=clock, metrics=metrics
        )
        self._urgent_lane, self._regular_lane = make_lane(), make_lane()

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
        """Raises if the flushers have stopped: no flush will come, and whether a row in flight arrived is unknown."""
        if self._has_stopped:
            raise Shutdown("The journal is closed.")
        await self._progress.wait()

    async def run(self) -> None:
        """Flush forever. Cancel it only when every writer is closed or drained."""
        self._has_stopped = False
        self._on_their_way.clear()
        for writer in self._writers.values():
            if writer.ready:
                self.enqueue(writer)
        try:
            async with asyncio.TaskGroup() as lanes:
                lanes.create_task(self._flush_urgent(), name="writing urgent rows")
                lanes.create_task(self._flush_regularly(), name="writing regular rows")
        finally:
            self._has_stopped = True
            self._wake_waiters()
            self._wake_all_readers()

    @property
    def is_healthy(self) -> bool:
        """Whether rows are written soon."""
        return self._regular_lane.is_healthy and self._urgent_lane.is_healthy and not self._has_stopped

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

    def enqueue(self, writer: JournalWriter) -> None:
        """Queue a writer that has something for a row, or whose attempt is paused.

        While a row of its attempt is in a lane it is not queued: `_requeue` does that afterwards.
        """
        if writer.attempt_id in self._on_their_way:
            return
        if writer.is_urgent:
            self._waiting.pop(writer, None)
            self._urgent[writer] = None
            self._has_urgent.set()
        elif writer not in self._urgent:
            self._waiting[writer] = None
            self._has_waiting.set()

    def forget(self, writer: JournalWriter, freed_bytes: int) -> None:
        self._leave_queues(writer)
        if self._writers.get(writer.attempt_id) is writer:
            del self._writers[writer.attempt_id]
        self.release(freed_bytes)
        self._wake_waiters()

    def _leave_queues(self, writer: JournalWriter) -> None:
        self._urgent.pop(writer, None)
        self._waiting.pop(writer, None)

    def release(self, freed_bytes: int) -> None:
        self._held_bytes -= freed_bytes

    def _wake_waiters(self) -> None:
        """Wake every waiting task to check again. It needs no lock, so a writer can end anywhere."""
        made, self._progress = self._progress, asyncio.Event()
        made.set()

    def _wake_all_readers(self) -> None:
        _wake_readers(self._writers.values())

    # --- flushing ---

    async def _flush_urgent(self) -> None:
        """Write urgent rows. Those that come meanwhile go together afterwards."""
        while True:
            await self._has_urgent.wait()
            self._has_urgent.clear()
            for _ in range(_LOOP_TURNS):
                await asyncio.sleep(0)
            writers = list(self._urgent)
            rows, parts = self._prepare_rows(writers)
            _wake_readers(writers)
            if rows:
                await self._urgent_lane.write(rows, parts=parts)

    async def _flush_regularly(self) -> None:
        """Write the rows of all that wait, an interval after the last flush ended, or at once after an idle period."""
        spread = Spread()
        due_s = self._clock.monotonic()
        while True:
            await self._has_waiting.wait()
            late_s = await self._wait_until(due_s)
            began_s = self._clock.monotonic()
            await self._flush(self._choose_writers(spread.flushes), reads_first=spread.flushes == 1)
            ended_s = self._clock.monotonic()
            spread = follow_load(spread, duration_s=ended_s - began_s, late_s=late_s, interval_s=self._interval_s)
            due_s = ended_s + self._interval_s

    async def _wait_until(self, due_s: float) -> float:
        """Wait until then, or until much is waiting. Returns how much later it became, because the loop was busy."""
        early_s = due_s - self._clock.monotonic()
        if early_s <= 0 or self._full.is_set():
            return 0.0
        timer = self._clock.call_later(early_s, self._full.set)
        try:
            await self._full.wait()
        finally:
            timer.cancel()
        return max(self._clock.monotonic() - due_s, 0.0)

    def _choose_writers(self, flushes: int) -> list[JournalWriter]:
        """The writers whose rows the next regular flush writes: all that wait, or those that have waited longest."""
        if flushes == 1 or self._new_bytes >= self._flush_bytes:
            return list(self._waiting)
        count = max(self._rows_per_flush, -(-len(self._writers) // flushes))
        return list(itertools.islice(self._waiting, count))

    async def _flush(self, writers: Sequence[JournalWriter], *, reads_first: bool) -> None:
        """Write the rows of these. Their attempts read before that, or under pressure while the rows are written."""
        if reads_first and _wake_readers(writers):
            await asyncio.sleep(0)  # what has arrived by now is read, and is in this row
        self._full.clear()
        self._new_bytes = 0
        rows, parts = self._prepare_rows(writers)
        if not self._waiting:
            self._has_waiting.clear()
        if not reads_first:
            _wake_readers(writers)
        if rows:
            await self._regular_lane.write(rows, parts=parts)

    def _prepare_rows(self, writers: Iterable[JournalWriter]) -> tuple[list[JournalRow], int]:
        """The rows to write now for these writers, and how many parts are in them."""
        rows: list[JournalRow] = []
        parts = 0
        for writer in writers:
            self._leave_queues(writer)
            if writer.attempt_id in self._on_their_way:
                continue
            try:
                row = writer.prepare_row()
            except Exception as error:
                writer.end(error)
                continue
            if row is not None:
                self._on_their_way.add(row.attempt_id)
                rows.append(row)
                parts += writer.in_flight_parts
        return rows, parts

    def _settle(self, rows: Sequence[JournalRow], appended: Appended) -> None:
        for row in rows:
            writer = self._leave_lane(row)
            if writer is not None:
                if row.attempt_id in appended.written:
                    writer.confirm_row(row)
                elif row.attempt_id in appended.closed:
                    writer.end(LeaseLost("Another process ended the attempt."))
            self._requeue(row.attempt_id)
        self._wake_waiters()
        committed = [row for row in rows if row.attempt_id in appended.written]
        if committed:
            self._publish(committed)

    def _refuse(self, row: JournalRow, error: BadRows) -> None:
        writer = self._leave_lane(row)
        if writer is not None:
            self._metrics.parts_lost(writer.accepted - writer.committed)
            writer.end(error)
        self._requeue(row.attempt_id)

    def _leave_lane(self, row: JournalRow) -> JournalWriter | None:
        """The row left its lane. Returns its writer, unless that has ended meanwhile."""
        self._on_their_way.discard(row.attempt_id)
        writer = self._writers.get(row.attempt_id)
        return writer if writer is not None and writer.in_flight is row else None

    def _requeue(self, attempt_id: str) -> None:
        """Queue whoever writes for this attempt now: it accepted more parts meanwhile, was skipped, or adopted."""
        writer = self._writers.get(attempt_id)
        if writer is not None and (writer.ready or writer.is_paused):
            self.enqueue(writer)

    def _publish(self, committed: list[JournalRow]) -> None:
        """Publish committed rows to readers. A failure does not stop the journal: the rows are in the store."""
        try:
            self._on_committed(committed)
        except Exception:
            _log.exception("publishing %d committed rows failed; readers are delayed", len(committed))


def _wake_readers(writers: Iterable[JournalWriter]) -> bool:
    """Let their attempts read on; returns whether any was paused."""
    return sum(writer.wake_reader() for writer in writers) > 0
