"""One chat that somebody in this process reads: what is new in it goes to all its readers.

A channel has come to a position and moves on in two ways. A row that this process committed, and that is the next one,
is received as it comes (`Feed.publish`), without a query. Everything else it reads from the store, once for all
readers, whenever it is told that the chat has come further than it. Who tells it is feed.py. Whatever it is told is a
hint: told twice, it finds nothing new; told never, it would be told by the next poll.

Rows that come while it reads are kept until it knows whether they connect; a few are enough, because what is
forgotten is read.

Must stay true (tests/feed/test_channel.py): its readers get every step once and in order, from wherever the rows came;
while rows connect there is no query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from indelible.feed.loader import Loader
from indelible.feed.timeline import TimelineStep, make_row_step
from indelible.machine.events import EndReason, Position
from indelible.store.journal.append import JournalRow

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], bool]
"""Begin some work in a task that somebody awaits; False if nobody would, just now."""

_MAX_EARLY: Final = 64
_log: Final = logging.getLogger(__name__)


class Listener(Protocol):
    def push(self, step: TimelineStep) -> None:
        """Take the next step. It does not wait, however slow the listener is."""

    def end(self, reason: EndReason) -> None:
        """There will be no more."""


class Channel:
    """See the module header. `position` is None until `start`."""

    def __init__(self, source: Loader, *, spawn: Spawn) -> None:
        self.source = source
        self.listeners: set[Listener] = set()
        self.position: Position | None = None
        self._spawn = spawn
        self._is_behind = False
        self._is_reading = False
        self._early: list[JournalRow] = []

    def start(self, position: Position) -> None:
        """What comes after this position is news. Only the first call counts."""
        if self.position is None:
            self.position = position
            if self._is_behind:
                self._read_soon()

    def note(self, known: Position) -> None:
        """The chat has come at least this far."""
        here = self.position
        if here is None or known.seq > here.seq or (known.attempt == here.attempt and known.n > here.n):
            self._read_soon()

    def receive(self, row: JournalRow) -> None:
        """A row of this chat that was just committed."""
        if self.position is None or len(self._early) == _MAX_EARLY:
            self._is_behind = True
        elif self._is_reading:
            self._early.append(row)
        else:
            self._connect(row, self.position)

    def end(self, reason: EndReason) -> None:
        for listener in self.listeners:
            listener.end(reason)

    def _connect(self, row: JournalRow, here: Position) -> None:
        if row.attempt_id != here.attempt or row.n > here.n + 1:
            self._read_soon()
        elif row.n == here.n + 1:
            self._spread(make_row_step(self.source.cursors, here, row.attempt_id, row.n, row.parts))

    def _spread(self, step: TimelineStep) -> None:
        self.position = step.after
        for listener in self.listeners:
            listener.push(step)

    def _read_soon(self) -> None:
        self._is_behind = True
        if self.position is not None and not self._is_reading:
            self._is_reading = self._spawn(self._read)

    async def _read(self) -> None:
        """Read the store until nothing is new. If that fails, the next hint or poll leads here again."""
        try:
            while self._is_behind and self.listeners:
                self._is_behind = False
                await self._read_once()
        except Exception as error:
            _log.warning("the news of %s cannot be read, its readers have to wait: %r", self.source.chat_id, error)
        finally:
            self._is_reading = False
            self._early.clear()

    async def _read_once(self) -> None:
        assert self.position is not None
        steps, is_all = await self.source.read_after(self.position)
        for step in steps:
            self._spread(step)
        early, self._early = self._early, []
        if not is_all:
            self._is_behind = True
            return
        for row in early:
            self._connect(row, self.position)
