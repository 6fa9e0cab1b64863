"""A chat is named after its first words, then by the model if that gives a title, and never against the user (S81)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.app_harness import AppHarness, make_settings
from tests.support.messages import read_text

from indelible.content import Message, Part, Text, TextDelta
from indelible.content.messages import MAX_TITLE_LENGTH, find_first_words, tidy_title
from indelible.errors import ModelFailed
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script
from indelible.worker.summaries import INSTRUCTION

TITLES = make_settings(auto_titles=True)
ANSWER = "Yes, in Oslo it rains."


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


class Titling:
    """A model that answers, and gives titles as it is told."""

    provider = name = "titling"
    context_limit = None

    def __init__(self, title: Script) -> None:
        self.asked: list[Call] = []
        self._title = title

    def stream(self, call: Call) -> AsyncIterator[Part]:
        if read_text(call.messages[0].blocks) != INSTRUCTION:
            return ScriptedModel([say(ANSWER)]).stream(call)
        self.asked.append(call)
        return ScriptedModel([self._title]).stream(call)


async def test_the_model_that_replied_makes_the_title(harness: AppHarness) -> None:
    model = Titling(say('  "Rain in Oslo."\n'))
    await harness.start_worker(model, settings=TITLES)
    chat = await harness.app.create_chat("Is it raining in Oslo?")
    assert (await chat.details()).title in ("Is it raining in Oslo?", "Rain in Oslo")
    await harness.wait_until(chat, lambda view: view.title == "Rain in Oslo")
    (call,) = model.asked
    assert "Is it raining" in read_text(call.messages[1].blocks)
    await harness.wait_for_end(chat)
    assert [event.data["title"] for event in await harness.read_events(chat) if event.kind == "chat"] == [
        "Is it raining in Oslo?", "Rain in Oslo"
    ]  # fmt: skip


async def test_thinking_is_no_part_of_a_title(harness: AppHarness) -> None:
    await harness.start_worker(Titling(say("<think>a name, a name</think>\nRain in Oslo")), settings=TITLES)
    chat = await harness.app.create_chat("Is it raining in Oslo?")
    await harness.wait_until(chat, lambda view: view.title == "Rain in Oslo")


@pytest.mark.parametrize("title", [[ModelFailed("Busy.", kind="overloaded")], say(""), say(' "" ')])
async def test_without_a_usable_title_the_users_first_words_serve(harness: AppHarness, title: Script) -> None:
    model = Titling(title)
    await harness.start_worker(model, settings=TITLES)
    chat = await harness.app.create_chat()
    await chat.send("Is it raining in Oslo?")
    await harness.stop_worker(harness.workers[0])
    assert (await harness.store.view(chat.id)).title == "Is it raining in Oslo?"
    assert len(model.asked) == 1


async def test_a_title_of_the_user_is_never_asked_for_nor_overwritten(harness: AppHarness) -> None:
    model = Titling(say("Rain in Oslo"))
    await harness.start_worker(model, settings=TITLES)
    chat = await harness.app.create_chat(title="Weather")
    await chat.send("Is it raining in Oslo?")
    await harness.stop_worker(harness.workers[0])
    assert ((await harness.store.view(chat.id)).title, model.asked) == ("Weather", [])


async def test_a_title_that_the_user_gives_meanwhile_stays(harness: AppHarness) -> None:
    asked, gate, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def ponder() -> AsyncIterator[Part]:
        asked.set()
        await gate.wait()
        yield TextDelta("1", "Rain in Oslo")
        done.set()
        yield parts.finish()

    await harness.start_worker(Titling(lambda call: ponder()), settings=TITLES)
    chat = await harness.app.create_chat("Is it raining in Oslo?")
    await asked.wait()
    await chat.update(title="Weather")
    gate.set()
    await done.wait()
    await chat.send("And in Bergen?")
    assert (await harness.store.view(chat.id)).title == "Weather"
    given = [event.data["title"] for event in await harness.read_events(chat) if event.kind == "chat"]
    assert given == ["Is it raining in Oslo?", "Weather"]


async def test_a_title_holds_nothing_up_and_ends_with_the_worker(harness: AppHarness) -> None:
    asked = asyncio.Event()

    async def ponder() -> AsyncIterator[Part]:
        asked.set()
        await asyncio.get_running_loop().create_future()
        yield parts.finish()

    running = await harness.start_worker(Titling(lambda call: ponder()), settings=TITLES)
    chat = await harness.app.create_chat("Is it raining in Oslo?")
    await asked.wait()
    assert (await chat.send("And in Bergen?")).text == ANSWER
    await harness.stop_worker(running)
    assert (await harness.store.view(chat.id)).title == "Is it raining in Oslo?"
    await harness.start_worker(Titling(say("Rain")), settings=TITLES)
    await chat.send("And in Tromsø?")
    await harness.wait_until(chat, lambda view: view.title == "Rain")


async def test_without_the_setting_no_title_is_asked_for(harness: AppHarness) -> None:
    model = Titling(say("Rain in Oslo"))
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.send("Is it raining in Oslo?")
    await harness.stop_worker(harness.workers[0])
    assert ((await harness.store.view(chat.id)).title, model.asked) == ("Is it raining in Oslo?", [])


async def test_a_chat_that_was_deleted_meanwhile_needs_no_title(harness: AppHarness) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def ponder() -> AsyncIterator[Part]:
        asked.set()
        await gate.wait()
        yield parts.finish()

    await harness.start_worker(Titling(lambda call: ponder()), settings=TITLES)
    chat = await harness.app.create_chat("Is it raining in Oslo?")
    await asked.wait()
    await chat.delete()
    gate.set()
    other = await harness.app.create_chat(title="Another")
    assert (await other.send("Still there?")).text == ANSWER


@pytest.mark.parametrize(
    ("expected", "title"),
    [
        ("Rain in Oslo", "Rain in Oslo"),
        ('  **"Rain in Oslo."** \nmore', "Rain in Oslo"),
        ("\n\n# Rain\tin   Oslo\n", "Rain in Oslo"),
        ("", ""),
        (" \n '' ", ""),
        ("word " * 40, "word " * 15 + "word…"),
        ("x" * 200, "x" * MAX_TITLE_LENGTH + "…"),
        ("Is **rain** in `Oslo` _wet_?", "Is rain in Oslo wet?"),
        ("## [Rain](https://example.org/a 'b') in ![the](x.png) ~~old~~ Oslo", "Rain in the old Oslo"),
        ("> - [ ] Buy **_an_ umbrella**", "Buy an umbrella"),
        ("1. Look at <https://example.org/>", "Look at https://example.org/"),
        ("```python\nrain = 1\n```", "rain = 1"),
        ("---\n\nRain", "Rain"),
        ("Why is 2 * 3 * 4 = snake_case_name ** 2?", "Why is 2 * 3 * 4 = snake_case_name ** 2?"),
        (r"What is \*args?", "What is *args?"),
        ("What is `**kwargs`?", "What is **kwargs?"),
        ("-5 °C in Oslo", "-5 °C in Oslo"),
        ("[" * 5000, "[" * MAX_TITLE_LENGTH + "…"),
    ],
)
def test_a_title_is_one_tidy_line(expected: str, title: str) -> None:
    assert tidy_title(expected) == title


def test_first_words_are_the_users_own() -> None:
    hidden = Message(role="user", blocks=[Text("Go on")], visibility="model")
    asked = Message(role="user", blocks=[Text("Where is\nmy cat?")])
    assert find_first_words([Message(role="system", blocks=[Text("Be brief")]), hidden, asked]) == "Where is"
    assert find_first_words([Message(role="user", blocks=[Text("  ")])]) is None
    assert find_first_words([]) is None
