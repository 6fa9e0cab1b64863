"""Both logs as one: from any position, in pieces of any size, everything that comes after it and nothing else (6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, settle_in
from tests.support.engine import begin_write, get_database, transact
from tests.support.tables import events, journal

from indelible.api.events import BEGINNING, Position
from indelible.content import Finish, ReasoningDelta, TextDelta, encode
from indelible.errors import NotFound
from indelible.feed.events import Cursors, build_timeline
from indelible.machine import commands as c
from indelible.store.payloads import ChatPatch
from indelible.store.queries.changes import LoadedRow, load_changes
from indelible.store.queries.chat_view import Event
from indelible.store.store import Store
from indelible.testing import ManualClock

FAR_OFF = datetime(2099, 1, 1, tzinfo=UTC)
Entries = Sequence[Event | LoadedRow]


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """Attempts that ended with a retry, a reset and a message, and one that runs."""
    chat = await Driver(store, engine).create()
    await chat.work("live", ReasoningDelta("r", "Hm"))
    await chat.say(ReasoningDelta("r", "m."))
    await chat.end(c.AnnounceRetry, retry={"delay_ms": 1})
    await chat.start()
    await chat.say(ReasoningDelta("r", "So"))
    await chat.start()
    for word in ("It ", "is ", "rai"):
        await chat.say(TextDelta("1", word))
    await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
    await chat.end(c.CommitStep, pending=[TextDelta("1", "ning"), Finish("tool_calls")])
    await chat.start()
    await chat.say(TextDelta("1", "And "))
    await chat.do(c.Send(), "Bergen?")
    await chat.say(TextDelta("1", "then"))
    return chat


async def read_in_pieces(
    engine: AsyncEngine, chat_id: str, after: Position = BEGINNING, **limits: int
) -> list[Event | LoadedRow]:
    entries: list[Event | LoadedRow] = []
    while True:
        changes = await transact(engine, load_changes, chat_id, after, **limits)
        assert changes.missing == 0
        entries += changes.entries
        if changes.complete:
            return entries
        assert changes.entries, "there is more to come, and nothing came"
        after = build_timeline(Cursors(chat_id), after, changes)[-1].after


def name(entries: Entries) -> list[str]:
    return sorted(f"{entry.attempt} {entry.n}" if isinstance(entry, LoadedRow) else str(entry.seq) for entry in entries)


def check_order(entries: Entries) -> None:
    """Events in order; the rows of an attempt, all of them and in order, between its event and its end."""
    running, n, seq = "", 0, 0
    for entry in entries:
        if isinstance(entry, LoadedRow):
            assert (entry.attempt, entry.n) == (running, n + 1)
            n += 1
            continue
        assert entry.seq == seq + 1
        seq += 1
        if entry.payload and "last_n" in entry.payload:
            assert (entry.payload["attempt"], entry.payload["last_n"]) == (running, n)
        if entry.kind == "attempt":
            running, n = entry.ref or "", 0


@pytest.mark.parametrize("limits", [{}, {"max_events": 1}, {"max_bytes": 1}, {"max_events": 2, "max_bytes": 60}])
async def test_everything_comes_once_and_in_order_in_pieces_of_any_size(
    chat: Driver, engine: AsyncEngine, limits: dict[str, Any]
) -> None:
    entries = await read_in_pieces(engine, chat.id, **limits)

    check_order(entries)
    told = [f"{row.seq}" for row in await chat.rows(events)]
    assert len(entries) == len(told) + 9
    assert b"".join(entry.parts for entry in entries if isinstance(entry, LoadedRow)).count(b"text_delta") == 6


async def test_from_every_position_comes_exactly_the_rest(chat: Driver, store: Store, engine: AsyncEngine) -> None:
    whole = await store.changes(chat.id, BEGINNING)
    positions = [BEGINNING, *(step.after for step in build_timeline(Cursors(chat.id), BEGINNING, whole))]

    for place, position in enumerate(positions):
        rest = await read_in_pieces(engine, chat.id, position, max_events=3)
        assert name(rest) == name(whole.entries[place:])
        check_order([*whole.entries[:place], *rest])


async def test_exactly_the_positions_on_the_way_have_been_reached(chat: Driver, store: Store) -> None:
    whole = await store.changes(chat.id, BEGINNING)
    steps = build_timeline(Cursors(chat.id), BEGINNING, whole)
    attempts = {step.after.attempt for step in steps}

    async def is_reached(position: Position | None) -> bool:
        found = await store.resume(chat.id, position)
        assert found is not None
        assert (found.owner_id, found.position) == ((await chat.row()).owner_id, steps[-1].after)
        return found.is_reached

    for position in (BEGINNING, *(step.after for step in steps)):
        assert await is_reached(position)
        for attempt in attempts - {position.attempt}:
            assert not await is_reached(replace(position, attempt=attempt))
        assert not await is_reached(replace(position, n=100))
    assert not await is_reached(Position(steps[-1].after.seq + 1))
    assert not await is_reached(None)
    assert await store.resume("chat_that_never_was", Position(1)) is None


async def test_packing_changes_nothing_of_it(chat: Driver, store: Store, engine: AsyncEngine) -> None:
    whole = await store.changes(chat.id, BEGINNING)
    half = build_timeline(Cursors(chat.id), BEGINNING, whole)[10].after

    assert await store.pack(ended_before=FAR_OFF, clock=ManualClock()) == 3

    assert (await store.changes(chat.id, BEGINNING)).entries == whole.entries
    assert (await store.changes(chat.id, half)).entries == whole.entries[11:]
    found = await store.resume(chat.id, half)
    assert found is not None
    assert found.is_reached


async def test_a_chat_has_come_to_the_end_of_its_news(chat: Driver, store: Store, engine: AsyncEngine) -> None:
    quiet = await Driver(store, engine).create(None)
    end = build_timeline(Cursors(chat.id), BEGINNING, await store.changes(chat.id, BEGINNING))[-1].after

    found = await store.positions([chat.id, quiet.id, "chat_that_never_was"])

    assert found == {chat.id: end, quiet.id: Position(0)}
    assert end == Position((await chat.row()).seq, chat.attempt_id, 2)
    assert await store.positions([]) == {}


async def test_more_chats_than_one_statement_takes_are_found_all_the_same(chat: Driver, store: Store) -> None:
    many = [f"chat_{number}" for number in range(1200)]

    assert list(await store.positions([*many, chat.id])) == [chat.id]


@pytest.mark.parametrize("what", ["row", "event"])
async def test_what_the_logs_lack_is_counted(chat: Driver, store: Store, engine: AsyncEngine, what: str) -> None:
    whole = await store.changes(chat.id, BEGINNING)
    first = next(entry for entry in whole.entries if isinstance(entry, LoadedRow))
    lost: Any = delete(events).where(events.c.chat_id == chat.id, events.c.seq == 2)
    if what == "row":
        lost = delete(journal).where(journal.c.attempt_id == first.attempt, journal.c.n == 2)
    async with begin_write(engine) as connection:
        await connection.execute(lost)

    changes = await store.changes(chat.id, BEGINNING)

    assert changes.missing == 1
    assert len(changes.entries) == len(whole.entries) - 1


async def test_what_the_events_tell_of_comes_with_them(chat: Driver, store: Store) -> None:
    changes = await store.changes(chat.id, BEGINNING)

    assert [bytes(message.blocks) for message in changes.messages.values() if message.role == "user"] == [
        encode([{"type": "text", "text": "Hello"}])
    ]
    assert [queued.id for queued in changes.queue] == await chat.queued_ids()


async def test_a_chat_that_is_not_there_has_no_changes_and_one_without_news_has_none(
    store: Store, chat: Driver
) -> None:
    here = (await store.positions([chat.id]))[chat.id]
    assert (await store.changes(chat.id, here)).entries == []
    await chat.do(c.Delete())
    with pytest.raises(NotFound):
        await store.changes(chat.id, here)
