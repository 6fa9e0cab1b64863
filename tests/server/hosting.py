"""Server processes that are killed, told to leave and started again, each a whole `serve` with the counting model.

The model takes its time while the test is busy with its servers, so that replies are running whenever something happens
to them, and is quick when the test says `hurry`: no reply has ended before that, however slow the machine is.

A server that is to come back at the same port gets one of `choose_port`. One that the kernel hands out (port 0) may be
handed out again while nobody listens there: to a server of another test, or to anybody's connection.

They are forked from a process that has imported everything, as the workers of tests/faults are, and like those none of
them outlives its test. What they log that is an error of their own fails the test that started them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import random
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.faults.counting import CountingModel
from tests.faults.fleet import DEADLINE_S, WorkerProcess

from indelible.clock import SystemClock
from indelible.content import Part, TextEnd
from indelible.errors import IndelibleError
from indelible.models.protocol import Call
from indelible.server.app import Server
from indelible.server.process import serve
from indelible.settings import load_settings

_LIFETIME_S = 300
_PATIENT_PACE_S = 0.2
_QUIET_PORTS = range(20_000, 30_000)
_LOG, _HURRY = "servers.log", "hurry"
_IMPORTED = ["indelible.server.process", "sqlalchemy.dialects.postgresql.asyncpg", "asyncpg", "aiosqlite", "pytest"]


class PatientModel(CountingModel):
    """Counts slowly until there is a file, and has not ended before there is one."""

    def __init__(self, hurry: Path) -> None:
        self._hurry = hurry

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        async for part in super().stream(call):
            if not self._hurry.exists():
                await SystemClock().sleep(_PATIENT_PACE_S)
            while isinstance(part, TextEnd) and not self._hurry.exists():
                await SystemClock().sleep(_PATIENT_PACE_S)
            yield part


def host(settings: Mapping[str, Any], directory: Path, told: Connection) -> None:
    """What a server process does: serve until SIGTERM, and tell its URL when it is ready."""
    signal.alarm(_LIFETIME_S)
    logging.basicConfig(filename=directory / _LOG, force=True, format="%(levelname)s %(name)s %(message)s")
    server = Server(load_settings(**settings), models={"counting": PatientModel(directory / _HURRY)})
    try:
        serve(server, on_ready=told.send)
    except IndelibleError as error:
        told.send(str(error))


def choose_port() -> int:
    """One that nobody has, below those that the kernel hands out."""
    for port in random.sample(_QUIET_PORTS, len(_QUIET_PORTS)):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port is taken")


class HostedServer(WorkerProcess):
    """One process. `id` is its URL."""

    @property
    def url(self) -> str:
        return self.id

    @property
    def port(self) -> int:
        return int(self.id.rpartition(":")[2])


class Hosts:
    """All servers of one test on one database."""

    def __init__(self, database: str, directory: Path) -> None:
        self._database = database
        self._directory = directory
        self._servers: list[HostedServer] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_IMPORTED)

    async def start(self, *, port: int = 0, **settings: Any) -> HostedServer:
        """Start a server; returns when it is ready."""
        given = {"model": "counting", "database": self._database, "port": port, **settings}
        told, telling = self._context.Pipe(duplex=False)
        process: ForkServerProcess = self._context.Process(target=host, args=(given, self._directory, telling))
        process.start()
        telling.close()
        assert await asyncio.to_thread(told.poll, DEADLINE_S), "the server says nothing"
        answer = told.recv()
        told.close()
        assert answer.startswith("http://"), answer
        server = HostedServer(process, answer)
        self._servers.append(server)
        return server

    async def end(self) -> None:
        for server in self._servers:
            if server.is_alive():
                server.send(signal.SIGKILL)
            await server.wait()

    def hurry(self) -> None:
        """Let all replies come to their end."""
        (self._directory / _HURRY).touch()

    def read_errors(self) -> list[str]:
        path = self._directory / _LOG
        log = path.read_text() if path.exists() else ""
        return [line for line in log.splitlines() if line.startswith(("ERROR", "CRITICAL", "Traceback"))]


@asynccontextmanager
async def open_hosts(database: str, directory: Path) -> AsyncIterator[Hosts]:
    hosts = Hosts(database, directory)
    try:
        yield hosts
    finally:
        await hosts.end()
    assert hosts.read_errors() == []
