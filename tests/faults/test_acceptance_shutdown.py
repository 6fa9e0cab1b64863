"""SIGTERM: a process ends though a tool swallows cancellation (S98), and with a drain its replies end first (S84)."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest
from tests.support.commands import CommandProcess, start_indelible
from tests.support.engine import get_database
from tests.support.json_client import JsonClient
from tests.support.process_harness import ENDLESS_LEASES, SLOWLY, ProcessHarness
from tests.support.waiting import deadline, poll_until

from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.testing.invariants import load_chat

STUBBORN = '''
import asyncio, pathlib

async def cling(path: str) -> str:
    """Never ends."""
    pathlib.Path(path).touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            continue
'''

ENDLESS = '''
import asyncio

async def wait() -> str:
    """Never ends by itself."""
    return await asyncio.Event().wait()
'''


async def test_s98_a_server_ends_though_a_tool_swallows_cancellation(database: str, tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(STUBBORN)
    started = tmp_path / "started"
    served = start_indelible(
        "serve",
        "--port",
        "0",
        "--database",
        database,
        "--tools",
        "mytools:cling",
        directory=tmp_path,
        INDELIBLE_TOOL_GRACE_S="0.1",
    )
    with served as command:
        url = await asyncio.to_thread(command.read_url)
        async with JsonClient(url) as client:
            await client.create_chat(f'cling {{"path": "{started}"}}')
            await poll_until(started.exists, what="the tool")
        assert await end(command) == 0


async def test_s98_a_server_that_drains_ends_though_a_streamed_reply_waits_for_such_a_tool(
    database: str, tmp_path: Path
) -> None:
    (tmp_path / "mytools.py").write_text(STUBBORN)
    started = tmp_path / "started"
    more = {"INDELIBLE_TOOL_GRACE_S": "0.1", "INDELIBLE_DRAIN_S": "0.2"}
    arguments = ("serve", "--port", "0", "--database", database, "--tools", "mytools:cling")
    with start_indelible(*arguments, directory=tmp_path, **more) as command:
        url = await asyncio.to_thread(command.read_url)
        body = {"stream": True, "messages": [{"role": "user", "content": f'cling {{"path": "{started}"}}'}]}
        async with (
            deadline(),
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json=body) as response,
        ):
            await poll_until(started.exists, what="the tool")
            command.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert (await asyncio.to_thread(command.wait))[0] == 0


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_a_second_interrupt_ends_a_drain_at_once(database: str, tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(ENDLESS)
    arguments = ("serve", "--port", "0", "--database", database, "--tools", "mytools:wait")
    with start_indelible(*arguments, directory=tmp_path, INDELIBLE_DRAIN_S="3600") as command:
        url = await asyncio.to_thread(command.read_url)
        body = {"stream": True, "messages": [{"role": "user", "content": "wait {}"}]}
        async with (
            deadline(),
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json=body) as response,
        ):
            await response.content.readline()
            command.send_signal(signal.SIGINT)
            await poll_until(lambda: is_refused(url), what="the end of listening")
            command.send_signal(signal.SIGINT)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        await asyncio.to_thread(command.wait)


async def is_refused(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz"):
            return False
    except aiohttp.ClientConnectionError:
        return True


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
async def test_s98_a_worker_ends_though_a_tool_swallows_cancellation(database: str, app: App, tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(STUBBORN)
    started = tmp_path / "started"
    work = start_indelible(
        "worker", "--database", database, "--tools", "mytools:cling", directory=tmp_path, INDELIBLE_TOOL_GRACE_S="0.1"
    )
    with work as command:
        await asyncio.to_thread(command.read_line)
        await app.create_chat(f'cling {{"path": "{started}"}}')
        await poll_until(started.exists, what="the tool")
        assert await end(command) == 0


async def end(command: CommandProcess) -> int:
    command.send_signal(signal.SIGTERM)
    status, _, _ = await asyncio.to_thread(command.wait)
    return status


async def test_s84_with_a_drain_a_reply_ends_where_it_began(harness: ProcessHarness, app: App) -> None:
    first = await harness.start_worker(**ENDLESS_LEASES, drain_s=3600)
    chat = await app.create_chat(SLOWLY)
    await poll_until(lambda: has_begun(harness, chat), what="the reply")
    first.send_signal(signal.SIGTERM)
    second = await app.create_chat(SLOWLY)  # nobody claims it any more
    harness.finish_replies()
    assert await first.wait() == 0
    stored = await load_chat(get_database(harness.engine), chat.id)
    assert stored is not None
    assert stored.chat.status == "idle"
    assert [attempt.outcome for attempt in stored.attempts] == ["complete"]
    assert [message.partial for message in await chat.messages()] == [False, False]
    assert await second.status() == "pending"


async def has_begun(harness: ProcessHarness, chat: Chat) -> bool:
    stored = await load_chat(get_database(harness.engine), chat.id)
    return stored is not None and bool(stored.journal)
