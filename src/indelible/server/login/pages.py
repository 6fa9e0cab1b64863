"""The pages around a login: `/login`, and that of a link to a shared chat. Static files, which hold nothing.

A link opens the page itself, which reads the key from its address and shows the chat without anything to write with
(tests/e2e/test_login.py). Search engines are told to keep out.

`/login/methods` tells the login page, before anybody is logged in, whether there is a provider to log in with.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from indelible.server.dependencies import answer_json
from indelible.server.router import Router


def add_login_pages(router: Router, show_file: Callable[[str], Awaitable[Response]], *, has_oidc: bool) -> None:
    @router.get("/login")
    async def show_login() -> Response:
        return await show_file("login.html")

    @router.get("/login/methods")
    async def list_methods() -> Response:
        return answer_json({"token": True, "oidc": has_oidc})

    @router.get("/shared/{key}")
    async def show_shared(key: str) -> Response:  # noqa: ARG001  (the page reads it from its address)
        response = await show_file("index.html")
        response.headers["X-Robots-Tag"] = "noindex"
        return response
