"""One, two and four processes on one PostgreSQL: what they deliver, and what that costs them and the database.

Two ways to split the work: every process serves and works (`serve`), with the users spread over them; or one process
serves (`serve --no-worker`) and the others work. In both, most readers are not on the process that writes their reply,
which is what a hint and two statements per hinted chat pay for (docs/feed.md).

On a machine of two cores four processes cannot deliver more than two. What counts is the cost per token, and the
number of commits, notifications and connections.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from bench.findings import quantile
from bench.options import IS_FULL
from bench.over_http.contenders import (
    Contender,
    count_cpu_s,
    find_postmaster,
    start_indelible,
    start_provider,
    start_worker,
)
from bench.over_http.measure import run_load
from indelible.notify import CHANNEL
from indelible.prove.redis import RedisServer

CHATS: Final = 100
_TOKENS: Final = 250 if IS_FULL else 150
_RATE: Final = 50
_SETTLE_S: Final = 1.2  # a backend reports its statistics once a second

_COUNT: Final = """
SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()) AS commits,
    (SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'journal') AS rows,
    pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS wal_bytes
"""
_COUNT_CONNECTIONS: Final = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'indelible%'"


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """So many processes that serve, and so many workers beside them. `is_mixed`: those that serve also work.

    `has_redis`: rows go through Redis (feed/fanout.py).
    """

    name: str
    serving: int
    working: int = 0
    is_mixed: bool = True
    has_redis: bool = False


_WITHOUT: Final = (
    *(Topology(name=f"{count} × serve", serving=count) for count in (1, 2, 4)),
    *(
        Topology(name=f"1 × serve --no-worker, {count} × worker", serving=1, working=count, is_mixed=False)
        for count in (1, 2, 4)
    ),
)
TOPOLOGIES: Final = tuple(
    each
    for topology in _WITHOUT
    for each in (topology, msgspec.structs.replace(topology, name=f"{topology.name}, Redis", has_redis=True))
)
"""Each without and with Redis, one after the other: what disturbs a moment disturbs both."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one topology did. `cpu_s` has one value for each process, those that serve first."""

    topology: Topology
    turns: int
    words: int
    wall_s: float
    cpu_s: list[float]
    database_cpu_s: float
    redis_cpu_s: float
    commits: int
    rows: int
    wal_bytes: int
    notifications: int
    connections: int
    first_p50_s: float
    gap_p99_s: float
    out_of_order: int


async def run_topology(topology: Topology, address: str, place: Path) -> Run:
    async with AsyncExitStack() as stack:
        port = stack.enter_context(start_provider(_TOKENS, _RATE))
        options = () if topology.is_mixed else ("--no-worker",)
        redis = await stack.enter_async_context(RedisServer().running()) if topology.has_redis else None
        url = "" if redis is None else redis.url
        pids = [stack.enter_context(start_worker(port, address, place, redis_url=url)) for _ in range(topology.working)]
        servers = [
            stack.enter_context(start_indelible(port, address, place, *options, redis_url=url))
            for _ in range(topology.serving)
        ]
        pids = [server.pid for server in servers] + pids
        watching = await asyncpg.connect(address)
        stack.push_async_callback(watching.close)
        notifications = 0

        def note(*_: object) -> None:
            nonlocal notifications
            notifications += 1

        await asyncio.gather(*(_load(server, 2) for server in servers))
        await watching.add_listener(CHANNEL, note)
        before, cpu_s = await _count(watching), [count_cpu_s(pid) for pid in pids]
        postmaster = find_postmaster(address)
        database_cpu_s, notifications = count_cpu_s(postmaster), 0
        redis_cpu_s = 0.0 if redis is None else count_cpu_s(redis.pid)
        loads = await asyncio.gather(*(_load(server, CHATS // len(servers)) for server in servers))
        cpu_s = [count_cpu_s(pid) - was_s for pid, was_s in zip(pids, cpu_s, strict=True)]
        database_cpu_s = count_cpu_s(postmaster) - database_cpu_s
        redis_cpu_s = 0.0 if redis is None else count_cpu_s(redis.pid) - redis_cpu_s
        connections = await watching.fetchval(_COUNT_CONNECTIONS)
        sent = notifications
        after = await _count(watching)
    words, expected = sum(load.words for load in loads), CHATS // len(servers) * len(servers) * _TOKENS
    if words != expected:
        raise RuntimeError(f"{topology.name}: {words} of {expected} words arrived.")
    return Run(
        topology=topology,
        turns=sum(load.turns for load in loads),
        words=words,
        wall_s=max(load.wall_s for load in loads),
        cpu_s=cpu_s,
        database_cpu_s=database_cpu_s,
        redis_cpu_s=redis_cpu_s,
        commits=after["commits"] - before["commits"],
        rows=after["rows"] - before["rows"],
        wal_bytes=after["wal_bytes"] - before["wal_bytes"],
        notifications=sent,
        connections=connections,
        first_p50_s=quantile([each for load in loads for each in load.first_s], 0.5),
        gap_p99_s=quantile([each for load in loads for each in load.gaps_s], 0.99),
        out_of_order=sum(load.out_of_order for load in loads),
    )


async def _load(server: Contender, chats: int) -> Any:
    return await asyncio.to_thread(run_load, server, chats=chats, turns_each=1)


async def _count(watching: Any) -> Any:
    await asyncio.sleep(_SETTLE_S)
    return await watching.fetchrow(_COUNT)
