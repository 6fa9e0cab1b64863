"""A Redis of our own, killed and started again: `redis-server`, which must be on the machine.

It keeps nothing on disk, because nothing that Indelible sends through it is kept anywhere. Its port stays the same over
all restarts, so servers that reconnect find it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from indelible.prove.servers import ServerNotStarted, find_free_ports

_COMMAND: Final = "redis-server"
_OPTIONS: Final = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning")
_POLL_S: Final = 0.01


class RedisServer:
    """See the module header. `options` are those of `redis-server`; with `has_tls` they name its certificate."""

    def __init__(self, *options: str, has_tls: bool = False) -> None:
        [self.port] = find_free_ports(1)
        ports = ("--port", "0", "--tls-port", str(self.port)) if has_tls else ("--port", str(self.port))
        self._options = (*_OPTIONS, *ports, *options)
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RedisServer]:
        await self.start()
        try:
            yield self
        finally:
            await self.kill()

    async def start(self) -> None:
        command = shutil.which(_COMMAND)
        if command is None:
            raise ServerNotStarted(f"{_COMMAND} is not installed (Debian: apt install redis-server).")
        process = self._process = await asyncio.create_subprocess_exec(command, *self._options, stdout=DEVNULL)
        while not self._listens():
            if process.returncode is not None:
                raise ServerNotStarted(f"{_COMMAND} exited with {process.returncode} while starting.")
            await asyncio.sleep(_POLL_S)

    async def kill(self) -> None:
        """`kill -9`; returns when it is dead."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0
