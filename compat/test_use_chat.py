"""`useChat` and `DefaultChatTransport` in a real React page in Chromium, with versions 6 and 7 of the npm package `ai`.

Whatever happens (a stop, a reload, a kill of the server), the text on the screen is the text that is stored. And one
run for all: started with the OpenAI SDK, stopped by a click on our own page, continued by the native client.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from playwright.async_api import Page, Route, async_playwright, expect
from tests.support.node import NODE, NPM_PACKAGES

import indelible
from compat.model import STORY
from compat.running import HERE, CompatServer, run_compat_server

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
HTML = '<!doctype html><meta charset="utf-8"><div id="root"></div><script type="module" src="/compat.js"></script>'
ALIASES = {"7": [], "6": ["--alias:ai=ai-6", "--alias:@ai-sdk/react=@ai-sdk/react-6"]}
WAIT_MS = 60_000


@pytest.fixture(scope="module", params=["7", "6"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page, built with this version of the AI SDK."""
    target = tmp_path_factory.mktemp("page") / "bundle.js"
    command = [
        str(NODE), "node_modules/.bin/esbuild", str(HERE / "page" / "page.jsx"), "--bundle", "--format=esm",
        "--jsx=automatic", "--target=es2022", f"--outfile={target}", "--log-level=error", *ALIASES[request.param],
        '--define:process.env.NODE_ENV="production"',
    ]  # fmt: skip
    environment = {**os.environ, "NODE_PATH": str(NPM_PACKAGES / "node_modules")}
    subprocess.run(command, check=True, cwd=NPM_PACKAGES, env=environment)
    return target


@asynccontextmanager
async def open_page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = await browser.new_page()
        page.set_default_timeout(WAIT_MS)
        yield page
        await browser.close()


class UseChat:
    """The page of a front end, served from the server's own address."""

    def __init__(self, page: Page, server: CompatServer, name: str) -> None:
        self.page = page
        self.server = server
        self.name = name
        self.reply = page.locator("li.assistant").last

    async def open(self, bundle: Path) -> None:
        async def serve(route: Route) -> None:
            if route.request.url.endswith(".js"):
                await route.fulfill(path=bundle, content_type="text/javascript")
            else:
                await route.fulfill(body=HTML, content_type="text/html")

        await self.page.route("**/compat.*", serve)
        await self.page.goto(f"{self.server.url}/compat.html#{self.name}")
        await expect(self.page.get_by_label("Message")).to_be_visible()

    async def send(self, text: str) -> None:
        await self.page.get_by_label("Message").fill(text)
        await self.page.get_by_role("button", name="Send").click()

    async def click(self, name: str) -> None:
        await self.page.get_by_role("button", name=name).click()

    async def wait_for(self, text: str, *, status: str | None = None) -> None:
        await expect(self.reply).to_contain_text(text, timeout=WAIT_MS)
        if status is not None:
            await expect(self.page.locator("#status")).to_have_text(status, timeout=WAIT_MS)

    async def read(self) -> str:
        return "".join(await self.reply.locator(".text").all_text_contents())

    async def check_stored(self) -> None:
        """What is on the screen is what is stored, and a reload shows the same."""
        shown = await self.read()
        loaded: list[dict[str, Any]] = await self.page.evaluate(
            "name => fetch(`/ai-sdk/chat/${name}/messages`).then(answer => answer.json())", self.name
        )
        stored = "".join(part["text"] for part in loaded[-1]["parts"] if part["type"] == "text")
        assert shown == stored


async def test_use_chat_keeps_every_character(bundle: Path, tmp_path: Path) -> None:
    with run_compat_server(tmp_path) as server:
        async with open_page() as page:
            chat = UseChat(page, server, "talk-1")
            await chat.open(bundle)
            await chat.send("Hello")
            await chat.wait_for("You said: Hello", status="ready")
            await chat.check_stored()

            await chat.send("Weather here?")
            await chat.wait_for("The tool says: rain in Oslo.", status="ready")
            await expect(chat.reply.locator(".tool")).to_have_attribute("data-state", "output-available")

            await chat.send("Use the tool")
            await chat.click("Confirm")
            await chat.wait_for("The tool says: yes.", status="ready")
            await chat.check_stored()

            await chat.send("hold and stop")
            await chat.wait_for("word9")
            await chat.click("Stop")
            await chat.wait_for("word9", status="ready")
            await chat.check_stored()

            await chat.send("hold and reload")
            await chat.wait_for("word9")
            await page.reload()
            await chat.wait_for("word9", status="streaming")
            server.release.touch()
            await chat.wait_for(STORY, status="ready")
            assert await chat.read() == STORY
            await chat.check_stored()

            await chat.click("Regenerate")
            await chat.wait_for(STORY, status="ready")
            assert await chat.read() == STORY

            server.release.unlink()
            await chat.send("hold and kill")
            await chat.wait_for("word9")
            server.kill()
            await expect(page.locator("#status")).to_have_text("error", timeout=WAIT_MS)
            server.release.touch()
            server.start()
            await chat.click("Resume")
            await chat.wait_for(STORY, status="ready")
            assert await chat.read() == STORY
            await chat.check_stored()


async def test_started_with_the_sdk_stopped_on_the_page_continued_by_the_native_client(tmp_path: Path) -> None:
    with run_compat_server(tmp_path) as server:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client, open_page() as page:
            made = await client.responses.create(input="hold", background=True)
            stream = await client.responses.retrieve(made.id, stream=True)
            await page.goto(server.url)
            await page.get_by_text("hold").first.click()
            await expect(page.get_by_text("word9")).to_be_visible(timeout=WAIT_MS)
            await page.get_by_role("button", name="Stop", exact=True).click()
            events = [event async for event in stream]
            assert events[-1].type == "response.incomplete"
            assert events[-1].response.status == "cancelled"
            said = events[-1].response.output_text
        server.release.touch()
        async with indelible.Client(server.url) as native:
            (listed,) = await native.chats()
            reply = await (await native.chat(listed.id)).continue_()
            assert reply.message is not None
            assert said + reply.message.text == STORY
