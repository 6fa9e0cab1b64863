"""Servers that are killed and replaced while many clients read: everybody ends with the text that is stored, once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tests.faults.counting import ask_to_count, count
from tests.faults.fleet import SHORT_LEASES, wait_until
from tests.server.forwarder import Forwarder
from tests.server.hosting import Hosts, choose_port, open_hosts
from tests.server.serving import PATIENCE_S, read_text

import indelible
from indelible.client.wire import ServerEvent, WireClient


@pytest.fixture
async def hosts(database: str, tmp_path: Path) -> AsyncIterator[Hosts]:
    async with open_hosts(database, tmp_path) as opened:
        yield opened


class Listener:
    """One client of one chat, who reads from the beginning until so many turns have ended."""

    def __init__(self, client: WireClient, chat_id: str) -> None:
        self.chat_id = chat_id
        self.reconnects = 0
        self.text = ""
        self._client = client
        self._events: list[ServerEvent] = []

    async def listen(self, turns: int) -> None:
        reading = self._client.stream_events(self.chat_id, after="start", on_reconnect=self._note_reconnect)
        async with asyncio.timeout(PATIENCE_S), aclosing(reading) as feed:
            async for event in feed:
                self._events.append(event)
                self.text += read_text([event])
                turns -= event.kind == "status" and event.data.get("ended") is not None
                if turns == 0:
                    return

    def _note_reconnect(self) -> None:
        self.reconnects += 1

    def check(self) -> None:
        """Nothing was told twice."""
        cursors = [event.cursor for event in self._events]
        assert len(set(cursors)) == len(cursors)
        assert not {event.kind for event in self._events} & {"snapshot", "resync", "end"}


@asynccontextmanager
async def many_clients(url: str, count_: int) -> AsyncIterator[list[WireClient]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(WireClient(url)) for _ in range(count_)]


async def load_stored_texts(database: str, ids: list[str]) -> set[str]:
    """What the replies of each chat say in the database, read past every server."""
    async with indelible.open(database, worker=False) as app:
        histories = [await (await app.chat(chat_id)).messages() for chat_id in ids]
    return {"".join(message.text for message in messages if message.role == "assistant") for messages in histories}


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_two_hundred_clients_of_a_server_that_is_killed_end_with_the_text_of_the_database(
    database: str, hosts: Hosts
) -> None:
    words, chats, clients_per_chat = 60, 50, 4
    server = await hosts.start(port=choose_port(), **SHORT_LEASES)
    async with many_clients(server.url, chats * clients_per_chat) as clients:
        wish = ask_to_count(words, pace_ms=5)
        created = await asyncio.gather(*(client.create_chat(wish) for client in clients[:chats]))
        ids = [chat["id"] for chat in created]
        listeners = [Listener(client, chat_id) for client, chat_id in zip(clients, itertools.cycle(ids), strict=False)]
        async with asyncio.TaskGroup() as group:
            for listener in listeners:
                group.create_task(listener.listen(turns=1))
            await wait_until(lambda: all(listener.text for listener in listeners), what="everybody hears something")
            await server.kill()
            await hosts.start(port=server.port, **SHORT_LEASES)
            hosts.hurry()

    assert len(listeners) == 200
    assert {listener.reconnects for listener in listeners} == {1}
    assert {listener.text for listener in listeners} == {count(words)}
    assert await load_stored_texts(database, ids) == {count(words)}
    for listener in listeners:
        listener.check()


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
async def test_a_rolling_restart_costs_a_client_one_reconnect_at_most_and_no_word(database: str, hosts: Hosts) -> None:
    """A new server comes up and gets what is new; an old one leaves; then the same with the other."""
    words, chats, clients_per_chat = 100, 10, 3
    old = [await hosts.start(), await hosts.start()]
    async with (
        Forwarder([server.url for server in old]).listening() as balancer,
        many_clients(balancer.url, chats * clients_per_chat) as clients,
    ):
        listeners = []
        ids = [(await clients[0].create_chat())["id"] for _ in range(chats)]
        async with asyncio.TaskGroup() as group:
            for client, chat_id in zip(clients, itertools.cycle(ids), strict=False):
                listeners.append(Listener(client, chat_id))
                group.create_task(listeners[-1].listen(turns=2))
                balancer.targets.reverse()
            for client, chat_id in zip(clients, ids, strict=False):
                await client.send(chat_id, ask_to_count(words, pace_ms=5))
                await client.send(chat_id, ask_to_count(3, pace_ms=5))
            await wait_until(lambda: all(listener.text for listener in listeners), what="everybody hears something")
            for leaving in old:
                new = await hosts.start()
                balancer.targets = [new.url]
                await leaving.leave()
            hosts.hurry()

    assert {listener.reconnects for listener in listeners} == {1}
    assert {listener.text for listener in listeners} == {count(words) + count(3)}
    assert await load_stored_texts(database, ids) == {count(words) + count(3)}
    for listener in listeners:
        listener.check()
