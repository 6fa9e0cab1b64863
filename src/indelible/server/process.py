"""The server and the worker as processes: listening, reporting readiness, and a graceful shutdown.

On SIGTERM or SIGINT the server stops listening and fails its readiness check, sends every reader `end` so that they
reconnect elsewhere, lets running requests finish, and hands off its chats (worker). Listening ends first: a reader must
not reconnect to the same process. A second SIGINT exits at once.

Clients of the compatible APIs have no cursor to reconnect with. Their replies, and those in the response of a native
command, are streamed on for `drain_s`, the time in which the worker lets its replies finish; the server's own
`GRACE_S` begins after that. What has not ended by then is cut so that the client notices (sse.py).

Foreign code may refuse to stop: a tool that swallows its cancellation is abandoned after its grace time, but asyncio
would wait for it at the end of the loop. So a process whose work is done exits without waiting for abandoned tasks, and
one whose work is not done `HARD_LIMIT_S` after the signal (and after the drain) exits too (tests/faults, S98).

The kernel disconnects a peer that reads nothing (TCP_USER_TIMEOUT, where it exists): closing a socket waits until what
was written to it is acknowledged, and such a peer would block it forever.

connections.py limits what a connection may cost before its request is complete.

Must stay true (tests/server/test_shutdown.py): a process that gets SIGTERM exits with status 0, whatever is connected
to it; an application that has failed does not keep listening.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

import uvicorn

from indelible.app.compose import open_app
from indelible.concurrency.tasks import closed_in_children, count_abandoned
from indelible.errors import IndelibleError
from indelible.loopback import is_loopback
from indelible.server.app import Server
from indelible.server.authentication import has_login
from indelible.server.connections import ConnectionLimits, Connections
from indelible.settings import Settings
from indelible.store.database.sqlite_file import announce_server
from indelible.tools.toolset import AnyTool

GRACE_S: Final = 5
HARD_LIMIT_S: Final = 30.0
_ALLOCATIONS_BEFORE_SEARCH: Final = 20_000
_TICKS_PER_S: Final = 10  # of uvicorn
_log: Final = logging.getLogger(__name__)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class NeedsToken(IndelibleError):
    """The address is reachable from other machines, and there is no way to log in."""


class CannotListen(IndelibleError):
    """The port is in use, or the address is not this machine's."""

    def __init__(self, host: str, port: int, error: OSError | UnicodeError) -> None:
        if isinstance(error, UnicodeError):
            why = "this is not a host name. Choose another --host"
        elif error.errno == errno.EADDRINUSE:
            why = "the address is already in use. Choose another --port, or 0"
        elif error.errno == errno.EACCES:
            why = "permission denied. Choose a --port above 1023"
        else:
            why = f"{error.strerror or error}. Choose another --host"
        super().__init__(f"Can't listen on {host}:{port}: {why}.")


class Process(uvicorn.Server):
    """Serves an application until `shut_down`. Calls `on_ready` with the URL."""

    def __init__(self, server: Server, *, on_ready: Callable[[str], None]) -> None:
        self._connections = Connections(ConnectionLimits.read(server.settings))
        config = uvicorn.Config(
            server.application,
            http=self._connections.make_protocol(),
            ws="none",
            log_config=None,  # logs.py prints them
            access_log=server.settings.access_log,
            lifespan="on",
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
            proxy_headers=False,  # authentication.py reads them, from trusted proxies alone
            headers=[("X-Content-Type-Options", "nosniff")],
        )
        super().__init__(config)
        self._server = server
        self._on_ready = on_ready

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen where the settings say, and serve. Raises what kept it from starting, or ended it."""
        settings = self._server.settings
        listener = _bind(settings.host, settings.port, stuck_after_s=self._server.pace.stuck_after_s)
        with closing(listener), closed_in_children(listener.fileno()):
            if not has_login(settings) and not is_loopback(settings.host):  # it is bound, and does not listen yet
                raise NeedsToken(
                    f"{settings.host} is reachable from other machines. Set INDELIBLE_TOKEN first, "
                    "or serve on 127.0.0.1."
                )
            try:
                await super().serve([*(sockets or ()), listener])
            except SystemExit:  # how uvicorn reports that the application did not start
                if self._server.failure is None:
                    raise
        if self._server.failure is not None:
            raise self._server.failure

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            _calm_the_collector()
            url = write_url(*sockets[-1].getsockname()[:2])
            if not self._server.only_health:
                await asyncio.to_thread(announce_server, self._server.settings.database, find_on_this_machine(url))
            self._on_ready(url)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_S == 0:
            self._connections.close_late()
        return await super().on_tick(counter) or self._server.failure is not None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the event loop, and do not raise them again at the end."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._receive_signal, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def shut_down(self) -> None:
        """End gracefully."""
        for listening in self.servers:
            listening.close()
        self._server.begin_shutdown()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.shut_down()  # again, or now: the signal may have come before the start was over
        for connection in list(self.server_state.connections):
            connection.shutdown()  # idle ones now, busy ones after their response
        await self._drain()
        self._server.end_streams()
        await super().shutdown(sockets)

    async def _drain(self) -> None:
        """Until every reply that has to be streamed from here has ended, or `drain_s` is over.

        A request that has begun may still start one, so for `GRACE_S` every request counts.
        """
        now = asyncio.get_running_loop().time
        began_s = now()
        while self.server_state.tasks and now() - began_s < self._server.settings.drain_s:
            is_over = self._server.is_left and now() - began_s >= GRACE_S
            if is_over or self.force_exit or self._server.failure is not None:
                return
            await asyncio.sleep(1 / _TICKS_PER_S)

    def _receive_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGINT and self.should_exit:
            self.force_exit = True
        elif self.started:
            self.shut_down()
        else:
            self.should_exit = True


def serve(server: Server, *, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal ends it. Calls `on_ready` with the URL. Raises what kept it from starting."""
    _ExitingProcess(server, on_ready=on_ready).run()


class _ExitingProcess(Process):
    """A process of its own: it ends, whatever foreign code does."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets)
        _leave_abandoned()

    def _receive_signal(self, number: signal.Signals) -> None:
        _limit_shutdown(self._server.settings)
        super()._receive_signal(number)


def _limit_shutdown(settings: Settings) -> None:
    """Exit after the drain time and `HARD_LIMIT_S`, even if work is left."""

    def leave() -> None:
        _log.error("the process did not end in time and exits now")
        _exit(1)

    timer = threading.Timer(settings.drain_s + HARD_LIMIT_S, leave)
    timer.daemon = True
    timer.start()


def _leave_abandoned() -> None:
    """At the end of all work: exit at once if tasks are left that ignore their cancellation."""
    if count := count_abandoned():
        _log.warning("%d abandoned tasks are left running, and the process exits", count)
        _exit(0)


def _exit(status: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _calm_the_collector() -> None:
    """Search for reference cycles less often, and never among what is loaded by now.

    Each full search walks over everything that the imported libraries hold. Measured with the default thresholds: a
    tenth of the time of a short turn.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BEFORE_SEARCH, 20, 20)


async def run_worker(
    settings: Settings, *, tools: Sequence[AnyTool], on_ready: Callable[[], None], client_tools: Sequence[AnyTool] = ()
) -> None:
    """A worker as a process: it runs until a signal, and then hands off its chats."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if not stopped.is_set():
            _limit_shutdown(settings)
        stopped.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    async with open_app(settings=settings, tools=tools, client_tools=client_tools, listed_models_only=True):
        on_ready()
        await stopped.wait()
    _leave_abandoned()


def _bind(host: str, port: int, *, stuck_after_s: float) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that cannot be one, such as `a..b`
        raise CannotListen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # every connection inherits it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stuck_after_s * 1000))
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise CannotListen(host, port, error) from error
    return listener


def write_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_on_this_machine(url: str) -> str:
    """The URL for programs on this machine: a server on every address is also on loopback."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
