"""Errors in OpenAI's shape on `/v1`: `{"error": {"message", "type", "param", "code"}}`.

Every error of this server is a problem (problem_details.py), wherever it was raised: a refused token, a body that is
too large, a command that the chat's state forbids. One middleware around everything turns the problems of these paths
into what the clients of that wire read, so no route and no check has to know of it. A refusal that is ours as 422 is
400 here, which is what OpenAI answers.

Must stay true (tests/server/wires/test_openai_errors.py): no answer above 399 under `/v1` is a problem.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.content import encode
from indelible.server.problem_details import MEDIA_TYPE

PREFIX: Final = "/v1"
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: Final = {
    "invalid": None,
    "bad_request": None,
    "unauthorized": "invalid_api_key",
    "not_allowed": "conversation_locked",
    "too_many": "rate_limit_exceeded",
}


class OpenAIErrors:
    """Wraps the whole application, access control included."""

    def __init__(self, application: ASGIApp, *, base_path: str = "") -> None:
        self._application = application
        self._prefixes = (f"{PREFIX}/", f"{base_path}{PREFIX}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._prefixes):
            await self._application(scope, receive, send)
            return
        await self._application(scope, receive, _Rewriter(send).send)


class _Rewriter:
    """Holds a problem back until it is whole, and sends it in the other shape."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_error(self._start)

    async def _send_error(self, start: Message) -> None:
        status, body = rewrite(start["status"], self._body)
        kept = [(name, value) for name, value in start["headers"] if name not in (b"content-type", b"content-length")]
        headers = [*kept, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def rewrite(status: int, body: bytes) -> tuple[int, bytes]:
    """A problem in OpenAI's shape."""
    problem: dict[str, Any] = msgspec.json.decode(body)
    status = 400 if status == 422 else status
    kind = problem["kind"]
    default = "invalid_request_error" if status < 500 else "server_error"
    error = {
        "message": problem["detail"],
        "type": _TYPES.get(status, default),
        "param": problem.get("param"),
        "code": "unsupported_parameter" if "param" in problem else _CODES.get(kind, kind),
    }
    return status, encode({"error": error})


def _is_problem(start: Message) -> bool:
    named: dict[bytes, bytes] = dict(start.get("headers", ()))
    return named.get(b"content-type", b"").startswith(MEDIA_TYPE.encode())
