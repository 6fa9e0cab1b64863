"""The examples of the docs run as they stand: Python in process and over HTTP, and curl's requests on a real server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from tests.support.running_server import run_server

import indelible
import indelible.client.http_transport
import indelible.store.database.errors
from indelible.errors import IndelibleError
from indelible.server.app import Server
from indelible.settings import load_settings

DOCS = Path(__file__).parent.parent / "docs"
SHOWN_URL = "http://127.0.0.1:8000"


def list_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


async def run_blocks(blocks: list[str], names: dict[str, Any]) -> None:
    """Run each block as if it were typed where `await` is allowed, one after the other."""
    assert blocks
    for block in blocks:
        code = compile(block, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, names)  # noqa: S307  (our own pages)
        if inspect.iscoroutine(running):
            await running


async def test_the_library_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], demo_url: str
) -> None:
    here = tmp_path / "here"  # beside the server's database
    here.mkdir()
    monkeypatch.chdir(here)
    async with indelible.open("other.db", model="demo") as app:
        first, *rest = [block.replace(SHOWN_URL, demo_url) for block in list_blocks("library.md", "python")]
        await run_blocks([first], {})
        await run_blocks(rest, {"indelible": indelible, "chat": await app.create_chat()})
    assert capsys.readouterr().out.count("complete") == 3  # in process, in a call of its own, over HTTP


async def test_the_feed_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    async with indelible.open("other.db", model="demo") as app:
        names = {"chat": await app.create_chat(), "cursor": None, "aclosing": aclosing}
        await run_blocks(list_blocks("feed.md", "python"), names)
    assert capsys.readouterr().out.startswith("snapshot ")


HANDLES: Final = {"app": indelible.App, "user": indelible.User, "chat": indelible.Chat, "reply": indelible.Reply}


def list_pages_with_python() -> list[str]:
    return [page.name for page in sorted(DOCS.glob("*.md")) if list_blocks(page.name, "python")]


@pytest.mark.parametrize("page", list_pages_with_python())
def test_every_method_that_an_example_calls_exists(page: str) -> None:
    """Also in examples that cannot run: they need a key, or a file."""
    called = {
        (node.func.value.id, node.func.attr)
        for block in list_blocks(page, "python")
        for node in ast.walk(compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    }
    unknown = [
        (handle, name) for handle, name in called if not hasattr(HANDLES.get(handle), name) and handle in HANDLES
    ]
    assert unknown == []


ERROR: Final = re.compile(r"`((?:[A-Z][a-z]+)+)`")


@pytest.mark.parametrize("page", ["library.md", "operations.md", "errors.md"])
def test_every_error_that_a_page_names_can_be_imported(page: str) -> None:
    classes = {kind.__name__ for kind in find_kinds(IndelibleError)}
    named = classes & set(ERROR.findall((DOCS / page).read_text()))
    assert named
    assert [name for name in sorted(named) if not hasattr(indelible, name)] == []


def find_kinds(kind: type) -> set[type]:
    return {kind}.union(*map(find_kinds, kind.__subclasses__()))


@pytest.fixture
async def demo_url(tmp_path: Path) -> AsyncIterator[str]:
    """A server that answers with the demo model, where the pages say 127.0.0.1:8000."""
    settings = load_settings(model="demo", database=str(tmp_path / "chats.db"), port=0)
    async with run_server(Server(settings)) as server:
        yield server.url


async def test_the_page_of_openai_clients_runs(demo_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    clients: list[Any] = []
    for block in list_blocks("openai.md", "python"):
        shown = block.replace(SHOWN_URL, demo_url).replace("Tell me a story.", "Hello.")
        await asyncio.to_thread(exec, shown, names)
        clients.append(names["client"])
    for client in clients:
        client.close()
    assert "Indelible" in capsys.readouterr().out


async def test_every_curl_of_the_http_page_is_answered(demo_url: str) -> None:
    (block,) = [block for block in list_blocks("http.md", "sh") if "curl" in block]
    chat_id = ""
    async with aiohttp.ClientSession() as session:
        for line in block.splitlines():
            command, *arguments = shlex.split(line.replace(SHOWN_URL, demo_url).replace("$CHAT", chat_id))
            assert command == "curl"
            request = read_curl(arguments)
            async with session.request(**request) as response:
                assert response.status < 300, (line, await response.text())
                if response.content_type == "text/event-stream":
                    assert (await response.content.readline()).startswith(b"id: ")
                else:
                    answer = await response.json()
                    chat_id = chat_id or answer["id"]


def read_curl(arguments: list[str]) -> dict[str, Any]:
    """What curl would send. Fails with an option that is not known here."""
    request: dict[str, Any] = {"method": "GET", "headers": {}}
    given = iter(arguments)
    for argument in given:
        match argument:
            case "-X":
                request["method"] = next(given)
            case "-H":
                name, _, value = next(given).partition(": ")
                request["headers"][name] = value
            case "-d":
                request["data"] = next(given).encode()
            case "-N":
                pass
            case _:
                assert argument.startswith("http"), argument
                request["url"] = argument
    return request
