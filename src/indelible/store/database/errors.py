"""What is wrong with a database, in words for whoever set it up.

Drivers speak in codes. They are read here once, by code and type and never by text, and become a sentence
that names the database without its password, says what is wrong and what to do about it. The class says
whether waiting helps: a server that is away may come back, a file that is no database will not become one.

Some errors are no failure of the database: it refused what it was given, and would refuse it again. Those are
`is_about_data`, and whoever wrote the data has to hear of them as they are (R6).

Must stay true (tests/store/test_broken_databases.py): a database that fails while it is used is told of as
truly as one that cannot be opened (tests/store/test_engine.py), and no sentence quotes what was to be written.

Neighbours: engine.py has every transaction read its errors here, address.py finds mistakes in the address
itself, migrate.py a schema that is too new.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from indelible.errors import StoreFailed


class DatabaseUnusable(StoreFailed):
    """Somebody has to change something: the address, the rights, the file, the disk, the program."""


class DatabaseUnreachable(StoreFailed):
    """It does not answer now, or not in time. It may a moment later."""


class SchemaTooNew(DatabaseUnusable):
    """A newer Indelible has written to it."""


_Known = tuple[type[StoreFailed], str]

_LOST: Final[_Known] = (DatabaseUnreachable, "The connection to {where} was lost. Try again.")
_DAMAGED: Final[_Known] = (DatabaseUnusable, "{where} is damaged. Restore it from a backup.")
_DISK_FAILS: Final[_Known] = (DatabaseUnusable, "{where} cannot be read or written: the disk reports an error.")
_DISK_FULL: Final[_Known] = (DatabaseUnusable, "{where} cannot be written: the disk is full.")
_BUSY: Final[_Known] = (DatabaseUnreachable, "{where} is busy: somebody else kept it locked for too long. Try again.")
_ALL_IN_USE: Final[_Known] = (DatabaseUnreachable, "Every connection to {where} is in use, and none became free.")

_SQLITE: Final[dict[int, _Known]] = {
    sqlite3.SQLITE_NOTADB: (DatabaseUnusable, "{where} is not a SQLite database. Choose another file."),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_READONLY: (
        DatabaseUnusable,
        "{where} cannot be written. Check its mode, and the rights of the file and its directory.",
    ),
    sqlite3.SQLITE_PERM: (DatabaseUnusable, "{where} cannot be opened. Check the rights of the file."),
    sqlite3.SQLITE_CANTOPEN: (
        DatabaseUnusable,
        "{where} cannot be opened. Check that it is a file, and the rights of the file and its directory.",
    ),
    sqlite3.SQLITE_FULL: _DISK_FULL,
    sqlite3.SQLITE_IOERR: _DISK_FAILS,
    sqlite3.SQLITE_BUSY: _BUSY,
}

_POSTGRES: Final[dict[str, _Known]] = {
    "28P01": (DatabaseUnusable, "{where} did not accept the password."),
    "28000": (DatabaseUnusable, "{where} does not let this user in. Check the user's name and pg_hba.conf."),
    "3D000": (DatabaseUnusable, "{where}: the server has no such database. Create it first."),
    "42501": (DatabaseUnusable, "{where}: the user may not do this. It needs the right to create tables."),
    "25006": (DatabaseUnusable, "{where} is read-only. Name the primary server, not a replica."),
    "40P01": (DatabaseUnreachable, "{where} ended a transaction that stood in another's way. Try again."),
    "53100": _DISK_FULL,
    "53300": (DatabaseUnreachable, "{where} has too many connections. Try again, or raise max_connections."),
    "55P03": _BUSY,
    "57014": (DatabaseUnreachable, "{where} stopped a statement that took too long. Try again."),
    "57P01": (DatabaseUnreachable, "{where} ended the connection, as it does when it is stopped. Try again."),
    "57P02": (DatabaseUnreachable, "{where} ended the connection because another one crashed. Try again."),
    "57P03": (DatabaseUnreachable, "{where} is starting or stopping. Try again."),
    "57P04": (DatabaseUnusable, "{where} is no longer there: the database was dropped."),
    "58030": _DISK_FAILS,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}
_LOST_STATES: Final = ("08", "57P", "25P03")
_DATA_STATES: Final = ("22", "23", "54")


def read_failure(error: BaseException, where: str) -> StoreFailed:
    """What this error means, where `where` describes the database."""
    causes = list(_follow(error))
    for cause in causes:
        if isinstance(cause, StoreFailed):
            return cause
        known = _read_code(cause)
        if known is not None:
            return _format(known, where)
    # Only now, because why a connection was lost may stand deeper than that it was.
    if any(_is_lost(cause) for cause in causes):
        return _format(_LOST, where)
    for cause in causes:
        if isinstance(cause, OSError):
            return DatabaseUnreachable(f"{where} cannot be reached: {str(cause) or 'no answer in time'}.")
    detail = str(causes[-1]).partition("\n")[0]
    return StoreFailed(f"{where} could not do what it was asked: {detail}")


def is_about_data(error: BaseException) -> bool:
    """Whether what was to be written is to blame, and not the database. asyncpg's class alone does not tell."""
    if isinstance(error, DataError | IntegrityError | sqlite3.DataError | sqlite3.IntegrityError):
        return True
    for cause in _follow(error):
        if _get_state(cause).startswith(_DATA_STATES):
            return True
        # What asyncpg cannot even encode for the server is a wrong value and a misuse of its interface at once.
        if isinstance(error, InterfaceError) and isinstance(cause, ValueError):
            return True
    return False


def _read_code(error: BaseException) -> _Known | None:
    if isinstance(error, PoolExhausted):
        return _ALL_IN_USE
    return _SQLITE.get(getattr(error, "sqlite_errorcode", -1) & 0xFF) or _POSTGRES.get(_get_state(error))


def _is_lost(error: BaseException) -> bool:
    return _get_state(error).startswith(_LOST_STATES) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )


def _get_state(error: BaseException) -> str:
    """PostgreSQL's code, if it has one."""
    return str(getattr(error, "sqlstate", None))


def _format(known: _Known, where: str) -> StoreFailed:
    kind, sentence = known
    return kind(sentence.format(where=where))


def _follow(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was made of: SQLAlchemy's `orig`, Python's cause."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = getattr(found, "orig", None) or found.__cause__
