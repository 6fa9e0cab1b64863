"""Chats as files on both databases: the whole tree comes back, and a file with a mistake changes nothing."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, dump, settle_in
from tests.support.engine import begin_write, get_database, is_sqlite
from tests.support.stored import load_path

from indelible.content import Finish, TextDelta, ToolCall, ToolResult, Usage, encode
from indelible.errors import Invalid, NotFound, TooLarge
from indelible.machine import commands as c
from indelible.store.outcome import IdempotencyKey, RequestRepeated, StoredResponse
from indelible.store.payloads import ChatPatch
from indelible.store.queries.listing import ChatFilter
from indelible.store.store import Store
from indelible.store.transfer import ChatFile, parse_file


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), lease_timeout_s=3600)


async def make_tree(store: Store, engine: AsyncEngine) -> Driver:
    """A chat with two branches, a partial reply, a notice, a failure, and everything that stands beside it."""
    chat = await Driver(store, engine).create("Is it raining? \0")
    await chat.work("live", TextDelta("1", "It is"))
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption, usage=Usage(input_tokens=3), cost_nanousd=5)
    question = (await load_path(store, chat.id))[0]
    assert question.id is not None
    await chat.do(c.Edit(message_id=question.id), "Is it snowing?")
    await chat.work("live", TextDelta("1", "No."))
    await chat.end(c.Fail, error={"kind": "auth", "message": "No key."})
    patch = ChatPatch(title="Rain", labels=["b", "a"], model="big", system_prompt="Be brief.", parameters={"top_p": 1})
    await chat.do(c.UpdateChat(), payload=patch)
    return chat


async def bring(store: Store, content: bytes, request: IdempotencyKey | None = None) -> str:
    once = request and request._replace(respond=lambda outcome: StoredResponse(201, outcome.chat_id.encode()))
    try:
        return (await store.import_chat(parse_file(content), owner_id=OWNER, key=once)).chat_id
    except RequestRepeated as repeated:
        return repeated.response.body.decode()


def without_time(file: ChatFile) -> ChatFile:
    return msgspec.structs.replace(file, exported_at=file.created_at)


async def test_exporting_an_imported_chat_gives_the_same_file(store: Store, engine: AsyncEngine) -> None:
    chat = await make_tree(store, engine)
    file = await store.export_chat(chat.id)
    assert [message.role for message in file.messages] == ["user", "assistant", "notice", "user", "assistant", "notice"]
    new_id = await bring(store, encode(file))
    assert new_id != chat.id
    assert without_time(await store.export_chat(new_id)) == without_time(file)
    view = await store.view(new_id)
    assert (view.status, view.title, view.model) == ("idle", "Rain", "big")
    old, new = await store.tree(chat.id), await store.tree(new_id)
    assert [item.text for item in new.items] == [item.text for item in old.items]
    assert not {item.id for item in new.items} & {item.id for item in old.items}
    assert [event.seq for event in await store.events(new_id, after=0)] == list(range(1, len(new.items) + 1))
    assert [found.id for found in await store.list_chats(OWNER, wanted=ChatFilter(label="a"))] == [new_id, chat.id]
    assert [found.id for found in (await store.search(OWNER, "snowing")).items] == [new_id, chat.id]
    await store.execute(new_id, c.SwitchBranch(message_id=new.items[0].id))
    await store.execute(new_id, c.Delete())
    assert (await store.view(chat.id)).status == "error"


async def test_a_call_that_has_no_result_is_answered_in_the_import(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    await chat.work("live", ToolCall(id="c1", name="ask", arguments="{}"))
    await chat.end(c.AwaitAction, pending=[Finish("tool_calls")])
    file = await store.export_chat(chat.id)
    new_id = await bring(store, encode(file))
    assert [message.role for message in await load_path(store, new_id)] == ["user", "assistant", "tool"]


async def test_results_in_a_file_of_version_1_get_the_outcome_that_their_sentences_tell(store: Store) -> None:
    made = json.loads((Path(__file__).parent / "old_results.json").read_bytes())
    old, rows = made["export"], {row["case"]: row["blocks"] for row in made["rows"]}
    (of_tools,) = (message for message in old["messages"] if message["role"] == "tool")
    of_tools["blocks"] += rows["waiting crashed"] + rows["started edited"]
    outcomes = {}
    for version in (1, 2):
        new_id = await bring(store, encode(old | {"version": version}))
        blocks = [block for message in await load_path(store, new_id) for block in message.blocks]
        outcomes[version] = [(block.outcome, block.reason) for block in blocks if isinstance(block, ToolResult)]
    stopped = ("unknown", None)  # `interrupted` says so much
    assert outcomes[1][:3] == outcomes[2][:3] == [("failed", None), ("ran", None), ("failed", None)]
    assert outcomes[1][3:] == [("unknown", "interrupted"), ("not_run", "crashed"), ("unknown", "lost")]
    assert outcomes[2][3:] == [stopped, ("failed", None), ("failed", None)]


async def test_what_an_earlier_version_noted_for_the_owner_is_not_in_an_imported_chat(store: Store) -> None:
    """Its guests were not shown it, and here everything in a message is shown."""
    old = json.loads((Path(__file__).parent / "old_results.json").read_bytes())["export"]
    asked = next(message for message in old["messages"] if message["role"] == "user")
    noted = {"request": {"response": {"instructions": "Be brief."}}}
    asked["blocks"] = [
        {"type": "text", "text": "a", "metadata": noted},
        {"type": "text", "text": "b", "metadata": {"request": {"ui_id": "m1"}, "colour": "red"}},
        {"type": "text", "text": "c", "metadata": {"request": "of the user"}},
    ]
    new_id = await bring(store, encode(old))
    (found,) = (message for message in await load_path(store, new_id) if message.role == "user")
    kept = [None, {"colour": "red", "ui_id": "m1"}, {"request": "of the user"}]
    assert [block.metadata for block in found.blocks] == kept


async def test_an_import_that_is_repeated_makes_one_chat(store: Store, engine: AsyncEngine) -> None:
    chat = await make_tree(store, engine)
    content = encode(await store.export_chat(chat.id))
    request = IdempotencyKey(OWNER, "key", "POST /import", b"1")
    assert await bring(store, content, request) == await bring(store, content, request)
    assert len(await store.list_chats(OWNER)) == 2


async def test_an_empty_chat_comes_back_empty(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create(None)
    new_id = await bring(store, encode(await store.export_chat(chat.id)))
    assert (await store.tree(new_id)).items == []
    with pytest.raises(NotFound):
        await store.export_chat("chat_nobody")


def change(file: dict[str, Any], place: str, value: Any) -> None:
    first, _, rest = place.partition(".")
    if first == "messages" and rest:
        number, _, field = rest.partition(".")
        file["messages"][int(number)][field] = value
    else:
        file[first] = value


MISTAKES: list[tuple[str, Any]] = [
    ("format", "other"),
    ("version", 3),
    ("version", 0),
    ("version", "1"),
    ("more", 1),
    ("head", None),
    ("head", "m99"),
    ("messages", []),
    ("messages", [0] * 10),
    ("labels", ["x" * 10_000]),
    ("title", 7),
    ("created_at", "2026-01-01T00:00:00"),
    ("parameters", {"x": "y" * 10**6}),
    ("messages.0.id", "m2"),
    ("messages.0.id", ""),
    ("messages.0.parent_id", "m1"),
    ("messages.1.parent_id", "m6"),
    ("messages.1.continues", "m5"),
    ("messages.0.role", "wizard"),
    ("messages.0.partial", True),
    ("messages.0.reason", "failed"),
    ("messages.1.reason", None),
    ("messages.1.cost_nanousd", -1),
    ("messages.1.cost_nanousd", 2**62),
    ("messages.1.usage", {"input_tokens": -1}),
    ("messages.1.usage", {"output_tokens": 2**62}),
    ("messages.2.visibility", "model"),
    ("messages.0.blocks", [{"type": "nothing"}]),
    ("messages.0.created_at", "0001-01-01T00:00:00+14:00"),
    *[
        (place, moment)
        for place in ("created_at", "messages.1.created_at")
        for moment in (
            "0001-01-01T00:00:00Z",
            "0001-12-31T23:59:59Z",
            "0002-01-01T00:00:00+01:00",
            "9998-12-31T23:59:59-01:00",
            "9999-01-01T00:00:00Z",
            "9999-12-31T23:59:59.999999Z",
        )
    ],
]


async def test_a_file_with_a_mistake_is_refused_and_changes_nothing(store: Store, engine: AsyncEngine) -> None:
    chat = await make_tree(store, engine)
    content = encode(await store.export_chat(chat.id))
    before = await dump(engine)
    for place, value in MISTAKES:
        file = msgspec.json.decode(content)
        change(file, place, value)
        with pytest.raises((Invalid, TooLarge)):
            await bring(store, encode(file))
    assert await dump(engine) == before


EARLIEST, LATEST = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"
STORED = ("messages.created_at", "chats.created_at", "chats.updated_at", "events.at")


@pytest.mark.parametrize("moment", [EARLIEST, LATEST])
async def test_no_stored_time_makes_a_read_fail(store: Store, engine: AsyncEngine, moment: str) -> None:
    """Files from before such times were refused. On PostgreSQL the driver stores these two as infinity."""
    chat = await make_tree(store, engine)
    for place in STORED:
        table, _, column = place.partition(".")
        value = moment if is_sqlite(engine) else "-infinity" if moment == EARLIEST else "infinity"
        await update_everything(engine, table, column, value)
    read = datetime.fromisoformat(moment)

    file = await store.export_chat(chat.id)
    assert {message.created_at for message in file.messages} == {file.created_at} == {read}
    assert [found.updated_at for found in await store.list_chats(OWNER)] == [read]
    assert [found.id for found in (await store.search(OWNER, "snowing")).items] == [chat.id]
    assert {item.created_at for item in (await store.tree(chat.id)).items} == {read}
    assert {message.created_at for message in (await store.page(chat.id, limit=50)).items} == {read}
    assert (await store.view(chat.id)).status == "error"
    assert await store.events(chat.id, after=0)


async def update_everything(engine: AsyncEngine, table: str, column: str, value: str) -> None:
    async with begin_write(engine) as connection:
        await connection.exec_driver_sql(f"UPDATE {table} SET {column} = '{value}'")  # noqa: S608


async def test_an_imported_chat_without_a_title_gets_the_first_words_of_its_first_message(
    store: Store, engine: AsyncEngine
) -> None:
    file = await store.export_chat((await make_tree(store, engine)).id)
    untitled = msgspec.structs.replace(file, title=None)
    new_id = await bring(store, encode(untitled))
    assert (await store.view(new_id)).title == "Is it raining? \ufffd"
    assert (await store.export_chat(new_id)).title_is_provisional
    empty = msgspec.structs.replace(untitled, head=None, messages=[], title_is_provisional=True)
    assert (await store.export_chat(await bring(store, encode(empty)))).title is None


async def test_any_text_can_be_imported(store: Store, engine: AsyncEngine) -> None:
    """PostgreSQL has no character 0 in texts."""
    content = encode(await store.export_chat((await make_tree(store, engine)).id))
    for place in ("title", "model", "messages.1.model", "messages.1.provider", "labels"):
        file = msgspec.json.decode(content)
        change(file, place, ["a\0b"] if place == "labels" else "a\0b")
        await bring(store, encode(file))


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000, b'"x"'])
def test_what_is_no_file_of_ours_is_refused(content: bytes) -> None:
    with pytest.raises(Invalid, match="Not an exported chat"):
        parse_file(content)
