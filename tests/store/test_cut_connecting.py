"""PostgreSQL going away while a connection is being set up, after any byte (S95)."""

from __future__ import annotations

import pytest
from tests.log_records import DATABASE_AWAY
from tests.support.cutting_cable import CuttingCable

from indelible.store.database.address import parse_address
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.database.postgres import PostgresDatabase
from indelible.store.database.transaction import Transaction

pytestmark = pytest.mark.may_log(*DATABASE_AWAY)

EVERY = 12
"""All bytes would take half a minute."""


async def ask(transaction: Transaction) -> int:
    row = await transaction.one("SELECT 1 AS one")
    return int(row["one"])


@pytest.fixture
def cable(new_postgres: str) -> CuttingCable:
    return CuttingCable(new_postgres)


@pytest.mark.parametrize("is_rude", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("start", [0, 5])
async def test_s95_wherever_a_new_connection_is_cut_the_database_is_unreachable_and_nothing_else(
    cable: CuttingCable, start: int, is_rude: bool
) -> None:
    async with cable.plugged_in() as address:
        database = PostgresDatabase(parse_address(address).make_postgres_options(), where="the server", connections=1)
        assert await database.read(ask) == 1
        setup_bytes = cable.longest
        cable.is_rude = is_rude
        for place in range(start, setup_bytes, EVERY):
            await cable.cut()
            cable.cut_after = place
            with pytest.raises(DatabaseUnreachable):
                await database.read(ask)
        cable.cut_after = None
        assert await database.read(ask) == 1
        await database.close()
    assert cable.cuts >= setup_bytes // EVERY
