"""A tiny load balancer, and an unreliable one where the test wants that.

Each new connection goes to the first of `targets` that takes it; if none does, the connection is closed. `cut` ends
every connection. `lose_answers(n)` lets the next n requests through and throws away what is answered: what a client
sees of a server that did its work and died.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from tests.support.waiting import deadline

_PIECE_BYTES = 65536


class Forwarder:
    def __init__(self, targets: Sequence[str]) -> None:
        self.targets = list(targets)
        self.url = ""
        self.connections = 0
        self._lost_answers = 0
        self._handling: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Forwarder]:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            await self.cut()

    async def cut(self) -> None:
        """End every connection there is."""
        handling = list(self._handling)
        for task in handling:
            task.cancel()
        async with deadline("the end of the connections that were cut"):
            await asyncio.gather(*handling, return_exceptions=True)

    def lose_answers(self, count: int) -> None:
        self._lost_answers = count

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handling.add(task)
        try:
            await self._forward(reader, writer)
        except asyncio.CancelledError:
            return
        finally:
            self._handling.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        found = await self._connect()
        if found is None:
            return
        answers, requests = found
        pumps = [asyncio.create_task(self._pump_answers(answers, writer)), asyncio.create_task(_pump(reader, requests))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            requests.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for target in self.targets:
            host, _, port = target.removeprefix("http://").partition(":")
            with suppress(OSError):
                return await asyncio.open_connection(host, int(port))
        return None

    async def _pump_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            if self._lost_answers > 0:
                self._lost_answers -= 1
                return
            writer.write(piece)
            await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
