"""Recording an exchange while it happens: what is sent and read passes through untouched.

When an exchange counts is rule 7.1. A failure to send or to read counts at once. The end of an event stream counts at
once too, because its readers may never close it: that entry is provisional, since a close that fails makes it failed.
Any other body is judged when it is closed (body.py), or when its step ends. All of this happens once; later records
have no effect, except the error of a close, which is added to the entry. A reader that has received all it needs
(`settle`: the reply is complete, though the provider keeps the connection open) may leave the rest unread.

The caller notices nothing. It gets the very objects that the response gave: pieces, exceptions, in the same order. A
piece costs one call and one copy, no lock. A bug in recording only drops the record of this exchange.

A document of unknown length may be closed by a reader that knows it is complete without having seen its end. Only then
is the body *drained*: what has already arrived is read, up to 64 KiB, to see that nothing but the end follows. This
never waits: a read that would is abandoned at its first wait, so a close is neither delayed nor cancelled in our part
of it. A read after the close returns the drained bytes.

Must stay true (tests/recording/test_recorded_property.py): exactly one entry for each exchange, and a caller that
cannot detect that it is recorded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Final

import msgspec

from indelible.models.http.hooks import Answer, HttpRequest, HttpResponse
from indelible.recording.body import (
    MAX_ANSWER_BYTES,
    UNEXPECTED_END,
    BodyCapture,
    RecordedBody,
    ResponseHead,
    find_fault,
    is_short,
    keep_body,
    read_head,
)
from indelible.recording.exchange_log import ExchangeLog, ExchangeRecord
from indelible.redaction.redact import redact_headers, redact_line
from indelible.redaction.secrets import KnownSecrets

MAX_DRAIN_BYTES: Final = 64 * 1024


def wrap(response: HttpResponse, log: ExchangeLog) -> Answer:
    """The response, recorded into the log as it is read and closed."""
    return RecordedExchange(log, request=None).wrap(response)


class ExchangeLogHook:
    """Records what models/http/client.py sends: set it as the `recording` of a task."""

    def __init__(self, log: ExchangeLog) -> None:
        self._exchange_log = log

    def begin(self, request: HttpRequest) -> RecordedExchange:
        return RecordedExchange(self._exchange_log, request=request)


class RecordedExchange:
    """One exchange: open until it is counted. Nothing here raises or waits."""

    def __init__(self, log: ExchangeLog, *, request: HttpRequest | None) -> None:
        self.body: Final = BodyCapture()
        self.end_seen = False
        self.is_settled = False
        self._exchange_log = log
        self._request = request
        self._known = log.known
        self._head: ResponseHead | None = None
        self._started_at: datetime | None = None
        self._answered_at: datetime | None = None
        self._lock = Lock()
        self._is_counted = False
        self._close_failed = False
        self._attempt: ExchangeRecord | None = None
        self._number = log.open(self)
        with self.best_effort():
            self._started_at = log.clock.now() if request else None
            self._known = log.known.sent_with(request.headers) if request else log.known

    @contextmanager
    def best_effort(self) -> Iterator[None]:
        """An error in here costs only the record of this exchange: it gets no entry, or the entry stays unchanged."""
        try:
            yield
        except Exception as bug:
            self.give_up(bug)

    def give_up(self, bug: Exception) -> None:
        """Record nothing more of this exchange, and have it counted as dropped."""
        with self._lock:
            self._is_counted = True
            self._exchange_log.drop(self._number, bug)
        self._exchange_log.notify()

    def wrap(self, response: HttpResponse) -> Answer:
        with self.best_effort():
            self._answered_at = self._exchange_log.clock.now()
            self._head = read_head(response)
            if self._head.is_json:
                self.body.head_bytes = MAX_ANSWER_BYTES
        return RecordedResponse(response, self)

    # --- what happens, as it happens ---

    def failed(self, error: BaseException) -> None:
        """The request could not be sent."""
        with self.best_effort():
            self._count(describe(error, "sending the request", self._known))

    def break_off(self, error: BaseException) -> None:
        """Reading failed. A settled reader that stops waiting has not failed: the close decides."""
        if self.is_settled and isinstance(error, asyncio.CancelledError):
            return
        with self.best_effort():
            self._count(describe(error, "reading the response", self._known))

    def reach_end(self) -> None:
        self.end_seen = True
        if self._head and self._head.is_stream:
            with self.best_effort():
                self._count(UNEXPECTED_END if is_short(self._head, self.body) else None)

    def close(self) -> None:
        """The response was closed without an error."""
        with self.best_effort():
            self._count(self._find_fault())

    def fail_closing(self, error: BaseException) -> None:
        with self.best_effort():
            self._count_close_error(describe(error, "closing the response", self._known))

    def finalise(self, error: str) -> None:
        with self.best_effort():
            self._count(redact_line(error, self._known) if self._find_fault() else None)

    def may_be_drained(self) -> bool:
        """Whether the bytes read are a complete document, provided that only the end follows."""
        is_open = not self._is_counted and not self.end_seen
        return is_open and self._head is not None and self._head.is_unsized_json and self.body.holds_one_document()

    # --- counting ---

    def _find_fault(self) -> str | None:
        if self._head is None:
            return UNEXPECTED_END
        return None if self.is_settled else find_fault(self._head, self.body, end_seen=self.end_seen)

    def _count(self, error: str | None) -> None:
        ended_at = self._exchange_log.clock.now()
        with self._lock:
            if not self._is_counted:
                self._make_entry(error, ended_at)
        self._exchange_log.notify()

    def _count_close_error(self, error: str) -> None:
        ended_at = self._exchange_log.clock.now()
        with self._lock:
            if not self._is_counted:
                self._make_entry(error, ended_at)
            elif self._attempt is not None and not self._close_failed:
                known = self._attempt.error
                error = error if known is None else f"{known}; then closing failed: {error}"
                self._attempt = msgspec.structs.replace(self._attempt, status="failed", error=error)
                self._exchange_log.publish(self._attempt)
            self._close_failed = True
        self._exchange_log.notify()

    def _make_entry(self, error: str | None, ended_at: datetime) -> None:
        """Call it with the lock held."""
        self._is_counted = True
        request, head, known = self._request, self._head, self._known
        sent_headers = request.headers if request else {}
        got_headers = head.headers if head else {}
        drop = partial(_drop_late, self._exchange_log, self._number)
        self._attempt = ExchangeRecord(
            number=self._number,
            status="completed" if error is None else "failed",
            error=error,
            method=request.method if request else head.method if head else "",
            url=redact_line(request.url, known) if request else "",
            request_headers=redact_headers(sent_headers, known),
            request=RecordedBody(keep_body(request.body if request else b""), sent_headers, on_bug=drop, known=known),
            status_code=head.status if head else None,
            response_headers=redact_headers(got_headers, known),
            response=RecordedBody(self.body.keep(), got_headers, on_bug=drop, known=known),
            started_at=self._started_at,
            answered_at=self._answered_at,
            ended_at=ended_at,
        )
        self._exchange_log.publish(self._attempt)
        self._request = None  # the entry holds the kept part; the rest may be large
        self.body.release()


def _drop_late(log: ExchangeLog, number: int, bug: Exception) -> None:
    """Drop an entry whose body could not be redacted when it was read."""
    log.drop(number, bug)
    log.notify()


class RecordedResponse:
    """The response, recorded as it is read and closed."""

    def __init__(self, response: HttpResponse, exchange: RecordedExchange) -> None:
        self._response = response
        self._exchange = exchange
        self._keep = exchange.body.add
        self._is_reading = False
        self._drained: deque[bytes | BaseException] = deque()

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
        if self._drained:
            return self._return_drained()
        self._is_reading = True
        try:
            piece = await self._response.read()
        except BaseException as error:
            self._is_reading = False
            self._exchange.break_off(error)
            raise
        self._is_reading = False
        if not piece:
            self._exchange.reach_end()
            return piece
        try:
            self._keep(piece)
        except Exception as bug:
            self._exchange.give_up(bug)
        return piece

    def settle(self) -> None:
        self._exchange.is_settled = True

    async def aclose(self) -> None:
        exchange = self._exchange
        if not self._is_reading and exchange.may_be_drained():
            with exchange.best_effort():
                self._drain()
        try:
            await self._response.aclose()
        except BaseException as error:
            exchange.fail_closing(error)
            raise
        exchange.close()

    def _drain(self) -> None:
        """Read what has already arrived; see the module header."""
        drained_bytes = 0
        while drained_bytes < MAX_DRAIN_BYTES:
            try:
                read = self._response.read().__await__()
                next(read)
            except StopIteration as answer:
                piece: bytes = answer.value
            except (Exception, asyncio.CancelledError) as error:
                self._drained.append(error)
                return
            else:
                read.close()
                return
            if not piece:
                return
            self._drained.append(piece)
            self._keep(piece)
            drained_bytes += len(piece)

    def _return_drained(self) -> bytes:
        drained = self._drained.popleft()
        if isinstance(drained, BaseException):
            raise drained
        return drained


def describe(error: BaseException, doing: str, known: KnownSecrets) -> str:
    """The text of an error, redacted. A cancellation has no text of its own."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return f"cancelled while {doing}"
    return redact_line(str(error) or f"{type(error).__name__} while {doing}", known)
