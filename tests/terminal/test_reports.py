"""What is found, shown and counted, as lines that are safe to print."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from indelible.api.shapes import UsageDay, UsagePage, UsageTotal
from indelible.app.app import App
from indelible.terminal.reports import describe_usage, load_conversation, load_usage, search_chats
from indelible.testing import ScriptedModel, parts

OpenApp = Callable[..., AbstractAsyncContextManager[App]]


async def test_a_found_chat_is_shown_with_the_place_and_without_control_characters(open_chats: OpenApp) -> None:
    said = [parts.text_delta("1", "The \x1b[2J lighthouse\nis dark."), parts.finish()]
    async with open_chats(ScriptedModel([said])) as app:
        await app.create_chat(title="Another")
        chat = await app.create_chat(title="Sea")
        await chat.send("Well?")
        line, place = await search_chats(app, "dark light", limit=5)
        assert line.startswith("  ·  ")
        assert line.endswith(f"{chat.id}  Sea")
        assert place == "     The \ufffd[2J «lighthouse» is «dark»."
        assert await search_chats(app, "submarine", limit=5) == [
            "No chat has all of these words. The last one may be a beginning."
        ]
        shown = await load_conversation(app, None)
        assert shown.startswith("# Sea\n\n## You\n\nWell?\n")
        assert "The \ufffd[2J lighthouse\nis dark." in shown
        found = await load_usage(app, since=None, until=None, of=None, by_user=False, as_json=False)
        assert found[0].split() == ["day", "model", "turns", "input", "output", "cost"]
        assert found[-1].split()[:2] == ["total", "1"]


def test_used_tokens_are_a_table_with_a_total() -> None:
    days = [
        UsageDay(day="2026-11-01", model="demo", input_tokens=1200, output_tokens=3, cost=0.0, turns=1, user="ada"),
        UsageDay(day="2026-11-02", model=None, input_tokens=8, output_tokens=30, cost=1.25, turns=20, user="al\x1b"),
    ]
    total = UsageTotal(input_tokens=1208, output_tokens=33, cost=1.25, turns=21)
    assert describe_usage(UsagePage(days=days, total=total), by_user=True) == [
        "day         user  model      turns  input  output     cost",
        "2026-11-02  al\ufffd   (unknown)     20      8      30  $1.2500",
        "2026-11-01  ada   demo           1  1,200       3  $0.0000",
        "total                           21  1,208      33  $1.2500",
    ]
    assert describe_usage(UsagePage(days=[], total=total)) == ["Nothing was used in this time."]
