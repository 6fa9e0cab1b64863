"""Logging in with a real browser: by the link, by a token; two users; and a link that reads and cannot write."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from tests.e2e.browsing import NARROW, Window, browse
from tests.e2e.pen import Pen
from tests.server.test_access_matrix import make_picture
from tests.support.app_harness import serve_app
from tests.support.json_client import JsonClient
from tests.support.running_server import RunningServer, say, wait_until_idle

from indelible.api.inputs import NewMessage
from indelible.content import Text
from indelible.server.login import offer_login
from indelible.service.files import Upload
from indelible.testing import ScriptedModel

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)
UNAUTHORIZED = ("401", "404", "EventSource")
ASK = """async ([method, path, body]) => {
  const response = await fetch(path, { method, headers: { "Content-Type": "application/json" }, body });
  return [response.status, await response.text()];
}"""


# A message of this user that the server refused, as an earlier visit has left it.
LEAVE_UNSENT = """(user) => localStorage.setItem("indelible:outbox:1", JSON.stringify({
  key: "1", chat: "new:1", text: "To nobody", body: { text: "To nobody" }, at: 1, state: "refused", error: "No.", user,
}))"""


async def log_out(window: Window) -> None:
    await window.button("Account and settings").click()
    await window.page.get_by_role("menuitem", name="Log out").click()
    await expect(window.page.get_by_label("Token")).to_be_focused()


async def log_in(window: Window, token: str) -> None:
    await window.page.get_by_label("Token").fill(token)
    await window.page.keyboard.press("Enter")
    await expect(window.page.get_by_label("Model: scripted")).to_be_visible()


async def ask(page: Page, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """What a script of the page gets."""
    status, text = await page.evaluate(ASK, [method, path, body])
    return int(status), str(text)


async def add_user(server: RunningServer, name: str) -> str:
    user = await server.app.accounts.add_user(name)
    return (await server.app.accounts.create_token(user.id, label="", scopes=["read", "write", "admin"]))[1]


async def test_a_browser_logs_in_by_the_link_or_a_token_and_out(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False, token=TOKEN) as server:
        link = server.url + await offer_login(server.app.accounts, clock=server.app.clock)
        async with browse(browser, link) as window:
            await expect(window.page).to_have_url(f"{server.url}/")
            await expect(window.page.get_by_label("Model: scripted")).to_be_visible()  # a logout cuts what is loading
            assert (await ask(window.page, "GET", "/api/v1/session"))[0] == 200
            assert await window.page.evaluate("document.cookie") == ""
            assert (await ask(window.page, "DELETE", "/api/v1/session"))[0] == 204

        async with browse(browser, f"{server.url}/docs", tolerates=UNAUTHORIZED, size=NARROW) as window:
            page = window.page
            await expect(page).to_have_url(f"{server.url}/login?next=/docs")
            await page.get_by_label("Token").fill("wrong")
            await page.keyboard.press("Enter")
            await expect(window.problem).to_contain_text("This token is not valid")
            await page.get_by_label("Token").fill(TOKEN)
            await page.keyboard.press("Enter")
            await expect(page).to_have_url(f"{server.url}/docs")
            await page.go_back()
        async with browse(browser, f"{server.url}/login?next=//evil.example#token={TOKEN}") as window:
            await expect(window.page).to_have_url(f"{server.url}/")


async def test_a_session_that_ends_during_a_reply_asks_for_a_login_and_the_page_goes_on_without_a_gap(
    browser: Browser, database: str
) -> None:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream, say("Here.")]), token=TOKEN) as server,
        browse(browser, f"{server.url}/login#token={TOKEN}", tolerates=UNAUTHORIZED) as window,
    ):
        page = window.page
        await window.send("Tell me of the rain.")
        pen.write("It rains ")
        await expect(window.live).to_have_text("It rains ")
        await window.composer.fill("Are you")
        assert (await ask(page, "DELETE", "/api/v1/session"))[0] == 204
        await expect(window.problem).to_contain_text("Your session has ended.")
        await expect(window.status).to_have_text("Logged out")
        pen.write("in Bergen ")
        await window.composer.press_sequentially(" there?")
        await window.button("Log in").click()
        await page.get_by_label("Token").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text("This token is not valid")
        await page.get_by_label("Token").fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(window.live).to_have_text("It rains in Bergen ")
        await expect(window.problem).to_have_count(0)
        pen.write("today.")
        pen.finish()
        await expect(window.live).to_have_count(0)
        await expect(window.composer).to_have_value("Are you there?")
        await window.composer.press("Enter")
        await expect(window.items).to_have_count(4)
        await expect(window.items.last.locator(".text")).to_have_text("Here.")
        assert [text for _, text in await window.read_items()] == [
            "Tell me of the rain.",
            "It rains in Bergen today.",
            "Are you there?",
            "Here.",
        ]


async def test_a_second_user_of_the_browser_sees_nothing_of_the_first_who_finds_all_again(
    browser: Browser, database: str
) -> None:
    async with serve_app(database, worker=False, token=TOKEN) as server:
        ada, grace = await add_user(server, "ada"), await add_user(server, "grace")
        async with JsonClient(server.url, token=ada) as client:
            hers: dict[str, Any] = await client.create_chat(title="Rain in Oslo")
        async with browse(browser, f"{server.url}/login#token={ada}", tolerates=UNAUTHORIZED) as window:
            page = window.page
            await expect(window.chats).to_have_text("Rain in Oslo")
            await page.evaluate(LEAVE_UNSENT, "ada")
            await window.composer.fill("Dear diary")
            await log_out(window)
            await log_in(window, grace)
            await expect(window.composer).to_have_value("")
            await expect(window.items).to_have_count(0)
            assert '"items":[]' in (await ask(page, "GET", "/api/v1/chats"))[1]
            assert (await ask(page, "GET", f"/api/v1/chats/{hers['id']}"))[0] == 404
            content = await page.content()
            assert [text for text in ("Rain in Oslo", "Dear diary", "To nobody") if text in content] == []
            await window.composer.fill("Mine")
            await log_out(window)
            await log_in(window, ada)
            await expect(window.composer).to_have_value("Dear diary")
            await expect(window.items).to_contain_text("To nobody")
            assert "Mine" not in await page.content()


async def test_a_shared_link_reads_and_cannot_write(browser: Browser, database: str) -> None:
    model = ScriptedModel([say("It is **raining** in Bergen."), say("And in Oslo.")])
    async with serve_app(database, model, token=TOKEN, client_token=TOKEN) as server:
        chat = await server.client.create_chat("Tell me of the rain.", title="Rain")
        await wait_until_idle(server.client, chat["id"])
        link, key = await server.app.shares.share_by_link(chat["id"], owner_id=server.app.owner_id)
        async with browse(browser, f"{server.url}/shared/{key}", tolerates=UNAUTHORIZED) as window:
            page = window.page
            await expect(page.locator("#title")).to_have_text("Rain")
            await expect(window.items.locator("strong")).to_have_text("raining")
            service = server.app.service_of(server.app.owner_id)
            file = await service.files.upload(Upload(make_picture(), "map.png").open_chunks, name="map.png")
            await service.send(chat["id"], NewMessage(content=[Text("And?"), file.to_block()]))
            await expect(window.items.last.locator(".text")).to_have_text("And in Oslo.")
            await expect(window.items.locator("a.file img")).not_to_have_js_property("naturalWidth", 0)
            assert await window.items.get_by_role("button").evaluate_all("all => all.map((one) => one.title)") == [
                "Copy message",
                "Copy reply",
                "Copy message",
                "Copy reply",
            ]
            for method, path in (
                ("POST", f"/api/v1/chats/{chat['id']}/messages"),
                ("GET", f"/api/v1/chats/{chat['id']}"),
            ):
                assert (await ask(page, method, path, '{"text": "Hi"}' if method == "POST" else None))[0] == 401
            assert await page.get_by_role("textbox").count() == 0
            await server.app.shares.delete_share(chat["id"], link.id, owner_id=server.app.owner_id)
            await expect(page.get_by_role("alert")).to_contain_text("This link does not exist")
