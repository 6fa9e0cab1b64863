"""Database errors, translated into sentences for the operator.

Drivers report codes. This module reads them once, by code and type and never by text, and makes a sentence that
names the database without its password, the problem and the remedy. The class shows whether waiting helps: a server
that is down may come back, but a file that is not a database will not become one.

Some errors are not a failure of the database: it refused the data, and would refuse it again. `is_about_data` finds
them, and the code that wrote the data receives them unchanged (R6).

Must stay true (tests/store/test_broken_databases.py): a database that fails in use is reported as precisely as one
that cannot be opened (tests/store/test_open.py), and no sentence quotes the data that was being written.
"""

from __future__ import annotations

import os
import sqlite3
import ssl
from collections.abc import Iterator
from typing import Final

from indelible.errors import StoreFailed


class DatabaseUnusable(StoreFailed):
    """The operator must change something: the address, the permissions, the file, the disk, the program."""


class DatabaseUnreachable(StoreFailed):
    """The database does not respond now, or not in time. Waiting may help."""


class SchemaTooNew(DatabaseUnusable):
    """A newer version of Indelible has migrated this database."""


class AllConnectionsInUse(Exception):
    """No connection became free in time."""


_Known = tuple[type[StoreFailed], str]

_LOST: Final[_Known] = (DatabaseUnreachable, "The connection to {where} was lost. Try again.")
_DAMAGED: Final[_Known] = (DatabaseUnusable, "{where} is damaged. Restore it from a backup.")
_DISK_FAILS: Final[_Known] = (DatabaseUnusable, "{where} cannot be read or written: the disk reports an error.")
_DISK_FULL: Final[_Known] = (DatabaseUnusable, "{where} cannot be written: the disk is full.")
_BUSY: Final[_Known] = (DatabaseUnreachable, "{where} is busy: another process held its lock for too long. Try again.")
_ALL_IN_USE: Final[_Known] = (
    DatabaseUnreachable,
    "Every connection to {where} is in use, and none became free in time. Try again.",
)

_SQLITE: Final[dict[int, _Known]] = {
    sqlite3.SQLITE_NOTADB: (DatabaseUnusable, "{where} is not a SQLite database. Choose another file."),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_READONLY: (
        DatabaseUnusable,
        "{where} cannot be written. Check its mode, and the permissions of the file and its directory.",
    ),
    sqlite3.SQLITE_PERM: (DatabaseUnusable, "{where} cannot be opened. Check the permissions of the file."),
    sqlite3.SQLITE_CANTOPEN: (
        DatabaseUnusable,
        "{where} cannot be opened. Check that it is a file, and the permissions of the file and its directory.",
    ),
    sqlite3.SQLITE_FULL: _DISK_FULL,
    sqlite3.SQLITE_IOERR: _DISK_FAILS,
    sqlite3.SQLITE_BUSY: _BUSY,
}

_POSTGRES: Final[dict[str, _Known]] = {
    "28P01": (DatabaseUnusable, "{where} rejected the password."),
    "28000": (DatabaseUnusable, "{where} does not admit this user. Check the user name and pg_hba.conf."),
    "3D000": (DatabaseUnusable, "{where}: the server has no such database. Create it first."),
    "42501": (DatabaseUnusable, "{where}: permission denied. The user needs the right to create tables."),
    "25006": (DatabaseUnusable, "{where} is read-only. Use the primary server, not a replica."),
    "40P01": (DatabaseUnreachable, "{where} aborted a transaction because of a deadlock. Try again."),
    "53100": _DISK_FULL,
    "53300": (DatabaseUnreachable, "{where} has too many connections. Try again, or raise max_connections."),
    "55P03": _BUSY,
    "57014": (DatabaseUnreachable, "{where} cancelled a statement that took too long. Try again."),
    "57P01": (DatabaseUnreachable, "{where} closed the connection because it is shutting down. Try again."),
    "57P02": (DatabaseUnreachable, "{where} closed the connection because another one crashed. Try again."),
    "57P03": (DatabaseUnreachable, "{where} is starting or stopping. Try again."),
    "57P04": (DatabaseUnusable, "{where} no longer exists: the database was dropped."),
    "58030": _DISK_FAILS,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}
_LOST_STATES: Final = ("08", "57P", "25P03")
_DATA_STATES: Final = ("22", "23", "54")


def read_failure(error: BaseException, where: str) -> StoreFailed:
    """The meaning of this error; `where` describes the database."""
    causes = list(_follow(error))
    for cause in causes:
        if isinstance(cause, StoreFailed):
            return cause
        known = _read_code(cause)
        if known is not None:
            return _format(known, where)
    # Only now, because a deeper cause may explain why the connection was lost.
    if any(_is_lost(cause) for cause in causes):
        return _format(_LOST, where)
    for cause in causes:
        if isinstance(cause, OSError):
            return DatabaseUnreachable(
                f"{where} cannot be reached: {_explain(cause)}. Check the address, and that the database runs there."
            )
    detail = str(causes[-1]).partition("\n")[0]
    return StoreFailed(f"{where} failed: {detail}")


def _explain(error: OSError) -> str:
    """The system's words for its code. Those of asyncio are about its own call."""
    if error.errno is not None and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    return error.strerror or str(error) or "no answer in time"


def translate_error(error: BaseException, where: str) -> BaseException:
    """The error for the store's caller: a `StoreFailed` if the database failed, otherwise the error itself."""
    if isinstance(error, StoreFailed) or not _is_of_database(error) or is_about_data(error):
        return error
    failure = read_failure(error, where)
    failure.__cause__ = error
    return failure


def _is_of_database(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error | OSError | AllConnectionsInUse) or _get_module(error) == "asyncpg"


def _get_module(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def is_about_data(error: BaseException) -> bool:
    """Whether the data is at fault, and not the database."""
    return any(_is_refusal(cause) for cause in _follow(error))


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, sqlite3.DataError | sqlite3.IntegrityError) or _get_state(error).startswith(_DATA_STATES):
        return True
    return isinstance(error, ValueError) and _get_module(error) == "asyncpg"  # a value that it cannot encode


def _read_code(error: BaseException) -> _Known | None:
    if isinstance(error, AllConnectionsInUse):
        return _ALL_IN_USE
    return _SQLITE.get(getattr(error, "sqlite_errorcode", -1) & 0xFF) or _POSTGRES.get(_get_state(error))


def _is_lost(error: BaseException) -> bool:
    return _get_state(error).startswith(_LOST_STATES) or (
        _get_module(error) == "asyncpg" and _is_lost_by_asyncpg(error)
    )


def _is_lost_by_asyncpg(error: BaseException) -> bool:
    """An error of its own, which never quotes data: the connection is closed, or was lost while no caller waited."""
    return type(error).__name__ == "InternalClientError" or "closed" in str(error)


def _get_state(error: BaseException) -> str:
    """The error's SQLSTATE, if PostgreSQL sent one."""
    return str(getattr(error, "sqlstate", None))


def _format(known: _Known, where: str) -> StoreFailed:
    kind, sentence = known
    return kind(sentence.format(where=where))


def _follow(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes."""
    found: BaseException | None = error
    seen: list[BaseException] = []
    while found is not None and found not in seen:
        yield found
        seen.append(found)
        found = found.__cause__
