"""The files of a server are its owner's alone, a forked child keeps nothing, and a full disk is told (S109)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from tests.support.commands import start_indelible, start_interpreter
from tests.support.json_client import JsonClient
from tests.support.process_harness import choose_port
from tests.support.running_server import text_of, wait_until_idle
from tests.support.waiting import poll_until

from indelible.errors import IndelibleError

FORKING = '''
import os, time

async def forks() -> str:
    """Fork a child that outlives the server."""
    child = os.fork()
    if child == 0:
        os.close(1)
        os.close(2)
        while True:
            time.sleep(1)
    return f"child {child}"
'''


@pytest.fixture
def loose_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def list_modes(directory: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in directory.glob("chats.db*")}


async def test_s109_database_log_and_lock_are_readable_by_their_owner_alone(tmp_path: Path, loose_mask: None) -> None:
    with start_indelible("serve", "--port", "0", "--database", str(tmp_path / "chats.db")) as command:
        url = await asyncio.to_thread(command.read_url)
        async with JsonClient(url) as client:
            await client.create_chat(title="Rain")
        modes = list_modes(tmp_path)
        assert modes == dict.fromkeys(("chats.db", "chats.db-wal", "chats.db-shm", "chats.db.lock"), "0o600")


async def test_s109_a_forked_child_holds_neither_the_lock_nor_the_port(tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(FORKING)
    arguments = ["serve", "--port", str(choose_port()), "--database", str(tmp_path / "chats.db")]
    child = 0
    try:
        with start_indelible(*arguments, "--tools", "mytools:forks", directory=tmp_path) as command:
            url = await asyncio.to_thread(command.read_url)
            async with JsonClient(url) as client:
                chat_id = (await client.create_chat("forks {}"))["id"]
                await wait_until_idle(client, chat_id)
                told = "".join(text_of(message) for message in await client.read_all_messages(chat_id))
            found = re.search(r"child (\d+)", told)
            assert found is not None, told
            child = int(found[1])
            os.kill(child, 0)
            command.kill()
        os.kill(child, 0)
        with start_indelible(*arguments, directory=tmp_path) as command:
            assert await asyncio.to_thread(command.read_url) == url
            async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as response:
                assert response.status == 200
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


async def test_s109_a_full_disk_makes_the_server_not_ready(tmp_path: Path) -> None:
    """No file may be larger than this: as on a full disk, what is written last fails."""
    database = str(tmp_path / "chats.db")
    with start_indelible("migrate", "--database", database) as command:
        assert (await asyncio.to_thread(command.wait))[0] == 0
    arguments = ["serve", "--no-worker", "--port", "0"]
    with start_interpreter(*arguments, "--database", database, limit="-f 2000") as command:
        url = await asyncio.to_thread(command.read_url)

        async def is_full(size: int) -> bool:
            try:
                await client.create_chat("x" * size)
            except IndelibleError:
                return True
            return False

        async def is_ready() -> bool:
            async with session.get(f"{url}/readyz") as response:
                assert response.status == 200 or (await response.json())["kind"] == "unavailable"
                return response.status == 200

        async def is_not_ready() -> bool:
            return not await is_ready()

        async with JsonClient(url, retry_for_s=0) as client, aiohttp.ClientSession() as session:
            assert await is_ready()
            for size in (100_000, 10_000, 1):
                await poll_until(partial(is_full, size))
            await poll_until(is_not_ready)
            async with session.get(f"{url}/healthz") as response:
                assert response.status == 200
