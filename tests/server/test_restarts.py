"""Servers that are killed and replaced while many clients read: everybody ends with the text that is stored, once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tests.server.forwarder import Forwarder
from tests.support.counting_model import ask_to_count, count
from tests.support.json_client import JsonClient
from tests.support.process_harness import SHORT_LEASES, ProcessHarness, choose_port
from tests.support.running_server import read_text
from tests.support.waiting import Watched, deadline

import indelible
from indelible.api.events import FeedEvent


@pytest.fixture
async def processes(database: str, tmp_path: Path) -> AsyncIterator[ProcessHarness]:
    async with ProcessHarness(database, tmp_path).opened() as opened:
        yield opened


class Listener(Watched):
    """One client of one chat, who reads from the beginning until so many turns have ended."""

    def __init__(self, client: JsonClient, chat_id: str) -> None:
        super().__init__()
        self.chat_id = chat_id
        self.reconnects = 0
        self.text = ""
        self._client = client
        self._events: list[FeedEvent] = []

    async def listen(self, turns: int) -> None:
        reading = self._client.stream_events(self.chat_id, after="start", on_reconnect=self._note_reconnect)
        async with deadline(), aclosing(reading) as feed:
            async for event in feed:
                self._events.append(event)
                self.text += read_text([event])
                self.changed()
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


async def wait_for_text(listeners: Sequence[Listener]) -> None:
    """Until each of them has received some."""
    for listener in listeners:
        await listener.wait_until(lambda listener=listener: bool(listener.text), what="text")  # type: ignore[misc]


@asynccontextmanager
async def many_clients(url: str, count_: int) -> AsyncIterator[list[JsonClient]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(JsonClient(url)) for _ in range(count_)]


async def load_stored_texts(database: str, ids: list[str]) -> set[str]:
    """What the replies of each chat say in the database, read past every server."""
    async with indelible.open(database, worker=False) as app:
        histories = [await (await app.chat(chat_id)).messages() for chat_id in ids]
    return {"".join(message.text for message in messages if message.role == "assistant") for messages in histories}


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_two_hundred_clients_of_a_server_that_is_killed_end_with_the_text_of_the_database(
    database: str, processes: ProcessHarness
) -> None:
    words, chats, clients_per_chat = 60, 50, 4
    server = await processes.start_server(port=choose_port(), **SHORT_LEASES)
    async with many_clients(server.url, chats * clients_per_chat) as clients:
        wish = ask_to_count(words, pace_ms=5)
        created = await asyncio.gather(*(client.create_chat(wish) for client in clients[:chats]))
        ids = [chat["id"] for chat in created]
        listeners = [Listener(client, chat_id) for client, chat_id in zip(clients, itertools.cycle(ids), strict=False)]
        async with asyncio.TaskGroup() as group:
            for listener in listeners:
                group.create_task(listener.listen(turns=1))
            await wait_for_text(listeners)
            await server.kill()
            await processes.start_server(port=server.port, **SHORT_LEASES)
            processes.finish_replies()

    assert len(listeners) == 200
    assert {listener.reconnects for listener in listeners} == {1}
    assert {listener.text for listener in listeners} == {count(words)}
    assert await load_stored_texts(database, ids) == {count(words)}
    for listener in listeners:
        listener.check()


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
async def test_a_rolling_restart_costs_a_client_one_reconnect_at_most_and_no_word(
    database: str, processes: ProcessHarness
) -> None:
    """A new server comes up and gets what is new; an old one leaves; then the same with the other."""
    words, chats, clients_per_chat = 100, 10, 3
    old = [await processes.start_server(), await processes.start_server()]
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
            await wait_for_text(listeners)
            for leaving in old:
                new = await processes.start_server()
                balancer.targets = [new.url]
                await leaving.stop()
            processes.finish_replies()

    assert {listener.reconnects for listener in listeners} == {1}
    assert {listener.text for listener in listeners} == {count(words) + count(3)}
    assert await load_stored_texts(database, ids) == {count(words) + count(3)}
    for listener in listeners:
        listener.check()
