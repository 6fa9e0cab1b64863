"""Lists of chats on both databases: whose, which ones, in which order, and a page at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, dump, fill_payload, settle_in
from tests.support.engine import begin_write, get_database
from tests.support.tables import chats

from indelible.api.shapes import ChatSummary
from indelible.content import Finish, Text, TextDelta
from indelible.machine import commands as c
from indelible.store.payloads import ChatPatch, NewChat, StepResult, UserInput
from indelible.store.queries.listing import ChatFilter, ListCursor
from indelible.store.store import Store

UNPINNED = False
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), lease_timeout_s=3600)


async def make(store: Store, *ids: str, owner_id: str = OWNER, title: str | None = None) -> None:
    for id_ in ids:
        await store.execute(id_, c.Create(), NewChat(owner_id=owner_id, title=title))


async def touch(engine: AsyncEngine, chat_id: str, at: datetime) -> None:
    async with begin_write(engine) as connection:
        await connection.execute(update(chats).where(chats.c.id == chat_id).values(updated_at=at, runnable_at=at))


def name(page: list[ChatSummary]) -> list[str]:
    return [chat.id for chat in page]


async def walk(store: Store, *, limit: int) -> list[list[str]]:
    """All pages, each from where the last one ended."""
    pages: list[list[str]] = []
    after: ListCursor | None = None
    while page := await store.list_chats(OWNER, after=after, limit=limit):
        pages.append(name(page))
        after = ListCursor(page[-1].pinned, page[-1].updated_at, page[-1].id)
        assert len(pages) < 100, "the list never ends"
    return pages


# --- order and pages ---


async def test_a_user_sees_the_own_chats_only_and_the_last_changed_first(store: Store) -> None:
    grace = await store.ensure_user("grace")
    await make(store, "chat_1", "chat_2", "chat_3")
    await make(store, "chat_of_grace", owner_id=grace)
    await store.execute("chat_2", c.Send(), UserInput(blocks=[Text("Rain")]))
    assert name(await store.list_chats(OWNER)) == ["chat_2", "chat_3", "chat_1"]
    assert name(await store.list_chats(grace)) == ["chat_of_grace"]
    assert await store.list_chats("user_nobody") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_the_pages_together_are_the_list_each_chat_once(store: Store, engine: AsyncEngine, limit: int) -> None:
    ids = [f"chat_{number}" for number in range(7)]
    await make(store, *ids)
    for number, id_ in enumerate(ids):
        await touch(engine, id_, NOON + timedelta(microseconds=number))
    pages = await walk(store, limit=limit)
    assert [id_ for page in pages for id_ in page] == ids[::-1]
    assert all(len(page) == limit for page in pages[:-1])
    back = await store.list_chats(OWNER, after=ListCursor(UNPINNED, NOON, ids[0], backward=True), limit=limit)
    assert name(back) == ids[1 : limit + 1][::-1], "a page that leads back ends before its cursor"


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_chats_that_changed_at_the_same_moment_are_neither_lost_nor_shown_twice(
    store: Store, engine: AsyncEngine, limit: int
) -> None:
    ids = [f"chat_{letter}" for letter in "abcde"]
    await make(store, *ids)
    for id_ in ids:
        await touch(engine, id_, NOON)
    assert [id_ for page in await walk(store, limit=limit) for id_ in page] == ids[::-1]


async def test_a_place_may_be_given_in_any_time_zone(store: Store, engine: AsyncEngine) -> None:
    await make(store, "chat_1", "chat_2")
    await touch(engine, "chat_1", NOON - timedelta(hours=1))
    await touch(engine, "chat_2", NOON)
    away = datetime.fromisoformat("2026-01-15T21:00:00+09:00")
    assert away == NOON
    assert name(await store.list_chats(OWNER, after=ListCursor(UNPINNED, away, "chat_2"))) == ["chat_1"]


async def test_a_chat_that_moves_up_meanwhile_is_not_shown_twice_and_hides_no_other(
    store: Store, engine: AsyncEngine
) -> None:
    ids = [f"chat_{number}" for number in range(4)]
    await make(store, *ids)
    for number, id_ in enumerate(ids):
        await touch(engine, id_, NOON + timedelta(seconds=number))
    first = await store.list_chats(OWNER, limit=2)
    await store.execute("chat_3", c.Send(), UserInput(blocks=[Text("up")]))
    await make(store, "chat_new")
    rest = await store.list_chats(OWNER, after=ListCursor(UNPINNED, first[-1].updated_at, first[-1].id))
    assert name(rest) == ["chat_1", "chat_0"]


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_pinned_chats_come_first_on_every_page(store: Store, limit: int) -> None:
    await make(store, *(f"chat_{number}" for number in range(5)))
    for id_ in ("chat_0", "chat_2"):
        await store.execute(id_, c.UpdateChat(), ChatPatch(pinned=True))
    assert [id_ for page in await walk(store, limit=limit) for id_ in page] == [
        "chat_2", "chat_0", "chat_4", "chat_3", "chat_1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "patch", [ChatPatch(title="up"), ChatPatch(labels=["up"]), ChatPatch(debug="all"), ChatPatch(model="up")]
)
async def test_a_chat_whose_metadata_changes_stays_where_it_is(store: Store, patch: ChatPatch) -> None:
    await make(store, "chat_1", "chat_2")
    before = await store.list_chats(OWNER)
    await store.execute("chat_1", c.UpdateChat(), patch)
    await store.execute("chat_1", c.Archive())
    await store.execute("chat_1", c.Unarchive())
    after = await store.list_chats(OWNER)
    assert [(chat.id, chat.updated_at) for chat in after] == [(chat.id, chat.updated_at) for chat in before]


async def test_a_page_can_go_on_after_a_chat_that_was_deleted(store: Store, engine: AsyncEngine) -> None:
    await make(store, "chat_1", "chat_2", "chat_3")
    last = (await store.list_chats(OWNER, limit=1))[0]
    await store.execute(last.id, c.Delete())
    assert name(await store.list_chats(OWNER, after=ListCursor(UNPINNED, last.updated_at, last.id))) == [
        "chat_2",
        "chat_1",
    ]


# --- archived, and found ---


async def test_archived_chats_have_a_list_of_their_own(store: Store) -> None:
    await make(store, "chat_1", "chat_2")
    await store.execute("chat_1", c.Archive())
    assert name(await store.list_chats(OWNER)) == ["chat_2"]
    (archived,) = await store.list_chats(OWNER, wanted=ChatFilter(archived=True))
    assert (archived.id, archived.archived) == ("chat_1", True)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (ChatFilter(label="work"), ["chat_1", "chat_3"]),
        (ChatFilter(label="work", pinned=True), ["chat_1"]),
        (ChatFilter(label="gone"), []),
        (ChatFilter(label="odd\0\ud800"), ["chat_2"]),
        (ChatFilter(pinned=False), ["chat_3", "chat_2"]),
        (ChatFilter(unread=True), ["chat_3"]),
        (ChatFilter(unread=False), ["chat_1", "chat_2"]),
        (ChatFilter(unread=True, label="home"), []),
    ],
)
async def test_a_list_has_the_chats_that_are_wanted(store: Store, wanted: ChatFilter, found: list[str]) -> None:
    await make(store, "chat_1", "chat_2", "chat_3")
    patches = {
        "chat_1": ChatPatch(labels=["gone", "work"], pinned=True),
        "chat_2": ChatPatch(labels=["home", "odd\0\ud800"]),
        "chat_3": ChatPatch(labels=["work", "work"]),
    }
    for id_, patch in patches.items():
        await store.execute(id_, c.UpdateChat(), patch)
    await store.execute("chat_1", c.UpdateChat(), ChatPatch(labels=["work"]))
    await reply(store, "chat_3")
    assert name(await store.list_chats(OWNER, wanted=wanted)) == found


async def reply(store: Store, chat_id: str) -> None:
    """A model answers a message of the user."""
    await store.beat("live")
    await store.execute(chat_id, c.Send(), UserInput(blocks=[Text("Hello")]))
    held = await store.execute(chat_id, c.Acquire(worker_id="live"))
    assert held.turn_id is not None
    attempt = (await store.execute(chat_id, c.StartAttempt(epoch=held.epoch, turn_id=held.turn_id))).attempt
    assert attempt is not None
    end = c.FinishTurn(epoch=held.epoch, turn_id=held.turn_id, attempt_id=attempt.id)
    await store.execute(chat_id, end, StepResult(pending=[TextDelta("1", "Hi"), Finish()]))


# --- one line ---


async def test_a_line_tells_what_stands_beside_the_conversation(store: Store) -> None:
    await make(store, "chat_1")
    told = ChatPatch(title="Rain", labels=["a", "b"], pinned=True, model="big")
    outcome = await store.execute("chat_1", c.UpdateChat(), told)
    (line,) = await store.list_chats(OWNER)
    assert (line.title, line.labels, line.pinned, line.model) == ("Rain", ["a", "b"], True, "big")
    assert (line.status, line.archived, line.version) == ("idle", False, outcome.seq)
    assert line.created_at == line.updated_at
    assert line.updated_at.tzinfo is not None


async def test_the_version_grows_with_every_change_that_is_announced(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    versions = []
    for command in (c.Acquire(worker_id="live"), c.Send(), c.Interrupt()):
        await chat.do(command, payload=fill_payload(command))
        versions.append((await store.list_chats(OWNER))[0].version)
    assert versions == sorted(versions)
    assert versions[-1] > versions[0]


async def test_a_running_chat_that_no_live_worker_holds_is_pending(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    seen = [(await store.list_chats(OWNER))[0].status]
    await chat.work()
    seen.append((await store.list_chats(OWNER))[0].status)
    await chat.bury()
    seen.append((await store.list_chats(OWNER))[0].status)
    await chat.do(c.Acquire(worker_id="live"))
    await chat.do(c.Interrupt())
    await chat.bury()
    seen.append((await store.list_chats(OWNER))[0].status)
    assert seen == ["pending", "running", "pending", "interrupting"]


async def test_a_list_says_of_every_chat_what_its_view_says(store: Store, engine: AsyncEngine) -> None:
    running, failed, waiting = [await Driver(store, engine).create() for _ in range(3)]
    for chat in (running, failed, waiting):
        await chat.work()
    await failed.end(c.Fail)
    await waiting.end(c.FinishTurn, pending=[Finish()])
    lines = {line.id: line.status for line in await store.list_chats(OWNER)}
    for chat in (running, failed, waiting):
        assert lines[chat.id] == (await store.view(chat.id)).status
    assert sorted(lines.values()) == ["error", "idle", "running"]


async def test_reading_a_list_changes_nothing(store: Store, engine: AsyncEngine) -> None:
    await make(store, "chat_1")
    before = await dump(engine)
    await store.list_chats(OWNER, wanted=ChatFilter(label="x", unread=True), limit=1)
    assert await dump(engine) == before


async def test_chats_are_counted_by_state_and_those_without_an_answer_are_reported(
    store: Store, engine: AsyncEngine
) -> None:
    await make(store, "idle_1", "idle_2")
    for id_ in ("held", "left", "stuck"):
        await store.execute(id_, c.Create(with_message=True), NewChat(owner_id=OWNER))
    await touch(engine, "held", NOON)
    await store.beat("worker")
    assert [taken.chat_id for taken in await store.acquire("worker", limit=1)] == ["held"]
    await touch(engine, "stuck", NOON)

    counted = await store.count_chats()

    assert counted.by_state == {"idle": 2, "running": 3, "pending": 2}
    assert counted.stuck == 1


async def test_a_chat_that_nobody_stops_is_stuck_but_counts_as_pending_no_more_than_in_a_list(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await Driver(store, engine).create()
    await chat.work()
    await chat.do(c.Interrupt())
    await chat.bury()
    await touch(engine, chat.id, NOON)

    counted = await store.count_chats()

    assert [line.status for line in await store.list_chats(OWNER)] == ["interrupting"]
    assert counted.by_state == {"interrupting": 1, "pending": 0}
    assert counted.stuck == 1
