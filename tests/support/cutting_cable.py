"""`CuttingCable`: carries connections to PostgreSQL, and cuts each new one after so many bytes of the server's answers.

A connection is set up in a dozen messages, and the server may go away between any two of them, or within one. `cut`
ends every connection there is, and `cut_after` says how far new ones come; None lets them through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import make_url
from tests.support.waiting import deadline


class CuttingCable:
    """`is_rude`: what is cut is reset, and not closed. `longest` is how much the server has answered on one of them."""

    def __init__(self, server: str) -> None:
        self._url = make_url(server)
        self.cut_after: int | None = None
        self.is_rude = False
        self.cuts = 0
        self.longest = 0
        self._carrying: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def plugged_in(self) -> AsyncIterator[str]:
        serving = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        host, port = serving.sockets[0].getsockname()
        try:
            yield self._url.set(host=host, port=port, query={}).render_as_string(hide_password=False)
        finally:
            serving.close()
            self.cut_after = 0  # whoever comes while it closes is sent away
            for _ in range(3):
                await asyncio.sleep(0)
                await self.cut()

    async def cut(self) -> None:
        """End every connection there is."""
        carrying = list(self._carrying)
        for task in carrying:
            task.cancel()
        async with deadline("the end of the connections that were cut"):
            await asyncio.gather(*carrying, return_exceptions=True)

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            await self._join(client, to_client)
        except asyncio.CancelledError:
            pass
        finally:
            self._carrying.discard(task)
            if self.is_rude:
                to_client.transport.abort()
            to_client.close()

    async def _join(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.cut_after == 0:
            self.cuts += 1
            return
        where = f"{self._url.query['host']}/.s.PGSQL.{self._url.port or 5432}"
        server, to_server = await asyncio.open_unix_connection(where)
        ways = [
            asyncio.create_task(self._carry_answers(server, to_client)),
            asyncio.create_task(_carry_requests(client, to_server)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            to_server.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry_answers(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        carried, cut_after = 0, self.cut_after
        while data := await server.read(1 << 16):
            if cut_after is not None and carried + len(data) >= cut_after:
                to_client.write(data[: cut_after - carried])
                self.cuts += 1
                return
            carried += len(data)
            self.longest = max(self.longest, carried)
            to_client.write(data)
            await to_client.drain()


async def _carry_requests(client: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await client.read(1 << 16):
            to_server.write(data)
            await to_server.drain()
