"""What lists of chats promise beyond the list itself (`ChatStore.list_chats`), whichever database is behind it.

A behaviour exists when it has a docstring here and a test on both databases (tests/store/test_list_promises.py names
the test of each sentence).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Protocol

from indelible.api.shapes import ChatExtras, ChatSummary, Draft, UsageDay
from indelible.store.lists.search import SearchCursor, SearchPage
from indelible.store.lists.transfer import ChatFile
from indelible.store.protocol import Once, Outcome
from indelible.store.queries.listing import ALL_CHATS, ChatFilter


class ListStore(Protocol):
    async def search(
        self,
        owner_id: str,
        text: str,
        *,
        wanted: ChatFilter = ALL_CHATS,
        cursor: SearchCursor | None = None,
        limit: int = 50,
    ) -> SearchPage:
        """The user's chats whose title or messages have all words of the text, newest match first.

        * The last word may be the beginning of one. Case, diacritics and the order of words do not matter.
        * It finds what was committed before it was called.
        * Reasoning, results of tools and what only a model sees is not found.
        * Only the newest matches are looked at, so a common word costs no more than a rare one.
        """

    async def index(self, *, limit: int) -> int:
        """Add what is new in up to `limit` chats to the search index; returns how many chats it tried.

        * Each commit is short. A crash in between loses nothing.
        """

    async def forget_chat(self, chat_id: str) -> None:
        """Remove a chat that is about to be deleted from the search index, in short transactions.

        * If it is not deleted after all, it is found again.
        """

    async def summaries(self, chat_ids: Sequence[str]) -> dict[str, tuple[str, ChatSummary]]:
        """The owner and the line of each of these chats, by id. One statement. A deleted chat is left out."""

    async def stale(self, *, updated_before: datetime, limit: int) -> list[str]:
        """Chats in which nothing was said since then and that can be archived: idle, not pinned, not unread."""

    async def find_ephemeral(self, *, updated_before: datetime, limit: int) -> list[str]:
        """Ephemeral chats whose turn ended before this time: nobody deleted them.

        * One that somebody has gone on with, or that is archived, is not among them.
        """

    async def mark_read(
        self, chat_id: str, user_id: str, seq: int | None = None, *, once: Once | None = None
    ) -> Outcome:
        """Mark a chat as read up to event `seq`; None: all of it.

        * A mark only moves forward. A message of the user's own moves it too.
        * A chat that the user does not own is `NotFound`.
        """

    async def extras(self, chat_id: str, user_id: str) -> ChatExtras:
        """Labels, pin, read mark, system prompt and the user's draft of a chat. Raises `NotFound`."""

    async def draft(self, chat_id: str, user_id: str) -> Draft:
        """What the user has typed in a chat; with `new` instead of an id, for the next chat."""

    async def save_draft(self, chat_id: str, user_id: str, text: str, *, once: Once | None = None) -> Outcome:
        """Replace the user's draft; an empty text deletes it.

        * It goes with its chat, and nobody else sees it.
        """

    async def usage(self, user_id: str | None, *, since: date, until: date, name: str | None = None) -> list[UsageDay]:
        """What a user's chats used, by day and model; None: of every user, by name, or of the user with this `name`.

        * Every attempt counts with what its provider reported, once, on the day on which it ended.
        * It stays when a chat is deleted.
        * A `name` that no user has is `NotFound`.
        """

    async def export_chat(self, chat_id: str) -> ChatFile:
        """The whole chat, every branch, of one moment."""

    async def import_chat(self, file: ChatFile, *, owner_id: str, once: Once | None = None) -> Outcome:
        """Create a chat from an exported one: the same tree under new ids. It is idle.

        * All of it is written, or nothing. Exporting it again gives the same.
        """
