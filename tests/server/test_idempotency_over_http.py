"""Idempotency keys over HTTP: asked again, a write happens once and is answered the same."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, has_text, read_until, say_half

from indelible.testing import ScriptedModel

KEY = {"Idempotency-Key": "once"}


async def ask_twice(server: RunningServer, method: str, path: str, **more: Any) -> tuple[int, bytes]:
    """The answer to a write that comes twice. Fails if the second answer is another."""
    answers = []
    for _ in range(2):
        async with server.request(method, path, headers=KEY, **more) as response:
            answers.append((response.status, await response.read()))
    assert answers[0] == answers[1]
    return answers[0]


async def test_the_same_key_gets_the_same_answer_and_one_chat(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)

    status, _ = await ask_twice(server, "POST", "/chats", json={"message": "Hi"})

    assert status == 201
    assert len((await server.client.list_chats())["items"]) == 1


async def test_a_message_that_comes_twice_is_sent_once(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("One")

    status, _ = await ask_twice(server, "POST", f"/chats/{chat['id']}/messages", json={"text": "Two"})

    assert status == 202
    assert len(await server.client.list_queue(chat["id"])) == 1


async def test_many_that_come_at_once_are_one(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("One")

    async def ask() -> bytes:
        async with server.request(
            "POST", f"/chats/{chat['id']}/messages", json={"text": "Two"}, headers=KEY
        ) as response:
            assert response.status == 202
            return await response.read()

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(ask()) for _ in range(10)]

    assert len({task.result() for task in asking}) == 1
    assert len(await server.client.list_queue(chat["id"])) == 1


async def test_the_key_of_another_request_is_refused(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("One")
    async with server.request("POST", f"/chats/{chat['id']}/messages", json={"text": "Two"}, headers=KEY) as response:
        assert response.status == 202
    others = [(f"/chats/{chat['id']}/messages", {"text": "Three"}), ("/chats", {"message": "Two"})]
    for path, body in others:
        async with server.request("POST", path, json=body, headers=KEY) as response:
            problem = await read_problem(response)
            assert (problem["status"], problem["kind"]) == (422, "invalid")
            assert "used for another request" in problem["detail"]


async def test_a_request_that_was_refused_leaves_its_key_free(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat()
    async with server.request(
        "POST", f"/chats/{chat['id']}/messages", json={"text": "x" * 300_000}, headers=KEY
    ) as response:
        assert response.status == 413
    async with server.request("POST", f"/chats/{chat['id']}/messages", json={"text": "Hi"}, headers=KEY) as response:
        assert response.status == 202


async def test_the_last_of_the_queue_can_be_taken_out_twice(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("One")
    queued = (await server.client.send(chat["id"], "Two"))["queued"]

    status, _ = await ask_twice(server, "DELETE", f"/chats/{chat['id']}/queue/{queued}")

    assert status == 204
    assert await server.client.list_queue(chat["id"]) == []


async def test_a_copy_that_is_asked_for_twice_is_one_chat(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("One")

    status, _ = await ask_twice(server, "POST", f"/chats/{chat['id']}/fork", json={"message_id": chat["message"]})

    assert status == 201
    assert len((await server.client.list_chats())["items"]) == 2


async def test_a_stop_that_comes_again_does_not_stop_the_next_turn(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half("Hello"), say_half("Hello")]))
    chat = await server.client.create_chat("One")
    await read_until(server.client, chat["id"], has_text("Hello"))
    queued = await server.client.send(chat["id"], "Two")
    path = f"/chats/{chat['id']}/interrupt"
    async with server.request("POST", path, json={"wait_s": 10}, headers=KEY) as response:
        first = await response.json()
    await read_until(server.client, chat["id"], has_text("Hello"), after=queued["cursor"])

    async with server.request("POST", path, json={"wait_s": 10}, headers=KEY) as response:
        again = await response.json()

    assert again["stopped"]
    assert again["message_id"] == first["message_id"] is not None
    assert (await server.client.get_chat(chat["id"]))["status"] == "running"
