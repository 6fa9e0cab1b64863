"""What a user typed, changed or deleted on the page is so, whatever fails or comes late meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect
from tests.e2e.browsing import browse
from tests.e2e.pen import Pen
from tests.support.app_harness import serve_app
from tests.support.running_server import say
from yarl import URL

from indelible.api.inputs import DraftRequest
from indelible.client.client import RemoteLists
from indelible.testing import ScriptedModel

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]
FAILS = ("Failed to load resource",)
NOTE: Any = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"It rains."}
AT = "2026-01-01T11:00:00Z"


def write_messages(*blocks: list[dict[str, Any]], roles: str = "ua") -> list[dict[str, Any]]:
    """Messages in a row, of the user and the assistant in turn; `roles` has the first letters of others."""
    names = {"u": "user", "a": "assistant", "t": "tool"}
    return [
        {
            "id": f"m{at}",
            "parent_id": f"m{at - 1}" if at else None,
            "role": names[roles[at] if at < len(roles) else roles[at % 2]],
            "blocks": content,
            "created_at": AT,
        }
        for at, content in enumerate(blocks)
    ]


async def import_chat(client: Any, messages: list[dict[str, Any]]) -> str:
    unset = dict.fromkeys(("model", "system", "parameters", "tools"))
    chat: dict[str, Any] = {
        "format": "indelible.chat",
        "version": 1,
        "exported_at": AT,
        "created_at": AT,
        "labels": [],
        **unset,
    }
    content = {**chat, "title": "Imported", "head": messages[-1]["id"], "messages": messages}
    return (await RemoteLists(client).import_chat(json.dumps(content).encode())).id


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


async def fail(page: Page, pattern: str, method: str) -> None:
    """Let no request of this kind through."""

    async def answer(route: Route) -> None:
        await (route.abort() if route.request.method == method else route.continue_())

    await page.route(pattern, answer)


async def hold(page: Page, pattern: str, method: str) -> asyncio.Event:
    """Let requests of this kind wait for the event."""
    go = asyncio.Event()

    async def answer(route: Route) -> None:
        if route.request.method == method:
            await go.wait()
        await route.continue_()

    await page.route(pattern, answer)
    return go


async def test_the_page_works_over_plain_http_from_another_machine(browser: Browser, database: str) -> None:
    """Where a browser has neither `crypto.randomUUID` nor locks nor a clipboard."""
    async with (
        serve_app(database, ScriptedModel([say("Here.")]), hosts=["chat.test"]) as server,
        browse(browser, f"http://chat.test:{URL(server.url).port}/") as window,
    ):
        assert await window.page.evaluate("[isSecureContext, typeof crypto.randomUUID]") == [False, "undefined"]
        await window.send("Are you there?")
        await expect(window.items.last.locator(".text")).to_have_text("Here.")
        await expect(window.chats).to_have_count(1)
        await window.items.last.hover()
        await window.items.last.get_by_label("Copy reply", exact=True).click()
        await window.composer.focus()
        await window.page.keyboard.press("Control+v")
        await expect(window.composer).to_have_value("Here.")


async def test_words_typed_while_the_first_message_is_on_its_way_stay(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("One.")])) as server,
        browse(browser, server.url) as window,
    ):
        go = await hold(window.page, "**/api/v1/chats", "POST")
        await expect(window.page.get_by_label("Model: scripted")).to_be_visible()
        await window.send("First")
        await window.composer.fill("and a second thought")
        go.set()
        await expect(window.items.last.locator(".text")).to_have_text("One.")
        await expect(window.composer).to_have_value("and a second thought")
        await window.button("New chat").click()
        await expect(window.items).to_have_count(0)
        await expect(window.composer).to_have_value("")


async def test_an_edited_message_that_cannot_be_sent_stays_in_its_editor(browser: Browser, database: str) -> None:
    model = ScriptedModel([say("One."), say("Two.")])
    async with serve_app(database, model) as server, browse(browser, server.url, tolerates=FAILS) as window:
        page = window.page
        await window.send("First")
        await expect(window.items.last.locator(".text")).to_have_text("One.")
        await expect(window.live).to_have_count(0)
        await fail(page, "**/edit", "POST")
        await window.items.first.hover()
        await window.button("Edit message").click()
        editor = page.get_by_role("textbox", name="Edit message")
        await editor.fill("Other words")
        await page.keyboard.press("Enter")
        await window.wait_for_toast("The server is unreachable.")
        await expect(editor).to_have_value("Other words")
        await page.unroute_all()
        await editor.press("Enter")
        await expect(window.items.last.locator(".text")).to_have_text("Two.")


async def test_editing_a_message_that_waits_keeps_its_lines_and_files(browser: Browser, database: str) -> None:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream, say("A note.")])) as server,
        browse(browser, server.url, tolerates=FAILS) as window,
    ):
        page = window.page
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        await page.get_by_label("Attach files").set_input_files(NOTE)
        await expect(page.locator("#composer .files li.ready")).to_have_count(1)
        await window.send("line one\nline two")
        await expect(window.queue).to_contain_text("1 of 1")
        await window.queue.get_by_label("Edit queued message").click()
        await window.queue.get_by_role("textbox").press("End")
        await window.queue.get_by_role("textbox").press_sequentially("!")
        async with page.expect_response("**/queue/*"):
            await page.keyboard.press("Enter")
        (queued,) = (await server.client.get_chat(window.chat_id))["queue"]
        assert [block["type"] for block in queued["blocks"]] == ["text", "file"]
        assert queued["blocks"][0]["text"] in {"line one\nline two!", "line one!\nline two"}
        pen.finish()
        await expect(window.items.last.locator(".text")).to_have_text("A note.")


async def test_editing_a_message_that_was_not_sent_keeps_its_files(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("A note.")])) as server,
        browse(browser, server.url, tolerates=FAILS) as window,
    ):
        page = window.page
        await page.get_by_label("Attach files").set_input_files(NOTE)
        await expect(page.locator("#composer .files li.ready")).to_have_count(1)
        await fail(page, "**/api/v1/chats", "POST")
        await window.send("What is this?")
        await expect(window.items.last).to_contain_text("Not sent")
        await window.button("Edit").click()
        await expect(window.composer).to_have_value("What is this?")
        await expect(page.locator("#composer .files li")).to_have_count(1)
        await page.unroute_all()
        await window.composer.press("Enter")
        await expect(window.items.last.locator(".text")).to_have_text("A note.")
        (sent, _) = await server.client.read_all_messages(window.chat_id)
        assert [block["type"] for block in sent["blocks"]] == ["text", "file"]


async def test_a_system_prompt_or_title_that_cannot_be_loaded_or_saved_is_not_changed(
    browser: Browser, database: str
) -> None:
    async with (
        serve_app(database, worker=False) as server,
        browse(browser, server.url, tolerates=FAILS) as window,
    ):
        page = window.page
        chat = await server.client.create_chat(title="Sea", system="You are a pirate.")
        await page.goto(f"{server.url}/#{chat['id']}")
        await expect(page.locator("#title")).to_have_text("Sea")
        await fail(page, f"**/api/v1/chats/{chat['id']}", "GET")
        await window.button("This chat").click()
        await page.get_by_role("menuitem", name="System prompt").click()
        await window.wait_for_toast("The server is unreachable.", in_dialog=True)
        await expect(window.button("Save")).to_be_disabled()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)

        await fail(page, f"**/api/v1/chats/{chat['id']}", "PATCH")
        await window.button("This chat").click()
        await page.get_by_role("menuitem", name="Rename").click()
        await page.get_by_label("Title").fill("Land")
        async with page.expect_event("requestfailed"):
            await page.keyboard.press("Enter")
        await expect(page.locator("#title")).to_have_text("Sea")
        await expect(page.locator(".chat-list .name")).to_have_text(["Sea"])
        assert (await server.client.get_chat(chat["id"]))["system"] == "You are a pirate."


async def test_a_chat_that_is_opened_is_read(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("One.")])) as server,
        browse(browser, server.url) as window,
    ):
        chat = await server.client.create_chat("Hello", title="A")
        await expect(window.page.locator(".chat-list li")).to_have_class("unread")
        async with window.page.expect_response(f"**/chats/{chat['id']}/read"):
            await window.chats.click()
        await expect(window.page.locator(".chat-list li")).not_to_have_class("unread")
        assert (await server.client.list_chats())["items"][0]["unread"] is False


async def test_no_message_is_missing_after_going_back_to_a_version(browser: Browser, database: str) -> None:
    async with serve_app(database, ScriptedModel([say("Edited reply.")])) as server:
        chat_id = await import_chat(server.client, write_messages(*[text(f"Message {at}") for at in range(300)]))
        async with browse(browser, f"{server.url}/#{chat_id}") as window:
            page, texts = window.page, window.items.locator(".text")
            await expect(window.items.last.locator(".text")).to_have_text("Message 299")
            above = window.items.filter(has=page.get_by_text("Message 200", exact=True))
            while not await above.count():
                async with page.expect_response("**/messages?*"):
                    await page.evaluate("document.querySelector('#scroll').scrollTop = 0")
                await expect(page.locator("#scroll > .top")).not_to_contain_text("Loading")
            await above.hover()
            await above.get_by_label("Edit message").click()
            await page.get_by_role("textbox", name="Edit message").fill("Edited question")
            await page.keyboard.press("Enter")
            await expect(window.items.last.locator(".text")).to_have_text("Edited reply.")
            await window.items.nth(-2).hover()
            await window.items.nth(-2).get_by_label("Previous version").click()
            await expect(window.items.last.locator(".text")).to_have_text("Message 299")
            beginning = page.get_by_text("Beginning of the chat")
            while not await beginning.count():
                await page.evaluate("document.querySelector('#scroll').scrollTop = 0")
                await page.evaluate("new Promise(requestAnimationFrame)")
            numbers = [int(shown.split()[1]) for shown in await texts.all_text_contents()]
            assert numbers == list(range(300))


async def test_a_hit_of_a_search_is_shown_or_reported_to_be_in_another_version(browser: Browser, database: str) -> None:
    async with serve_app(database, ScriptedModel([say("Platypus."), say("Second.")])) as server:
        call = [{"type": "tool_call", "id": "c1", "name": "look", "arguments": "{}"}]
        result = [{"type": "tool_result", "call_id": "c1", "name": "look", "output": "x"}]
        rest = [text(f"Message {at}") for at in range(4, 44)]
        long = write_messages(text("Zero"), call, result, text("It is marmalade."), *rest, roles="uata")
        await import_chat(server.client, long)
        async with browse(browser, server.url) as window:
            page = window.page
            await page.get_by_label("Search chats").fill("marmalade")
            await window.chats.filter(has_text="marmalade").click()
            await expect(page.locator(".found")).to_contain_text("It is marmalade.")
            await page.get_by_label("Search chats").fill("")
            await window.button("New chat").click()
            await window.send("A question")
            await expect(window.items.last.locator(".text")).to_have_text("Platypus.")
            await expect(window.live).to_have_count(0)
            await window.items.first.hover()
            await window.button("Edit message").click()
            await page.get_by_role("textbox", name="Edit message").fill("Another")
            await page.keyboard.press("Enter")
            await expect(window.items.last.locator(".text")).to_have_text("Second.")
            await window.button("New chat").click()
            await page.get_by_label("Search chats").fill("platypus")
            await window.chats.filter(has_text="platypus").click()
            await window.wait_for_toast("This message is in another version of the chat.")


async def test_a_deleted_chat_is_deleted_even_if_the_page_is_left_at_once(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        await server.client.create_chat(title="Secret")
        await window.page.reload()
        await window.chats.first.hover()
        await window.button("Chat actions").click()
        await window.page.get_by_role("menuitem", name="Delete").click()
        await expect(window.chats).to_have_count(0)
        await window.page.reload()
        await expect(window.page.get_by_text("No chats yet.")).to_be_visible()
        assert (await server.client.list_chats())["items"] == []


async def test_the_archive_can_be_searched_and_archiving_undone_for_any_chat(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        page = window.page
        old = await server.client.create_chat(title="Zebra, old")
        for at in range(60):
            await server.client.create_chat(title=f"Zebra {at:02}")
        await page.goto(f"{server.url}/#{old['id']}")
        await page.reload()
        await expect(page.locator("#title")).to_have_text("Zebra, old")
        await expect(window.chats).to_have_count(50)  # and it is not among them
        await page.get_by_label("Search chats").fill("Zebra")
        await expect(page.get_by_role("heading", name="Results")).to_be_visible()
        await page.evaluate("document.querySelector('.groups').scrollTo(0, 1e6)")
        await expect(window.chats).to_have_count(61)
        await page.get_by_label("Search chats").fill("")
        for expected in (False, True):
            await window.button("This chat").click()
            async with page.expect_response(lambda response: response.request.method == "PATCH"):
                await page.get_by_role("menuitem", name="Archive").click()
            if not expected:
                async with page.expect_response(lambda response: response.request.method == "PATCH"):
                    await window.button("Undo").click()
            assert (await server.client.get_chat(old["id"]))["archived"] is expected
        await expect(page.get_by_text("This chat is archived.")).to_be_visible()
        await page.keyboard.press("Control+k")
        await page.get_by_label("Command or chat").fill("this chat")
        await expect(page.get_by_role("option", name="Restore this chat")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await window.button("Account and settings").click()
        await page.get_by_role("menuitem", name="Archived chats").click()
        await expect(page.locator(".chat-list .name")).to_have_text(["Zebra, old"])
        await page.get_by_label("Search chats").fill("Zebra 07")
        await expect(page.get_by_text("Nothing found.")).to_be_visible()
        await page.get_by_label("Search chats").fill("Zebra")
        await expect(page.locator(".chat-list .name")).to_have_text(["Zebra, old"])
        async with page.expect_response(lambda response: response.request.method == "PATCH"):
            await window.button("Restore").click()
        await expect(page.get_by_text("This chat is archived.")).to_have_count(0)


async def test_a_list_that_comes_late_takes_nothing_back(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("Hi.")])) as server,
        browse(browser, server.url) as window,
    ):
        page, names = window.page, window.page.locator(".chat-list .name")
        chat = await server.client.create_chat(title="Old title")
        await page.reload()
        await expect(names).to_have_text(["Old title"])
        begun, go = asyncio.Event(), asyncio.Event()

        async def answer_late(route: Route) -> None:
            response = await route.fetch()
            begun.set()
            await go.wait()
            await route.fulfill(response=response)

        await page.route("**/chats?limit=50*", answer_late)
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await begun.wait()
        await server.client.update_chat(chat["id"], title="New title")
        await server.client.create_chat("Hello", title="Fresh")
        await expect(names).to_have_text(["Fresh", "New title"])
        async with page.expect_response("**/chats?limit=50*"):
            go.set()
        await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await expect(names).to_have_text(["Fresh", "New title"])


async def test_a_draft_from_another_device_is_gone_when_it_was_sent(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("One."), say("Two.")])) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("First")
        await expect(window.items.last.locator(".text")).to_have_text("One.")
        await RemoteLists(server.client).save_draft(window.chat_id, DraftRequest(text="from my phone"))
        await window.page.reload()
        await expect(window.composer).to_have_value("from my phone")
        async with window.page.expect_response("**/draft"):
            await window.composer.press("Enter")
        await expect(window.items.last.locator(".text")).to_have_text("Two.")
        assert (await RemoteLists(server.client).get_draft(window.chat_id)).text == ""


async def test_the_end_of_the_list_that_is_reached_while_it_is_read_again_is_loaded(
    browser: Browser, database: str
) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        page = window.page
        for at in range(60):
            await server.client.create_chat(title=f"Chat {at:02}")
        await page.reload()
        await expect(window.chats).to_have_count(50)
        async with page.expect_response("**/chats?limit=50*"):
            await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # the list is read again
        go = await hold(page, "**/chats?limit=50*", "GET")
        async with page.expect_request("**/chats?limit=50*"):
            await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await page.evaluate("document.querySelector('.groups').scrollTo(0, 1e6)")
        await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        go.set()
        await expect(window.chats).to_have_count(60)
