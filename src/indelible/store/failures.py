"""How a database cannot be opened, in words for whoever set it up.

Drivers speak in codes. They are read here once, by code and type and never by text, and become a sentence
that names the database without its password, says what is wrong and what to do about it. The class says
whether waiting helps: a server that is away may come back, a file that is no database will not become one.

Neighbours: address.py finds mistakes in the address itself, migrate.py a schema that is too new.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from indelible.errors import StoreFailed


class DatabaseUnusable(StoreFailed):
    """Somebody has to change something: the address, the rights, the file, the program."""


class DatabaseUnreachable(StoreFailed):
    """It does not answer now. It may a moment later."""


class SchemaTooNew(DatabaseUnusable):
    """A newer Indelible has written to it."""


_SQLITE: Final[dict[int, tuple[type[StoreFailed], str]]] = {
    sqlite3.SQLITE_NOTADB: (DatabaseUnusable, "{where} is not a SQLite database. Name another file."),
    sqlite3.SQLITE_CORRUPT: (DatabaseUnusable, "{where} is damaged. Restore it from a backup."),
    sqlite3.SQLITE_READONLY: (
        DatabaseUnusable,
        "{where} cannot be written. Check its mode, and the rights of the file and its directory.",
    ),
    sqlite3.SQLITE_PERM: (DatabaseUnusable, "{where} cannot be opened. Check the rights of the file."),
    sqlite3.SQLITE_CANTOPEN: (
        DatabaseUnusable,
        "{where} cannot be opened. Check that it is a file, and the rights of the file and its directory.",
    ),
    sqlite3.SQLITE_FULL: (DatabaseUnusable, "{where} cannot be written: the disk is full."),
    sqlite3.SQLITE_IOERR: (DatabaseUnusable, "{where} cannot be read or written: the disk reports an error."),
    sqlite3.SQLITE_BUSY: (DatabaseUnreachable, "{where} is being written by another process. Try again."),
}

_POSTGRES: Final[dict[str, tuple[type[StoreFailed], str]]] = {
    "28P01": (DatabaseUnusable, "{where} did not accept the password."),
    "28000": (DatabaseUnusable, "{where} does not let this user in. Check the user's name and pg_hba.conf."),
    "3D000": (DatabaseUnusable, "{where}: the server has no such database. Create it first."),
    "42501": (DatabaseUnusable, "{where}: the user may not do this. It needs the right to create tables."),
    "53300": (DatabaseUnreachable, "{where} has too many connections. Try again, or raise max_connections."),
    "57P03": (DatabaseUnreachable, "{where} is starting or stopping. Try again."),
    "25006": (DatabaseUnusable, "{where} is read-only. Name the primary server, not a replica."),
}


def read_failure(error: BaseException, where: str) -> StoreFailed:
    """What this error means, where `where` describes the database."""
    for cause in _follow(error):
        if isinstance(cause, StoreFailed):
            return cause
        known = _SQLITE.get(getattr(cause, "sqlite_errorcode", -1) & 0xFF) or _POSTGRES.get(
            str(getattr(cause, "sqlstate", None))
        )
        if known is not None:
            kind, sentence = known
            return kind(sentence.format(where=where))
        if isinstance(cause, OSError | TimeoutError):
            return DatabaseUnreachable(f"{where} cannot be reached: {str(cause) or 'no answer in time'}.")
    return StoreFailed(f"{where} cannot be opened: {error}")


def _follow(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was made of: SQLAlchemy's `orig`, Python's cause."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = getattr(found, "orig", None) or found.__cause__
