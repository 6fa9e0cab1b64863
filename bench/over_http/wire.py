"""The client's side of HTTP over raw sockets: it costs little beside the servers that it measures.

A feed is read as events separated by an empty line. The frames of the chunked encoding stay in front of them: nobody
here reads more of an event than whether something is in it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Self

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

READ_BYTES: Final = 65_536
_CURSOR: Final = re.compile(rb"id: (\S+)\n")


class Client:
    """One user of one server, with one connection that is kept until the server closes it because it was idle."""

    def __init__(self, url: str) -> None:
        self.host, _, port = url.removeprefix("http://").rpartition(":")
        self.port = int(port)
        self._kept: Streams | None = None

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        content = json.dumps(body).encode()
        head = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
        return json.loads(await self._exchange(f"POST {path}", head))

    async def get(self, path: str) -> Any:
        return json.loads(await self._exchange(f"GET {path}", b"\r\n"))

    async def get_bytes(self, path: str) -> bytes:
        return await self._exchange(f"GET {path}", b"\r\n")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=4 * READ_BYTES)
        try:
            yield reader, writer
        finally:
            writer.close()

    @asynccontextmanager
    async def open_feed(self, chat_id: str, after: str | None = None) -> AsyncIterator[Events]:
        query = "" if after is None else f"?after={after}"
        async with self.connect() as (reader, writer):
            head = f"GET /api/v1/chats/{chat_id}/events{query} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            writer.write(f"{head}Accept: text/event-stream\r\n\r\n".encode())
            yield Events(reader)

    def close(self) -> None:
        if self._kept is not None:
            self._kept[1].close()

    async def _exchange(self, line: str, rest: bytes) -> bytes:
        if self._kept is None or self._kept[0].at_eof():
            self._kept = await asyncio.open_connection(self.host, self.port)
        reader, writer = self._kept
        writer.write(f"{line} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n".encode() + rest)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        content = await reader.readexactly(length)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"{line}: {answer.decode()}{content.decode()}")
        return content


class Events:
    """The events of a feed, as they arrive."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._rest = b""
        self.size_bytes = 0
        self.cursor: str | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[bytes]:
        """The next events that came together."""
        while True:
            piece = await self._reader.read(READ_BYTES)
            if not piece:
                raise StopAsyncIteration
            self.size_bytes += len(piece)
            *events, self._rest = (self._rest + piece).split(b"\n\n")
            for event in reversed(events):
                if found := _CURSOR.search(event + b"\n"):
                    self.cursor = found[1].decode()
                    break
            if events:
                return events

    async def wait_for(self, what: bytes) -> None:
        """Read until an event has this in it."""
        async for events in self:
            if any(what in event for event in events):
                return
        raise RuntimeError("The feed ended too soon.")
