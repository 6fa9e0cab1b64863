"""Mistakes of a program that uses the library: each gets an error that names the remedy, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tests.support.app_harness import make_settings
from tests.support.messages import outline
from tests.support.waiting import DEADLINE_S

import indelible
from indelible.errors import Invalid, NotAllowed, StoreFailed
from indelible.store.database.errors import DatabaseUnusable
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

SETTINGS = make_settings()


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


# --- at the wrong time, or in the wrong place ---


async def test_a_closed_app_names_the_remedy(database: str) -> None:
    async with indelible.open(database, model="demo", settings=SETTINGS) as app:
        chat = await app.create_chat()
    for use in (app.create_chat, chat.messages, lambda: chat.post("Hello")):
        with pytest.raises(StoreFailed, match=r"is closed\. Use it inside its `async with` block, or open it again"):
            await use()


async def test_an_app_that_is_open_in_this_program_already_is_named_as_such(tmp_path: Path) -> None:
    async with indelible.open(tmp_path / "chats.db", model="demo", settings=SETTINGS):
        with pytest.raises(DatabaseUnusable, match=r"in use by this program.* worker=False"):
            async with indelible.open(tmp_path / "chats.db", model="demo", settings=SETTINGS):
                pytest.fail("one file was opened by two workers")
        async with indelible.open(tmp_path / "chats.db", model="demo", worker=False, settings=SETTINGS) as beside:
            assert await beside.chats() == []


@pytest.mark.both_databases
async def test_an_app_of_another_event_loop_is_refused_and_nothing_is_sent(database: str) -> None:
    async with indelible.open(database, model="demo", settings=SETTINGS) as app:
        chat = await app.create_chat()
        with pytest.raises(StoreFailed, match="opened in another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(chat.post("Hello")))
        assert await chat.messages() == []


FORK = """
import asyncio, os, signal, sys
import indelible

async def main():
    async with indelible.open(sys.argv[1], model="demo") as app:
        chat = await app.create_chat()
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            try:
                asyncio.run(chat.post("from the child"))
            except BaseException as error:
                print(type(error).__name__, error, flush=True)
            os._exit(0)
        await asyncio.to_thread(os.waitpid, child, 0)
        print(len(await chat.messages()), (await chat.send("Hello")).outcome, flush=True)

asyncio.run(main())
"""


def test_a_forked_child_is_refused_at_once_and_its_parent_continues(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK, str(tmp_path / "chats.db")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("INDELIBLE_")}
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path, env=env
    )
    refused, parent = done.stdout.splitlines()
    assert "was opened before this process was forked. Open it again in this process." in refused
    assert parent == "0 complete"


# --- wrong values ---


class Nothing:
    """No model."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"model": Nothing()}, "model: .*it has no provider, name, context_limit, stream. Give a model's name"),
        ({"model": ScriptedModel}, "model: ScriptedModel is a class. Give an instance of it"),
        ({"model": "demo", "models": {"mine": 3}}, r"models\['mine'\]: 3 is not a model"),
        ({"model": "demo", "models": ["mine"]}, "models: expected a dict of models by name, not list"),
        ({"model": "demo", "tools": print}, "tools: expected a list of tools, not <built-in function print>"),
        ({"model": "demo", "client_tools": "ask"}, "client_tools: expected a list of tools, not 'ask'"),
        ({"model": "demo", "settings": {}}, "settings: expected indelible.settings.Settings, not dict"),
        ({"database": b"chats.db", "model": "demo"}, "database: expected a path or a URL, not b'chats.db'"),
    ],
)
async def test_a_wrong_argument_is_refused_by_open_and_not_by_the_first_reply(
    tmp_path: Path, arguments: dict[str, Any], expected: str
) -> None:
    given = {"database": tmp_path / "chats.db", "settings": SETTINGS, **arguments}
    with pytest.raises(TypeError, match=expected):
        async with indelible.open(**given):
            pytest.fail("it was opened")
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_tools_may_come_from_a_generator_a_path_from_any_kind_and_a_title_from_a_subclass(tmp_path: Path) -> None:
    class Title(str):
        __slots__ = ()

    @indelible.tool
    async def weather(city: str) -> str:
        """Get the weather in a city."""
        return city

    model, path = ScriptedModel([say("Hi")]), PurePosixPath(tmp_path / "chats.db")
    given: Any = {"tools": (each for each in [weather])}
    async with indelible.open(path, model=model, settings=SETTINGS, **given) as app:  # type: ignore[arg-type]
        chat = await app.create_chat(title=Title("Rain"))
        await chat.send("Hello")
    assert [tool.name for tool in model.calls[0].tools] == ["weather"]


async def test_values_of_a_wrong_type_are_refused_and_change_nothing(database: str) -> None:
    wrong: Any
    async with indelible.open(database, model=ScriptedModel([say("Hi")]), settings=SETTINGS) as app:
        chat = await app.create_chat(title="Rain")
        for wrong in (3, None, b"Hello"):
            with pytest.raises(Invalid, match="content: must be a text, or a list of texts and files, not"):
                chat.send(wrong)
        wrong = ScriptedModel([])
        with pytest.raises(Invalid, match="model: must be the name of a model, not ScriptedModel"):
            await chat.post("Hello", model=wrong)
        for changes in ({"title": 3}, {"labels": "rain"}, {"tools": [3]}, {"pinned": "yes"}, {"parameters": [1]}):
            wrong = changes
            with pytest.raises(Invalid, match=f"Expected .* at `\\$.{next(iter(changes))}"):
                await chat.update(**wrong)
        with pytest.raises(Invalid, match="temperature must be a number"):
            await chat.update(parameters={"temperature": float("nan")})
        with pytest.raises(NotAllowed, match="Cannot submit tool results while the chat is idle"):
            await chat.submit_tool_results([])
        wrong = None
        with pytest.raises(Invalid, match="A user's name has 1 to 200 printable characters"):
            await app.user(wrong).chats()
        wrong = 3
        with pytest.raises(Invalid, match=r"Expected `str \| null`, got `int` - at `\$.system`"):
            await app.create_chat(system=wrong)
        assert [(found.title, found.labels) for found in await app.chats()] == [("Rain", [])]
        await chat.send("Hello")
        assert outline(await chat.messages()) == [("user", "Hello"), ("assistant", "Hi")]


def test_completion_offers_the_public_names_and_nothing_else() -> None:
    assert [name for name in dir(indelible) if not name.startswith("__")] == sorted(indelible.__all__)
