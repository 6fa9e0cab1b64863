"""The page for everybody: axe-core finds nothing, the keyboard alone is enough, and a phone shows it well."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import axe_playwright_python  # type: ignore[import-not-found, import-untyped, unused-ignore]  # it has no types
import pytest
from playwright.async_api import Browser, Page, expect
from tests.e2e.browsing import NARROW, browse
from tests.support.app_harness import serve_app
from tests.support.running_server import say, say_half

from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
RUN = """async () => {
    // What fades in has its colours at the end of it. What turns for ever has no end.
    const fading = document.getAnimations().filter(({effect}) => effect.getComputedTiming().endTime !== Infinity);
    await Promise.allSettled(fading.map(({finished}) => finished));
    // The order of headings in a reply is the model's.
    const options = {resultTypes: ['violations'], rules: {'heading-order': {enabled: false}}};
    const {violations} = await axe.run(document, options);
    const tell = ({target, any}) => `${target} ${any.map(({message}) => message)}`;
    return violations.map(({id, nodes}) => `${id}: ${nodes.map(tell)}`);
}"""
REPLY = (
    "## Rain\n\nIt **rains**, see [here](https://example.org/) and `code`.\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 'y'  # z\n```\n"
)


async def find_violations(page: Page) -> list[str]:
    found: list[str] = await page.evaluate(RUN)
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_no_violation_on_the_main_views(
    browser: Browser, database: str, theme: Literal["light", "dark"]
) -> None:
    model = ScriptedModel(
        [
            [parts.reasoning_delta("r", "Hm."), *say(REPLY)],
            ModelFailed("The key is wrong.", kind="auth"),
        ]
    )
    async with serve_app(database, model) as server, browse(browser, server.url, theme=theme) as window:
        page = window.page
        await page.evaluate(AXE)
        assert await find_violations(page) == []
        await window.send("Is it raining?")
        await expect(page.locator(".hl-string")).to_have_count(1)
        await window.send("And now?")
        await expect(window.button("Retry")).to_be_visible()
        assert await find_violations(page) == []
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("option", name="New chat").first).to_be_visible()
        assert await find_violations(page) == []
        await page.keyboard.press("Escape")
        for kind in ("Settings", "Keyboard shortcuts"):
            await window.button("Account and settings").click()
            await page.get_by_role("menuitem", name=kind).click()
            await expect(page.get_by_role("dialog", name=kind)).to_be_visible()
            assert await find_violations(page) == []
            await page.keyboard.press("Escape")
            await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_user_without_a_mouse_can_do_everything(browser: Browser, database: str) -> None:
    model = ScriptedModel([say_half("One"), say("Two."), say("Three.")])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        page, keys = window.page, window.page.keyboard
        await expect(window.composer).to_be_focused()
        await keys.type("First")
        await keys.press("Enter")
        await expect(window.live).to_have_text("One")
        await keys.press("Escape")
        await expect(window.items.last).to_contain_text("Stopped · saved")
        await keys.type("Second")
        await keys.press("Enter")
        await expect(window.items.last.locator(".text")).to_have_text("Two.")
        await window.items.last.get_by_label("Regenerate", exact=True).focus()
        await keys.press("Enter")
        await expect(window.items.last.locator(".text")).to_have_text("Three.")
        await expect(page.get_by_text("The reply is complete.")).to_be_attached()
        await keys.press("Control+k")
        await expect(page.get_by_label("Command or chat")).to_be_focused()
        await keys.type("rename")
        await keys.press("Enter")
        await expect(page.get_by_role("dialog", name="Rename chat")).to_be_visible()
        await keys.press("Control+a")
        await keys.type("By keyboard")
        await keys.press("Enter")
        await expect(page.locator("#title")).to_have_text("By keyboard")
        await keys.press("Control+Shift+O")
        await expect(window.composer).to_be_focused()
        await expect(window.items).to_have_count(0)
        await window.chats.first.focus()
        await keys.press("Enter")
        await expect(page.locator("#title")).to_have_text("By keyboard")
        await keys.press("Control+Shift+L")
        await expect(window.composer).to_be_focused()


async def test_on_a_phone_enter_is_a_new_line_and_the_button_sends(browser: Browser, database: str) -> None:
    wide: list[Step] = [*say("```text\n" + "wide " * 100 + "\n```\n\n" + "An-unbroken-word-" * 20)]
    async with (
        serve_app(database, ScriptedModel([wide])) as server,
        browse(browser, server.url, size=(360, NARROW[1]), phone=True) as window,
    ):
        await window.composer.tap()
        await window.page.keyboard.type("One")
        await window.page.keyboard.press("Enter")
        await window.page.keyboard.type("two")
        await expect(window.composer).to_have_value("One\ntwo")
        await window.page.locator("#send").tap()
        await expect(window.items).to_have_count(2)
        await expect(window.items.last).to_contain_text("unbroken")
        assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        widths = await window.items.evaluate_all("all => all.map((one) => one.offsetWidth)")
        assert widths == [360, 360]  # not wider than the phone, nor as narrow as its text
        await window.button("Show chats").tap()
        await expect(window.chats).to_be_visible()
        await expect(window.button("New chat")).to_be_focused()  # a field would raise the keyboard
        await window.page.keyboard.press("Escape")
        await expect(window.chats).to_be_hidden()
