"""Searching chats on both databases: what is found, in which order, by whom, and what it costs."""

from __future__ import annotations

import pytest
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.store.statements import counted
from tests.support.engine import begin_read, get_database
from tests.support.stored import load_path

from indelible.api.shapes import Match, Snippet
from indelible.content import Finish, Message, ReasoningDelta, Text, TextDelta
from indelible.machine import commands as c
from indelible.store import search as searching
from indelible.store.payloads import ChatPatch, NewChat, UserInput
from indelible.store.queries.listing import ChatFilter
from indelible.store.search import SearchPage
from indelible.store.store import Store


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), lease_timeout_s=3600)


async def write(store: Store, **texts: str) -> None:
    """A chat with a message of the user for each."""
    for id_, text in texts.items():
        await store.execute(id_, c.Create(with_message=True), NewChat(owner_id=OWNER, blocks=[Text(text)]))


async def find(store: Store, text: str, wanted: ChatFilter | None = None) -> list[str]:
    page = await store.search(OWNER, text, wanted=wanted or ChatFilter())
    return [chat.id for chat in page.items]


async def count_entries(engine: AsyncEngine) -> int:
    async with begin_read(engine) as connection:
        return int((await connection.execute(sql("SELECT count(*) FROM search_entries"))).scalar_one())


async def test_chats_are_found_by_the_words_of_their_messages_newest_first(store: Store) -> None:
    await write(store, chat_1="It is raining in Oslo", chat_2="Snow in Bergen", chat_3="Oslo: rain, again")
    assert await find(store, "oslo") == ["chat_3", "chat_1"]
    assert await find(store, "RAIN osl") == ["chat_3"], "only the last word may be a beginning"
    assert await find(store, "in") == ["chat_2", "chat_1"]
    assert await find(store, "oslo bergen") == []
    page = await store.search(OWNER, "snow")
    snippet = Snippet(text="Snow in Bergen", ranges=[(0, 4)])
    (found,) = page.items
    assert isinstance(found.match, Match)
    assert found.match.snippet == snippet
    assert found.match.message_id == (await store.view("chat_2", limit=1)).messages[0].id


async def test_a_search_finds_what_was_committed_before_it(store: Store, engine: AsyncEngine) -> None:
    await write(store, chat_1="First")
    assert await find(store, "first") == ["chat_1"]
    await store.execute("chat_1", c.Send(), UserInput(blocks=[Text("Queued, and so not said yet")]))
    assert await find(store, "queued") == []
    assert await store.index(limit=10) == 0
    await store.execute("chat_1", c.Interrupt())
    assert await find(store, "queued") == ["chat_1"]
    assert await count_entries(engine) == 2


async def test_case_diacritics_and_the_order_of_words_do_not_matter(store: Store) -> None:
    await write(store, chat_1="Ärger mit BÄUMEN", chat_2="Дождь в Осло", chat_3="今日は天気が良い")
    assert await find(store, "baumen ÄRGER") == ["chat_1"]
    assert await find(store, "дожд") == ["chat_2"]
    assert await find(store, "天気") == ["chat_3"]


@pytest.mark.parametrize(
    "asked", ["", " ", "%", "'", '"', "\0", "\ud800", "(a", "AND", "NOT x", "a:b*", "\ue000", "\ue000userada", "'x"]
)
async def test_nothing_that_is_looked_for_makes_a_search_fail(store: Store, asked: str) -> None:
    await write(store, chat_1="Rain")
    assert await find(store, asked) == []


async def test_titles_are_found_as_they_are_now(store: Store) -> None:
    await write(store, chat_1="Hello")
    await store.execute("chat_2", c.Create(), NewChat(owner_id=OWNER, title="Rain in Oslo"))
    (found,) = (await store.search(OWNER, "oslo")).items
    assert (found.id, found.match) == (
        "chat_2",
        Match(message_id=None, snippet=Snippet(text="Rain in Oslo", ranges=[(8, 12)])),
    )
    await store.execute("chat_2", c.UpdateChat(), ChatPatch(title="Snow"))
    assert (await find(store, "oslo"), await find(store, "snow")) == ([], ["chat_2"])
    await store.execute("chat_2", c.UpdateChat(), ChatPatch(title=None))
    assert await find(store, "snow") == []


async def test_replies_of_every_branch_are_found_and_what_people_do_not_read_is_not(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await Driver(store, engine).create("Question")
    await chat.work("live", ReasoningDelta("0", "pondering"), TextDelta("1", "first answer"))
    await chat.end(c.FinishTurn, pending=[Finish()])
    question = (await load_path(store, chat.id))[0]
    assert question.id is not None
    await chat.do(c.Edit(message_id=question.id), "Other question")
    await chat.work("live", TextDelta("1", "second reply"))
    summary = Message(role="user", blocks=[Text("hidden summary")])
    await chat.end(c.FinishTurn, pending=[Finish()])
    await chat.do(c.Compact())
    await chat.work("live", TextDelta("1", "x"))
    await chat.end(c.FinishTurn, pending=[Finish()], summary=summary)
    for asked in ("first answer", "second reply", "other question"):
        assert await find(store, asked) == [chat.id], asked
    for asked in ("pondering", "hidden", "summarised"):
        assert await find(store, asked) == [], asked


async def test_no_chat_of_another_user_is_found(store: Store) -> None:
    grace = await store.ensure_user("grace")
    await write(store, chat_1="Rain")
    await store.execute("hers", c.Create(with_message=True), NewChat(owner_id=grace, blocks=[Text("Rain")]))
    assert await find(store, "rain") == ["chat_1"]
    assert [chat.id for chat in (await store.search(grace, "rain")).items] == ["hers"]
    assert (await store.search("user_nobody", "rain")).items == []


async def test_a_search_has_the_filters_of_a_list(store: Store) -> None:
    await write(store, chat_1="Rain", chat_2="Rain")
    for id_ in ("chat_1", "chat_2"):
        await store.execute(id_, c.Interrupt())
    await store.execute("chat_1", c.UpdateChat(), ChatPatch(labels=["work"], pinned=True))
    assert await find(store, "rain", ChatFilter(label="work")) == ["chat_1"]
    assert await find(store, "rain", ChatFilter(pinned=False)) == ["chat_2"]
    await store.execute("chat_2", c.Archive())
    assert await find(store, "rain") == ["chat_1"]
    assert await find(store, "rain", ChatFilter(archived=True)) == ["chat_2"]


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_forward_and_backward_are_the_list_each_chat_once(store: Store, limit: int) -> None:
    await write(store, **{f"chat_{number}": f"Rain {number}" for number in range(5)})
    pages: list[SearchPage] = [await store.search(OWNER, "rain", limit=limit)]
    await write(store, chat_new="Rain meanwhile")
    while (cursor := pages[-1].next) is not None:
        pages.append(await store.search(OWNER, "rain", limit=limit, cursor=cursor))
    listed = [[chat.id for chat in page.items] for page in pages]
    assert [id_ for page in listed for id_ in page] == [f"chat_{number}" for number in range(4, -1, -1)]
    back: list[str] = []
    cursor = pages[-1].previous
    while cursor is not None:
        page = await store.search(OWNER, "rain", limit=limit, cursor=cursor)
        back = [*(chat.id for chat in page.items), *back]
        cursor = page.previous
    assert back == [id_ for page in listed[:-1] for id_ in page]


async def test_only_the_newest_matches_are_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(store, **{f"chat_{number}": "Rain" for number in range(4)})
    monkeypatch.setattr(searching, "WINDOW", 2)
    assert await find(store, "rain") == ["chat_3", "chat_2"]


@pytest.mark.parametrize("recent", [1, 3, 6, 7])
async def test_matches_among_recent_and_older_messages_are_one_list(
    store: Store, monkeypatch: pytest.MonkeyPatch, recent: int
) -> None:
    """However many messages count as recent: the borders are before, in and behind the matches."""
    grace = await store.ensure_user("grace")
    for number in range(6):
        await write(store, **{f"chat_{number}": {1: "Snow", 4: "Snow in Oslo"}.get(number, "Rain")})
        hers = NewChat(owner_id=grace, blocks=[Text("Rain")])
        await store.execute(f"hers_{number}", c.Create(with_message=True), hers)
    monkeypatch.setattr(searching, "RECENT", dict.fromkeys(searching.RECENT, recent))
    assert await find(store, "rain") == ["chat_5", "chat_3", "chat_2", "chat_0"]
    assert await find(store, "snow") == ["chat_4", "chat_1"]
    assert await find(store, "hail") == []
    assert (await find(store, "rain sn"), await find(store, "rai sno")) == ([], [])
    assert (await find(store, "Oslo s"), await find(store, "snow osl")) == (["chat_4"], ["chat_4"])
    monkeypatch.setattr(searching, "WINDOW", 3)
    assert await find(store, "rain") == ["chat_5", "chat_3", "chat_2"]


async def test_what_is_deleted_is_found_no_more(store: Store, engine: AsyncEngine) -> None:
    await write(store, chat_1="Rain secretword", chat_2="Rain")
    await store.index(limit=10)
    await store.execute("chat_1", c.Interrupt())
    await store.execute("chat_1", c.Delete())
    assert (await find(store, "rain"), await find(store, "secretword")) == (["chat_2"], [])
    assert await count_entries(engine) == 1
    if engine.dialect.name == "sqlite":
        check = "INSERT INTO search_index (search_index) VALUES ('integrity-check')"
        await store.database.write(lambda transaction: transaction.run(check))


async def test_a_chat_that_is_not_deleted_after_all_is_found_again(store: Store, engine: AsyncEngine) -> None:
    await write(store, chat_1="Rain")
    await store.index(limit=10)
    await store.forget_chat("chat_1")
    assert await count_entries(engine) == 0
    assert await find(store, "rain") == ["chat_1"]


async def test_a_long_chat_is_indexed_in_short_commits_each_message_once(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create("word0")
    for number in range(1, 120):
        await chat.do(c.Interrupt())
        await chat.do(c.Send(), f"word{number} all")
    assert await store.index(limit=10) == 0  # the sweep leaves a busy chat alone
    await chat.do(c.Interrupt())
    with counted(get_database(engine)) as sent:
        assert await store.index(limit=10) == 1
    assert len([statement for statement in sent if "INSERT INTO search_entries" in statement]) >= 2
    assert await count_entries(engine) == 120
    assert await find(store, "word117") == [chat.id]
    assert await store.index(limit=10) == 0
    assert await count_entries(engine) == 120


async def test_a_copy_is_found_too(store: Store) -> None:
    await write(store, chat_1="Rain in Oslo")
    question = (await load_path(store, "chat_1"))[0]
    assert question.id is not None
    await store.fork("chat_1", question.id, new_chat_id="chat_copy", owner_id=OWNER)
    assert await find(store, "oslo") == ["chat_copy", "chat_1"]
