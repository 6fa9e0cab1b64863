"""Chats on a server, with the same `User`, `Chat` and `Reply` as in process.

    async with indelible.Client("http://127.0.0.1:8000") as ada:
        chat = await ada.create_chat()
        print((await chat.send("Is it raining in Oslo?")).text)

Without arguments the address and the token come from INDELIBLE_URL and INDELIBLE_TOKEN. The client waits up to
`retry_for_s` for a lost connection or a restarting server: it repeats a write with its idempotency key, and it resumes
a reply from its cursor, so nothing is done twice or missed.

Must stay true (tests/app/test_same_script.py, tests/server/test_remote.py).

remote.py has the routes; http_transport.py has requests, retries and the feed's connection.
"""

from __future__ import annotations

import os
from typing import Final, Self

from indelible.app.app import User
from indelible.client.http_transport import HttpTransport
from indelible.client.remote import RemoteService
from indelible.errors import Invalid

URL_VARIABLE: Final = "INDELIBLE_URL"
TOKEN_VARIABLE: Final = "INDELIBLE_TOKEN"  # noqa: S105  (the name of a variable)


class Client(User):
    """The chats of a server, as the user of the token. Use it with `async with`."""

    def __init__(self, url: str | None = None, *, token: str | None = None, retry_for_s: float = 30.0) -> None:
        address = url or os.environ.get(URL_VARIABLE)
        if not address:
            raise Invalid(f"Give the client the server's URL, or set {URL_VARIABLE}.")
        if not address.startswith(("http://", "https://")):
            raise Invalid(f"The server's URL must begin with http:// or https://; got {address!r}.")
        self.url = address.rstrip("/")
        self._http = HttpTransport(self.url, token=token or os.environ.get(TOKEN_VARIABLE), retry_for_s=retry_for_s)
        super().__init__(RemoteService(self._http))

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._service.readings.aclose()
        finally:
            await self._http.__aexit__()
