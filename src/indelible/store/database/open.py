"""Opening a SQLite or PostgreSQL database: commits are durable, and a faulty database is reported in one sentence.

Neighbours: address.py parses the user's address, sqlite/ and postgres.py are the two databases, errors.py has the
sentences, migrate.py upgrades the schema. tests/store/test_open.py checks what must stay true.
"""

from __future__ import annotations

from pathlib import Path

from indelible.errors import StoreFailed
from indelible.store.database.address import Address, describe, parse_address
from indelible.store.database.errors import DatabaseUnusable, read_failure
from indelible.store.database.postgres import PostgresDatabase
from indelible.store.database.sqlite.database import SqliteDatabase
from indelible.store.database.sqlite.file_check import refuse_special_file


async def open_database(database: str | Path | Address) -> SqliteDatabase | PostgresDatabase:
    """Connect to a database, new or not. Raises `StoreFailed` with the reason. Close it at the end."""
    address = database if isinstance(database, Address) else parse_address(database)
    try:
        if not address.is_sqlite:
            return await PostgresDatabase.open(address.make_postgres_options(), where=describe(address))
        refuse_missing_directory(address)
        refuse_special_file(address.path)
        return await SqliteDatabase.open(address.make_sqlite_name(), where=describe(address))
    except StoreFailed:
        raise
    except Exception as error:
        raise read_failure(error, describe(address)) from error


def refuse_missing_directory(address: Address) -> None:
    directory = address.path.absolute().parent
    if not directory.is_dir():
        raise DatabaseUnusable(
            f"Can't create the database: the directory {directory} does not exist. Create it, or choose another file."
        )
