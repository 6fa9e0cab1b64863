"""Errors over real HTTP, in every wire format: each is classified by its row of rule 2.2 and leaks nothing.

The bodies are those of provider_errors.jsonl, sent in their providers' wire formats: as a response with its status, and
as an event inside a stream that began well, before and after the first content. Then everything else that can arrive
instead of a stream. In every case the loop gets a `ModelFailed` of the right kind, and neither its texts nor any log
contains the key, the prompt or the reply (`nothing_leaks`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Final

import pytest
from tests.models.wires_under_test import (
    EVERYTHING,
    KEY,
    PROMPT,
    WIRES,
    Turn,
    find_model,
    find_model_at,
    open_stage,
    run_turn,
    text_parts,
)

from indelible.content import Text, TextDelta
from indelible.errors import RETRYABLE, FailureKind, ModelFailed
from indelible.models.http.sse import MAX_EVENT_BYTES
from indelible.testing import ManualClock, SimulatedProvider, faults, parts, write_reply
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import Fault, Status

CERTIFICATE: Final = Path(__file__).with_name("localhost.pem")
REPLY: Final = "canary of the reply"
HELLO: Final = [*text_parts("t", [REPLY, " and more"]), parts.finish("stop")]

ROWS: Final[list[dict[str, Any]]] = [
    json.loads(line) for line in Path(__file__).with_name("provider_errors.jsonl").read_text("utf-8").splitlines()
]
SPOKEN_BY: Final[dict[str, tuple[WireName, ...]]] = {
    "anthropic": ("anthropic",),
    "openai": ("openai", "openai-chat"),
    "azure": ("openai", "openai-chat"),
    "openrouter": ("openai", "openai-chat"),
}
"""Which wires a provider speaks; all others speak Chat Completions."""


def list_rows(wire: WireName) -> list[dict[str, Any]]:
    return [row for row in ROWS if wire in SPOKEN_BY.get(row["provider"], ("openai-chat",))]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(autouse=True)
def nothing_leaks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After every test here: no log at the default level holds a canary."""
    caplog.set_level(logging.INFO)
    yield
    for record in caplog.get_records("call"):
        assert_discreet(logging.Formatter().format(record))


def assert_discreet(text: str | None) -> None:
    for canary in (KEY, PROMPT, REPLY):
        assert canary not in (text or ""), text


def check_failure(turn: Turn) -> ModelFailed:
    """The failure, which keeps to itself what is not for telling."""
    assert turn.failure is not None
    for emitted in (turn.failure.message, turn.failure.detail, str(turn.failure), repr(turn.failure)):
        assert_discreet(emitted)
    return turn.failure


def answer(status: int, body: Any, **headers: str) -> Status:
    """An answer with this body: JSON, or a text as the page that it is, or nothing at all."""
    raw = b"" if body is None else body.encode() if isinstance(body, str) else body
    page = {"content-type": "text/html"} if isinstance(body, str) else {}
    return Status(status, raw, {**page, **headers})


def stream(raw: bytes) -> Status:
    """These bytes as the whole stream."""
    return Status(200, raw, {"content-type": "text/event-stream; charset=utf-8"})


# --- the rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_each_error_answer_lands_in_its_row(wire: WireName) -> None:
    async with open_stage(wire, HELLO) as stage:
        for row in list_rows(wire):
            if row["status"] is not None:
                failure = check_failure(await stage.play(answer(row["status"], row["body"])))
                expected = row["kind"], RETRYABLE[row["kind"]], row["status"]
                assert (failure.kind, failure.retryable, failure.status) == expected, row["case"]


def write_error(wire: WireName, body: dict[str, Any]) -> bytes:
    """An error as an event of this wire. Chat Completions has no names for its events."""
    data = json.dumps(body).encode()
    if wire == "openai-chat":
        return b"data: %b\n\n" % data
    name = body.get("type", "error") if wire == "openai" else "error"
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def is_event_of(wire: WireName, body: object) -> bool:
    """Whether this error can come inside a stream. Chat Completions tells an error by its field, not by its type."""
    return isinstance(body, dict) and (wire != "openai-chat" or "error" in body)


@pytest.mark.parametrize("wire", WIRES)
async def test_each_error_inside_a_stream_lands_in_its_row_before_and_after_visible_text(wire: WireName) -> None:
    events = write_reply(wire, HELLO, model="m")
    text_at = next(at for at, event in enumerate(events) if REPLY.encode() in event)
    rows = [row for row in list_rows(wire) if row["status"] is None and is_event_of(wire, row["body"])]
    assert rows
    async with open_stage(wire, HELLO) as stage:
        for row in rows:
            for begun, heard in ([], []), (events[:1], []), (events[: text_at + 1], [REPLY]):
                turn = await stage.play(stream(b"".join([*begun, write_error(wire, row["body"])])))
                failure = check_failure(turn)
                assert (failure.kind, failure.retryable) == (row["kind"], RETRYABLE[row["kind"]]), row["case"]
                assert [part.delta for part in turn.published if isinstance(part, TextDelta)] == heard
                assert [block.text for block in turn.blocks if isinstance(block, Text)] == heard


@pytest.mark.parametrize("wire", WIRES)
async def test_without_its_status_an_error_is_still_known_by_its_code(wire: WireName) -> None:
    """What is an answer at one time of day is an event at another: the body is the same."""
    kinds = {"overloaded", "rate_limit", "usage_limit", "context_overflow", "server_error"}
    async with open_stage(wire, HELLO) as stage:
        for row in list_rows(wire):
            if (
                row["kind"] in kinds
                and row["provider"] == wire.removesuffix("-chat")
                and is_event_of(wire, row["body"])
            ):
                turn = await stage.play(stream(write_error(wire, row["body"])))
                assert check_failure(turn).kind == row["kind"], row["case"]


def test_every_kind_that_a_provider_can_report_is_sent() -> None:
    sent = {wire: {row["kind"] for row in list_rows(wire)} for wire in WIRES}
    everything = {row["kind"] for row in ROWS}
    assert sent["openai"] == sent["openai-chat"] == everything
    assert sent["anthropic"] == everything - {"chain_broken", "content_filter", "unknown"}


@pytest.mark.parametrize("wire", WIRES)
async def test_the_wires_own_error_event_is_retryable_wherever_it_comes(wire: WireName) -> None:
    async with open_stage(wire, HELLO) as stage:
        for after_events in range(4):
            failure = check_failure(await stage.play(faults.ErrorEvent(after_events)))
            assert (failure.kind, failure.retryable) in {("overloaded", True), ("server_error", True)}


# --- the provider's wishes ---------------------------------------------------------------

NOW: Final = ManualClock().now()
WAITS: Final[list[tuple[dict[str, str], float | None, float]]] = [
    ({"retry-after": "7"}, 7, 7),
    ({"retry-after": "0.5"}, 0.5, 0.5),
    ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5, 1.5),
    ({"retry-after": "3600"}, 3600, 300),
    ({"retry-after": format_datetime(NOW + timedelta(minutes=1)), "date": format_datetime(NOW)}, 60, 60),
    ({"retry-after": "soon"}, None, 0),
    ({}, None, 0),
]
"""What a header asks for, and how long the loop then waits: five minutes at most."""


@pytest.mark.parametrize("wire", WIRES)
async def test_the_wait_that_the_provider_asks_for_is_a_floor(wire: WireName) -> None:
    async with open_stage(wire, HELLO) as stage:
        for headers, asked_s, slept_s in WAITS:
            busy = Status(429, headers=headers)
            assert check_failure(await stage.play(busy)).retry_after_s == asked_s, headers
            turn = await stage.play(busy, attempts=2)
            assert turn.failure is None
            assert sum(turn.slept_s) == slept_s, headers
            assert [(event.kind, event.status, event.attempt) for event in turn.retries] == [("rate_limit", 429, 1)]


@pytest.mark.parametrize("wire", WIRES)
async def test_the_providers_own_word_on_retrying_is_honoured(wire: WireName) -> None:
    wishes: list[tuple[int, str, FailureKind, bool]] = [
        (500, "false", "server_error", False),
        (429, "false", "rate_limit", False),
        (400, "true", "config", True),
        (503, "true", "timeout", True),
        (529, "perhaps", "overloaded", True),
    ]
    async with open_stage(wire, HELLO) as stage:
        for status, wish, kind, retryable in wishes:
            failure = check_failure(await stage.play(Status(status, headers={"x-should-retry": wish})))
            assert (failure.kind, failure.retryable) == (kind, retryable), (status, wish)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_refused_request_is_sent_once_and_a_busy_provider_is_asked_again(wire: WireName) -> None:
    async with open_stage(wire, HELLO) as stage:
        assert check_failure(await stage.play(Status(401), attempts=8)).kind == "auth"
        assert len(stage.provider.requests) == 1
        stage.provider.faults.extend([Status(529), Status(503), Status(500), Status(408)])
        turn = await stage.play(Status(429), attempts=8)
    assert turn.failure is None
    assert [event.kind for event in turn.retries] == ["overloaded", "timeout", "server_error", "timeout", "rate_limit"]


# --- what is no stream -------------------------------------------------------------------

PAGE: Final = f"<!doctype html><html><head><title>Log in</title></head><body>{REPLY}</body></html>"
ERROR: Final = {"error": {"message": "Slow down.", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
NO_STREAMS: Final[list[tuple[Status, FailureKind]]] = [
    (Status(200, ERROR, {"content-type": "application/json"}), "rate_limit"),
    (Status(200, ERROR, {"content-type": "application/problem+json"}), "rate_limit"),
    (Status(200, {"choices": [], "text": REPLY}, {"content-type": "application/json"}), "server_error"),
    (answer(200, PAGE), "server_error"),
    (answer(502, PAGE), "timeout"),
    (answer(404, PAGE), "config"),
    (Status(301, b"", {"location": "http://127.0.0.1:1/elsewhere"}), "config"),
    (Status(307, b"", {"location": "/elsewhere"}), "config"),
    (stream(b""), "timeout"),
    (stream(b": only a comment\n\n"), "timeout"),
    (stream(PAGE.encode()), "timeout"),
    (stream(b"data: {not json\n\n"), "server_error"),
    (stream(b"data: \xf0\x9f\n\n"), "server_error"),
    (stream(b"data: " + b"x" * (MAX_EVENT_BYTES + 1)), "server_error"),
    (Status(500, REPLY.encode() + b"x" * 1_000_000, {"content-type": "application/octet-stream"}), "server_error"),
]


@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_no_stream_is_recognised(wire: WireName) -> None:
    async with open_stage(wire, HELLO) as stage:
        for fault, kind in NO_STREAMS:
            turn = await stage.play(fault)
            assert turn.failure is not None
            assert (turn.failure.kind, turn.failure.retryable) == (kind, RETRYABLE[kind]), repr(fault)[:300]
            assert len(turn.failure.detail or "") <= 500
            if fault.status == 200:
                check_failure(turn)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_redirect_is_not_followed_and_the_key_stays_where_it_is(wire: WireName) -> None:
    async with SimulatedProvider([]) as other, open_stage(wire, HELLO) as stage:
        for status in (301, 302, 303, 307, 308):
            moved = Status(status, b"", {"location": f"{other.url}/v1/messages"})
            assert check_failure(await stage.play(moved)).status == status
        assert other.requests == []


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_under_another_name_is_still_a_stream(wire: WireName) -> None:
    async with open_stage(wire, HELLO) as stage:
        for name in ("text/plain", "application/octet-stream", "application/x-ndjson", "TEXT/EVENT-STREAM; x=y", ""):
            turn = await stage.play(faults.ContentType(name))
            assert [block.text for block in turn.blocks] == [f"{REPLY} and more"], name


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("spoil", [faults.Malformed, faults.HalfCharacter])
async def test_an_event_that_is_spoilt_is_an_error_or_one_that_nobody_needs(
    wire: WireName, spoil: type[faults.Malformed | faults.HalfCharacter]
) -> None:
    """Half a JSON document, or half a character of UTF-8, in the place of each event in turn."""
    script = [*text_parts("u", [REPLY + "." * 500]), *EVERYTHING]
    spoilt = 0
    async with open_stage(wire, script) as stage:
        expected = [type(block) for block in (await stage.play()).blocks]
        for at in range(len(write_reply(wire, script))):
            turn = await stage.play(spoil(at))
            if turn.failure is None:
                assert [type(block) for block in turn.blocks] == expected
            else:
                spoilt += 1
                assert (check_failure(turn).kind, turn.failure.retryable) == ("server_error", True), at
    assert spoilt > 10


# --- the network -------------------------------------------------------------------------


@asynccontextmanager
async def listen(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], *, tls: bool = False
) -> AsyncIterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
    if context is not None:
        context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection as a crash does: not in order, but with a reset."""
    peer = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def fail_at(wire: WireName, address: str) -> ModelFailed:
    async with find_model(wire, address) as model:
        return check_failure(await run_turn(model))


@pytest.mark.parametrize("wire", WIRES)
async def test_a_refused_connection_is_a_timeout(wire: WireName) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    failure = await fail_at(wire, f"http://127.0.0.1:{port}")
    assert (failure.kind, failure.retryable, failure.status) == ("timeout", True, None)


HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
BROKEN: Final = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 O",
    "a head": HEAD + b"transfer-encoding: chunked\r\n\r\n",
    "half a body": HEAD + b"content-length: 90\r\n\r\nevent: ping\n",
    "chunks that are none": HEAD + b"transfer-encoding: chunked\r\n\r\nnonsense\r\n",
    "something else": b"this is not HTTP\r\n\r\n",
    "an error without its body": b"HTTP/1.1 503 No\r\ncontent-length: 90\r\n\r\n{",
}


@pytest.mark.parametrize("wire", WIRES)
async def test_a_connection_that_is_reset_anywhere_is_a_timeout(wire: WireName) -> None:
    waiting = list(BROKEN.values())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(waiting.pop(0))
        await writer.drain()
        reset(writer)

    async with listen(serve) as port, find_model(wire, f"http://127.0.0.1:{port}") as model:
        for sent in BROKEN:
            failure = check_failure(await run_turn(model))
            assert (failure.kind, failure.retryable) == ("timeout", True), sent


@pytest.mark.parametrize("wire", WIRES)
async def test_tls_to_a_plain_port_is_a_timeout(wire: WireName) -> None:
    async with SimulatedProvider([HELLO]) as provider:
        failure = await fail_at(wire, provider.base_url(wire).replace("http://", "https://"))
        assert provider.requests == []
    assert failure.kind == "timeout"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_certificate_that_nobody_vouches_for_is_a_setting(wire: WireName) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listen(serve, tls=True) as port:
        failure = await fail_at(wire, f"https://localhost:{port}")
    assert (failure.kind, failure.retryable) == ("config", False)


# --- nothing is told ---------------------------------------------------------------------

REFUSALS: Final = (400, 401, 403, 422)
TOLD_BACK: Final[list[tuple[Any, tuple[int, ...]]]] = [
    ({"detail": [{"loc": ["body"], "msg": "Missing", "type": "missing", "input": PROMPT}]}, (*REFUSALS, 500)),
    ({"error": {"message": "Bad.", "type": "invalid_request_error", "param": PROMPT, "key": KEY}}, (*REFUSALS, 500)),
    ({"error": {"message": f"Invalid header: authorization: Bearer {KEY}"}}, (*REFUSALS, 429, 500)),
    ({"error": {"message": f"x-api-key: {KEY} is not known"}}, (*REFUSALS, 429, 500)),
    ({"message": f"Incorrect API key provided: {KEY}"}, REFUSALS),
]
"""Answers that repeat what they were sent, each with the statuses that it may come with."""


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_that_repeats_the_request_is_not_repeated(wire: WireName) -> None:
    async with open_stage(wire, HELLO) as stage:
        for body, statuses in TOLD_BACK:
            for status in statuses:
                check_failure(await stage.play(Status(status, body)))


@pytest.mark.parametrize("wire", WIRES)
async def test_good_runs_and_bad_ones_log_no_text(wire: WireName, caplog: pytest.LogCaptureFixture) -> None:
    """What the logs hold is looked at after every test of this file; the good runs are here."""
    script = [*text_parts("t", [REPLY]), *EVERYTHING]
    bad: list[Fault] = [faults.Cut(200), faults.Cut(200, clean=False), faults.Malformed(4), Status(401), Status(500)]
    async with (
        SimulatedProvider([script] * 4, [None, *bad], require_key=KEY) as provider,
        find_model_at(wire, provider) as model,
    ):
        assert (await run_turn(model)).failure is None
        for _ in bad:
            check_failure(await run_turn(model))
    assert [record for record in caplog.get_records("call") if record.levelno > logging.INFO] == []
