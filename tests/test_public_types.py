"""The public face as a type checker sees it: a user's program passes mypy --strict, and wrong uses of it do not.

All programs are checked in one run of mypy, with the project's own configuration and cache, because nearly all of its
time goes into reading the package. The names are those that a program imports from `indelible`; nothing is run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """\
from collections.abc import Sequence
from typing import Any

import indelible
from indelible.testing import ScriptedModel, parts


@indelible.tool
async def weather(city: str, days: int = 1) -> str:
    '''Tell the weather in a city.'''
    return f"{city}: rain for {days} days"


@indelible.tool
def note(text: str, context: indelible.ToolContext) -> None:
    '''Keep a text.'''
"""

RIGHT = {
    "open": """
async def work() -> None:
    async with indelible.open("chats.db", model="demo", tools=[weather, note], user="ada") as app:
        chat: indelible.Chat = await app.user("ada").create_chat(system="Be brief.")
        await chat.update(title="Rain", labels=["weather"])
        print(await talk(chat))


async def talk(chat: indelible.Chat) -> str:
    reply = chat.send("Is it raining in Oslo?", if_busy="steer")
    async for part in reply:
        print(part.text, end="")
    whole: indelible.Reply = await chat.send([indelible.Text("And in Bergen?")])
    return whole.text
""",
    "scripted model": """
async def work() -> None:
    model = ScriptedModel([[parts.text_delta("1", "Yes."), parts.finish()]])
    async with indelible.open(":none:", model=model, worker=False) as app:
        assert isinstance(app, indelible.App)
""",
    "errors": """
async def stop(chat: indelible.Chat) -> str:
    try:
        stopped: indelible.InterruptResult = await chat.interrupt()
        return str(stopped)
    except indelible.NotFound as error:
        return str(error)
    except (indelible.Refused, indelible.ModelFailed, indelible.IndelibleError):
        raise
""",
    "tools are values": """
async def keep(tools: Sequence[indelible.Tool]) -> list[str]:
    return [tool.name for tool in [*tools, weather, note]]
""",
    "client": """
async def ask() -> float | None:
    async with indelible.Client("http://127.0.0.1:8000", token="hush", retry_for_s=1.0) as ada:
        chat: indelible.Chat = await ada.create_chat()
        async with chat.stream("Is it raining?") as reply:
            async for part in reply:
                print(part.text, end="")
        usage: indelible.Usage | None = reply.usage
        print(usage, [message.id for message in await chat.messages()])
        return reply.cost
""",
}

WRONG = {
    "an option that does not exist": ('indelible.open("chats.db", modell="demo")', "call-arg"),
    "a model that is none": ('indelible.open("chats.db", model=3)', "arg-type"),
    "a tool that is none": ('indelible.open("chats.db", tools=["weather"])', "list-item"),
    "text that is none": ("chat.send(3)", "arg-type"),
    "a word that if_busy does not know": ('chat.send("Hi", if_busy="later")', "arg-type"),
    "a reply that is read as if it were a text": ('chat.send("Hi").upper()', "attr-defined"),
    "a reply that is read without async": ('[part for part in chat.send("Hi")]', "attr-defined"),
    "an interrupt that nobody awaits": ("chat.interrupt().turn_id", "attr-defined"),
    "a name that is not there": ("indelible.nothing", "attr-defined"),
    "a client with a number for an address": ("indelible.Client(8000)", "arg-type"),
    "a title that is none": ("chat.update(title=3)", "arg-type"),
    "a field of a chat that does not exist": ('chat.update(name="Rain")', "call-arg"),
}


SRC = Path(__file__).parents[1] / "src" / "indelible"


def leave_out(module: str, pattern: str, more: str = "") -> str:
    """The text of a module without what the pattern finds, once."""
    text, count = re.subn(pattern, "", (SRC / module).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert count == 1, pattern
    return text + more


CHECK = """

from indelible.api.operations import ChatApi

def check(service: LocalService) -> ChatApi:
    return service
"""
FORGOTTEN = {
    "an operation that the client lacks": leave_out("client/client.py", r"^    send = remote\(ChatApi.send\)\n"),
    "a method that the client lacks": leave_out("client/client.py", r"^    async def get_run\(.*?(?=^\S)"),
    "an operation of accounts that the client lacks": leave_out(
        "client/client.py", r"^    add_user = remote\(AccountApi.add_user\)\n"
    ),
    "another operation in its place": (SRC / "client/client.py")
    .read_text()
    .replace("send = remote(ChatApi.send)", "send = remote(ChatApi.retry)"),
    "an operation that the service lacks": leave_out(
        "service/chats.py", r"^    async def retry\(.*?(?=^    async def)", CHECK
    ),
}
"""Both sides implement the protocols of api/operations.py. A checker finds what one of them lacks."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The codes of the errors in each program, by its name."""
    place = tmp_path_factory.mktemp("programs")
    programs = {name: HEAD + body for name, body in RIGHT.items()}
    for name, (line, _) in WRONG.items():
        programs[name] = f"{HEAD}\n\nasync def use(chat: indelible.Chat) -> Any:\n    return {line}\n"
    programs |= FORGOTTEN
    files = {name: place / f"program_{number}.py" for number, name in enumerate(programs)}
    for name, path in files.items():
        path.write_text(programs[name])
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, files.values())]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr + done.stdout
    errors = re.findall(r"(program_\d+)\.py:\d+: error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert len(errors) == done.stdout.count(": error: "), done.stdout
    return {name: {code for file, code in errors if file == path.stem} for name, path in files.items()}


@pytest.mark.parametrize("name", RIGHT)
def test_a_users_program_passes_the_strict_checker(found: dict[str, set[str]], name: str) -> None:
    assert found[name] == set()


@pytest.mark.parametrize("name", FORGOTTEN)
def test_an_operation_that_is_forgotten_on_one_side_is_found_by_the_checker(
    found: dict[str, set[str]], name: str
) -> None:
    assert found[name] & {"return-value", "assignment"}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_use_is_found_by_the_checker(found: dict[str, set[str]], name: str) -> None:
    assert found[name] == {WRONG[name][1]}
