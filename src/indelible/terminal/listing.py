"""The user's chats as lines of text, the last changed first: for `indelible chats` and for `/list`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.errors import NotFound
from indelible.store.queries.listing import ChatSummary
from indelible.terminal.markdown import disarm

LISTED: Final = 20
_NO_CHATS: Final = "There are no chats yet. 'indelible chat' begins one."


async def list_chats(app: App, *, limit: int = LISTED) -> list[str]:
    """One line for each chat: its number, when it was last changed, what it does, its title and its id."""
    chats = await app.chats(limit=limit)
    return _describe(chats) or [_NO_CHATS]


async def find_chat(app: App, name: str | None) -> Chat:
    """The chat of this id or of this number in the list; the last changed one, if none is named."""
    if name is not None and not name.isdecimal():
        try:
            return await app.chat(name)
        except NotFound:
            raise NotFound(f"There is no chat '{name}'. 'indelible chats' lists those that there are.") from None
    number = 1 if name is None else int(name)
    chats = await app.chats(limit=max(1, number))
    if not chats:
        raise NotFound(_NO_CHATS)
    if not 1 <= number <= len(chats):
        raise NotFound(f"There is no chat {number}: the list has {len(chats)}.")
    return await app.chat(chats[number - 1].id)


def _describe(chats: Sequence[ChatSummary]) -> list[str]:
    widest = max((len(chat.status) for chat in chats), default=0)
    return [
        f"{number:>3}  {chat.updated_at.astimezone():%Y-%m-%d %H:%M}  {chat.status:<{widest}}  {chat.id}  {_name(chat)}"
        for number, chat in enumerate(chats, start=1)
    ]


def _name(chat: ChatSummary) -> str:
    return " ".join(disarm(chat.title or "").split()) or "(no title)"
