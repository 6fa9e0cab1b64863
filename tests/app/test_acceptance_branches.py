"""Branches, models and errors of a chat, as people use them (rule 10.1–10.4, 10.11): S66–S69, S75 and S77.

Every script runs in process and over HTTP, the one on PostgreSQL, the other on SQLite.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.app.conftest import OpenUser, both_ways
from tests.support.messages import find_notices, outline, read_text
from tests.support.waiting import deadline

import indelible
from indelible.app.chat import Chat
from indelible.content import Part, ToolResult
from indelible.errors import ModelFailed
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

pytestmark = both_ways

CALL: Script = [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


def half(text: str) -> Script:
    return [parts.text_delta("1", text), parts.hang()]


def answering(name: str) -> ScriptedModel:
    return ScriptedModel([say(f"{name} {number}") for number in range(1, 20)], name=name)


@indelible.tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


class Silence:
    """A script that says nothing; `asked` is set when the model has been asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def stream(self, _call: Call) -> AsyncIterator[Part]:
        self.asked.set()
        await asyncio.get_running_loop().create_future()
        yield parts.finish()


async def stop_at_once(chat: Chat, text: str, silence: Silence) -> None:
    """Ask, and stop the reply before its first word."""
    await chat.post(text)
    async with deadline():
        await silence.asked.wait()
    await chat.interrupt()


async def read_until_running(chat: Chat) -> None:
    async with deadline(), aclosing(chat.events(after="start")) as events:
        async for event in events:
            if event.kind == "part":
                return


async def wait_until_idle(chat: Chat) -> None:
    async with deadline(), aclosing(chat.events()) as events:
        async for event in events:
            if event.kind in ("snapshot", "status") and event.data["status"] == "idle":
                return


# --- S66: going back ---


async def test_s66_an_edited_question_has_its_answers_when_one_goes_back(open_user: OpenUser, database: str) -> None:
    model = ScriptedModel([say("Rain."), say("Sun."), say("Snow.")])
    async with open_user(database, model) as user:
        chat = await user.create_chat()
        await chat.send("Oslo?")
        await chat.send("And tomorrow?")
        before = await chat.messages()
        await chat.edit(before[0].id, "Bergen?")
        edited = await chat.messages()
        assert edited[0].siblings == [before[0].id, edited[0].id]

        await chat.switch_branch(before[0].id)
        assert [message.id for message in await chat.messages()] == [message.id for message in before]
        await chat.switch_branch(edited[0].id)
        assert outline(await chat.messages()) == [("user", "Bergen?"), ("assistant", "Snow.")]
        await chat.switch_branch(before[0].id, exact=True)
        assert outline(await chat.messages()) == [("user", "Oslo?")]


async def test_s66_a_reply_that_used_a_tool_has_all_its_steps_when_one_goes_back(
    open_user: OpenUser, database: str
) -> None:
    async with open_user(database, ScriptedModel([CALL, say("Rain."), say("No idea.")]), tools=[weather]) as user:
        chat = await user.create_chat()
        await chat.send("Oslo?")
        before = await chat.messages()
        await chat.regenerate(before[-1].id)
        again = await chat.messages()
        assert outline(again) == [("user", "Oslo?"), ("assistant", "No idea.")]
        assert again[1].siblings == [before[1].id, again[1].id]

        await chat.switch_branch(before[1].id)
        assert [message.id for message in await chat.messages()] == [message.id for message in before]


async def test_s66_siblings_are_the_alternatives_even_where_a_hidden_message_stands_between(
    open_user: OpenUser, database: str
) -> None:
    async with open_user(database, ScriptedModel([half("Well"), say(" then"), say("Four.")])) as user:
        chat = await user.create_chat()
        async with chat.stream("Talk") as reply:
            async for _ in reply:
                await chat.interrupt()
        notice = (await chat.messages())[-1]
        assert (await chat.continue_()).text == " then"
        continued = (await chat.messages())[-1]
        await chat.switch_branch(notice.id, exact=True)
        await chat.send("Two and two?")
        asked = (await chat.messages())[3]
        assert asked.siblings == [continued.id, asked.id]
        assert asked.parent_id == notice.id
        await chat.switch_branch(continued.id)
        assert (await chat.messages())[-1].siblings == [continued.id, asked.id]


async def test_s66_the_tree_shows_every_branch_in_short(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([CALL, say("Rain. " * 100), say("Snow.")]), tools=[weather]) as user:
        chat = await user.create_chat()
        await chat.send("Oslo?")
        old = await chat.messages()
        await chat.edit(old[0].id, "Bergen?")
        new = await chat.messages()

        tree = await chat.tree()
        assert [item.id for item in tree.items] == [message.id for message in (*old, *new)]
        assert [item.parent_id for item in tree.items] == [None, old[0].id, old[1].id, old[2].id, None, new[0].id]
        assert tree.head == new[-1].id
        assert [item.role for item in tree.items] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert [item.text for item in tree.items][::4] == ["Oslo?", "Bergen?"]
        assert tree.items[3].text.startswith("Rain. Rain. ")
        assert len(tree.items[3].text) <= 80
        assert tree.items[3].model == "scripted"
        assert tree.items[0].created_at == old[0].created_at


async def test_s66_a_message_of_nobody_is_no_branch(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([])) as user:
        chat = await user.create_chat()
        with pytest.raises(indelible.NotFound):
            await chat.switch_branch("message_none")
        assert ((await chat.tree()).head, (await chat.tree()).items) == (None, [])


# --- S67: which model answers ---


async def test_s67_the_model_of_a_message_answers_it_again(open_user: OpenUser, database: str) -> None:
    models = {name: answering(name) for name in ("A", "B", "C")}
    async with open_user(database, answering("default"), models=models) as user:
        chat = await user.create_chat(model="A")
        reply = await chat.send("One", model="B")
        assert reply.text.startswith("B")
        assert reply.message is not None
        question = (await chat.messages())[0]
        assert question.model == "B"
        assert (await chat.regenerate(reply.message.id)).text.startswith("B")
        assert (await chat.edit(question.id, "Uno")).text.startswith("B")
        edited = (await chat.messages())[0]
        assert edited.model == "B"
        assert (await chat.edit(edited.id, "Eins", model="C")).text.startswith("C")
        assert (await chat.regenerate((await chat.messages())[-1].id, model="A")).text.startswith("A")
        assert (await chat.regenerate((await chat.messages())[-1].id)).text.startswith("C")
        assert (await chat.send("Two")).text.startswith("A")


async def test_s67_retry_and_continue_use_the_model_of_the_message(open_user: OpenUser, database: str) -> None:
    failing = ScriptedModel(
        [ModelFailed("No.", kind="config"), say("B retried"), half("B began"), say(" and went on")], name="B"
    )
    async with open_user(database, answering("default"), models={"A": answering("A"), "B": failing}) as user:
        chat = await user.create_chat(model="A")
        with pytest.raises(indelible.ModelFailed):
            await chat.send("One", model="B")
        assert (await chat.retry()).text == "B retried"
        async with chat.stream("Two", model="B") as reply:
            async for _ in reply:
                await chat.interrupt()
        assert (await chat.continue_()).text == " and went on"


@pytest.mark.parametrize("chosen", ["A", None])
async def test_s67_a_queued_message_keeps_the_model_of_the_time_it_was_queued(
    open_user: OpenUser, database: str, chosen: str | None
) -> None:
    first = ScriptedModel([half("Hm"), say("first answers"), say("first again")], name="A")
    models = {"A": first, "B": answering("B")}
    async with open_user(database, first, models=models) as user:
        chat = await user.create_chat(model=chosen)
        running = chat.send("One")
        await running.begin()
        await read_until_running(chat)
        await chat.post("Two")
        assert [queued.model for queued in await chat.queue()] == [chosen]
        await chat.update(model="B")
        await chat.interrupt()
        await wait_until_idle(chat)
        assert read_text((await chat.messages())[-1].blocks) == "first answers"
        assert (await chat.send("Three")).text == "B 1"
        assert [message.model for message in await chat.messages() if message.role == "user"] == [chosen, chosen, "B"]
        assert (await chat.regenerate((await chat.messages())[-3].id)).text == "first again"


# --- S68: a tool that has run ---


@pytest.mark.parametrize("how", ["fork", "branch"])
async def test_s68_the_model_never_reads_that_a_tool_did_not_run_that_did(
    open_user: OpenUser, database: str, how: str
) -> None:
    model = ScriptedModel([CALL, say("Rain."), say("Yes.")])
    async with open_user(database, model, tools=[weather]) as user:
        chat = await user.create_chat()
        await chat.send("Oslo?")
        call = (await chat.messages())[1]
        if how == "fork":
            chat = await chat.fork(call.id)
        else:
            await chat.switch_branch(call.id, exact=True)
        assert [message.role for message in await chat.messages()] == ["user", "assistant", "tool"]
        await chat.send("Sure?")
        blocks = [block for message in model.calls[-1].messages for block in message.blocks]
        results = [block.output for block in blocks if isinstance(block, ToolResult)]
        assert results == ["rain in Oslo"]


# --- S69: asking again ---


async def test_s69_a_stop_before_the_first_word_can_be_retried(open_user: OpenUser, database: str) -> None:
    silence = Silence()
    async with open_user(database, ScriptedModel([silence.stream, say("Four.")])) as user:
        chat = await user.create_chat()
        await stop_at_once(chat, "Two and two?", silence)
        assert outline(await chat.messages()) == [("user", "Two and two?"), ("notice", "Stopped by you.")]
        assert (await chat.retry()).text == "Four."
        with pytest.raises(indelible.NotAllowed, match="Nothing to retry"):
            await chat.retry()


async def test_s69_a_reply_of_nothing_can_be_retried(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([[parts.finish()], say("Four.")])) as user:
        chat = await user.create_chat()
        await chat.send("Two and two?")
        assert find_notices(await chat.messages()) == ["The model returned nothing."]
        assert (await chat.retry()).text == "Four."


async def test_s69_regenerate_may_name_a_question(open_user: OpenUser, database: str) -> None:
    silence = Silence()
    async with open_user(database, ScriptedModel([silence.stream, say("Four."), say("4")])) as user:
        chat = await user.create_chat()
        await stop_at_once(chat, "Two and two?", silence)
        question, notice = await chat.messages()
        assert (await chat.regenerate(question.id)).text == "Four."
        assert outline(await chat.messages()) == [("user", "Two and two?"), ("assistant", "Four.")]
        assert (await chat.regenerate(question.id)).text == "4"
        last = (await chat.messages())[-1]
        assert (len(last.siblings), last.siblings[0], last.siblings[-1]) == (3, notice.id, last.id)


# --- S75: an error belongs to its branch ---


async def test_s75_an_error_stays_on_its_branch(open_user: OpenUser, database: str) -> None:
    failure = ModelFailed("The key is wrong.", kind="auth")
    async with open_user(database, ScriptedModel([say("One."), failure, say("Two.")])) as user:
        chat = await user.create_chat()
        await chat.send("First")
        first = (await chat.messages())[-1]
        with pytest.raises(indelible.ModelFailed):
            await chat.send("Second")
        failed = (await chat.messages())[-1]
        error = (await chat.details()).error
        assert error["kind"] == "auth"

        await chat.switch_branch(first.id, exact=True)
        there = await chat.details()
        assert (there.status, there.error) == ("idle", None)
        with pytest.raises(indelible.NotAllowed, match="Nothing to retry"):
            await chat.retry()

        await chat.switch_branch(failed.id)
        back = await chat.details()
        assert (back.status, back.error) == ("error", error)
        assert (await chat.retry()).text == "Two."
        assert (await chat.details()).error is None


# --- S77: ends are told ---


@pytest.mark.parametrize(
    ("script", "reason", "notice"),
    [
        ([parts.text_delta("1", "Once"), parts.finish("length")], "length", "length limit"),
        ([parts.text_delta("1", "Once"), parts.finish("content_filter")], "content_filter", "content filter"),
        (CALL, "max_steps", "maximum number of steps"),
    ],
    ids=["length", "content filter", "max steps"],
)
async def test_s77_every_end_is_announced_and_has_its_reason(
    open_user: OpenUser, database: str, script: Any, reason: str, notice: str
) -> None:
    model = ScriptedModel([script, say("Go on.")])
    is_partial = script is not CALL
    async with open_user(database, model, tools=[weather], max_steps=1) as user:
        chat = await user.create_chat()
        reply = await chat.send("A story")
        assert reply.message is not None
        assert (reply.outcome, reply.message.reason, reply.message.partial) == ("complete", reason, is_partial)
        (told,) = find_notices(await chat.messages())
        assert notice in told
        assert (await (chat.continue_() if is_partial else chat.retry())).text == "Go on."
        assert told not in [read_text(message.blocks) for message in model.calls[-1].messages]
