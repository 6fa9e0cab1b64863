"""Who may come in: no other name and no other site on loopback, nobody without the token elsewhere."""

from __future__ import annotations

import pytest
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness
from tests.support.json_client import JsonClient
from tests.support.running_server import RunningServer

from indelible.errors import Refused
from indelible.server.access.middleware import OPEN_TO_ALL
from indelible.server.app import Server
from indelible.server.process import NeedsToken, Process
from indelible.settings import load_settings

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

TOKEN = "a-sécret"  # noqa: S105  (nobody's)
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


async def test_a_token_is_judged_whatever_it_looks_like(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    wrong = ("", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x")
    for given, status in {**dict.fromkeys(wrong, 401), f"bearer {TOKEN}": 200}.items():
        async with server.request(
            "GET", "/models", headers={"Authorization": given, "Host": "chats.example"}
        ) as response:
            assert response.status == status, given


async def test_a_client_with_the_token_is_let_in_and_one_without_is_told_so(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN, client_token=TOKEN)
    assert (await server.client.list_chats())["items"] == []
    async with JsonClient(server.url) as stranger:
        with pytest.raises(Refused, match="Log in at /login, or send a token"):
            await stranger.list_chats()


async def test_an_address_that_others_can_reach_is_not_listened_on_without_a_token(database: str) -> None:
    settings = load_settings(host="0.0.0.0", port=0, database=database)  # noqa: S104  (which is what is refused)
    with pytest.raises(NeedsToken, match=r"0\.0\.0\.0 is reachable from other machines\. Set INDELIBLE_TOKEN"):
        await Process(Server(settings), on_ready=lambda _: None).serve()
