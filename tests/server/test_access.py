"""Who may come in: no other name and no other site on loopback, nobody without the token elsewhere."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness
from tests.support.json_client import JsonClient
from tests.support.running_server import RunningServer
from tests.support.waiting import deadline

from indelible import errors
from indelible.server.access import MAX_BODY_BYTES, OPEN_TO_ALL
from indelible.server.app import Server
from indelible.server.process import NeedsToken, Process
from indelible.settings import load_settings

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

TOKEN = "a-sécret"  # noqa: S105  (nobody's)
CRLF = "\r\n"
ROUTES = ["//", "//docs", "//openapi.json", "//metrics", "/chats", "/models", "/session", "//nothing", "/nothing"]


def list_hosts(server: RunningServer) -> dict[str, bool]:
    """Names under which a browser may come, and whether they are this server's."""
    port = server.url.rpartition(":")[2]
    own = {f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", "localhost", "127.0.0.2:80"}
    foreign = {"evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "localhost.evil.example", ""}
    odd = {"evil.example@127.0.0.1", "127.0.0.1@evil.example", "127.0.0.1/evil.example", "[evil]", "10.0.0.1:80"}
    return {**dict.fromkeys(own, True), **dict.fromkeys(foreign | odd, False)}


async def test_a_name_that_was_made_to_point_here_opens_no_route(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    for path in ROUTES:
        async with server.request("GET", path, headers={"Host": "evil.example"}) as response:
            assert (await read_problem(response))["kind"] == "wrong_host"


async def test_a_name_is_judged_whatever_it_looks_like(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    for host, is_own in list_hosts(server).items():
        async with server.request("GET", "/models", headers={"Host": host}) as response:
            assert response.status == (200 if is_own else 421), host


async def test_a_page_of_another_site_may_not_even_send(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example", ""):
        async with server.request("POST", "/chats", json={"title": "Theirs"}, headers={"Origin": origin}) as response:
            problem = await read_problem(response)
            assert (problem["status"], problem["kind"]) == (403, "forbidden")
    assert (await server.client.list_chats())["items"] == []
    async with server.request("POST", "/chats", json={"title": "Ours"}, headers={"Origin": server.url}) as response:
        assert response.status == 201


async def test_health_checks_come_from_anywhere_and_need_nothing(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    for path in OPEN_TO_ALL:
        async with server.request(
            "GET", f"/{path}", headers={"Host": "10.0.0.1", "Origin": "http://probe"}
        ) as response:
            assert response.status == 200


async def test_with_a_token_no_route_answers_without_it(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    for path in ROUTES:
        async with server.request("GET", path) as response:
            problem = await read_problem(response)
            assert (problem["status"], problem["kind"]) == (401, "unauthorized")
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert TOKEN not in problem["detail"]


class Refused(NamedTuple):
    path: str
    status: int
    headers: str


REFUSED_UNREAD = [
    Refused("/api/v1/chats", 401, ""),
    Refused("/api/v1/files?name=rain.txt", 401, ""),
    Refused("/api/v1/files?name=rain.txt", 401, "Authorization: Bearer wrong\r\n"),
    Refused("/v1/responses", 401, ""),
    Refused("/api/v1/session", 403, "Origin: http://evil.example\r\n"),
    Refused("/shared/api/v1/files", 404, ""),
    Refused("/api/v1/shared/api/v1/files", 404, ""),
    Refused("/api/v1/chats", 413, "Content-Length: 900000000\r\n"),
]


@pytest.mark.parametrize("length", ["Content-Length: 5000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n5\r\n"])
async def test_the_body_of_a_refused_request_is_not_read(harness: AppHarness, length: str) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    for refused in REFUSED_UNREAD:
        own = "" if "Length" in refused.headers else length
        head = f"POST {refused.path} HTTP/1.1\r\nHost: localhost\r\n{refused.headers}{own or CRLF}"
        answer = await send_half(server, head.encode() + b"{")
        assert answer.startswith(f"HTTP/1.1 {refused.status} ".encode()), refused
        assert b"connection: close" in answer.lower(), refused


async def test_a_body_that_turns_out_too_large_is_not_read_on(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    head = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await send_half(server, b"%b%x\r\n%b" % (head, 2 * MAX_BODY_BYTES, b"x" * (MAX_BODY_BYTES + 1)))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("path", ["/api/v1/chats", "/api/v1/files?name=rain.txt", "/v1/chat/completions"])
@pytest.mark.parametrize("token", ["wrong", TOKEN])
async def test_a_client_that_sends_all_of_a_refused_body_reads_why(harness: AppHarness, path: str, token: str) -> None:
    server = await harness.start_server(worker=False, token=TOKEN, file_max_bytes=1000)
    host, _, port = server.url.removeprefix("http://").partition(":")
    body = b"x" * 2 * MAX_BODY_BYTES
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}"
    for _ in range(5):
        async with deadline():
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head.encode() + b"\r\n\r\n" + body)
            await writer.drain()
            expected = b"413" if token == TOKEN or "files" not in path else b"401"
            assert (await reader.readline()).startswith(b"HTTP/1.1 " + expected)
            writer.close()
            await writer.wait_closed()


async def send_half(server: RunningServer, begun: bytes) -> bytes:
    """The answer to a request whose rest never comes, up to the end of the connection."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    async with deadline():
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(begun)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


async def test_no_answer_leads_to_a_host_that_a_client_made_up(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    headers = {"Host": "evil.example", "Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
    for path in ROUTES:
        for method in ("GET", "POST"):
            for given in (headers, {**headers, "Authorization": ""}):
                async with server.request(method, f"{path}/", headers=given, allow_redirects=False) as response:
                    assert "evil" not in response.headers.get("Location", ""), (method, path)


@pytest.mark.parametrize("base_path", ["", "/chat"])
async def test_a_slash_at_the_end_leads_to_the_same_place_by_its_path_alone(
    harness: AppHarness, base_path: str
) -> None:
    server = await harness.start_server(worker=False, base_path=base_path)
    for path, place in (
        ("/docs/?a=%0D", "/docs?a=%0D"),
        ("/login///", "/login"),
        ("/web", "/web/"),
        ("/api/v1/chats/?limit=1", "/api/v1/chats?limit=1"),
        ("/nowhere/", None),
        ("//evil.example/", None),
        ("/\\evil.example/", None),
        ("/docs%3f/", None),
    ):
        async with server.request("GET", f"/{base_path}{path}", allow_redirects=False) as response:
            assert response.status == (307 if place else 404), path
            assert response.headers.get("Location") == (f"{base_path}{place}" if place else None)
    async with server.request("POST", f"/{base_path}/api/v1/chats/", json={"title": "Rain"}) as response:
        assert (response.status, (await response.json())["title"]) == (201, "Rain")


async def test_a_token_is_judged_whatever_it_looks_like(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    wrong = ("", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x")
    for given, status in {**dict.fromkeys(wrong, 401), f"bearer {TOKEN}": 200}.items():
        async with server.request(
            "GET", "/models", headers={"Authorization": given, "Host": "chats.example"}
        ) as response:
            assert response.status == status, given


async def test_a_client_with_the_token_is_let_in_and_one_without_gets_the_reason(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN, client_token=TOKEN)
    assert (await server.client.list_chats())["items"] == []
    async with JsonClient(server.url) as stranger:
        with pytest.raises(errors.Refused, match="Log in at /login, or send a token"):
            await stranger.list_chats()


async def test_an_address_that_others_can_reach_is_not_listened_on_without_a_token(database: str) -> None:
    settings = load_settings(host="0.0.0.0", port=0, database=database)  # noqa: S104  (which is what is refused)
    with pytest.raises(NeedsToken, match=r"0\.0\.0\.0 is reachable from other machines\. Set INDELIBLE_TOKEN"):
        await Process(Server(settings), on_ready=lambda _: None).serve()
