"""One or two servers on one database, seen from outside: started, killed, paused, started again.

Each has its own address that stays the same over all restarts, so a client that reconnects finds the current process.
The ports are below the ephemeral range of the system: otherwise a client that connects to a port without a listener
could connect to itself.

SQLite has one server, PostgreSQL two, so that one takes over the chats of the other.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Final

from msgspec.structs import replace

from indelible.errors import IndelibleError
from indelible.prove.servers.crash_points import CrashPoint
from indelible.prove.servers.process import Arming, Orders, Ready, Unable, run_server

_START_S: Final = 300.0
END_S: Final = 120.0
_PORTS: Final = range(15_000, 25_000)
_IMPORTED: Final = [
    "indelible.prove.servers.process",
    "indelible.models.catalog",
    "indelible.models.http.http_model",
    "indelible.models.profile",
    "asyncpg",
    "PIL.PngImagePlugin",
    "indelible.store.database.migrations.runner",
]


class ServerNotStarted(IndelibleError):
    """The server does not start, so there is nothing to prove."""


class ServerProcess:
    """One life of a server."""

    def __init__(self, orders: Orders) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        self._line, theirs = context.Pipe()
        self._process: ForkServerProcess = context.Process(target=run_server, args=(orders, theirs))
        self._process.start()
        theirs.close()

    async def wait_until_ready(self) -> bool:
        """Whether it accepts requests now. It may also have died while starting."""
        answer = await asyncio.to_thread(self._receive, self._line)
        if isinstance(answer, Unable):
            raise ServerNotStarted(f"The server did not start: {answer.reason}")
        return isinstance(answer, Ready)

    def _receive(self, line: Connection) -> object:
        try:
            return line.recv() if line.poll(_START_S) else Unable("it says nothing.")
        except (EOFError, OSError):
            return None

    async def arm(self, point: CrashPoint, count: int) -> None:
        """From its return on, the process dies when this point is passed for the `count`-th time."""
        self._line.send(Arming(point, count))
        await asyncio.to_thread(self._receive, self._line)

    def send(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    async def wait_for_end(self, *, within_s: float = END_S) -> int | None:
        """Its exit status, or minus the number of its signal. None if it is still running."""
        await asyncio.to_thread(self._process.join, within_s)
        return self._process.exitcode

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self.wait_for_end()
        self._line.close()


class ServerUnderTest:
    """An address, and its current process."""

    def __init__(self, orders: Orders) -> None:
        self.url = f"http://127.0.0.1:{orders.port}"
        self._orders = orders
        self._process: ServerProcess | None = None

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None
        return self._process

    async def start(self) -> None:
        self._process = ServerProcess(self._orders)
        if not await self._process.wait_until_ready():
            raise ServerNotStarted(f"The server exited while starting. {self._read_log_tail()}".rstrip())

    def _read_log_tail(self) -> str:
        log = self._orders.log
        return "".join(log.read_text().splitlines()[-1:]) if log.exists() else ""

    async def start_doomed(self, point: CrashPoint, count: int, *, within_s: float) -> bool:
        """Start it so that it dies at this point. Returns whether it did; it is dead either way."""
        self._process = ServerProcess(replace(self._orders, arming=Arming(point, count)))
        code = await self._process.wait_for_end(within_s=within_s)
        await self._process.kill()
        return code is not None

    async def end(self) -> None:
        if self._process is not None:
            await self._process.kill()


@asynccontextmanager
async def run_servers(orders: Orders, *, count: int) -> AsyncIterator[list[ServerUnderTest]]:
    servers = [ServerUnderTest(replace(orders, port=port)) for port in find_free_ports(count)]
    try:
        for server in servers:
            await server.start()
        yield servers
    finally:
        for server in servers:
            await server.end()


def find_free_ports(count: int) -> list[int]:
    chosen: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise ServerNotStarted("There is no free port on this machine.")
