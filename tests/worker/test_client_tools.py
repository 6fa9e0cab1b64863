"""Tools that the client runs: the turn stops for them, and goes on with whatever comes first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from tests.support.app_harness import AppHarness, make_settings
from tests.support.engine import begin_write
from tests.support.messages import outline, read_text
from tests.support.tables import chats

from indelible.app.chat import Chat
from indelible.content import ToolResult
from indelible.errors import Invalid, NotAllowed
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script


async def ask(question: str = "") -> str:
    """Ask the user; whoever shows the chat does that."""
    raise NotImplementedError


async def roll() -> str:
    return "4"


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


TIMEOUT_S = 600
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
ASK: Script = [parts.tool_call("c1", "ask", "{}"), parts.finish("tool_calls")]


def answer(call_id: str = "c1", output: str = "yes") -> ToolResult:
    return ToolResult(call_id=call_id, name="ask", output=output)


async def ask_the_client(harness: AppHarness, *script: Script, **settings: int) -> Chat:
    model = ScriptedModel([ASK, *script])
    await harness.start_worker(
        model,
        tools=[roll],
        client_tools=[ask],
        settings=make_settings(
            poll_interval_s=0.1, heartbeat_interval_s=0.1, client_tool_timeout_s=TIMEOUT_S, **settings
        ),
    )
    chat = await harness.app.create_chat()
    reply = await chat.send("Ask me")
    assert reply.outcome == "requires_action"
    assert await chat.status() == "requires_action"
    return chat


async def test_results_in_time_go_on_with_the_same_turn(harness: AppHarness) -> None:
    chat = await ask_the_client(harness, say("Thanks"))
    reply = await chat.submit_tool_results([answer()])
    assert (reply.text, reply.outcome) == ("Thanks", "complete")
    assert outline(await chat.messages()) == [
        ("user", "Ask me"),
        ("assistant", ""),
        ("tool", "yes"),
        ("assistant", "Thanks"),
    ]
    (turn,) = (await harness.load(chat)).turns
    assert turn.outcome == "complete"


async def test_local_calls_beside_the_clients_are_run_first(harness: AppHarness) -> None:
    both: Script = [parts.tool_call("c1", "ask", "{}"), parts.tool_call("c2", "roll", "{}"), parts.finish("tool_calls")]
    model = ScriptedModel([both, say("Thanks")])
    await harness.start_worker(model, tools=[roll], client_tools=[ask])
    chat = await harness.app.create_chat()
    assert (await chat.send("Both")).outcome == "requires_action"
    assert [role for role, _ in outline(await chat.messages())] == ["user", "assistant", "tool"]
    await chat.submit_tool_results([answer()])
    assert [role for role, _ in outline(await chat.messages())] == ["user", "assistant", "tool", "tool", "assistant"]
    given = [block for message in model.calls[1].messages for block in message.blocks if isinstance(block, ToolResult)]
    assert {result.call_id: result.output for result in given} == {"c1": "yes", "c2": "4"}


async def test_results_that_do_not_match_change_nothing(harness: AppHarness) -> None:
    chat = await ask_the_client(harness, say("Thanks"))
    before = (await harness.store.view(chat.id)).seq
    for wrong in ([], [answer("c9")], [answer(), answer("c2")], [answer(), answer()]):
        with pytest.raises(Invalid):
            await chat.submit_tool_results(wrong)
    assert (await harness.store.view(chat.id)).seq == before
    assert (await chat.submit_tool_results([answer()])).text == "Thanks"
    with pytest.raises(NotAllowed):
        await chat.submit_tool_results([answer()])


async def test_exactly_one_of_many_submits_wins(harness: AppHarness) -> None:
    chat = await ask_the_client(harness, say("Thanks"))
    submits = [chat.submit_tool_results([answer(output=str(number))])._read_all() for number in range(8)]
    replies = await asyncio.gather(*submits, return_exceptions=True)
    won = [reply for reply in replies if not isinstance(reply, BaseException)]
    assert (len(won), {type(reply) for reply in replies if reply not in won}) == (1, {NotAllowed})
    (given,) = [text for role, text in outline(await chat.messages()) if role == "tool"]
    assert given in {str(number) for number in range(8)}


async def test_a_deadline_that_passed_answers_the_calls_and_goes_on(harness: AppHarness) -> None:
    chat = await ask_the_client(harness, say("Never mind"))
    waiting = (await harness.load(chat)).chat
    assert waiting.deadline_at - waiting.runnable_at == timedelta(seconds=TIMEOUT_S)
    async with begin_write(harness.engine) as connection:
        await connection.execute(update(chats).where(chats.c.id == chat.id).values(deadline_at=LONG_AGO))
    view = await harness.wait_for_end(chat)
    assert outline(view.messages)[-1] == ("assistant", "Never mind")
    (result,) = [block for message in view.messages for block in message.blocks if isinstance(block, ToolResult)]
    assert (result.is_error, result.output.startswith("Expired")) == (True, True)
    with pytest.raises(NotAllowed):
        await chat.submit_tool_results([answer()])


async def test_a_stop_answers_the_calls_and_ends_the_turn(harness: AppHarness) -> None:
    chat = await ask_the_client(harness, say("Hi"))
    stopped = await chat.interrupt()
    assert (stopped.stopped, stopped.status) == (True, "idle")
    assert [role for role, _ in outline(await chat.messages())] == ["user", "assistant", "tool", "notice"]
    assert (await chat.send("Hello")).text == "Hi"


async def test_a_message_waits_for_the_results_and_an_interrupt_does_not(harness: AppHarness) -> None:
    chat = await ask_the_client(harness, say("Now"), say("Later"))
    await chat.post("Later?")
    assert (await chat.send("Now!", if_busy="interrupt")).text == "Now"
    await harness.wait_for_end(chat)
    assert [text for role, text in outline(await chat.messages()) if role == "user"] == ["Ask me", "Now!", "Later?"]


async def test_a_stop_after_the_results_keeps_them(harness: AppHarness) -> None:
    chat = await ask_the_client(harness, [parts.text_delta("1", "So"), parts.hang()])
    reading = asyncio.create_task(chat.submit_tool_results([answer()])._read_all())
    await harness.wait_for_text(chat, "So")
    await chat.interrupt()
    assert (await reading).outcome == "interrupted"
    assert [role for role, _ in outline(await chat.messages())] == ["user", "assistant", "tool", "assistant", "notice"]


async def test_max_steps_counts_the_steps_before_the_results(harness: AppHarness) -> None:
    again: Script = [parts.tool_call("c2", "roll", "{}"), parts.finish("tool_calls")]
    chat = await ask_the_client(harness, again, max_steps=2)
    reply = await chat.submit_tool_results([answer()])
    assert reply.outcome == "complete"
    roles = [role for role, _ in outline(await chat.messages())]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "notice"]


async def test_waiting_for_the_client_holds_no_worker(harness: AppHarness) -> None:
    chat = await ask_the_client(harness)
    assert (await harness.load(chat)).chat.holder is None
    await harness.stop_worker(harness.workers[0])
    assert await chat.status() == "requires_action"
    model = ScriptedModel([say("Thanks")])
    await harness.start_worker(model, client_tools=[ask])
    assert (await chat.submit_tool_results([answer()])).text == "Thanks"
    assert read_text(model.calls[0].messages[0].blocks) == "Ask me"
