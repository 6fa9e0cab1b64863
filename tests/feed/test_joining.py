"""Readers that join, leave and come back while a chat is written, in random order, on real databases.

Each client keeps what a page would keep: the messages of the conversation and the preview of the running reply. A
snapshot replaces both. Whenever a message ends an attempt, the preview has to be what the message says; at the
end every client has to have the conversation that the store has.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.feed.feed_harness import FeedHarness, StreamedChat
from tests.support.examples import count_examples

from indelible.api.events import FeedEvent
from indelible.content import Finish, Text, decode_blocks, encode
from indelible.feed.events import START, covers
from indelible.machine.commands import CommitStep, FinishTurn, Send, UpdateChat
from indelible.store.payloads import ChatPatch

pytestmark = pytest.mark.both_databases

IMDEADLINE_S = 0.05
"""How long a client waits before it wonders whether that was all. It goes on waiting for the same event then: one that
began anew each time would come to no end on a slow machine."""

SEEDS = range(min(count_examples(4), 200))


class Client:
    """Reads a chat in pieces, and comes back each time with the cursor of the last event, or with none."""

    def __init__(self, harness: FeedHarness, chat: StreamedChat, chance: Random) -> None:
        self.cursor: str | None = chance.choice([None, START])
        self.messages: list[str] = []
        self.preview = ""
        self.attempt: str | None = None
        self._harness = harness
        self._chat = chat
        self._chance = chance

    async def read(self, written: asyncio.Event) -> None:
        while not await self._read_some(written):
            if self._chance.random() < 0.2:
                self.cursor = None

    async def _read_some(self, written: asyncio.Event) -> bool:
        """Whether all was read that will ever come."""
        async with self._harness.feed.open(self._chat.id, self.cursor) as reader:
            taking: asyncio.Future[FeedEvent] | None = None
            try:
                for _ in range(self._chance.randrange(1, 12)):
                    if written.is_set() and reader.position is not None:
                        here = (await self._harness.store.positions([self._chat.id]))[self._chat.id]
                        if covers(reader.position, here):
                            return True
                    taking = taking or asyncio.ensure_future(anext(reader))
                    if (await asyncio.wait([taking], timeout=IMDEADLINE_S))[0]:
                        self._apply(taking.result())
                        taking = None
            finally:
                await self._give_up(taking)
        return False

    async def _give_up(self, taking: asyncio.Future[FeedEvent] | None) -> None:
        """Leave in the middle of a wait for the next event. One that came at that moment counts."""
        if taking is not None:
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                self._apply(taking.result())

    def _apply(self, event: FeedEvent) -> None:
        assert event.kind not in {"end", "resync"}
        self.cursor = event.cursor
        if event.kind == "snapshot":
            self.messages = [message["id"] for message in event.data["messages"]]
            live = event.data["live"]
            self.attempt = live and live["attempt"]
            self.preview = read_text(live["blocks"]) if live else ""
        elif event.kind == "attempt":
            assert self.attempt is None
            self.attempt, self.preview = event.data["attempt"], ""
        elif event.kind == "part":
            assert event.data["attempt"] == self.attempt
            self.preview += "".join(part.text for part in event.parts)
        elif event.kind == "message":
            assert event.data["message"]["id"] not in self.messages
            self.messages.append(event.data["message"]["id"])
            if event.data["attempt"] is not None:
                assert read_text(event.data["message"]["blocks"]) == self.preview
        if event.kind != "snapshot" and event.data.get("last_n") is not None:
            assert event.data["attempt"] == self.attempt
            self.attempt = None


def read_text(blocks: list[dict[str, str]]) -> str:
    return "".join(block.text for block in decode_blocks(encode(blocks)) if isinstance(block, Text))


async def write(chat: StreamedChat, chance: Random) -> None:
    """A few turns: steps of some flushes, with other facts between them, at an uneven pace."""
    for turn in range(3):
        if turn > 0:
            await chat.do(Send(), f"Question {turn}")
        await chat.acquire()
        for last in (False, False, True):
            await chat.start()
            for number in range(chance.randrange(6)):
                if chance.random() < 0.2:
                    await chat.do(UpdateChat(), payload=ChatPatch(title=f"Title {number}"))
                if chance.random() < 0.2:
                    chat.harness.publishes_rows = False  # as if another process committed this
                await chat.write(f"{turn}.{number} ")
                chat.harness.publishes_rows = True
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)
            await chat.close(FinishTurn if last else CommitStep, Finish("stop" if last else "tool_calls"))


@pytest.mark.parametrize("seed", SEEDS)
async def test_whoever_joins_whenever_ends_up_with_the_same_conversation(harness: FeedHarness, seed: int) -> None:
    chance = Random(seed)  # noqa: S311  (the same every time)
    chat = await harness.create_chat()
    clients = [Client(harness, chat, Random(chance.random())) for _ in range(4)]  # noqa: S311
    written = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(client.read(written))
        await write(chat, chance)
        written.set()

    everything = [message.id for message in (await harness.store.page(chat.id)).items]
    assert [client.messages for client in clients] == [everything] * 4
    assert [client.attempt for client in clients] == [None] * 4
    assert harness.metrics.gaps == 0
