"""What was attached or written in a dialog is kept until the server has it, and nothing is sent without it."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Request, expect
from tests.e2e.browsing import browse
from tests.e2e.pen import Pen
from tests.e2e.test_page_kept import FAILS, NOTE, fail, hold
from tests.support.app_harness import serve_app
from tests.support.running_server import say

from indelible.testing import ScriptedModel

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]


async def test_a_message_waits_for_a_file_that_could_not_be_uploaded(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("A note.")])) as server,
        browse(browser, server.url, tolerates=FAILS) as window,
    ):
        page, file = window.page, window.page.locator("#composer .files li")
        await fail(page, "**/files?*", "POST")
        await page.get_by_label("Attach files").set_input_files(NOTE)
        await expect(file).to_contain_text("The server is unreachable.")
        await window.send("What is this?")
        await window.wait_for_toast("note.txt is not uploaded. Retry or remove it.")
        await expect(window.composer).to_have_value("What is this?")
        await page.unroute_all()
        await file.get_by_role("button", name="Retry").click()
        await expect(page.locator("#composer .files li.ready")).to_have_count(1)
        await window.composer.press("Enter")
        await expect(window.items.last.locator(".text")).to_have_text("A note.")
        await expect(file).to_have_count(0)
        (sent, _) = await server.client.read_all_messages(window.chat_id)
        assert [block["type"] for block in sent["blocks"]] == ["text", "file"]


async def test_a_file_stays_in_the_chat_in_which_it_was_attached(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        page, file = window.page, window.page.locator("#composer .files li.ready")
        await server.client.create_chat(title="Other")
        await expect(window.chats).to_have_count(1)
        await page.get_by_label("Attach files").set_input_files(NOTE)
        await expect(file).to_have_count(1)
        await window.chats.click()
        await expect(page.locator("#title")).to_have_text("Other")
        await expect(file).to_have_count(0)
        await window.button("New chat").click()
        await expect(file).to_contain_text("note.txt")


async def test_a_file_stays_when_its_chat_is_deleted_elsewhere_and_is_sent_with_the_words(
    browser: Browser, database: str
) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url, tolerates=("404",)) as window:
        page, file = window.page, window.page.locator("#composer .files li.ready")
        chat = await server.client.create_chat(title="Sea")
        await page.goto(f"{server.url}/#{chat['id']}")
        await expect(page.locator("#title")).to_have_text("Sea")
        await page.get_by_label("Attach files").set_input_files(NOTE)
        await expect(file).to_have_count(1)
        await server.client.delete_chat(chat["id"])
        await expect(window.problem).to_contain_text("Chat not found.")
        await expect(file).to_have_count(1)
        await window.send("What is this?")
        await expect(window.items.first.locator("a.file")).to_contain_text("note")
        await expect(file).to_have_count(0)


async def test_changes_to_a_message_are_kept_when_another_is_edited(browser: Browser, database: str) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        for number, words in enumerate(("One", "Two"), start=1):
            await window.send(words)
            await expect(window.queue.filter(has_text="Queued")).to_have_count(number)
        await window.queue.filter(has_text="One").get_by_label("Edit queued message").click()
        await window.queue.get_by_role("textbox").fill("One, better")
        await window.queue.filter(has_text="Two").get_by_label("Edit queued message").click()
        await expect(window.queue.get_by_role("textbox")).to_have_value("Two")
        await expect(window.composer).to_have_value("One, better")


async def test_a_second_click_makes_no_second_fork_and_no_second_link(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("One.")])) as server,
        browse(browser, server.url) as window,
    ):
        page, posted = window.page, list[str]()
        await window.send("First")
        await expect(window.button("Regenerate")).to_be_enabled()

        def note(request: Request) -> None:
            if request.method == "POST":
                posted.append(request.url.rpartition("/")[2])

        page.on("request", note)
        go = await hold(page, "**/fork", "POST")
        await window.items.last.hover()
        await window.button("Fork from here").dblclick()
        go.set()
        await window.wait_for_toast("Forked")
        await window.button("This chat").click()
        await page.get_by_role("menuitem", name="Share…").click()
        go = await hold(page, "**/shares", "POST")
        await window.button("Create a link").dblclick()
        go.set()
        await expect(page.get_by_label("Link", exact=True)).to_be_visible()
        page.remove_listener("request", note)
        assert [name for name in posted if name != "read"] == ["fork", "shares"]


async def test_a_system_prompt_that_cannot_be_saved_stays_in_its_dialog(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url, tolerates=FAILS) as window:
        page, field = window.page, window.page.get_by_role("textbox", name="System prompt")
        chat = await server.client.create_chat(title="Sea")
        await page.goto(f"{server.url}/#{chat['id']}")
        await expect(page.locator("#title")).to_have_text("Sea")
        await fail(page, f"**/api/v1/chats/{chat['id']}", "PATCH")
        await window.button("This chat").click()
        await page.get_by_role("menuitem", name="System prompt").click()
        await field.fill("You are a pirate.")
        await window.button("Save").click()
        await window.wait_for_toast("The server is unreachable.", in_dialog=True)  # not below it
        await expect(field).to_have_value("You are a pirate.")
        await page.unroute_all()
        async with page.expect_response(lambda response: response.request.method == "PATCH"):
            await window.button("Save").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert (await server.client.get_chat(chat["id"]))["system"] == "You are a pirate."
