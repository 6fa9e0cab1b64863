"""Many chats and long ones: the list is live across chats, and nothing is too much to find or to scroll through."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, FilePayload, expect
from tests.e2e.browsing import browse, open_tab
from tests.e2e.pen import Pen
from tests.support.app_harness import serve_app
from tests.support.running_server import say

from indelible.client.client import RemoteLists
from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

FAILED = "The key is wrong."
NOTHING = dict.fromkeys(("model", "system", "parameters", "tools"))
MESSAGES = 2000
CHATS = 300
SCROLL_UP = """() => {
    const box = document.querySelector("#scroll");
    box.scrollTop = 0;
    return box.firstElementChild.textContent === "Beginning of the chat";
}"""


def make_export(count: int) -> bytes:
    """A chat as a file, with so many messages."""
    messages = [
        {
            "id": f"m{at}",
            "parent_id": f"m{at - 1}" if at else None,
            "role": "assistant" if at % 2 else "user",
            "blocks": [{"type": "text", "text": f"Message {at}"}],
            "created_at": "2026-01-01T11:00:00Z",
        }
        for at in range(count)
    ]
    at = "2026-01-01T11:00:00Z"
    chat: dict[str, Any] = {"format": "indelible.chat", "version": 1, "exported_at": at, "created_at": at, "labels": []}
    return json.dumps({**chat, "title": "Long", **NOTHING, "head": messages[-1]["id"], "messages": messages}).encode()


async def test_the_list_is_live_and_a_chat_is_shared_exported_and_imported(
    browser: Browser, database: str, tmp_path: Path
) -> None:
    pen = Pen()
    model = ScriptedModel([pen.stream, ModelFailed(FAILED, kind="auth"), say("Well again.")])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        page = window.page
        row = page.locator(".chat-list li")
        await expect(page.get_by_label("Model: scripted")).to_be_visible()

        chat = await server.client.create_chat("Is it raining?", title="Rain")  # by another program of the user
        await expect(row.filter(has_text="Rain")).to_have_class("busy")
        pen.write("It is.")
        pen.finish()
        await expect(row).to_have_class("unread")
        await window.chats.click()
        await expect(window.items.last.locator(".text")).to_have_text("It is.")
        await expect(row).not_to_have_class("unread")
        await window.button("New chat").click()
        await server.client.send(chat["id"], "And now?")
        await expect(row).to_have_class("failed")
        await server.client.retry(chat["id"])
        await expect(row).to_have_class("unread")
        await server.client.update_chat(chat["id"], title="Rain in Oslo")
        await expect(window.chats).to_contain_text("Rain in Oslo")

        await window.chats.click()
        await expect(window.items).to_have_count(5)
        await window.button("This chat").click()
        await page.get_by_role("menuitem", name="Share…").click()
        await window.button("Create a link").click()
        reader = await open_tab(page.context, await page.get_by_label("Link", exact=True).input_value())
        await expect(reader.items).to_have_count(5)
        await expect(reader.composer).to_have_count(0)
        await window.button("Revoke").click()
        await expect(reader.problem).to_contain_text("This link does not exist")
        assert [text for text in reader.complaints if "404" not in text] == []
        await reader.page.close()
        await page.keyboard.press("Escape")

        await window.button("This chat").click()
        async with page.expect_download() as download:
            await page.get_by_role("menuitem", name="Export as JSON").click()
        content = (await (await download.value).path()).read_bytes()
        await server.client.delete_chat(chat["id"])
        await expect(window.chats).to_have_count(0)
        await expect(window.problem).to_have_text("Chat not found. It may have been deleted.")
        file: FilePayload = {"name": "chat.json", "mimeType": "application/json", "buffer": content}
        await page.get_by_label("Import a chat").set_input_files(file)
        await expect(window.items).to_have_count(5)
        await expect(page.locator("#title")).to_have_text("Rain in Oslo")
        assert [text for _, text in await window.read_items()] == [
            "Is it raining?",
            "It is.",
            "And now?",
            FAILED,
            "Well again.",
        ]


async def test_two_thousand_messages_are_scrolled_to_the_beginning(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server:
        chat = await RemoteLists(server.client).import_chat(make_export(MESSAGES))
        async with browse(browser, f"{server.url}/#{chat.id}") as window:
            await expect(window.items.last.locator(".text")).to_have_text(f"Message {MESSAGES - 1}")
            await window.page.wait_for_function(SCROLL_UP)
            shown = await window.items.locator(".text").all_text_contents()
            assert [text.strip() for text in shown] == [f"Message {at}" for at in range(MESSAGES)]
            await expect(window.items.first).to_be_in_viewport()
            await expect(window.button("Latest")).to_be_visible()  # and none of the earlier ones is new
            await window.page.get_by_label("Search chats").fill(f"Message {MESSAGES // 2}")
            await window.chats.filter(has_text=f"Message {MESSAGES // 2}").click()
            await expect(window.page.locator(".found .text")).to_have_text(f"Message {MESSAGES // 2}")
            await expect(window.page.locator(".found")).to_be_in_viewport()


async def test_one_of_three_hundred_chats_is_found(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server:
        for begin in range(0, CHATS, 20):
            await asyncio.gather(*(server.client.create_chat(title=f"Chat {at:03}") for at in range(begin, begin + 20)))
        async with browse(browser, server.url) as window:
            await expect(window.chats).to_have_count(50)
            await window.page.get_by_label("Search chats").fill("Chat 007")
            await expect(window.page.locator(".chat-list .name")).to_have_text(["Chat 007"])
            await window.page.get_by_label("Search chats").fill("")
            await expect(window.chats).to_have_count(50)
            await window.page.keyboard.press("Control+k")
            await window.page.get_by_label("Command or chat").fill("Chat 123")
            await window.page.get_by_role("option", name="Chat 123").click()
            await expect(window.page.locator("#title")).to_have_text("Chat 123")
