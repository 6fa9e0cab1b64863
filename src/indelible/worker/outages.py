"""What a worker waits out: a database that is down, and a freeze of its own process.

*A database that is down.* A turn that is under way has nothing better to do than to wait: failing it would lose a reply
that can still be given. So every read and write of a turn is repeated until it succeeds. A process that shuts down does
not wait long, because another worker continues. Only what may be repeated comes here: a command whose response was lost
has no effect the second time (R5), and a file that was stored twice is swept.

*A freeze.* A process that was stopped (SIGSTOP, a suspended machine, a blocked event loop) wakes with tokens waiting in
its sockets, and cannot know that meanwhile a user pressed Stop or another worker acquired the chat. So it reads its
chats before it publishes anything more of a model, or starts another tool. A timer notices the freeze: it is due
several times per heartbeat, and looks at how far the clocks have moved since. The monotonic clock misses a suspended
machine and the clock of the day misses nothing, so it looks at both; a clock that was only set costs one query. The
event loop calls a timer that is due before the tasks that a socket has woken, so the doubt is there before the first of
those tokens is published. It costs a part one attribute, and no query.

Must stay true: a connection that is lost in the middle of a turn fails no turn and loses no file; a stop ends the wait
of whatever a stop may cancel (tests/worker/test_attachments.py, tests/faults/test_database_restart.py). After a jump
nothing of a model is published, and no tool started, before the worker has read its chats; a read that began before the
jump proves nothing; a cancelled turn does not wait (tests/worker/test_frozen.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TypeVar

from indelible.clock import Clock, Timer
from indelible.concurrency.scope import CancelScope
from indelible.concurrency.tasks import Backoff
from indelible.errors import StoreFailed

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 2.0
_RETRY_WHEN_LEAVING_S: Final = 0.5
_CHECKS_PER_INTERVAL: Final = 4


class Outages:
    """Of one turn. `is_leaving` says whether it should end soon, because the process does."""

    def __init__(self, clock: Clock, *, chat_id: str, is_leaving: Callable[[], bool]) -> None:
        self._clock = clock
        self._chat_id = chat_id
        self._is_leaving = is_leaving

    async def wait_out(
        self, do: Callable[[], Awaitable[T]], *, what: str, failure: type[StoreFailed] = StoreFailed
    ) -> T:
        """Do it until it succeeds. Any other error than this `failure` is raised at once."""
        backoff = Backoff(self._clock, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
        while True:
            try:
                return await do()
            except failure as error:
                if self._is_leaving() and backoff.delay_s > _RETRY_WHEN_LEAVING_S:
                    raise
                _log.warning("%s waits for the database: %s", what, error, extra={"chat": self._chat_id})
            await backoff.wait()


class Pulse:
    """`is_doubtful`: a clock has jumped, and the chats were not read since. `doubts` counts the jumps."""

    def __init__(self, clock: Clock, *, interval_s: float, on_doubt: Callable[[], None]) -> None:
        self.is_doubtful = False
        self.doubts = 0
        self._clock = clock
        self._interval_s = interval_s
        self._on_doubt = on_doubt
        self._waiting: set[asyncio.Future[None]] = set()
        self._timer: Timer | None = None
        self._seen = self._read_clocks()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Look at the clocks until the end of the block."""
        self._seen = self._read_clocks()
        self._check_clocks()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def confirm(self, doubts: int) -> None:
        """The chats were read, and their runners told. `doubts` is the count when the read began."""
        if doubts == self.doubts:
            self.is_doubtful = False
            for waiting in self._waiting:
                _wake(waiting)

    async def wait(self, scope: CancelScope) -> None:
        """Wait until there is no doubt, or the scope is cancelled."""
        while self.is_doubtful and not scope.cancelled:
            known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(known)
            forget = scope.on_cancel(lambda known=known: _wake(known))  # type: ignore[misc]
            try:
                await known
            finally:
                forget()
                self._waiting.discard(known)

    def _check_clocks(self) -> None:
        seen, self._seen = self._seen, self._read_clocks()
        monotonic_s = self._seen[0] - seen[0]
        day_s = (self._seen[1] - seen[1]).total_seconds()
        if max(monotonic_s, day_s) > self._interval_s:
            self.doubts += 1
            self.is_doubtful = True
            self._on_doubt()
        self._timer = self._clock.call_later(self._interval_s / _CHECKS_PER_INTERVAL, self._check_clocks)

    def _read_clocks(self) -> tuple[float, datetime]:
        return self._clock.monotonic(), self._clock.now()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
