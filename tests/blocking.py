"""No blocking call of ours on the event loop: a test of a folder in JUDGED fails if one was made.

One blocked loop is a pause in every chat of the process. Python announces files that are opened, processes, sockets and
locks to audit hooks, from C as well, so one hook sees them all (`time.sleep` since 3.13; before that ruff's ASYNC251
forbids it). `blockbuster` sees more (`os.stat`), but changes builtin types through a package that has no wheel and no
release since 2021. A call counts if an event loop
runs in its thread and the code that made it is ours: a library that opens a file for itself is not judged, nor is
`import`. What may block stands in MAY_BLOCK, with the reason.

Calls are noted and judged when the test has ended, because an exception raised in the midst of our code could be
handled there as any other failure. tests/test_blocking.py checks that they are noted.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import indelible

OURS: Final = str(Path(indelible.__file__).parent)
LIBRARY: Final = sysconfig.get_path("stdlib")
BLOCKING: Final = frozenset(
    {
        "fcntl.flock",
        "fcntl.lockf",
        "open",
        "os.listdir",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.scandir",
        "os.system",
        "shutil.copyfile",
        "shutil.rmtree",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "sqlite3.connect",
        "subprocess.Popen",
        "time.sleep",
    }
)
MAY_BLOCK: Final = {
    "cli": "a command has one user and no chats of others beside it",
    "client": "a download is written for the program that asked for it",
    "prove": "as the command line",
    "terminal": "as the command line",
    "testing": "it runs in tests",
    "server/process.py:_bind": "once, before anybody is served, and for an address in figures",
    "store/database/sqlite_file.py:exclusive_file_lock": "once, at the start, and it never waits for the lock",
}
"""Packages and functions of ours in which a call may block, and why."""

JUDGED: Final = ("app", "feed", "server", "service", "worker")
"""Folders whose tests run our code on an event loop that serves others. In the others calls are noted, not judged."""

noted: list[str] = []


def note_call(event: str, arguments: tuple[Any, ...], blocking: frozenset[str] = BLOCKING) -> None:
    """A hook cannot be removed: when the interpreter ends, it outlives the names of its module."""
    if event not in blocking or asyncio._get_running_loop() is None:
        return
    caller = find_caller(sys._getframe(1))
    if caller is None:
        return
    file = Path(caller.f_code.co_filename).relative_to(OURS)
    if MAY_BLOCK.keys().isdisjoint({file.parts[0], f"{file}:{caller.f_code.co_name}"}):
        noted.append(f"{event}{arguments[:1]} in {caller.f_code.co_name} ({file}:{caller.f_lineno})")


def find_caller(frame: FrameType | None) -> FrameType | None:
    """The frame of ours that made the call, itself or through the standard library alone."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            return frame
        is_library = file.startswith(LIBRARY) and "site-packages" not in file
        if not is_library or "asyncio" in file or "importlib" in file:  # asyncio's own calls do not wait
            return None
        frame = frame.f_back
    return None


def pytest_configure() -> None:
    sys.addaudithook(note_call)


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    noted.clear()
    yield
    assert request.path.parent.name not in JUDGED or not noted, "on the event loop: " + "; ".join(noted)
