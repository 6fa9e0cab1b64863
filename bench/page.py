"""`python -m bench page`: how smoothly the page shows a long reply, how soon a reload shows it, and a very long chat.

A real server streams a reply (paragraphs, lists, code, tables) to a real Chromium without a window. All but its end
comes at once, and then 200 tokens a second: the end is where a page that reads or lays out everything again would
stall. The same end is streamed below 20 kB, 200 kB and 2 MB, so that the work per frame can be compared. Printed are

- the times between two frames, by the clock. They also tell of whatever else the machine does;
- the tasks of the page's main thread, in CPU time (Chromium's own trace) and by the clock (Long Tasks API). CPU time is
  what the page itself needs, on a busy machine, too;
- the times from a reload to the text on the screen, for the long reply and for a chat of 10,000 messages, and the
  tasks while that chat is scrolled to its beginning and a message in its middle is found.

The driver asks the page nothing while it is measured: one look of Playwright at all blocks of a long reply takes
28 ms of the page's main thread, and was the longest task of all. The server shares the driver's process, which gives
way to the browser (`nice`), because elsewhere it has a machine of its own. Times by the clock need two idle cores.
BENCH_SECONDS=60 streams longer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page, expect
from tests.e2e.browsing import Window, browse, start_browser
from tests.e2e.test_page_lists import SCROLL_UP, make_export
from tests.support.app_harness import serve_app

from indelible.client.client import RemoteLists
from indelible.content import Part
from indelible.testing import ScriptedModel, parts

SIZE: Final = 200_000
OTHER_SIZES: Final = (20_000, 2_000_000)
TOKENS_PER_S: Final = 200
TOKEN_CHARS: Final = 4
SECONDS: Final = float(os.environ.get("BENCH_SECONDS", "20"))
MESSAGES: Final = 10_000
RELOADS: Final = 5
FRAME_MS: Final = 50
_SECTION: Final = """## Rain, part {0}

It **rains** in `Bergen` on two hundred days of the year, and [nobody](https://example.org/) minds: the harbour, the
fish market and the seven mountains are wet, *always were*, and a dry day is a rumour that children tell.

- an umbrella, which the wind takes
- a coat, which it does not
  1. of wool
  2. of oilskin

| place | rain | days |
|---|---:|---:|
| Bergen | 2,495 mm | {0} |
| Oslo | 802 mm | 113 |

```python
def needs_umbrella(rain_mm: float, wind_ms: float) -> bool:
    return rain_mm > 0.{0} and wind_ms < 14
```

"""
# What the page notes about itself until the reply has ended. Cheap: one look at a class name per frame.
_WATCH: Final = """() => {
    const found = {frames: [], tasks: []};
    const live = document.getElementsByClassName("live");
    new PerformanceObserver((list) => found.tasks.push(...list.getEntries().map((one) => one.duration)))
        .observe({type: "longtask"});
    window.watched = new Promise((resolve) => {
        let last = 0;
        const note = (now) => {
            if (last) found.frames.push(now - last);
            last = now;
            if (live.length) requestAnimationFrame(note);
            else resolve(found);
        };
        requestAnimationFrame(note);
    });
}"""
_IS_COLOURED: Final = """(count) => document.querySelectorAll(".block").length > 5 * count
    && document.querySelectorAll(".block [class^=hl-]").length > 0"""
_IS_SHOWN: Final = """(text) => {
    const last = document.querySelector("#messages > ol:last-child > li:last-child .text");
    return last?.textContent.includes(text) && performance.now();
}"""


class PacedReply:
    """The beginning at once, the rest token by token when `go` is set."""

    def __init__(self, size: int, seconds: float) -> None:
        text = "".join(_SECTION.format(number) for number in range(size // len(_SECTION) + 1))
        rest = int(seconds * TOKENS_PER_S * TOKEN_CHARS)
        self.beginning, self.rest = text[:-rest], text[-rest:]
        self.go = asyncio.Event()

    async def stream(self, _call: Any) -> AsyncIterator[Part]:
        yield parts.text_delta("1", f"Begin.\n\n{self.beginning}")
        await self.go.wait()
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in itertools.count():
            token = self.rest[number * TOKEN_CHARS : (number + 1) * TOKEN_CHARS]
            if not token:
                break
            await asyncio.sleep(max(0.0, began + number / TOKENS_PER_S - clock()))
            yield parts.text_delta("1", token)
        yield parts.text_delta("1", "The end.")
        yield parts.finish()


@dataclass
class Traced:
    """The tasks of the page's main thread, in milliseconds of CPU time."""

    tasks: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"tasks of the main thread, CPU: p99 {find_share(self.tasks, 0.99):.1f} ms, max {max(self.tasks):.1f} ms, "
            f"{sum(one > FRAME_MS for one in self.tasks)} over {FRAME_MS} ms"
        )


@asynccontextmanager
async def trace(browser: Browser, page: Page) -> AsyncIterator[Traced]:
    found = Traced()
    await browser.start_tracing(page=page, categories=["-*", "toplevel"])
    yield found
    events = json.loads(await browser.stop_tracing())["traceEvents"]
    threads: dict[tuple[int, int], list[float]] = {
        (one["pid"], one["tid"]): []
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    for one in events:
        if one["name"] == "ThreadControllerImpl::RunTask" and (one["pid"], one["tid"]) in threads:
            threads[one["pid"], one["tid"]].append(one.get("tdur", 0) / 1000)
    found.tasks = max(threads.values(), key=sum)  # the page's; others may be kept ready by the browser


def find_share(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure_frames(browser: Browser, window: Window, reply: PacedReply) -> None:
    await window.send("Tell me everything about the rain.")
    await window.page.wait_for_function(_IS_COLOURED, arg=reply.beginning.count("```python"))
    async with trace(browser, window.page) as traced:
        await window.page.evaluate(_WATCH)
        reply.go.set()
        watched: dict[str, Any] = await window.page.evaluate("watched")
    await expect(window.items.last.locator(".block").last).to_have_text("The end.")
    frames, tasks = watched["frames"], watched["tasks"]
    print(
        f"the last {len(reply.rest) // 1000} kB of {(len(reply.beginning) + len(reply.rest)) // 1000:,} kB at "
        f"{TOKENS_PER_S} tokens/s: CPU per frame {sum(traced.tasks) / len(frames):.1f} ms; {traced}\n"
        f"    by the clock: {len(frames)} frames, p50 {find_share(frames, 0.5):.1f} ms, "
        f"p99 {find_share(frames, 0.99):.1f} ms, max {max(frames):.1f} ms, "
        f"{sum(one > FRAME_MS for one in frames)} over {FRAME_MS} ms; "
        f"{len(tasks)} tasks over 50 ms" + (f", the longest {max(tasks):.0f} ms" if tasks else "")
    )


async def measure_reload(page: Page, text: str, what: str) -> None:
    times = []
    for _ in range(RELOADS):
        await page.reload(wait_until="commit")
        handle = await page.wait_for_function(_IS_SHOWN, arg=text)
        times.append(float(await handle.json_value()))
    print(f"from a reload to the text of {what}: p50 {find_share(times, 0.5):.0f} ms, max {max(times):.0f} ms")


async def measure_long_chat(browser: Browser, window: Window) -> None:
    page = window.page
    await measure_reload(page, f"Message {MESSAGES - 1}", f"a chat of {MESSAGES:,} messages")
    async with trace(browser, page) as traced:
        await page.wait_for_function(SCROLL_UP)
    print(f"scrolled up to the first of {MESSAGES:,} messages: {traced}")
    await page.get_by_label("Search chats").fill(f"Message {MESSAGES // 2}")
    await expect(page.locator(".chat-list small")).to_contain_text(f"Message {MESSAGES // 2}")
    async with trace(browser, page) as traced:
        await window.chats.first.click()
        await expect(page.locator(".found .text")).to_have_text(f"Message {MESSAGES // 2}")
    print(f"found one in the middle of {MESSAGES:,} messages: {traced}")


async def measure() -> None:
    replies = [PacedReply(size, SECONDS / 4) for size in OTHER_SIZES]
    long = PacedReply(SIZE, SECONDS)
    model = ScriptedModel([one.stream for one in (*replies, long)])
    with tempfile.TemporaryDirectory(prefix="indelible-") as place:
        async with start_browser() as browser:
            os.nice(5)  # from here on the server; the browser is a process that runs already
            async with serve_app(str(Path(place) / "chats.db"), model) as server:
                for reply in replies:
                    async with browse(browser, server.url) as window:
                        await measure_frames(browser, window, reply)
                async with browse(browser, server.url) as window:
                    await measure_frames(browser, window, long)
                    await measure_reload(window.page, "The end.", f"a reply of {SIZE // 1000} kB")
                chat = await RemoteLists(server.client).import_chat(make_export(MESSAGES))
                async with browse(browser, f"{server.url}/#{chat.id}") as window:
                    await measure_long_chat(browser, window)
