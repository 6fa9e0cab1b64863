"""What clients of OpenAI read when something fails: a failed reply as an answer with a status, and refusals by name.

Most refusals are ours, and error_middleware.py gives them OpenAI's shape. `RefusedByName` is for those that programs
know by their status and code.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from indelible.errors import Invalid
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


class RefusedByName(Invalid):
    """A refusal with the status and the code that OpenAI has for it."""

    def __init__(self, message: str, *, status: int, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, "type": "invalid_request_error", "param": param, "code": code}


async def answer_refusal_by_name(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedByName)
    return answer_json({"error": error.body}, error.status)


def answer_failure(error: dict[str, Any] | None) -> Response:
    """The provider's key is the server's business: a failure of it is no 401 of the client.

    The worker has tried again as often as that could help, so the SDKs are told not to: they would pay again.
    """
    kind = (error or {}).get("kind") or "server_error"
    status = _STATUSES.get(kind, 502)
    problem = {
        "message": (error or {}).get("message") or "The reply failed.",
        "type": "invalid_request_error" if status == 400 else "server_error",
        "param": None,
        "code": "context_length_exceeded" if kind == "context_overflow" else kind,
    }
    answer = answer_json({"error": problem}, status)
    answer.headers["x-should-retry"] = "false"
    return answer
