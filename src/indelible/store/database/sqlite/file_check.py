"""Whether a path can name a SQLite file, and whether the file that is open is still the one at its path.

An open file can be deleted, renamed or replaced, and SQLite keeps writing to what nobody will ever find again: every
commit would succeed, and all of it would be lost with the process. So the writer compares the file and its log with
those that it opened, before it begins and before it answers, and readers do so a few times a second. A file that comes
back (renamed and renamed back) is used again. Another file in its place is not: only a restart opens it, with its lock.

A new file is readable by its owner alone. A device or a pipe is refused before a lock is created beside it. So is a
file with a second name (a hard link): log and lock are beside the name by which it was opened, so two processes would
each have a log of their own and damage the file.

A file whose bytes are overwritten in place (`cp` onto it) is still the same file, and SQLite itself reports the damage.

Must stay true (tests/server/test_database_file.py): nothing is answered as written that is not in the file at the path.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from indelible.store.database.errors import DatabaseUnusable

READ_CHECK_INTERVAL_S: Final = 0.2
_Identity = tuple[int, int]


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
