"""A stop, seen from outside: the acceptance list's stops over HTTP, with the client, on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.app_harness import AppHarness, serve_app
from tests.support.running_server import (
    RunningServer,
    has_text,
    read_text,
    read_until,
    say,
    say_half,
    text_of,
    wait_until_idle,
)
from tests.support.waiting import poll_until

from indelible.content import Text
from indelible.testing import ScriptedModel, parts

STOPPED = "Stopped by you."
HALF_SAID = say_half("Hel", "lo")


async def stop_when_said(server: RunningServer, text: str = "Hello") -> tuple[str, dict[str, Any]]:
    """A chat whose reply is stopped when a reader has seen this much of it, and the answer to the stop."""
    chat_id = (await server.client.create_chat("Hi"))["id"]
    await read_until(server.client, chat_id, has_text(text))
    return chat_id, await server.client.interrupt(chat_id, wait_s=60)


async def test_s6_after_a_stop_the_text_is_in_the_answer_in_the_snapshot_and_in_the_database(
    harness: AppHarness,
) -> None:
    server = await harness.start_server(ScriptedModel([HALF_SAID]))

    chat_id, answer = await stop_when_said(server)

    assert (answer["stopped"], answer["status"], answer["turn"]) == (True, "idle", None)
    snapshot = await server.client.get_chat(chat_id)
    stored = await server.client.read_all_messages(chat_id)
    assert snapshot["messages"] == stored
    assert [(message["role"], text_of(message)) for message in stored[1:]] == [
        ("assistant", "Hello"),
        ("notice", STOPPED),
    ]
    assert answer["message_id"] == stored[1]["id"]


async def test_s7_a_reader_who_saw_two_chunks_of_a_model_that_hangs_finds_them_after_the_stop(
    harness: AppHarness,
) -> None:
    server = await harness.start_server(ScriptedModel([HALF_SAID]))
    chat_id = (await server.client.create_chat("Hi"))["id"]
    seen = await read_until(server.client, chat_id, has_text("Hello"), after="start")

    await server.client.interrupt(chat_id)

    rest = await read_until(server.client, chat_id, lambda events: events[-1].kind == "message", after=seen[-1].cursor)
    message = rest[-1].data["message"]
    assert (message["role"], text_of(message)) == ("assistant", "Hello")
    assert read_text(seen) == "Hello"


async def test_s21_an_interrupt_leaves_a_chat_waiting_and_a_shutdown_leaves_it_pending(database: str) -> None:
    async with serve_app(database, ScriptedModel([HALF_SAID, HALF_SAID])) as server:
        stopped_id, answer = await stop_when_said(server)
        running_id = (await server.client.create_chat("Hi"))["id"]
        await read_until(server.client, running_id, has_text("Hello"))

    async with serve_app(database, worker=False) as server:
        handed_over = await server.client.get_chat(running_id)
        assert answer["status"] == (await server.client.get_chat(stopped_id))["status"] == "idle"
    assert handed_over["status"] == "pending"
    assert [text_of(message) for message in handed_over["messages"]] == ["Hi", "Hello"]


async def test_s58_s59_the_reloaded_chat_has_the_partial_reply_and_then_the_notice(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([HALF_SAID]))

    chat_id, _ = await stop_when_said(server)

    [_, partial, notice] = (await server.client.get_chat(chat_id))["messages"]
    assert (partial["role"], partial["partial"], partial["reason"]) == ("assistant", True, "interrupted")
    assert (notice["role"], text_of(notice)) == ("notice", STOPPED)
    assert (await server.client.get_chat(chat_id))["error"] is None


async def test_s60_a_stop_before_any_token_leaves_only_the_notice_even_after_an_older_cut_reply(
    harness: AppHarness,
) -> None:
    model = ScriptedModel([HALF_SAID, [parts.hang()]])
    server = await harness.start_server(model)
    chat_id, _ = await stop_when_said(server)
    await server.client.send(chat_id, "And now?")
    await poll_until(lambda: len(model.calls) == 2)

    answer = await server.client.interrupt(chat_id, wait_s=60)

    assert (answer["stopped"], answer["message_id"]) == (True, None)
    messages = await server.client.read_all_messages(chat_id)
    assert [message["role"] for message in messages] == ["user", "assistant", "notice", "user", "notice"]


async def test_s63_the_next_prompt_has_the_partial_reply_and_not_the_notice(harness: AppHarness) -> None:
    model = ScriptedModel([HALF_SAID, say("Yes.")])
    server = await harness.start_server(model)
    chat_id, _ = await stop_when_said(server)

    sent = await server.client.send(chat_id, "Go on?")
    await read_until(server.client, chat_id, has_text("Yes."), after=sent["cursor"])

    prompt = [
        (message.role, "".join(block.text for block in message.blocks if isinstance(block, Text)))
        for message in model.calls[1].messages
    ]
    assert prompt == [("user", "Hi"), ("assistant", "Hello"), ("user", "Go on?")]


async def test_s65_tokens_go_to_their_own_stream_only(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half(f"reply {number}") for number in range(4)]))
    chats = [(await server.client.create_chat("Hi"))["id"] for _ in range(4)]

    async with asyncio.TaskGroup() as group:
        reading = [
            group.create_task(read_until(server.client, chat_id, has_text("reply"), after="start")) for chat_id in chats
        ]

    assert sorted(read_text(task.result()) for task in reading) == [f"reply {number}" for number in range(4)]
    for chat_id in chats:
        await server.client.interrupt(chat_id, wait_s=60)


async def test_s65_a_stop_works_before_any_worker_has_taken_the_chat(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("Hi")

    answer = await server.client.interrupt(chat["id"], wait_s=60)

    assert (answer["stopped"], answer["status"], answer["message_id"]) == (True, "idle", None)
    messages = await server.client.read_all_messages(chat["id"])
    assert [message["role"] for message in messages] == ["user", "notice"]


async def test_a_stop_that_comes_late_does_not_stop_the_next_turn(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), HALF_SAID]))
    chat = await server.client.create_chat("Hi")
    await wait_until_idle(server.client, chat["id"])
    sent = await server.client.send(chat["id"], "And?")
    await read_until(server.client, chat["id"], has_text("Hello"), after=sent["cursor"])

    late = await server.client.interrupt(chat["id"], turn=chat["turn"])

    assert (late["stopped"], late["status"], late["turn"]) == (False, "running", sent["turn"])
    assert (await server.client.interrupt(chat["id"], turn=sent["turn"], wait_s=60))["stopped"]
