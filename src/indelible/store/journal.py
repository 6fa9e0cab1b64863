"""The journal of a process: what all its running chats say, committed together.

The loop publishes parts to a writer, which only puts them in memory; one flusher per process collects what
all writers have and commits it in one transaction: at once when nothing was going on, else every 20 ms or as
soon as 64 KiB are waiting. Neighbouring deltas of one block become one part. Only after the commit is
anybody told. So a token costs an append to a list, and a commit is shared by every chat that speaks.

A slow database slows the loop and does not fill the memory: above a limit `publish` gives the loop
something to wait for. A failed commit is tried again with the same bytes under the same number (R5). If the
database objects to the data itself, rows are tried one by one and only the guilty chat fails (R6). A writer
whose attempt is over refuses further parts with `LeaseLost`, unless it closed the attempt itself (R4).

Must stay true (tests/store/test_journal.py): told means committed; numbers have no gaps; one chat's trouble
is not another's. The SQL is append.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace

from indelible.clock import Clock
from indelible.content import Part, ReasoningDelta, TextDelta, ToolInputDelta, encode
from indelible.errors import LeaseLost, StoreFailed
from indelible.store.append import Appended, JournalRow
from indelible.store.ledger import RunChange

_log: Final = logging.getLogger(__name__)
_PART_OVERHEAD_BYTES: Final = 64
_FIRST_BACK_OFF_S: Final = 0.05
_LONGEST_BACK_OFF_S: Final = 5.0


class RowStore(Protocol):
    def append(self, rows: Sequence[JournalRow]) -> Coroutine[Any, Any, Appended]:
        """Write rows of running attempts in one durable transaction; `BadRows` if the data itself is refused."""


class BadRows(StoreFailed):
    """The database refuses what is in a row; trying again would not help."""


class JournalWriter:
    """Where one attempt's parts go. `n` is its last committed row."""

    def __init__(self, journal: Journal, attempt_id: str, epoch: int, *, n: int = 0) -> None:
        self.attempt_id = attempt_id
        self.epoch = epoch
        self.n = n
        self.in_flight: JournalRow | None = None
        self.over: Exception | None = None
        self._journal = journal
        self._parts: list[Part] = []
        self._changes: list[RunChange] = []
        self._size_bytes = 0
        self._closing = False

    def publish(self, part: Part) -> Awaitable[None] | None:
        """Take a part. Something to await is a request to slow down."""
        if self.over is not None:
            raise self.over
        self._parts.append(part)
        size_bytes = _PART_OVERHEAD_BYTES + len(getattr(part, "delta", ""))
        self._size_bytes += size_bytes
        return self._journal.note_waiting(size_bytes)

    async def record(self, change: RunChange, part: Part) -> None:
        """Record a change of the ledger together with the part that tells of it; returns after their commit."""
        self.publish(part)
        self._changes.append(change)
        await self._journal.drain(self)
        if self.over is not None:
            raise self.over

    async def close(self) -> list[Part]:
        """Take no more parts, because this holder ends the attempt now: gives what is to be its last row (R4).

        A row that is on its way is waited for, so that no part is in two rows or in none. Call it before the
        transaction that ends the attempt begins.
        """
        self._closing = True
        await self._journal.wait_for_row(self)
        if self.over is not None:
            raise self.over
        return self.end(LeaseLost("The attempt has ended."))

    def end(self, why: Exception) -> list[Part]:
        """Refuse parts from now on, with this error. Gives those that were not flushed."""
        self.over = why
        rest, self._parts = self._parts, []
        self._journal.forget(self, self._size_bytes)
        return rest

    @property
    def waiting(self) -> bool:
        return self.over is None and (self.in_flight is not None or bool(self._parts))

    def prepare_row(self) -> tuple[JournalRow | None, int]:
        """The row to write now: the one that was not confirmed yet, or one made of all that waits."""
        if self.in_flight is not None or self._closing or not self._parts:
            return self.in_flight, 0
        parts, changes, size_bytes = self._parts, tuple(self._changes), self._size_bytes
        self._parts, self._changes, self._size_bytes = [], [], 0
        self.in_flight = JournalRow(self.attempt_id, self.epoch, self.n + 1, encode(merge_deltas(parts)), changes)
        return self.in_flight, size_bytes


class Journal:
    """See the module header. `run` has to be running, in a task of its owner."""

    def __init__(
        self,
        store: RowStore,
        *,
        clock: Clock,
        on_committed: Callable[[Sequence[JournalRow]], None],
        interval_s: float = 0.02,
        flush_bytes: int = 64 * 1024,
        limit_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_committed = on_committed
        self._interval_s = interval_s
        self._flush_bytes = flush_bytes
        self._limit_bytes = limit_bytes
        self._writers: dict[str, JournalWriter] = {}
        self._waiting_bytes = 0
        self._dirty = asyncio.Event()
        self._full = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._flushed = asyncio.Condition()

    def open(self, attempt_id: str, epoch: int, *, n: int = 0) -> JournalWriter:
        """A writer for an attempt of ours, whose last row is `n` (more than 0 for one that was adopted)."""
        writer = self._writers[attempt_id] = JournalWriter(self, attempt_id, epoch, n=n)
        return writer

    async def drain(self, writer: JournalWriter) -> None:
        """Wait until everything that the writer has taken is committed, or its attempt is over for us."""
        async with self._flushed:
            await self._flushed.wait_for(lambda: not writer.waiting)

    async def wait_for_row(self, writer: JournalWriter) -> None:
        """Wait until no row of the writer is on its way."""
        async with self._flushed:
            await self._flushed.wait_for(lambda: writer.over is not None or writer.in_flight is None)

    async def run(self) -> None:
        """Flush for ever. Cancel it only when every writer is closed or drained."""
        flushed_at_s = -self._interval_s
        while True:
            await self._dirty.wait()
            early_s = flushed_at_s + self._interval_s - self._clock.monotonic()
            if early_s > 0 and not self._full.is_set():
                await self._wait_for_more(early_s)
            await self._flush()
            flushed_at_s = self._clock.monotonic()

    # --- what writers tell ---

    def note_waiting(self, size_bytes: int) -> Awaitable[None] | None:
        self._waiting_bytes += size_bytes
        self._dirty.set()
        if self._waiting_bytes < self._flush_bytes:
            return None
        self._full.set()
        if self._waiting_bytes < self._limit_bytes:
            return None
        self._room.clear()
        return self._wait_for_room()

    def forget(self, writer: JournalWriter, size_bytes: int) -> None:
        if self._writers.get(writer.attempt_id) is writer:
            del self._writers[writer.attempt_id]
        self._release(size_bytes)

    async def _wait_for_room(self) -> None:
        await self._room.wait()

    def _release(self, size_bytes: int) -> None:
        self._waiting_bytes -= size_bytes
        if self._waiting_bytes < self._limit_bytes:
            self._room.set()

    # --- flushing ---

    async def _wait_for_more(self, time_s: float) -> None:
        timer = self._clock.call_later(time_s, self._full.set)
        try:
            await self._full.wait()
        finally:
            timer.cancel()

    async def _flush(self) -> None:
        self._dirty.clear()
        self._full.clear()
        rows: list[JournalRow] = []
        size_bytes = 0
        for writer in list(self._writers.values()):
            try:
                row, taken_bytes = writer.prepare_row()
            except Exception as error:
                self._give_up(writer, error)
                continue
            size_bytes += taken_bytes
            if row is not None:
                rows.append(row)
        if rows:
            await self._write(rows)
        self._release(size_bytes)
        async with self._flushed:
            self._flushed.notify_all()

    async def _write(self, rows: list[JournalRow]) -> None:
        """Write the group; if its data is refused, each row by itself."""
        try:
            self._settle(rows, await self._append(rows))
        except BadRows as error:
            if len(rows) == 1:
                self._give_up(self._writers.get(rows[0].attempt_id), error)
                return
            for row in rows:
                await self._write([row])

    async def _append(self, rows: list[JournalRow]) -> Appended:
        """Write rows, however often it takes. Only data that will never be accepted comes back as an error."""
        back_off_s = _FIRST_BACK_OFF_S
        while True:
            try:
                return await _run_to_its_end(self._store.append(rows))
            except BadRows:
                raise
            except Exception as error:
                _log.warning("the journal could not be written, trying again in %g s: %r", back_off_s, error)
            await self._clock.sleep(back_off_s)
            back_off_s = min(back_off_s * 2, _LONGEST_BACK_OFF_S)

    def _settle(self, rows: list[JournalRow], appended: Appended) -> None:
        committed = [row for row in rows if row.attempt_id in appended.written]
        for row in rows:
            writer = self._writers.get(row.attempt_id)
            if writer is None or writer.in_flight is not row:
                continue
            if row.attempt_id in appended.written:
                writer.n, writer.in_flight = row.n, None
            elif row.attempt_id in appended.closed:
                self._give_up(writer, LeaseLost("The attempt was ended by somebody else."))
            else:
                self._dirty.set()
        if committed:
            self._tell(committed)

    def _tell(self, committed: list[JournalRow]) -> None:
        """Readers are told after the commit. What they make of it is no trouble of the journal's."""
        try:
            self._on_committed(committed)
        except Exception:
            _log.exception("readers could not be told of %d rows", len(committed))

    def _give_up(self, writer: JournalWriter | None, error: Exception) -> None:
        """End one writer; the others go on."""
        if writer is not None:
            writer.end(error)


async def _run_to_its_end(append: Coroutine[Any, Any, Appended]) -> Appended:
    """A transaction that has begun is not cut by the end of the flusher: its connection would not survive that."""
    task = asyncio.create_task(append)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def merge_deltas(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring deltas of one block as one: `fold` makes the same of them."""
    merged: list[Part] = []
    texts: list[str] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is not None and _continues(last, part):
            texts.append(part.delta)  # type: ignore[union-attr]
            continue
        _join(merged, texts)
        merged.append(part)
        texts = [getattr(part, "delta", "")]
    _join(merged, texts)
    return merged


def _continues(last: Part, part: Part) -> bool:
    kind = type(part)
    if kind is not type(last) or kind not in (TextDelta, ReasoningDelta, ToolInputDelta):
        return False
    if isinstance(part, ReasoningDelta) and (part.signature or part.metadata):
        return False
    return last.id == part.id  # type: ignore[union-attr]


def _join(merged: list[Part], texts: list[str]) -> None:
    if len(texts) > 1:
        merged[-1] = replace(merged[-1], delta="".join(texts))
