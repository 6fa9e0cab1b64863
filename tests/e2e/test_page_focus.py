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

ON_TOP = """node => {
    const {left, right, top, bottom} = node.getBoundingClientRect();
    const isOnTop = (y) => node.contains(document.elementFromPoint((left + right) / 2, y));
    return isOnTop(top + 2) && isOnTop(bottom - 2);
}"""


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
        await expect(window.queue.get_by_role("textbox")).to_be_focused()
        await page.keyboard.type(" and worse")
        await page.keyboard.press("Escape")
        await expect(window.composer).to_be_focused()
        await expect(window.queue).to_contain_text("One, better")
        pen.finish()
        await expect(window.items.last.locator(".text")).to_have_text("Two.")
        await expect(page.get_by_text("Stopped · saved")).to_have_count(0)  # by that Escape


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
        await expect(window.queue.get_by_role("textbox")).to_be_focused()
        await window.page.keyboard.type(", with a long second thought")
        pen.finish()
        await expect(window.items.last.locator(".text")).to_have_text("To one.")
        await expect(window.composer).to_have_value("One, with a long second thought")
        await expect(window.composer).to_be_focused()
        await window.wait_for_toast("Your changes are in the message field.")


async def test_the_menu_of_the_last_chat_in_sight_is_not_cut_off(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        for at in range(30):
            await server.client.create_chat(title=f"Chat {at:02}")
        await window.page.reload()
        await expect(window.chats).to_have_count(30)
        row = window.page.locator(".chat-list li").last  # scrolled into view, it is at the lower edge of the list
        await row.hover()
        await row.get_by_label("Chat actions").click()
        await expect(window.page.get_by_role("menuitem", name="Rename")).to_be_focused()
        for entry in await window.page.get_by_role("menuitem").all():
            assert await entry.evaluate(ON_TOP), await entry.inner_text()
        await window.page.keyboard.press("End")
        await expect(window.page.get_by_role("menuitem", name="Delete")).to_be_focused()
        await window.page.keyboard.press("Escape")
        await expect(row.get_by_label("Chat actions")).to_be_focused()


async def test_the_palette_shows_its_choice_and_never_opens_what_an_older_text_found(
    browser: Browser, database: str
) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        page, palette = window.page, window.page.get_by_label("Command or chat")
        for at in range(14):
            await server.client.create_chat(title=f"Chat {at:02}")
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("option", name="Chat 13")).to_be_attached()
        for number in range(1, await page.get_by_role("option").count()):
            await page.keyboard.press("ArrowDown")
            await expect(page.get_by_role("option", selected=True)).to_have_id(f"palette-{number}")
        await expect(page.get_by_role("option", selected=True)).to_contain_text("Chat 02")
        await expect(page.get_by_role("option", selected=True)).to_be_in_viewport(ratio=0.9)
        go = await hold(page, "**/chats?*q=*", "GET")
        await palette.fill("Chat 00")
        await expect(page.get_by_role("option")).to_have_count(0)
        await page.keyboard.press("Enter")
        await expect(palette).to_be_visible()
        go.set()
        await expect(page.get_by_role("option")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(page.locator("#title")).to_have_text("Chat 00")


async def test_escape_clears_the_search_and_does_not_stop_the_reply(browser: Browser, database: str) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        page, search = window.page, window.page.get_by_label("Search chats")
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        await page.keyboard.press("Control+Shift+S")
        await expect(search).to_be_focused()
        await page.keyboard.type("rain")
        await page.keyboard.press("Escape")
        await expect(search).to_have_value("")
        await expect(window.status).to_have_text("Replying…")
        await page.keyboard.press("Escape")
        await expect(window.items.last).to_contain_text("Stopped · saved")


async def test_the_editor_of_a_message_is_in_sight_and_waits_while_another_chat_is_shown(
    browser: Browser, database: str
) -> None:
    model = ScriptedModel([say("A line.\n\n" * 40), say("Two.")])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        page, editor = window.page, window.page.get_by_role("textbox", name="Edit message")
        await server.client.create_chat(title="Other")
        await window.send("First")
        await expect(window.button("Regenerate")).to_be_enabled()
        await window.items.first.hover()
        await window.button("Edit message").click()
        await expect(editor).to_be_focused()
        await expect(editor).to_be_in_viewport(ratio=0.9)
        await page.keyboard.type(", and better")
        await window.chats.filter(has_text="Other").click()
        await expect(page.locator("#title")).to_have_text("Other")
        await page.go_back()
        await expect(editor).to_have_value("First, and better")
        await editor.press("Enter")
        await expect(window.composer).to_be_focused()
        await expect(window.items.last.locator(".text")).to_have_text("Two.")
        await expect(window.items.first.locator(".text")).to_have_text("First, and better")


async def test_the_end_of_every_reply_is_announced_anew(browser: Browser, database: str) -> None:
    pens = [Pen(), Pen()]
    async with (
        serve_app(database, ScriptedModel([pen.stream for pen in pens])) as server,
        browse(browser, server.url) as window,
    ):
        announcement = window.page.locator("#announcement")
        for pen in pens:
            await window.send("Hello")
            pen.write("Hi.")
            await expect(window.live).to_have_text("Hi.")
            await expect(announcement).to_have_text("")
            pen.finish()
            await expect(announcement).to_have_text("The reply is complete.")
