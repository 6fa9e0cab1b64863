"""A real server in a process of its own, which a test kills and starts again on the same port and database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PYTHON: Final = Path(sys.prefix) / "compat" / "bin" / "python"
NPM_PACKAGES: Final = Path(sys.prefix) / "compat" / "js"
"""The directory that has the node_modules/ of those clients that only make compat runs."""
CLIENTS: Final = HERE / "clients"


class CompatServer:
    """`release` is the file that a held story waits for."""

    def __init__(self, folder: Path) -> None:
        self.release = folder / "release"
        self._database = folder / "compat.db"
        self._port = "0"
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "compat.server", str(self._database), self._port]
        self._process = subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the server did not start"
        self._port = self.url.rpartition(":")[2]

    def kill(self) -> None:
        """kill -9: it gets no chance to say goodbye."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._wait(self._process)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._wait(self._process)

    def _wait(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        process.wait(timeout=120)
        process.stdout.close()


@contextmanager
def run_compat_server(folder: Path) -> Iterator[CompatServer]:
    server = CompatServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
