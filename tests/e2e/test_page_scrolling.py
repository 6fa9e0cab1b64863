"""Who reads while a reply streams: the page follows its end, and the first gesture upwards ends that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, CDPSession, expect
from tests.e2e.browsing import NARROW, WIDE, Window, browse
from tests.e2e.pen import Pen
from tests.support.app_harness import serve_app

from indelible.testing import ScriptedModel, parts

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

BOX = "document.getElementById('scroll')"
LEFT = f"({BOX}.scrollHeight - {BOX}.scrollTop - {BOX}.clientHeight)"
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
FINGER_STEP_PX = 12


class Reading:
    """A long reply that is being written, and its reader."""

    def __init__(self, window: Window, pen: Pen) -> None:
        self.window = window
        self.pen = pen
        self.written = 0

    async def grow(self, paragraphs: int = 1) -> None:
        """The reply grows, and the page has drawn it."""
        for _ in range(paragraphs):
            self.written += 1
            self.pen.write(f"Paragraph {self.written}.\n\n")
        await expect(self.window.live).to_contain_text(f"Paragraph {self.written}.")
        await self.window.page.evaluate(TWO_FRAMES)

    async def measure_left(self) -> float:
        """How many pixels are below what is in sight."""
        return float(await self.window.page.evaluate(LEFT))

    async def wait_until_away(self) -> None:
        await self.window.page.wait_for_function(f"() => {LEFT} >= 1", polling=100)

    @asynccontextmanager
    async def touch(self) -> AsyncIterator[Finger]:
        devtools = await self.window.page.context.new_cdp_session(self.window.page)
        finger = Finger(devtools)
        await finger.send("touchStart")
        yield finger
        await finger.send("touchEnd")
        await devtools.detach()


class Finger:
    def __init__(self, devtools: CDPSession) -> None:
        self._devtools = devtools
        self._y = 300

    async def send(self, kind: str) -> None:
        points = [] if kind == "touchEnd" else [{"x": 200, "y": self._y}]
        await self._devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    async def move(self, pixels: int) -> None:
        self._y += pixels
        await self.send("touchMove")


@asynccontextmanager
async def read_a_long_reply(browser: Browser, database: str, *, phone: bool = False) -> AsyncIterator[Reading]:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream])) as server,
        browse(browser, server.url, size=NARROW if phone else WIDE, phone=phone) as window,
    ):
        await window.composer.fill("Tell me of the rain.")
        await window.button("Send").click()
        reading = Reading(window, pen)
        await reading.grow(60)
        assert await reading.measure_left() < 1, "it follows"
        yield reading
        pen.finish()
        await expect(window.live).to_have_count(0)


async def test_a_finger_that_moves_slowly_scrolls_up_while_a_reply_streams(browser: Browser, database: str) -> None:
    async with read_a_long_reply(browser, database, phone=True) as reading:
        async with reading.touch() as finger:
            for _ in range(12):
                await finger.move(FINGER_STEP_PX)
                await reading.grow()
            read_at = await reading.window.page.evaluate(f"{BOX}.scrollTop")
            await reading.grow(5)
            assert await reading.window.page.evaluate(f"{BOX}.scrollTop") == read_at
        assert await reading.measure_left() > 8 * FINGER_STEP_PX
        await reading.window.page.get_by_role("button", name="Latest").tap()
        await reading.grow()
        assert await reading.measure_left() < 1, "it follows again"


async def test_a_small_turn_of_the_wheel_ends_following_and_the_end_begins_it_again(
    browser: Browser, database: str
) -> None:
    async with read_a_long_reply(browser, database) as reading:
        page = reading.window.page
        await page.mouse.move(600, 300)
        await page.mouse.wheel(0, -6)
        await reading.wait_until_away()
        left = await reading.measure_left()
        await reading.grow(3)
        assert await reading.measure_left() > left + 60
        await page.mouse.wheel(0, 100_000)
        await page.wait_for_function(f"() => {LEFT} < 1", polling=100)
        await reading.grow(3)
        assert await reading.measure_left() < 1


@pytest.mark.parametrize("key", ["ArrowUp", "PageUp", "Home", "Shift+Space"])
async def test_a_key_that_scrolls_up_ends_following(browser: Browser, database: str, key: str) -> None:
    async with read_a_long_reply(browser, database) as reading:
        page = reading.window.page
        await page.mouse.click(600, 300)
        await page.keyboard.press(key)
        await reading.grow()  # perhaps before the browser has begun to move
        await reading.wait_until_away()
        left = await reading.measure_left()
        await reading.grow(3)
        assert await reading.measure_left() > left + 60


async def test_what_is_too_short_to_be_scrolled_is_followed_whatever_the_wheel_does(
    browser: Browser, database: str
) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        reading = Reading(window, pen)
        await window.send("Hello")
        await reading.grow()
        await window.page.mouse.move(600, 200)
        await window.page.mouse.wheel(0, -60)
        await reading.grow(60)
        assert await reading.measure_left() < 1
        await expect(window.page.get_by_role("button", name="Latest")).to_have_count(0)


async def test_the_wheel_over_something_long_inside_a_reply_moves_only_that(browser: Browser, database: str) -> None:
    pen = Pen()
    long = json.dumps({"lines": list(range(200))})
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        reading, box = Reading(window, pen), window.page.locator(".tool-body pre").first
        await window.send("Hello")
        await reading.grow(20)
        pen.put(parts.tool_call("1", "sum", long))
        await window.page.locator(".tool summary").click()
        await box.evaluate("node => { node.scrollTop = 2000; }")
        await reading.window.page.evaluate(TWO_FRAMES)
        assert await reading.measure_left() < 1
        await box.hover()
        await window.page.mouse.wheel(0, -60)
        await window.page.wait_for_function(
            "() => document.querySelector('.tool-body pre').scrollTop < 2000", polling=100
        )
        await reading.grow()
        assert await reading.measure_left() < 1
