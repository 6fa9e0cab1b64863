"""`RedisServer`: a real Redis of a test's own, which it may kill, freeze and start again at the same port.

It is Debian's `redis-server`, which `.ci/run` installs; that it is missing is a failure and never a skip. It keeps
nothing on disk: nothing that Indelible sends through it is kept anywhere.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.support.process_harness import choose_port
from tests.support.waiting import deadline, poll_until

_OPTIONS: Final = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning")


class RedisServer:
    """See the module header. `options` are those of `redis-server`."""

    def __init__(self, *options: str, tls_options: tuple[str, ...] = ()) -> None:
        self.port = choose_port()
        ports = ("--port", "0", "--tls-port", str(self.port)) if tls_options else ("--port", str(self.port))
        self._options = (*_OPTIONS, *ports, *tls_options, *options)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RedisServer]:
        await self.start()
        try:
            yield self
        finally:
            await self.kill()

    async def start(self) -> None:
        command = shutil.which("redis-server")
        assert command is not None, "install Debian's redis-server, as .ci/run does"
        process = await asyncio.create_subprocess_exec(command, *self._options, stdout=asyncio.subprocess.DEVNULL)
        self._process = process
        await poll_until(lambda: process.returncode is not None or self._listens(), what="a Redis server")
        assert process.returncode is None, f"redis-server ended with status {process.returncode}"

    async def kill(self) -> None:
        """`kill -9`; returns when it is dead."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            async with deadline("the end of redis-server"):
                await process.wait()

    def freeze(self) -> None:
        """It holds its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0
