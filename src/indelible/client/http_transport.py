"""HTTP for the remote client: requests, retries, and a feed that never loses its position.

This module knows no route: client.py names the methods, the paths and the types of the results.
A refusal raises the same error as in the library (errors.py). Every write carries an idempotency key and is repeated
with it when the response was lost, so it happens once, whatever the network does. The feed reconnects by itself with
its cursor: each event arrives once and in order, over any number of restarts of any number of servers behind the
address. What is no response of an Indelible server (a web page, a redirect) raises `ServerFailed` and is not repeated.

Must stay true (tests/server/test_client.py, tests/server/test_unreliable_servers.py, tests/server/test_restarts.py).
"""

from __future__ import annotations

import logging
import os
import random
import socket
import ssl
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from io import BytesIO
from typing import Any, Final, Self, TypeVar, cast
from urllib.parse import urljoin

import aiohttp
import msgspec

from indelible.api.events import EventBody, EventKind, FeedEvent
from indelible.api.operations import PREFIX
from indelible.clock import Clock, SystemClock
from indelible.content import encode
from indelible.errors import REFUSALS, IndelibleError, Invalid, NotAllowed, NotFound, Refused
from indelible.files.bytes import CHUNK_BYTES
from indelible.models.http.sse import EventTooLarge, SseDecoder

T = TypeVar("T")

_log = logging.getLogger("indelible.client")

_FIRST_BACK_OFF_S: Final = 0.05
_LONGEST_BACK_OFF_S: Final = 2.0
_REPORTED_AFTER_S: Final = 0.5
"""A server that is away for longer is reported in the log (info), where the terminal finds it."""
_FEED_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=45)
"""The server sends something every 15 s. After three times that, the connection is dead, whatever TCP reports."""

_ANSWER_S: Final = 90.0
"""No response takes longer: a stop may wait for a minute."""

_STEADY_S: Final = 5.0
"""A feed that was open for so long worked, although nothing happened: its first comment may be later than a restart."""

_FRUITLESS: Final = 5
"""After so many responses in a row without a byte of it, a file is lost: no restart takes that long."""

_PASSING: Final = frozenset({502, 503, 504})
"""Transient errors of a server, or of a proxy in front of it."""
_JSON_ENDS_EARLY: Final = "Input data was truncated"
"""How msgspec reports it."""


class ServerFailed(IndelibleError):
    """The server failed, was unreachable for too long, or is no Indelible server."""


class _Unreached(Exception):
    """No response, half a response, or a transient error."""


class HttpTransport:
    """See the module header. `retry_for_s`: how long to retry while the server is unreachable."""

    def __init__(
        self, url: str, *, token: str | None = None, retry_for_s: float = 30.0, clock: Clock | None = None
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._retry_for_s = retry_for_s
        self._clock = clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None
        self._responses: set[aiohttp.ClientResponse] = set()

    async def __aenter__(self) -> Self:
        # As many streams may be open as there are chats to read.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._session = self._session, None
        for response in self._responses:  # aiohttp itself wakes no reader of a body
            response.content.set_exception(aiohttp.ClientConnectionError("The client was closed."))
        if session is not None:
            await session.close()

    # --- requests ---

    async def read(self, result_type: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        """GET. A None in the query is left out."""
        return await self._request("GET", path, partial(_decode, result_type), params=_write_query(query))

    async def read_bytes(self, path: str, query: Mapping[str, Any] | None = None) -> bytes:
        """The body of a response that is a file."""
        return await self._request("GET", path, bytes, params=_write_query(query))

    async def write(
        self,
        result_type: type[T],
        method: str,
        path: str,
        body: msgspec.Struct | Mapping[str, Any] | bytes | None = None,
    ) -> T:
        """POST, PUT or PATCH of an object. A None of a mapping is left out, except of a PATCH: it clears.

        JSON as bytes may be large: the server is asked before it is sent.
        """
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        sent: dict[str, Any] = {}
        if isinstance(body, bytes):
            sent = {"open_body": partial(BytesIO, body), "expect100": True}
        elif body is not None:
            if isinstance(body, Mapping) and method != "PATCH":
                body = _leave_out_none(body)
            sent = {"data": encode(body)}
        if sent:
            headers["Content-Type"] = "application/json"
        return await self._request(method, path, partial(_decode, result_type), headers=headers, **sent)

    async def delete(self, path: str) -> None:
        await self._request("DELETE", path, partial(_decode, object), headers={"Idempotency-Key": str(uuid.uuid4())})

    async def upload(
        self,
        result_type: type[T],
        path: str,
        open_body: Callable[[], AsyncIterator[bytes]],
        *,
        query: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> T:
        """POST a body as a stream. It is reopened for every attempt, which all have the same key."""
        named = {"Idempotency-Key": str(uuid.uuid4()), **headers}
        more: dict[str, Any] = {"params": query, "headers": named, "expect100": True}
        return await self._request("POST", path, partial(_decode, result_type), open_body=open_body, **more)

    async def _request(
        self,
        method: str,
        path: str,
        read: Callable[[bytes], T],
        *,
        open_body: Callable[[], AsyncIterator[bytes] | BytesIO] | None = None,
        **more: Any,
    ) -> T:
        """Repeat the request until there is a response. If it was carried out already, the response is the same."""
        back_off = _BackOff(self._retry_for_s, self._clock)
        is_repeated = False
        while True:
            try:
                given = more if open_body is None else {**more, "data": open_body()}
                async with self._open(method, path, **given) as response:
                    body = await response.read()
                    try:
                        return read(body)
                    except msgspec.DecodeError as error:
                        if str(error) == _JSON_ENDS_EARLY:
                            raise _Unreached("The response was cut.") from error
                        raise self._doubt(response, str(error)) from error
            except _Unreached as error:
                await back_off.wait(error)
                is_repeated = True
            except NotFound:
                if method == "DELETE" and is_repeated:
                    return read(b"")  # the first request deleted it
                raise

    # --- streams ---

    async def download(self, path: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """The bytes of a file from `start` to before `stop`, over any number of connections, each byte once.

        Raises `ServerFailed` if no server was reachable for too long, or if several responses in a row brought nothing.
        """
        place, fruitless = start, 0
        back_off = _BackOff(self._retry_for_s, self._clock)
        while place < stop:
            failure = _Unreached("The file ended early.")
            try:
                async with self._open("GET", path, headers={"Range": f"bytes={place}-{stop - 1}"}) as response:
                    fruitless += 1
                    sent_from = place if response.status == 206 else 0  # not every proxy lets ranges through
                    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                        missing = chunk[max(0, place - sent_from) : stop - sent_from]
                        sent_from += len(chunk)
                        if missing:
                            place += len(missing)
                            fruitless = 0
                            back_off.reset()
                            yield missing
                        if place == stop:
                            return
            except _Unreached as error:
                failure = error
            if fruitless == _FRUITLESS:
                raise ServerFailed(f"The server does not send the file: {failure}") from failure.__cause__
            await back_off.wait(failure)

    async def follow(
        self,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        after: str | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> AsyncGenerator[FeedEvent, None]:
        """The events of a route, over any number of connections, from a cursor on.

        Only a deletion ends them, and that is the last event, or closing the client. `on_reconnect` is called when a
        lost connection is restored. Raises `NotFound` if the chat does not exist, and `ServerFailed` if nothing was
        received for too long.
        """
        self._require_session()
        cursor = after
        back_off = _BackOff(self._retry_for_s, self._clock)
        was_connected = False
        while self._session is not None:
            has_received = False
            opened_s: float | None = None
            failure: _Unreached | None = None
            try:
                params = _write_query({**(query or {}), "after": cursor})
                async with self._open("GET", path, params=params, timeout=_FEED_TIMEOUT) as response:
                    if response.content_type != "text/event-stream":
                        raise self._doubt(response, "no events")
                    if was_connected and on_reconnect is not None:
                        on_reconnect()
                    was_connected = True
                    opened_s = self._clock.monotonic()
                    decoder = SseDecoder()
                    async for chunk in response.content.iter_any():
                        events = decoder.feed(chunk)
                        has_received = has_received or (not events and chunk.endswith(b"\n\n"))  # a comment
                        for found in events:
                            event = FeedEvent(cast("EventKind", found.event), found.id, EventBody(found.data))
                            cursor = event.cursor or cursor
                            if event.kind != "end":
                                has_received = True
                                yield event
                            elif event.data.get("reason") == "deleted":
                                yield event
                                return
            except EventTooLarge as error:
                raise ServerFailed(f"The feed cannot be read: {error} Read the messages page by page.") from error
            except _Unreached as error:
                failure = error
            if has_received or (opened_s is not None and self._clock.monotonic() - opened_s >= _STEADY_S):
                back_off.reset()
            elif failure is None:
                failure = _Unreached("It closes every connection at once.")
            if failure is not None and self._session is not None:
                await back_off.wait(failure)

    # --- one request ---

    def _require_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise Invalid("The client is not open: use `async with indelible.Client(...)`.")
        return self._session

    @asynccontextmanager
    async def _open(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful response. A connection that is lost, here or in the block, is `_Unreached`."""
        session = self._require_session()
        try:
            # A redirected POST would become a GET, without its body.
            url = f"{self._url}{PREFIX}{path}"
            async with session.request(method, url, allow_redirects=False, **more) as response:
                self._responses.add(response)
                try:
                    self._check_redirect(response)
                    await _check(response)
                    yield response
                finally:
                    self._responses.discard(response)
        except aiohttp.ClientConnectorError as error:
            raise _Unreached(f"can't connect to {error.host}:{error.port} ({_explain(error)})") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Unreached(str(error) or type(error).__name__) from error

    def _check_redirect(self, response: aiohttp.ClientResponse) -> None:
        if 300 <= response.status < 400:
            asked = str(response.url)
            target = urljoin(asked, response.headers.get("Location", ""))
            target = target.removesuffix(asked[asked.index(PREFIX) :])
            raise ServerFailed(f"{self._url} redirects to {target}: use that URL.")

    def _doubt(self, response: aiohttp.ClientResponse, found: str) -> ServerFailed:
        what = f"{response.method} {response.url} returned {response.content_type or 'nothing'} ({found})"
        return ServerFailed(f"{what}. Is {self._url} an Indelible server, as new as this client?")


class _BackOff:
    """How long to wait before the next attempt, and when to give up: `retry_for_s` after the first failure."""

    def __init__(self, retry_for_s: float, clock: Clock) -> None:
        self._retry_for_s = retry_for_s
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._until_s: float | None = None
        self._is_reported = False
        self._next_s = _FIRST_BACK_OFF_S

    async def wait(self, error: Exception) -> None:
        now_s = self._clock.monotonic()
        if self._until_s is None:
            self._until_s = now_s + self._retry_for_s
        if now_s >= self._until_s:
            raise ServerFailed(f"The server is unreachable: {error}") from error.__cause__
        if not self._is_reported and self._retry_for_s - (self._until_s - now_s) >= _REPORTED_AFTER_S:
            self._is_reported = True
            _log.info("The server is unreachable: %s. Trying again for %.0f s.", error, self._until_s - now_s)
        delay_s = self._next_s * random.uniform(0.5, 1.0)  # noqa: S311  (only so that clients do not reconnect all at once)
        self._next_s = min(2 * self._next_s, _LONGEST_BACK_OFF_S)
        await self._clock.sleep(min(delay_s, self._until_s - now_s))


def _explain(error: aiohttp.ClientConnectorError) -> str:
    """Why there is no connection, in the system's words; asyncio's own are about its call."""
    cause = error.os_error
    if cause.errno is None or isinstance(cause, ssl.SSLError | socket.gaierror):  # with numbers of their own
        return cause.strerror or str(cause)
    return os.strerror(cause.errno).lower()


def _leave_out_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _write_query(query: Mapping[str, Any] | None) -> dict[str, str]:
    found = _leave_out_none(query or {})
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def _decode(result_type: type[T], body: bytes) -> T:
    """Unknown fields are ignored, so a newer server does no harm. A response without a body is None."""
    return msgspec.json.decode(body or b"null", type=result_type)


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise the error that a status above 399 stands for."""
    if response.status < 400:
        return
    try:
        problem = await response.json(content_type=None)
    except ValueError:
        problem = None
    problem = problem if isinstance(problem, dict) else {}
    detail = str(problem.get("detail") or f"The server responded with status {response.status}.")
    kind = problem.get("kind")
    if kind == "unauthorized":
        detail += " A client takes its token from INDELIBLE_TOKEN."
    if response.status in _PASSING:
        raise _Unreached(detail)
    if response.status >= 500:
        raise ServerFailed(detail)
    raise make_refusal(problem, detail)


def make_refusal(problem: Mapping[str, Any], detail: str) -> Refused:
    """The refusal that the server described. A problem of another kind, such as `forbidden`, is `Refused`."""
    kind = str(problem.get("kind"))
    if kind == NotAllowed.problem_kind:
        return NotAllowed(command=str(problem.get("command")), state=str(problem.get("state")), detail=detail)
    return REFUSALS.get(kind, Refused)(detail)
