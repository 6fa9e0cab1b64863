"""The exchanges of one step: each is one entry, counted once.

An exchange gets its number when it begins and its entry when it is counted (rule 7.1); until then it is open, and not
among the `attempts`. Afterwards only one thing can change the entry: a close that failed, which is never lost.

There are two locks, always acquired in this order: an exchange's own, then the log's. Neither is held
while anything is awaited, nor while foreign code runs. A listener (`on_change`) is called with no lock held, for one
change at a time and in the order they happened, though not always in the thread that caused one.

Recording is best effort. An error in it costs only this record: the exchange is dropped, counted in `dropped` and
reported to `on_drop`.

Must stay true (tests/recording/test_recorded_races.py): one entry per exchange in every race; no deadlock.
http.py decides when an exchange counts, and as what.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Final, Literal, Protocol

import msgspec

from indelible.clock import Clock, SystemClock
from indelible.recording.body import RecordedBody
from indelible.redaction.secrets import NO_SECRETS, KnownSecrets

_log: Final = logging.getLogger(__name__)
STEP_ENDED: Final = "the step ended before the exchange did"


class ExchangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange, redacted. `status_code` is None if there was no response; unknown fields of a request are empty.

    The texts of the bodies are made when they are first read, which may take milliseconds (body.py).
    """

    number: int
    status: Literal["completed", "failed"]
    error: str | None
    method: str
    url: str
    request_headers: dict[str, str]
    request: RecordedBody
    status_code: int | None
    response_headers: dict[str, str]
    response: RecordedBody
    started_at: datetime | None
    answered_at: datetime | None
    ended_at: datetime

    @property
    def request_body(self) -> str:
        return self.request.text

    @property
    def response_body(self) -> str:
        return self.response.text


class OpenExchange(Protocol):
    """An exchange with a number and no entry yet."""

    def finalise(self, error: str) -> None:
        """Count it now: no more of it will be read."""


class ExchangeLog:
    """The attempts of one step. Safe from any task and thread."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        on_change: Callable[[ExchangeRecord], None] | None = None,
        on_drop: Callable[[], None] | None = None,
        known: KnownSecrets = NO_SECRETS,
    ) -> None:
        self.clock: Final[Clock] = clock or SystemClock()
        self.known: Final = known
        self._on_change = on_change
        self._on_drop = on_drop
        self._lock = Lock()
        self._last_number = 0
        self._open: dict[int, OpenExchange] = {}
        self._entries: dict[int, ExchangeRecord] = {}
        self._dropped: set[int] = set()
        self._notifications: deque[tuple[int, Callable[[], None]]] = deque()
        self._is_notifying = False

    @property
    def attempts(self) -> list[ExchangeRecord]:
        """The exchanges counted so far, by number."""
        with self._lock:
            return [self._entries[number] for number in sorted(self._entries)]

    @property
    def dropped(self) -> int:
        """How many exchanges could not be recorded, or whose listener failed."""
        with self._lock:
            return len(self._dropped)

    def finalise(self, error: str = STEP_ENDED) -> None:
        """The step ends: count the open exchanges. An incomplete one failed with this error."""
        with self._lock:
            left = list(self._open.values())
        for exchange in left:
            exchange.finalise(error)

    # --- for http.py ---

    def open(self, exchange: OpenExchange) -> int:
        """Returns the exchange's number."""
        with self._lock:
            self._last_number += 1
            self._open[self._last_number] = exchange
            return self._last_number

    def publish(self, attempt: ExchangeRecord) -> None:
        """Add an entry, or replace its earlier version. Call it with the exchange's lock held."""
        with self._lock:
            self._open.pop(attempt.number, None)
            self._entries[attempt.number] = attempt
            if self._on_change is not None and attempt.number not in self._dropped:
                self._notifications.append((attempt.number, partial(self._on_change, attempt)))

    def drop(self, number: int, bug: Exception) -> None:
        """Recording this exchange failed. Only the error's class is logged: its text may quote the exchange."""
        with self._lock:
            self._open.pop(number, None)
            if number in self._dropped:
                return
            self._dropped.add(number)
            if self._on_drop is not None:
                self._notifications.append((number, self._on_drop))
        _log.warning("An exchange could not be recorded: %s.", type(bug).__name__)

    def notify(self) -> None:
        """Call the listeners, with no lock held. If another thread is already doing so, it delivers these changes."""
        with self._lock:
            if self._is_notifying:
                return
            self._is_notifying = True
        try:
            while (notification := self._next_notification()) is not None:
                number, call = notification
                try:
                    call()
                except Exception as bug:
                    self.drop(number, bug)
        except BaseException:
            self._is_notifying = False
            raise

    def _next_notification(self) -> tuple[int, Callable[[], None]] | None:
        with self._lock:
            if not self._notifications:
                self._is_notifying = False
                return None
            return self._notifications.popleft()
