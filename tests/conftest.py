"""What all tests share: the databases (tests/databases.py), files in memory, and how property tests run.

How the tests are spread over processes is tests/scheduling.py.

Temporary files are in memory (/dev/shm) where a machine has enough of it and TMPDIR names no other place: most tests
wait for nothing but fsync, and none is about the disk unless it is marked `real_disk`.

`make test` tries new examples every time and prints how to repeat one that failed; with CI set (.ci/run does so) it
tries the same ones every time, so that a change is judged by what it changed and not by luck. No example has a
deadline: a busy machine is no failure, and a test that hangs is ended by pytest-timeout.

Compiled modules are kept, even where the surroundings forbid it (PYTHONDONTWRITEBYTECODE, as images of containers do):
without them every process of pytest rewrites the asserts of every test file anew (10 s), and every process that a test
starts compiles the package (0.3 s).

`make nightly` chooses the profile of that name: INDELIBLE_EXAMPLES examples for every property test that
does not say how many it wants; one that does asks tests/support/examples.py.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything of ours is imported.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.disable()  # until the tests are collected: what is made until then stays, and looking for garbage takes a quarter

pytest_plugins = [
    "tests.blocking",
    "tests.databases",
    "tests.log_records",
    "tests.scheduling",
    "tests.second_chance",
    "tests.waiting_limits",
]

MEMORY = Path("/dev/shm")  # noqa: S108  (the name that Linux gives it)
ROOM_BYTES = 4 << 30

# Set while this file is imported: pytest makes its directory later, and processes of xdist inherit it. `tempfile` has
# chosen already, for what pytest captures.
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

settings.register_profile(
    "ours",
    settings.get_profile("default"),
    max_examples=50,
    deadline=None,
    database=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.register_profile(
    "nightly",
    settings.get_profile("ours"),
    derandomize=False,
    max_examples=int(os.environ.get("INDELIBLE_EXAMPLES", "50000")),
)
settings.load_profile("ours")

FORKING = frozenset({"e2e", "faults", "prove", "server", "test_cli.py", "test_logs.py"})
"""Folders and files whose tests fork commands, servers and workers."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported stays until the end. The collector of garbage need not look at it again and again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # what a test leaves is little; the usual 700 costs a twentieth of all time
    gc.enable()
    if not session.config.option.collectonly and any(FORKING & {*item.path.parts[-2:]} for item in session.items):
        from tests.support.commands import start_fork_server  # noqa: PLC0415  (it imports the package)

        start_fork_server()
