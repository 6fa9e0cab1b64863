"""One or two servers on one database: the process that is killed, and the group seen from outside.

A server is forked from a process that has imported everything (multiprocessing's `forkserver`), because importing takes
ten times as long as everything else that a restart does. Otherwise it equals `indelible serve`: the same application,
event loop and signals, with the tools of the proof. Its model is in another process, behind HTTP (provider.py). A pipe
connects it to its parent: it reports that it is ready, or why not, and then receives the points at which to die
(tools.py). It never outlives its parent: when the pipe breaks, it dies.

Each server has its own address that stays the same over all restarts, so a client that reconnects finds the current
process. The ports are below the ephemeral range of the system: otherwise a client that connects to a port without a
listener could connect to itself. SQLite has one server, PostgreSQL two, so that one takes over the chats of the other.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import msgspec
from msgspec.structs import replace

from indelible.errors import IndelibleError
from indelible.logs import set_up_logging
from indelible.prove.tools import CrashPoint, CrashPoints, install, make_tools
from indelible.server.app import Server
from indelible.server.process import serve
from indelible.settings import ENV_PREFIX, load_settings

_PROXY_SUFFIX: Final = "_PROXY"


def _do_nothing() -> None:
    """No lambda: orders are pickled."""


class Arming(msgspec.Struct, frozen=True):
    """Die when this point is passed for the `count`-th time."""

    point: CrashPoint
    count: int


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a server. `directory` is where its log and the notebook of its tools are.

    `prepare` is called in the new process before it serves. The tests break a promise there, to check that a proof
    notices (tests/prove/sabotage.py); the process is forked afresh, so it must be a function of a module.
    """

    database: str
    directory: Path
    port: int = 0
    settings: dict[str, Any] = {}
    arming: Arming | None = None
    prepare: Callable[[], None] = _do_nothing

    @property
    def notebook(self) -> Path:
        return self.directory / "notebook"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"


class Ready(msgspec.Struct, frozen=True):
    """The server accepts requests."""


class Armed(msgspec.Struct, frozen=True):
    """From now on the server dies at the point that it was told."""


class Unable(msgspec.Struct, frozen=True):
    """The server cannot start, for this reason."""

    reason: str


def run_server(orders: Orders, line: Connection) -> None:
    """Serve until a signal or the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, _leave)
    _isolate(orders.directory)
    set_up_logging(stream=orders.log.open("a"))
    crash_points = CrashPoints()
    install(crash_points)
    orders.prepare()
    if orders.arming is not None:
        crash_points.arm(orders.arming.point, orders.arming.count)
    threading.Thread(target=_follow, args=(line, crash_points), daemon=True).start()
    try:
        settings = load_settings(
            database=orders.database, host="127.0.0.1", port=orders.port, auto_titles=False, **orders.settings
        )
        server = Server(settings, tools=make_tools(orders.notebook, crash_points))
        serve(server, on_ready=lambda _url: line.send(Ready()))
    except (IndelibleError, ValueError) as error:
        line.send(Unable(str(error)))
        sys.exit(1)


def _isolate(directory: Path) -> None:
    """Use the given settings and the defaults only, and no proxy to the provider."""
    os.chdir(directory)
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX) or name.upper().endswith(_PROXY_SUFFIX):
            del os.environ[name]


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _follow(line: Connection, crash_points: CrashPoints) -> None:
    try:
        while True:
            arming: Arming = line.recv()
            crash_points.arm(arming.point, arming.count)
            line.send(Armed())
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGKILL)


_START_S: Final = 300.0
END_S: Final = 120.0
_PORTS: Final = range(15_000, 25_000)

_IMPORTED: Final = [
    "indelible.prove.servers",
    "indelible.models.catalog",
    "indelible.models.http.http_model",
    "indelible.models.profile",
    "asyncpg",
    "PIL.PngImagePlugin",
    "indelible.store.database.migrate",
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
