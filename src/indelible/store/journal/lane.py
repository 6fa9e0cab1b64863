"""A lane of the journal: it writes one group of rows after the other, each until its outcome is known.

A failed commit is retried with the same rows (R5), later and later, and nothing else is written in this lane before.
If the database refuses the data itself, the rows are written one by one, and only the faulty one is refused (R6).
So a group that the database does not take, or a database that does not answer, holds up one lane and not the other.

The journal (writer.py) decides what goes into a group, and learns from `settle` and `refuse` what became of each row.
It never gives two lanes rows of the same attempt at the same time.

Must stay true (tests/store/test_journal.py): every row of a group is settled or refused exactly once, unless the lane
is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from indelible.clock import Clock
from indelible.concurrency.tasks import Backoff
from indelible.logs import get_logger
from indelible.metrics import Metrics
from indelible.store.journal.append import Appended, BadRows, JournalRow

_log: Final = get_logger(__name__)
_LATE_S: Final = 1.0
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 5.0


class RowStore(Protocol):
    def append(self, rows: Sequence[JournalRow]) -> Coroutine[Any, Any, Appended]:
        """Write rows of running attempts in one durable transaction; `BadRows` if the data itself is refused."""


class Lane:
    """See the module header. `on_trouble` is called when it notices that rows are not written soon."""

    def __init__(
        self,
        store: RowStore,
        settle: Callable[[Sequence[JournalRow], Appended], None],
        refuse: Callable[[JournalRow, BadRows], None],
        on_trouble: Callable[[], None],
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._settle = settle
        self._refuse = refuse
        self._on_trouble = on_trouble
        self._is_failing = False
        self._is_late = False

    @property
    def is_healthy(self) -> bool:
        """Whether rows are written soon."""
        return not (self._is_failing or self._is_late)

    async def write(self, rows: Sequence[JournalRow], *, parts: int) -> None:
        """Write these rows, which hold so many parts; returns when each of them is settled or refused."""
        began_s = self._clock.monotonic()
        alarm = self._clock.call_later(_LATE_S, self._note_late)
        try:
            await self._write(rows)
        finally:
            alarm.cancel()
            self._is_late = False
        self._metrics.flushed(parts=parts, seconds=self._clock.monotonic() - began_s)

    async def _write(self, rows: Sequence[JournalRow]) -> None:
        try:
            self._settle(rows, await self._append(rows))
        except BadRows as error:
            if len(rows) == 1:
                self._refuse(rows[0], error)
                return
            for row in rows:
                await self._write([row])

    async def _append(self, rows: Sequence[JournalRow]) -> Appended:
        """Write rows, retrying as often as needed. Raises only if the database will never accept the data."""
        backoff = Backoff(self._clock, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
        while True:
            try:
                appended = await self._store.append(rows)
            except BadRows:
                self._is_failing = False  # the database answers
                raise
            except Exception as error:
                self._is_failing = True
                self._on_trouble()
                _log.warning("writing the journal failed; trying again in %g s: %r", backoff.delay_s, error)
            else:
                self._is_failing = False
                return appended
            await backoff.wait()

    def _note_late(self) -> None:
        """Note that a write takes long. Attempts must not wait for it: that would look like silence of the provider."""
        self._is_late = True
        self._on_trouble()
