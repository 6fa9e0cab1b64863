"""Two servers on one PostgreSQL behind a real nginx, with the configuration that docs/operations.md shows.

A proxy is where feeds usually die: it buffers them, gives them a length, or cuts them when a server is replaced. Here
the feeds of several chats go through nginx while both servers are replaced at their ports, one by one, and drain:
every client reads every word once, no reply is cut or handed over, and no request fails.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.server.test_restarts import Listener, load_stored_texts, many_clients, wait_for_text
from tests.support.counting_model import ask_to_count, count
from tests.support.engine import get_database
from tests.support.json_client import JsonClient
from tests.support.process_harness import ENDLESS_LEASES, ProcessHarness, choose_port
from tests.support.waiting import deadline, poll_until

from indelible.testing.invariants import load_chat

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
WORDS, CHATS, CLIENTS_PER_CHAT = 1500, 4, 2
"""Five a second until the test wants replies to end: enough for a machine that takes five minutes to get there."""
AROUND = """
daemon off;
master_process off;
pid {place}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
{site}
}}
"""


def write_configuration(place: Path, *, port: int, servers: list[int]) -> Path:
    """The block of the page, with this test's ports instead of its own."""
    (site,) = re.findall(r"^```nginx\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    replaced = {"server 10.0.0.1:8000": f"server 127.0.0.1:{servers[0]}"}
    replaced |= {"server 10.0.0.2:8000": f"server 127.0.0.1:{servers[1]}", "listen 80;": f"listen 127.0.0.1:{port};"}
    for old, new in replaced.items():
        assert site.count(old) == 1, old
        site = site.replace(old, new)
    file = place / "nginx.conf"
    file.write_text(AROUND.format(place=place, site=site))
    return file


@asynccontextmanager
async def run_nginx(place: Path, servers: list[int]) -> AsyncIterator[str]:
    """A proxy in front of these ports; its URL. What it complained of fails the test."""
    command = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert command is not None, "install Debian's nginx-light, as .ci/run does"
    port = choose_port()
    configuration = write_configuration(place, port=port, servers=servers)
    complaints = place / "nginx.log"
    with complaints.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            command, "-p", str(place), "-e", "stderr", "-c", str(configuration), stderr=log
        )
    try:
        await poll_until(lambda: process.returncode is not None or listens(port), what="nginx")
        assert process.returncode is None, complaints.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
async def processes(database: str, tmp_path: Path) -> AsyncIterator[ProcessHarness]:
    async with ProcessHarness(database, tmp_path).opened() as opened:
        yield opened


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
async def test_a_rolling_deploy_behind_nginx_cuts_no_reply_and_shows_no_error(
    database: str, processes: ProcessHarness, tmp_path: Path
) -> None:
    ports = [choose_port(), choose_port()]
    settings = {**ENDLESS_LEASES, "drain_s": 3600}
    old = [await processes.start_server(port=port, **settings) for port in ports]
    async with (
        run_nginx(tmp_path, ports) as url,
        many_clients(url, CHATS * CLIENTS_PER_CHAT) as clients,
        asyncio.TaskGroup() as group,
    ):
        ids = [(await client.create_chat(ask_to_count(WORDS, pace_ms=0)))["id"] for client in clients[:CHATS]]
        listeners = [Listener(client, chat_id) for client, chat_id in zip(clients, itertools.cycle(ids), strict=False)]
        for listener in listeners:
            group.create_task(listener.listen(turns=1))
        await wait_for_text(listeners)
        await check_that_a_feed_has_no_length_and_is_not_buffered(url, ids[0])

        for port, leaving in zip(ports, old, strict=True):
            leaving.send_signal(signal.SIGTERM)
            await poll_until(lambda port=port: not listens(port), what="the old server's port")  # type: ignore[misc]
            await wait_for_more_text(listeners)  # from the server that is left
            await processes.start_server(port=port, **settings)
            await check_that_every_request_is_answered(clients[0], ids[0])
        processes.finish_replies()
        for leaving in old:
            assert await leaving.wait() == 0

    assert {listener.text for listener in listeners} == {count(WORDS)}
    assert await load_stored_texts(database, ids) == {count(WORDS)}
    for listener in listeners:
        listener.check()
    for chat_id in ids:
        stored = await load_chat(get_database(processes.engine), chat_id)
        assert stored is not None
        assert [attempt.outcome for attempt in stored.attempts] == ["complete"]


async def check_that_a_feed_has_no_length_and_is_not_buffered(url: str, chat_id: str) -> None:
    """The reply does not end before the test wants it to, so a byte that arrives was not held back."""
    async with (
        deadline(),
        aiohttp.ClientSession() as session,
        session.get(f"{url}/api/v1/chats/{chat_id}/events") as feed,
    ):
        assert feed.status == 200
        assert feed.headers["Content-Type"].startswith("text/event-stream")
        assert "Content-Length" not in feed.headers
        assert feed.headers["Transfer-Encoding"] == "chunked"
        assert await feed.content.readline() != b""
        async with session.get(f"{url}/api/v1/chats/{chat_id}/messages") as answer:
            assert answer.content_length == len(await answer.read())


async def wait_for_more_text(listeners: list[Listener]) -> None:
    for listener in listeners:
        before = len(listener.text)
        await listener.wait_until(lambda listener=listener, before=before: len(listener.text) > before)  # type: ignore[misc]


async def check_that_every_request_is_answered(client: JsonClient, chat_id: str) -> None:
    """More of them than there are servers: each gets some."""
    for _ in range(4):
        assert (await client.get_chat(chat_id))["id"] == chat_id
