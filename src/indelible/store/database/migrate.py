"""Upgrading a database, at the start of every process and by `indelible migrate`.

The revisions in migrations/versions run in one transaction: a database is never half migrated. Two processes that
start together are safe: the first has the lock (SQLite's write lock, an advisory lock on PostgreSQL), the second waits
for it and then finds nothing to do. A database that is up to date is only read, without importing Alembic or
SQLAlchemy (migrations/runner.py).

There is no downgrade. A database that a newer Indelible has migrated is refused, because this version does not know
the rules of the new tables.

Must stay true (tests/store/test_migrations.py): the migrations build exactly tables/ on both databases, and an
upgrade preserves existing data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from indelible.store.database.address import Address, describe, parse_address
from indelible.store.database.errors import SchemaTooNew
from indelible.store.database.open import open_database
from indelible.store.database.transaction import Database, Transaction

HEAD: Final = "0016"
"""The newest revision in migrations/versions."""

VERSION_TABLE: Final = "indelible_schema"
"""The table that stores the revision. Not Alembic's default name, which another program in the database may use."""


class Migrated(NamedTuple):
    """The revisions before and after an upgrade. `before` is None for a new database."""

    before: str | None
    after: str


async def migrate(database: str | Path, *, target: str = HEAD) -> Migrated:
    """Upgrade the database; create it if the file is new. Safe to run concurrently."""
    address = parse_address(database)
    opened = await open_database(address)
    try:
        return await upgrade_schema(opened, address, target=target)
    finally:
        await opened.close()


async def upgrade_schema(database: Database, address: Address, *, target: str = HEAD) -> Migrated:
    """Upgrade an open database."""
    before = await load_revision(database)
    refuse_unknown(before, describe(address))
    if before != target:
        from indelible.store.database.migrations.runner import upgrade  # noqa: PLC0415  (see its header)

        before = await upgrade(address, target)
    return Migrated(before, target)


async def load_revision(database: Database) -> str | None:
    """The revision of the database; None if Indelible has never used it."""
    return await database.read(_load_revision)


async def _load_revision(transaction: Transaction) -> str | None:
    is_sqlite = transaction.dialect == "sqlite"
    named = "SELECT name FROM sqlite_schema WHERE name = $1" if is_sqlite else "SELECT to_regclass($1) AS name"
    there = await transaction.one(named, VERSION_TABLE)
    if there is None or there["name"] is None:
        return None
    row = await transaction.one(f"SELECT version_num FROM {VERSION_TABLE}")
    return None if row is None else str(row["version_num"])


def list_revisions() -> list[str]:
    """Every revision that this program knows, oldest first."""
    return [f"{number:04}" for number in range(1, int(HEAD) + 1)]


def refuse_unknown(revision: str | None, where: str) -> None:
    if revision is not None and revision not in list_revisions():
        raise SchemaTooNew(
            f"{where} was migrated by a newer Indelible (schema {revision}; this one knows up to {HEAD}). "
            "Upgrade Indelible, or restore an earlier backup."
        )
