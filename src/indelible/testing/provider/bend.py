"""Applying faults to a body as it is sent.

A body is a stream of byte pieces, one per event; each function here returns another such stream. They know nothing of
HTTP: raising `Severed` asks the server to close the connection in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from itertools import cycle
from typing import Any, Final

from indelible.testing.provider.faults import (
    Chunked,
    Comments,
    Crlf,
    Cut,
    ErrorEvent,
    Fault,
    HalfCharacter,
    Malformed,
    Stall,
)

Body = AsyncGenerator[bytes, None]

_DATA: Final = b"data: "
_HALF_CHARACTER: Final = "𝄞".encode()[:2]


class Severed(Exception):
    """Close the connection here, without the end of the body."""


def bend(fault: Fault | None, body: Body, write_error: Callable[[Any], bytes]) -> Body:
    """The body with this fault applied. `write_error` writes an error event of the wire format."""
    match fault:
        case Cut():
            return _cut(body, fault)
        case Stall():
            return _stall(body, fault)
        case Chunked():
            return _cut_up(body, fault)
        case ErrorEvent():
            return _fail(body, fault, write_error)
        case Malformed():
            return _spoil(body, fault.after_events, b"")
        case HalfCharacter():
            return _spoil(body, fault.after_events, _HALF_CHARACTER)
        case Crlf():
            return _end_lines_with_crlf(body)
        case Comments():
            return _comment(body)
        case _:
            return body


async def _cut(body: Body, fault: Cut) -> Body:
    left = fault.at_byte
    async for piece in body:
        if len(piece) > left:
            yield piece[:left]
            if not fault.clean:
                raise Severed
            return
        yield piece
        left -= len(piece)


async def _stall(body: Body, fault: Stall) -> Body:
    left: int | None = fault.at_byte
    async for piece in body:
        if left is not None and len(piece) > left:
            yield piece[:left]
            await (fault.until or asyncio.Event()).wait()
            yield piece[left:]
            left = None
        else:
            yield piece
            left = None if left is None else left - len(piece)


async def _cut_up(body: Body, fault: Chunked) -> Body:
    sizes = cycle(fault.sizes)
    size = next(sizes)
    waiting = b""
    async for piece in body:
        waiting += piece
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
            size = next(sizes)
            await asyncio.sleep(0)
    yield waiting


async def _fail(body: Body, fault: ErrorEvent, write_error: Callable[[Any], bytes]) -> Body:
    sent = 0
    async for event in body:
        if sent == fault.after_events:
            break
        yield event
        sent += 1
    yield write_error(fault.body)


async def _spoil(body: Body, after_events: int, ending: bytes) -> Body:
    sent = 0
    async for event in body:
        if sent == after_events:
            names, mark, data = event.partition(_DATA)
            half = data[: len(data) // 2].decode("utf-8", "ignore").encode()
            yield names + mark + half + ending + b"\n\n"
        else:
            yield event
        sent += 1


async def _end_lines_with_crlf(body: Body) -> Body:
    async for event in body:
        yield event.replace(b"\n", b"\r\n")


async def _comment(body: Body) -> Body:
    async for event in body:
        yield b": keep-alive\n\n: a comment\n" + event.replace(b"\ndata:", b"\n:\ndata:")
