"""Waiting for a database that is down, and repeating what it did not do.

A turn that is under way has nothing better to do than to wait: failing it would lose a reply that can still be given.
So every read and write of a turn is repeated until it succeeds. A process that shuts down does not wait long, because
another worker continues.

Only what may be repeated comes here: a command whose response was lost has no effect the second time (R5), and a
file that was stored twice is swept.

Must stay true (tests/worker/test_attachments.py, tests/faults/test_database_restart.py): a connection that is lost in
the middle of a turn fails no turn and loses no file; a stop ends the wait of whatever a stop may cancel.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from indelible.clock import Clock
from indelible.concurrency.tasks import Backoff
from indelible.errors import StoreFailed

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_FIRST_DELAY_S: Final = 0.05
_LONGEST_DELAY_S: Final = 2.0
_RETRY_WHEN_LEAVING_S: Final = 0.5


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
