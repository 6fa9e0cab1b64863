"""`ProcessHarness`: real server and worker processes on one database, started, signalled, killed and started again.

Each is a process of its own: a worker opens the database as any program would, with `indelible.open`, and a server is
all of `indelible serve`. Both end in good order on SIGTERM. They are forked from a process that has imported everything
(commands.py): that takes a second, and all else that they do before they are ready takes a tenth of one. None of them
outlives its test: the end of the harness kills it, and so does an alarm of its own if the test itself was killed.

Their models count (counting_model.py), so every reply is known in advance. Replies take long (`SLOWLY`), so that none
ends while a test is still busy with its processes, on however slow a machine. `finish_replies` lets them end.

What they log goes to one file. A process may complain of a database that is away, but an error of its own fails the
test that started it.

A server that is to come back at the same port gets one of `choose_port`. One that the kernel hands out (port 0) may be
handed out again while nobody listens there: to a server of another test, or to anybody's connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select
from tests.support.commands import start_fork_server
from tests.support.counting_model import HurriedModel, PatientModel, ask_to_count, make_tools
from tests.support.engine import begin_read, close_databases, open_engine, transact
from tests.support.tables import chats, workers
from tests.support.waiting import DEADLINE_S

import indelible
from indelible.server.app import Server
from indelible.server.process import serve
from indelible.settings import load_settings
from indelible.store.queries.leases import retire

SHORT_LEASES: Final[Mapping[str, Any]] = {"heartbeat_interval_s": 0.2, "lease_timeout_s": 1.5}
DEFAULT_LEASES: Final[Mapping[str, Any]] = {}
ENDLESS_LEASES: Final[Mapping[str, Any]] = {"lease_timeout_s": 3600}
"""No worker is taken for dead: a chat that another worker continues all the same was handed over."""

SLOWLY: Final = ask_to_count(400, pace_ms=50)
"""A message whose reply takes twenty seconds, or until `finish_replies`."""

_ROOT: Final = str(Path(__file__).parents[2])
_LIFETIME_S: Final = 300
_LOG, _NOTEBOOK, _FINISH = "processes.log", "notebook", "finish"
_QUIET_PORTS: Final = range(20_000, 30_000)


# --- in the process ---


def run_worker(settings: Mapping[str, Any], directory: Path, line: Connection) -> None:
    """Answer chats until SIGTERM."""
    _set_up(directory)
    asyncio.run(_work(settings, directory, line))


async def _work(settings: Mapping[str, Any], directory: Path, line: Connection) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    model, tools = HurriedModel(directory / _FINISH), make_tools(directory / _NOTEBOOK)
    try:
        async with indelible.open(model=model, tools=tools, settings=load_settings(**settings)):
            line.send("ready")
            await stopped.wait()
    except indelible.IndelibleError as error:
        line.send(str(error))


def run_server(settings: Mapping[str, Any], directory: Path, line: Connection) -> None:
    """Serve until SIGTERM, and send the URL when it is ready."""
    _set_up(directory)
    model = PatientModel(directory / _FINISH)
    server = Server(load_settings(**{"model": model.name, **settings}), models={model.name: model})
    try:
        serve(server, on_ready=line.send)
    except indelible.IndelibleError as error:
        line.send(str(error))


def _set_up(directory: Path) -> None:
    signal.alarm(_LIFETIME_S)
    logging.basicConfig(filename=directory / _LOG, force=True, format="%(levelname)s %(name)s %(message)s")


# --- in the test ---


def choose_port() -> int:
    """One that nobody has, below those that the kernel hands out."""
    for port in random.sample(_QUIET_PORTS, len(_QUIET_PORTS)):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port is taken")


class RunningProcess:
    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """`kill -9`; returns when it is dead."""
        self.send_signal(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> None:
        """As a deploy does it. Fails if it does not end in good order."""
        self.send_signal(signal.SIGTERM)
        assert await self.wait() == 0

    async def wait(self) -> int:
        """Its exit status, when it has ended."""
        await asyncio.to_thread(self._process.join, DEADLINE_S)
        assert self._process.exitcode is not None, f"process {self.pid} does not end"
        return self._process.exitcode

    def is_alive(self) -> bool:
        return self._process.is_alive()


class WorkerProcess(RunningProcess):
    """`id` is the name under which its worker holds chats."""

    def __init__(self, process: ForkServerProcess, worker_id: str) -> None:
        super().__init__(process)
        self.id = worker_id


class ServerProcess(RunningProcess):
    def __init__(self, process: ForkServerProcess, url: str) -> None:
        super().__init__(process)
        self.url = url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


class ProcessHarness:
    """All processes of one test on one database. `engine` is the test's own look at that database."""

    def __init__(self, database: str, directory: Path) -> None:
        self.database = database
        self.notebook = directory / _NOTEBOOK
        self.workers: list[WorkerProcess] = []
        self._directory = directory
        self._processes: list[RunningProcess] = []

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ProcessHarness]:
        self.engine = await open_engine(self.database)
        try:
            yield self
        finally:
            for running in self._processes:
                if running.is_alive():
                    running.send_signal(signal.SIGKILL)
            for running in self._processes:
                await running.wait()
            await close_databases()
            await self.engine.dispose()
            print(self.read_log())  # noqa: T201  (pytest shows it with a test that failed)
        assert self.read_errors() == []

    # --- processes ---

    async def start_worker(self, **settings: Any) -> WorkerProcess:
        """Start a worker; returns when it is ready. Start one at a time."""
        before = await self.list_worker_ids()
        process, answer = await self.try_to_start_worker(**settings)
        assert answer == "ready", answer
        [worker_id] = await self.list_worker_ids() - before
        started = WorkerProcess(process, worker_id)
        self.workers.append(started)
        self._processes.append(started)
        return started

    async def try_to_start_worker(self, **settings: Any) -> tuple[ForkServerProcess, str]:
        """Start a worker; returns its process, and `ready` or why it did not start."""
        return await self._start(run_worker, settings)

    async def start_server(self, *, port: int = 0, **settings: Any) -> ServerProcess:
        """Start a server; returns when it is ready."""
        process, answer = await self._start(run_server, {"port": port, **settings})
        assert answer.startswith("http://"), answer
        started = ServerProcess(process, answer)
        self._processes.append(started)
        return started

    async def _start(
        self, run: Callable[[Mapping[str, Any], Path, Connection], None], settings: Mapping[str, Any]
    ) -> tuple[ForkServerProcess, str]:
        if _ROOT not in sys.path:  # a process gets ours, and finds this file by its name
            sys.path.append(_ROOT)
        start_fork_server()
        context = multiprocessing.get_context("forkserver")
        line, theirs = context.Pipe(duplex=False)
        given = {"database": self.database, **settings}
        process: ForkServerProcess = context.Process(target=run, args=(given, self._directory, theirs))
        process.start()
        theirs.close()
        with line:
            assert await asyncio.to_thread(line.poll, DEADLINE_S), "the process says nothing"
            answer: str = line.recv()
        return process, answer

    def finish_replies(self) -> None:
        """Let all replies come to their end, without pauses."""
        (self._directory / _FINISH).touch()

    def read_log(self) -> str:
        log = self._directory / _LOG
        return log.read_text() if log.exists() else ""

    def read_errors(self) -> list[str]:
        """What was logged that should not have happened."""
        return [line for line in self.read_log().splitlines() if line.startswith(("ERROR", "CRITICAL", "Traceback"))]

    # --- workers and leases ---

    async def list_worker_ids(self) -> set[str]:
        async with begin_read(self.engine) as connection:
            return set((await connection.execute(select(workers.c.id))).scalars())

    async def retire_worker(self, worker: WorkerProcess) -> None:
        """Remove its row: from now on everybody knows that it is dead."""
        await transact(self.engine, retire, worker.id)

    async def find_holders(self) -> dict[str, str | None]:
        """Which worker holds each chat now."""
        async with begin_read(self.engine) as connection:
            rows = await connection.execute(select(chats.c.id, chats.c.holder))
            return {row.id: row.holder for row in rows}
