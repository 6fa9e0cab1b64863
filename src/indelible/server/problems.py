"""Errors as `application/problem+json` (RFC 9457), each with a stable `kind`, and the headers that every response has.

The class of an error decides its kind and status (errors.py). A refusal is the client's to fix and explains itself; a
failed database or a bug is ours, so the client gets one sentence and the log gets the details. No response contains a
traceback or a secret. docs/errors.md lists every kind.

The headers keep a browser from doing more with a response than it is for. A page has its own content policy (app.py),
and a file its own sandbox: a header that a response has set is left alone. Everything else is data, and allows a
browser nothing. uvicorn adds `nosniff` (process.py).

Must stay true (tests/server/test_problem_details.py): every API response above 399 has this shape, wherever it was
raised, and every kind is on that page; a client makes the same refusal of it (client/http_transport.py).
(tests/server/test_page_headers.py, tests/server/test_access_matrix.py): every response has the headers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

from indelible.content import encode
from indelible.errors import IndelibleError, Invalid, NotAllowed, RateLimited, Refused, StoreFailed
from indelible.logs import get_logger
from indelible.server.router import find_methods

RawHeaders = list[tuple[bytes, bytes]]
DATA_HEADERS: Final[RawHeaders] = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


def add_headers(send: Send, more: RawHeaders) -> Send:
    """`send`, with the default headers that a response lacks, and with `more`."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [header for header in DATA_HEADERS if header[0] not in present]
            message = {**message, "headers": headers + more}
        await send(message)

    return send_with_headers


_log: Final = get_logger(__name__)
MEDIA_TYPE: Final = "application/problem+json"
TITLES: Final = {
    "bad_request": "Malformed request",
    "forbidden": "Cross-origin request refused",
    "internal": "Internal error",
    "invalid": "Invalid request",
    "method_not_allowed": "Method not allowed",
    "not_allowed": "Not allowed in this state",
    "not_found": "Not found",
    "not_permitted": "Not permitted",
    "not_ready": "Not ready",
    "rate_limited": "Too many requests",
    "read_only": "Read only",
    "request_timeout": "Request timeout",
    "too_large": "Too large",
    "too_many": "Limit reached",
    "unauthorized": "Authentication required",
    "unavailable": "Service unavailable",
    "unsupported_type": "Type not accepted",
    "wrong_host": "Host not allowed",
}
"""Every kind, with its title."""
PROBLEM_SCHEMA: Final = {
    "type": "object",
    "required": ["type", "title", "status", "kind", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "kind": {"type": "string", "enum": sorted(TITLES)},
        "detail": {"type": "string"},
        "state": {"type": "string", "description": "With `not_allowed`: the state of the chat."},
        "command": {"type": "string", "description": "With `not_allowed`: the refused command."},
        "param": {"type": "string", "description": "With `invalid`: the parameter that is not supported."},
    },
}
_STATUSES: Final = {
    "not_allowed": 409,
    "not_found": 404,
    "rate_limited": 429,
    "too_many": 429,
    "read_only": 403,
    "not_permitted": 403,
    "too_large": 413,
    "unsupported_type": 415,
    "invalid": 422,
}
"""The statuses of refusals, by their kinds (errors.py)."""
_HEADERS: Final = {name.decode(): value.decode() for name, value in DATA_HEADERS}
_LONGEST_DETAIL: Final = 500
_BY_STATUS: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class NotReady(IndelibleError):
    """The process is starting or shutting down."""

    def __init__(self) -> None:
        super().__init__("The server is starting or shutting down. Retry in a moment.")


def make_problem(
    status: int, kind: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    about = {
        "type": f"urn:indelible:problem:{kind}",
        "title": TITLES[kind],
        "status": status,
        "kind": kind,
        "detail": _shorten(detail, _LONGEST_DETAIL),
    }
    given = {**_HEADERS, **({"Retry-After": "1"} if status in (429, 503) else {}), **(headers or {})}
    return Response(encode({**about, **more}), status_code=status, media_type=MEDIA_TYPE, headers=given)


def add_problem_handlers(application: Starlette) -> None:
    """Answer every error that reaches the application with a problem."""
    application.add_exception_handler(Refused, _answer_refusal)
    application.add_exception_handler(StoreFailed, _answer_store_failure)
    application.add_exception_handler(NotReady, _answer_not_ready)
    application.add_exception_handler(HTTPException, _answer_http)
    application.add_exception_handler(Exception, _answer_internal_error)


async def _answer_refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return answer_refusal(error)


def answer_refusal(error: Refused) -> Response:
    """The problem of a rejected request."""
    kind = error.problem_kind
    status = _STATUSES[kind]
    if isinstance(error, NotAllowed):
        return make_problem(status, kind, str(error), state=error.state, command=error.command)
    if isinstance(error, Invalid) and error.param is not None:
        return make_problem(status, kind, str(error), param=error.param)
    if isinstance(error, RateLimited):
        return make_problem(status, kind, str(error), headers={"Retry-After": str(math.ceil(error.retry_after_s))})
    return make_problem(status, kind, str(error))


async def _answer_store_failure(_request: Request, error: Exception) -> Response:
    _log.error("a request failed because the database did: %s", error)
    return make_problem(503, "unavailable", "The database is unavailable. Retry in a moment.")


async def _answer_not_ready(_request: Request, error: Exception) -> Response:
    return make_problem(503, "not_ready", str(error))


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _BY_STATUS.get(error.status_code, "bad_request")
    headers = {"Allow": ", ".join(find_methods(request))} if error.status_code == 405 else error.headers
    return make_problem(error.status_code, kind, str(error.detail), headers=headers)


async def _answer_internal_error(request: Request, error: Exception) -> Response:
    path = "/shared/***" if "/shared/" in request.url.path else request.url.path
    _log.error("%s %s failed", request.method, path, exc_info=error)
    return make_problem(500, "internal", "Internal error. See the server's log.")
