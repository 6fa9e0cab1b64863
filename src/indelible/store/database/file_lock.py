"""One working process per SQLite file, held by a lock of the operating system (R12).

A second server or worker on the same file would not corrupt it, but the two would keep acquiring each other's
chats. So the working process holds an exclusive lock on a file beside the database. The operating system frees it
when the process ends, `kill -9` included: a restarted process takes over at once, and no stale lock remains.
Commands such as `backup` and `export` open the database beside it without the lock. A forked child does not keep it
(concurrency/forks.py).

Must stay true (tests/store/test_file_lock.py): a second process gets a clear error; after `kill -9` of the first it
gets the lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from indelible.concurrency.forks import closed_in_children
from indelible.store.database.address import parse_address
from indelible.store.database.errors import DatabaseUnusable

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; its share modes keep a second writer out
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive_file_lock(database: str | Path) -> Iterator[None]:
    """Hold the database exclusively for the block. PostgreSQL supports several workers and needs no lock."""
    address = parse_address(database)
    if not address.is_sqlite or fcntl is None:
        yield
        return
    path = address.path.resolve()  # the same lock for every path to the file
    beside = path.with_name(f"{path.name}.lock")
    try:
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DatabaseUnusable(_explain(path, error)) from error
    try:
        with suppress(PermissionError):  # it is another user's; whether it can be locked is what matters
            os.fchmod(handle, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DatabaseUnusable(_describe_holder(handle, path)) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        with closed_in_children(handle):
            yield
    finally:
        os.close(handle)


def _explain(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"Can't create {path}: the directory does not exist."
    return f"Can't create {path}: {error.strerror}. Choose a file that can be written."


def _describe_holder(handle: int, path: Path) -> str:
    holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
    who = f" (process {holder})" if holder.isdigit() else ""
    return f"{path} is in use by another server or worker{who}. Stop it first, or use PostgreSQL to run several."
