"""The focus is where the user types, and goes elsewhere only when the user does."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.browsing import browse
from tests.e2e.pen import Pen
from tests.e2e.test_page_kept import hold
from tests.support.app_harness import serve_app
from tests.support.running_server import say

from indelible.testing import ScriptedModel

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]


async def test_the_delivery_of_a_first_message_leaves_the_focus_in_the_search_field(
    browser: Browser, database: str
) -> None:
    async with serve_app(database, ScriptedModel([say("One.")])) as server, browse(browser, server.url) as window:
        page = window.page
        go = await hold(page, "**/api/v1/chats", "POST")
        await expect(page.get_by_label("Model: scripted")).to_be_visible()
        await window.send("First")
        await page.get_by_label("Search chats").focus()
        await page.keyboard.type("ligh")
        go.set()
        await expect(window.items.last.locator(".text")).to_have_text("One.")
        await page.keyboard.type("thouse")
        await expect(page.get_by_label("Search chats")).to_have_value("lighthouse")
        await expect(window.composer).to_have_value("")
        await page.get_by_label("Search chats").fill("")
        await window.button("New chat").click()
        await expect(window.composer).to_be_focused()
        await window.chats.first.click()
        await expect(window.items).to_have_count(2)
        await expect(window.composer).to_be_focused()


async def test_the_editor_of_a_queued_message_has_the_focus_and_gives_it_back(browser: Browser, database: str) -> None:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream, say("Two.")])) as server,
        browse(browser, server.url) as window,
    ):
        page = window.page
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        await window.send("One")
        await window.queue.get_by_label("Edit queued message").click()
        await expect(window.queue.get_by_role("textbox")).to_be_focused()
        await page.keyboard.type(", better")
        async with page.expect_response("**/queue/*"):
            await page.keyboard.press("Enter")
        await expect(window.composer).to_be_focused()
        await expect(window.queue).to_contain_text("One, better")
        await window.queue.get_by_label("Edit queued message").click()
        await page.keyboard.type(" and worse")
        await page.keyboard.press("Escape")
        await expect(window.composer).to_be_focused()
        await expect(window.live).to_have_text("Some")  # Escape has not stopped it
        await expect(window.queue).to_contain_text("One, better")
        pen.finish()
        await expect(window.items.last.locator(".text")).to_have_text("Two.")


async def test_changes_to_a_queued_message_whose_turn_has_come_are_kept(browser: Browser, database: str) -> None:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream, say("To one.")])) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        await window.send("One")
        await window.queue.get_by_label("Edit queued message").click()
        await window.page.keyboard.type(", with a long second thought")
        pen.finish()
        await expect(window.items.last.locator(".text")).to_have_text("To one.")
        await expect(window.composer).to_have_value("One, with a long second thought")
        await expect(window.composer).to_be_focused()
        await expect(window.page.get_by_text("Your changes are in the message field.")).to_be_visible()
