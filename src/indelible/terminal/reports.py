"""What is printed of stored chats: the list, found chats, a conversation, used tokens, and JSON for programs.

Everything is made of values and returned as lines; `indelible chats`, `indelible usage` and `/list` print them. Text of
users and models is foreign: it is disarmed (widgets.py). JSON is plain ASCII, so that nothing in it can move a cursor.

Must stay true (tests/terminal/test_reports.py): no control character of a chat reaches the terminal.
(tests/terminal/test_listing.py): a chat is found by its id or by its number in the list.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import msgspec

from indelible.api.operations import MAX_PAGE
from indelible.api.shapes import ChatSummary, UsagePage
from indelible.app.app import User
from indelible.app.chat import Chat
from indelible.errors import NotFound
from indelible.terminal.widgets import disarm

_NO_MATCH: Final = "No chat has all of these words. The last one may be a beginning."
_NO_USAGE: Final = "Nothing was used in this time."
_INDENT: Final = " " * 5


def to_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(msgspec.to_builtins(value))


async def search_chats(user: User, words: str, *, limit: int, as_json: bool = False) -> list[str]:
    """Two lines for each found chat: as in the list, without a number, and where it was found."""
    found = await user.chats(search=words, limit=limit)
    if as_json:
        return [to_json(found)]
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
    return (first, user, model, *counts)


def align(rows: Sequence[tuple[str, ...]], *, right: int = 0) -> list[str]:
    """Columns that line up; the last `right` ones at their right side. Names and labels may come from anywhere."""
    rows = [tuple(disarm(cell).replace("\n", " ") for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) - right
    return [
        "  ".join(
            cell.rjust(width) if number >= left else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


LISTED: Final = 20
_NO_CHATS: Final = "There are no chats yet. Start one with: indelible chat"


async def list_chats(user: User, *, limit: int = LISTED, as_json: bool = False) -> list[str]:
    """One line for each chat: number, time of the last update, status, id and title."""
    chats = await user.chats(limit=limit)
    return [to_json(chats)] if as_json else describe_chats(chats) or [_NO_CHATS]


async def find_chat(user: User, name: str | None) -> Chat:
    """The chat with this id or this number in the list; by default the most recent one."""
    if name is not None and not name.isdecimal():
        try:
            return await user.chat(name)
        except NotFound:
            raise NotFound(f"Chat '{name}' not found. List chats with: indelible chats") from None
    number = 1 if name is None else int(name)
    chats = await user.chats(limit=MAX_PAGE if name is None else max(1, number))
    if not chats:
        raise NotFound(_NO_CHATS)
    if name is None:  # pinned chats come first in the list, however old they are
        return await user.chat(max(chats, key=lambda chat: chat.updated_at).id)
    if not 1 <= number <= len(chats):
        raise NotFound(f"Chat {number} not found: the list has {len(chats)}.")
    return await user.chat(chats[number - 1].id)


def describe_chats(chats: Sequence[ChatSummary], *, numbered: bool = True) -> list[str]:
    """`numbered`: these are all chats from the first on, so that a number names a chat."""
    widest = max((len(chat.status) for chat in chats), default=0)
    return [
        f"{f'{number:>3}' if numbered else '  ·'}  {chat.updated_at.astimezone():%Y-%m-%d %H:%M}"
        f"  {chat.status:<{widest}}  {chat.id}  {_name(chat)}"
        for number, chat in enumerate(chats, start=1)
    ]


def _name(chat: ChatSummary) -> str:
    return " ".join(disarm(chat.title or "").split()) or "(no title)"
