"""`HEAD`: what a `GET` of the same path would answer, without the body (RFC 9110). Load balancers and monitors send it.

One place does it for every route: the request is served as a `GET`, and the body is left out. It is the outermost
layer, so that every other one sees what it knows, a `GET` with its body. A stream has no end, so it is never opened
for a `HEAD`: the response that would open it refuses (sse.py). A download sends its headers alone, without
reading the file (file_routes.py). Logging in with OpenID Connect changes something with a `GET`, so it knows no
`HEAD`.

`find_methods` is for the `Allow` of a 405 (problems.py): a path can belong to several routes.

Must stay true (tests/server/test_head_requests.py): the status and the headers are those of the `GET`; no body is sent;
no stream is opened.
"""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.server.router import Router

_IS_HEAD: Final = "indelible.is_head"
_CHANGES_SOMETHING: Final = "/login/oidc"


class HeadRequests:
    """Wraps the whole application."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or _CHANGES_SOMETHING in scope["path"]:
            await self._application(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
            elif not message.get("more_body", False):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        # A copy: the HTTP server's own scope still says that no body follows.
        await self._application({**scope, "method": "GET", _IS_HEAD: True}, receive, send_head)


def is_head(scope: Scope) -> bool:
    """Whether nobody will get the body of the response to this `GET`."""
    return _IS_HEAD in scope


def refuse_head(scope: Scope) -> None:
    """Raises a 405 if this would open a stream for a `HEAD`."""
    if is_head(scope):
        raise HTTPException(405)


def find_methods(request: Request) -> list[str]:
    """All methods of the path of this request, which one of its routes has refused."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Router):
            found |= route.find_methods(request.scope)
        elif route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or {"GET"}
    found = found or {"GET"}  # a file of the page: its mount has changed the path
    if "GET" in found and not is_head(request.scope):
        found.add("HEAD")
    return sorted(found)
