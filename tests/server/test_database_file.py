"""The database file taken away from under a running server: nothing is answered as if it were written (S105)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.asking import read_problem
from tests.support.app_harness import serve_app
from tests.support.running_server import RunningServer

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.may_log(
        "a request failed because the database did", "looking for stops that no worker carries out failed"
    ),
]

ELSEWHERE = "elsewhere.db"
FILES = ("", "-wal", "-shm")


def delete_all(file: Path) -> None:
    for ending in FILES:
        Path(f"{file}{ending}").unlink()


def delete_file(file: Path) -> None:
    file.unlink()


def delete_log(file: Path) -> None:
    Path(f"{file}-wal").unlink()


def replace(file: Path) -> None:
    """As a careless restore does it."""
    other = file.with_name("other.db")
    shutil.copy(file, other)
    other.replace(file)


def replace_all(file: Path) -> None:
    replace(file)
    for ending in FILES[1:]:
        Path(f"{file}{ending}").unlink()


def rename(file: Path) -> None:
    file.rename(file.with_name(ELSEWHERE))


def rename_back(file: Path) -> None:
    assert not file.exists(), "a new file was created in its place"
    file.with_name(ELSEWHERE).rename(file)


async def ask(server: RunningServer, method: str, path: str) -> str:
    """The kind of the problem."""
    async with server.request(method, path, **({"json": {}} if method == "POST" else {})) as response:
        problem = await read_problem(response)
        assert response.status == 503
        assert response.headers["Retry-After"]
    return str(problem["kind"])


@pytest.mark.parametrize("take_away", [delete_all, delete_file, delete_log, replace, replace_all, rename])
async def test_s105_without_its_file_a_server_accepts_nothing_and_says_that_it_is_not_ready(
    database: str, take_away: Callable[[Path], None]
) -> None:
    async with serve_app(database, worker=False) as server:
        chat = await server.client.create_chat(title="Rain")
        take_away(Path(database))
        for _ in range(40):
            assert await ask(server, "POST", "/chats") == "unavailable"
        assert await ask(server, "GET", "//readyz") == "unavailable"
        assert await ask(server, "GET", f"/chats/{chat['id']}") == "unavailable"


async def test_s105_a_file_that_comes_back_is_used_again_and_nothing_is_lost(database: str) -> None:
    async with serve_app(database, worker=False) as server:
        before = await server.client.create_chat(title="Before")
        rename(Path(database))
        assert await ask(server, "POST", "/chats") == "unavailable"
        rename_back(Path(database))
        after = await server.client.create_chat(title="After")
        async with server.request("GET", "//readyz") as response:
            assert response.status == 200
    async with serve_app(database, worker=False) as server:
        listed = {chat["id"] for chat in (await server.client.list_chats())["items"]}
    assert listed == {before["id"], after["id"]}
