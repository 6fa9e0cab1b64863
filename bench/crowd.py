"""A crowd on one server (`python -m bench crowd`): many feeds, readers that stall, a reconnect storm, cut connections.

What is asked is whether one user suffers from the others. A probe chat streams at 20 tokens/s to one reader the whole
time, and the gaps between its tokens are taken in every phase; beside them the memory of the server's process:

  alone       the probe, and nobody else
  feeds       1,000 open feeds: 900 of idle chats, 100 of chats whose replies stream
  stalled     and 50 more that never read, on streaming chats
  storm       500 of the feeds are cut at once, and come back at once with their cursors, as after a deploy
  cut         400 feeds that are reset after their first byte, their second, their third, …
  afterwards  all of them have gone

Everything is on one machine: the crowd itself takes most of one of its cores, so a gap is an upper bound.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.databases import start_databases
from bench.findings import Finding, quantile, tabulate
from bench.options import IS_FULL, write_json
from bench.over_http.contenders import Contender, count_memory_bytes, start_indelible, start_provider
from bench.over_http.load import WORD
from bench.over_http.wire import Client, Events

_FEEDS: Final = 1_000
_STREAMING_FEEDS: Final = 100
_STREAMING_CHATS: Final = 5
_STALLED: Final = 50
_STORM: Final = 500
_CUT: Final = 400
_MEASURED_S: Final = 4.0
_RATE: Final = 20
_ENDLESS: Final = 1_000_000
_AT_ONCE: Final = 50
_RESET: Final = struct.pack("ii", 1, 0)
_LIMITS: Final = {"INDELIBLE_USER_MAX_FEEDS": "10000", "INDELIBLE_ADDRESS_MAX_CONNECTIONS": "10000"}


class Probe:
    """One reader of one streaming chat, and how long it waited for each token."""

    def __init__(self) -> None:
        self.gaps_s: list[float] = []

    async def read(self, events: Events) -> None:
        last = time.perf_counter()
        async for came in events:
            if any(WORD in event for event in came):
                now = time.perf_counter()
                self.gaps_s.append(now - last)
                last = now

    def take(self) -> list[float]:
        taken, self.gaps_s = self.gaps_s, []
        return taken


class CrowdRun:
    """The phases, one after the other, on one server."""

    def __init__(self, name: str, server: Contender) -> None:
        self.found: list[Finding] = []
        self._name = name
        self._server = server
        self._client = Client(server.url)
        self._probe = Probe()
        self._feeds: list[tuple[AsyncExitStack, Events, str, asyncio.Task[None]]] = []

    async def run(self) -> None:
        client = self._client
        idle = [(await client.post("/api/v1/chats", {}))["id"] for _ in range(_FEEDS // 10)]
        probe_id = (await client.post("/api/v1/chats", {"message": "Speak."}))["id"]
        async with client.open_feed(probe_id) as events, asyncio.TaskGroup() as group:
            await events.wait_for(WORD)
            probing = group.create_task(self._probe.read(events))
            await self._measure("alone")
            speaking = [
                (await client.post("/api/v1/chats", {"message": "Speak."}))["id"] for _ in range(_STREAMING_CHATS)
            ]
            wanted = [speaking[n % len(speaking)] for n in range(_STREAMING_FEEDS)]
            wanted += [idle[n % len(idle)] for n in range(_FEEDS - _STREAMING_FEEDS)]
            await self._open_all(group, [(chat_id, None) for chat_id in wanted])
            await self._measure(f"{_FEEDS:,} open feeds")
            stalled = [await self._stall(speaking[n % len(speaking)]) for n in range(_STALLED)]
            await self._measure(f"and {_STALLED} that never read")
            await self._storm(group)
            await self._cut(speaking)
            for connection in stalled:
                connection.close()
            for stack, _, _, reading in self._feeds:
                reading.cancel()
                await stack.aclose()
            for chat_id in speaking:
                await client.post(f"/api/v1/chats/{chat_id}/interrupt", {})
            await self._measure("when all have gone")
            probing.cancel()
        await client.post(f"/api/v1/chats/{probe_id}/interrupt", {"wait_s": 10})
        client.close()

    async def _measure(self, phase: str) -> None:
        self._probe.take()
        await asyncio.sleep(_MEASURED_S)
        self._note(phase)

    def _note(self, phase: str) -> None:
        gaps_ms = [gap * 1e3 for gap in self._probe.take()]
        memory = count_memory_bytes(self._server.pid) / 1e6
        for what, value, unit in (
            ("gap p50", quantile(gaps_ms, 0.5), "ms"),
            ("gap p99", quantile(gaps_ms, 0.99), "ms"),
            ("memory", memory, "MB"),
        ):
            self.found.append(Finding(what=f"{phase}: {what}", database=self._name, value=value, unit=unit))

    async def _open_all(self, group: asyncio.TaskGroup, wanted: Sequence[tuple[str, str | None]]) -> None:
        for start in range(0, len(wanted), _AT_ONCE):
            opened = (self._open(group, chat_id, after) for chat_id, after in wanted[start : start + _AT_ONCE])
            self._feeds += await asyncio.gather(*opened)

    async def _open(
        self, group: asyncio.TaskGroup, chat_id: str, after: str | None
    ) -> tuple[AsyncExitStack, Events, str, asyncio.Task[None]]:
        """A feed that somebody reads. The snapshot, or what was missed, has come when this returns."""
        stack = AsyncExitStack()
        events = await stack.enter_async_context(self._client.open_feed(chat_id, after))
        if after is None:
            await events.wait_for(b"event: snapshot")
        return stack, events, chat_id, group.create_task(_read_on(events))

    async def _stall(self, chat_id: str) -> socket.socket:
        """A connection that asks for a feed and never reads, with the smallest buffer of its own."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)  # noqa: FBT003  (positional in the standard library)
        await asyncio.get_running_loop().sock_connect(connection, (self._client.host, self._client.port))
        await asyncio.get_running_loop().sock_sendall(connection, self._request(chat_id))
        return connection

    async def _storm(self, group: asyncio.TaskGroup) -> None:
        """From the cut until each of them has a part or the headers of its new feed."""
        leaving, self._feeds = self._feeds[:_STORM], self._feeds[_STORM:]
        cursors = [(chat_id, events.cursor) for _, events, chat_id, _ in leaving]
        for stack, _, _, reading in leaving:
            reading.cancel()
            await stack.aclose()
        self._probe.take()
        started = time.perf_counter()
        peak = 0

        async def come_back(chat_id: str, cursor: str | None) -> float:
            async with self._client.connect() as (reader, writer):
                query = "" if cursor is None else f"?after={cursor}"
                writer.write(self._request(chat_id, query))
                answer = await reader.readuntil(b"\r\n\r\n")
                if not answer.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"A reader was refused: {answer.decode()}")
            return time.perf_counter() - started

        back = asyncio.gather(*(come_back(chat_id, cursor) for chat_id, cursor in cursors))
        while not back.done():
            peak = max(peak, count_memory_bytes(self._server.pid))
            await asyncio.wait([back], timeout=0.1)
        taken_s = await back
        self._note(f"a storm of {_STORM} reconnects")
        for what, value in (("half are back", quantile(taken_s, 0.5)), ("all are back", max(taken_s))):
            self.found.append(Finding(what=f"the storm: {what} after", database=self._name, value=value, unit="s"))
        self.found.append(Finding(what="the storm: memory at most", database=self._name, value=peak / 1e6, unit="MB"))
        await self._open_all(group, cursors)

    async def _cut(self, speaking: list[str]) -> None:
        self._probe.take()
        for length in range(_CUT):
            async with self._client.connect() as (reader, writer):
                writer.write(self._request(speaking[length % len(speaking)]))
                with suppress(asyncio.IncompleteReadError):
                    await reader.readexactly(length + 1)
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._note(f"{_CUT} feeds cut at every byte")

    def _request(self, chat_id: str, query: str = "") -> bytes:
        host = f"{self._client.host}:{self._client.port}"
        return f"GET /api/v1/chats/{chat_id}/events{query} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


async def _read_on(events: Events) -> None:
    async for _ in events:
        pass


async def measure() -> None:
    console = Console(width=140)
    found: list[Finding] = []
    os.environ.update(_LIMITS)
    with console.status("starting") as status, tempfile.TemporaryDirectory(prefix="bench-") as directory:
        async with start_databases() as addresses:
            for name, address in list(addresses.items())[: None if IS_FULL else 1]:
                status.update(f"{name}: the crowd")
                with (
                    start_provider(_ENDLESS, _RATE) as port,
                    start_indelible(port, address, Path(directory)) as server,
                ):
                    run = CrowdRun(name, server)
                    await run.run()
                    found += run.found
    console.print(tabulate("A crowd on one server", found))
    console.print(f"Written: {write_json('crowd', found)}.")
