"""The `indelible` command as a process of its own, forked from one that has imported everything.

A command that is started anew spends a second on imports, and the tests start it a hundred times. So it is forked from
a server that has done that (multiprocessing's `forkserver`), the same one that servers and workers are forked from
(process_harness.py, tests/prove). It is a real process all the same, with arguments, a directory, an
environment, standard streams and an exit status of its own, and on a terminal it has that to itself, as after a login.

What only a new interpreter shows is tried with `python -m indelible` (`start_indelible`): signals, a pipe whose reader
leaves, and what is imported when.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from tests.support.waiting import DEADLINE_S

INDELIBLE: Final = [sys.executable, "-m", "indelible"]
_READY: Final = re.compile(r"Indelible is ready at (http://\S+)\n")
_STREAMS = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY}
_IMPORTED = [
    "tests.support.process_harness",
    "indelible.cli.main",
    "indelible.server.process",
    "indelible.prove.servers.process",
    "indelible.terminal.chat",
    "indelible.models.catalog",
    "indelible.models.http.http_model",
    "indelible.models.profile",
    "indelible.store.database.migrate",
    "indelible.store.database.migrations.runner",
    "asyncpg",
    "tests.support.forked",
]


class CommandProcess:
    """`indelible …` in a new interpreter, started as a user would. Its methods block: an async test uses a thread.

    Its standard output is read without a buffer of Python's: what that holds back, `communicate` never sees.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._printed = bytearray()
        self._lines_read = 0

    def read_line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        while self._printed.count(b"\n") == self._lines_read:
            ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
            assert ready, "the command prints nothing"
            piece = os.read(self._process.stdout.fileno(), 65536)
            assert piece, ("the command has closed its output", self.wait())
            self._printed += piece
        self._lines_read += 1
        return self._printed.decode().splitlines(keepends=True)[self._lines_read - 1]

    def read_url(self) -> str:
        """Of a server, when it is ready."""
        line = self.read_line()
        found = _READY.fullmatch(line)
        assert found, (line, self.wait())
        return found[1]

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str, str]:
        """Its exit status and all that it printed on standard output and standard error, when it has ended."""
        out, err = self._process.communicate(timeout=DEADLINE_S)
        self._printed += out
        return self._process.returncode, self._printed.decode(), err.decode()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self.wait()


def start_indelible(
    *arguments: str, directory: Path | None = None, **variables: str
) -> AbstractContextManager[CommandProcess]:
    """Killed at the end of the block, if it still runs."""
    return _start([*INDELIBLE, *arguments], directory, variables)


def start_limited(limit: str, *arguments: str, **variables: str) -> AbstractContextManager[CommandProcess]:
    """The same with a limit of the shell's `ulimit`: "-n 250" files and sockets."""
    return _start(["sh", "-c", f'ulimit {limit}; exec "$0" "$@"', *INDELIBLE, *arguments], None, variables)


@contextmanager
def _start(
    command_line: Sequence[str], directory: Path | None, variables: Mapping[str, str]
) -> Iterator[CommandProcess]:
    process = subprocess.Popen(
        command_line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=directory,
        env={**os.environ, **variables},
    )
    command = CommandProcess(process)
    with process:
        try:
            yield command
        finally:
            command.kill()


def start_fork_server() -> None:
    """Before the first test that forks: whoever is first decides for all what was imported, and what surrounds it."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(_IMPORTED)
    forkserver.ensure_running()


def run_indelible(
    *arguments: str, typed: str = "", directory: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `typed` is what it reads, and `variables` are added to the environment of the test."""
    with tempfile.TemporaryDirectory() as place:
        streams = {name: Path(place) / name for name in _STREAMS}
        streams["stdin"].write_text(typed)
        process = _fork(arguments, directory or Path.cwd(), {**os.environ, **variables}, streams)
        process.join(DEADLINE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), DEADLINE_S)
        said = [streams[name].read_text() if streams[name].exists() else "" for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(["indelible", *arguments], process.exitcode, *said)


def fork_indelible(*arguments: str, terminal: str, environment: Mapping[str, str]) -> ForkServerProcess:
    """Start a command on the terminal of this name. It has opened it when this returns."""
    return _fork(arguments, Path.cwd(), environment, dict.fromkeys(_STREAMS, Path(terminal)))


def _fork(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], streams: Mapping[str, Path]
) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    line, theirs = context.Pipe()
    process = context.Process(target=_run, args=(arguments, directory, dict(environment), streams, theirs))
    process.start()
    theirs.close()
    with line:
        line.recv()
    return process


def _run(
    arguments: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    streams: Mapping[str, Path],
    line: Connection,
) -> None:
    """In the new process: become the command. The first terminal that the head of a session opens is its own."""
    os.setsid()
    for number, (name, flags) in enumerate(_STREAMS.items()):
        os.dup2(os.open(streams[name], flags | os.O_CREAT, 0o600), number)
    line.send("open")
    line.close()
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False, encoding="utf-8")  # noqa: SIM115  (a descriptor, until the end)
        for number, mode in enumerate("rww")
    )
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["indelible", *arguments]
    from indelible.cli.main import main  # noqa: PLC0415  (it is the command's, and not the test's)

    main()
