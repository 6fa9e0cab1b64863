"""A browser's side of a login, as a plain client: the cookie, and requests that a page would send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from tests.support.running_server import API, RunningServer


class Browser:
    """Requests of the server's own page, with the cookies that the server has set."""

    def __init__(self, server: RunningServer, session: aiohttp.ClientSession, base: str = "") -> None:
        self.server = server
        self.session = session
        self.base = base

    @asynccontextmanager
    async def request(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Origin": self.server.url, "Sec-Fetch-Site": "same-origin", **more.pop("headers", {})}
        url = self.server.url + self.base + path
        async with self.session.request(method, url, headers=headers, allow_redirects=False, **more) as response:
            yield response

    async def log_in(self, token: str) -> dict[str, Any]:
        async with self.request("POST", f"{API}/session", json={"token": token}) as response:
            assert response.status == 200, await response.text()
            found: dict[str, Any] = await response.json()
            return found

    async def get_status(self, path: str) -> int:
        async with self.request("GET", API + path) as response:
            return response.status


@asynccontextmanager
async def open_browser(server: RunningServer, *, base: str = "") -> AsyncIterator[Browser]:
    jar = aiohttp.CookieJar(unsafe=True)  # "unsafe" are addresses without a name
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield Browser(server, session, base)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
