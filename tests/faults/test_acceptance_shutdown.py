"""SIGTERM: a process ends though a tool swallows cancellation (S98), and with a drain its replies end first (S84)."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from tests.support.commands import CommandProcess, start_indelible
from tests.support.engine import get_database
from tests.support.json_client import JsonClient
from tests.support.process_harness import ENDLESS_LEASES, SLOWLY, ProcessHarness
from tests.support.waiting import poll_until

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
