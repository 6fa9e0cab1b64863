"""HTTP for the remote client: requests, retries, and a feed that never loses its position.

This module knows no route: remote.py, lists.py and files.py name the methods, the paths and the types of the results.
A refusal raises the same error as in the library (errors.py). Every write carries an idempotency key and is repeated
with it when the response was lost, so it happens once, whatever the network does. The feed reconnects by itself with
its cursor: each event arrives once and in order, over any number of restarts of any number of servers behind the
address.

Must stay true (tests/server/test_client.py, tests/server/test_restarts.py).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

import aiohttp
import msgspec

from indelible.errors import REFUSALS, IndelibleError, NotAllowed, NotFound, Refused
from indelible.machine.events import EventBody, EventKind, FeedEvent
from indelible.models.http.sse import SseDecoder

T = TypeVar("T")

_PREFIX: Final = "/api/v1"
_FIRST_BACK_OFF_S: Final = 0.05
_LONGEST_BACK_OFF_S: Final = 2.0
_FEED_SILENCE_S: Final = 45.0
"""The server sends something every 15 s. After three times that, the connection is dead, whatever TCP reports."""

_ANSWER_S: Final = 90.0
"""No response takes longer: a stop may wait for a minute."""

_PASSING: Final = frozenset({502, 503, 504})
"""Transient errors of a server, or of a proxy in front of it."""


class ServerFailed(IndelibleError):
    """The server failed, or was unreachable for too long."""


class _Unreached(Exception):
    """No response, or a transient error."""


class HttpTransport:
    """See the module header. `retry_for_s`: how long to retry while the server is unreachable."""

    def __init__(self, url: str, *, token: str | None = None, retry_for_s: float = 30.0) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._retry_for_s = retry_for_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # As many streams may be open as there are chats to read.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    # --- requests ---

    async def read(self, result_type: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        """GET. A None in the query is left out."""
        return await self._request("GET", path, partial(_decode, result_type), params=_write_query(query))

    async def read_bytes(self, path: str, query: Mapping[str, Any] | None = None) -> bytes:
        """The body of a response that is a file."""
        return await self._request("GET", path, bytes, params=_write_query(query))

    async def write(
        self, result_type: type[T], method: str, path: str, body: Mapping[str, Any] | bytes | None = None
    ) -> T:
        """POST, PUT or PATCH of an object, or of JSON as bytes. A None is left out, except of a PATCH: it clears."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        if isinstance(body, bytes):
            sent: dict[str, Any] = {"data": body}
            headers["Content-Type"] = "application/json"
        else:
            given = body or {}
            sent = {"json": given if method == "PATCH" else _leave_out_none(given)}
        return await self._request(method, path, partial(_decode, result_type), headers=headers, **sent)

    async def delete(self, path: str) -> None:
        await self._request("DELETE", path, bytes, headers={"Idempotency-Key": str(uuid.uuid4())})

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
        open_body: Callable[[], AsyncIterator[bytes]] | None = None,
        **more: Any,
    ) -> T:
        """Repeat the request until there is a response. If it was carried out already, the response is the same."""
        assert self._session is not None
        back_off = _BackOff(self._retry_for_s)
        is_repeated = False
        while True:
            try:
                with _noting_loss():
                    given = more if open_body is None else {**more, "data": open_body()}
                    async with self._session.request(method, f"{self._url}{_PREFIX}{path}", **given) as response:
                        await _check(response)
                        return read(await response.read())
            except _Unreached as error:
                await back_off.wait(error)
                is_repeated = True
            except NotFound:
                if method == "DELETE" and is_repeated:
                    return read(b"")  # the first request deleted it
                raise

    # --- streams ---

    @asynccontextmanager
    async def open_bytes(
        self, path: str, *, headers: dict[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response whose body is read as a stream. Raises `ServerFailed` if the connection is lost."""
        assert self._session is not None
        try:
            with _noting_loss():
                async with self._session.get(f"{self._url}{_PREFIX}{path}", headers=headers) as response:
                    await _check(response)
                    yield response
        except _Unreached as error:
            raise ServerFailed(f"The server is unreachable: {error}") from error.__cause__

    async def follow(
        self,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        after: str | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> AsyncGenerator[FeedEvent, None]:
        """The events of a route, over any number of connections, from a cursor on.

        Only a deletion ends them, and that is the last event. `on_reconnect` is called when a lost connection is
        restored. Raises `NotFound` if the chat does not exist, and `ServerFailed` if no server was reachable for too
        long.
        """
        cursor = after
        back_off = _BackOff(self._retry_for_s)
        was_connected = False
        while True:
            try:
                async with self._connect(path, _write_query({**(query or {}), "after": cursor})) as response:
                    if was_connected and on_reconnect is not None:
                        on_reconnect()
                    was_connected = True
                    back_off.reset()
                    brought_something = False
                    async for event in _read_events(response):
                        cursor = event.cursor or cursor
                        if event.kind != "end":
                            brought_something = True
                            yield event
                        elif event.data.get("reason") == "deleted":
                            yield event
                            return
            except _Unreached as error:
                await back_off.wait(error)
            else:
                if not brought_something:
                    await back_off.wait(_Unreached("it closes every connection at once"))

    @asynccontextmanager
    async def _connect(self, path: str, query: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_FEED_SILENCE_S)
        url = f"{self._url}{_PREFIX}{path}"
        with _noting_loss():
            async with self._session.get(url, params=query, timeout=timeout) as response:
                await _check(response)
                yield response


class _BackOff:
    """How long to wait before the next attempt, and when to give up."""

    def __init__(self, retry_for_s: float) -> None:
        self._retry_for_s = retry_for_s
        self.reset()

    def reset(self) -> None:
        self._waited_s = 0.0
        self._next_s = _FIRST_BACK_OFF_S

    async def wait(self, error: Exception) -> None:
        if self._waited_s >= self._retry_for_s:
            raise ServerFailed(f"The server is unreachable: {error}") from error.__cause__
        delay_s = self._next_s * random.uniform(0.5, 1.0)  # noqa: S311  (only so that clients do not reconnect all at once)
        self._waited_s += delay_s
        self._next_s = min(2 * self._next_s, _LONGEST_BACK_OFF_S)
        await asyncio.sleep(delay_s)


def _leave_out_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _write_query(query: Mapping[str, Any] | None) -> dict[str, str]:
    found = _leave_out_none(query or {})
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in found.items()}


def _decode(result_type: type[T], body: bytes) -> T:
    """Unknown fields are ignored, so a newer server does no harm. A response without a body is None."""
    return msgspec.json.decode(body or b"null", type=result_type)


@contextmanager
def _noting_loss() -> Iterator[None]:
    """Turn every network error into `_Unreached`."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _Unreached(str(error) or type(error).__name__) from error


async def _read_events(response: aiohttp.ClientResponse) -> AsyncIterator[FeedEvent]:
    decoder = SseDecoder()
    async for chunk in response.content.iter_any():
        for found in decoder.feed(chunk):
            yield FeedEvent(cast("EventKind", found.event), found.id, EventBody(found.data))


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
