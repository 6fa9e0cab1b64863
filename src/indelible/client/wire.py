"""The server's routes as Python methods: requests, retries, and a feed that never loses its position.

Methods return the server's JSON as dictionaries; remote.py turns them into types. A refusal raises the same error as in
the library (errors.py). Every write carries an idempotency key and is repeated with it when the response was lost, so
it happens once, whatever the network does. The feed reconnects by itself with its cursor: each event arrives once and
in order, over any number of restarts of any number of servers behind the address.

Must stay true (tests/server/test_client.py, tests/server/test_restarts.py).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, cast

import aiohttp

from indelible.errors import REFUSALS, IndelibleError, Invalid, NotAllowed, NotFound, Refused
from indelible.machine.events import EventBody, EventKind, FeedEvent
from indelible.models.http.sse import SseDecoder

_PREFIX: Final = "/api/v1"
_END_OF_RUN: Final = b"]}\n"
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


class ServerEvent(NamedTuple):
    """One event of a chat's feed: its kind, the cursor after it, and its JSON."""

    kind: str
    cursor: str | None
    data: dict[str, Any]


class WireClient:
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

    # --- chats ---

    async def create_chat(
        self,
        message: str | list[dict[str, Any]] | None = None,
        *,
        model: str | None = None,
        system: str | None = None,
        title: str | None = None,
        parameters: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        body = {"message": message, "model": model, "system": system, "title": title, "parameters": parameters}
        body |= {} if tools is None else {"tools": tools}
        return await self.write_json("POST", "/chats", body)

    async def list_chats(
        self,
        *,
        search: str | None = None,
        archived: bool = False,
        limit: int = 50,
        cursor: str | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """`more`: label, pinned, unread."""
        query = {"q": search, "archived": archived, **more, "limit": limit, "cursor": cursor}
        return await self.read_json("/chats", query)

    async def get_chat(self, chat_id: str) -> dict[str, Any]:
        return await self.read_json(f"/chats/{chat_id}")

    async def update_chat(self, chat_id: str, **changes: Any) -> dict[str, Any]:
        """Update title, labels, pinned, archived, model, system, parameters, tools or debug; None clears a field."""
        return await self.write_json("PATCH", f"/chats/{chat_id}", changes)

    async def delete_chat(self, chat_id: str) -> None:
        await self.write_json("DELETE", f"/chats/{chat_id}")

    async def fork_chat(self, chat_id: str, message_id: str) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/fork", {"message_id": message_id})

    # --- messages ---

    async def list_messages(self, chat_id: str, *, limit: int = 50, **place: str | None) -> dict[str, Any]:
        """`place`: before or after."""
        return await self.read_json(f"/chats/{chat_id}/messages", {**place, "limit": limit})

    async def read_all_messages(self, chat_id: str) -> list[dict[str, Any]]:
        """The whole active branch, oldest first."""
        found: list[dict[str, Any]] = []
        before: str | None = None
        while True:
            page = await self.list_messages(chat_id, before=before, limit=200)
            found[:0] = page["items"]
            before = page["next"]
            if before is None:
                return found

    async def send(
        self, chat_id: str, content: str | list[dict[str, Any]], *, if_busy: str = "queue", model: str | None = None
    ) -> dict[str, Any]:
        body = {**_write_content(content), "if_busy": if_busy, "model": model}
        return await self.write_json("POST", f"/chats/{chat_id}/messages", body)

    async def edit(
        self, chat_id: str, message_id: str, content: str | list[dict[str, Any]], *, model: str | None = None
    ) -> dict[str, Any]:
        body = {**_write_content(content), "model": model}
        return await self.write_json("POST", f"/chats/{chat_id}/messages/{message_id}/edit", body)

    async def regenerate(self, chat_id: str, message_id: str, *, model: str | None = None) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/messages/{message_id}/regenerate", {"model": model})

    async def switch_branch(self, chat_id: str, message_id: str, *, exact: bool = False) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/branch", {"message_id": message_id, "exact": exact})

    async def get_tree(self, chat_id: str) -> dict[str, Any]:
        return await self.read_json(f"/chats/{chat_id}/tree")

    # --- the queue ---

    async def list_queue(self, chat_id: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.read_json(f"/chats/{chat_id}/queue"))["items"]
        return items

    async def reorder_queue(self, chat_id: str, ids: Sequence[str]) -> dict[str, Any]:
        return await self.write_json("PUT", f"/chats/{chat_id}/queue/order", {"ids": list(ids)})

    async def edit_queued(self, chat_id: str, queued_id: str, content: str | list[dict[str, Any]]) -> dict[str, Any]:
        return await self.write_json("PATCH", f"/chats/{chat_id}/queue/{queued_id}", _write_content(content))

    async def delete_queued(self, chat_id: str, queued_id: str) -> None:
        await self.write_json("DELETE", f"/chats/{chat_id}/queue/{queued_id}")

    async def promote_queued(self, chat_id: str, queued_id: str) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/queue/{queued_id}/promote")

    # --- turns ---

    async def interrupt(self, chat_id: str, *, wait_s: float = 0, turn: str | None = None) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/interrupt", {"wait_s": wait_s, "turn": turn})

    async def retry(self, chat_id: str, *, model: str | None = None) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/retry", {"model": model})

    async def continue_(self, chat_id: str, *, model: str | None = None) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/continue", {"model": model})

    async def compact(self, chat_id: str) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/compact")

    async def submit_tool_results(
        self, chat_id: str, results: Sequence[dict[str, Any]], *, turn: str | None = None
    ) -> dict[str, Any]:
        return await self.write_json("POST", f"/chats/{chat_id}/tool-results", {"results": list(results), "turn": turn})

    # --- attempts and runs ---

    async def list_attempts(self, chat_id: str, *, limit: int = 50, **place: str | None) -> dict[str, Any]:
        return await self.read_json(f"/chats/{chat_id}/attempts", {**place, "limit": limit})

    async def list_runs(self, chat_id: str, *, limit: int = 50, **place: str | None) -> dict[str, Any]:
        """The recorded runs, newest first."""
        return await self.read_json(f"/chats/{chat_id}/debug/runs", {**place, "limit": limit})

    async def read_run(self, chat_id: str, run_id: str, *, bodies: bool = True) -> dict[str, Any]:
        """One run with its exchanges, which may be large; without `bodies`, only their sizes."""
        return await self.read_json(f"/chats/{chat_id}/debug/runs/{run_id}", {"bodies": str(bodies).lower()})

    async def save_run(self, chat_id: str, run_id: str, path: Path) -> None:
        """Stream a run as JSON into a file, however large it is. The file appears when it is complete."""
        assert self._session is not None
        url = f"{self._url}{_PREFIX}/chats/{chat_id}/debug/runs/{run_id}"
        back_off = _BackOff(self._retry_for_s)
        while True:
            try:
                with _noting_loss():
                    async with self._session.get(url) as response:
                        await _check(response)
                        return await _save(response, path)
            except _Unreached as error:
                await back_off.wait(error)

    async def list_models(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await self.read_json("/models"))["items"]
        return items

    # --- bytes ---

    async def send_bytes(
        self,
        path: str,
        open_body: Callable[[], AsyncIterator[bytes]],
        *,
        query: dict[str, str],
        headers: dict[str, str],
    ) -> dict[str, Any]:
        """Send a body as a stream. It is reopened for every attempt, which all have the same key."""
        named = {"Idempotency-Key": str(uuid.uuid4()), **headers}
        more: dict[str, Any] = {"params": query, "headers": named, "expect100": True}
        stored: dict[str, Any] = await self._request("POST", path, open_body=open_body, **more)
        return stored

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

    # --- the feed ---

    async def stream_events(
        self, chat_id: str, *, after: str | None = None, on_reconnect: Callable[[], None] | None = None
    ) -> AsyncGenerator[ServerEvent, None]:
        """The events of a chat, without end: only deleting the chat ends them. Leave the loop when you are done."""
        async with aclosing(self.stream_feed(chat_id, after=after, on_reconnect=on_reconnect)) as events:
            async for event in events:
                if event.kind != "end":
                    yield ServerEvent(event.kind, event.cursor, event.data)

    async def stream_feed(
        self, chat_id: str, *, after: str | None = None, on_reconnect: Callable[[], None] | None = None
    ) -> AsyncGenerator[FeedEvent, None]:
        """The same as the library's events. Only a deletion ends it, and that is its last event.

        `on_reconnect` is called when a lost connection is restored. Raises `NotFound` if the chat does not exist, and
        `ServerFailed` if no server was reachable for too long.
        """
        async for event in self.follow(f"/chats/{chat_id}/events", {}, after=after, on_reconnect=on_reconnect):
            yield event

    async def follow(
        self,
        path: str,
        query: dict[str, str],
        *,
        after: str | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> AsyncGenerator[FeedEvent, None]:
        """The events of a route, over any number of connections, from a cursor on."""
        cursor = after
        back_off = _BackOff(self._retry_for_s)
        was_connected = False
        while True:
            try:
                async with self._connect(path, query | ({} if cursor is None else {"after": cursor})) as response:
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

    # --- requests ---

    async def read_json(self, path: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
        given = {name: _write_value(value) for name, value in (query or {}).items() if value is not None}
        found: dict[str, Any] = await self._request("GET", path, params=given)
        return found

    async def write_json(self, method: str, path: str, body: dict[str, Any] | bytes | None = None) -> dict[str, Any]:
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        given: dict[str, Any] = body if isinstance(body, dict) else {}
        if method != "PATCH":
            given = {name: value for name, value in given.items() if value is not None}
        sent = {"data": body} if isinstance(body, bytes) else {"json": given if method != "DELETE" else None}
        if isinstance(body, bytes):
            headers["Content-Type"] = "application/json"
        answer: dict[str, Any] = await self._request(method, path, **sent, headers=headers)
        return answer

    async def read_bytes(self, path: str, query: dict[str, str]) -> bytes:
        """The body of a response that is a file."""
        found: bytes = await self._request("GET", path, params=query, as_bytes=True)
        return found

    async def _request(
        self,
        method: str,
        path: str,
        *,
        open_body: Callable[[], AsyncIterator[bytes]] | None = None,
        as_bytes: bool = False,
        **more: Any,
    ) -> Any:
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
                        if as_bytes:
                            return await response.read()
                        return {} if response.status == 204 else await response.json()
            except _Unreached as error:
                await back_off.wait(error)
                is_repeated = True
            except NotFound:
                if method == "DELETE" and is_repeated:
                    return {}  # the first request deleted it
                raise


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


def _write_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write_content(content: str | list[dict[str, Any]]) -> dict[str, Any]:
    return {"text": content} if isinstance(content, str) else {"content": content}


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


async def _save(response: aiohttp.ClientResponse, path: Path) -> None:
    """Write to a temporary name, and rename the file when it is complete."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.part")
    last = b""
    try:
        with part.open("wb") as file:
            async for piece in response.content.iter_any():
                await asyncio.to_thread(file.write, piece)
                last = (last + piece)[-len(_END_OF_RUN) :]
        if last != _END_OF_RUN:
            raise aiohttp.ClientPayloadError("The run was truncated.")
        part.replace(path)
    except (aiohttp.ClientError, TimeoutError):
        raise
    except OSError as error:
        raise Invalid(f"Can't write {path}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            part.unlink()


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
