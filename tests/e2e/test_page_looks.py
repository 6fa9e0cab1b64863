"""What is shown can be read: tables, tasks, thinking and code; and what the page says of itself is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, FloatRect, Locator, expect
from tests.e2e.browsing import NARROW, Window, browse, open_tab
from tests.e2e.pen import Pen
from tests.e2e.test_login import ask
from tests.server.test_access_matrix import make_picture
from tests.support.app_harness import serve_app
from tests.support.process_harness import ProcessHarness, choose_port
from tests.support.running_server import say

from indelible.content import File, Part
from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel, parts
from indelible.tools.tool import tool

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

TABLE = """| Type | Description | Default | Unit |
|---|---|---|---|
| integer | How many seconds a reader may be silent before its place is given away | `INDELIBLE_A_LONG_NAME` | seconds |
"""
TASKS = "- [ ] first\n- [x] second\n\nAnd:\n\n1. [ ] third\n\n   more of it\n2. [x] fourth\n"
CODE = "# A `code`\n\nInline `code`.\n\n| `code` |\n|---|\n| `code` |\n\n```python\ncode = 1\n```\n"

BROKEN_WORDS = """(table) => {
    const broken = [];
    const walker = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        for (const {0: word, index} of node.data.matchAll(/[^\\s-]+/g)) {
            const range = document.createRange();
            range.setStart(node, index);
            range.setEnd(node, index + word.length);
            const lines = new Set([...range.getClientRects()].map(({top}) => Math.round(top)));
            if (lines.size > 1) broken.push(word);
        }
    }
    return broken;
}"""


async def find_box(thing: Locator) -> FloatRect:
    await expect(thing).to_be_visible()
    box = await thing.bounding_box()
    assert box
    return box


@pytest.mark.parametrize("phone", [False, True])
async def test_no_word_of_a_table_is_broken_and_the_table_scrolls(
    browser: Browser, database: str, *, phone: bool
) -> None:
    async with (
        serve_app(database, ScriptedModel([say(TABLE)])) as server,
        browse(browser, server.url, size=NARROW if phone else (800, 700)) as window,
    ):
        await window.send("Show me a table.")
        table = window.page.locator(".md .table")
        await expect(window.button("Regenerate")).to_be_enabled()
        assert await table.evaluate(BROKEN_WORDS) == []
        assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if phone:
            assert await table.evaluate("node => node.scrollWidth > node.clientWidth")
            sentence = await find_box(table.locator("td").nth(1))
            assert sentence["width"] > 200, "it is not a column of single words"


async def test_tasks_are_boxes_whatever_their_list(browser: Browser, database: str) -> None:
    async with serve_app(database, ScriptedModel([say(TASKS)])) as server, browse(browser, server.url) as window:
        await window.send("What is to be done?")
        boxes = window.items.last.get_by_role("checkbox")
        await expect(boxes).to_have_count(4)
        assert [await box.is_checked() for box in await boxes.all()] == [False, True, False, True]
        assert "[" not in await window.items.last.locator(".text").inner_text()
        left = {round((await find_box(box))["x"]) for box in (await boxes.all())[:2]}
        assert len(left) == 1


async def test_thinking_is_markdown_and_stays_open_while_it_grows(browser: Browser, database: str) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("Think.")
        pen.put(parts.reasoning_start("r"), parts.reasoning_delta("r", "I **must**"))
        await window.page.locator(".thinking summary").click()
        thought = window.page.locator(".thinking .md")
        await expect(thought.locator("strong")).to_have_text("must")
        drawn = await thought.element_handle()
        pen.put(parts.reasoning_delta("r", " look:\n\n1. one\n2. two\n"), parts.reasoning_end("r"))
        pen.write("Done.")
        await expect(thought.locator("ol li")).to_have_text(["one", "two"])
        pen.finish()
        await expect(window.live).to_have_count(0)
        assert await drawn.evaluate("node => node.isConnected && node.parentElement.open")
        assert (await window.read_items())[-1] == ("assistant", "Done.")


async def test_code_is_large_enough_to_read_wherever_it_stands(browser: Browser, database: str) -> None:
    thinking = [parts.reasoning_delta("r", "`code`\n\n```\ncode\n```")]
    model = ScriptedModel([[*thinking, *say(CODE)]])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        await window.send("Write some code.")
        await expect(window.button("Regenerate")).to_be_enabled()
        sizes = await window.page.locator("#messages code:not(h3 code)").evaluate_all(
            "all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
        )
        assert len(sizes) == 6
        assert all(13.5 <= size <= 14 for size in sizes), sizes


async def test_at_its_length_limit_a_reply_can_be_continued_and_at_its_last_step_retried(
    browser: Browser, database: str
) -> None:
    @tool
    async def look() -> str:
        """Looks."""
        return "rain"

    half: list[Part] = [*say("It is rai")[:-1], parts.finish("length")]  # type: ignore[list-item]
    call: list[Part] = [parts.tool_call("1", "look", "{}"), parts.finish("tool_calls")]
    thought: list[Part] = [parts.reasoning_delta("r", "Hm, l"), parts.finish("length")]
    model = ScriptedModel([half, say("ning."), call, say("It rains."), thought, say("It does.")])
    async with (
        serve_app(database, model, tools=[look], max_steps=1) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("How is the weather?")
        await expect(window.items.last).to_contain_text("The model's output limit was reached · saved")
        await expect(window.items).to_have_count(2)  # it is said once
        await window.button("Continue").click()
        await expect(window.items.last.locator(".text")).to_have_text("It is raining.")
        await window.send("Look again.")
        await expect(window.items.last).to_contain_text("Retry to continue.")
        await window.button("Retry").click()
        await expect(window.items.last.locator(".text")).to_have_text("It rains.")
        await window.send("Are you sure?")
        await expect(window.items.last).to_contain_text("without any words yet, Retry asks again.")
        await window.button("Retry").click()
        await expect(window.items.last.locator(".text")).to_have_text("It does.")


async def test_a_message_that_steers_says_so_and_is_not_counted_among_those_that_wait(
    browser: Browser, database: str
) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("Begin")
        pen.write("Some")
        await expect(window.live).to_have_text("Some")
        await window.send("Later")
        await expect(window.queue).to_have_count(1)
        await window.composer.fill("Shorter, please")
        await window.composer.press("Control+Enter")
        await expect(window.queue.locator("span")).to_have_text(
            ["Joins the running reply: Shorter, please", "Queued · 1 of 1: Later"]
        )
        await expect(window.queue.get_by_label("Move up")).to_have_count(0)


async def test_the_picture_of_a_tool_is_in_sight_though_its_card_is_folded(browser: Browser, database: str) -> None:
    @tool
    async def draw() -> File:
        """Draws."""
        return File(media_type="image/png", data=make_picture(), name="map.png")

    call: list[Part] = [parts.tool_call("1", "draw", "{}"), parts.finish("tool_calls")]
    async with (
        serve_app(database, ScriptedModel([call, say("Here it is.")]), tools=[draw]) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("Draw a map.")
        await expect(window.items.last.locator(".text")).to_have_text("Here it is.")
        await expect(window.page.locator(".tool")).not_to_have_attribute("open", "")
        picture = window.page.get_by_role("img", name="map.png")
        await expect(picture).to_be_visible()
        await expect(picture).not_to_have_js_property("naturalWidth", 0)


NOTHING_SELDOM = "const every = setInterval; window.setInterval = (act, ms) => (ms > 10_000 ? 0 : every(act, ms));"
"""What the page does every half a minute is too late to say that the server has gone."""


async def find_dot(window: Window) -> tuple[str, str]:
    dot = window.page.locator("#bar .dot")
    return str(await dot.get_attribute("class")), str(await dot.get_attribute("title"))


async def test_the_dot_is_not_green_while_the_server_is_away_on_the_page_of_a_new_chat(
    browser: Browser, database: str, tmp_path: Path
) -> None:
    async with ProcessHarness(database, tmp_path).opened() as processes:
        server = await processes.start_server(port=choose_port())
        async with browse(browser, server.url, tolerates=("net::ERR_",)) as window:
            await expect(window.page.locator("#bar .dot")).to_have_class("dot ok")
            await server.kill()
            await expect(window.status).to_have_text("Reconnecting…")
            await expect(window.page.locator("#bar .dot")).to_have_class("dot away")
            await processes.start_server(port=server.port)
            await expect(window.status).to_have_text("")
            await expect(window.page.locator("#bar .dot")).to_have_class("dot ok")


async def test_the_dot_is_not_green_while_the_server_is_away_over_plain_http_where_a_new_chat_has_no_feed(
    browser: Browser, database: str, tmp_path: Path
) -> None:
    async with ProcessHarness(database, tmp_path).opened() as processes:
        server = await processes.start_server(port=choose_port(), hosts=["chat.test"])
        url = f"http://chat.test:{server.port}/"
        async with browse(browser, url, tolerates=("net::ERR_",)) as first:
            tab = await open_tab(first.page.context, "about:blank")
            await tab.page.add_init_script(NOTHING_SELDOM)
            await tab.page.goto(url, wait_until="networkidle")  # no request of the start is left to notice it
            await expect(tab.page.locator("#bar .dot")).to_have_class("dot ok")
            await server.kill()
            await expect(tab.status).to_have_text("Reconnecting…")
            await expect(tab.page.locator("#bar .dot")).to_have_class("dot away")
            await processes.start_server(port=server.port, hosts=["chat.test"])
            await expect(tab.page.locator("#bar .dot")).to_have_class("dot ok")


async def test_the_dot_is_not_green_after_a_logout_or_beside_an_error(browser: Browser, database: str) -> None:
    token = "the-first-admins-token"  # noqa: S105  (nobody's)
    model = ScriptedModel([ModelFailed("The key is wrong.", kind="auth")])
    async with (
        serve_app(database, model, token=token) as server,
        browse(browser, f"{server.url}/login#token={token}", tolerates=("401", "EventSource")) as window,
    ):
        await window.send("Hello?")
        await expect(window.status).to_have_text("Error")
        assert await find_dot(window) == ("dot failed", "Live. The last reply failed.")
        assert (await ask(window.page, "DELETE", "/api/v1/session"))[0] == 204
        await expect(window.status).to_have_text("Logged out")
        assert await find_dot(window) == ("dot away", "You are logged out. What you send waits here.")


@pytest.mark.parametrize("size", [NARROW, (1100, 750)])
async def test_a_toast_covers_neither_the_conversation_nor_the_message_field(
    browser: Browser, database: str, size: tuple[int, int]
) -> None:
    async with (
        serve_app(database, ScriptedModel([say("A line.\n\n" * 40)])) as server,
        browse(browser, server.url, size=size) as window,
    ):
        page = window.page
        await window.keep_toasts()
        await window.send("Hello")
        await expect(window.button("Regenerate")).to_be_enabled()
        await window.button("This chat").click()
        await page.get_by_role("menuitem", name="Archive").click()
        toast = await find_box(page.locator(".toast"))
        thread, composer = await find_box(page.locator("#scroll")), await find_box(page.locator("#composer"))
        assert thread["y"] + thread["height"] <= toast["y"]
        assert toast["y"] + toast["height"] <= composer["y"]


async def test_a_file_that_is_too_large_says_the_limit_and_offers_no_retry(browser: Browser, database: str) -> None:
    large: Any = {"name": "large.bin", "mimeType": "application/octet-stream", "buffer": b"x" * (1024 * 1024 + 1)}
    async with (
        serve_app(database, worker=False, file_max_bytes=1024 * 1024) as server,
        browse(browser, server.url, tolerates=("413",)) as window,
    ):
        await window.page.get_by_label("Attach files").set_input_files(large)
        file = window.page.locator("#composer .files li.failed")
        await expect(file).to_contain_text("The file is larger than 1 MB.")
        await expect(file.get_by_role("button", name="Retry")).to_have_count(0)
        await window.send("What is this?")
        await window.wait_for_toast("large.bin is not uploaded. Remove it.")


async def test_the_bubble_of_an_arabic_message_stays_at_its_side(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        for words in ("Hello", "مرحبا"):
            await window.send(words)
        await expect(window.items).to_have_count(1)
        await window.page.wait_for_function("() => location.hash.length > 1")  # the server has the first one
        await server.client.interrupt(window.chat_id)
        await expect(window.items.locator(".bubble")).to_have_count(2)
        edges = {
            round(box["x"] + box["width"])
            for box in [await find_box(one) for one in await window.items.locator(".bubble").all()]
        }
        assert len(edges) == 1


async def test_the_dialog_says_what_a_link_shows(browser: Browser, database: str) -> None:
    async with serve_app(database, worker=False) as server, browse(browser, server.url) as window:
        await server.client.create_chat(title="Sea")
        await window.chats.click()
        await window.button("This chat").click()
        await window.page.get_by_role("menuitem", name="Share…").click()
        dialog = window.page.get_by_role("dialog", name="Share chat")
        for words in ("as it is now", "what is added to it later", "cannot see other versions"):
            await expect(dialog).to_contain_text(words)
