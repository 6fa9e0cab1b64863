"""PostgreSQL behind a pooler, and with defaults of its own (S99)."""

from __future__ import annotations

import pytest
from tests.databases import execute
from tests.support.pooler import Pooler

import indelible
from indelible.store.database.errors import DatabaseUnusable
from indelible.store.database.migrate import open_database
from indelible.store.database.transaction import Transaction


async def test_s99_a_pooler_that_assigns_connections_per_transaction_is_refused_at_the_start(own_postgres: str) -> None:
    async with Pooler(own_postgres).listening() as address:
        with pytest.raises(DatabaseUnusable, match="session mode"):
            await open_database(address)


async def test_s99_a_pooler_whose_sessions_are_sessions_works(own_postgres: str) -> None:
    pooler = Pooler(own_postgres, session=True)
    async with pooler.listening() as address, indelible.open(address, worker=False) as app:
        chat = await app.create_chat(title="Rain")
        assert await chat.status() == "idle"


async def read_level(transaction: Transaction) -> tuple[str, str]:
    isolation = await transaction.one("SHOW transaction_isolation")
    durable = await transaction.one("SHOW synchronous_commit")
    return isolation["transaction_isolation"], durable["synchronous_commit"]


async def change_defaults(transaction: Transaction) -> None:
    """As whoever had the connection before us could have done."""
    await transaction.run("SET default_transaction_isolation = 'serializable'")
    await transaction.run("SET synchronous_commit = off")


async def test_s99_every_transaction_is_read_committed_and_durable_whatever_the_session_says(new_postgres: str) -> None:
    name = new_postgres.rpartition("?")[0].rpartition("/")[2]
    await execute(
        new_postgres,
        f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'",
        f"ALTER DATABASE {name} SET synchronous_commit = off",
    )
    database = await open_database(new_postgres)
    try:
        assert await database.write(read_level) == ("read committed", "on")
        await database.write(change_defaults)
        assert await database.write(read_level) == ("read committed", "on")
    finally:
        await database.close()
