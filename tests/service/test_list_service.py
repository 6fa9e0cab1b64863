"""The use cases beside a conversation: whose they are, their pages, and what they write for people."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest
from tests.service.conftest import carry_out

import indelible
from indelible.api.operations import ListApi, operations
from indelible.api.shapes import ChatPage
from indelible.content import Block, File, Reasoning, Source, Text, ToolCall, ToolResult, encode
from indelible.errors import Invalid, NotFound, NotPermitted, TooLarge
from indelible.service.lists import LocalLists, write_markdown
from indelible.store.transfer import ChatFile, FileMessage
from indelible.testing import ScriptedModel

BY_HAND: dict[str, Callable[[LocalLists, str], Awaitable[Any]]] = {
    "export_chat": lambda own, chat: own.export_chat(chat),
    "open_tab": lambda own, chat: own.open_tab(chat).__aenter__(),
}
OPERATIONS = {each.name: each for each in operations(ListApi)}
OF_A_CHAT = [name for name, each in OPERATIONS.items() if "{chat_id}" in each.operation.path]
OF_NO_CHAT = {"import_chat"}


def call(own: LocalLists, name: str, chat_id: str) -> Awaitable[Any]:
    if name in BY_HAND:
        return BY_HAND[name](own, chat_id)
    pending: Awaitable[Any] = carry_out(own, OPERATIONS[name], {"chat_id": chat_id})
    return pending


def test_every_use_case_of_lists_is_tried() -> None:
    named = {name for name, _ in inspect.getmembers(ListApi, inspect.isfunction) if not name.startswith("_")}
    assert set(BY_HAND) | set(OPERATIONS) | OF_NO_CHAT == named


async def test_no_use_case_of_lists_knows_another_users_chat(app: indelible.App) -> None:
    hers = await app.user("ada").create_chat("Hello", title="Hers")
    await hers.save_draft("Mine")
    before = await hers.details()
    for name in [*BY_HAND, *OF_A_CHAT]:
        for chat_id in (hers.id, "chat_nobody", "\0"):
            with pytest.raises(NotFound, match="Chat not found"):
                await call(app.service.lists, name, chat_id)
            assert await hers.details() == before, name
    for chat_id in ("new",):
        with pytest.raises(NotFound):
            await app.service.lists.export_chat(chat_id)
        with pytest.raises(NotFound):
            await app.service.lists.mark_read(chat_id)


async def test_only_an_admin_reads_the_usage_of_others(app: indelible.App) -> None:
    ada = app.user("ada")
    for asked in ({"user": "local"}, {"by_user": True}):
        assert (await app.usage(**asked)).days == []
        with pytest.raises(NotPermitted, match="admin"):
            await ada.usage(**asked)


async def test_usage_of_any_day_can_be_asked_for(app: indelible.App) -> None:
    for until in (date.min, date(1, 1, 5), date.max):
        assert (await app.usage(until=until)).days == []
        assert (await app.usage(since=until)).days == []


async def test_what_is_too_much_is_refused(app: indelible.App) -> None:
    chat = await app.create_chat()
    with pytest.raises(TooLarge):
        await chat.save_draft("x" * 300_000)
    for seq in (-1, 2**63):
        with pytest.raises(Invalid):
            await chat.mark_read(seq)
    for cursor in ("x", "W10", "////"):
        for search in (None, "rain"):
            with pytest.raises(Invalid, match="cursor"):
                await app.service.list_chats(q=search, cursor=cursor)


async def test_a_file_brings_no_model_and_no_tool_that_its_user_could_not_choose(database: str) -> None:
    """Whoever imports a file may have written it."""
    written = {
        "id": "m1",
        "role": "user",
        "blocks": [{"type": "text", "text": "Hi"}],
        "model": "other:expensive",
        "created_at": "2026-01-01T00:00:00Z",
    }
    file: dict[str, Any] = {"format": "indelible.chat", "version": 1, "exported_at": "2026-01-01T00:00:00Z"}
    file |= {"title": None, "model": None, "system": None, "parameters": None, "tools": None, "labels": []}
    file |= {"created_at": "2026-01-01T00:00:00Z", "head": "m1", "messages": [written]}
    async with indelible.open(database, model=ScriptedModel([])) as app:
        tool = {"name": "search", "provider_executed": True, "options": {"type": "mcp", "server_url": "https://x"}}
        for wrong in ({"tools": [tool]}, {"parameters": {"temperature": "hot"}}, {"model": "other:expensive"}):
            with pytest.raises(Invalid):
                await app.service.lists.import_chat(encode(file | wrong))
        chat = await app.service.lists.import_chat(encode(file))
        (message,) = (await app.service.list_messages(chat.id)).items
        assert not message.model
        assert (await app.service.list_chats()).items[0].id == chat.id


@pytest.mark.parametrize("search", [None, "rain"])
async def test_pages_lead_on_and_back(app: indelible.App, search: str | None) -> None:
    made = [(await app.create_chat(title=f"Rain {number}")).id for number in range(5)][::-1]

    async def read(cursor: str | None) -> ChatPage:
        return await app.service.list_chats(q=search, limit=2, cursor=cursor)

    first = await read(None)
    second = await read(first.next)
    third = await read(second.next)
    assert [chat.id for page in (first, second, third) for chat in page.items] == made
    assert (first.previous, third.next) == (None, None)
    again = await read(third.previous)
    assert [chat.id for chat in again.items] == made[2:4]
    back = await read(again.previous)
    assert ([chat.id for chat in back.items], back.previous) == (made[:2], None)
    assert [chat.id for chat in (await read(back.next)).items] == made[2:4]


def test_markdown_has_what_people_see_of_the_active_branch_in_order() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    call = ToolCall(id="c", name="look", arguments='{"a": "```"}')
    results: list[Block] = [ToolResult("c", "look", "42")]
    results += [ToolResult("c", "pay", "no", outcome=outcome) for outcome in ("failed", "not_run", "unknown")]
    messages = [
        FileMessage(id="1", role="user", blocks=[Text("Question")], created_at=at),
        FileMessage(id="2", parent_id="1", role="assistant", blocks=[Text("Old branch")], created_at=at),
        FileMessage(id="3", parent_id="1", role="user", visibility="model", blocks=[Text("Hidden")], created_at=at),
        FileMessage(
            id="4", parent_id="3", role="assistant", model="big", blocks=[Reasoning("Hm"), Text("Wait"), call],
            partial=True, reason="interrupted", created_at=at,
        ),
        FileMessage(id="5", parent_id="4", role="tool", blocks=results, created_at=at),
        FileMessage(id="6", parent_id="5", role="notice", blocks=[Text("Stopped by you.")], created_at=at),
    ]  # fmt: skip
    none: dict[str, Any] = dict.fromkeys(("model", "system", "parameters", "tools"))
    file = ChatFile(
        format="indelible.chat", version=1, exported_at=at, created_at=at, title="Rain", labels=[], head="6",
        messages=messages, **none,
    )  # fmt: skip
    assert write_markdown(file) == (
        "# Rain\n\n## You\n\nQuestion\n\n## Assistant (big)\n\nWait\n\n"
        '**Tool call:** look\n\n````json\n{"a": "```"}\n````\n\n*(interrupted)*\n\n'
        "**Result:** look\n\n```\n42\n```\n\n"
        "**Error:** pay\n\n```\nno\n```\n\n**Not run:** pay\n\n```\nno\n```\n\n"
        "**Outcome unknown:** pay\n\n```\nno\n```\n\n## Notice\n\nStopped by you.\n"
    )


NAME = "Rain\n\n## You\r\nI said this.\u2028\x85\v\f# No"
ON_ONE_LINE = "Rain ## You I said this. # No"


def test_no_name_in_markdown_is_more_than_one_line() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    blocks: list[Block] = [
        ToolCall(id="c", name=NAME, arguments="{}"),
        ToolResult("c", NAME, "42"),
        File("text/plain", name=NAME),
        File(NAME),
        Source(title=NAME),
        Source(url=NAME),
        Source(id=NAME),
    ]
    message = FileMessage(id="1", role="assistant", model=NAME, blocks=blocks, created_at=at)
    none: dict[str, Any] = dict.fromkeys(("model", "system", "parameters", "tools"))
    file = ChatFile(
        format="indelible.chat", version=1, exported_at=at, created_at=at, title=NAME, labels=[], head="1",
        messages=[message], **none,
    )  # fmt: skip
    assert [line for line in write_markdown(file).splitlines() if "Rain" in line] == [
        f"# {ON_ONE_LINE}",
        f"## Assistant ({ON_ONE_LINE})",
        f"**Tool call:** {ON_ONE_LINE}",
        f"**Result:** {ON_ONE_LINE}",
        *[f"**File:** {ON_ONE_LINE}"] * 2,
        *[f"**Source:** {ON_ONE_LINE}"] * 3,
    ]
    assert write_markdown(file).count("I said this.") == 9
