"""Idempotency keys of every write, and changes of a chat that are one transaction (rule 10.10): S76 and S104."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer

import indelible
from indelible.content import Text
from indelible.machine.commands import Delete, UpdateChat
from indelible.store.payloads import ChatPatch

pytestmark = pytest.mark.both_databases

KEY = {"Idempotency-Key": "once"}


async def ask(server: RunningServer, method: str, path: str, **more: Any) -> tuple[int, bytes]:
    async with server.request(method, path, headers=KEY, **more) as response:
        return response.status, await response.read()


async def test_s76_a_repeated_patch_changes_nothing_and_gets_the_same_answer(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat()
    path = f"/chats/{chat['id']}"
    first = await ask(server, "PATCH", path, json={"title": "Mine", "pinned": True, "archived": True})
    assert first[0] == 200
    await server.client.update_chat(chat["id"], title="Other", archived=False)

    assert await ask(server, "PATCH", path, json={"title": "Mine", "pinned": True, "archived": True}) == first

    details = await server.client.get_chat(chat["id"])
    assert (details["title"], details["archived"]) == ("Other", False)


async def test_s76_another_body_under_the_key_is_refused(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat()
    path = f"/chats/{chat['id']}"
    await ask(server, "PATCH", path, json={"title": "Mine"})
    for method, body in (("PATCH", {"title": "Yours"}), ("DELETE", None), ("POST", {"message_id": "message_1"})):
        where = f"{path}/fork" if method == "POST" else path
        async with server.request(method, where, json=body, headers=KEY) as response:
            problem = await read_problem(response)
            assert (problem["status"], problem["kind"]) == (422, "invalid")
            assert "used for another request" in problem["detail"]
    assert (await server.client.get_chat(chat["id"]))["title"] == "Mine"


async def test_s76_a_repeated_delete_is_answered_as_the_first(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("Hello")
    path = f"/chats/{chat['id']}"
    assert await ask(server, "DELETE", path) == (204, b"")
    assert await ask(server, "DELETE", path) == (204, b"")
    async with server.request("DELETE", path, headers={"Idempotency-Key": "another"}) as response:
        assert response.status == 404
    async with server.request("DELETE", path) as response:
        assert response.status == 404


async def test_s76_deletes_that_come_at_once_with_one_key_are_one(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("Hello")
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(server, "DELETE", f"/chats/{chat['id']}")) for _ in range(8)]
    assert {task.result() for task in asking} == {(204, b"")}


async def test_s76_a_change_of_several_fields_is_whole_or_not_at_all(harness: AppHarness) -> None:
    """A running chat cannot be archived: then its title does not change either, and there is no event."""
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("Hello", title="Before")
    before = await harness.store.view(chat["id"])
    async with server.request("PATCH", f"/chats/{chat['id']}", json={"title": "After", "archived": True}) as response:
        problem = await read_problem(response)
        assert (problem["status"], problem["command"]) == (409, "archive")
    async with server.request("PATCH", f"/chats/{chat['id']}", json={"debug": "some", "archived": False}) as response:
        assert response.status == 422
    assert await harness.store.view(chat["id"]) == before


async def test_s104_forks_that_come_at_once_with_one_key_are_one_chat(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("Hello")
    body = {"message_id": chat["message"]}
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(ask(server, "POST", f"/chats/{chat['id']}/fork", json=body)) for _ in range(12)]
    answers = {task.result() for task in asking}
    assert [status for status, _ in answers] == [201]
    assert len((await server.client.list_chats())["items"]) == 2
    assert await ask(server, "POST", f"/chats/{chat['id']}/fork", json=body) == next(iter(answers))


async def test_s104_a_fork_that_is_refused_leaves_its_key_free(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("Hello")
    assert (await ask(server, "POST", f"/chats/{chat['id']}/fork", json={"message_id": "message_none"}))[0] == 404
    status, _ = await ask(server, "POST", f"/chats/{chat['id']}/fork", json={"message_id": chat["message"]})
    assert status == 201


async def test_s76_nobody_deletes_or_copies_a_chat_of_another_user_with_a_key(
    harness: AppHarness, database: str
) -> None:
    server = await harness.start_server(worker=False)
    async with indelible.open(database, user="ada", worker=False) as app:
        hers = await app.create_chat([Text("Hello")])
        message = (await hers.messages())[0].id
        assert (await ask(server, "DELETE", f"/chats/{hers.id}"))[0] == 404
        assert (await ask(server, "PATCH", f"/chats/{hers.id}", json={"title": "Mine"}))[0] == 404
        assert (await ask(server, "POST", f"/chats/{hers.id}/fork", json={"message_id": message}))[0] == 404
        assert (await hers.details()).title != "Mine"
    await harness.store.execute(hers.id, UpdateChat(), ChatPatch(title="Hers"))
    await harness.store.execute(hers.id, Delete())
