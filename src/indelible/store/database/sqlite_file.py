"""The file of a SQLite database: one working process at a time, and still the file that was opened (R12).

A second server or worker on the same file would not corrupt it, but the two would keep acquiring each other's
chats. So the working process holds an exclusive lock on a file beside the database. The operating system frees it
when the process ends, `kill -9` included: a restarted process takes over at once, and no stale lock remains.
Commands such as `backup` and `export` open the database beside it without the lock. A forked child does not keep it
(concurrency/tasks.py).

The lock file says who holds it: the process and, once it listens, the URL of a server. So a second program can use the
server instead (`DatabaseInUse.server_url`). The URL of a dead process is never used: a program follows a URL only while
the lock is held, and only from a lock file of the same user, because it may send a token there.

An open file can be deleted, renamed or replaced, and SQLite keeps writing to what nobody will ever find again: every
commit would succeed, and all of it would be lost with the process. So the writer compares the file and its log with
those that it opened, before it begins and before it answers, and readers do so a few times a second. A file that comes
back (renamed and renamed back) is used again. Another file in its place is not: only a restart opens it, with its lock.
A file whose bytes are overwritten in place (`cp` onto it) is still the same file, and SQLite itself reports the damage.

A new file is readable by its owner alone. A device or a pipe is refused before a lock is created beside it. So is a
file with a second name (a hard link): log and lock are beside the name by which it was opened, so two processes would
each have a log of their own and damage the file.

Must stay true: a second process gets a clear error, with the URL if there is one, and after `kill -9` of the first it
gets the lock (tests/store/test_file_lock.py); nothing is answered as written that is not in the file at the path
(tests/server/test_database_file.py).
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from indelible.concurrency.tasks import closed_in_children
from indelible.store.database.address import parse_address
from indelible.store.database.errors import DatabaseUnusable

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; its share modes keep a second writer out
    fcntl = None  # type: ignore[assignment]

READ_CHECK_INTERVAL_S: Final = 0.2

_Identity = tuple[int, int]
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
    return DatabaseInUse(what, server_url=url if os.fstat(handle).st_uid == os.geteuid() else None)


def _read_holder(handle: int) -> tuple[str, str | None]:
    """The process, empty if it is unknown, and its URL."""
    process, _, url = os.pread(handle, _HOLDER_BYTES, 0).decode(errors="replace").strip().partition(" ")
    return (process, url or None) if process.isdigit() else ("", None)


# --- which files are taken, and whether it is still there ----------------------------------------


def refuse_special_file(path: Path) -> None:
    """Raises `DatabaseUnusable` for a device, a pipe or a socket, and for a file that has a second name."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return  # it is new, or whoever opens it explains it
    if stat.S_ISDIR(found.st_mode):
        return
    if not stat.S_ISREG(found.st_mode):
        raise DatabaseUnusable(f"{path} is not a regular file. Choose another file.")
    if found.st_nlink > 1:
        raise DatabaseUnusable(
            f"{path} has {found.st_nlink} names (hard links), and SQLite's log is beside one of them: using another "
            f"would damage the database. Remove the others; find / -xdev -samefile {path} lists them."
        )


class SqliteFile:
    """The identity of an open database and its log. Threads share it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._path: str | None = None
        self._file: _Identity | None = None
        self._log: _Identity | None = None
        self._checked_at_s = 0.0

    def note_connected(self, connection: sqlite3.Connection, *, is_writer: bool) -> None:
        """Remember the file of the first connection, and compare the files of later ones with it."""
        if self._path is None:
            self._path = str(connection.execute("PRAGMA database_list").fetchone()[2])
        if is_writer:  # if it was the last connection that was lost, the log is a new one
            self._log = None
        self.check()

    def check(self) -> None:
        """Raises `DatabaseUnusable` if the path names another file, or none."""
        if self._path is None:  # not connected yet
            return
        self._checked_at_s = 0.0
        file, log = _identify(self._path), _identify(f"{self._path}-wal")
        self._file = self._file or file
        self._log = self._log or log
        if file is None or (file, log) != (self._file, self._log):
            raise DatabaseUnusable(
                f"{self._where} was deleted or replaced while it was in use. Put it back, or restart Indelible."
            )
        self._checked_at_s = time.monotonic()

    def check_sometimes(self) -> None:
        """The same, unless it was found in order a moment ago."""
        if time.monotonic() - self._checked_at_s > READ_CHECK_INTERVAL_S:
            self.check()


def create_private_file(path: str) -> None:
    """Create a new database's file for its owner alone: it holds every message. SQLite gives its log the same mode."""
    if not path.startswith("file:"):
        with suppress(OSError):  # it exists, or SQLite will report what is wrong
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _identify(path: str) -> _Identity | None:
    with suppress(OSError):
        found = os.stat(path)  # noqa: PTH116  (as fast as it gets)
        return found.st_dev, found.st_ino
    return None
