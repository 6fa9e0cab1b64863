"""Locks of sessions on a real PostgreSQL: seen while held, free when their connection has ended, and proved first."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.databases import execute
from tests.support.pooler import Pooler
from tests.support.waiting import poll_until

from indelible.clock import SystemClock
from indelible.store.database.address import parse_address
from indelible.store.database.migrate import migrate, open_database
from indelible.store.database.session_lock import APPLICATION_NAME, FreeLock, LockSession, make_key
from indelible.store.store import Store

LEASE_S = 3600.0
HELD_FOR_EVER = """
CREATE VIEW pretended.pg_locks AS
SELECT 'advisory'::text AS locktype, d.oid AS database, k.key >> 32 AS classid, k.key & 4294967295 AS objid,
    1::smallint AS objsubid, true AS granted
FROM pretended.keys AS k, pg_database AS d WHERE d.datname = current_database()
"""


@pytest.fixture
async def address(new_postgres: str) -> str:
    await migrate(new_postgres)
    return new_postgres


async def open_session(address: str) -> LockSession:
    return await LockSession.open(parse_address(address).make_postgres_options())


async def register(address: str, **keys: int | None) -> None:
    database = await open_database(parse_address(address))
    for worker_id, key in keys.items():
        await Store(database).beat(worker_id, lock_key=key)
    await database.close()


async def prove(address: str) -> bool:
    session = await open_session(address)
    try:
        return await session.prove(SystemClock())
    finally:
        session.terminate()


async def test_a_lock_is_found_free_when_its_connection_has_ended_and_not_before(address: str) -> None:
    key, other_key = make_key(), make_key()
    await register(address, worker_1=key, worker_2=other_key, worker_3=None)
    looking, holding, other = [await open_session(address) for _ in range(3)]
    await holding.hold(key)
    await other.hold(other_key)
    assert (await looking.check(None, lease_timeout_s=LEASE_S)).free == []
    holding.terminate()

    async def is_free() -> bool:
        return (await looking.check(None, lease_timeout_s=LEASE_S)).free == [FreeLock("worker_1", key)]

    await poll_until(is_free)
    assert (await looking.check(None, lease_timeout_s=0)).free == [], "its lease has run out: everybody knows"
    for session in (looking, other):
        session.terminate()


async def test_a_second_session_takes_the_lock_at_once_though_the_server_still_has_the_first(address: str) -> None:
    key = make_key()
    await register(address, worker_1=key)
    silent, second = await open_session(address), await open_session(address)
    await silent.hold(key)
    async with asyncio.timeout(100):
        await second.hold(key)
    silent.terminate()
    assert (await second.check(None, lease_timeout_s=LEASE_S)).free == []
    second.terminate()


async def test_whoever_holds_a_lock_learns_that_the_server_ended_its_connection(address: str) -> None:
    lost = asyncio.Event()
    session = await LockSession.open(parse_address(address).make_postgres_options(), lost.set)
    await session.hold(make_key())
    operator = await asyncpg.connect(address)
    ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1"
    assert await operator.fetchval(f"{ended} AND datname = current_database()", APPLICATION_NAME) == 1
    async with asyncio.timeout(100):
        await lost.wait()
    assert session.is_lost
    await operator.close()


async def test_a_connection_for_locks_is_never_in_a_transaction_and_its_server_never_ends_it_for_being_idle(
    address: str,
) -> None:
    name = address.rpartition("?")[0].rpartition("/")[2]
    await execute(address, f"ALTER DATABASE {name} SET idle_session_timeout = '1h'")
    session = await open_session(address)
    await session.hold(make_key())
    await session.check(None, lease_timeout_s=LEASE_S)
    operator = await asyncpg.connect(address)
    row = await operator.fetchrow("SELECT state FROM pg_stat_activity WHERE application_name = $1", APPLICATION_NAME)
    assert row["state"] == "idle"
    assert await session._driver.fetchval("SHOW idle_session_timeout") == "0"
    await operator.close()
    session.terminate()


# --- proved first ---


async def test_locks_that_hold_are_proved(address: str) -> None:
    assert await prove(address)


async def test_a_pooler_that_keeps_the_connections_of_clients_that_are_gone_is_not_relied_on(own_postgres: str) -> None:
    async with Pooler(own_postgres, session=True).listening() as address:
        assert not await prove(address)


async def pretend(address: str, *statements: str) -> None:
    """A database that has those functions and views, and something else in them."""
    name = address.rpartition("?")[0].rpartition("/")[2]
    path = f"ALTER DATABASE {name} SET search_path = pretended, pg_catalog, public"
    await execute(address, "CREATE SCHEMA pretended", *statements, path)


async def test_locks_that_are_accepted_and_not_held_are_not_relied_on(address: str) -> None:
    accepts = "CREATE FUNCTION pretended.pg_advisory_lock_shared(bigint) RETURNS void LANGUAGE sql AS ''"
    await pretend(address, accepts)
    assert not await prove(address)


async def test_locks_that_outlive_their_connection_are_not_relied_on(address: str) -> None:
    takes = "INSERT INTO pretended.keys VALUES ($1)"
    accepts = f"CREATE FUNCTION pretended.pg_advisory_lock_shared(bigint) RETURNS void LANGUAGE sql AS '{takes}'"
    await pretend(address, "CREATE TABLE pretended.keys (key bigint)", HELD_FOR_EVER, accepts)
    assert not await prove(address)


async def test_a_database_that_does_not_show_its_locks_is_not_relied_on(address: str) -> None:
    await pretend(address, "CREATE VIEW pretended.pg_locks AS SELECT 1 AS nothing")
    assert not await prove(address)


async def test_a_server_that_goes_away_while_locks_are_proved_proves_nothing(address: str) -> None:
    """A process that starts then tries again, and does not rely on the lease alone for as long as it lives."""
    ends = "SELECT pg_terminate_backend(pg_backend_pid())"
    goes = f"CREATE FUNCTION pretended.pg_advisory_lock_shared(bigint) RETURNS boolean LANGUAGE sql AS '{ends}'"
    await pretend(address, goes)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await prove(address)
