"""docs/feed.md has every kind of event, and what is sent is what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.feed.feed_harness import FeedHarness, say_everything

from indelible.api.events import KINDS
from indelible.content import encode
from indelible.feed.events import START
from indelible.machine.commands import Send

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "feed.md").read_text()
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^###|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def list_fields(kind: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", SECTIONS[kind], re.MULTILINE)


def read_example(kind: str) -> Any:
    (example,) = re.findall(r"```json\n(.*?)```", SECTIONS[kind], re.DOTALL)
    return json.loads(example)


def test_the_page_has_every_kind_in_the_order_of_the_contract() -> None:
    assert tuple(SECTIONS) == KINDS


def test_the_web_page_listens_for_every_kind() -> None:
    script = (ROOT / "src" / "indelible" / "server" / "web" / "core" / "chat.js").read_text()
    (listed,) = re.findall(r"const KINDS = \[(.*?)\]", script, re.DOTALL)
    assert tuple(re.findall(r'"(\w+)"', listed)) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_shows_fields_that_the_page_explains(kind: str) -> None:
    assert set(read_example(kind)) <= set(list_fields(kind))


async def test_every_event_that_is_sent_has_the_fields_that_the_page_explains(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat, START) as seen:
        await say_everything(chat)
        await seen.catch_up()
        harness.feed.close()
        sent = await seen.wait_for("end")

    assert {event.kind for event in sent} == set(KINDS) - {"snapshot", "resync"}
    for event in sent:
        assert set(event.data) <= set(list_fields(event.kind)), event.kind
    messages = [event.data["message"] for event in sent if event.kind == "message"]
    assert {tuple(message) for message in messages} == {tuple(read_example("message")["message"])}


async def test_a_snapshot_of_a_running_chat_is_like_the_example(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    await chat.write("It is ")
    await chat.do(Send(), "And Bergen?")
    example = read_example("snapshot")

    snapshot = json.loads(encode(await harness.feed.snapshot(chat.id)))

    assert tuple(snapshot) == tuple(example)
    assert tuple(snapshot["live"]) == tuple(example["live"])
    assert tuple(snapshot["messages"][0]) == tuple(example["messages"][0])
    assert tuple(snapshot["queue"][0]) == tuple(read_example("queue")["queue"][0])
