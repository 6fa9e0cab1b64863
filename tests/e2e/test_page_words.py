"""What the user wrote is safe: drafts, the outbox, a server that is away, a reload at the wrong moment."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, FilePayload, expect
from tests.e2e.browsing import browse
from tests.e2e.pen import Pen
from tests.e2e.test_page_kept import hold
from tests.server.forwarder import Forwarder
from tests.support.app_harness import serve_app
from tests.support.running_server import say

from indelible.testing import ScriptedModel

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

AWAY = ("net::ERR_", "502")


async def test_a_message_sent_while_the_server_is_away_survives_a_reload_and_arrives_once(
    browser: Browser, database: str
) -> None:
    async with (
        serve_app(database, ScriptedModel([say("Here.")])) as server,
        Forwarder([server.url]).listening() as network,
        browse(browser, network.url, tolerates=AWAY) as window,
    ):
        await expect(window.composer).to_be_focused()
        network.targets.clear()
        await network.cut()
        await window.send("Are you there?")
        await expect(window.items.last).to_contain_text("Not sent: the server is unreachable.")

        await window.page.goto("about:blank")  # first: this page must not deliver it in the moment in which it is left
        network.targets.append(server.url)
        await window.page.goto(network.url)

        await expect(window.items).to_have_count(2)
        await expect(window.items.last.locator(".text")).to_have_text("Here.")
        [chat] = (await server.client.list_chats())["items"]
        stored = await server.client.read_all_messages(chat["id"])
        assert [message["role"] for message in stored] == ["user", "assistant"]


async def test_a_message_keeps_its_element_from_its_first_moment_to_its_reply(browser: Browser, database: str) -> None:
    """In a chat that it begins, and in one that exists: a bubble that is drawn anew flickers and loses a selection."""
    async with (
        serve_app(database, ScriptedModel([say("One."), say("Two.")])) as server,
        Forwarder([server.url]).listening() as network,
        browse(browser, network.url, tolerates=AWAY) as window,
    ):
        await expect(window.page.get_by_label("Model: scripted")).to_be_visible()
        for number, reply in ((0, "One."), (2, "Two.")):
            network.targets.clear()
            await network.cut()
            await window.send(f"Message {number}")
            bubble = window.items.nth(number)
            await expect(bubble).to_contain_text("Not sent")
            drawn = [await bubble.element_handle(), await bubble.locator(".text").element_handle()]
            network.targets.append(server.url)
            await expect(window.items.nth(number + 1).locator(".text")).to_have_text(reply)
            await expect(bubble.get_by_label("Edit message")).to_be_enabled()
            assert [await one.evaluate("node => node.isConnected") for one in drawn] == [True, True]
            await expect(window.items).to_have_count(number + 2)


async def test_a_draft_survives_a_reload_and_belongs_to_its_chat(browser: Browser, database: str) -> None:
    async with serve_app(database, ScriptedModel([say("One.")])) as server, browse(browser, server.url) as window:
        await window.composer.fill("Not yet s")
        await window.page.reload()
        await expect(window.composer).to_have_value("Not yet s")
        await window.send("First")
        await expect(window.items).to_have_count(2)
        await window.composer.fill("For this chat")
        await window.button("New chat").click()
        await expect(window.composer).to_have_value("")
        await window.chats.first.click()
        await expect(window.composer).to_have_value("For this chat")


async def test_a_refused_message_stays_and_can_be_edited(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("Short enough.")]), message_max_bytes=2000) as server,
        browse(browser, server.url, tolerates=("413", "422", "400")) as window,
    ):
        await window.send("x" * 3000)
        await expect(window.problem).to_contain_text("Message too long")
        await window.button("Edit").click()
        await expect(window.composer).to_have_value("x" * 3000)
        await window.send("Short")
        await expect(window.items).to_have_count(2)
        await expect(window.items.last.locator(".text")).to_have_text("Short enough.")


async def test_a_refused_first_message_is_found_again_after_another_chat(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, worker=False, message_max_bytes=2000) as server,
        browse(browser, server.url, tolerates=("413", "422", "400")) as window,
    ):
        await window.send("x" * 3000)
        await expect(window.problem).to_contain_text("Message too long")
        await window.button("New chat").click()
        await expect(window.items).to_have_count(0)
        await window.chats.filter(has_text="xxx").click()
        await expect(window.problem).to_contain_text("Message too long")
        await expect(window.chats).to_have_count(0)
        await window.button("Edit").click()
        await expect(window.composer).to_have_value("x" * 3000)


async def test_a_message_that_is_refused_during_a_reply_names_the_reason_and_can_be_tried_again(
    browser: Browser, database: str
) -> None:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream]), message_max_bytes=2000) as server,
        browse(browser, server.url, tolerates=("413", "422", "400")) as window,
    ):
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        await window.send("x" * 3000)
        await expect(window.queue.get_by_role("alert")).to_contain_text("Not sent: Message too long")
        go = await hold(window.page, "**/messages", "POST")
        await window.queue.get_by_role("button", name="Retry").click()
        await expect(window.queue).to_contain_text("Sending…")
        go.set()
        await expect(window.queue.get_by_role("alert")).to_contain_text("Not sent: Message too long")
        await window.queue.get_by_label("Edit unsent message").click()
        await expect(window.composer).to_have_value("x" * 3000)
        pen.finish()
        await expect(window.live).to_have_count(0)


async def test_a_reply_keeps_its_element_from_its_first_word_to_its_end(browser: Browser, database: str) -> None:
    """A selection in it, or an open “Thinking”, would be gone otherwise."""
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("Hello")
        pen.write("It ")
        await expect(window.live).to_have_text("It")
        reply = await window.items.last.element_handle()
        pen.write("rains.")
        pen.finish()
        await expect(window.live).to_have_count(0)
        assert await reply.evaluate("node => node.isConnected")
        await expect(window.items).to_have_count(2)


async def test_a_file_is_uploaded_at_once_and_sent_with_the_message(browser: Browser, database: str) -> None:
    async with serve_app(database, ScriptedModel([say("A note.")])) as server, browse(browser, server.url) as window:
        note: FilePayload = {"name": "note <i>1.txt", "mimeType": "text/plain", "buffer": b"It rains."}
        await window.page.get_by_label("Attach files").set_input_files(note)
        await expect(window.page.locator("#composer .files li.ready")).to_have_count(1)
        await window.send("What is this?")
        await expect(window.items).to_have_count(2)
        await expect(window.items.last.locator(".text")).to_have_text("A note.")
        await expect(window.items.first.locator("a.file")).to_contain_text("note")
        [question, _] = await server.client.read_all_messages(window.chat_id)
        assert [block["type"] for block in question["blocks"]] == ["text", "file"]
