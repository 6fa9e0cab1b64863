"""When nobody says anything: memory of a chat and of an open feed, and CPU per second.

Memory is what the server's process has more afterwards, divided; what the first requests load for good is taken before.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from bench.findings import Finding
from bench.over_http.contenders import count_cpu_s, count_memory_bytes, start_indelible, start_provider
from bench.over_http.wire import Client

_WARMING: Final = 500
_CHATS: Final = 10_000
_CLIENTS: Final = 20
_FEEDS: Final = 500
_REST_S: Final = 5.0


async def measure_idle(name: str, address: str, place: Path, beside: tuple[int, ...]) -> list[Finding]:
    with start_provider(1, 0) as port, start_indelible(port, address, place) as server:
        clients = [Client(server.url) for _ in range(_CLIENTS)]
        chat_ids = await _create(clients, _WARMING)
        before_bytes = count_memory_bytes(server.pid)
        chat_ids += await _create(clients, _CHATS)
        after_bytes = count_memory_bytes(server.pid)
        chats_s, _ = await _rest(server.pid, beside)
        async with AsyncExitStack() as feeds:
            await _open_feeds(feeds, clients[0], chat_ids[: _FEEDS // 10])
            empty_bytes = count_memory_bytes(server.pid)
            await _open_feeds(feeds, clients[0], chat_ids[-_FEEDS:])
            full_bytes = count_memory_bytes(server.pid)
            feeds_s, database_s = await _rest(server.pid, beside)
        for client in clients:
            client.close()
    return [
        Finding(
            what=f"memory of an idle chat ({_CHATS:,} created)",
            database=name,
            value=(after_bytes - before_bytes) / _CHATS / 1e3,
            unit="kB",
        ),
        Finding(
            what=f"memory of an open idle feed ({_FEEDS})",
            database=name,
            value=(full_bytes - empty_bytes) / _FEEDS / 1e3,
            unit="kB",
            aim=60,
        ),
        Finding(what=f"CPU per second, {_CHATS:,} chats at rest", database=name, value=chats_s * 1e3, unit="ms"),
        Finding(what=f"CPU per second, and {_FEEDS} open feeds", database=name, value=feeds_s * 1e3, unit="ms"),
        Finding(what="CPU per second of the database then", database=name, value=database_s * 1e3, unit="ms"),
    ]


async def _create(clients: list[Client], count: int) -> list[str]:
    async def create(client: Client) -> list[str]:
        return [(await client.post("/api/v1/chats", {}))["id"] for _ in range(count // len(clients))]

    return [chat_id for created in await asyncio.gather(*map(create, clients)) for chat_id in created]


async def _open_feeds(feeds: AsyncExitStack, client: Client, chat_ids: list[str]) -> None:
    for chat_id in chat_ids:
        events = await feeds.enter_async_context(client.open_feed(chat_id))
        await events.wait_for(b"event: snapshot")


async def _rest(pid: int, beside: tuple[int, ...]) -> tuple[float, float]:
    """CPU seconds per second of the server and of its database."""
    before_s, database_s = count_cpu_s(pid), count_cpu_s(*beside)
    await asyncio.sleep(_REST_S)
    return (count_cpu_s(pid) - before_s) / _REST_S, (count_cpu_s(*beside) - database_s) / _REST_S
