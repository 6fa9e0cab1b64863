"""The use cases beside a conversation, for one user: read marks, drafts, usage, chats as files, the live list.

As for `ChatService` (service/protocol.py), two classes implement it: `LocalLists` (local.py) in this process and
`RemoteLists` (client/lists.py) on a server. A chat of another user is `NotFound`.

Must stay true (tests/app/test_same_script.py, tests/service/test_list_service.py): one script gives the same results
with either, and no use case reads or changes anything of another user.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import date
from typing import Protocol

from indelible.api.events import FeedEvent
from indelible.api.shapes import CreatedChat, Draft, ExportFormat, UsageDay, UsagePage, UsageTotal


def add_up(days: list[UsageDay]) -> UsageTotal:
    known = [day.cost for day in days if day.cost is not None]
    return UsageTotal(
        input_tokens=sum(day.input_tokens for day in days),
        output_tokens=sum(day.output_tokens for day in days),
        cost=sum(known) if known or not days else None,
        turns=sum(day.turns for day in days),
    )


class ListService(Protocol):
    async def mark_read(self, chat_id: str, seq: int | None = None) -> None:
        """Mark the chat as read, up to the event `seq` or all of it."""

    async def get_draft(self, chat_id: str) -> Draft:
        """What the user has typed in the chat; `new` instead of an id is the next chat."""

    async def save_draft(self, chat_id: str, text: str) -> None:
        """Replace the draft; an empty text deletes it."""

    async def export_chat(self, chat_id: str, format: ExportFormat = "json") -> bytes:
        """The chat as a file: all of it as JSON, which can be imported, or the active branch as Markdown."""

    async def import_chat(self, content: bytes) -> CreatedChat:
        """Create a chat from an exported one (JSON). A file with a mistake is `Invalid`, and changes nothing."""

    async def get_usage(
        self, *, since: date | None = None, until: date | None = None, user: str | None = None, by_user: bool = False
    ) -> UsagePage:
        """What the user's chats used, by day and model; the last 30 days by default.

        An admin may ask for another user by name, or for all of them.
        """

    def open_tab(
        self, chat_id: str | None = None, *, after: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[FeedEvent]]:
        """The live list of the user's chats and, with `chat_id`, the feed of that chat woven into it."""
