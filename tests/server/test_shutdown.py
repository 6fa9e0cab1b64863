"""The server as a process: how it begins, how it leaves, and how it does not linger."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.app_harness import AppHarness, serve_app
from tests.support.commands import CommandProcess, start_indelible, start_interpreter
from tests.support.json_client import JsonClient
from tests.support.process_harness import choose_port
from tests.support.running_server import has_text, read_until, run_server, say_half, text_of, wait_until_idle
from tests.support.waiting import deadline, poll_until

import indelible
from indelible.models.http.sse import SseDecoder
from indelible.server.app import Server
from indelible.server.process import Process
from indelible.settings import load_settings
from indelible.store.database.sqlite_file import DatabaseInUse
from indelible.testing import ScriptedModel, ScriptEnded

A_LONG_GRACE_S = 3600
ASK_WHETHER_READY = b"GET /readyz HTTP/1.1\r\nHost: here\r\n\r\n"
on_sqlite = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)


async def wait_for_end(command: CommandProcess) -> tuple[int, str]:
    """Its exit status and what it complained of, when it has ended."""
    status, _, complaints = await asyncio.to_thread(command.wait)
    return status, complaints


async def is_refused(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as response:
            assert response.status == 503, "it says that it is ready"
            return False
    except aiohttp.ClientConnectionError:
        return True


# --- leaving ---


@pytest.mark.parametrize(
    ("migrated", "number"),
    [("sqlite", signal.SIGTERM), ("sqlite", signal.SIGINT), ("postgresql", signal.SIGTERM)],
    indirect=["migrated"],
)
async def test_a_server_that_is_terminated_ends_its_feeds_hands_over_and_exits_cleanly(
    database: str, number: signal.Signals
) -> None:
    with start_interpreter("serve", "--port", "0", "--database", database) as command:
        url = await asyncio.to_thread(command.read_url)
        async with JsonClient(url) as client, aiohttp.ClientSession() as session:
            chat = await client.create_chat("tell me a long story")
            await read_until(client, chat["id"], has_text("light"))
            decoder, events = SseDecoder(), []
            async with session.get(f"{url}/api/v1/chats/{chat['id']}/events") as response:
                command.send_signal(number)
                async for chunk in response.content.iter_any():
                    events += decoder.feed(chunk)
            assert (events[-1].event, events[-1].data) == ("end", b'{"reason":"shutdown"}')
            assert await is_refused(url)
        assert await wait_for_end(command) == (0, "")

    async with indelible.open(database, worker=False) as app:
        left = await app.chat(chat["id"])
        assert await left.status() == "pending"
        [_, reply, *_] = await left.messages()
        assert (reply.partial, reply.reason) == (True, "handed_over")
        assert reply.text


@on_sqlite
async def test_a_leaving_server_refuses_new_requests_and_answers_those_it_has(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half("Hello")]), tool_grace_s=0)
    chat = await server.client.create_chat("Hi")
    await read_until(server.client, chat["id"], has_text("Hello"))
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(ASK_WHETHER_READY)
    assert (await read_answer(reader))[0] == 200
    writer.write(ASK_WHETHER_READY)  # over the connection that is still open; it is read when the server leaves already
    server.process.shut_down()
    status, problem = await read_answer(reader)
    assert (status, problem["kind"]) == (503, "not_ready")
    writer.close()
    assert await is_refused(server.url)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """The status and the JSON of the next answer on this connection."""
    async with deadline():
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"\r\ncontent-length: (\d+)\r\n", head)
        assert length, head
        body = await reader.readexactly(int(length[1]))
    return int(head.split()[1]), json.loads(body)


@on_sqlite
async def test_a_connection_on_which_nobody_asks_anything_holds_nobody_up(database: str) -> None:
    async with serve_app(database, worker=False) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        server.process.config.timeout_graceful_shutdown = A_LONG_GRACE_S
        server.process.shut_down()
        async with deadline():
            assert await reader.read() == b""
        writer.close()


@on_sqlite
async def test_a_server_whose_worker_has_failed_does_not_go_on_listening(database: str) -> None:
    """A model that is asked more often than its script says kills the worker, as a fault of ours would."""
    settings = load_settings(model="scripted", database=database, port=0, auto_titles=False)
    server = Server(settings, models={"scripted": ScriptedModel()})
    noticed: list[str] = []

    async def serve_and_ask() -> None:
        async with run_server(server) as running:
            await running.client.create_chat("Hi")
            await poll_until(lambda: is_dead(running.url))
            noticed.append("it does not listen any more")

    with pytest.raises(BaseExceptionGroup) as failed:
        await serve_and_ask()
    assert failed.group_contains(ScriptEnded)
    assert noticed == ["it does not listen any more"]


async def is_dead(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz"):
            return False
    except aiohttp.ClientConnectionError:
        return True


# --- beginning ---


@on_sqlite
async def test_a_killed_server_goes_on_with_its_replies_when_it_is_started_again(database: str) -> None:
    port = str(choose_port())
    with start_indelible("serve", "--port", port, "--database", database) as command:
        url = await asyncio.to_thread(command.read_url)
        async with JsonClient(url) as client:
            chat_id = (await client.create_chat("roll a die"))["id"]
            seen = await read_until(client, chat_id, lambda events: events[-1].kind == "part", after="start")
        command.kill()
    with start_indelible("serve", "--port", port, "--database", database) as command:
        assert await asyncio.to_thread(command.read_url) == url
        async with JsonClient(url) as client:
            rest = await read_until(
                client, chat_id, lambda events: events[-1].data.get("status") == "idle", after=seen[-1].cursor
            )
            assert rest[0].kind != "snapshot"
            assert text_of((await client.read_all_messages(chat_id))[-1])


@on_postgres
async def test_a_server_without_a_worker_and_a_worker_without_a_server_are_a_pair(
    database: str, tmp_path: Path
) -> None:
    (tmp_path / "mytools.py").write_text(
        'async def weather(city: str) -> str:\n    """Tell the weather."""\n    return f"{city}: rain"\n'
    )
    worker = start_indelible("worker", "--database", database, "--tools", "mytools:weather", directory=tmp_path)
    with worker as command:
        async with serve_app(database, worker=False) as server:
            assert await asyncio.to_thread(command.read_line) == "Indelible's worker is ready\n"
            chat_id = (await server.client.create_chat('weather {"city": "Oslo"}'))["id"]
            await wait_until_idle(server.client, chat_id)
            messages = await server.client.read_all_messages(chat_id)
            assert "Oslo: rain" in text_of(messages[-1])
            command.send_signal(signal.SIGTERM)
            assert await wait_for_end(command) == (0, "")


@pytest.mark.both_databases
async def test_a_worker_with_a_port_tells_how_it_is_and_hands_off_on_sigterm(database: str) -> None:
    port = str(choose_port())
    with start_indelible("worker", "--database", database, "--port", port) as command:
        ready = await asyncio.to_thread(command.read_line)
        url = f"http://127.0.0.1:{port}"
        assert ready == f"Indelible's worker is ready; health and metrics at {url}\n"
        async with aiohttp.ClientSession() as session:
            for path in ("/healthz", "/readyz", "/metrics"):
                async with session.get(url + path) as response:
                    assert response.status == 200, path
        async with indelible.open(database, worker=False) as app:
            chat = await app.create_chat()
            assert (await chat.send("Hello")).text
        if not database.startswith("postgresql:"):
            with pytest.raises(DatabaseInUse) as in_use:
                async with indelible.open(database):
                    raise AssertionError
            assert in_use.value.server_url is None, "nobody can chat at a worker's port"
        command.send_signal(signal.SIGTERM)
        assert await wait_for_end(command) == (0, "")


@on_sqlite
@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["--host", "0.0.0.0"], 1, "0.0.0.0 is reachable from other machines. Set INDELIBLE_TOKEN"),  # noqa: S104  (refused)
        (["--tools", "nothing"], 2, "--tools nothing: write it as package.module:NAME."),
    ],
)
async def test_what_keeps_a_server_from_starting_is_one_line(
    database: str, arguments: Sequence[str], status: int, expected: str
) -> None:
    with start_indelible("serve", "--port", "0", "--database", database, *arguments) as command:
        code, complaints = await wait_for_end(command)
    assert (code, complaints.count("\n")) == (status, 1), complaints
    assert complaints.startswith(f"indelible: {expected}")


@on_sqlite
async def test_a_port_or_a_file_that_somebody_has_is_not_taken(
    harness: AppHarness, database: str, tmp_path: Path
) -> None:
    server = await harness.start_server()
    port = int(server.url.rpartition(":")[2])

    async def fail_to_serve(**settings: Any) -> str:
        with pytest.raises(indelible.IndelibleError) as failed:
            await Process(Server(load_settings(**settings)), on_ready=lambda _: None).serve()
        return str(failed.value)

    assert f"Can't listen on 127.0.0.1:{port}: the address is already in use." in await fail_to_serve(
        database=str(tmp_path / "b.db"), port=port
    )
    elsewhere = {"host": "elsewhere.invalid", "token": "nobody's"}
    assert "Can't listen on elsewhere.invalid:0: " in await fail_to_serve(database=database, port=0, **elsewhere)
    assert "is in use by this program" in await fail_to_serve(database=database, port=0)
    assert not (tmp_path / "b.db").exists()


async def test_a_signal_before_the_start_is_over_ends_the_server_in_the_same_order(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[bool, bool]] = []

    async def drain(process: Process) -> None:
        assert server.server_state is not None
        begun.append((server.server_state.is_ready, any(each.is_serving() for each in process.servers)))

    monkeypatch.setattr(Process, "_drain", drain)
    server = Server(load_settings(database=database, port=0), worker=False)
    process = Process(server, on_ready=lambda _url: None)
    process._receive_signal(signal.SIGTERM)
    async with deadline():
        await process.serve()
    assert begun == [(False, False)]
