"""The `indelible` command as a process of its own, forked from one that has imported everything.

A command that is started anew spends a second on imports, and the tests start it a hundred times. So it is forked from
a server that has done that (multiprocessing's `forkserver`, as the workers of tests/faults are). It is a real process
all the same, with arguments, a directory, an environment, standard streams and an exit status of its own.

What only a new interpreter shows is tried with `python -m indelible`: a terminal, signals, a pipe whose reader leaves,
and what is imported when (tests/test_cli.py, tests/server/test_shutdown.py).
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

DEADLINE_S = 100.0
_STREAMS = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY}
_IMPORTED = [
    "indelible.cli.main",
    "indelible.server.process",
    "indelible.prove",
    "indelible.terminal.chat",
    "indelible.store.database.migrate",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "asyncpg",
    "aiosqlite",
]


def run_indelible(
    *arguments: str, typed: str = "", directory: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `typed` is what it reads, and `variables` are added to the environment of the test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with tempfile.TemporaryDirectory() as place:
        streams = {name: Path(place) / name for name in _STREAMS}
        streams["stdin"].write_text(typed)
        environment = {**os.environ, **variables}
        process = context.Process(target=_run, args=(arguments, directory or Path.cwd(), environment, streams))
        process.start()
        process.join(DEADLINE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), DEADLINE_S)
        said = [streams[name].read_text() if streams[name].exists() else "" for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(["indelible", *arguments], process.exitcode, *said)


def _run(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], streams: Mapping[str, Path]
) -> None:
    """In the new process: become the command."""
    for number, (name, flags) in enumerate(_STREAMS.items()):
        os.dup2(os.open(streams[name], flags | os.O_CREAT, 0o600), number)
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
