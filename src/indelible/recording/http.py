"""Recording exchanges while they happen: what is sent and read passes through untouched.

When an exchange counts is rule 7.1. A failure to send or to read counts at once. The end of an event stream counts at
once too, because its readers may never close it: that entry is provisional, since a close that fails makes it failed.
Any other body is judged when it is closed (exchange.py), or when its step ends. All of this happens once; later records
have no effect, except the error of a close, which is added to the entry. A reader that has received all it needs
(`settle`: the reply is complete, though the provider keeps the connection open) may leave the rest unread. Nothing is
read that the caller does not read: a document of unknown length that was closed early is complete if it is one.

The caller notices nothing. It gets the very objects that the response gave: pieces, exceptions, in the same order. A
piece costs one call and one copy, no lock. While nothing is recorded there is no exchange, and the caller has the
response itself. A bug in recording only drops the record of this exchange: it is counted in `dropped` and reported to
`on_drop`.

An exchange gets its number when it begins and its entry when it is counted; until then it is open, and not among the
`attempts`. The end of a body and a close that fails may come from two threads at once: whoever takes the exchange from
the open ones makes its entry. The log has the only lock. It is not held while anything is awaited, nor while foreign
code runs: a listener (`on_change`) is called with no lock held, for one change at a time and in the order they
happened, though not always in the thread that caused one.

Must stay true (tests/recording/test_recorded_property.py, test_recorded_races.py): exactly one entry for each exchange
in every race, no deadlock, and a caller that cannot detect that it is recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Final

from msgspec.structs import replace

from indelible.clock import Clock, SystemClock
from indelible.models.http.hooks import Answer, HttpRequest, HttpResponse
from indelible.recording.exchange import (
    MAX_ANSWER_BYTES,
    UNEXPECTED_END,
    BodyCapture,
    ExchangeRecord,
    ResponseHead,
    find_fault,
    is_short,
    keep_body,
    read_head,
)
from indelible.redaction.redact import redact_line
from indelible.redaction.secrets import NO_SECRETS, KnownSecrets

_log: Final = logging.getLogger(__name__)
STEP_ENDED: Final = "the step ended before the exchange did"


def wrap(response: HttpResponse, log: ExchangeLog) -> Answer:
    """The response, recorded into the log as it is read and closed."""
    return RecordedExchange(log, request=None).wrap(response)


class ExchangeLog:
    """The exchanges of one step. Set it as the `recording` of a task (models/http/hooks.py), or `wrap` a response.

    Safe from any task and thread.
    """

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
        self._open: dict[int, RecordedExchange] = {}
        self._entries: dict[int, ExchangeRecord] = {}
        self._dropped: set[int] = set()
        self._badly_closed: set[int] = set()
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

    def begin(self, request: HttpRequest) -> RecordedExchange:
        return RecordedExchange(self, request=request)

    def finalise(self, error: str = STEP_ENDED) -> None:
        """The step ends: count the open exchanges. An incomplete one failed with this error."""
        with self._lock:
            left = list(self._open.values())
        for exchange in left:
            exchange.finalise(error)

    def release(self, number: int) -> None:
        """Free the memory of the bodies of an entry that a listener has. A failed close may still be added to it."""
        with self._lock:
            entry = self._entries[number]
            self._entries[number] = replace(entry, _sent=keep_body(b""), _received=BodyCapture())

    # --- for the exchanges ---

    def open(self, exchange: RecordedExchange) -> int:
        """Returns the exchange's number."""
        with self._lock:
            self._last_number += 1
            self._open[self._last_number] = exchange
            return self._last_number

    def count(self, exchange: RecordedExchange, error: str | None) -> None:
        """Make the entry of this exchange, unless it has one."""
        ended_at = self.clock.now()
        with self._lock:
            if self._open.pop(exchange.number, None) is not None:
                self._publish(exchange.describe(error, ended_at))
        self._notify()

    def count_close_error(self, exchange: RecordedExchange, error: str) -> None:
        """Make its entry, or add the first error of a close to the one that it has."""
        number, ended_at = exchange.number, self.clock.now()
        with self._lock:
            if self._open.pop(number, None) is not None:
                self._publish(exchange.describe(error, ended_at))
            elif number in self._entries and number not in self._badly_closed:
                entry = self._entries[number]
                error = error if entry.error is None else f"{entry.error}; then closing failed: {error}"
                self._publish(replace(entry, status="failed", error=error))
            self._badly_closed.add(number)
        self._notify()

    def drop(self, number: int, bug: Exception) -> None:
        """Record nothing more of this exchange. Only the error's class is logged: its text may quote the exchange."""
        with self._lock:
            self._open.pop(number, None)
            is_new = number not in self._dropped
            self._dropped.add(number)
            if is_new and self._on_drop is not None:
                self._notifications.append((number, self._on_drop))
        if is_new:
            _log.warning("An exchange could not be recorded: %s.", type(bug).__name__)
        self._notify()

    def _publish(self, entry: ExchangeRecord) -> None:
        self._entries[entry.number] = entry
        if self._on_change is not None and entry.number not in self._dropped:
            self._notifications.append((entry.number, partial(self._on_change, entry)))

    def _notify(self) -> None:
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


class RecordedExchange:
    """One exchange: open until it is counted. Nothing here raises or waits."""

    def __init__(self, log: ExchangeLog, *, request: HttpRequest | None) -> None:
        self.body: BodyCapture | None = BodyCapture()  # None: nothing more is recorded
        self.is_settled = False
        self._log = log
        self._request = request
        self._head: ResponseHead | None = None
        self._end_seen = False
        self._started_at: datetime | None = None
        self._answered_at: datetime | None = None
        self.number: Final = log.open(self)
        if request is not None:
            with self._best_effort():
                self._started_at = log.clock.now()

    @contextmanager
    def _best_effort(self) -> Iterator[None]:
        """An error in here costs only the record of this exchange: it gets no entry, or the entry stays unchanged."""
        try:
            yield
        except Exception as bug:
            self.drop(bug)

    def drop(self, bug: Exception) -> None:
        self.body = None
        self._log.drop(self.number, bug)

    # --- what happens, as it happens ---

    def wrap(self, response: HttpResponse) -> Answer:
        with self._best_effort():
            self._answered_at = self._log.clock.now()
            self._head = read_head(response)
            if self._head.is_json and (body := self.body) is not None:
                body.head_bytes = MAX_ANSWER_BYTES
        return RecordedResponse(response, self)

    def failed(self, error: BaseException) -> None:
        """The request could not be sent."""
        with self._best_effort():
            self._log.count(self, self._name(error, "sending the request"))

    def break_off(self, error: BaseException) -> None:
        """Reading failed. A settled reader that stops waiting has not failed: the close decides."""
        if self.is_settled and isinstance(error, asyncio.CancelledError):
            return
        with self._best_effort():
            self._log.count(self, self._name(error, "reading the response"))

    def reach_end(self) -> None:
        self._end_seen = True
        head, body = self._head, self.body  # another thread may count it meanwhile
        if head is not None and head.is_stream and body is not None:
            with self._best_effort():
                self._log.count(self, UNEXPECTED_END if is_short(head, body) else None)

    def close(self) -> None:
        """The response was closed without an error."""
        with self._best_effort():
            self._log.count(self, self._find_fault())

    def fail_closing(self, error: BaseException) -> None:
        with self._best_effort():
            self._log.count_close_error(self, self._name(error, "closing the response"))

    def finalise(self, error: str) -> None:
        with self._best_effort():
            self._log.count(self, redact_line(error, self._known) if self._find_fault() else None)

    # --- its entry ---

    def describe(self, error: str | None, ended_at: datetime) -> ExchangeRecord:
        request, received, self.body = self._request, self.body or BodyCapture(), None
        if request is not None:
            self._request = replace(request, body=b"")  # the entry has the kept part; the rest may be large
        return ExchangeRecord(
            number=self.number,
            status="completed" if error is None else "failed",
            error=error,
            started_at=self._started_at,
            answered_at=self._answered_at,
            ended_at=ended_at,
            _secrets=self._log.known,
            _request=self._request,
            _sent=keep_body(b"" if request is None else request.body),
            _head=self._head,
            _received=received,
        )

    def _find_fault(self) -> str | None:
        head, body = self._head, self.body
        if head is None or body is None:
            return UNEXPECTED_END
        return None if self.is_settled else find_fault(head, body, end_seen=self._end_seen)

    @property
    def _known(self) -> KnownSecrets:
        return self._log.known.sent_with(self._request.headers) if self._request else self._log.known

    def _name(self, error: BaseException, doing: str) -> str:
        """The text of an error, redacted. A cancellation has no text of its own."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return f"cancelled while {doing}"
        return redact_line(str(error) or f"{type(error).__name__} while {doing}", self._known)


class RecordedResponse:
    """The response, recorded as it is read and closed."""

    def __init__(self, response: HttpResponse, exchange: RecordedExchange) -> None:
        self._response = response
        self._exchange = exchange

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def method(self) -> str:
        return self._response.method

    async def read(self) -> bytes:
        try:
            piece = await self._response.read()
        except BaseException as error:
            self._exchange.break_off(error)
            raise
        body = self._exchange.body
        if not piece:
            self._exchange.reach_end()
        elif body is not None:
            try:
                body.add(piece)
            except Exception as bug:
                self._exchange.drop(bug)
        return piece

    def settle(self) -> None:
        self._exchange.is_settled = True

    async def aclose(self) -> None:
        try:
            await self._response.aclose()
        except BaseException as error:
            self._exchange.fail_closing(error)
            raise
        self._exchange.close()
