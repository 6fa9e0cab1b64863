"""Cursors, ids and searches that no client of ours sends: always a 4xx, or what the route gives to anybody (S109)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness

pytestmark = pytest.mark.both_databases

LONG = "x" * 20_000
DEEP = "[" * 20_000


def forge(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


FORGED = {
    "a nothing": "",
    "no base64": "%%%",
    "not ascii": "%C3%A9",
    "a lone surrogate": "%ED%A0%80",
    "null": forge(None),
    "a number": forge(1),
    "an object": forge({}),
    "too short": forge(["2026-01-01T00:00:00Z"]),
    "too long": forge(["2026-01-01T00:00:00Z", "a", "b"]),
    "a far time": forge(["9999-12-31T23:59:59.999999-23:59", "a"]),
    "an early time": forge(["0001-01-01T00:00:00+23:59", "a"]),
    "a zero byte": forge(["2026-01-01T00:00:00Z", "a\u0000b"]),
    "half a pair": forge('["2026-01-01T00:00:00Z", "\\ud800"]'),
    "a long id": forge(["2026-01-01T00:00:00Z", LONG]),
    "deep": forge(DEEP),
    "long": LONG,
}


async def test_s109_a_forged_cursor_is_refused_or_means_the_beginning(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat(title="Rain")
    for name, cursor in FORGED.items():
        for path in (
            f"/chats?cursor={cursor}",
            f"/chats/{chat['id']}/messages?before={cursor}",
            f"/chats/{chat['id']}/attempts?before={cursor}",
            f"/chats/{chat['id']}/debug/runs?before={cursor}",
        ):
            async with server.request("GET", path) as response:
                is_fine = response.status == 200 or 400 <= response.status < 500
                assert is_fine, (name, path[:100], await response.text())
                if response.status >= 400:
                    await read_problem(response)
        async with server.request("GET", f"/chats/{chat['id']}/events?after={cursor}") as response:
            if response.status == 200:
                assert (await response.content.readline()).startswith(b"id: "), name
                assert await response.content.readline() == b"event: snapshot\n", name
            else:
                assert 400 <= response.status < 500, name


async def test_s109_a_search_that_nobody_types_is_refused(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    for search in (LONG, "x" * 1001, "%25" * 2000, "a%00b", "%ED%A0%80", "é" * 1001):
        async with server.request("GET", f"/chats?q={search}") as response:
            assert response.status == 200 or 400 <= response.status < 500, search[:20]
            if len(search) > 1000 and response.status != 200:
                assert (await read_problem(response))["status"] in (422, 431), search[:20]
        if len(search) > 1000:
            assert response.status != 200, search[:20]


async def test_s109_a_search_of_any_ordinary_length_finds(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    await server.client.create_chat(title="x" * 1000)
    async with server.request("GET", f"/chats?q={'x' * 200}") as response:
        assert len((await response.json())["items"]) == 1


@pytest.mark.parametrize("given", [LONG, "%00", "%ED%A0%80", "..%2F..", "é" * 100])
async def test_s109_a_forged_id_is_not_found(harness: AppHarness, given: str) -> None:
    server = await harness.start_server(worker=False)
    chat = (await server.client.create_chat(title="Rain"))["id"]
    for method, path in (
        ("GET", f"/chats/{given}"),
        ("POST", f"/chats/{chat}/messages/{given}/regenerate"),
        ("DELETE", f"/chats/{chat}/queue/{given}"),
        ("GET", f"/chats/{chat}/debug/runs/{given}"),
    ):
        async with server.request(method, path) as response:
            assert 400 <= (await read_problem(response))["status"] < 500, (method, path[:60])


async def test_s109_a_forged_key_is_refused(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    for key in (LONG, "é", "x" * 256):
        async with server.request("POST", "/chats", json={}, headers={"Idempotency-Key": key}) as response:
            assert response.status == 201 or 400 <= response.status < 500
