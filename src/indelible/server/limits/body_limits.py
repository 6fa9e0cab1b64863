"""Limits on JSON bodies: how many values one may have, and how deep they may be nested, before anything parses it.

A parser makes objects of every value, and the validator an error of every wrong one: 8 MiB of `[0,0,…]` took a minute
of the event loop and gigabytes. So values are counted in the bytes, where commas and brackets outside of strings are
all that matters; nearly every body is below the limits even if those inside of strings are counted too, and costs four
counts at the speed of memory. Bytes can be counted because JSON is UTF-8 here, as RFC 8259 says; Python's parser would
accept UTF-16 and UTF-32 too. Whether the body is JSON at all is left to the parser.

A compressed body is refused, an uploaded file too: its size would be known only after it was unpacked.

An exported chat may have many values, because it is decoded by type and the first mistake ends that; and it may be
large, so a user has one import at a time in memory: the next one is not read before that.

What passes here is bounded, and api/inputs.py gives every list in it a limit of its own.

Must stay true (tests/server/test_body_limits.py): the count is exact where it decides; no mistake costs more than a
valid body of the same size.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Final
from weakref import WeakValueDictionary

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.errors import Invalid, TooLarge
from indelible.server.limits.uploads import is_import, is_upload
from indelible.server.problem_details import make_problem

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
            user_id = scope["identity"].user_id  # access/middleware.py lets nobody else import
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
        except (TooLarge, HTTPException) as error:  # the latter from access/middleware.py
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
