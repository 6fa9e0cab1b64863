"""A failed reply as an answer with a status: what a client sees that does not stream."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from indelible.server.dependencies import answer_json

_STATUSES: Final = {
    "rate_limit": 429,
    "usage_limit": 429,
    "overloaded": 503,
    "timeout": 504,
    "context_overflow": 400,
    "content_filter": 400,
    "config": 400,
}


def answer_failure(error: dict[str, Any] | None) -> Response:
    """The provider's key is the server's business: a failure of it is no 401 of the client."""
    kind = (error or {}).get("kind") or "server_error"
    status = _STATUSES.get(kind, 502)
    problem = {
        "message": (error or {}).get("message") or "The reply failed.",
        "type": "invalid_request_error" if status == 400 else "server_error",
        "param": None,
        "code": "context_length_exceeded" if kind == "context_overflow" else kind,
    }
    return answer_json({"error": problem}, status)
