"""The HTTP client against real sockets: bodies are closed, connections are reused, keys go to no other host."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.request import getproxies

import aiohttp
import pytest
from tests.support.waiting import DEADLINE_S
from yarl import URL

from indelible.errors import ModelFailed
from indelible.models.http.client import Http, find_proxy
from indelible.models.http.hooks import Answer, HttpRequest, HttpResponse, recording

CERTIFICATE = Path(__file__).parent / "localhost.pem"
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Peer:
    """A server that answers with given bytes, and takes note of what it is asked and of who leaves."""

    def __init__(self, answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.left = asyncio.Event()
        self.serving: set[asyncio.Task[None] | None] = set()
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.serving.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if b"content-length" in line), 0)
                self.requests.append(head + await reader.readexactly(length))
                answering = asyncio.ensure_future(self._answer(writer))
                leaving = asyncio.ensure_future(reader.read(1)) if b"hang" in head else None
                await asyncio.wait([task for task in (answering, leaving) if task], return_when=asyncio.FIRST_COMPLETED)
                if leaving is not None and leaving.done():
                    answering.cancel()
                    self.left.set()
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


@asynccontextmanager
async def listen(peer: Peer, *, tls: bool = False) -> AsyncIterator[int]:
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in peer.serving:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def respond(body: bytes, head: bytes = b"200 OK") -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (head, len(body), body))
        await writer.drain()

    return answer


async def respond_partially(writer: asyncio.StreamWriter) -> None:
    """And no more; then it waits for the next request, which is how it sees that the client has gone."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    await writer.drain()


def ask(port: int, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> HttpRequest:
    return HttpRequest(url=f"{scheme}://{host}:{port}{path}", headers={"authorization": "Bearer canary"}, body=b"{}")


async def read_all(response: HttpResponse) -> bytes:
    pieces = []
    while piece := await response.read():
        pieces.append(piece)
    return b"".join(pieces)


# --- bodies and connections ---


async def test_a_body_comes_whole_and_its_end_stays_the_end() -> None:
    peer = Peer(respond(b"x" * 300_000))
    async with listen(peer) as port, Http() as http, http.send(ask(port)) as response:
        assert (response.status, response.method) == (200, "POST")
        assert await read_all(response) == b"x" * 300_000
        assert await response.read() == b""
    [request] = peer.requests
    assert request.startswith(b"POST / HTTP/1.1\r\n")
    assert request.endswith(b"\r\n\r\n{}")
    assert b"authorization: Bearer canary" in request
    assert b"accept-encoding: identity" in request


async def test_a_connection_whose_body_was_read_is_used_again() -> None:
    peer = Peer(respond(b"hello"))
    async with listen(peer) as port, Http() as http:
        for _ in range(5):
            async with http.send(ask(port)) as response:
                assert await read_all(response) == b"hello"
    assert (len(peer.requests), peer.connections) == (5, 1)


async def test_whoever_stops_reading_cuts_the_connection() -> None:
    peer = Peer(respond_partially)
    async with listen(peer) as port, Http() as http:
        async with http.send(ask(port)) as response:
            assert await response.read() == b"hello"
        await asyncio.wait_for(peer.left.wait(), DEADLINE_S)


async def test_whoever_is_cancelled_while_reading_cuts_the_connection() -> None:
    peer = Peer(respond_partially)
    begun = asyncio.Event()

    async def read(http: Http, port: int) -> None:
        async with http.send(ask(port)) as response:
            while await response.read():
                begun.set()

    async with listen(peer) as port, Http() as http:
        reading = asyncio.ensure_future(read(http, port))
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.wait_for(peer.left.wait(), DEADLINE_S)


async def test_a_reader_that_is_left_by_an_error_cuts_the_connection() -> None:
    peer = Peer(respond_partially)
    async with listen(peer) as port, Http() as http:
        with pytest.raises(ZeroDivisionError):
            async with http.send(ask(port)):
                raise ZeroDivisionError
        await asyncio.wait_for(peer.left.wait(), DEADLINE_S)


async def test_a_body_that_is_cut_is_an_error_and_not_an_end() -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()
        writer.close()

    async with listen(Peer(cut)) as port, Http() as http, http.send(ask(port)) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_all(response)


async def test_a_reply_may_take_as_long_as_it_likes_and_connecting_may_not() -> None:
    session = Http(connect_timeout_s=3)._make_session()
    limits = session.timeout
    await session.close()
    assert (limits.total, limits.sock_read, limits.connect, limits.sock_connect) == (None, None, None, 3)


async def test_a_peer_that_does_not_take_the_connection_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.settimeout(0)
            with suppress(BlockingIOError):
                each.connect(("127.0.0.1", port))
        async with Http(connect_timeout_s=0.05) as http:
            with pytest.raises((TimeoutError, aiohttp.ServerTimeoutError)):
                async with http.send(ask(port)):
                    pass
        for each in waiting:
            each.close()


# --- where a key goes ---


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"307 Temporary", b"308 Permanent"])
async def test_nobody_is_followed_elsewhere(status: bytes) -> None:
    other = Peer(respond(b"caught"))
    async with listen(other) as other_port:
        moved = status + b"\r\nlocation: http://localhost:%d/" % other_port
        async with listen(Peer(respond(b"", moved))) as port, Http() as http, http.send(ask(port)) as response:
            assert response.status == int(status[:3])
    assert other.requests == []


async def test_cookies_are_not_kept() -> None:
    peer = Peer(respond(b"", b"200 OK\r\nset-cookie: a=b"))
    async with listen(peer) as port, Http() as http:
        for _ in range(2):
            async with http.send(ask(port, host="localhost")):
                pass
    assert b"cookie" not in peer.requests[1].lower()


async def test_a_netrc_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login ada password hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    peer = Peer(respond(b"hello"))
    async with listen(peer) as port, Http() as http, http.send(ask(port)) as response:
        assert await read_all(response) == b"hello"
    assert peer.requests[0].count(b"authorization") == 1
    assert b"Bearer canary" in peer.requests[0]


# --- the environment ---


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Peer(respond(b"by proxy"))
    async with listen(proxy) as port, Http() as http:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        async with http.send(ask(80, "/v1", host="provider.test")) as response:
            assert await read_all(response) == b"by proxy"
    assert proxy.requests[0].startswith(b"POST http://provider.test/v1 HTTP/1.1")


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://a.test/v1", None),
        ({"https_proxy": "http://p:1"}, "https://a.test/v1", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "https://a.test/v1", "http://p:1"),
        ({"https_proxy": "http://p:1"}, "http://a.test/v1", None),
        ({"all_proxy": "http://p:1"}, "https://a.test/v1", "http://p:1"),
        ({"https_proxy": "http://p:1", "no_proxy": "a.test"}, "https://a.test/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": ".a.test,b.test"}, "https://x.a.test/v1", None),
        ({"https_proxy": "http://p:1", "no_proxy": "*"}, "https://a.test/v1", None),
        ({"http_proxy": "http://p:1", "no_proxy": "localhost"}, "http://localhost:11434/v1", None),
        ({"https_proxy": "ada:secret@p:1"}, "https://a.test/v1", "http://ada:secret@p:1"),
    ],
)
def test_which_proxy(
    environment: Mapping[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy(URL(url), getproxies()) == proxy


def test_a_proxy_that_speaks_no_http_is_reported_with_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://ada:canary@p:1")
    with pytest.raises(ModelFailed, match="ALL_PROXY") as caught:
        find_proxy(URL("https://a.test/v1"), getproxies())
    assert "canary" not in str(vars(caught.value))


async def test_an_unknown_certificate_is_refused_and_a_given_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(respond(b"safe"))
    async with listen(peer, tls=True) as port:
        async with Http() as http:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                async with http.send(ask(port, scheme="https", host="localhost")):
                    pass
        assert peer.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        async with Http() as http, http.send(ask(port, scheme="https", host="localhost")) as response:
            assert await read_all(response) == b"safe"


# --- the seam ---


class Witness:
    """A recording that takes note of everything, and of every exchange apart."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin(self, request: HttpRequest) -> Witness:
        self.seen.append(f"begin {URL(request.url).path} {request.body.decode()}")
        return self

    def failed(self, error: BaseException) -> None:
        self.seen.append(f"failed {type(error).__name__}")

    def wrap(self, response: HttpResponse) -> Answer:
        self.seen.append(f"wrap {response.status}")
        return WatchedResponse(response, self.seen)


class WatchedResponse:
    def __init__(self, response: HttpResponse, seen: list[str]) -> None:
        self.status, self.headers, self.method = response.status, response.headers, response.method
        self._response = response
        self._seen = seen

    async def read(self) -> bytes:
        piece = await self._response.read()
        self._seen.append(f"read {piece.decode()!r}")
        return piece

    def settle(self) -> None:
        self._seen.append("settle")

    async def aclose(self) -> None:
        self._seen.append("close")
        await self._response.aclose()


async def test_a_recording_sees_the_exchange_of_its_own_task_and_no_other() -> None:
    witness = Witness()

    async def ask_watched(http: Http, port: int) -> None:
        recording.set(witness)
        async with http.send(ask(port, "/watched")) as response:
            assert await read_all(response) == b"hello"

    async with listen(Peer(respond(b"hello"))) as port, Http() as http:
        await asyncio.create_task(ask_watched(http, port))
        async with http.send(ask(port, "/unwatched")) as response:
            assert await read_all(response) == b"hello"
    assert witness.seen == ["begin /watched {}", "wrap 200", "read 'hello'", "read ''", "close"]


async def test_a_recording_learns_that_nothing_could_be_sent() -> None:
    witness = Witness()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    recording.set(witness)
    async with Http() as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            async with http.send(ask(port)):
                pass
    assert witness.seen == ["begin / {}", "failed ClientConnectorError"]
