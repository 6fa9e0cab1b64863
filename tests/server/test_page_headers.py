"""Every page of the server allows scripts of its own at most, and none is anybody else's (S106)."""

from __future__ import annotations

import re

import pytest
from tests.support.app_harness import AppHarness

from indelible.api.operations import PREFIX

PAGES = [
    "//",
    "//web/index.html",
    "//web/view/app.js",
    "//web/core/chat.js",
    "//web/vendor/marked.mjs",
    "//web/css/base.css",
    "//web/icon.svg",
    "//web/manifest.webmanifest",
    "//web/routes.json",
    "//docs",
]
OTHERS = ["//openapi.json", "//healthz", "//metrics", "/chats", "//nothing", "//web/nothing.js"]
FOREIGN = re.compile(r"""(?:src|href|url\(|import\s*)\s*=?\s*["'(]?\s*(?:https?:)?//""", re.IGNORECASE)


@pytest.mark.parametrize("path", PAGES)
async def test_s106_every_page_has_a_strict_policy(harness: AppHarness, path: str) -> None:
    server = await harness.start_server(worker=False)
    async with server.request("GET", path) as response:
        assert response.status == 200
        [policy] = response.headers.getall("Content-Security-Policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert response.headers["Referrer-Policy"] == "no-referrer"


async def test_s106_a_page_has_the_same_headers_under_both_of_its_names(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    found = []
    for path in ("//", "//web/index.html"):
        async with server.request("GET", path) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            found.append((await response.text(), {name: headers[name] for name in headers if name != "date"}))
    assert found[0] == found[1]


@pytest.mark.parametrize("path", [*PAGES, *OTHERS])
async def test_s106_nothing_is_taken_for_another_type_than_it_is(harness: AppHarness, path: str) -> None:
    server = await harness.start_server(worker=False)
    async with server.request("GET", path) as response:
        assert response.headers.getall("X-Content-Type-Options") == ["nosniff"]


@pytest.mark.parametrize("path", ["//", "//docs"])
async def test_s106_no_page_loads_anything_from_elsewhere(harness: AppHarness, path: str) -> None:
    server = await harness.start_server(worker=False)
    async with server.request("GET", path) as response:
        page = await response.text()
    assert FOREIGN.findall(page) == []


async def test_s106_the_documentation_has_every_route_and_runs_no_script(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    async with server.request("GET", "//openapi.json") as response:
        document = await response.json()
    async with server.request("GET", "//docs") as response:
        assert response.content_type == "text/html"
        page = await response.text()
    assert "<script" not in page
    assert f"{PREFIX}/chats" in page
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"<code>{method.upper()} {path}</code>" in page
