"""Upgrading a database, at the start of every process and by `indelible migrate`.

The revisions in migrations/versions run in one transaction: a database is never half migrated. Two processes that
start together are safe: the first has the lock (SQLite's write lock, an advisory lock on PostgreSQL), the second waits
for it and then finds nothing to do. A database that is up to date is only read, without importing Alembic or
SQLAlchemy (migrations/runner.py).

There is no downgrade. A database that a newer Indelible has migrated is refused, because this version does not know
the rules of the new tables. An upgrade is refused while a process of an earlier version works on the database, which
does not know the new ones: on PostgreSQL while its worker beats, on SQLite while it also holds the file. A process of
this version cannot be meant: it beats after the upgrade, and both are read in one snapshot.

Must stay true (tests/store/test_migrations.py): the migrations build exactly tables/ on both databases, and an
upgrade preserves existing data; nothing is migrated under a running process.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from indelible.store.database.address import Address, describe, parse_address
from indelible.store.database.errors import DatabaseUnusable, SchemaTooNew
from indelible.store.database.open import open_database
from indelible.store.database.sqlite.file_lock import is_held_elsewhere
from indelible.store.database.transaction import Database, Transaction

HEAD: Final = "0018"
"""The newest revision in migrations/versions."""

VERSION_TABLE: Final = "indelible_schema"
"""The table that stores the revision. Not Alembic's default name, which another program in the database may use."""


LEASE_TIMEOUT_S: Final = 8.0
"""How long a worker without a heartbeat counts as alive, if no setting says otherwise."""


class Migrated(NamedTuple):
    """The revisions before and after an upgrade. `before` is None for a new database."""

    before: str | None
    after: str


class OldProcessesRunning(DatabaseUnusable):
    """Processes of an earlier version work on the database, so it is not migrated under them."""


async def migrate(
    database: str | Path, *, target: str = HEAD, lease_timeout_s: float = LEASE_TIMEOUT_S, force: bool = False
) -> Migrated:
    """Upgrade the database; create it if the file is new. Safe to run concurrently.

    Raises `OldProcessesRunning` if a worker of an earlier version is alive, unless `force`.
    """
    address = parse_address(database)
    opened = await open_database(address)
    try:
        return await upgrade_schema(opened, address, target=target, lease_timeout_s=lease_timeout_s, force=force)
    finally:
        await opened.close()


async def upgrade_schema(
    database: Database,
    address: Address,
    *,
    target: str = HEAD,
    lease_timeout_s: float = LEASE_TIMEOUT_S,
    force: bool = False,
) -> Migrated:
    """Upgrade an open database. See `migrate`."""
    before = await load_revision(database)
    refuse_unknown(before, describe(address))
    if before != target:
        if before is not None and not force:
            await _refuse_running(database, address, target, lease_timeout_s)
        from indelible.store.database.migrations.runner import upgrade  # noqa: PLC0415  (see its header)

        before = await upgrade(address, target)
    return Migrated(before, target)


async def _refuse_running(database: Database, address: Address, target: str, lease_timeout_s: float) -> None:
    """On SQLite a heartbeat alone proves nothing: it may be of a process that was killed a moment ago."""
    revision, count = await database.read(partial(_count_beating, lease_timeout_s=lease_timeout_s))
    if revision == target or not count or (address.is_sqlite and not is_held_elsewhere(address.path)):
        return
    processes = "1 process" if count == 1 else f"{count} processes"
    raise OldProcessesRunning(
        f"{describe(address)} has schema {revision}, and {processes} of an earlier Indelible may be working on it. "
        f"Stop every old process and repeat this; after a crash, wait {lease_timeout_s:g} s. "
        "To upgrade nevertheless, run “indelible migrate --force”."
    )


async def _count_beating(transaction: Transaction, *, lease_timeout_s: float) -> tuple[str | None, int]:
    """The revision, and how many workers are alive, at one moment."""
    since = await transaction.now() - timedelta(seconds=lease_timeout_s)
    row = await transaction.one("SELECT count(*) AS beating FROM workers WHERE heartbeat_at > $1", since)
    return await _load_revision(transaction), row["beating"]


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
