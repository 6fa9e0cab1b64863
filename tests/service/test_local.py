"""The use cases of one user: whose chat it is, and what a repeated request comes to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from tests.service.conftest import carry_out

import indelible
from indelible.api.inputs import Interruption, NewMessage
from indelible.api.operations import ChatApi, operations
from indelible.errors import NotFound
from indelible.service.chats import LocalService


async def read_first(own: LocalService, chat_id: str) -> None:
    async with own.open_events(chat_id) as events:
        await anext(events)


BY_HAND: dict[str, Callable[[LocalService, str], Any]] = {
    "check_chat": lambda own, chat: own.check_chat(chat),
    "get_status": lambda own, chat: own.get_status(chat),
    "interrupt_and_wait": lambda own, chat: own.interrupt_and_wait(chat),
    "open_events": read_first,
    "get_run": lambda own, chat: own.get_run(chat, "run_01"),
}
OPERATIONS = {each.name: each for each in operations(ChatApi)}
OF_A_CHAT = [name for name, each in OPERATIONS.items() if "{chat_id}" in each.operation.path]


def call(own: LocalService, name: str, names: dict[str, str]) -> Any:
    """Carry out a use case on what these names stand for; an operation, with the body of its example."""
    if name in BY_HAND:
        return BY_HAND[name](own, names["chat_id"])
    return carry_out(own, OPERATIONS[name], names)


def test_every_use_case_is_tried() -> None:
    named = {name for name, _ in inspect.getmembers(ChatApi, inspect.isfunction) if not name.startswith("_")}
    assert set(BY_HAND) | set(OPERATIONS) == named


@pytest.mark.parametrize("name", [*BY_HAND, *OF_A_CHAT])
async def test_another_users_chat_is_not_found_and_stays_as_it_is(name: str, app: indelible.App) -> None:
    hers = await app.user("ada").create_chat("Hello", title="Hers")
    queued = (await hers.post("And?")).queued
    assert queued is not None
    before = await hers.details()
    names = {"chat_id": hers.id, "message_id": before.messages[0].id, "queued_id": queued}

    with pytest.raises(NotFound, match="Chat not found"):
        await call(app.service, name, names)

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
        return await once.send(chat.id, NewMessage(text="And?"))

    assert await send() == await send()
    assert len(await chat.queue()) == 1


async def test_a_stop_waits_no_longer_than_was_asked(app: indelible.App) -> None:
    chat = await app.create_chat("Hello")
    await app.store.acquire("somebody", limit=1)
    await app.store.beat("somebody")

    stopped = await app.service.interrupt(chat.id, Interruption(wait_s=0.01))

    assert (stopped.stopped, stopped.status) == (True, "interrupting")
    again = await app.service.interrupt(chat.id, Interruption(wait_s=0.01))
    assert (again.stopped, again.status, again.turn) == (True, "interrupting", stopped.turn)
