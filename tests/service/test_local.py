"""The use cases of one user: whose chat it is, and what a repeated request comes to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import indelible
from indelible.api.inputs import ChatChanges
from indelible.api.operations import ChatService
from indelible.errors import NotFound
from indelible.service.chats import LocalService

CALLS: dict[str, Callable[[LocalService, str, str, str], Any]] = {
    "check_chat": lambda own, chat, message, queued: own.check_chat(chat),
    "get_status": lambda own, chat, message, queued: own.get_status(chat),
    "get_chat": lambda own, chat, message, queued: own.get_chat(chat),
    "update_chat": lambda own, chat, message, queued: own.update_chat(chat, ChatChanges(title="Mine", archived=True)),
    "delete_chat": lambda own, chat, message, queued: own.delete_chat(chat),
    "fork_chat": lambda own, chat, message, queued: own.fork_chat(chat, message),
    "list_messages": lambda own, chat, message, queued: own.list_messages(chat),
    "send": lambda own, chat, message, queued: own.send(chat, "Hi"),
    "edit": lambda own, chat, message, queued: own.edit(chat, message, "Hi"),
    "regenerate": lambda own, chat, message, queued: own.regenerate(chat, message),
    "switch_branch": lambda own, chat, message, queued: own.switch_branch(chat, message),
    "get_tree": lambda own, chat, message, queued: own.get_tree(chat),
    "interrupt": lambda own, chat, message, queued: own.interrupt(chat, wait_s=None),
    "retry": lambda own, chat, message, queued: own.retry(chat),
    "continue_": lambda own, chat, message, queued: own.continue_(chat),
    "compact": lambda own, chat, message, queued: own.compact(chat),
    "submit_tool_results": lambda own, chat, message, queued: own.submit_tool_results(chat, []),
    "list_queue": lambda own, chat, message, queued: own.list_queue(chat),
    "edit_queued": lambda own, chat, message, queued: own.edit_queued(chat, queued, "Hi"),
    "delete_queued": lambda own, chat, message, queued: own.delete_queued(chat, queued),
    "reorder_queue": lambda own, chat, message, queued: own.reorder_queue(chat, [queued]),
    "promote_queued": lambda own, chat, message, queued: own.promote_queued(chat, queued),
    "open_events": lambda own, chat, message, queued: read_first(own, chat),
    "list_attempts": lambda own, chat, message, queued: own.list_attempts(chat),
    "list_runs": lambda own, chat, message, queued: own.list_runs(chat),
    "get_run": lambda own, chat, message, queued: own.get_run(chat, "run_01"),
}
OF_NO_CHAT = {"create_chat", "list_chats", "list_models"}


async def read_first(own: LocalService, chat_id: str) -> None:
    async with own.open_events(chat_id) as events:
        await anext(events)


def test_every_use_case_is_tried() -> None:
    named = {name for name, _ in inspect.getmembers(ChatService, inspect.isfunction) if not name.startswith("_")}
    assert set(CALLS) | OF_NO_CHAT == named


@pytest.mark.parametrize("name", CALLS)
async def test_another_users_chat_is_not_found_and_stays_as_it_is(name: str, app: indelible.App) -> None:
    hers = await app.user("ada").create_chat("Hello", title="Hers")
    queued = (await hers.post("And?")).queued
    assert queued is not None
    before = await hers.details()

    with pytest.raises(NotFound, match="Chat not found"):
        await CALLS[name](app.service, hers.id, before.messages[0].id, queued)

    assert await hers.details() == before


async def test_users_of_one_name_are_one_user_and_their_lists_are_their_own(app: indelible.App) -> None:
    chats = await asyncio.gather(*(app.user("ada").create_chat(title=str(number)) for number in range(5)))
    mine = await app.create_chat()

    assert {chat.id for chat in await app.user("ada").chats()} == {chat.id for chat in chats}
    assert [chat.id for chat in await app.chats()] == [mine.id]


async def test_lists_are_read_page_by_page(app: indelible.App) -> None:
    ada = app.user("ada")
    made = [(await ada.create_chat(title=str(number))).id for number in range(5)]
    service = app.user("ada")._service

    first = await service.list_chats(limit=2)
    second = await service.list_chats(limit=2, cursor=first.next)
    third = await service.list_chats(limit=2, cursor=second.next)

    assert [chat.id for page in (first, second, third) for chat in page.items] == made[::-1]
    assert third.next is None


async def test_a_repeated_request_gets_the_same_answer_and_changes_nothing(app: indelible.App) -> None:
    chat = await app.create_chat("Hello")

    async def send() -> Any:
        once = await app.service.once("key", route="POST /messages", body_hash=b"1")
        return await once.send(chat.id, "And?")

    assert await send() == await send()
    assert len(await chat.queue()) == 1


async def test_a_stop_waits_no_longer_than_it_was_told(app: indelible.App) -> None:
    chat = await app.create_chat("Hello")
    await app.store.acquire("somebody", limit=1)
    await app.store.beat("somebody")

    stopped = await app.service.interrupt(chat.id, wait_s=0.01)

    assert (stopped.stopped, stopped.status) == (True, "interrupting")
    again = await app.service.interrupt(chat.id, wait_s=0.01)
    assert (again.stopped, again.status, again.turn) == (True, "interrupting", stopped.turn)
