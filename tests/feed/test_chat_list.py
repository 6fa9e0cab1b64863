"""The live list of chats: what its readers were sent, applied in order, is what the store has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.feed.feed_harness import FeedHarness
from tests.store.driver import OWNER
from tests.store.statements import counted
from tests.support.engine import get_database
from tests.support.waiting import deadline

from indelible.api.events import FeedEvent
from indelible.content import Text
from indelible.feed import chat_list
from indelible.machine import commands as c
from indelible.notify import Changed
from indelible.store.payloads import ChatPatch, NewChat, UserInput


class Tab:
    """What a client makes of the events: chats by id."""

    def __init__(self, events: AsyncIterator[FeedEvent]) -> None:
        self.chats: dict[str, dict[str, Any]] = {}
        self.kinds: list[str] = []
        self._events = events

    async def read(self) -> FeedEvent:
        async with deadline():
            event = await anext(self._events)
        self.kinds.append(event.kind)
        if event.kind == "chats":
            self.chats = {chat["id"]: chat for chat in event.data["items"]}
        elif event.kind == "chat_changed":
            self.chats[event.data["id"]] = event.data
        elif event.kind == "chat_removed":
            self.chats.pop(event.data["id"], None)
        return event

    async def read_until(self, chat_id: str, **wanted: Any) -> None:
        while not self._has(chat_id, wanted):
            await self.read()

    async def read_until_gone(self, chat_id: str) -> None:
        while chat_id in self.chats:
            await self.read()

    def _has(self, chat_id: str, wanted: dict[str, Any]) -> bool:
        chat = self.chats.get(chat_id)
        return chat is not None and all(chat[name] == value for name, value in wanted.items())


@asynccontextmanager
async def open_tab(harness: FeedHarness, chat_id: str | None = None, user_id: str = OWNER) -> AsyncIterator[Tab]:
    async with harness.feed.open_tab(user_id, chat_id) as events:
        yield Tab(events)


@asynccontextmanager
async def moving(harness: FeedHarness) -> AsyncIterator[None]:
    """The clock goes on by itself, so that pauses between rounds end."""

    async def move() -> None:
        while True:
            await harness.clock.advance(chat_list.PAUSE_S)
            await asyncio.sleep(0)

    moving_on = asyncio.create_task(move())
    try:
        yield
    finally:
        moving_on.cancel()
        await asyncio.gather(moving_on, return_exceptions=True)


async def make(harness: FeedHarness, chat_id: str, owner_id: str = OWNER, **more: Any) -> None:
    await harness.store.execute(chat_id, c.Create(), NewChat(owner_id=owner_id, **more))


async def test_a_tab_gets_the_list_and_then_every_change_once(harness: FeedHarness) -> None:
    store = harness.store
    await make(harness, "chat_1", title="Rain")
    async with moving(harness), open_tab(harness) as tab:
        await tab.read()
        assert (tab.kinds, list(tab.chats)) == (["chats"], ["chat_1"])
        await make(harness, "chat_2", title="Snow")
        await tab.read_until("chat_2", title="Snow")
        await store.execute("chat_1", c.UpdateChat(), ChatPatch(title="Sun", pinned=True))
        await tab.read_until("chat_1", title="Sun", pinned=True)
        await store.execute("chat_1", c.Send(), UserInput(blocks=[Text("Hi")]))
        await tab.read_until("chat_1", status="pending")
        await store.execute("chat_1", c.Interrupt())
        await tab.read_until("chat_1", status="idle")
        await store.execute("chat_2", c.Archive())
        await tab.read_until("chat_2", archived=True)
        await store.execute("chat_2", c.Delete())
        await tab.read_until_gone("chat_2")
        listed = await store.list_chats(OWNER)
        assert tab.chats == {chat.id: msgspec.to_builtins(chat, str_keys=True) | times(chat) for chat in listed}


def times(chat: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(chat))
    return found


async def test_another_users_chats_are_never_sent(harness: FeedHarness) -> None:
    grace = await harness.store.ensure_user("grace")
    async with moving(harness), open_tab(harness) as tab, open_tab(harness, user_id=grace) as hers:
        await tab.read()
        await hers.read()
        await make(harness, "of_grace", owner_id=grace)
        await make(harness, "of_ada")
        await tab.read_until("of_ada")
        await hers.read_until("of_grace")
        await harness.store.execute("of_grace", c.Delete())
        await hers.read_until_gone("of_grace")
        await harness.store.execute("of_ada", c.UpdateChat(), ChatPatch(title="Last"))
        await tab.read_until("of_ada", title="Last")
        assert list(tab.chats) == ["of_ada"]
        assert "chat_removed" not in tab.kinds


async def test_many_tabs_of_one_user_cost_one_query_per_round_and_hints_without_news_send_nothing(
    harness: FeedHarness,
) -> None:
    await make(harness, "chat_1")
    async with open_tab(harness) as first, open_tab(harness) as second, open_tab(harness) as third:
        tabs = (first, second, third)
        for tab in tabs:
            await tab.read()
        with counted(get_database(harness.engine)) as sent:
            harness.notifier.publish(Changed(for_readers=frozenset({"chat_1"})))  # type: ignore[attr-defined]
            await harness.store.execute("chat_1", c.UpdateChat(), ChatPatch(title="Rain"))
            async with moving(harness):
                for tab in tabs:
                    await tab.read_until("chat_1", title="Rain")
        rounds = [statement for statement in sent if "c.owner_id" in statement and "ANY" in statement]
        assert 1 <= len(rounds) <= 2
        assert all(tab.kinds == ["chats", "chat_changed"] for tab in tabs)


async def test_a_slow_tab_gets_the_whole_list_again(harness: FeedHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_list, "MAX_CHANGES", 2)
    async with moving(harness), open_tab(harness) as slow, open_tab(harness) as quick:
        await slow.read()
        await quick.read()
        for number in range(5):
            await make(harness, f"chat_{number}")
            await quick.read_until(f"chat_{number}")
        while len(slow.chats) < 5:
            await slow.read()
        assert slow.kinds.count("chats") >= 2
        assert slow.chats == quick.chats


async def test_a_list_that_was_read_before_a_chat_was_deleted_does_not_bring_it_back(harness: FeedHarness) -> None:
    await make(harness, "chat_1")
    await make(harness, "chat_2")
    read_list = harness.store.list_chats
    async with moving(harness), open_tab(harness) as first:
        await first.read()

        async def read_slowly(*given: Any, **named: Any) -> Any:
            harness.store.list_chats = read_list  # type: ignore[method-assign]
            listed = await read_list(*given, **named)
            await harness.store.execute("chat_1", c.Delete())
            await first.read_until_gone("chat_1")
            return listed

        harness.store.list_chats = read_slowly  # type: ignore[method-assign]
        async with open_tab(harness) as second:
            await second.read()
            await second.read_until_gone("chat_1")
            await make(harness, "chat_3")
            await first.read_until("chat_3")
            await second.read_until("chat_3")

    assert sorted(first.chats) == sorted(second.chats) == ["chat_2", "chat_3"]


async def test_a_deleted_chat_that_is_created_again_under_its_id_is_listed_again(harness: FeedHarness) -> None:
    await make(harness, "chat_1", title="Rain")
    async with moving(harness), open_tab(harness) as tab:
        await tab.read()
        await harness.store.execute("chat_1", c.Delete())
        await tab.read_until_gone("chat_1")
        await make(harness, "chat_1", title="Snow")
        await tab.read_until("chat_1", title="Snow")
        await harness.store.execute("chat_1", c.UpdateChat(), ChatPatch(title="Sun"))
        await tab.read_until("chat_1", title="Sun")


async def test_a_lost_hint_is_made_up_for_by_the_next_poll(harness: FeedHarness) -> None:
    await make(harness, "chat_1")
    async with open_tab(harness) as tab:
        await tab.read()
        patch = "UPDATE chats SET title = 'Unhinted' WHERE id = 'chat_1'"
        await harness.store.database.write(lambda transaction: transaction.run(patch))
        await harness.clock.advance(chat_list.POLL_INTERVAL_S)
        await tab.read_until("chat_1", title="Unhinted")


async def test_a_chats_own_feed_is_woven_in_with_its_cursors(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with moving(harness), open_tab(harness, chat.id) as tab:
        await tab.read()
        snapshot = await tab.read()
        assert (tab.kinds, snapshot.cursor is not None) == (["chats", "snapshot"], True)
        await chat.write("It is raining")
        await make(harness, "chat_other")
        seen: list[FeedEvent] = []
        while {"part", "chat_changed"} - {event.kind for event in seen}:
            seen.append(await tab.read())
        assert {event.kind: event.cursor is None for event in seen} == {"part": False, "chat_changed": True}


async def test_a_tab_ends_with_its_process(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with open_tab(harness) as tab, open_tab(harness, chat.id) as with_chat:
        harness.feed.close()
        for each in (tab, with_chat):
            event = await each.read()
            while event.kind != "end":
                event = await each.read()
            assert event.data == {"reason": "shutdown"}
            with pytest.raises(StopAsyncIteration):
                await each.read()
