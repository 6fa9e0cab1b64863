"""One working process per SQLite file, held by a lock of the operating system (R12).

A second server or worker on the same file would not corrupt it, but the two would keep acquiring each other's
chats. So the working process holds an exclusive lock on a file beside the database. The operating system frees it
when the process ends, `kill -9` included: a restarted process takes over at once, and no stale lock remains.
Commands such as `backup` and `export` open the database beside it without the lock. A forked child does not keep it
(concurrency/forks.py).

The lock file says who holds it: the process and, once it listens, the URL of a server. So a second program can use the
server instead (`DatabaseInUse.server_url`). The URL of a dead process is never used: a program follows a URL only while
the lock is held, and only from a lock file of the same user, because it may send a token there.

Must stay true (tests/store/test_file_lock.py): a second process gets a clear error, with the URL if there is one; after
`kill -9` of the first it gets the lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from indelible.concurrency.forks import closed_in_children
from indelible.store.database.address import parse_address
from indelible.store.database.errors import DatabaseUnusable
from indelible.store.database.sqlite.file_check import refuse_special_file

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; its share modes keep a second writer out
    fcntl = None  # type: ignore[assignment]

_HOLDER_BYTES: Final = 512
_held: Final[dict[Path, int]] = {}
"""The files that this process holds. A forked child inherits the entries, not the locks: hence the process."""


class DatabaseInUse(DatabaseUnusable):
    """Another process holds the file. `server_url` is where it serves the chats, if it is a server of this user."""

    def __init__(self, message: str, *, server_url: str | None = None) -> None:
        super().__init__(message)
        self.server_url = server_url


@contextmanager
def exclusive_file_lock(database: str | Path) -> Iterator[None]:
    """Hold the database exclusively for the block. PostgreSQL supports several workers and needs no lock."""
    address = parse_address(database)
    if not address.is_sqlite or fcntl is None:
        yield
        return
    refuse_special_file(address.path)
    path = address.path.resolve()  # the same lock for every path to the file
    beside = _name_lock(path)
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
            raise _describe_holder(handle, path) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        _held[path] = os.getpid()
        try:
            with closed_in_children(handle):
                yield
        finally:
            _held.pop(path, None)
    finally:
        os.close(handle)


def announce_server(database: str | Path, url: str) -> None:
    """Write into the lock, if this process holds it, where it serves the chats."""
    address = parse_address(database)
    if not address.is_sqlite or fcntl is None:
        return
    try:
        handle = os.open(_name_lock(address.path.resolve()), os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no lock: another process runs the worker, or nobody does
        return
    try:
        if _read_holder(handle)[0] == str(os.getpid()):
            os.pwrite(handle, f"{os.getpid()} {url}".encode(), 0)
    finally:
        os.close(handle)


def find_holder(database: str | Path) -> DatabaseInUse | None:
    """Who holds the file; None if nobody does, or there is no such file."""
    address = parse_address(database)
    if not address.is_sqlite or not _name_lock(address.path.resolve()).exists():
        return None
    try:
        with exclusive_file_lock(database):
            return None
    except DatabaseInUse as holder:
        return holder


def is_held_elsewhere(database: str | Path) -> bool:
    """Whether another process holds the file."""
    path = parse_address(database).path.resolve()
    return _held.get(path) != os.getpid() and find_holder(database) is not None


def _name_lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _explain(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"Can't create {path}: the directory does not exist."
    return f"Can't create {path}: {error.strerror}. Choose a file that can be written."


def _describe_holder(handle: int, path: Path) -> DatabaseInUse:
    process, url = _read_holder(handle)
    who = f" (process {process})" if process else ""
    what = (
        f"{path} is in use by another server or worker{who}. Stop it first, open the file beside it with worker=False, "
        "or use PostgreSQL to run several."
    )
    if _held.get(path) == os.getpid():  # the number in the file may be that of a process in another container
        what = f"{path} is in use by this program. Use the app that has it open, or open it with worker=False."
    return DatabaseInUse(
        what,
        server_url=url if os.fstat(handle).st_uid == os.geteuid() else None,
    )


def _read_holder(handle: int) -> tuple[str, str | None]:
    """The process, empty if it is unknown, and its URL."""
    process, _, url = os.pread(handle, _HOLDER_BYTES, 0).decode(errors="replace").strip().partition(" ")
    return (process, url or None) if process.isdigit() else ("", None)
