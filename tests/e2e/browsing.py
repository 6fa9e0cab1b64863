"""A real browser (Debian's chromium) on the page. Any error or warning on its console fails the test.

A missing browser fails the test, too. `tolerates` is for tests that stop the server: requests then fail, and the
browser logs it.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    ViewportSize,
    async_playwright,
    expect,
)
from tests.support.waiting import DEADLINE_S

FLAGS = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE = (1100, 750)
NARROW = (390, 780)


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
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def send(self, text: str) -> None:
        await self.composer.fill(text)
        await self.composer.press("Enter")

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
    """A window of a new user: an empty browser context."""
    viewport: ViewportSize = {"width": size[0], "height": size[1]}
    context = await browser.new_context(viewport=viewport, color_scheme=theme, has_touch=phone, is_mobile=phone)
    try:
        window = await open_tab(context, url)
        yield window
    finally:
        await context.close()
    complaints = [text for text in window.complaints if not any(known in text for known in tolerates)]
    assert complaints == [], complaints


async def open_tab(context: BrowserContext, url: str) -> Window:
    """One more tab of the same user."""
    page = await context.new_page()
    page.set_default_timeout(DEADLINE_S * 1000)
    window = Window(page)
    await page.goto(url)
    return window
