"""What goes wrong, as `application/problem+json` with a stable `kind`.

The error's class decides (errors.py): what was refused is the client's to mend, what the database did is ours, and
neither shows a traceback or a secret. docs/errors.md lists every kind.

Must stay true (tests/server/test_problem_details.py): every answer of the API above 399 has this shape, whoever raised
it, and every kind is on that page.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from indelible.content import encode
from indelible.errors import IndelibleError, Invalid, NotAllowed, NotFound, Refused, StoreFailed, TooLarge, TooMany

_log: Final = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
TITLES: Final = {
    "bad_request": "Not a request that can be read",
    "forbidden": "Not for other sites",
    "internal": "Internal error",
    "invalid": "Not a valid request",
    "method_not_allowed": "Not a method of this route",
    "not_allowed": "Not possible in this state",
    "not_found": "Not found",
    "not_ready": "Not ready",
    "too_large": "Too large",
    "too_many": "Too many",
    "unauthorized": "A token is needed",
    "unavailable": "Not available",
    "wrong_host": "Not a name of this server",
}
"""Every kind there is."""

PROBLEM_SCHEMA: Final = {
    "type": "object",
    "required": ["type", "title", "status", "kind", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "kind": {"type": "string", "enum": sorted(TITLES)},
        "detail": {"type": "string"},
        "state": {"type": "string", "description": "With `not_allowed`: the state that the chat is in."},
        "command": {"type": "string", "description": "With `not_allowed`: what was refused."},
    },
}
_REFUSALS: Final[dict[type[Refused], tuple[int, str]]] = {
    NotAllowed: (409, "not_allowed"),
    NotFound: (404, "not_found"),
    TooMany: (429, "too_many"),
    TooLarge: (413, "too_large"),
    Invalid: (422, "invalid"),
    Refused: (422, "invalid"),
}
_BY_STATUS: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class NotReady(IndelibleError):
    """The process is starting or going away."""

    def __init__(self) -> None:
        super().__init__("The server is starting or going away. Try again.")


def make_problem(
    status: int, kind: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    about = {
        "type": f"urn:indelible:problem:{kind}",
        "title": TITLES[kind],
        "status": status,
        "kind": kind,
        "detail": detail,
    }
    given = {"Retry-After": "1", **(headers or {})} if status in (429, 503) else headers
    return Response(encode({**about, **more}), status_code=status, media_type=MEDIA_TYPE, headers=given)


def add_problem_handlers(application: FastAPI) -> None:
    """Let every error that reaches the application be told as a problem."""
    application.add_exception_handler(Refused, _tell_refusal)
    application.add_exception_handler(StoreFailed, _tell_store_failure)
    application.add_exception_handler(NotReady, _tell_not_ready)
    application.add_exception_handler(RequestValidationError, _tell_bad_request)
    application.add_exception_handler(HTTPException, _tell_http)
    application.add_exception_handler(Exception, _tell_fault)


async def _tell_refusal(_request: Request, error: Exception) -> Response:
    status, kind = next(found for known, found in _REFUSALS.items() if isinstance(error, known))
    if isinstance(error, NotAllowed):
        return make_problem(status, kind, str(error), state=error.state, command=error.command)
    return make_problem(status, kind, str(error))


async def _tell_store_failure(_request: Request, error: Exception) -> Response:
    _log.error("a request failed, the database is not well: %s", error)
    return make_problem(503, "unavailable", "The database does not answer now. Try again soon.")


async def _tell_not_ready(_request: Request, error: Exception) -> Response:
    return make_problem(503, "not_ready", str(error))


async def _tell_bad_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = [f"{'.'.join(str(place) for place in found['loc'])}: {found['msg']}" for found in error.errors()]
    return make_problem(422, "invalid", "; ".join(told))


async def _tell_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _BY_STATUS.get(error.status_code, "bad_request")
    return make_problem(error.status_code, kind, str(error.detail), headers=error.headers)


async def _tell_fault(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return make_problem(500, "internal", "Something went wrong in the server. Its log says more.")
