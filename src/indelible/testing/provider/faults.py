"""Failures of a response, on demand: faults, how they bend a body, and refusals.

A fault is a value. `SimulatedProvider.faults` holds one for each coming request, or None for a correct response. Bytes
and events are counted from the beginning of the body: `Cut(0)` leaves only the head. Some replace the head
(exchange.py); the others turn a body, a stream of byte pieces with one event each, into another such stream. They know
nothing of HTTP: raising `Severed` asks the server to close the connection in the middle.

    provider.faults.extend([Status(529), None, Cut(at_byte=200, clean=False)])

A `Refusal` is a rejected request or a failed model, the same for all providers; each dialect writes it in its own form.
A failure's kind becomes the status, type and code that the real provider would use for it, so that
models/failures/classify.py finds the same kind again. Anthropic reports some kinds by text alone; that text is put
before the failure's own. Must stay true (tests/testing/test_provider_failures.py): in every format, before the stream
and inside it, a failure is classified as its original kind, as far as the provider can express it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Final

import msgspec

from indelible.errors import FailureKind, ModelFailed


class Status(msgspec.Struct, frozen=True):
    """An error response. `body` is bytes or JSON; by default it is the provider's body for this status."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = {}


class Hang(msgspec.Struct, frozen=True):
    """No response, not even a head, until the client disconnects."""


class SlowHead(msgspec.Struct, frozen=True):
    """No response until this is set; the model is not called before."""

    until: asyncio.Event


class ContentType(msgspec.Struct, frozen=True):
    """The response has another content type."""

    value: str


class Cut(msgspec.Struct, frozen=True):
    """The body ends after so many bytes: `clean`, as if it were complete, or by closing the connection.

    A shorter body is not cut.
    """

    at_byte: int
    clean: bool = True


class Stall(msgspec.Struct, frozen=True):
    """After so many bytes nothing more is sent until this is set, or until the client disconnects."""

    at_byte: int
    until: asyncio.Event | None = None


class ErrorEvent(msgspec.Struct, frozen=True):
    """After so many events the stream reports an error and ends. `body` is JSON; by default the provider's own."""

    after_events: int
    body: Any = None


class Malformed(msgspec.Struct, frozen=True):
    """After so many events, one has data that is half a JSON document; the rest follows as if nothing were wrong."""

    after_events: int


class HalfCharacter(msgspec.Struct, frozen=True):
    """After so many events, one has data that ends in the middle of a UTF-8 character; the rest follows."""

    after_events: int


class Chunked(msgspec.Struct, frozen=True):
    """The body comes in chunks of these sizes, repeated. A partial chunk waits for more bytes."""

    sizes: Sequence[int]


class Crlf(msgspec.Struct, frozen=True):
    """Lines end with CR and LF."""


class Comments(msgspec.Struct, frozen=True):
    """Comments between the events and inside them."""


Fault = (
    Status
    | Hang
    | SlowHead
    | ContentType
    | Cut
    | Stall
    | ErrorEvent
    | Malformed
    | HalfCharacter
    | Chunked
    | Crlf
    | Comments
)


# --- bodies ---


Body = AsyncGenerator[bytes, None]
_DATA: Final = b"data: "
_HALF_CHARACTER: Final = "𝄞".encode()[:2]


class Severed(Exception):
    """Close the connection here, without the end of the body."""


def bend(fault: Fault | None, body: Body, write_error: Callable[[Any], bytes]) -> Body:
    """The body with this fault applied. `write_error` writes an error event of the wire format."""
    match fault:
        case Cut():
            return _cut(body, fault)
        case Stall():
            return _stall(body, fault)
        case Chunked():
            return _cut_up(body, fault)
        case ErrorEvent():
            return _fail(body, fault, write_error)
        case Malformed():
            return _spoil(body, fault.after_events, b"")
        case HalfCharacter():
            return _spoil(body, fault.after_events, _HALF_CHARACTER)
        case Crlf():
            return _end_lines_with_crlf(body)
        case Comments():
            return _comment(body)
        case _:
            return body


async def _cut(body: Body, fault: Cut) -> Body:
    left = fault.at_byte
    async for piece in body:
        if len(piece) > left:
            yield piece[:left]
            if not fault.clean:
                raise Severed
            return
        yield piece
        left -= len(piece)


async def _stall(body: Body, fault: Stall) -> Body:
    left: int | None = fault.at_byte
    async for piece in body:
        if left is not None and len(piece) > left:
            yield piece[:left]
            await (fault.until or asyncio.Event()).wait()
            yield piece[left:]
            left = None
        else:
            yield piece
            left = None if left is None else left - len(piece)


async def _cut_up(body: Body, fault: Chunked) -> Body:
    sizes = cycle(fault.sizes)
    size = next(sizes)
    waiting = b""
    async for piece in body:
        waiting += piece
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
            size = next(sizes)
            await asyncio.sleep(0)
    yield waiting


async def _fail(body: Body, fault: ErrorEvent, write_error: Callable[[Any], bytes]) -> Body:
    sent = 0
    async for event in body:
        if sent == fault.after_events:
            break
        yield event
        sent += 1
    yield write_error(fault.body)


async def _spoil(body: Body, after_events: int, ending: bytes) -> Body:
    sent = 0
    async for event in body:
        if sent == after_events:
            names, mark, data = event.partition(_DATA)
            half = data[: len(data) // 2].decode("utf-8", "ignore").encode()
            yield names + mark + half + ending + b"\n\n"
        else:
            yield event
        sent += 1


async def _end_lines_with_crlf(body: Body) -> Body:
    async for event in body:
        yield event.replace(b"\n", b"\r\n")


async def _comment(body: Body) -> Body:
    async for event in body:
        yield b": keep-alive\n\n: a comment\n" + event.replace(b"\ndata:", b"\n:\ndata:")


# --- refusals ---


class Refusal(Exception):
    """A response with an error status and a body that explains it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_ANTHROPIC_STATUS: Final[dict[FailureKind, int]] = {
    "overloaded": 529,
    "rate_limit": 429,
    "usage_limit": 402,
    "auth": 401,
    "config": 400,
    "context_overflow": 400,
    "timeout": 504,
    "stream_silence_timeout": 504,
    "server_error": 500,
    "chain_broken": 400,
    "content_filter": 400,
    "missing_key": 401,
    "unknown": 500,
}

_ANTHROPIC_PREFIXES: Final[dict[FailureKind, str]] = {
    "context_overflow": "prompt is too long: ",
    "content_filter": "Output blocked by content filtering policy: ",
}


def find_anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def refuse_as_anthropic(failure: ModelFailed) -> Refusal:
    status = _ANTHROPIC_STATUS[failure.kind]
    return Refusal(
        _ANTHROPIC_PREFIXES.get(failure.kind, "") + (failure.detail or failure.message),
        status=failure.status or status,
        type=find_anthropic_type(status),
        headers=_advise(failure),
    )


def show_anthropic(refusal: Refusal, request_id: str) -> dict[str, Any]:
    error = {"type": refusal.type, "message": refusal.message}
    return {"type": "error", "error": error, "request_id": request_id}


_OPENAI: Final[dict[FailureKind, tuple[int, str, str | None]]] = {
    "overloaded": (503, "server_error", "slow_down"),
    "rate_limit": (429, "requests", "rate_limit_exceeded"),
    "usage_limit": (429, "insufficient_quota", "insufficient_quota"),
    "auth": (401, "invalid_request_error", "invalid_api_key"),
    "config": (400, "invalid_request_error", "invalid_value"),
    "context_overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "timeout": (504, "server_error", "request_timeout"),
    "stream_silence_timeout": (504, "server_error", "request_timeout"),
    "server_error": (500, "server_error", "server_error"),
    "chain_broken": (400, "invalid_request_error", "previous_response_not_found"),
    "content_filter": (400, "invalid_request_error", "content_policy_violation"),
    "missing_key": (401, "invalid_request_error", "invalid_api_key"),
    "unknown": (500, "server_error", "server_error"),
}


def find_openai_type(status: int) -> tuple[str, str | None]:
    """The type and the code of a refusal with this status."""
    if status == 429:
        return "requests", "rate_limit_exceeded"
    if status == 401:
        return "invalid_request_error", "invalid_api_key"
    return ("invalid_request_error", None) if status < 500 else ("server_error", None)


def refuse_as_openai(failure: ModelFailed) -> Refusal:
    status, type_, code = _OPENAI[failure.kind]
    return Refusal(
        failure.detail or failure.message,
        status=failure.status or status,
        type=type_,
        code=code,
        headers=_advise(failure),
    )


def show_openai(refusal: Refusal) -> dict[str, Any]:
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {"error": error}


def _advise(failure: ModelFailed) -> dict[str, str]:
    """Whether and when to retry, in the headers that providers use for it."""
    advice = {"x-should-retry": "true" if failure.retryable else "false"}
    if failure.retry_after_s is not None:
        advice["retry-after"] = f"{failure.retry_after_s:g}"
    return advice
