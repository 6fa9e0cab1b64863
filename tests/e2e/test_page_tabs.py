"""Many tabs of one browser: all live, all can send, and one connection for all that show the same chat."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.browsing import browse, open_tab
from tests.e2e.pen import Pen
from tests.server.forwarder import Forwarder
from tests.support.app_harness import serve_app
from tests.support.running_server import say

from indelible.testing import ScriptedModel

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

TABS = 8


async def test_eight_tabs_on_one_chat_are_all_live_and_the_last_can_stop(browser: Browser, database: str) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("Hello")
        pen.write("One ")
        await expect(window.live).to_have_text("One")
        context = window.page.context
        others = await asyncio.gather(*(open_tab(context, window.page.url) for _ in range(TABS - 1)))
        for tab in others:
            await expect(tab.live).to_have_text("One")
        pen.write("two")
        for tab in others:
            await expect(tab.live).to_have_text("One two")
        await window.page.close()  # the tab that reads the feed for the others
        pen.write(" three.")
        for tab in others:
            await expect(tab.live).to_have_text("One two three.")
        await others[-1].button("Stop").click()
        for tab in others:
            await expect(tab.items.last).to_contain_text("Stopped · saved")
            assert tab.complaints == []


async def test_eight_tabs_on_eight_chats_are_all_live_and_all_can_send(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say(f"Reply {at}.") for at in range(TABS)])) as server,
        browse(browser, server.url) as window,
    ):
        context = window.page.context
        first, *chats = [(await server.client.create_chat())["id"] for _ in range(TABS)]
        await window.page.goto(f"{server.url}/#{first}")
        others = await asyncio.gather(*(open_tab(context, f"{server.url}/#{chat}") for chat in chats))
        tabs = [window, *others]
        for tab in tabs:
            await tab.send("Hello")
        for tab in tabs:
            await expect(tab.items.last.locator(".text")).to_contain_text("Reply")
            await expect(tab.items).to_have_count(2)
            assert tab.complaints == []


async def test_a_connection_that_is_lost_comes_back_without_a_gap(browser: Browser, database: str) -> None:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream])) as server,
        Forwarder([server.url]).listening() as network,
        browse(browser, network.url, tolerates=("net::ERR_",)) as window,
    ):
        await window.send("Hello")
        pen.write("One ")
        await expect(window.live).to_have_text("One")
        await network.cut()
        pen.write("two ")
        await expect(window.live).to_have_text("One two")
        await window.page.context.set_offline(True)
        await expect(window.status).to_have_text("Offline")
        pen.write("three.")
        await window.page.context.set_offline(False)
        await expect(window.live).to_have_text("One two three.")
        pen.finish()
        await expect(window.live).to_have_count(0)
        assert (await window.read_items())[-1] == ("assistant", "One two three.")
