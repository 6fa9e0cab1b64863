"""What `indelible chats` and `indelible usage` print: found chats, a conversation, used tokens, and JSON for programs.

Everything is made of values and returned as lines; the commands print them. Text of users and models is foreign: it is
disarmed (markdown.py). JSON is plain ASCII, so that nothing in it can move a cursor.

Must stay true (tests/terminal/test_reports.py): no control character of a chat reaches the terminal.

listing.py has the list of chats, and finds one by its number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import msgspec

from indelible.api.shapes import ChatSummary, UsagePage
from indelible.app.app import User
from indelible.terminal.listing import describe_chats, find_chat
from indelible.terminal.markdown import disarm

_NO_MATCH: Final = "No chat has all of these words. The last one may be a beginning."
_NO_USAGE: Final = "Nothing was used in this time."
_INDENT: Final = " " * 5


def to_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(msgspec.to_builtins(value))


async def search_chats(user: User, words: str, *, limit: int) -> list[str]:
    """Two lines for each found chat: as in the list, without a number, and where it was found."""
    found = await user.chats(search=words, limit=limit)
    if not found:
        return [_NO_MATCH]
    lines = zip(describe_chats(found, numbered=False), map(_describe_match, found), strict=True)
    return [line for pair in lines for line in pair if line]


def _describe_match(chat: ChatSummary) -> str:
    """The piece of the text, with the found words in «these marks»."""
    if chat.match is msgspec.UNSET or chat.match.message_id is None:
        return ""
    text, pieces, end = chat.match.snippet.text, [], 0
    for start, stop in chat.match.snippet.ranges:
        pieces += [text[end:start], "«", text[start:stop], "»"]
        end = stop
    return _INDENT + " ".join(disarm("".join([*pieces, text[end:]])).split())


async def load_conversation(user: User, name: str | None) -> str:
    """The active branch of a chat, as Markdown."""
    chat = await find_chat(user, name)
    return disarm((await chat.export("md")).decode())


async def load_usage(
    user: User, *, since: date | None, until: date | None, of: str | None, by_user: bool, as_json: bool
) -> list[str]:
    """A line for each day and model, newest first, and one for all of them."""
    used = await user.usage(since=since, until=until, user=of, by_user=by_user)
    return [to_json(used)] if as_json else describe_usage(used, by_user=by_user)


def describe_usage(used: UsagePage, *, by_user: bool = False) -> list[str]:
    if not used.days:
        return [_NO_USAGE]
    total = used.total
    rows = [
        _make_row(day.day, "" if day.user is msgspec.UNSET else day.user, day.model or "(unknown)", day)
        for day in sorted(used.days, key=lambda day: day.day, reverse=True)
    ]
    rows = [("day", "user", "model", "turns", "input", "output", "cost"), *rows, _make_row("total", "", "", total)]
    if not by_user:
        rows = [(row[0], *row[2:]) for row in rows]
    return align(rows, right=4)


def _make_row(first: str, user: str, model: str, used: Any) -> tuple[str, ...]:
    cost = "unknown" if used.cost is None else f"${used.cost:,.4f}"
    counts = (f"{used.turns:,}", f"{used.input_tokens:,}", f"{used.output_tokens:,}", cost)
    return (first, disarm(user), disarm(model), *counts)


def align(rows: Sequence[tuple[str, ...]], *, right: int) -> list[str]:
    """Columns that line up; the last `right` ones at their right side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) - right
    return [
        "  ".join(
            cell.rjust(width) if number >= left else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
