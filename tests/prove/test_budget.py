"""What running turns can bear: a proof that drives the product into giving up on purpose would prove nothing."""

from __future__ import annotations

from tests.support.json_client import JsonClient

from indelible.prove.faults import KillBudget
from indelible.prove.script import Wish
from indelible.prove.servers import Orders, run_servers
from indelible.store.database.migrate import open_database

SLOW_WISH = Wish(number=1, words=400, pace_ms=20)


async def test_a_turn_bears_two_more_deaths_and_one_less_while_it_is_owed_a_takeover(orders: Orders) -> None:
    async with run_servers(orders, count=1) as [server], JsonClient(server.url) as client:
        opened = await open_database(orders.database)
        budget = KillBudget(opened)
        assert not await budget.can_bear(1), "nothing runs"

        chat_id = (await client.create_chat(SLOW_WISH.to_text()))["id"]
        async for event in client.stream_events(chat_id, after="start"):
            if event.kind == "part":
                break
        assert [await budget.can_bear(deaths) for deaths in (1, 2, 3)] == [True, True, False]

        await server.process.kill()
        await budget.note_death()
        assert [await budget.can_bear(deaths) for deaths in (1, 2)] == [True, False]
        await opened.close()
