"""The crowd, a process of its own: it opens feeds, stalls, storms and cuts, and prints each phase as a line of JSON.

  alone     nobody but the probe
  feeds     1,000 open feeds: 900 of idle chats, 100 of chats whose replies stream
  stalled   50 more that never read: half of streaming chats, half of a chat of 1 MB
  storm     500 of the feeds are reset at once, and come back at once with their cursors, as after a deploy
  cut       400 feeds are reset after their first byte, their second, their third, …
  gone      all have left

A feed that ends by itself, a refused request, a word that is missing or comes twice: each is an error.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import uvloop

from bench.crowd.sizes import Sizes
from bench.crowd.words import WordCheck
from bench.over_http.wire import Client, Events

_AT_ONCE: Final = 50
_TIMEOUT_S: Final = 60.0
_RESET: Final = struct.pack("ii", 1, 0)
_LARGE_MESSAGES: Final = 25
_LARGE_TEXT: Final = "A long message. " * 2_560
_HEAD_END: Final = b"\r\n\r\n"
_READERS: Final = re.compile(rb"^indelible_feed_readers (\S+)", re.MULTILINE)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase that is over. `times_s` are those of each reader that came (back), if any did."""

    name: str
    began: float
    ended: float
    times_s: list[float] = []
    errors: list[str] = []


class Reader:
    """One reader of one chat that can be cut and come back. It reads until it is closed."""

    def __init__(self, client: Client, chat_id: str, *, streams: bool) -> None:
        self.errors: list[str] = []
        self._client = client
        self._chat_id = chat_id
        self._streams = streams
        self._check = WordCheck()
        self._cursor: str | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> float:
        """Connect, with the cursor if there is one, and read on. Seconds until the reader is there.

        It is there when its snapshot has come, or, with a cursor, the head of its response and, of a streaming chat,
        the first words that it missed.
        """
        started = time.monotonic()
        client = self._client
        reader, self._writer = await asyncio.open_connection(client.host, client.port, limit=2**20)
        self._writer.write(make_request(client, self._chat_id, self._cursor))
        head = await reader.readuntil(_HEAD_END)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"A reader was refused: {head.decode()}")
        events = Events(reader)
        is_new = self._cursor is None
        events.cursor = self._cursor
        if is_new or self._streams:
            wanted = b"event: snapshot" if is_new else b"event: part"
            async for came in events:
                self._check.read(came)
                if any(wanted in event for event in came):
                    break
        self._reading = asyncio.create_task(self._read_on(events))
        self._cursor = events.cursor
        return time.monotonic() - started

    async def _read_on(self, events: Events) -> None:
        async for came in events:
            self._check.read(came)
            self._cursor = events.cursor
        self.errors.append("a feed ended by itself")

    async def cut(self) -> None:
        """Leave without a goodbye."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            if not self._reading.cancelled() and (error := self._reading.exception()) is not None:
                self.errors.append(repr(error))
            self._reading = None
        if self._writer is not None:
            reset(self._writer)

    def pop_errors(self) -> list[str]:
        popped, self.errors = self.errors, []
        if self._check.errors:
            popped += ["a word is missing or came twice"] * self._check.errors
            self._check.errors = 0
        return popped


class CrowdRun:
    """The phases, one after the other."""

    def __init__(self, client: Client, sizes: Sizes) -> None:
        self._client = client
        self._sizes = sizes
        self._readers: list[Reader] = []
        self._errors: list[str] = []

    async def run(self) -> None:
        sizes, post = self._sizes, self._client.post
        async with self._phase("alone"):
            await asyncio.sleep(sizes.phase_s)
        idle = [(await post("/api/v1/chats", {}))["id"] for _ in range(max(1, sizes.feeds // 10))]
        large = (await post("/api/v1/chats/import", make_large_chat()))["id"]
        speaking = [(await post("/api/v1/chats", {"message": "Speak."}))["id"] for _ in range(sizes.chats)]
        async with self._phase(f"{sizes.feeds:,} feeds are opened") as times_s:
            quiet = sizes.feeds - sizes.streaming
            chats = [(speaking[n % len(speaking)], True) for n in range(sizes.streaming)]
            chats += [(idle[n % len(idle)], False) for n in range(quiet)]
            self._readers = [Reader(self._client, chat_id, streams=streams) for chat_id, streams in chats]
            for start in range(0, len(self._readers), _AT_ONCE):
                times_s.extend(await self._gather([each.open() for each in self._readers[start : start + _AT_ONCE]]))
        async with self._phase(f"{sizes.feeds:,} feeds are open"):
            await asyncio.sleep(sizes.phase_s)
        stalled = [await self._stall(speaking[n % len(speaking)] if n % 2 else large) for n in range(sizes.stalled)]
        async with self._phase(f"and {sizes.stalled} that never read"):
            await asyncio.sleep(sizes.phase_s)
        async with self._phase(f"{sizes.storm:,} reconnect at once") as times_s:
            leaving = self._readers[: sizes.storm]
            await asyncio.gather(*(each.cut() for each in leaving))
            times_s.extend(await self._gather([each.open() for each in leaving]))
        async with self._phase("after the storm"):
            await asyncio.sleep(sizes.phase_s)
        async with self._phase(f"{sizes.cut:,} feeds are cut at each byte"):
            for start in range(0, sizes.cut, _AT_ONCE):
                lengths = range(start, min(sizes.cut, start + _AT_ONCE))
                await self._gather([self._cut_after(speaking[n % len(speaking)], n + 1) for n in lengths])
        for connection in stalled:
            connection.close()
        await asyncio.gather(*(each.cut() for each in self._readers))
        for chat_id in speaking:
            await post(f"/api/v1/chats/{chat_id}/interrupt", {"wait_s": 10})
        async with self._phase("all have gone"):
            await asyncio.sleep(sizes.phase_s)
            await self._count_readers()

    async def _count_readers(self) -> None:
        """Nobody but the probe may be left."""
        metrics = await self._client.get_bytes("/metrics")
        found = _READERS.search(metrics)
        if found is None or float(found[1]) != 1:
            self._errors.append(
                f"readers that the server still has: {found and found[1].decode()}; expected 1, the probe"
            )

    @asynccontextmanager
    async def _phase(self, name: str) -> AsyncIterator[list[float]]:
        print(name, flush=True)
        times_s: list[float] = []
        began = time.monotonic()
        yield times_s
        ended = time.monotonic()
        errors = [*self._errors, *(error for reader in self._readers for error in reader.pop_errors())]
        self._errors.clear()
        phase = Phase(name=name, began=began, ended=ended, times_s=times_s, errors=errors)
        print(msgspec.json.encode(phase).decode(), flush=True)

    async def _gather(self, work: list[Coroutine[Any, Any, float]]) -> list[float]:
        """All of it at once. What fails, or takes too long, is an error."""
        done = await asyncio.gather(*(asyncio.wait_for(each, _TIMEOUT_S) for each in work), return_exceptions=True)
        self._errors += [repr(each) for each in done if isinstance(each, BaseException)]
        return [each for each in done if isinstance(each, float)]

    async def _stall(self, chat_id: str) -> socket.socket:
        """A connection that asks for a feed and never reads, with the smallest buffer of its own."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)  # noqa: FBT003  (positional in the standard library)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (self._client.host, self._client.port))
        await loop.sock_sendall(connection, make_request(self._client, chat_id))
        return connection

    async def _cut_after(self, chat_id: str, length: int) -> float:
        started = time.monotonic()
        reader, writer = await asyncio.open_connection(self._client.host, self._client.port)
        writer.write(make_request(self._client, chat_id))
        await reader.readexactly(length)
        reset(writer)
        return time.monotonic() - started


def make_large_chat() -> dict[str, Any]:
    """A file of a chat with 1 MB of text."""
    messages = [
        {
            "id": str(n),
            "parent_id": str(n - 1) if n else None,
            "role": "assistant" if n % 2 else "user",
            "blocks": [{"type": "text", "text": _LARGE_TEXT}],
            "created_at": "2026-01-01T00:00:00Z",
        }
        for n in range(_LARGE_MESSAGES)
    ]
    return {
        "format": "indelible.chat",
        "version": 1,
        **dict.fromkeys(("created_at", "exported_at"), "2026-01-01T00:00:00Z"),
        **dict.fromkeys(("title", "model", "system", "parameters", "tools")),
        "labels": [],
        "head": str(_LARGE_MESSAGES - 1),
        "messages": messages,
    }


def make_request(client: Client, chat_id: str, after: str | None = None) -> bytes:
    query = "" if after is None else f"?after={after}"
    return (
        f"GET /api/v1/chats/{chat_id}/events{query} HTTP/1.1\r\n"
        f"Host: {client.host}:{client.port}\r\nAccept: text/event-stream\r\n\r\n"
    ).encode()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset instead of a goodbye."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.close()


if __name__ == "__main__":
    _, url_, sizes_ = sys.argv
    uvloop.run(CrowdRun(Client(url_), msgspec.json.decode(sizes_, type=Sizes)).run())
