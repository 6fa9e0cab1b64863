"""When an exchange counts, and that its caller never notices (rule 7.1, S27 to S34, S40, S41).

Bodies that are judged at their close are in test_recorded_bodies.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web
from rich.pretty import pretty_repr
from tests.recording.answers import JSON, SSE, Answer, Broken, Waiting, only, read_all, record

from indelible.models.http.client import Http
from indelible.models.http.hooks import HttpRequest, recording
from indelible.recording import ExchangeLog, ExchangeRecord, wrap
from indelible.testing import ManualClock

EVENTS = (b'data: {"n":1}\n\n', b'data: {"n":2}\n\n')
REQUEST = HttpRequest(url="http://provider.test/v1/messages", headers={"content-type": JSON}, body=b'{"model":"m"}')
STREAMING_TYPES = [
    "text/event-stream",
    "TEXT/Event-Stream; charset=utf-8",
    " text/event-stream ;x=y",
]


# --- event streams ---


async def test_s27_an_event_stream_that_is_read_to_its_end_counts_though_nobody_closes_it() -> None:
    response, log = record(Answer(*EVENTS))
    await response.read()
    await response.read()
    assert log.attempts == []
    await response.read()

    attempt = only(log)
    assert (attempt.number, attempt.status, attempt.error, attempt.status_code) == (1, "completed", None, 200)
    assert attempt.response_body == "".join(map(bytes.decode, EVENTS))


async def test_s28_json_that_is_read_to_its_end_counts_once_it_is_closed() -> None:
    response, log = record(Answer(b'{"a":', b"1}", content_type=JSON))
    await read_all(response)
    assert log.attempts == []
    await response.aclose()
    await response.aclose()

    assert (only(log).status, only(log).error) == ("completed", None)


async def test_s29_an_event_stream_that_is_read_and_then_closed_counts_once() -> None:
    response, log = record(Answer(*EVENTS))
    await read_all(response)
    counted = only(log)
    await response.aclose()
    await response.aclose()

    assert only(log) == counted


async def test_s30_a_close_that_fails_makes_the_entry_of_a_stream_failed_and_keeps_its_body() -> None:
    error = Broken("the connection broke")
    response, log = record(Answer(*EVENTS, closes=[error]))
    await read_all(response)
    provisional = only(log)
    with pytest.raises(Broken) as caught:
        await response.aclose()
    await response.aclose()

    assert caught.value is error
    assert provisional.status == "completed"
    assert (only(log).number, only(log).status, only(log).error) == (1, "failed", "the connection broke")
    assert only(log).response_body == provisional.response_body == "".join(map(bytes.decode, EVENTS))


async def test_s31_an_event_stream_of_zero_bytes_is_completed_and_empty() -> None:
    response, log = record(Answer())
    assert await response.read() == b""
    assert await response.read() == b""

    assert (only(log).status, only(log).response_body) == ("completed", "")


@pytest.mark.parametrize("content_type", [SSE, JSON, "text/plain"])
async def test_s32_a_read_error_counts_at_once(content_type: str) -> None:
    error = Broken("reset by peer")
    response, log = record(Answer(b"data: one", error, content_type=content_type))
    await response.read()
    with pytest.raises(Broken) as caught:
        await response.read()

    assert caught.value is error
    assert (only(log).status, only(log).error) == ("failed", "reset by peer")
    await response.aclose()
    assert (only(log).status, only(log).error) == ("failed", "reset by peer")


@pytest.mark.parametrize("content_type", STREAMING_TYPES)
@pytest.mark.parametrize("name", ["content-type", "Content-Type", "CONTENT-TYPE"])
async def test_s33_what_is_a_stream_depends_on_the_content_type_alone(content_type: str, name: str) -> None:
    answer = Answer(*EVENTS)
    answer.headers = {"server": "any", name: content_type}
    response, log = record(answer)
    await read_all(response)

    assert only(log).status == "completed"


@pytest.mark.parametrize(
    "content_type", ["", JSON, "text/plain", "application/event-stream", "text/event-streams", "application/x-ndjson"]
)
async def test_s33_what_is_no_stream_waits_for_its_close(content_type: str) -> None:
    response, log = record(Answer(*EVENTS, content_type=content_type))
    await read_all(response)

    assert log.attempts == []


async def test_s34_a_response_that_is_no_stream_is_passed_through_unchanged() -> None:
    pieces = (bytes([1, 2]), b"x" * 10, bytes(bytearray(b"y")))
    answer = Answer(*pieces, content_type="text/plain", status=201, method="PUT", headers={"X-Own": "1"})
    response, log = record(answer)

    assert (response.status, response.method) == (201, "PUT")
    assert response.headers is answer.headers
    for piece in pieces:
        assert await response.read() is piece
    assert await response.read() == b""
    assert answer.closed == 0
    await response.aclose()
    assert answer.closed == 1
    assert (only(log).status, only(log).method, only(log).status_code) == ("completed", "PUT", 201)


async def test_a_stream_that_is_closed_before_its_end_has_failed() -> None:
    response, log = record(Answer(*EVENTS))
    await response.read()
    await response.aclose()

    assert (only(log).status, only(log).error) == ("failed", "unexpected end")
    assert only(log).response_body == EVENTS[0].decode()


async def test_a_close_error_is_added_to_what_had_failed_before() -> None:
    response, log = record(Answer(Broken("reset by peer"), closes=[Broken("already closed"), Broken("again")]))
    with pytest.raises(Broken):
        await response.read()
    for _ in range(2):
        with pytest.raises(Broken):
            await response.aclose()

    assert only(log).error == "reset by peer; then closing failed: already closed"


async def test_s40_a_later_record_on_a_provisional_entry_changes_nothing() -> None:
    log = ExchangeLog()
    exchange = log.begin(REQUEST)
    response = exchange.wrap(Answer(*EVENTS, b"", b"late", Broken("late")))
    await read_all(response)
    counted = only(log)

    assert await response.read() == b"late"
    with pytest.raises(Broken):
        await response.read()
    exchange.failed(Broken("not sent"))
    exchange.finalise("the end")
    log.finalise("the end")
    await response.aclose()

    assert only(log) == counted


# --- sending, cancelling, the end of a step ---


async def test_a_request_that_could_not_be_sent_has_failed_at_once() -> None:
    clock = ManualClock()
    log = ExchangeLog(clock=clock)
    exchange = log.begin(REQUEST)
    began_at = clock.now()
    clock.advance(3)
    exchange.failed(ConnectionError("no route"))

    attempt = only(log)
    assert (attempt.status, attempt.error, attempt.status_code) == ("failed", "no route", None)
    assert (attempt.method, attempt.url) == ("POST", REQUEST.url)
    assert (attempt.started_at, attempt.answered_at, attempt.ended_at) == (began_at, None, clock.now())
    assert "model" in attempt.request_body


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (asyncio.CancelledError(), "cancelled while reading the response"),
        (TimeoutError(), "TimeoutError while reading the response"),
        (KeyboardInterrupt("key"), "key"),
    ],
)
async def test_an_error_without_words_is_described(error: BaseException, text: str) -> None:
    response, log = record(Answer(error))
    with pytest.raises(type(error)) as caught:
        await response.read()

    assert caught.value is error
    assert (only(log).status, only(log).error) == ("failed", text)


async def test_a_task_that_is_cancelled_while_it_reads_is_cancelled_and_recorded() -> None:
    answer = Waiting(b"{")
    response, log = record(answer)
    task = asyncio.create_task(read_all(response))
    await answer.is_waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (only(log).status, only(log).error) == ("failed", "cancelled while reading the response")
    assert task.cancelled()


async def test_a_reader_that_has_heard_all_it_wanted_may_leave_the_rest() -> None:
    log = ExchangeLog()
    answer = Waiting(*EVENTS)
    answer.headers = {"Content-Type": SSE}
    response = wrap(answer, log)
    for event in EVENTS:
        assert await response.read() == event
    response.settle()
    task = asyncio.create_task(response.read())
    await answer.is_waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.attempts == []
    await response.aclose()

    assert (only(log).status, only(log).error) == ("completed", None)
    assert only(log).response_body == b"".join(EVENTS).decode()


async def test_a_reader_that_has_heard_all_it_wanted_still_tells_what_breaks() -> None:
    for answer in (Answer(*EVENTS, Broken("reset")), Answer(*EVENTS, closes=[Broken("reset")])):
        log = ExchangeLog()
        response = wrap(answer, log)
        response.settle()
        with suppress(Broken):
            await read_all(response)
            await response.aclose()

        assert (only(log).status, only(log).error) == ("failed", "reset")


async def test_a_close_that_is_cancelled_fails_the_entry() -> None:
    response, log = record(Answer(*EVENTS, closes=[asyncio.CancelledError()]))
    await read_all(response)
    with pytest.raises(asyncio.CancelledError):
        await response.aclose()

    assert (only(log).status, only(log).error) == ("failed", "cancelled while closing the response")


async def test_the_end_of_a_step_counts_what_is_open() -> None:
    log = ExchangeLog()
    unsent = log.begin(REQUEST)
    half_read = wrap(Answer(*EVENTS), log)
    all_read = wrap(Answer(b"{}", content_type=JSON), log)
    closed = wrap(Answer(b"{}", content_type=JSON), log)
    await half_read.read()
    await read_all(all_read)
    await read_all(closed)
    await closed.aclose()
    assert [attempt.number for attempt in log.attempts] == [4]
    log.finalise("the user stopped it")
    log.finalise("again")

    assert [(attempt.number, attempt.status, attempt.error) for attempt in log.attempts] == [
        (1, "failed", "the user stopped it"),
        (2, "failed", "the user stopped it"),
        (3, "completed", None),
        (4, "completed", None),
    ]
    unsent.failed(Broken("too late"))
    assert await read_all(unsent.wrap(Answer(b"more"))) == b"more"
    assert await read_all(half_read) == EVENTS[1]
    assert log.attempts[0].error == "the user stopped it"
    assert log.attempts[1].response_body == EVENTS[0].decode()


async def test_changes_of_an_exchange_are_reported_as_they_happen() -> None:
    told: list[ExchangeRecord] = []
    log = ExchangeLog(on_change=told.append)
    response = wrap(Answer(*EVENTS, closes=[Broken("late")]), log)
    await read_all(response)
    assert [(attempt.number, attempt.status) for attempt in told] == [(1, "completed")]
    with pytest.raises(Broken):
        await response.aclose()

    assert [(attempt.number, attempt.status) for attempt in told] == [(1, "completed"), (1, "failed")]
    assert told[-1] == only(log)


# --- a recorder that fails ---


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.may_log("An exchange could not be recorded")
async def test_a_recorder_that_raises_is_dropped_and_the_caller_notices_nothing() -> None:
    dropped: list[int] = []
    log = ExchangeLog(on_drop=lambda: dropped.append(1))
    error = Unspeakable()
    response = wrap(Answer(b"one", error, b"two"), log)

    assert await response.read() == b"one"
    with pytest.raises(Unspeakable) as caught:
        await response.read()
    assert caught.value is error
    assert await read_all(response) == b"two"
    await response.aclose()
    assert (log.attempts, log.dropped, dropped) == ([], 1, [1])

    other = wrap(Answer(*EVENTS), log)
    await read_all(other)
    assert (only(log).number, log.dropped) == (2, 1)


@pytest.mark.may_log("An exchange could not be recorded")
async def test_a_head_that_can_not_be_read_leaves_the_response_alone() -> None:
    answer = Answer(*EVENTS)
    answer.headers = None  # type: ignore[assignment]
    response, log = record(answer)

    assert await read_all(response) == b"".join(EVENTS)
    await response.aclose()
    log.finalise()
    assert answer.closed == 1
    assert (log.attempts, log.dropped) == ([], 1)


@pytest.mark.may_log("An exchange could not be recorded")
async def test_a_piece_that_can_not_be_kept_is_still_passed_on() -> None:
    piece: Any = "text"
    response, log = record(Answer(piece))

    assert await response.read() == piece
    assert await response.read() == b""
    await response.aclose()
    assert (log.attempts, log.dropped) == ([], 1)


@pytest.mark.may_log("An exchange could not be recorded")
async def test_a_close_error_that_cannot_be_reported_leaves_the_entry_unchanged() -> None:
    response, log = record(Answer(*EVENTS, closes=[Unspeakable()]))
    await read_all(response)
    with pytest.raises(Unspeakable):
        await response.aclose()

    assert (only(log).status, log.dropped) == ("completed", 1)


async def test_what_a_listener_has_is_released_and_a_failed_close_is_still_added() -> None:
    told: list[ExchangeRecord] = []

    def hear(attempt: ExchangeRecord) -> None:
        told.append(attempt)
        log.release(attempt.number)

    log = ExchangeLog(on_change=hear)
    response = wrap(Answer(*EVENTS, closes=[Broken("late")]), log)
    await read_all(response)
    with pytest.raises(Broken):
        await response.aclose()

    assert [attempt.response_body for attempt in told] == ["".join(map(bytes.decode, EVENTS)), ""]
    assert [(attempt.number, attempt.status, attempt.size_bytes) for attempt in log.attempts] == [(1, "failed", 0)]


async def test_an_entry_that_is_printed_shows_nothing_of_what_was_exchanged() -> None:
    log = ExchangeLog()
    request = HttpRequest(url="http://provider.test/?key=canary", headers={"x-api-key": "canary"}, body=b"canary")
    response = log.begin(request).wrap(Answer(b"canary", headers={"set-cookie": "canary"}))
    await read_all(response)

    assert repr(only(log)) == "<exchange 1: POST, 200, completed>"
    assert "canary" not in pretty_repr(only(log))


async def test_while_nothing_is_recorded_the_caller_has_the_response_itself() -> None:
    async with serving(*EVENTS) as url, Http() as http:
        assert recording.get() is None
        async with http.send(HttpRequest(url=url, headers={}, body=b"{}")) as response:
            assert type(response).__module__ == Http.__module__
            assert await read_all(response) == b"".join(EVENTS)


@pytest.mark.may_log("An exchange could not be recorded")
async def test_a_listener_that_raises_hears_no_more_of_that_exchange() -> None:
    told: list[tuple[int, str]] = []

    def hear(attempt: ExchangeRecord) -> None:
        told.append((attempt.number, attempt.status))
        if attempt.number == 1:
            raise ZeroDivisionError

    def miscount() -> None:
        raise ZeroDivisionError

    log = ExchangeLog(on_change=hear, on_drop=miscount)
    for _ in range(2):
        response = wrap(Answer(*EVENTS, closes=[Broken("late")]), log)
        await read_all(response)
        with pytest.raises(Broken):
            await response.aclose()

    assert told == [(1, "completed"), (2, "completed"), (2, "failed")]
    assert log.dropped == 1
    assert [attempt.status for attempt in log.attempts] == ["failed", "failed"]


# --- over HTTP ---


@asynccontextmanager
async def serving(*events: bytes) -> AsyncIterator[str]:
    """A provider that streams these events, and its address."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        stream = web.StreamResponse(headers={"content-type": SSE})
        await stream.prepare(request)
        for event in events:
            await stream.write(event)
        return stream

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def recorded() -> AsyncIterator[tuple[Http, ExchangeLog]]:
    log = ExchangeLog()
    before = recording.set(log)
    try:
        async with Http() as http:
            yield http, log
    finally:
        recording.reset(before)


async def test_s41_a_body_is_closed_when_its_reader_is_done_and_was_counted_before() -> None:
    async with serving(*EVENTS) as url, recorded() as (http, log):
        async with http.send(HttpRequest(url=url, headers={"content-type": JSON}, body=b"{}")) as response:
            assert await read_all(response) == b"".join(EVENTS)
            counted = only(log)
        assert counted.status == "completed"
        assert counted.response_body == "".join(map(bytes.decode, EVENTS))
        assert only(log) == counted
        async with http.send(HttpRequest(url=url, headers={}, body=b"{}")) as response:
            pass
        assert [(attempt.number, attempt.status) for attempt in log.attempts] == [(1, "completed"), (2, "failed")]
        assert (log.attempts[1].error, log.attempts[1].status_code) == ("unexpected end", 200)


async def test_a_provider_that_is_not_there_is_recorded() -> None:
    async with serving() as url:
        pass
    async with recorded() as (http, log):
        with pytest.raises(OSError, match="onnect") as caught:
            async with http.send(HttpRequest(url=url, headers={}, body=b"")):
                pass
        assert (only(log).status, only(log).error) == ("failed", str(caught.value))
