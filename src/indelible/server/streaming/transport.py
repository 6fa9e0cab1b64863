"""Writing the head of a response together with its body, and cutting a response that has no end.

uvicorn writes the two one after the other, and each write is a packet, which costs the kernel, and the client that is
woken by it, as much as a short request costs us. So the head is held back until the next write, or until the event loop
has run everything that is ready, whichever comes first. Nothing waits for it.

What is written to a connection that is gone goes nowhere: whoever writes learns of it from the protocol, not from here.

ASGI cannot say that a response breaks off: whoever just ends it makes a part look like the whole. `abort` closes the
connection instead. The chunked body then lacks its last chunk, which every HTTP client reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlette.types import Scope

ABORT: Final = "indelible.abort"
"""The extension of ASGI that limits/connections.py gives to each request."""
_HEAD: Final = b"HTTP/1.1 "


class GatheringTransport:
    """A transport that holds back the head of a response for a moment. Everything else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        if not self.is_closing():  # uvloop raises
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self.is_closing():
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def abort(scope: Scope) -> None:
    """Close the connection of a response that has begun and is not complete. A server without the extension does so."""
    extension: dict[str, Callable[[], None]] | None = scope.get("extensions", {}).get(ABORT)
    if extension is not None:
        extension["close"]()
