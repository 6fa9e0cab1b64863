"""Named crash points: an armed process dies there, by SIGKILL, and nobody who waits for its answer is misled."""

from __future__ import annotations

import asyncio
import signal

import pytest
from tests.support.json_client import JsonClient

from indelible.client.client import RemoteService
from indelible.prove.evidence import UploadLog
from indelible.prove.script import Wish
from indelible.prove.servers import Orders, ServerNotStarted, ServerUnderTest, run_servers
from indelible.prove.tools import CRASH_POINTS, CrashPoint, read_notebook
from indelible.prove.user import load_copies, upload_unused

WISH = Wish(number=1, words=4, pace_ms=1, tools=1)
SLOW_WISH = Wish(number=2, words=400, pace_ms=20)
RUNS = {"after_effect": 1}
"""How often the tool has run when the server dies."""
IN_UPLOADS: tuple[CrashPoint, ...] = ("before_file", "after_file")

ELSEWHERE: set[CrashPoint] = {"at_start", "during_takeover", "during_stop"}


@pytest.mark.parametrize("point", sorted(set(CRASH_POINTS) - {*ELSEWHERE, *IN_UPLOADS}))
async def test_an_armed_server_dies_at_the_point_and_what_was_accepted_is_kept(
    orders: Orders, point: CrashPoint
) -> None:
    async with run_servers(orders, count=1) as [server], JsonClient(server.url) as client:
        await server.process.arm(point, 1)
        creating = asyncio.create_task(client.create_chat(WISH.to_text()))
        assert await server.process.wait_for_end() == -signal.SIGKILL
        assert len(read_notebook(orders.notebook)) == RUNS.get(point, 0)
        await server.start()
        created = await creating
        listed = await client.list_chats()
    assert [chat["id"] for chat in listed["items"]] == [created["id"]]


async def test_a_server_dies_while_a_reply_is_being_stopped(orders: Orders) -> None:
    async with run_servers(orders, count=1) as [server], JsonClient(server.url) as client:
        await server.process.arm("during_stop", 1)
        chat_id = (await client.create_chat(SLOW_WISH.to_text()))["id"]
        await wait_for_a_word(client, chat_id)
        stopping = asyncio.create_task(client.interrupt(chat_id))
        assert await server.process.wait_for_end() == -signal.SIGKILL
        await server.start()
        await stopping
        assert (await client.interrupt(chat_id, wait_s=60))["status"] == "idle"


async def wait_for_a_word(client: JsonClient, chat_id: str) -> None:
    async for event in client.stream_events(chat_id, after="start"):
        if event.kind == "part":
            return


async def test_a_server_dies_in_an_upload_which_is_one_file_in_the_end(orders: Orders) -> None:
    async with run_servers(orders, count=1) as [server], JsonClient(server.url) as client:
        for point in IN_UPLOADS:
            await server.process.arm(point, 1)
            uploading = asyncio.create_task(upload_unused([RemoteService(client)], UploadLog()))
            assert await server.process.wait_for_end() == -signal.SIGKILL
            await server.start()
            await uploading
            [stored] = await load_copies(RemoteService(client))
            assert stored.brought == stored.sha256
            await RemoteService(client).files.delete_file(stored.id)


async def test_a_server_dies_while_it_takes_over_a_reply(orders: Orders) -> None:
    async with run_servers(orders, count=1) as [server], JsonClient(server.url) as client:
        chat_id = (await client.create_chat(SLOW_WISH.to_text()))["id"]
        await wait_for_a_word(client, chat_id)
        await server.process.kill()
        assert await server.start_doomed("during_takeover", 1, within_s=30)
        await server.start()
        assert (await client.interrupt(chat_id, wait_s=60))["status"] == "idle"


async def test_a_server_can_be_made_to_die_at_its_start(orders: Orders) -> None:
    async with run_servers(orders, count=1) as [server]:
        await server.end()
        assert await server.start_doomed("at_start", 1, within_s=30)
        await server.start()


async def test_a_server_that_cannot_start_says_why(orders: Orders) -> None:
    async with run_servers(orders, count=1):
        second = ServerUnderTest(orders)
        with pytest.raises(ServerNotStarted, match="in use by another server"):
            await second.start()
        await second.end()
