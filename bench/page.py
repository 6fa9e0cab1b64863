"""`python -m bench page`: how smoothly the page shows a reply, and how soon a reload shows it again.

A real server streams a reply of 200 kB (paragraphs, lists, code, tables) to a real Chromium without a window. All but
its end comes at once, and then 200 tokens a second for 20 seconds: the end is where a page that reads or lays out
everything again would stall. Printed are the times between two frames, the tasks that blocked the page for more
than 50 ms (Long Tasks API), and the time from a reload to the text on the screen, for this reply and for a chat of
2,000 messages.

Two idle cores are the least for a result that means anything: the server, the test driver and the browser share
them. BENCH_SECONDS=60 streams longer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page, expect
from tests.e2e.browsing import Window, browse, start_browser
from tests.e2e.test_page_lists import MESSAGES, make_export
from tests.support.app_harness import serve_app

from indelible.client.lists import RemoteLists
from indelible.content import Part
from indelible.testing import ScriptedModel, parts

SIZE: Final = 200_000
TOKENS_PER_S: Final = 200
TOKEN_CHARS: Final = 4
SECONDS: Final = float(os.environ.get("BENCH_SECONDS", "20"))
RELOADS: Final = 5
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
_WATCH: Final = """() => {
    const state = (window.watched = {frames: [], tasks: [], last: performance.now(), stop: false});
    new PerformanceObserver((list) => state.tasks.push(...list.getEntries().map((one) => one.duration)))
        .observe({type: "longtask"});
    const note = (now) => {
        state.frames.push(now - state.last);
        state.last = now;
        if (!state.stop) requestAnimationFrame(note);
    };
    requestAnimationFrame((now) => { state.last = now; requestAnimationFrame(note); });
}"""
_IS_COLOURED: Final = """(count) => document.querySelectorAll(".block").length > 5 * count
    && document.querySelectorAll(".block [class^=hl-]").length > 0"""
_ENDED: Final = "() => { watched.stop = true; return watched; }"
_IS_SHOWN: Final = """(text) => {
    const last = document.querySelector("#messages > li:last-child .text");
    return last?.textContent.includes(text) && performance.now();
}"""


class PacedReply:
    """200 kB: the beginning at once, the rest token by token when `go` is set."""

    def __init__(self) -> None:
        text = "".join(_SECTION.format(number) for number in range(SIZE // len(_SECTION) + 1))
        cut = len(text) - int(SECONDS * TOKENS_PER_S * TOKEN_CHARS)
        self.beginning, self.rest = text[: max(cut, 0)], text[max(cut, 0) :]
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


def find_share(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure_frames(window: Window, reply: PacedReply) -> None:
    await window.send("Tell me everything about the rain.")
    await window.page.wait_for_function(_IS_COLOURED, arg=reply.beginning.count("```python"))
    await window.page.evaluate(_WATCH)
    reply.go.set()
    await expect(window.items.last.locator(".block").last).to_have_text("The end.", timeout=10_000 * SECONDS)
    watched: dict[str, Any] = await window.page.evaluate(_ENDED)
    frames, tasks = watched["frames"], watched["tasks"]
    print(
        f"frames while the last {SECONDS:.0f} s of {SIZE // 1000} kB stream at {TOKENS_PER_S} tokens/s: {len(frames)}, "
        f"p50 {find_share(frames, 0.5):.1f} ms, p99 {find_share(frames, 0.99):.1f} ms, max {max(frames):.1f} ms, "
        f"{sum(one > 50 for one in frames)} over 50 ms; {len(tasks)} tasks over 50 ms"
        + (f", the longest {max(tasks):.0f} ms" if tasks else "")
    )


async def measure_reload(page: Page, text: str, what: str) -> None:
    times = []
    for _ in range(RELOADS):
        await page.reload(wait_until="commit")
        handle = await page.wait_for_function(_IS_SHOWN, arg=text)
        times.append(float(await handle.json_value()))
    print(f"from a reload to the text of {what}: p50 {find_share(times, 0.5):.0f} ms, max {max(times):.0f} ms")


async def measure() -> None:
    reply = PacedReply()
    with tempfile.TemporaryDirectory(prefix="indelible-") as place:
        database = str(Path(place) / "chats.db")
        async with serve_app(database, ScriptedModel([reply.stream])) as server, start_browser() as browser:
            async with browse(browser, server.url) as window:
                await measure_frames(window, reply)
                await expect(window.live).to_have_count(0)
                await measure_reload(window.page, "The end.", f"a reply of {SIZE // 1000} kB")
            chat = await RemoteLists(server.client).import_chat(make_export(MESSAGES))
            async with browse(browser, f"{server.url}/#{chat.id}") as window:
                await measure_reload(window.page, f"Message {MESSAGES - 1}", f"a chat of {MESSAGES:,} messages")
