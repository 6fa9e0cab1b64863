"""Proofs of this very build: on both databases it keeps its promises, whichever way a server goes away.

Leases are short here and eight kills are few; `indelible prove --kills 300` in a spare hour is the real thing.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.support.json_client import JsonClient

from indelible.prove.provider import WIRES
from indelible.prove.report import describe_verdict, print_report
from indelible.prove.run import DatabaseNotEmpty, Plan, prove, prove_server
from indelible.prove.servers import Orders, run_servers

SEEDS = {"sqlite": 3, "postgresql": 23}
"""Of the ways in which a server can go away, each is tried under one of them or both."""


@pytest.mark.both_databases
async def test_eight_kills_on_each_database_lose_nothing(database: str) -> None:
    seed = SEEDS["postgresql" if database.startswith("postgresql") else "sqlite"]

    report = await prove(Plan(seed=seed, database=database, kills=8, chats=4, short_leases=True, retry_for_s=60))

    assert report.is_proof, describe_verdict(report)
    assert sum(report.kills.values()) == 8
    assert report.reconnects > 0
    assert report.words > 0
    assert report.model_calls.keys() == set(WIRES)
    assert 0 < report.interrupted_calls < sum(report.model_calls.values())


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
async def test_kills_of_the_redis_between_two_servers_lose_nothing(database: str) -> None:
    plan = Plan(seed=5, database=database, kills=6, chats=4, short_leases=True, retry_for_s=60)

    report = await prove(replace(plan, ways=("sigkill",), has_redis=True))

    assert report.is_proof, describe_verdict(report)
    assert report.kills == {"redis": 3, "sigkill": 3}
    print_report(report, Console(file=(shown := StringIO()), width=150))
    assert "kill -9 of the Redis between the servers" in shown.getvalue()


async def test_a_server_of_somebody_else_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    orders = Orders(database=str(tmp_path / "chats.db"), directory=tmp_path)
    async with run_servers(orders, count=1) as [server]:
        report = await prove_server(server.url, seed=1, chats=1, seconds=0)

        assert report.is_proof, describe_verdict(report)
        assert report.kills == {}
        assert sum(report.replies.values()) >= 1

    again = await prove(Plan(seed=1, database=orders.database, kills=0, chats=1, seconds=0))
    assert again.is_proof, "the chats of a proof are deleted in the end"


async def test_a_database_with_chats_in_it_is_refused(tmp_path: Path) -> None:
    orders = Orders(database=str(tmp_path / "chats.db"), directory=tmp_path)
    async with run_servers(orders, count=1) as [server], JsonClient(server.url) as client:
        await client.create_chat()

    with pytest.raises(DatabaseNotEmpty, match="has chats or files in it"):
        await prove(Plan(seed=1, database=orders.database))
