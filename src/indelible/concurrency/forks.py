"""Descriptors that a forked child must not keep.

A tool may fork (`multiprocessing`, a daemon), and the child inherits every open descriptor: among them the lock of the
database and the port of the server. Both would stay taken after the process itself is gone, so the process could not be
restarted. So those descriptors are closed in every child. A child that executes another program never has them: Python
opens all descriptors so that they are closed then.

Must stay true (tests/server/test_files_and_forks.py): after `kill -9` of a process whose child lives on, a new process
gets the lock and the port.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_descriptors: Final[set[int]] = set()


@contextmanager
def closed_in_children(descriptor: int) -> Iterator[None]:
    """Within the block, a forked child closes this descriptor at once."""
    _descriptors.add(descriptor)
    try:
        yield
    finally:
        _descriptors.discard(descriptor)


def _close_all() -> None:
    for descriptor in _descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_close_all)
