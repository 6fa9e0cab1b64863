"""Nothing that was typed is lost: not to another tab, and not with a dialog or an editor that was closed."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, Route, expect
from tests.e2e.browsing import browse, open_tab
from tests.e2e.pen import Pen
from tests.e2e.test_login import ask
from tests.support.app_harness import serve_app
from tests.support.running_server import say
from yarl import URL

from indelible.content import Part
from indelible.testing import ScriptedModel, parts

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

COUNT_TABS = """async (count) => {
    const {held} = await navigator.locks.query();
    return held.filter(({name}) => name.startsWith("indelible:tab:")).length === count;
}"""
ANY_TIME_TO_ANSWER = "const set = setTimeout; window.setTimeout = (act, ms) => (ms === 1500 ? 0 : set(act, ms));"
"""For the other tabs (core/tab.js): a slow machine is not taken for a closed tab."""


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


async def test_over_plain_http_too_a_tab_leaves_the_words_of_an_open_one_alone(browser: Browser, database: str) -> None:
    """There a browser has no locks, and tabs ask each other."""
    async with serve_app(database, worker=False, hosts=["chat.test"]) as server:
        url = f"http://chat.test:{URL(server.url).port}/"
        async with browse(browser, url) as first:
            assert await first.page.evaluate("[isSecureContext, typeof navigator.locks]") == [False, "undefined"]
            await first.composer.fill("In the first tab")
            second = await open_tab(first.page.context, "about:blank")
            await second.page.add_init_script(ANY_TIME_TO_ANSWER)
            await second.page.goto(url)
            await second.composer.fill("In the second tab")
            for tab, words in ((first, "In the first tab"), (second, "In the second tab")):
                await tab.page.reload()
                await expect(tab.composer).to_have_value(words)


async def test_a_dialog_has_the_focus_in_its_field_and_loses_no_words(browser: Browser, database: str) -> None:
    """By Escape, a click beside it, its cross or a reload; and what is discarded by its button can be had again."""
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        page, field = window.page, window.page.get_by_role("textbox", name="System prompt")
        dialog = page.get_by_role("dialog", name="System prompt")
        chat = await server.client.create_chat(title="Sea")
        await page.goto(f"{server.url}/#{chat['id']}")
        await expect(page.locator("#title")).to_have_text("Sea")

        async def open_dialog() -> None:
            await window.button("This chat").click()
            await page.get_by_role("menuitem", name="System prompt").click()

        await window.keep_toasts()
        await open_dialog()
        await expect(field).to_be_focused()
        await expect(window.button("Save")).to_be_enabled()
        await page.keyboard.type("You are a pirate.")
        await expect(field).to_have_value("You are a pirate.")
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await window.button("Undo").last.click()
        await expect(field).to_be_focused()
        await page.keyboard.type("You are a pirate. ")
        await page.mouse.click(5, 5)  # beside it
        await expect(dialog).to_have_count(0)
        await open_dialog()
        await expect(field).to_have_value("You are a pirate.You are a pirate. ")
        await field.fill("You are a captain.")
        await page.reload()
        await window.keep_toasts()
        await open_dialog()
        await expect(field).to_have_value("You are a captain.")
        await window.button("Discard changes").click()
        await expect(field).to_have_value("")
        await window.button("Undo").last.click()
        await expect(field).to_have_value("You are a captain.")
        await dialog.get_by_role("button", name="Close").click()
        await open_dialog()
        await window.button("Save").click()
        await window.wait_for_toast("System prompt saved.")
        assert (await server.client.get_chat(chat["id"]))["system"] == "You are a captain."
        await open_dialog()
        await expect(field).to_have_value("You are a captain.")
        await expect(window.button("Discard changes")).to_have_count(0)


@pytest.mark.parametrize(("system", "kept"), [("Be brief. ", "Be brief. As a pirate."), (None, "As a pirate.")])
async def test_what_is_typed_before_the_system_prompt_has_come_stands_behind_it(
    browser: Browser, database: str, system: str | None, kept: str
) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        page, field = window.page, window.page.get_by_role("textbox", name="System prompt")
        chat = await server.client.create_chat(title="Sea", system=system)
        await page.goto(f"{server.url}/#{chat['id']}")
        await expect(page.locator("#title")).to_have_text("Sea")
        may_come = asyncio.Event()

        async def answer_late(route: Route) -> None:
            await may_come.wait()
            await route.continue_()

        await page.route(f"**/api/v1/chats/{chat['id']}", answer_late)
        await window.button("This chat").click()
        await page.get_by_role("menuitem", name="System prompt").click()
        await expect(field).to_be_focused()
        await page.keyboard.type("As a")
        may_come.set()
        await expect(window.button("Save")).to_be_enabled()
        await page.keyboard.type(" pirate.")
        await expect(field).to_have_value(kept)


async def test_a_title_that_was_not_saved_is_there_when_its_dialog_opens_again(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        page, field = window.page, window.page.get_by_label("Title")
        chat = await server.client.create_chat(title="Sea")
        await page.goto(f"{server.url}/#{chat['id']}")
        await expect(page.locator("#title")).to_have_text("Sea")

        async def open_dialog() -> None:
            await window.button("This chat").click()
            await page.get_by_role("menuitem", name="Rename").click()

        await open_dialog()
        await expect(field).to_be_focused()
        await field.fill("Land")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(page.locator("#title")).to_have_text("Sea")
        await open_dialog()
        await expect(field).to_have_value("Land")
        await page.keyboard.press("Enter")
        await expect(page.locator("#title")).to_have_text("Land")


async def test_the_system_prompt_of_the_next_chat_waits_for_it(browser: Browser, database: str) -> None:
    """While another chat is looked at, over a reload, and if the first message is refused and edited."""
    model = ScriptedModel([say("Aye.")])
    async with (
        serve_app(database, model, message_max_bytes=2000) as server,
        browse(browser, server.url, tolerates=("413",)) as window,
    ):
        page = window.page
        await server.client.create_chat(title="Sea")
        await page.keyboard.press("Control+k")
        await page.get_by_role("option", name="System prompt").click()
        await page.get_by_role("textbox", name="System prompt").fill("You are a pirate.")
        await window.button("Save").click()
        await window.chats.click()
        await expect(page.locator("#title")).to_have_text("Sea")
        await window.button("New chat").click()
        await page.reload()
        await expect(page.locator(".empty")).to_contain_text("with a system prompt")
        await window.send("x" * 3000)
        await expect(window.problem).to_contain_text("Message too long")
        await window.button("Edit").click()
        await expect(window.composer).to_have_value("x" * 3000)
        await window.send("Ready?")
        await expect(window.items.last.locator(".text")).to_have_text("Aye.")
        assert (await server.client.get_chat(window.chat_id))["system"] == "You are a pirate."
        await window.button("New chat").click()
        await expect(page.locator(".empty")).to_be_visible()
        await expect(page.locator(".empty")).not_to_contain_text("with a system prompt")


async def test_an_edit_that_is_cancelled_can_be_undone(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, ScriptedModel([say("One."), say("Two.")])) as server,
        browse(browser, server.url) as window,
    ):
        page, editor = window.page, window.page.get_by_role("textbox", name="Edit message")
        await window.keep_toasts()
        await window.send("First")
        await expect(window.button("Regenerate")).to_be_enabled()

        async def begin() -> None:
            await window.items.first.hover()
            await window.button("Edit message").click()
            await expect(editor).to_be_focused()

        await begin()
        await page.keyboard.press("Escape")
        await expect(page.locator(".toast")).to_have_count(0)  # nothing was changed
        await begin()
        await page.keyboard.type(", and better")
        await page.keyboard.press("Escape")
        await expect(editor).to_have_count(0)
        await window.button("Undo").last.click()
        await expect(editor).to_have_value("First, and better")
        await expect(editor).to_be_focused()
        await page.reload()
        await expect(window.items).to_have_count(2)
        await begin()
        await expect(editor).to_have_value("First, and better")
        await page.keyboard.press("Enter")
        await expect(window.items.last.locator(".text")).to_have_text("Two.")
        await expect(window.items.first.locator(".text")).to_have_text("First, and better")


async def test_what_is_removed_from_the_queue_or_not_changed_there_comes_back_with_undo(
    browser: Browser, database: str
) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        page, editor = window.page, window.queue.get_by_role("textbox")
        await window.keep_toasts()
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        for words in ("One", "Two", "Three"):
            await window.send(words)
            await expect(window.queue.last).to_contain_text(f": {words}")
        await window.queue.first.get_by_role("button", name="Remove from queue").click()
        await expect(window.queue).to_have_count(2)
        await window.button("Undo").last.click()
        await expect(window.queue.locator("span")).to_have_text(
            ["Queued · 1 of 3: One", "Queued · 2 of 3: Two", "Queued · 3 of 3: Three"]
        )
        await window.queue.nth(1).get_by_label("Edit queued message").click()
        await expect(editor).to_be_focused()
        await page.keyboard.type(", and better")
        await page.keyboard.press("Escape")
        await expect(window.composer).to_be_focused()
        await window.button("Undo").last.click()
        await expect(editor).to_have_value("Two, and better")
        async with page.expect_response("**/queue/*"):
            await editor.press("Enter")
        await expect(window.queue.nth(1)).to_contain_text("Two, and better")


async def test_a_result_that_is_being_written_is_there_again_after_another_chat(
    browser: Browser, database: str
) -> None:
    call: list[Part] = [parts.tool_call("1", "ask", "{}"), parts.finish("tool_calls")]
    tools = [{"name": "ask", "description": "Ask the user.", "input_schema": {"type": "object"}}]
    async with serve_app(database, ScriptedModel([call])) as server, browse(browser, server.url) as window:
        chat = await server.client.create_chat(tools=tools)
        await window.page.goto(f"{server.url}/#{chat['id']}")
        result = window.page.get_by_label("Result of ask")
        await window.send("Ask me.")
        await result.fill("Half a res")
        await window.button("New chat").click()
        await expect(result).to_have_count(0)
        await window.chats.first.click()
        await expect(result).to_have_value("Half a res")


async def test_a_token_that_was_typed_comes_back_with_undo_and_is_kept_nowhere(browser: Browser, database: str) -> None:
    token = "the-first-admins-token"  # noqa: S105  (nobody's)
    async with (
        serve_app(database, worker=False, token=token) as server,
        browse(browser, f"{server.url}/login#token={token}", tolerates=("401", "EventSource")) as window,
    ):
        page, field = window.page, window.page.get_by_label("Token")
        await expect(window.composer).to_be_focused()
        await window.keep_toasts()
        assert (await ask(page, "DELETE", "/api/v1/session"))[0] == 204
        await window.button("Log in").click()
        await expect(field).to_be_focused()
        await page.keyboard.type("half a tok")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert "half a tok" not in str(await page.evaluate("[{...localStorage}, {...sessionStorage}]"))
        await window.button("Undo").last.click()
        await expect(field).to_have_value("half a tok")
        await expect(field).to_be_focused()
