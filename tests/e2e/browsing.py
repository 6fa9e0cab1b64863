"""A real browser (Debian's chromium) on the page. Any error or warning on its console fails the test.

A missing browser fails the test, too. `tolerates` is for tests that stop the server: requests then fail, and the
browser logs it.

A new process of the browser for every test costs more CPU than what the test is about (2.1 s instead of 1.1 s to load
the page, on a busy machine). So the tests share a tab (`share_tab`): who used it leaves it at an empty page,
without cookies, storage, other tabs and listeners of ours. After a failed test it is thrown away. Every server has a
port of its own, so nothing stored for one is seen by the next in any case.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal
from weakref import WeakKeyDictionary

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    ViewportSize,
    async_playwright,
    expect,
)
from tests.support.waiting import DEADLINE_S
from yarl import URL

FLAGS = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP chat.test 127.0.0.1",  # not this machine, as far as the browser knows
]
WIDE = (1100, 750)
NARROW = (390, 780)
TOAST_MS = 6000  # view/toasts.js
RECORD_TOASTS = """
    window.toastsSeen = [];
    new MutationObserver((changes) => {
        for (const node of changes.flatMap(({addedNodes}) => [...addedNodes])) {
            if (!(node instanceof Element)) continue;
            for (const toast of [node, ...node.querySelectorAll(".toast")].filter((one) => one.matches(".toast"))) {
                window.toastsSeen.push({text: toast.textContent, isInDialog: toast.closest("dialog") !== null});
            }
        }
    }).observe(document, {childList: true, subtree: true});
"""

_idle_tabs: WeakKeyDictionary[Browser, list[Page]] = WeakKeyDictionary()
"""Of browsers that share them: tabs that the last test left clean."""


class Window:
    """The page in one window, with locators for its parts."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.composer = page.get_by_label("Message", exact=True)
        self.items = page.locator("#messages > ol > li")
        self.live = page.locator("#messages > ol > li.live .body")
        self.status = page.get_by_role("status")
        self.problem = page.get_by_role("alert")
        self.queue = page.locator("#queue li")
        self.chats = page.locator(".chat-list a")
        page.on("console", self._note)
        page.on("pageerror", self._note_error)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _note_error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def stop_listening(self) -> None:
        self.page.remove_listener("console", self._note)
        self.page.remove_listener("pageerror", self._note_error)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def send(self, text: str) -> None:
        await self.composer.fill(text)
        await self.composer.press("Enter")

    async def wait_for_toast(self, text: str, *, in_dialog: bool = False) -> None:
        """It has been shown since the page was loaded, and may be gone by now: a toast stays for a few seconds."""
        shown = "([text, where]) => toastsSeen.some((one) => one.text.includes(text) && one.isInDialog === where)"
        await self.page.wait_for_function(shown, arg=[text, in_dialog], polling=100)

    async def keep_toasts(self) -> None:
        """Until the next load of the page no toast goes by itself: a slow machine finds its button, too."""
        await self.page.evaluate(
            "late => { const set = setTimeout; window.setTimeout = (act, ms) => (ms === late ? 0 : set(act, ms)); }",
            TOAST_MS,
        )

    async def read_items(self) -> list[tuple[str, str]]:
        """Every item of the conversation: its role and its text, as far as it is a single paragraph."""
        found = []
        for item in await self.items.all():
            kind = str(await item.get_attribute("class")).split()[0]
            texts = [text.strip() for text in await item.locator(".text").all_text_contents()]
            found.append((kind, "\n".join(texts)))
        return found

    @property
    def chat_id(self) -> str:
        return self.page.url.partition("#")[2].partition("/")[0]


@asynccontextmanager
async def start_browser() -> AsyncIterator[Browser]:
    path = shutil.which("chromium")
    assert path, "chromium is missing: install it, as .ci/run does"
    expect.set_options(timeout=DEADLINE_S * 1000)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


def share_tab(browser: Browser) -> None:
    """From now on `browse` uses one tab of this browser again and again."""
    _idle_tabs[browser] = []


@asynccontextmanager
async def browse(
    browser: Browser,
    url: str,
    *,
    size: tuple[int, int] = WIDE,
    tolerates: tuple[str, ...] = (),
    theme: Literal["light", "dark"] = "light",
    phone: bool = False,
) -> AsyncIterator[Window]:
    """A window of a new user: an empty browser context, or one that was emptied."""
    idle = None if phone else _idle_tabs.get(browser)
    viewport: ViewportSize = {"width": size[0], "height": size[1]}
    if idle:
        page = idle.pop()
        await page.set_viewport_size(viewport)
        await page.emulate_media(color_scheme=theme)
    else:
        context = await browser.new_context(viewport=viewport, color_scheme=theme, has_touch=phone, is_mobile=phone)
        await context.add_init_script(RECORD_TOASTS)
        page = await context.new_page()
    is_clean = False
    try:
        window = await _show(page, url)
        yield window
        if idle is not None and not page.is_closed():
            await _clean(window, url)
            idle.append(page)
            is_clean = True
    finally:
        if not is_clean:
            await page.context.close()
    complaints = [text for text in window.complaints if not any(known in text for known in tolerates)]
    assert complaints == [], complaints


async def open_tab(context: BrowserContext, url: str) -> Window:
    """One more tab of the same user."""
    return await _show(await context.new_page(), url)


async def _show(page: Page, url: str) -> Window:
    page.set_default_timeout(DEADLINE_S * 1000)
    window = Window(page)
    await page.goto(url)
    return window


async def _clean(window: Window, url: str) -> None:
    """What a closed context would have forgotten. The page is left first: it may store something as it goes."""
    page, context = window.page, window.page.context
    window.stop_listening()
    await page.unroute_all(behavior="ignoreErrors")
    for other in context.pages:
        if other is not page:
            await other.close()
    await page.goto("about:blank")
    devtools = await context.new_cdp_session(page)
    await devtools.send("Storage.clearDataForOrigin", {"origin": str(URL(url).origin()), "storageTypes": "all"})
    await devtools.detach()
    await context.clear_cookies()
    await context.set_offline(False)
