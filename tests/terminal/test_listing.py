"""The list of chats, and how one of them is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from indelible.app.app import App
from indelible.errors import NotFound
from indelible.terminal.reports import find_chat, list_chats
from indelible.testing import ScriptedModel

OpenApp = Callable[..., AbstractAsyncContextManager[App]]


async def test_the_last_changed_chat_is_first_and_a_title_is_one_harmless_line(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel()) as app:
        assert await list_chats(app) == ["There are no chats yet. Start one with: indelible chat"]
        older = await app.create_chat(title="a\nlong\x1b[2Jtitle")
        newer = await app.create_chat()
        first, second = await list_chats(app)
        assert re.fullmatch(rf"  1  \d{{4}}-\d\d-\d\d \d\d:\d\d  idle  {newer.id}  \(no title\)", first)
        assert second.endswith(f"{older.id}  a long\ufffd[2Jtitle")
        assert await list_chats(app, limit=1) == [first]


async def test_a_chat_is_found_by_its_id_by_its_number_or_as_the_last_one(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel()) as app:
        older, newer = await app.create_chat(), await app.create_chat()
        for name, chat in [(None, newer), ("1", newer), ("2", older), (older.id, older)]:
            assert (await find_chat(app, name)).id == chat.id
        await older.update(pinned=True)
        for name, chat in [(None, newer), ("1", older), ("2", newer)]:
            assert (await find_chat(app, name)).id == chat.id


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat_nope", "Chat 'chat_nope' not found. List chats with: indelible chats"),
        ("2", "Chat 2 not found: the list has 1."),
        ("0", "Chat 0 not found: the list has 1."),
    ],
)
async def test_a_chat_that_does_not_exist_is_reported(open_chats: OpenApp, name: str, expected: str) -> None:
    async with open_chats(ScriptedModel()) as app:
        await app.create_chat()
        with pytest.raises(NotFound, match=re.escape(expected)):
            await find_chat(app, name)


async def test_there_may_be_none_to_go_on_with(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel()) as app:
        with pytest.raises(NotFound, match="There are no chats yet"):
            await find_chat(app, None)
