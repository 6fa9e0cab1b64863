"""`Pooler`: what PgBouncer is in transaction mode, as far as it matters to us.

A client has a connection to PostgreSQL only while a transaction runs, and the next one runs on whichever is free, the
last one used first. What a client sets in its session stays with that connection, and so with whoever gets it next. In
`session` mode a client keeps its connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from sqlalchemy import make_url
from tests.support.waiting import deadline

_SSL_REQUEST: Final = 80877103
_READY: Final = b"Z"
_IDLE: Final = b"I"
_TERMINATE: Final = b"X"


class _Server(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: bytes


class Pooler:
    def __init__(self, server: str, *, session: bool = False) -> None:
        self._url = make_url(server)
        self._keeps = session
        self._free: list[_Server] = []
        self._opened: list[asyncio.StreamWriter] = []
        self._clients: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        serving = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = serving.sockets[0].getsockname()
        try:
            yield self._url.set(host=host, port=port, query={}).render_as_string(hide_password=False)
        finally:
            serving.close()
            for client in list(self._clients):
                client.cancel()
            async with deadline("the end of the pooler's clients"):
                await asyncio.gather(*self._clients, return_exceptions=True)
            for writer in self._opened:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._talk(reader, writer)
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await _read_startup(reader)
        if struct.unpack("!I", startup[4:8])[0] == _SSL_REQUEST:
            writer.write(b"N")
            startup = await _read_startup(reader)
        server: _Server | None = await self._take(startup)
        assert server is not None
        writer.write(server.greeting)
        pumping: asyncio.Task[None] | None = None
        if not self._keeps:
            self._free.append(server)
            server = None
        try:
            while (message := await _read_message(reader))[:1] != _TERMINATE:
                if pumping is None or pumping.done():
                    server = server if server is not None and self._keeps else await self._take(startup)
                    pumping = asyncio.create_task(self._pump(server, writer))
                assert server is not None
                server.writer.write(message)
                await asyncio.sleep(0)
        finally:
            if pumping is not None and not pumping.done():  # in the middle of a transaction
                pumping.cancel()
                await asyncio.gather(pumping, return_exceptions=True)

    async def _take(self, startup: bytes) -> _Server:
        if self._free:
            return self._free.pop()
        where = f"{self._url.query['host']}/.s.PGSQL.{self._url.port or 5432}"
        reader, writer = await asyncio.open_unix_connection(where)
        self._opened.append(writer)
        writer.write(startup)
        greeting = message = await _read_message(reader)
        while message[:1] != _READY:
            message = await _read_message(reader)
            greeting += message
        return _Server(reader, writer, greeting)

    async def _pump(self, server: _Server, writer: asyncio.StreamWriter) -> None:
        """Carry answers until the transaction is over; then the connection is free."""
        while True:
            message = await _read_message(server.reader)
            is_over = message[:1] == _READY and message[5:6] == _IDLE
            if is_over and not self._keeps:
                self._free.append(server)
            writer.write(message)
            if is_over:
                return


async def _read_startup(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack("!I", head)[0] - 4)


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)
