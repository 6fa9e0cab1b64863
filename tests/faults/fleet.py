"""Worker processes that are killed, paused and told to leave, and the questions one asks about them.

Each is a process of its own that opens the database as any program would, with `indelible.open`, and ends in good
order on SIGTERM. They are forked from a server that has imported everything (multiprocessing's `forkserver`): that
takes a second, and everything else a worker does before it is ready takes a tenth of one. None of them outlives its
test: the end of the fleet kills it, and so does an alarm of its own if the test itself was killed.

Replies may take long (`SLOWLY`), so that none of them comes to its end while a test is still busy with its workers, on
however slow a machine. `hurry` lets them end.

What a worker logs goes to a file. A worker may complain of a database that is away, but something that is an error of
its own fails the test that started it.

Everything is waited for with `wait_until`: a condition, looked at often. Its deadline only says when a test has failed:
no machine is so busy that it would be reached otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.faults.counting import HurriedModel, ask_to_count, make_tools

import indelible
from indelible.clock import SystemClock
from indelible.settings import load_settings
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import chats, workers
from indelible.store.queries.leases import retire

DEADLINE_S: Final = 100.0
SHORT_LEASES: Final[Mapping[str, Any]] = {"heartbeat_interval_s": 0.2, "lease_timeout_s": 1.5}
DEFAULT_LEASES: Final[Mapping[str, Any]] = {}
ENDLESS_LEASES: Final[Mapping[str, Any]] = {"lease_timeout_s": 3600}
"""Nobody is taken for dead: what goes on all the same was handed over."""

SLOWLY: Final = ask_to_count(400, pace_ms=50)
"""A wish whose reply takes twenty seconds, unless the test is in a hurry."""

_ROOT: Final = str(Path(__file__).parents[2])
_LIFETIME_S: Final = 300
_LOOK_EVERY_S: Final = 0.01
_LOG, _NOTEBOOK, _HURRY = "workers.log", "notebook", "hurry"
_IMPORTED: Final = ["indelible.app.app", "sqlalchemy.dialects.postgresql.asyncpg", "asyncpg", "aiosqlite", "pytest"]


async def wait_until(is_so: Callable[[], bool | Awaitable[bool]], *, what: str = "") -> None:
    """Wait for a condition. That it never comes true is told with its name."""
    ends_s = time.monotonic() + DEADLINE_S
    while True:
        answer = is_so()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < ends_s, f"waited in vain for: {what or is_so}"
        await SystemClock().sleep(_LOOK_EVERY_S)


# --- the process ---


def work(database: str, settings: Mapping[str, Any], directory: Path, told: Connection) -> None:
    """What a worker process does: answer chats until SIGTERM."""
    signal.alarm(_LIFETIME_S)
    logging.basicConfig(filename=directory / _LOG, force=True, format="%(levelname)s %(name)s %(message)s")
    asyncio.run(_work(database, settings, directory, told))


async def _work(database: str, settings: Mapping[str, Any], directory: Path, told: Connection) -> None:
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    model, tools = HurriedModel(directory / _HURRY), make_tools(directory / _NOTEBOOK)
    try:
        async with indelible.open(database, model=model, tools=tools, settings=load_settings(**settings)):
            told.send("ready")
            await leave.wait()
    except indelible.IndelibleError as error:
        told.send(str(error))


# --- the test's side ---


class WorkerProcess:
    """One process. `id` is the name under which its worker holds chats."""

    def __init__(self, process: ForkServerProcess, worker_id: str) -> None:
        assert process.pid is not None
        self.id = worker_id
        self.pid = process.pid
        self._process = process

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        """`kill -9`; returns when it is dead."""
        self.send(signal.SIGKILL)
        await self.wait()

    async def leave(self) -> None:
        """As a deploy does it. Fails if it does not end in good order."""
        self.send(signal.SIGTERM)
        assert await self.wait() == 0

    async def wait(self) -> int | None:
        await asyncio.to_thread(self._process.join, DEADLINE_S)
        return self._process.exitcode

    def is_alive(self) -> bool:
        return self._process.is_alive()


class Fleet:
    """All workers of one test on one database. `engine` is the test's own look at that database."""

    def __init__(self, database: str, engine: AsyncEngine, directory: Path) -> None:
        self.database = database
        self.engine = engine
        self.notebook = directory / _NOTEBOOK
        self.processes: list[WorkerProcess] = []
        self._directory = directory
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_IMPORTED)
        if _ROOT not in sys.path:  # a process gets ours, and finds this file by its name
            sys.path.append(_ROOT)

    async def start(self, **settings: Any) -> WorkerProcess:
        """Start a worker; returns when it takes chats. Start one at a time."""
        before = await self.list_worker_ids()
        process, answer = await self.try_to_start(**settings)
        assert answer == "ready", answer
        [worker_id] = await self.list_worker_ids() - before
        started = WorkerProcess(process, worker_id)
        self.processes.append(started)
        return started

    async def try_to_start(self, **settings: Any) -> tuple[ForkServerProcess, str]:
        """Start a worker, and give what it said: that it is ready, or why not."""
        told, telling = self._context.Pipe(duplex=False)
        process = self._context.Process(target=work, args=(self.database, settings, self._directory, telling))
        process.start()
        telling.close()
        assert await asyncio.to_thread(told.poll, DEADLINE_S), "the worker says nothing"
        answer = told.recv()
        told.close()
        return process, answer

    async def list_worker_ids(self) -> set[str]:
        async with begin_read(self.engine) as connection:
            return set((await connection.execute(select(workers.c.id))).scalars())

    async def bury(self, worker: WorkerProcess) -> None:
        """Say that it is dead, so that nobody has to find out."""
        await retire(self.engine, worker.id)

    async def find_holders(self) -> dict[str, str | None]:
        """Who holds each chat now."""
        async with begin_read(self.engine) as connection:
            rows = await connection.execute(select(chats.c.id, chats.c.holder))
            return {row.id: row.holder for row in rows}

    def hurry(self) -> None:
        """Let all replies come to their end."""
        (self._directory / _HURRY).touch()

    def read_log(self) -> str:
        log = self._directory / _LOG
        return log.read_text() if log.exists() else ""

    def read_errors(self) -> list[str]:
        """What the workers logged that should not have happened to them."""
        return [line for line in self.read_log().splitlines() if line.startswith(("ERROR", "CRITICAL", "Traceback"))]

    def end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.send(signal.SIGKILL)


@asynccontextmanager
async def open_fleet(database: str, engine: AsyncEngine, directory: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(database, engine, directory)
    try:
        yield fleet
    finally:
        fleet.end()
        for process in fleet.processes:
            await process.wait()
        print(fleet.read_log())  # noqa: T201  (pytest shows it with a test that failed)
    assert fleet.read_errors() == []
