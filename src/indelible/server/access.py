"""Access control: the token, the browser checks, and the size limit of a body (DESIGN §12).

A server on loopback has no login, and every page in the user's browser can send it requests. Two headers keep those
pages out, because the browser sets them and a page cannot. `Host` is the name that the page used: a foreign name that
resolves to 127.0.0.1 (DNS rebinding) is refused. `Origin` is the site of the page: another site may not even send a
request whose response it cannot read. On any other address a token is required instead, in the header
`Authorization: Bearer …`. Health checks need neither.

A body that is too large is refused before it fills the memory: by its announced length, or when it exceeds the limit.

Must stay true (tests/server/test_access.py): only the health checks answer without the token, to a foreign host name
or to another origin.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from functools import lru_cache
from typing import Final

from fastapi.exceptions import HTTPException
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.server.problem_details import make_problem
from indelible.server.uploads import is_upload

OPEN_TO_ALL: Final = frozenset({"/healthz", "/readyz"})
MAX_BODY_BYTES: Final = 8 * 1024 * 1024
_HOST: Final = re.compile(r"(?P<name>[^\[\]:@/]+|\[[0-9a-f:.]+\])(?::\d*)?", re.IGNORECASE)
_TOO_LONG: Final = f"Request body too large (limit {MAX_BODY_BYTES:,} bytes)."


@lru_cache(maxsize=1024)  # clients send the same few names
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class AccessMiddleware:
    """Checks every request before `application` gets it. `token` is None on loopback: no login is needed."""

    def __init__(self, application: ASGIApp, *, token: str | None) -> None:
        self._application = application
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        limited = not is_upload(scope)  # a file has a limit of its own
        refusal = self._check(scope["path"], Headers(scope=scope), limited=limited)
        await (refusal or self._application)(scope, _count(receive) if limited else receive, send)

    def _check(self, path: str, headers: Headers, *, limited: bool) -> Response | None:
        if limited and _read_length(headers) > MAX_BODY_BYTES:
            return make_problem(413, "too_large", _TOO_LONG, headers={"Connection": "close"})
        if path in OPEN_TO_ALL:
            return None
        return _check_browser(headers) if self._token is None else _check_token(headers, self._token)


def _check_token(headers: Headers, token: bytes) -> Response | None:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), token):
        return None
    challenge = {"WWW-Authenticate": "Bearer"}
    return make_problem(401, "unauthorized", "Send the server's token: Authorization: Bearer …", headers=challenge)


def _check_browser(headers: Headers) -> Response | None:
    host = headers.get("host", "")
    found = _HOST.fullmatch(host)
    if found is None or not is_loopback(found["name"]):
        detail = "This server accepts only localhost as its host name. To serve other names, set INDELIBLE_TOKEN."
        return make_problem(421, "wrong_host", detail)
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host.lower():
        return make_problem(403, "forbidden", "Pages of other sites may not send requests to this server.")
    return None


def _read_length(headers: Headers) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _count(receive: Receive) -> Receive:
    received_bytes = 0

    async def receive_some() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, _TOO_LONG)
        return message

    return receive_some
