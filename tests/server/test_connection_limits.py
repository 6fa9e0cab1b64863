"""What one connection, and all connections of one address, may cost (S93, S108).

Everything here comes before the token: whoever reaches the port can do it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from tests.support.app_harness import AppHarness, serve_app
from tests.support.commands import start_interpreter
from tests.support.running_server import RunningServer
from tests.support.waiting import deadline, poll_until
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from indelible.server import connections
from indelible.server.connections import MAX_WAITING, LimitedConnection, name_network
from indelible.server.problems import MEDIA_TYPE

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

MEGABYTE = 1024 * 1024
MANY = 10_000
END_OF_STREAM = b"\r\n0\r\n\r\n"
MUCH_BYTES = 100 * MEGABYTE
IN_SOCKETS_BYTES = 16 * MEGABYTE
"""What the kernel may hold of what was sent and nobody has read."""

START = b"POST /api/v1/chats HTTP/1.1\r\nHost: localhost\r\n"
ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = START + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


class RawConnection:
    """Bytes to a server and back, from an address of one's own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def pour(self, piece: bytes, *, upto_bytes: int) -> int:
        """Send it again and again, until the server does not take it any more; returns how much was sent."""
        sent = 0
        with suppress(ConnectionError):
            while sent < upto_bytes and not self._reader.at_eof():
                self._writer.write(piece)
                await self._writer.drain()
                await asyncio.sleep(0)  # `drain` alone lets nobody else run: the server could not say no
                sent += len(piece)
        return sent

    async def read_answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        async with deadline():
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self._reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def read_problem(self) -> tuple[int, str]:
        """Status and kind of a problem, after which the server closes the connection."""
        status, headers, body = await self.read_answer()
        assert headers["content-type"] == MEDIA_TYPE
        assert headers["connection"] == "close"
        problem: dict[str, Any] = json.loads(body)
        assert problem["status"] == status
        await self.wait_for_close()
        return status, problem["kind"]

    async def read_through(self, end: bytes) -> bytes:
        """All bytes up to and including these."""
        async with deadline():
            return await self._reader.readuntil(end)

    def abort(self) -> None:
        """Leave without a word."""
        self._writer.transport.abort()

    async def wait_for_close(self) -> bytes:
        """What still comes until the server closes the connection."""
        async with deadline():
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def connect(server: RunningServer | str, *, address: str = "127.0.0.1") -> AsyncIterator[RawConnection]:
    url = server if isinstance(server, str) else server.url
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(address, 0))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def find_waiting(server: RunningServer) -> LimitedConnection:
    """The connection that has the most requests that wait."""
    connections = [each for each in server.process.server_state.connections if isinstance(each, LimitedConnection)]
    return max(connections, key=lambda each: len(each.pipeline))


def is_in_body(connection: Any) -> bool:
    return bool(connection._is_in_body)


def follow_feed(chat_id: str) -> bytes:
    return f"GET /api/v1/chats/{chat_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def count_connections(server: RunningServer) -> int:
    return len(server.process.server_state.connections)


async def wait_for_connections(server: RunningServer, is_enough: Callable[[int], bool]) -> None:
    await poll_until(lambda: is_enough(count_connections(server)), what="connections")


# --- one connection ---


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (START, b"X-Filler: " + b"a" * 1000 + b"\r\n"),
        (START, b"a: b\r\n" * 1000),
        (START + b"X-Filler: ", b"a" * 65536),
        (b"GET /", b"a" * 65536),
        (b"", b"\r\n" * 1000),
        (CHUNKED, b"X-Filler: " + b"a" * 1000 + b"\r\n"),
        (CHUNKED + b"X-Filler: ", b"a" * 65536),
    ],
    ids=["headers", "small headers", "one header", "path", "blank lines", "trailers", "one trailer"],
)
async def test_s93_a_head_without_an_end_is_refused_when_it_has_grown_too_long(
    harness: AppHarness, beginning: bytes, piece: bytes
) -> None:
    server = await harness.start_server(worker=False)
    async with connect(server) as connection:
        connection.send(beginning)
        sent = await connection.pour(piece, upto_bytes=MUCH_BYTES)
    assert sent < IN_SOCKETS_BYTES
    await wait_for_connections(server, lambda count: count == 0)


async def test_s93_the_answer_to_a_head_that_is_too_long_is_a_problem(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, head_max_bytes=1000)
    async with connect(server) as connection:
        connection.send(START + b"X-Filler: " + b"a" * 1000)
        assert await connection.read_problem() == (431, "too_large")


async def test_s93_a_head_below_the_limit_is_read_however_it_is_cut(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, head_max_bytes=1000)
    async with connect(server) as connection:
        for _ in range(3):
            for place in range(0, len(ASK), 7):
                connection.send(ASK[place : place + 7])
            assert (await connection.read_answer())[0] == 200


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nHost: lo"], ids=["nothing", "half a head"])
async def test_s93_a_head_that_does_not_come_in_time_ends_the_connection(harness: AppHarness, beginning: bytes) -> None:
    server = await harness.start_server(worker=False, head_timeout_s=0.1)
    async with connect(server) as connection:
        connection.send(beginning)
        if beginning:
            assert await connection.read_problem() == (408, "request_timeout")
        else:
            assert await connection.wait_for_close() == b""


async def test_s93_a_head_that_comes_drop_by_drop_has_no_more_time_than_another(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, head_timeout_s=0.1)
    async with connect(server) as connection:
        connection.send(b"GET /healthz HTTP/1.1\r\n")
        async with deadline(), asyncio.TaskGroup() as group:
            pouring = group.create_task(connection.pour(b"a: b\r\n", upto_bytes=MUCH_BYTES))
            assert (await connection.read_answer())[0] in (408, 431)
            pouring.cancel()


async def test_s108_a_body_that_does_not_come_in_time_ends_the_connection(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, body_timeout_s=0.1)
    async with connect(server) as connection:
        connection.send(START + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        assert await connection.read_problem() == (408, "request_timeout")
    assert (await server.client.list_chats())["items"] == []


async def test_an_import_that_waits_for_another_one_is_not_late(harness: AppHarness) -> None:
    """A user's second import is not read before the first has ended, however long that takes."""
    server = await harness.start_server(worker=False)
    connections: set[Any] = server.process.server_state.connections
    head = b"POST /api/v1/chats/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    begun = head + b"Content-Length: %d\r\n\r\n" % MEGABYTE + b" " * (MEGABYTE // 2)
    async with connect(server) as first, connect(server) as second, connect(server) as third:
        first.send(begun)
        await poll_until(lambda: any(is_in_body(each) for each in connections), what="the first import")
        (busy,) = (each for each in connections if is_in_body(each))
        second.send(begun)
        third.send(head + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        await poll_until(lambda: sum(map(is_in_body, connections)) == 3, what="all imports")
        waiting = [each for each in connections if each is not busy]
        await poll_until(lambda: any(each.flow.read_paused for each in waiting), what="one that is not read")
        for each in waiting:
            each._since_s -= 1000
        server.process._connections.close_late()
        first.send(b" " * (MEGABYTE // 2))
        assert (await first.read_answer())[0] == 422
        second.send(b" " * (MEGABYTE // 2))
        assert (await second.read_answer())[0] == 422
        assert (await third.read_through(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        third.send(b" ")
        assert (await third.read_answer())[0] == 422


async def test_a_client_that_leaves_before_its_body_is_there_leaves_no_traceback(
    harness: AppHarness, caplog: pytest.LogCaptureFixture
) -> None:
    server = await harness.start_server(worker=False)
    for path in (b"/api/v1/chats", b"/api/v1/chats/import", b"/v1/chat/completions", b"/v1/responses", b"/ai-sdk/chat"):
        async with connect(server) as connection:
            connection.send(b"POST %b HTTP/1.1\r\nHost: localhost\r\n" % path + b"Content-Length: 10\r\n\r\n{")
            await poll_until(lambda: bool(server.process.server_state.tasks), what="a request")
            connection.abort()
        await poll_until(lambda: not server.process.server_state.tasks, what="its end")
    assert caplog.text == ""


async def test_s108_a_feed_has_all_the_time_it_wants(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, head_timeout_s=0.1, body_timeout_s=0.1)
    chat = await server.client.create_chat(title="Rain")
    async with connect(server) as reading, connect(server) as silent:
        reading.send(f"GET /api/v1/chats/{chat['id']}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await server.wait_for_readers(1)
        assert await silent.wait_for_close() == b""  # by now the time is over
        await server.wait_for_readers(1)


# --- all connections ---


async def test_s108_idle_connections_make_room_for_new_ones(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, address_max_connections=50)
    async with AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(connect(server, address="127.0.0.2")) for _ in range(120)]
        for connection in idle[:-50]:
            assert await connection.wait_for_close() == b""
        await wait_for_connections(server, lambda count: count >= 50)
        for address in ("127.0.0.1", "127.0.0.2"):
            async with connect(server, address=address) as asking:
                asking.send(ASK)
                assert (await asking.read_answer())[0] == 200


@pytest.mark.may_log("refused a connection from .*: too many are open")
async def test_s108_an_address_whose_connections_are_all_busy_gets_no_more(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, address_max_connections=3)
    chat = await server.client.create_chat(title="Rain")
    feed = f"GET /api/v1/chats/{chat['id']}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    async with AsyncExitStack() as stack:
        for _ in range(3):
            reading = await stack.enter_async_context(connect(server, address="127.0.0.2"))
            reading.send(feed)
        await server.wait_for_readers(3)
        async with connect(server, address="127.0.0.2") as refused:
            assert await refused.read_problem() == (429, "too_many")
        async with connect(server, address="127.0.0.1") as asking:
            asking.send(ASK)
            assert (await asking.read_answer())[0] == 200
    await server.wait_for_readers(0)
    async with connect(server, address="127.0.0.2") as asking:
        asking.send(ASK)
        assert (await asking.read_answer())[0] == 200


async def test_s108_at_the_limit_of_the_process_the_greediest_address_makes_room(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, max_connections=20)
    async with AsyncExitStack() as stack:
        modest = await stack.enter_async_context(connect(server, address="127.0.0.3"))
        for _ in range(40):
            await stack.enter_async_context(connect(server, address="127.0.0.2"))
        async with connect(server) as asking:
            asking.send(ASK)
            assert (await asking.read_answer())[0] == 200
        modest.send(ASK)
        assert (await modest.read_answer())[0] == 200
        assert count_connections(server) <= 20


async def test_s108_more_idle_connections_than_the_process_may_have_files_lock_nobody_out(database: str) -> None:
    with start_interpreter("serve", "--port", "0", "--database", database, limit="-n 250") as command:
        url = await asyncio.to_thread(command.read_url)
        async with AsyncExitStack() as stack:
            for _ in range(400):
                await stack.enter_async_context(connect(url, address="127.0.0.2"))
            async with connect(url) as asking:
                asking.send(ASK)
                assert (await asking.read_answer())[0] == 200
        command.send_signal(signal.SIGTERM)
        status, _, complaints = await asyncio.to_thread(command.wait)
    assert (status, complaints) == (0, "")


@pytest.mark.parametrize(
    ("host", "network"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:db8:1:2:3::4", "2001:db8:1:2"), ("", ""),
     ("2001:db8::1", "2001:db8:0:0"), ("fe80::1%eth0", "fe80:0:0:0"), ("::1", "0:0:0:0"), ("::", "0:0:0:0")],
)  # fmt: skip
def test_an_address_is_counted_by_what_one_host_has_to_itself(migrated: str, host: str, network: str) -> None:
    assert name_network(host) == network


async def test_s108_a_body_that_does_not_arrive_is_given_up_though_another_request_came_before_it(
    harness: AppHarness,
) -> None:
    server = await harness.start_server(worker=False, body_timeout_s=0.1, head_timeout_s=0.1)
    async with connect(server) as connection:
        connection.send(ASK + START + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        await wait_for_connections(server, lambda count: count == 0)


async def test_what_comes_after_a_refusal_is_thrown_away_up_to_a_limit(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_DISCARDED_BYTES", MEGABYTE)
    server = await harness.start_server(worker=False, token="secret")  # noqa: S106  (nobody's)
    async with connect(server) as connection:
        connection.send(START + b"Content-Length: 9000000000\r\n\r\n")
        assert (await connection.read_answer())[0] == 413
        assert await connection.wait_for_close() == b""  # in this direction
        sent = await connection.pour(ASK * 1000, upto_bytes=MUCH_BYTES)
    assert sent < IN_SOCKETS_BYTES
    await wait_for_connections(server, lambda count: count == 0)


async def test_a_client_that_neither_goes_on_nor_leaves_after_a_refusal_is_cut(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LINGER_S", 0.1)
    server = await harness.start_server(worker=False, token="secret")  # noqa: S106  (nobody's)
    async with connect(server) as connection:
        connection.send(START + b"Content-Length: 5000000\r\n\r\n{")
        assert (await connection.read_answer())[0] == 401
        await wait_for_connections(server, lambda count: count == 0)


async def test_a_process_that_leaves_waits_for_no_client_that_was_refused(database: str) -> None:
    serving = serve_app(database, "demo", worker=False, import_max_bytes=1000)
    async with serving as server, connect(server) as before, connect(server) as after:
        head = b"POST /api/v1/chats/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        before.send(head + b"Content-Length: 9000000\r\n\r\n{")
        assert (await before.read_answer())[0] == 413
        after.send(head + b"Transfer-Encoding: chunked\r\n\r\nfff\r\n{")
        await poll_until(lambda: bool(server.process.server_state.tasks), what="a request")
        server.process.shut_down()
        await before.wait_for_close()
        after.send(b" " * 1000)
        assert (await after.read_answer())[0] == 413
        await wait_for_connections(server, lambda count: count == 0)


async def test_a_request_that_is_over_is_not_kept_until_the_collector_runs(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    async with connect(server) as connection:
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                connection.send(ASK)
                assert (await connection.read_answer())[0] == 200
            kept = sum(isinstance(each, RequestResponseCycle) for each in gc.get_objects())
        finally:
            gc.enable()
    assert kept < 5


# --- requests that are sent too early ---


async def test_of_many_pipelined_requests_few_wait_and_the_rest_is_not_even_read(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat(title="Rain")
    async with connect(server) as connection:
        connection.send(follow_feed(chat["id"]) + ASK * MANY)
        await server.wait_for_readers(1)
        await poll_until(lambda: len(find_waiting(server).pipeline) >= MAX_WAITING, what="waiting requests")
        waiting = find_waiting(server)
        assert len(waiting.pipeline) == MAX_WAITING
        assert waiting.flow.read_paused
        waiting.flow.resume_reading()  # as every request does that wants its body
        assert waiting.flow.read_paused
        await server.client.delete_chat(chat["id"])
        await connection.read_through(END_OF_STREAM)
        for _ in range(MANY):
            assert (await connection.read_answer())[0] == 200


@pytest.mark.parametrize("body", [b"", b'{"title":"\\r\\n\\r\\n"}', b"{" + b"\r\n\r\n" * 1000 + b"}"])
async def test_pipelined_requests_are_answered_in_order_however_they_are_cut(harness: AppHarness, body: bytes) -> None:
    server = await harness.start_server(worker=False)
    whole = START + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:7], body[7:]) if piece)
    chunked = START + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    expected = (201 if body else 422, 200)
    for size in (1, 3, 17, 1000):
        async with connect(server) as connection:
            sent = (whole + ASK + chunked + ASK) * 3
            for place in range(0, len(sent), size):
                connection.send(sent[place : place + size])
            for _ in range(6):
                answers = [await connection.read_answer() for _ in range(2)]
                assert (answers[0][0], answers[1][0]) == expected, (size, answers[0])


async def test_pipelined_requests_with_large_heads_wait_in_smaller_number(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, head_max_bytes=4000)
    chat = await server.client.create_chat(title="Rain")
    large = ASK[:-2] + b"X-Filler: " + b"a" * 3000 + b"\r\n\r\n"
    async with connect(server) as connection:
        connection.send(follow_feed(chat["id"]) + large * MAX_WAITING)
        await server.wait_for_readers(1)
        await poll_until(lambda: len(find_waiting(server).pipeline) >= 3, what="waiting requests")
        assert len(find_waiting(server).pipeline) == 3
        await server.client.delete_chat(chat["id"])
        await connection.read_through(END_OF_STREAM)
        for _ in range(MAX_WAITING):
            assert (await connection.read_answer())[0] == 200


async def test_a_body_of_blank_lines_costs_no_more_than_another_of_its_size(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = 0

    def count(self: LimitedConnection, data: bytes) -> None:
        nonlocal pieces
        pieces += 1
        parse(self, data)

    parse = LimitedConnection._parse
    monkeypatch.setattr(LimitedConnection, "_parse", count)
    server = await harness.start_server(worker=False)
    head = b"POST /api/v1/files?name=rain.txt HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with connect(server) as connection:
        connection.send(head + b"%x\r\n" % MEGABYTE + b"\r\n\r\n" * (MEGABYTE // 4) + b"\r\n0\r\n\r\n")
        assert (await connection.read_answer())[0] == 201
    assert pieces < 5000


async def test_what_comes_with_the_end_of_a_body_in_chunks_waits_in_a_bounded_number(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat(title="Rain")
    small = b"GET / HTTP/1.1\r\n\r\n"
    async with connect(server) as connection:
        connection.send(follow_feed(chat["id"]) + CHUNKED + b"\r\n" + small * MANY)
        await server.wait_for_readers(1)
        await poll_until(lambda: find_waiting(server).flow.read_paused, what="a pause")
        assert MAX_WAITING <= len(find_waiting(server).pipeline) <= MAX_WAITING + 1024 // len(small) + 2


async def test_a_feed_before_a_pipelined_request_ends_with_its_connection(
    harness: AppHarness, caplog: pytest.LogCaptureFixture
) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat(title="Rain")
    async with connect(server) as connection:
        connection.send(follow_feed(chat["id"]) + ASK)
        await server.wait_for_readers(1)
        await poll_until(lambda: len(find_waiting(server).pipeline) == 1, what="a waiting request")
        connection.abort()
    await wait_for_connections(server, lambda count: count == 0)
    await server.wait_for_readers(0)
    assert caplog.text == ""


async def test_pipelined_requests_whose_client_leaves_at_once_leave_no_traceback(database: str) -> None:
    with start_interpreter("serve", "--port", "0", "--database", database) as command:  # with uvloop
        url = await asyncio.to_thread(command.read_url)
        for _ in range(20):
            async with connect(url) as connection:
                connection.send((ASK + CHUNKED + b"\r\n") * 100)
                await connection.read_answer()
                connection.abort()
        command.send_signal(signal.SIGTERM)
        status, _, complaints = await asyncio.to_thread(command.wait)
    assert (status, complaints) == (0, "")
