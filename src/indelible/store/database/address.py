"""Where a database is: from what a user wrote to a URL that can be opened, and back to words.

A path is a SQLite file. A URL says `sqlite` or `postgresql`; which driver serves it is our business. Only
options that we know are let through, because a misspelt one that is ignored could cost somebody's data.

A database in memory is refused: it would lose everything with the process, which is the one thing that
Indelible is there to prevent.

Must stay true (tests/store/test_engine.py): no password comes out of `describe`, or of any error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from indelible.store.database.errors import DatabaseUnusable

_SQLITE_MODES: Final = ("ro", "rw", "rwc")
_POSTGRES_OPTIONS: Final = {"host": "host", "port": "port", "sslmode": "ssl", "connect_timeout": "timeout"}
"""What libpq calls it, and what our driver does."""

_EXAMPLES: Final = "Give a file (chats.db) or a URL (sqlite:///chats.db, postgresql://user@host/name)."


def parse_address(database: str | Path) -> URL:
    """The database that a user means. Raises `DatabaseUnusable` if there can be no such one."""
    written = str(database)
    if "://" not in written:
        return _make_sqlite_url(written, {})
    try:
        url = make_url(written)
    except (ArgumentError, ValueError):
        raise DatabaseUnusable(f"The database URL cannot be read. {_EXAMPLES}") from None
    match url.get_backend_name():
        case "sqlite":
            return _make_sqlite_url(url.database or "", _flatten(url))
        case "postgresql" | "postgres":
            return _make_postgres_url(url)
        case other:
            raise DatabaseUnusable(f"Indelible does not support '{other}' databases. {_EXAMPLES}")


def describe(url: URL) -> str:
    """The database in words, without a password."""
    if url.get_backend_name() == "sqlite":
        return str(get_sqlite_path(url))
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)


def get_sqlite_path(url: URL) -> Path:
    """The file of a URL that came from `parse_address`."""
    assert url.database is not None
    return Path(unquote(url.database.removeprefix("file:")) if "uri" in url.query else url.database)


def _make_sqlite_url(path: str, options: dict[str, str]) -> URL:
    if not path or path == ":memory:" or path.startswith("file:") or options.get("mode") == "memory":
        raise DatabaseUnusable(f"Chats are stored in a file, not in memory. {_EXAMPLES}")
    unknown = set(options) - {"mode"}
    if unknown or options.get("mode", "rwc") not in _SQLITE_MODES:
        raise DatabaseUnusable(f"A SQLite URL supports one option, mode: {', '.join(_SQLITE_MODES)}.")
    if not options:
        return URL.create("sqlite+aiosqlite", database=path)
    return URL.create("sqlite+aiosqlite", database=f"file:{quote(path)}", query={**options, "uri": "true"})


def _make_postgres_url(url: URL) -> URL:
    options = _flatten(url)
    unknown = sorted(set(options) - set(_POSTGRES_OPTIONS))
    if unknown:
        known = ", ".join(_POSTGRES_OPTIONS)
        raise DatabaseUnusable(f"Unknown option in the database URL: {unknown[0]}. Supported: {known}.")
    query = {_POSTGRES_OPTIONS[name]: value for name, value in options.items()}
    return url.set(drivername="postgresql+asyncpg", query=query)


def _flatten(url: URL) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
