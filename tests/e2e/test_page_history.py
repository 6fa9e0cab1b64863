"""Branches, the queue, steering, chats, and what is above."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.browsing import browse
from tests.e2e.pen import Pen
from tests.support.app_harness import serve_app
from tests.support.running_server import say, text_of

from indelible.content import Part
from indelible.testing import ScriptedModel, parts

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]


async def test_edit_and_regenerate_make_versions_that_can_be_gone_back_to(browser: Browser, database: str) -> None:
    model = ScriptedModel([say("First."), say("Second."), say("About the sun.")])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        reply, page = window.items.last, window.page
        await window.send("Rain?")
        await expect(reply.locator(".text")).to_have_text("First.")
        await window.button("Regenerate").click()
        await expect(reply.locator(".text")).to_have_text("Second.")
        await expect(page.get_by_label("Version 2 of 2")).to_be_visible()
        await window.button("Previous version").click()
        await expect(reply.locator(".text")).to_have_text("First.")
        await expect(page.get_by_label("Version 1 of 2")).to_be_visible()
        await window.items.first.hover()
        await window.button("Edit message").click()
        await page.get_by_role("textbox", name="Edit message").fill("Sun?")
        await page.keyboard.press("Enter")
        await expect(reply.locator(".text")).to_have_text("About the sun.")
        await expect(window.items.first.get_by_label("Version 2 of 2")).to_be_visible()
        await window.items.first.hover()
        await window.items.first.get_by_label("Previous version").click()
        await expect(window.items.first.locator(".text")).to_have_text("Rain?")
        await expect(reply.locator(".text")).to_have_text("Second.")  # the newest reply on that branch
        await reply.hover()
        await window.button("Fork from here").click()
        await expect(window.chats).to_have_count(2)
        await expect(window.items).to_have_count(2)
        await expect(reply.locator(".text")).to_have_text("Second.")


async def test_queued_messages_can_be_edited_moved_and_sent_now(browser: Browser, database: str) -> None:
    pen = Pen()
    model = ScriptedModel([pen.stream, say("To two."), say("To one.")])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        await window.send("One")
        await window.send("Two")
        await expect(window.queue).to_have_count(2)
        await window.queue.last.get_by_label("Edit queued message").click()
        await window.queue.get_by_role("textbox").fill("Two, better")
        await window.page.keyboard.press("Enter")
        await expect(window.queue.last).to_contain_text("Two, better")
        await window.queue.last.get_by_label("Move up").click()
        await expect(window.queue.first).to_contain_text("1 of 2: Two, better")
        await window.queue.first.get_by_label("Send now").click()
        await expect(window.items.last.locator(".text")).to_have_text("To one.")
        await expect(window.queue).to_have_count(0)
        stored = await server.client.read_all_messages(window.chat_id)
        users = [text_of(message) for message in stored if message["role"] == "user"]
        assert users == ["Begin", "Two, better", "One"]


async def test_a_steering_message_joins_the_running_reply(browser: Browser, database: str) -> None:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream, say("As you wish.")])) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        await window.composer.fill("Shorter, please")
        await window.page.keyboard.press("Control+Enter")
        await expect(window.composer).to_have_value("")
        await expect(window.queue).to_have_count(1)
        pen.finish()
        await expect(window.items.last.locator(".text")).to_have_text("As you wish.")
        assert len(await server.client.read_all_messages(window.chat_id)) == 4


async def test_chats_are_found_renamed_pinned_and_deleted_with_undo(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        for at in range(60):
            await server.client.create_chat(title=f"Chat number {at:02}")
        page = window.page
        await page.reload()
        await expect(window.chats).to_have_count(50)
        await page.evaluate("document.querySelector('.groups').scrollTo(0, 1e6)")  # more are loaded at the end
        await expect(window.chats).to_have_count(60)
        await page.get_by_label("Search chats").fill("number 07")
        await expect(page.locator(".chat-list .name")).to_have_text(["Chat number 07"])
        await window.chats.first.hover()
        await page.get_by_role("listitem").filter(has_text="Chat number 07").get_by_label("Chat actions").click()
        await page.get_by_role("menuitem", name="Rename").click()
        await page.get_by_label("Title").fill("Lighthouse")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_have_count(0)  # while it is open, nothing else can be typed into
        await expect(page.locator(".chat-list .name")).to_have_text(["Lighthouse"])  # where it was found
        await page.get_by_label("Search chats").fill("Lighthouse")
        await expect(page.locator(".chat-list .name")).to_have_text(["Lighthouse"])
        await window.chats.first.hover()
        await window.button("Chat actions").click()
        await page.get_by_role("menuitem", name="Delete").click()
        await expect(window.chats).to_have_count(0)
        await window.button("Undo").click()
        await expect(page.locator(".chat-list .name")).to_have_text(["Lighthouse"])
        await page.get_by_label("Search chats").fill("")
        await page.keyboard.press("Control+k")
        await page.get_by_label("Command or chat").fill("number 33")
        await page.get_by_role("option", name="Chat number 33").click()
        await expect(page.locator("#title")).to_have_text("Chat number 33")


async def test_the_reply_asks_for_the_result_of_a_client_tool(browser: Browser, database: str) -> None:
    call: list[Part] = [parts.tool_call("1", "ask", '{"question": "Which city?"}'), parts.finish("tool_calls")]
    async with (
        serve_app(database, ScriptedModel([call, say("Oslo it is.")])) as server,
        browse(browser, server.url) as window,
    ):
        tools = [{"name": "ask", "description": "Ask the user.", "input_schema": {"type": "object"}}]
        chat = await server.client.create_chat(tools=tools)
        await window.page.goto(f"{server.url}/#{chat['id']}")
        await window.send("Weather?")
        await expect(window.page.get_by_text("The reply needs you.")).to_be_visible()
        await window.page.get_by_label("Result of ask").fill("Oslo")
        await window.button("Send result").click()
        await expect(window.items.last.locator(".text")).to_have_text("Oslo it is.")
