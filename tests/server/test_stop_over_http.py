"""A stop, seen from outside: the acceptance list's stops over HTTP, with the client, on both databases."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.server.conftest import Serve
from tests.server.serving import (
    Here,
    has_said,
    read_text,
    read_until,
    say,
    say_half,
    serve_here,
    text_of,
    wait_until_idle,
)

from indelible.content import Text
from indelible.testing import ScriptedModel, parts

STOPPED = "Stopped by you."
HALF_SAID = say_half("Hel", "lo")


async def stop_when_said(here: Here, text: str = "Hello") -> tuple[str, dict[str, Any]]:
    """A chat whose reply is stopped when a reader has seen this much of it, and the answer to the stop."""
    chat_id = (await here.client.create_chat("Hi"))["id"]
    await read_until(here.client, chat_id, has_said(text))
    return chat_id, await here.client.interrupt(chat_id, wait_s=60)


async def test_s6_after_a_stop_the_text_is_in_the_answer_in_the_snapshot_and_in_the_database(serve: Serve) -> None:
    here = await serve(ScriptedModel([HALF_SAID]))

    chat_id, answer = await stop_when_said(here)

    assert (answer["stopped"], answer["status"], answer["turn"]) == (True, "idle", None)
    snapshot = await here.client.get_chat(chat_id)
    stored = await here.client.read_all_messages(chat_id)
    assert snapshot["messages"] == stored
    assert [(message["role"], text_of(message)) for message in stored[1:]] == [
        ("assistant", "Hello"),
        ("notice", STOPPED),
    ]
    assert answer["message_id"] == stored[1]["id"]


async def test_s7_a_reader_who_saw_two_chunks_of_a_model_that_hangs_finds_them_after_the_stop(serve: Serve) -> None:
    here = await serve(ScriptedModel([HALF_SAID]))
    chat_id = (await here.client.create_chat("Hi"))["id"]
    seen = await read_until(here.client, chat_id, has_said("Hello"), after="start")

    await here.client.interrupt(chat_id)

    rest = await read_until(here.client, chat_id, lambda events: events[-1].kind == "message", after=seen[-1].cursor)
    message = rest[-1].data["message"]
    assert (message["role"], text_of(message)) == ("assistant", "Hello")
    assert read_text(seen) == "Hello"


async def test_s21_an_interrupt_leaves_a_chat_waiting_and_a_shutdown_leaves_it_pending(database: str) -> None:
    async with serve_here(database, ScriptedModel([HALF_SAID, HALF_SAID])) as here:
        stopped_id, answer = await stop_when_said(here)
        running_id = (await here.client.create_chat("Hi"))["id"]
        await read_until(here.client, running_id, has_said("Hello"))

    async with serve_here(database, worker=False) as here:
        handed_over = await here.client.get_chat(running_id)
        assert answer["status"] == (await here.client.get_chat(stopped_id))["status"] == "idle"
    assert handed_over["status"] == "pending"
    assert [text_of(message) for message in handed_over["messages"]] == ["Hi", "Hello"]


async def test_s58_s59_the_reloaded_chat_has_the_partial_reply_and_then_the_notice(serve: Serve) -> None:
    here = await serve(ScriptedModel([HALF_SAID]))

    chat_id, _ = await stop_when_said(here)

    [_, partial, notice] = (await here.client.get_chat(chat_id))["messages"]
    assert (partial["role"], partial["partial"], partial["reason"]) == ("assistant", True, "interrupted")
    assert (notice["role"], text_of(notice)) == ("notice", STOPPED)
    assert (await here.client.get_chat(chat_id))["error"] is None


async def test_s60_a_stop_before_any_token_leaves_only_the_notice_even_after_an_older_cut_reply(serve: Serve) -> None:
    model = ScriptedModel([HALF_SAID, [parts.hang()]])
    here = await serve(model)
    chat_id, _ = await stop_when_said(here)
    sent = await here.client.send(chat_id, "And now?")
    await read_until(here.client, chat_id, lambda events: len(model.calls) == 2, after=sent["cursor"])

    answer = await here.client.interrupt(chat_id, wait_s=60)

    assert (answer["stopped"], answer["message_id"]) == (True, None)
    messages = await here.client.read_all_messages(chat_id)
    assert [message["role"] for message in messages] == ["user", "assistant", "notice", "user", "notice"]


async def test_s63_the_next_prompt_has_the_partial_reply_and_not_the_notice(serve: Serve) -> None:
    model = ScriptedModel([HALF_SAID, say("Yes.")])
    here = await serve(model)
    chat_id, _ = await stop_when_said(here)

    sent = await here.client.send(chat_id, "Go on?")
    await read_until(here.client, chat_id, has_said("Yes."), after=sent["cursor"])

    prompt = [
        (message.role, "".join(block.text for block in message.blocks if isinstance(block, Text)))
        for message in model.calls[1].messages
    ]
    assert prompt == [("user", "Hi"), ("assistant", "Hello"), ("user", "Go on?")]


async def test_s65_tokens_go_to_their_own_stream_only(serve: Serve) -> None:
    here = await serve(ScriptedModel([say_half(f"reply {number}") for number in range(4)]))
    chats = [(await here.client.create_chat("Hi"))["id"] for _ in range(4)]

    async with asyncio.TaskGroup() as group:
        reading = [
            group.create_task(read_until(here.client, chat_id, has_said("reply"), after="start")) for chat_id in chats
        ]

    assert sorted(read_text(task.result()) for task in reading) == [f"reply {number}" for number in range(4)]
    for chat_id in chats:
        await here.client.interrupt(chat_id, wait_s=60)


async def test_s65_a_stop_works_before_any_worker_has_taken_the_chat(serve: Serve) -> None:
    here = await serve(worker=False)
    chat = await here.client.create_chat("Hi")

    answer = await here.client.interrupt(chat["id"], wait_s=60)

    assert (answer["stopped"], answer["status"], answer["message_id"]) == (True, "idle", None)
    messages = await here.client.read_all_messages(chat["id"])
    assert [message["role"] for message in messages] == ["user", "notice"]


async def test_a_stop_that_comes_late_does_not_stop_the_next_turn(serve: Serve) -> None:
    here = await serve(ScriptedModel([say("One."), HALF_SAID]))
    chat = await here.client.create_chat("Hi")
    await wait_until_idle(here.client, chat["id"])
    sent = await here.client.send(chat["id"], "And?")
    await read_until(here.client, chat["id"], has_said("Hello"), after=sent["cursor"])

    late = await here.client.interrupt(chat["id"], turn=chat["turn"])

    assert (late["stopped"], late["status"], late["turn"]) == (False, "running", sent["turn"])
    assert (await here.client.interrupt(chat["id"], turn=sent["turn"], wait_s=60))["stopped"]
