"""Nothing that was typed is lost: not to another tab, and not with a dialog or an editor that was closed."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.browsing import browse, open_tab
from tests.support.app_harness import serve_app
from tests.support.running_server import say

from indelible.testing import ScriptedModel

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

COUNT_TABS = """async (count) => {
    const {held} = await navigator.locks.query();
    return held.filter(({name}) => name.startsWith("indelible:tab:")).length === count;
}"""


async def test_two_tabs_with_a_new_chat_keep_their_own_words(browser: Browser, database: str) -> None:
    async with serve_app(database, ScriptedModel([say("One.")])) as server, browse(browser, server.url) as first:
        await first.composer.fill("In the first tab")
        second = await open_tab(first.page.context, server.url)
        await second.composer.fill("In the second tab")
        for tab, words in ((first, "In the first tab"), (second, "In the second tab")):
            await tab.page.reload()
            await expect(tab.composer).to_have_value(words)
        await second.send("In the second tab, and sent")
        await expect(second.items.last.locator(".text")).to_have_text("One.")
        await first.page.reload()
        await expect(first.composer).to_have_value("In the first tab")
        assert second.complaints == []


async def test_the_words_of_a_closed_tab_are_found_and_those_of_an_open_one_are_left_to_it(
    browser: Browser, database: str
) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as first:
        context = first.page.context
        chat = (await server.client.create_chat(title="Sea"))["id"]
        await first.page.goto(f"{server.url}/#{chat}")
        await first.composer.fill("From an open tab")
        closed = await open_tab(context, f"{server.url}/#{chat}")
        await expect(closed.page.locator("#title")).to_have_text("Sea")
        await closed.composer.fill("From a closed tab")
        await closed.page.close()
        await first.page.wait_for_function(COUNT_TABS, arg=1, polling=100)
        third = await open_tab(context, f"{server.url}/#{chat}")
        await expect(third.composer).to_have_value("From a closed tab")
        fourth = await open_tab(context, f"{server.url}/#{chat}")
        await expect(fourth.page.locator("#title")).to_have_text("Sea")
        await expect(fourth.composer).to_have_value("")
        await expect(first.composer).to_have_value("From an open tab")
        await first.page.reload()
        await expect(first.composer).to_have_value("From an open tab")
