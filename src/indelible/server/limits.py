"""Limits on what one request or one user can cost: bodies, uploads, open feeds, requests per second.

A JSON body is counted before anything parses it: how many values it has, and how deep they are nested. A parser makes
objects of every value, and the validator an error of every wrong one: 8 MiB of `[0,0,…]` took a minute of the event
loop and gigabytes. So values are counted in the bytes, where commas and brackets outside of strings are all that
matters; nearly every body is below the limits even if those inside of strings are counted too, and costs four counts at
the speed of memory. Bytes can be counted because JSON is UTF-8 here, as RFC 8259 says; Python's parser would accept
UTF-16 and UTF-32 too. Whether the body is JSON at all is left to the parser. What passes here is bounded, and
api/inputs.py gives every list in it a limit of its own. A compressed body is refused, an uploaded file too: its size
would be known only after it was unpacked.

Two kinds of bodies may be large. An upload is bytes, and never held in memory: its route counts them, and it has time
as long as it keeps a minimum pace; all other bodies have a minute to arrive (connections.py). A refused upload is read
to its end before the response, within bounds: a client that is still sending would otherwise see a broken connection
instead of the reason. An exported chat is JSON, but may be as large as a chat becomes: it has a limit of its own
(`import_max_bytes`), and time as an upload has it. It may have many values, because it is decoded by type and the first
mistake ends that; a user has one import at a time in memory: the next one is not read before that.

A feed holds a connection, two tasks and a reader for as long as its client likes, so a user has slots for them in this
process. A slot is taken when the response starts and given back when it ends, however it ends, so a feed whose client
has hung up counts no longer.

Requests are counted by token buckets: so many per second on average, with bursts; replicas count for themselves. A
bucket that is full again is the same as none, so buckets are forgotten when there are many: memory is bounded by the
number of those who were busy lately.

Must stay true (tests/server/test_body_limits.py): the count is exact where it decides; no mistake costs more than a
valid body of the same size. (tests/server/test_feed_limits.py): a refused feed leaves nothing behind; a closed one
makes room. (tests/server/test_file_routes.py, tests/server/test_rate_limits.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final
from weakref import WeakValueDictionary

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.errors import Invalid, TooLarge, TooMany
from indelible.server.problems import make_problem

MAX_JSON_VALUES: Final = 50_000
MAX_JSON_DEPTH: Final = 64
_DETAIL: Final = "Request bodies must not be compressed. Send the body as it is, without `Content-Encoding`."
_COMPRESSED: Final = make_problem(415, "unsupported_type", _DETAIL)
_CLOSE: Final = {"Connection": "close"}
"""Nobody reads the rest."""
_COMPRESSED_FILE: Final = make_problem(415, "unsupported_type", _DETAIL, headers=_CLOSE)
_STRUCTURE: Final = re.compile(rb"[\[\]{},]")
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class BodyLimits:
    """Refuses such a body; every other one reaches `application` in one piece."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application
        self._importing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._application(scope, receive, send)
            return
        is_compressed = Headers(scope=scope).get("content-encoding", "").lower() not in ("", "identity")
        if is_upload(scope):
            await (_COMPRESSED_FILE if is_compressed else self._application)(scope, receive, send)
        elif is_import(scope) and not is_compressed:
            user_id = scope["identity"].user_id  # access.py lets nobody else import
            async with self._importing.setdefault(user_id, asyncio.Lock()):
                await self._pass_on(scope, receive, send)
        else:
            await self._pass_on(scope, receive, send, is_compressed=is_compressed)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, *, is_compressed: bool = False) -> None:
        try:
            message = await _collect(receive)
            if message["type"] != "http.request":
                return  # the client has left
            if is_compressed:
                await _COMPRESSED(scope, receive, send)
                return
            if not is_import(scope):
                check_json(message.get("body", b""))
        except (TooLarge, HTTPException) as error:  # the latter from access.py
            detail = str(error.detail if isinstance(error, HTTPException) else error)
            await make_problem(413, "too_large", detail, headers=_CLOSE)(scope, receive, send)
            return
        except Invalid as error:
            await make_problem(400, "bad_request", str(error))(scope, receive, send)
            return
        await self._application(scope, _replay(message, receive), send)


def check_json(body: bytes, *, max_values: int = MAX_JSON_VALUES, max_depth: int = MAX_JSON_DEPTH) -> None:
    """Raises `TooLarge` if this document has too many values, `Invalid` if it is nested too deeply or not UTF-8.

    Commas and opening brackets are counted: one for each value but the first in its list or object.
    """
    if not json.detect_encoding(body).startswith("utf-8"):
        raise Invalid("The request is not UTF-8.")
    opened = body.count(b"[") + body.count(b"{")
    if opened <= max_depth and body.count(b",") + opened <= max_values:
        return
    # Escapes go first, so that every quote that is left begins or ends a string.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    count = depth = strings = place = 0
    while place <= len(plain) and strings <= 2 * count + 1:  # in JSON there are no more strings than that
        quote = plain.find(b'"', place)
        end = len(plain) if quote < 0 else quote
        for found in _STRUCTURE.finditer(plain, place, end):
            mark = found[0]
            if mark == b"," or mark in b"[{":
                count += 1
            if mark != b",":
                depth += 1 if mark in b"[{" else -1
            if count > max_values:
                raise TooLarge(f"The request has too many values (limit {max_values:,}).")
            if depth > max_depth:
                raise Invalid(f"The request is nested too deeply (limit {max_depth}).")
        strings += 1
        closing = plain.find(b'"', end + 1)
        place = len(plain) + 1 if closing < 0 else closing + 1


async def _collect(receive: Receive) -> Message:
    """The whole body as one message, or that the client has disconnected."""
    message = await receive()
    if message["type"] != "http.request" or not message.get("more_body"):
        return message
    pieces = [message.get("body", b"")]
    while message["type"] == "http.request" and message.get("more_body"):
        message = await receive()
        pieces.append(message.get("body", b""))
    return message if message["type"] != "http.request" else {**message, "body": b"".join(pieces)}


def _replay(message: Message, receive: Receive) -> Receive:
    is_new = True

    async def receive_again() -> Message:
        nonlocal is_new
        if is_new:
            is_new = False
            return message
        return await receive()

    return receive_again


_PATH: Final = "/api/v1/files"
_IMPORT: Final = "/api/v1/chats/import"
MIN_BYTES_PER_S: Final = 16 * 1024
"""An upload that is slower in the long run is cut."""
MAX_DISCARDED_BYTES: Final = 64 * 1024 * 1024
"""So much is read of a body that is refused, for its client to read why."""


def is_upload(scope: Mapping[str, object]) -> bool:
    """Whether this request's body is a file."""
    return scope["type"] == "http" and scope["method"] == "POST" and str(scope["path"]).endswith(_PATH)


def is_import(scope: Mapping[str, object]) -> bool:
    """Whether this request's body is an exported chat. Asked when the base path is known (access.py)."""
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
    return scope["type"] == "http" and scope["method"] == "POST" and path == _IMPORT


def is_large(path: str) -> bool:
    """Whether a body that is sent there may need more time than others."""
    return path.endswith((_PATH, _IMPORT))


class UploadBody:
    """The body of an upload, as a stream that can be left at any point."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._stream = request.stream()
        self._has_begun = False

    async def read(self) -> AsyncIterator[bytes]:
        self._has_begun = True
        async for chunk in self._stream:
            yield chunk

    async def discard(self) -> bool:
        """Read what is left; False if that is too much, and the connection has to be closed."""
        if not self._has_begun and "100-continue" in self._request.headers.get("expect", "").lower():
            return False  # the client waits for our word before it sends anything
        discarded = 0
        try:
            async for chunk in self._stream:
                discarded += len(chunk)
                if discarded > MAX_DISCARDED_BYTES:
                    return False
        except (ClientDisconnect, RuntimeError):  # the latter if it was read to its end
            return False
        return True


class FeedSlots:
    """One per process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def check(self, user_id: str) -> None:
        """Raises `TooMany` if no slot is left. A request whose stream needs one asks before it changes anything."""
        if self._open.get(user_id, 0) >= self._limit:
            raise TooMany(f"Too many feeds are open (limit {self._limit:,}). Close one first.")

    def acquire(self, user_id: str) -> None:
        self.check(user_id)
        self._open[user_id] += 1

    def give_back(self, user_id: str) -> None:
        self._open[user_id] -= 1
        if not self._open[user_id]:
            del self._open[user_id]


class WithSlot(Response):
    """A response that takes one of its user's slots for as long as it runs."""

    def __init__(self, response: Response, slots: FeedSlots, user_id: str) -> None:
        super().__init__()
        self._response = response
        self._slots = slots
        self._user_id = user_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._slots.acquire(self._user_id)
        try:
            await self._response(scope, receive, send)
        finally:
            self._slots.give_back(self._user_id)


MAX_BUCKETS: Final = 10_000


class TokenBuckets:
    """`rate` per second and name, at most `burst` at once."""

    def __init__(self, rate: float, burst: float, *, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._buckets: dict[str, tuple[float, float]] = {}  # what was left, and when

    def acquire(self, name: str) -> float:
        """Take one. 0 if there was one, otherwise the seconds until there is."""
        now_s = self._monotonic()
        left = self._count(name, now_s)
        if left < 1:
            return (1 - left) / self._rate
        if len(self._buckets) >= MAX_BUCKETS:
            self._forget_full(now_s)
        self._buckets[name] = (left - 1, now_s)
        return 0.0

    def give_back(self, name: str) -> None:
        """What was taken was not used."""
        if name in self._buckets:
            left, at_s = self._buckets[name]
            self._buckets[name] = (left + 1, at_s)

    def _count(self, name: str, now_s: float) -> float:
        left, at_s = self._buckets.get(name, (self._burst, now_s))
        return min(self._burst, left + (now_s - at_s) * self._rate)

    def _forget_full(self, now_s: float) -> None:
        kept = {name: found for name, found in self._buckets.items() if self._count(name, now_s) < self._burst}
        self._buckets = kept if len(kept) < MAX_BUCKETS else {}
