"""The user's chats as lines of text, pinned first, then the most recently updated: for `indelible chats` and `/list`.

Must stay true (tests/terminal/test_listing.py): a chat is found by its id or by its number in the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from indelible.api.operations import MAX_PAGE
from indelible.api.shapes import ChatSummary
from indelible.app.app import User
from indelible.app.chat import Chat
from indelible.errors import NotFound
from indelible.terminal.markdown import disarm

LISTED: Final = 20
_NO_CHATS: Final = "There are no chats yet. Start one with: indelible chat"


async def list_chats(user: User, *, limit: int = LISTED) -> list[str]:
    """One line for each chat: number, time of the last update, status, id and title."""
    chats = await user.chats(limit=limit)
    return describe_chats(chats) or [_NO_CHATS]


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
