"""Conversations that the product itself made, copied from SQLite to PostgreSQL: all of each, and they go on there.

tests/store/test_copy.py checks every table with made-up rows. Rows that the product writes refer to each other in ways
that those do not, above all a chat to its last message and a turn to its question.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from tests.support.app_harness import make_settings
from tests.support.commands import run_indelible
from tests.support.messages import outline, read_text
from tests.support.waiting import deadline

import indelible
from indelible.app.app import App, User
from indelible.app.chat import Chat
from indelible.content import File, ToolResult
from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script, Step

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
ODD = "NUL \0, lone \ud800, é \u2028 \U0001f469\u200d\U0001f680 ' \" \\ \t"


@indelible.tool
async def plot() -> list[Any]:
    """Plot the notes."""
    return ["Here:", File("text/csv", name="plot.csv", data=b"a,b\n1,2\n")]


@indelible.tool
async def ask_person(question: str) -> str:
    """Ask the person in front of the screen."""
    raise AssertionError(question)  # the client runs it


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


def call(name: str, arguments: str = "{}") -> list[Step]:
    return [parts.tool_call("c", name, arguments), parts.finish("tool_calls")]


def half(text: str) -> Script:
    return [parts.text_delta("1", text), parts.hang()]


def ask_model() -> ScriptedModel:
    return ScriptedModel(
        [
            [parts.reasoning_start("r"), parts.reasoning_delta("r", "Hm."), parts.reasoning_end("r"), *call("plot")],
            say("Done. " + ODD),
            say("Yes."),
            say("Snow."),
            say("Sun."),
            half("It will"),
            ModelFailed("The key is wrong.", kind="auth"),
            call("ask_person", '{"question": "Which?"}'),
            say("A summary."),
            say("Rain, as before."),
            half("Once upon a"),
        ]
    )


async def read_until(chat: Chat, word: str) -> None:
    """Read until the running reply shows this."""
    async with deadline(), aclosing(chat.events()) as events:
        async for event in events:
            if word.encode() in event.json:
                return


async def converse(app: App) -> dict[str, Chat]:
    """A chat of every kind that the product makes. The last one is being answered, and two messages are queued."""
    made = {name: await app.create_chat() for name in ("tools", "branches", "stopped", "failed", "waiting", "running")}
    await app.accounts.add_user("grace")
    notes = await app.upload(b"It rains in Oslo.\n" * 40_000, name="notes å.txt")

    await made["tools"].update(debug="all", labels=["ä", "b"], pinned=True, system=ODD, parameters={"temperature": 0})
    await made["tools"].send(["Plot this " + ODD, notes])
    await made["tools"].send("Is that all?")
    await made["tools"].save_draft("half a quest")
    await app.shares.share_with_user(made["tools"].id, "grace", owner_id=app.owner_id)
    await app.shares.share_by_link(made["tools"].id, owner_id=app.owner_id)

    await made["branches"].send("Oslo?")
    before = await made["branches"].messages()
    await made["branches"].edit(before[0].id, "Bergen?")
    await made["branches"].switch_branch(before[0].id)

    await made["stopped"].post("Tomorrow?")
    await read_until(made["stopped"], "will")
    await made["stopped"].interrupt()
    await made["stopped"].archive()

    with pytest.raises(ModelFailed):
        await made["failed"].send("Anybody?")
    await made["waiting"].post("Which one?")
    await wait_for(made["waiting"], "requires_action")

    await made["branches"].compact()
    await made["branches"].send("And now?")
    made["fork"] = await made["branches"].fork((await made["branches"].messages())[0].id)
    made["imported"] = await app.import_chat(await made["tools"].export())

    await made["running"].post("A story!")
    await read_until(made["running"], "Once upon a")
    await made["running"].post("And then?")
    await made["running"].post("And after that?")
    await app.save_draft("a new chat, perhaps")
    return made


async def wait_for(chat: Chat, status: str) -> None:
    async with deadline(), aclosing(chat.events()) as events:
        async for event in events:
            if event.data.get("status") == status:
                return


async def read_everything(user: User, chat_id: str) -> dict[str, Any]:
    """What people see of a chat, and its whole feed. The time of an export differs each time."""
    chat = await user.chat(chat_id)
    details = await chat.details()
    events: list[Any] = []
    async with deadline(), aclosing(chat.events(after="start")) as feed:
        async for event in feed:
            events.append((event.kind, event.cursor, event.data))
            if event.cursor == details.cursor:
                break
    exported = msgspec.json.decode(await chat.export())
    exported.pop("exported_at")
    return {
        "details": details,
        "messages": await chat.messages(),
        "tree": await chat.tree(),
        "queue": await chat.queue(),
        "attempts": await chat.attempts(),
        "runs": await chat.runs(),
        "draft": await chat.draft(),
        "export": exported,
        "events": events,
        "listed": [found for found in await user.chats(archived=details.archived) if found.id == chat.id],
    }


async def test_conversations_of_the_product_arrive_whole_and_a_reply_goes_on_there(
    database: str, new_postgres: str
) -> None:
    settings = make_settings(lease_timeout_s=8)
    tools: dict[str, Any] = {"tools": [plot], "client_tools": [ask_person]}
    async with indelible.open(database, model=ask_model(), settings=settings, **tools) as app:
        made = await converse(app)
        _, secret = await app.accounts.create_token(app.owner_id, label="ci", scopes=["read", "write"])
    async with indelible.open(database, worker=False, settings=settings) as app:
        before = {name: await read_everything(app, chat.id) for name, chat in made.items()}
        files = {file.id: await app.read_file(file.id) for file in await app.files()}
        usage = await app.usage()
        assert len(files) == 2
        assert [read_text(queued.blocks) for queued in before["running"]["queue"]] == ["And then?", "And after that?"]

    done = await asyncio.to_thread(run_indelible, "copy", database, "--to", new_postgres)

    assert (done.returncode, done.stderr) == (0, "")
    async with indelible.open(new_postgres, worker=False, settings=settings) as app:
        for name, chat in made.items():
            assert await read_everything(app, chat.id) == before[name], name
        assert {file.id: await app.read_file(file.id) for file in await app.files()} == files
        assert await app.usage() == usage
        assert await app.draft() == "a new chat, perhaps"
        credential = await app.accounts.find_token(secret)
        assert credential is not None
        assert credential.user_id == app.owner_id
        grace = await app.accounts.find_user("grace")
        assert grace is not None
        assert [chat.id for chat in await app.shares.list_shared(grace.id)] == [made["tools"].id]

    model = ScriptedModel([say(" time."), say("They rode."), say("Home."), say("This one."), say("Wind.")])
    async with indelible.open(new_postgres, model=model, settings=settings, **tools) as app:
        running = await app.chat(made["running"].id)
        await wait_until_answered(running)
        assert outline(await running.messages()) == [
            ("user", "A story!"),
            ("assistant", "Once upon a"),
            ("assistant", " time."),
            ("user", "And then?"),
            ("assistant", "They rode."),
            ("user", "And after that?"),
            ("assistant", "Home."),
        ]
        waiting = await app.chat(made["waiting"].id)
        assert (await waiting.submit_tool_results([ToolResult(call_id="c", name="ask_person", output="A")])).text == (
            "This one."
        )
        stopped = await app.chat(made["stopped"].id)
        await stopped.archive(archived=False)
        assert (await stopped.send("And the wind?")).text == "Wind."


async def wait_until_answered(chat: Chat) -> None:
    async with deadline(), aclosing(chat.events()) as events:
        async for _ in events:
            details = await chat.details()
            if details.status == "idle" and not details.queue:
                return
