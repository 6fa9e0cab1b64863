"""Lists, titles, names of models and users of chats (rule 10.5, 10.15): S70, S81, S86, S87 and S89.

Scripts that have a `User` run in process and over HTTP, the one on PostgreSQL, the other on SQLite.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.app.conftest import OpenUser, both_ways
from tests.support.app_harness import make_settings
from tests.support.messages import outline, read_text
from tests.support.waiting import deadline

import indelible
from indelible.app.app import User
from indelible.app.chat import Chat
from indelible.content import Part
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script
from indelible.worker.summaries import INSTRUCTION


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


async def list_ids(user: User) -> list[str]:
    return [chat.id for chat in await user.chats()]


async def wait_for_title(chat: Chat, title: str) -> None:
    async with deadline(), aclosing(chat.events()) as events:
        async for event in events:
            if event.kind in ("snapshot", "chat") and event.data.get("title") == title:
                return


# --- S70: the order of chats ---


@both_ways
async def test_s70_only_what_is_said_moves_a_chat_and_pinned_ones_come_first(
    open_user: OpenUser, database: str
) -> None:
    async with open_user(database, ScriptedModel([say("One"), say("Two")])) as user:
        first, second, third = [await user.create_chat() for _ in range(3)]
        order = [third.id, second.id, first.id]
        assert await list_ids(user) == order
        await first.update(title="Renamed")
        await first.update(labels=["labelled"])
        await first.update(debug="all")
        await first.update(model="demo", system="Be brief.", parameters={"temperature": 0})
        await first.archive()
        await first.archive(archived=False)
        assert await list_ids(user) == order

        before = {chat.id: chat.updated_at for chat in await user.chats()}
        await first.update(pinned=True)
        assert await list_ids(user) == [first.id, third.id, second.id]
        assert {chat.id: chat.updated_at for chat in await user.chats()} == before
        await third.send("Hello")
        await second.send("Hello")
        assert await list_ids(user) == [first.id, second.id, third.id]
        await first.update(pinned=False)
        assert await list_ids(user) == [second.id, third.id, first.id]


@both_ways
async def test_s70_an_automatic_title_moves_no_chat(open_user: OpenUser, database: str) -> None:
    may_name = asyncio.Event()

    async def name(call: Call) -> AsyncIterator[Part]:
        await may_name.wait()
        async for part in ScriptedModel([say("Rain in Oslo")]).stream(call):
            yield part

    model = Titling(name)
    model.may_reply.set()
    async with open_user(database, model, auto_titles=True) as user:
        first = await user.create_chat()
        await first.send("Is it raining?")
        second = await user.create_chat(title="Second")
        may_name.set()
        await wait_for_title(first, "Rain in Oslo")
        assert await list_ids(user) == [second.id, first.id]


# --- S81: titles ---


class Titling:
    """Gives a title at once, and a reply when the test lets it."""

    provider = name = "titling"
    context_limit = None

    def __init__(self, title: Script) -> None:
        self.titles_asked: list[Call] = []
        self.may_reply = asyncio.Event()
        self._title = title

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        if read_text(call.messages[0].blocks) == INSTRUCTION:
            self.titles_asked.append(call)
            async for part in ScriptedModel([self._title]).stream(call):
                yield part
            return
        yield parts.text_delta("1", "It ")
        await self.may_reply.wait()
        yield parts.text_delta("1", "rains.")
        yield parts.finish()


@both_ways
async def test_s81_a_title_at_once_and_a_better_one_before_the_first_reply_ends(
    open_user: OpenUser, database: str
) -> None:
    model = Titling(say("Rain in Oslo"))
    async with open_user(database, model, auto_titles=True) as user:
        chat = await user.create_chat("Is it raining in Oslo?\nI have no umbrella.")
        await wait_for_title(chat, "Rain in Oslo")
        assert (await chat.details()).status == "running"
        (asked,) = model.titles_asked
        assert "Is it raining in Oslo?" in read_text(asked.messages[1].blocks)
        model.may_reply.set()
        async with deadline(), aclosing(chat.events()) as events:
            async for event in events:
                if event.kind in ("snapshot", "status") and event.data["status"] == "idle":
                    break
        await chat.send("And tomorrow?")
        assert (await chat.details()).title == "Rain in Oslo"
        assert len(model.titles_asked) == 1


@both_ways
async def test_s81_the_first_words_are_the_title_until_there_is_a_better_one(
    open_user: OpenUser, database: str
) -> None:
    async with open_user(database, ScriptedModel([say("Yes."), say("No.")])) as user:
        at_once = await user.create_chat("Is it raining in Oslo?\nI have no umbrella.")
        assert (await at_once.details()).title == "Is it raining in Oslo?"
        later = await user.create_chat()
        assert (await later.details()).title is None
        await later.send("word " * 40)
        assert (await later.details()).title == "word " * 15 + "word…"
        assert [chat.title for chat in await user.chats(search="raining")] == ["Is it raining in Oslo?"]


@both_ways
async def test_s81_the_users_own_title_always_wins(open_user: OpenUser, database: str) -> None:
    model = Titling(say("Rain in Oslo"))
    model.may_reply.set()
    async with open_user(database, model, auto_titles=True) as user:
        own = await user.create_chat("Is it raining?", title="Weather")
        later = await user.create_chat(title="Later")
        await later.send("Is it raining?")
        for chat, title in ((own, "Weather"), (later, "Later")):
            await chat.send("And tomorrow?")
            assert (await chat.details()).title == title
        assert model.titles_asked == []


# --- S86: a message that is never sent ---


@both_ways
async def test_s86_a_send_that_is_never_awaited_warns(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([])) as user:
        chat = await user.create_chat()
        with pytest.warns(indelible.NeverSent, match="was not sent"):
            chat.send("Hello")
        assert await chat.messages() == []


# --- S87: what cannot work is refused at once ---


@pytest.mark.both_databases
@pytest.mark.parametrize("name", ["gpt-4o", "openai:", "nobody:model", "anthropic:claude sonnet"])
async def test_s87_an_unknown_model_is_refused_when_the_library_is_opened(database: str, name: str) -> None:
    with pytest.raises(indelible.Invalid, match="Unknown model"):
        async with indelible.open(database, model=name, settings=make_settings()):
            raise AssertionError("it was opened")


@both_ways
async def test_s87_an_unknown_model_is_refused_wherever_one_is_named(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([say("Yes.")])) as user:
        with pytest.raises(indelible.Invalid, match=r"Unknown model 'gpt-4o'"):
            await user.create_chat(model="gpt-4o")
        assert await user.chats() == []
        chat = await user.create_chat(model="demo")
        reply = await chat.send("Hello")
        assert reply.message is not None
        unknown: dict[str, Any] = {"model": "gpt-4o"}
        for ask in (
            chat.send("Hello", **unknown),
            chat.regenerate(reply.message.id, **unknown),
            chat.edit((await chat.messages())[0].id, "Hi", **unknown),
            chat.retry(**unknown),
            chat.continue_(**unknown),
        ):
            with pytest.raises(indelible.Invalid, match="Unknown model"):
                await ask
        for name in ("gpt-4o", ""):
            with pytest.raises(indelible.Invalid, match="Unknown model"):
                await chat.update(title="Never", model=name)
        details = await chat.details()
        assert (details.model, details.title, len(details.messages)) == ("demo", "Hello", 2)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"stop": [1]}, "stop must be a list of texts"),
        ({"effort": "huge"}, "effort must be one of"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls must be true or false"),
    ],
)
@both_ways
async def test_s87_a_parameter_of_the_wrong_type_is_refused(
    open_user: OpenUser, database: str, parameters: dict[str, Any], problem: str
) -> None:
    async with open_user(database, ScriptedModel([])) as user:
        with pytest.raises(indelible.Invalid, match=problem):
            await user.create_chat(parameters=parameters)
        chat = await user.create_chat(parameters={"temperature": 0, "max_tokens": 10, "stop": "x"})
        with pytest.raises(indelible.Invalid, match=r"Unknown parameter temprature\. Did you mean temperature\?"):
            await chat.update(parameters={"temprature": 1})
        with pytest.raises(indelible.Invalid, match=problem):
            await chat.update(parameters=parameters)


# --- S89: two users ---


@pytest.mark.both_databases
async def test_s89_two_users_of_one_process_share_a_database_and_nothing_else(database: str) -> None:
    def repeat(call: Call) -> AsyncIterator[Part]:
        return ScriptedModel([say(read_text(call.messages[-1].blocks))]).stream(call)

    async with indelible.open(database, model=ScriptedModel([repeat] * 20), settings=make_settings()) as app:
        users = {name: app.user(name) for name in ("ada", "bob")}

        async def talk(name: str) -> list[str]:
            chats = [await users[name].create_chat(system=f"You talk to {name}.") for _ in range(3)]
            for number, chat in enumerate(chats):
                await chat.send(f"{name} {number}")
                assert outline(await chat.messages()) == [(role, f"{name} {number}") for role in ("user", "assistant")]
            return [chat.id for chat in chats]

        async with deadline(), asyncio.TaskGroup() as group:
            talking = {name: group.create_task(talk(name)) for name in users}
        ids = {name: task.result() for name, task in talking.items()}
        for name, other in (("ada", "bob"), ("bob", "ada")):
            assert await list_ids(users[name]) == ids[name][::-1]
            with pytest.raises(indelible.NotFound):
                await users[name].chat(ids[other][0])
        assert await app.chats() == []
        assert await list_ids(app.user("ada")) == ids["ada"][::-1]
