"""The `indelible` command as a process of its own, forked from one that has imported everything.

A command that is started anew spends a second on imports, and the tests start it a hundred times. So it is forked from
a server that has done that (multiprocessing's `forkserver`), the same one that servers and workers are forked from
(process_harness.py, tests/prove). It is a real process all the same, with arguments, a directory, an
environment, standard streams and an exit status of its own, and on a terminal it has that to itself, as after a login.

What only a new interpreter shows is tried with `python -m indelible` (`start_interpreter`): limits of the shell, a pipe
whose reader leaves, what is imported when, and once each signal.
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
from contextlib import contextmanager
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
    "asyncpg",
    "tests.support.forked",
]


class CommandProcess:
    """`indelible …` as it runs. Its methods block: an async test uses a thread."""

    def __init__(self, process: ForkServerProcess | subprocess.Popen[bytes], printed: int, errors: Path) -> None:
        assert process.pid is not None
        self._process = process
        self._printed_to = printed
        self._errors = errors
        self._ended = os.pidfd_open(process.pid)
        self._printed = bytearray()
        self._lines_read = 0
        self._status: int | None = None

    def read_line(self) -> str:
        """The next line that it prints."""
        while self._printed.count(b"\n") == self._lines_read:
            ready, _, _ = select.select([self._printed_to], [], [], DEADLINE_S)
            assert ready, "the command prints nothing"
            assert self._read(), ("the command has closed its output", self.wait())
        self._lines_read += 1
        return self._printed.decode().splitlines(keepends=True)[self._lines_read - 1]

    def read_url(self) -> str:
        """Of a server, when it is ready."""
        line = self.read_line()
        found = _READY.fullmatch(line)
        assert found, (line, self.wait())
        return found[1]

    def send_signal(self, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self._ended, number)

    def read_memory_mb(self, field: str) -> int:
        """What the kernel says of it: `VmRSS` now, or `VmHWM`, the most that it ever had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) // 1024

    def wait(self) -> tuple[int, str, str]:
        """Its exit status and all that it printed on standard output and standard error, when it has ended."""
        waited_for = [self._ended, self._printed_to]
        while self._ended in waited_for:
            ready, _, _ = select.select(waited_for, [], [], DEADLINE_S)
            assert ready, "the command neither prints nor ends"
            if self._printed_to in ready and not self._read():
                waited_for.remove(self._printed_to)
            elif ready == [self._ended]:  # and all that it printed was read
                waited_for.remove(self._ended)
        if isinstance(self._process, subprocess.Popen):
            self._status = self._process.wait(DEADLINE_S)
        else:
            self._process.join(DEADLINE_S)
            self._status = self._process.exitcode
        assert self._status is not None
        return self._status, self._printed.decode(), self._errors.read_text()

    def kill(self) -> None:
        """Whether it still runs or not."""
        if self._status is None:
            self.send_signal(signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        """At the end."""
        self.kill()
        os.close(self._ended)

    def _read(self) -> bytes:
        piece = os.read(self._printed_to, 65536)
        self._printed += piece
        return piece


@contextmanager
def start_indelible(*arguments: str, directory: Path | None = None, **variables: str) -> Iterator[CommandProcess]:
    """Killed at the end of the block, if it still runs."""
    with _streams() as (streams, printed):
        process = _fork(arguments, directory or Path.cwd(), {**os.environ, **variables}, streams)
        yield from _until_end(CommandProcess(process, printed, streams["stderr"]))


@contextmanager
def start_interpreter(
    *arguments: str, directory: Path | None = None, limit: str = "-c 0", **variables: str
) -> Iterator[CommandProcess]:
    """The same in a new interpreter, as a user starts it; with a limit of the shell's `ulimit`: "-n 250" files."""
    with _streams() as (streams, printed):
        with streams["stdout"].open("wb") as out, streams["stderr"].open("wb") as err:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f'ulimit {limit}; exec "$0" "$@"', *INDELIBLE, *arguments],
                stdout=out,
                stderr=err,
                cwd=directory,
                env={**os.environ, **variables},
            )
        yield from _until_end(CommandProcess(process, printed, streams["stderr"]))


@contextmanager
def _streams() -> Iterator[tuple[Mapping[str, Path], int]]:
    """Files for the three streams of a command, the second of them a pipe, and the end of it that is read."""
    with tempfile.TemporaryDirectory() as place:
        streams = {name: Path(place) / name for name in _STREAMS}
        streams["stdin"].touch()
        os.mkfifo(streams["stdout"])
        printed = os.open(streams["stdout"], os.O_RDONLY | os.O_NONBLOCK)
        try:
            yield streams, printed
        finally:
            os.close(printed)


def _until_end(command: CommandProcess) -> Iterator[CommandProcess]:
    try:
        yield command
    finally:
        command.close()


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
        assert line.poll(DEADLINE_S), f"`indelible {' '.join(arguments)}` does not start"
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
