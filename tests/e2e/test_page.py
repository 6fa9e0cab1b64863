"""The page in a real browser, on a real server: what a user sees is what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from tests.e2e.browsing import NARROW, Window, browse
from tests.e2e.pen import Pen
from tests.server.forwarder import Forwarder
from tests.support.app_harness import serve_app
from tests.support.counting_model import ask_to_count, count
from tests.support.json_client import JsonClient
from tests.support.process_harness import ProcessHarness, choose_port
from tests.support.running_server import RunningServer, say, say_half, text_of
from tests.support.waiting import poll_until

from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

pytestmark = [
    pytest.mark.parametrize("migrated", ["sqlite"], indirect=True),
    pytest.mark.asyncio(loop_scope="session"),  # the browser's
]

STOPPED = ("notice", "Stopped by you.")
MARKUP = "<img src=x onerror=\"window.broken='in'\"><script>window.broken = 'in'</script> & <b>bold</b>"


async def read_stored(server: RunningServer, window: Window) -> list[tuple[str, str]]:
    messages = await server.client.read_all_messages(window.chat_id)
    return [(message["role"], text_of(message)) for message in messages]


async def test_s6_a_reply_appears_as_it_is_written_and_a_stop_keeps_it_on_the_page(
    browser: Browser, database: str
) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("Tell me of the rain.")
        pen.write("It rains ")
        await expect(window.live).to_have_text("It rains ")
        pen.write("in Bergen.")
        await expect(window.live).to_have_text("It rains in Bergen.")
        await expect(window.status).to_have_text("Replying…")

        await window.button("Stop").click()

        await expect(window.button("Stop")).to_be_hidden()
        await expect(window.button("Continue")).to_be_visible()
        await expect(window.items.last).to_contain_text("Stopped · saved")
        shown = await window.read_items()
        assert shown == [("user", "Tell me of the rain."), ("assistant", "It rains in Bergen.")]
        assert [*shown, STOPPED] == await read_stored(server, window)


async def test_s69_a_question_that_was_stopped_before_the_first_word_has_a_retry(
    browser: Browser, database: str
) -> None:
    model = ScriptedModel([[parts.hang()], say("It rains.")])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        await window.send("Tell me of the rain.")
        await poll_until(lambda: bool(model.calls))
        await window.button("Stop").click()
        await expect(window.items).to_have_count(2)

        await window.button("Retry").click()

        await expect(window.items).to_have_count(3)
        await expect(window.button("Retry")).to_be_hidden()
        assert (await window.read_items())[1:] == [STOPPED, ("assistant", "It rains.")]


async def test_s75_the_error_and_its_retry_stay_on_their_branch(browser: Browser, database: str) -> None:
    model = ScriptedModel([say("It rains."), ModelFailed("The key is wrong.", kind="auth")])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        await window.send("Tell me of the rain.")
        await expect(window.items).to_have_count(2)
        await window.send("And the sun?")
        await expect(window.button("Retry")).to_be_visible()
        first = (await server.client.read_all_messages(window.chat_id))[1]["id"]

        await server.client.switch_branch(window.chat_id, first, exact=True)

        await expect(window.items).to_have_count(2)
        await expect(window.button("Retry")).to_be_hidden()
        await expect(window.problem).to_be_hidden()
        await server.client.switch_branch(window.chat_id, first)
        await expect(window.button("Retry")).to_be_visible()
        await expect(window.problem).to_have_text("The key is wrong.")


async def test_after_a_refresh_a_reply_continues_and_ends_as_stored(browser: Browser, database: str) -> None:
    pen = Pen()
    async with serve_app(database, ScriptedModel([pen.stream])) as server, browse(browser, server.url) as window:
        await window.send("Tell me of the rain.")
        pen.write("It ", "rains ")
        await expect(window.live).to_have_text("It rains ")

        await window.page.reload()

        await expect(window.live).to_have_text("It rains ")
        pen.write("in ", "Bergen.")
        pen.finish()
        await expect(window.live).to_have_count(0)
        await expect(window.status).to_have_text("")
        assert await window.read_items() == await read_stored(server, window)
        assert (await window.read_items())[-1] == ("assistant", "It rains in Bergen.")
        await expect(window.chats).to_have_count(1)


async def test_the_page_reconnects_to_a_killed_and_restarted_server_and_shows_the_text_once(
    browser: Browser, database: str, tmp_path: Path
) -> None:
    """And as one document: a block of code in which the server died is one block."""
    async with ProcessHarness(database, tmp_path).opened() as processes:
        server = await processes.start_server(port=choose_port())
        async with browse(browser, server.url, tolerates=("net::ERR_",)) as window:
            await window.send(ask_to_count(60, pace_ms=5, as_code=True))
            await expect(window.live.locator("pre")).to_contain_text("3 ")
            await server.kill()
            await expect(window.status).to_have_text("Reconnecting…")

            await processes.start_server(port=server.port)
            processes.finish_replies()

            await expect(window.items.last).to_contain_text(" 60 ")
            await expect(window.live).to_have_count(0)
            await expect(window.status).to_have_text("")
            await expect(window.items).to_have_count(2)
            await expect(window.items.last.locator("pre")).to_have_count(1)
            assert (await window.items.last.locator("pre").inner_text()).strip() == count(60).strip()
            await expect(window.page.locator(".cut")).to_have_count(0)
            async with JsonClient(server.url) as client:
                stored = await client.read_all_messages(window.chat_id)
            text = "".join(text_of(message) for message in stored if message["role"] == "assistant")
            assert text == f"```\n{count(60)}\n```"
            assert len(stored) > 2


async def test_markup_from_anywhere_is_shown_as_text_and_nothing_of_it_runs(browser: Browser, database: str) -> None:
    call: list[Step] = [
        parts.reasoning_delta("r", MARKUP),
        parts.tool_call("1", MARKUP, MARKUP),
        parts.finish("tool_calls"),
    ]
    async with serve_app(database, ScriptedModel([call, say(MARKUP)])) as server, browse(browser, server.url) as window:
        await window.send(MARKUP)
        await expect(window.items).to_have_count(2)
        await expect(window.items.last.locator(".text")).to_contain_text("bold")
        await server.client.update_chat(window.chat_id, title=MARKUP)
        await expect(window.page.locator("#title")).to_have_text(MARKUP)
        await expect(window.chats).to_have_text(MARKUP)
        shown = await window.read_items()
        assert [shown[0], shown[-1]] == [("user", MARKUP), ("assistant", MARKUP)]
        await expect(window.page.locator("#messages .call").first).to_contain_text(MARKUP)
        assert await window.page.locator("#app :is(img, script, b)").count() == 0
        assert await window.page.evaluate("window.broken") is None


async def test_the_content_security_policy_blocks_foreign_scripts_and_requests(browser: Browser, database: str) -> None:
    inline = """() => {
        const made = document.createElement('script');
        made.append('window.broken = 1');
        document.head.append(made);
    }"""
    markup = """() => { try { document.body.innerHTML = '<b>x</b>'; return 'in'; } catch { return 'out'; } }"""
    async with (
        serve_app(database, worker=False) as server,
        browse(browser, server.url, tolerates=("Content Security Policy", "Trusted")) as window,
    ):
        await window.page.evaluate(inline)
        assert await window.page.evaluate("window.broken") is None
        assert await window.page.evaluate(markup) == "out", "Trusted Types"
        assert await window.page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'in', () => 'out')") == "out"
        assert len(window.complaints) >= 2


async def test_everything_can_be_done_with_the_keyboard(browser: Browser, database: str) -> None:
    model = ScriptedModel([say_half("One"), say("Two")])
    async with serve_app(database, model) as server, browse(browser, server.url) as window:
        await expect(window.composer).to_be_focused()
        await window.page.keyboard.type("First line")
        await window.page.keyboard.press("Shift+Enter")
        await window.page.keyboard.type("second line")
        await window.page.keyboard.press("Enter")
        await expect(window.live).to_have_text("One")
        await expect(window.composer).to_have_value("")
        await window.page.keyboard.press("Escape")
        await expect(window.button("Continue")).to_be_visible()
        await window.page.keyboard.type("Again")
        await window.page.keyboard.press("Enter")
        await expect(window.items.last.locator(".text")).to_have_text("Two")
        assert (await window.read_items())[0] == ("user", "First line\nsecond line")


async def test_on_a_narrow_screen_nothing_overflows_and_the_list_is_one_tap_away(
    browser: Browser, database: str
) -> None:
    wide = say("An-unbroken-word-" * 20)
    async with serve_app(database, ScriptedModel([wide])) as server, browse(browser, server.url, size=NARROW) as window:
        await window.send("x" * 300)
        await expect(window.items).to_have_count(2)
        assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await expect(window.chats).to_be_hidden()
        await window.button("Show chats").click()
        await expect(window.chats).to_be_visible()
        await expect(window.page.get_by_label("Search chats")).to_be_focused()
        await window.page.locator("#shade").click(position={"x": 380, "y": 300})
        await expect(window.chats).to_be_hidden()
        await window.button("Show chats").click()
        await window.button("New chat").click()
        await expect(window.chats).to_be_hidden()
        await expect(window.items).to_have_count(0)
        await expect(window.composer).to_be_in_viewport()


async def test_a_message_sent_during_a_reply_is_queued_and_can_be_removed(browser: Browser, database: str) -> None:
    pen = Pen()
    async with (
        serve_app(database, ScriptedModel([pen.stream, say("Two!")])) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("One")
        pen.write("One!")
        await expect(window.live).to_have_text("One!")
        await window.send("Two")
        await window.send("Three")
        await expect(window.queue.locator("span")).to_have_text(["Queued · 1 of 2: Two", "Queued · 2 of 2: Three"])
        drawn = [await window.queue.last.element_handle(), await window.live.locator(".text").element_handle()]
        pen.write(" And one!")
        await expect(window.live).to_have_text("One! And one!")
        assert [await thing.evaluate("node => node.isConnected") for thing in drawn] == [True, True], "redrawn"
        await window.queue.last.get_by_role("button", name="Remove from queue").click()
        await expect(window.queue).to_have_count(1)
        pen.finish()
        await expect(window.items).to_have_count(4)
        await expect(window.live).to_have_count(0)
        await expect(window.queue).to_have_count(0)
        assert [text for _, text in await window.read_items()] == ["One", "One! And one!", "Two", "Two!"]


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_a_failed_reply_shows_why_and_can_be_retried(browser: Browser, database: str) -> None:
    broken: list[Step] = [RuntimeError("The model fell over.")]
    async with (
        serve_app(database, ScriptedModel([broken, say("Well again.")])) as server,
        browse(browser, server.url) as window,
    ):
        await window.send("Hello?")
        await expect(window.problem).to_contain_text("failed with an unknown error")
        await expect(window.status).to_have_text("Error")
        await window.button("Retry").click()
        await expect(window.items.last.locator(".text")).to_have_text("Well again.")
        await expect(window.problem).to_be_hidden()


async def test_a_message_whose_response_is_lost_is_stored_once(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, worker=False) as server,
        Forwarder([server.url]).listening() as network,
        browse(browser, network.url, tolerates=("net::ERR_",)) as window,
    ):
        network.lose_answers(1)
        await window.send("Once")
        await expect(window.page.locator("li.user:not(.pending)")).to_have_count(1)
        await expect(window.items).to_have_count(1)
        assert len((await server.client.list_chats())["items"]) == 1


async def test_a_missing_chat_is_reported_and_not_requested_forever(browser: Browser, database: str) -> None:
    async with (
        serve_app(database, worker=False) as server,
        browse(browser, f"{server.url}/#chat_of_nobody", tolerates=("404",)) as window,
    ):
        await expect(window.problem).to_have_text("Chat not found. It may have been deleted.")
        await window.button("Start a new chat").click()
        await expect(window.problem).to_be_hidden()
        await window.send("Hello")
        await expect(window.items).to_have_count(1)
