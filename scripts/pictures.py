"""`make pictures`: the pictures of the page in docs/images/, made by a real browser on real servers.

The conversation comes from a scripted model, so the pictures show the same every time, wherever they are made. The
animation of a crash is no script: `indelible serve` runs with the demo model, is killed with SIGKILL in the middle of a
reply and started again, and a browser looks on.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

from PIL import Image
from playwright.async_api import Browser, Page, expect
from tests.e2e.browsing import browse, open_tab, start_browser
from tests.e2e.pen import Pen
from tests.support.app_harness import serve_app
from tests.support.process_harness import choose_port
from tests.support.running_server import say

from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step
from indelible.tools.tool import tool

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
WIDE: Final = (1200, 780)
PHONE: Final = (390, 780)
COLOURS: Final = 128
TITLES: Final = (
    "Budget for the lighthouse",
    "Why is the sea salty?",
    "A letter to the harbour office",
    "Fixing the foghorn timer",
    "Knots, and when to use them",
    "Tide tables for March",
)
ANSWER: Final = """It is **raining in Oslo**, 7 °C, and it will go on until the evening.

| | Oslo | Bergen |
|---|---|---|
| now | rain, 7 °C | rain, 8 °C |
| evening | clearing | rain |

A small function decides whether you need an umbrella:

```python
def needs_umbrella(rain_mm: float, wind_ms: float) -> bool:
    \"\"\"No umbrella survives a storm.\"\"\"
    return rain_mm > 0.2 and wind_ms < 14
```

> In Bergen the answer is always *yes*.
"""


@tool
async def weather(city: str) -> str:
    """Looks out of the window."""
    return f"{city}: rain, 7 °C, wind 4 m/s, clearing in the evening"


def write_script(pen: Pen) -> ScriptedModel:
    call: list[Step] = [
        parts.reasoning_start("r"),
        parts.reasoning_delta("r", "The weather changes, so I should look instead of guessing."),
        parts.reasoning_end("r"),
        parts.tool_call("1", "weather", '{"city": "Oslo"}'),
        parts.finish("tool_calls"),
    ]
    failure = ModelFailed("Can't reach Ollama at http://localhost:11434. Is it running?", kind="config")
    return ScriptedModel([call, say(ANSWER), pen.stream, failure])


async def save(page: Page, name: str) -> None:
    picture = Image.open(io.BytesIO(await page.screenshot()))
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


async def draw_chat(browser: Browser, directory: str) -> None:
    pen = Pen()
    models = {"demo": write_script(pen)}
    async with serve_app(f"{directory}/chats.db", "demo", models=models, tools=[weather]) as server:
        for title in reversed(TITLES):
            await server.client.create_chat(title=title)
        async with browse(browser, server.url, size=WIDE) as window:
            await expect(window.chats).to_have_count(len(TITLES))
            await save(window.page, "page-empty")
            await window.send("Is it raining in Oslo?")
            await expect(window.page.locator(".hl-keyword").first).to_be_visible()
            await server.client.update_chat(window.chat_id, title="Rain in Oslo", pinned=True)
            await expect(window.page.locator("#title")).to_have_text("Rain in Oslo")
            url = window.page.url
            await save(window.page, "page-light")
            await draw_others(browser, url)
            await window.send("And what should I pack?")
            pen.write(
                "For a day like this:\n\n1. a **rain jacket** with a hood\n2. shoes that may get wet\n3. something "
            )
            await expect(window.live).to_contain_text("something")
            await window.send("And in Bergen?")
            await window.send("Is the museum open?")
            await expect(window.queue.last).to_contain_text("2 of 2")
            await save(window.page, "page-queue")
            for queued in await server.client.list_queue(window.chat_id):
                await server.client.delete_queued(window.chat_id, queued["id"])
            await window.button("Stop").click()
            await expect(window.items.last).to_contain_text("Stopped")
            await save(window.page, "page-stopped")
            await window.send("Then tell me about Bergen.")
            await expect(window.button("Retry")).to_be_visible()
            await save(window.page, "page-failed")
            await window.page.keyboard.press("Control+k")
            await expect(window.page.get_by_role("option").first).to_be_visible()
            await save(window.page, "page-palette")


async def draw_others(browser: Browser, url: str) -> None:
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for theme in themes:
        if theme == "dark":
            async with browse(browser, url, size=WIDE, theme=theme) as window:
                await expect(window.page.locator(".hl-keyword").first).to_be_visible()
                await save(window.page, "page-dark")
        async with browse(browser, url, size=PHONE, theme=theme, phone=True) as window:
            await expect(window.page.locator(".hl-keyword").first).to_be_attached()
            await save(window.page, f"phone-{theme}")
            if theme == "light":
                await window.button("Show chats").tap()
                await save(window.page, "phone-chats")


# --- the crash ---


@asynccontextmanager
async def run_demo(directory: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "INDELIBLE_DATABASE": f"{directory}/demo.db"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "indelible", "serve", "--port", str(port), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()  # it is ready
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def film_crash(browser: Browser, directory: str) -> None:
    port = choose_port()
    frames: list[Image.Image] = []
    filming = asyncio.Event()

    async def film(page: Page) -> None:
        while not filming.is_set():
            picture = Image.open(io.BytesIO(await page.screenshot(type="png")))
            frames.append(picture.convert("RGB").resize((800, 520), Image.Resampling.LANCZOS))
            await asyncio.sleep(0.2)

    context: Any = await browser.new_context(viewport={"width": 1000, "height": 650})
    async with run_demo(directory, port) as first:
        window = await open_tab(context, f"http://127.0.0.1:{port}")
        camera = asyncio.create_task(film(window.page))
        await window.send("Tell me a long story about a lighthouse")
        await expect(window.live.locator(".block")).to_have_count(3)
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
        await expect(window.status).to_have_text("Reconnecting…")
        await asyncio.sleep(1.5)
    async with run_demo(directory, port):
        await expect(window.page.locator(".resume-mark")).to_have_count(1)
        await asyncio.sleep(3)
        await window.button("Stop").click()
        await expect(window.items.last).to_contain_text("Stopped")
        await window.page.locator(".resume-mark").hover()
        await asyncio.sleep(2)
        filming.set()
        await camera
    await context.close()
    kept = frames[:: max(1, len(frames) // 60)]
    small = [frame.quantize(32, dither=Image.Dither.NONE) for frame in kept]
    small[0].save(IMAGES / "crash.gif", save_all=True, append_images=small[1:], duration=200, loop=0, optimize=True)


async def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    async with start_browser() as browser:
        with tempfile.TemporaryDirectory() as directory:
            if "crash" not in sys.argv:
                await draw_chat(browser, directory)
            await film_crash(browser, directory)
    for path in sorted(IMAGES.iterdir()):
        sys.stdout.write(f"{path.name}  {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    asyncio.run(main())
