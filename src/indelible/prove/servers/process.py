"""The server process that is killed: the real server, with the tools of the proof inside.

It is forked from a process that has imported everything (multiprocessing's `forkserver`), because importing takes ten
times as long as everything else that a restart does. Otherwise it equals `indelible serve`: the same
application, event loop and signals. Its model is in another process, behind HTTP (provider.py).

A pipe connects it to its parent: it reports that it is ready, or why not, and then receives the points at which to
die (crash_points.py). It never outlives its parent: when the pipe breaks, it dies.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import msgspec

from indelible.errors import IndelibleError
from indelible.logs import set_up_logging
from indelible.prove.servers.crash_points import CrashPoint, CrashPoints, install
from indelible.prove.servers.tools import make_tools
from indelible.server.app import Server
from indelible.server.process import serve
from indelible.settings import ENV_PREFIX, load_settings

_PROXY_SUFFIX: Final = "_PROXY"


def _do_nothing() -> None:
    pass


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
