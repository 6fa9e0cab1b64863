"""The address of a database: parsed from what a user wrote, and described without its password.

A path is a SQLite file. A URL says `sqlite` or `postgresql`; the driver is an implementation detail. Only known
options are accepted, because silently ignoring a misspelt one could cost data.

A database in memory is refused: it would lose everything with the process, which is exactly what
Indelible exists to prevent.

Must stay true (tests/store/test_address.py): neither `describe` nor any error reveals a password.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from indelible.store.database.errors import DatabaseUnusable
from indelible.store.database.transaction import Dialect

_SQLITE_MODES: Final = ("ro", "rw", "rwc")
_POSTGRES_OPTIONS: Final = {"host": "host", "port": "port", "sslmode": "ssl", "connect_timeout": "timeout"}
"""libpq's names of options, and our driver's."""

_EXAMPLES: Final = "Give a file (chats.db) or a URL (sqlite:///chats.db, postgresql://user@host/name)."
_URL: Final = re.compile(
    r"""(?P<scheme>\w+)(\+\w+)?://
    ((?P<user>[^:/]*)(:(?P<password>[^@]*))?@)?
    (\[(?P<address>[^/?\]]+)\]|(?P<name>[^/:?@]+))?
    (:(?P<port>\d+))?
    (/(?P<database>[^?]*))?
    (\?(?P<options>.*))?""",
    re.VERBOSE,
)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A database that can be opened. On SQLite `database` is the path of a file, and `mode` how it is opened.

    `options` are asyncpg's own.
    """

    dialect: Dialect
    database: str | None = None
    mode: str | None = None
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: str | None = None
    options: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Address({describe(self)!r})"

    @property
    def is_sqlite(self) -> bool:
        return self.dialect == "sqlite"

    @property
    def path(self) -> Path:
        """The file of a SQLite database."""
        assert self.is_sqlite
        return Path(str(self.database))

    def make_sqlite_name(self) -> str:
        """The file, as `sqlite3.connect` takes it: a path, or a URI with its mode."""
        assert self.is_sqlite
        return str(self.database) if self.mode is None else f"file:{quote(str(self.database))}?mode={self.mode}"

    def make_postgres_options(self) -> dict[str, Any]:
        """The arguments of `asyncpg.connect`."""
        named = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        given: dict[str, Any] = {**named, "database": self.database, **self.options}
        if "timeout" in given:
            given["timeout"] = float(given["timeout"])
        return {name: value for name, value in given.items() if value is not None}


def parse_address(database: str | Path) -> Address:
    """Parse a user's path or URL. Raises `DatabaseUnusable` if it cannot be a database."""
    written = str(database)
    if "://" not in written:
        return _make_sqlite(written, {})
    found = _URL.fullmatch(written)
    if found is None:
        raise DatabaseUnusable(f"The database URL cannot be read. {_EXAMPLES}")
    options = dict(parse_qsl(found["options"] or ""))
    match found["scheme"]:
        case "sqlite" if found["name"] is not None:  # one slash too few: part of the path would be ignored
            raise DatabaseUnusable(f"The database URL cannot be read. {_EXAMPLES}")
        case "sqlite":
            return _make_sqlite(unquote(found["database"] or ""), options)
        case "postgresql" | "postgres":
            return _make_postgres(found, options)
        case other:
            raise DatabaseUnusable(f"Indelible does not support '{other}' databases. {_EXAMPLES}")


def describe(address: Address) -> str:
    """The database for people, without a password. A server's socket is written as in an address."""
    if address.is_sqlite:
        return str(address.path)
    user = "" if address.user is None else f"{quote(address.user)}{':***' if address.password else ''}@"
    host = address.host or ""
    port = "" if address.port is None else f":{address.port}"
    if host.startswith("/"):
        return f"postgresql://{user}{port}/{address.database or ''}?host={host}"
    return f"postgresql://{user}{f'[{host}]' if ':' in host else host}{port}/{address.database or ''}"


def _make_sqlite(path: str, options: dict[str, str]) -> Address:
    if not path or path == ":memory:" or path.startswith("file:") or options.get("mode") == "memory":
        raise DatabaseUnusable(f"Chats are stored in a file, not in memory. {_EXAMPLES}")
    unknown = set(options) - {"mode"}
    if unknown or options.get("mode", "rwc") not in _SQLITE_MODES:
        raise DatabaseUnusable(f"A SQLite URL supports one option, mode: {', '.join(_SQLITE_MODES)}.")
    return Address(dialect="sqlite", database=path, mode=options.get("mode"))


def _make_postgres(found: re.Match[str], options: dict[str, str]) -> Address:
    unknown = sorted(set(options) - set(_POSTGRES_OPTIONS))
    if unknown:
        known = ", ".join(_POSTGRES_OPTIONS)
        raise DatabaseUnusable(f"Unknown option in the database URL: {unknown[0]}. Supported: {known}.")
    port: str | None = options.pop("port", found["port"])
    if port is not None and not port.isdecimal():
        raise DatabaseUnusable(f"The database URL cannot be read. {_EXAMPLES}")
    return Address(
        dialect="postgresql",
        database=unquote(found["database"]) if found["database"] else None,
        host=options.pop("host", None) or found["address"] or found["name"],
        port=None if port is None else int(port),
        user=unquote(found["user"]) if found["user"] else None,
        password=unquote(found["password"]) if found["password"] else None,
        options={_POSTGRES_OPTIONS[name]: value for name, value in options.items()},
    )
