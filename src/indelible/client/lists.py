"""The use cases of lists on a server behind a URL (service/lists/protocol.py says what each one promises).

Each method is one request of wire.py, whose JSON is decoded into the same types that the server encoded. A tab
reconnects by itself: its list starts over with `chats`, and the feed of its chat resumes from its cursor.

Must stay true (tests/app/test_same_script.py): one script gives the same results here and in process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import date

import msgspec

from indelible.client.wire import WireClient
from indelible.machine.events import FeedEvent
from indelible.service.lists.protocol import Draft, ExportFormat, UsagePage
from indelible.service.results import CreatedChat


class RemoteLists:
    """The lists of the user of the token."""

    def __init__(self, wire: WireClient) -> None:
        self._wire = wire

    async def mark_read(self, chat_id: str, seq: int | None = None) -> None:
        await self._wire.write_json("POST", f"/chats/{chat_id}/read", {"seq": seq})

    async def get_draft(self, chat_id: str) -> Draft:
        return msgspec.convert(await self._wire.read_json(f"/chats/{chat_id}/draft"), Draft)

    async def save_draft(self, chat_id: str, text: str) -> None:
        await self._wire.write_json("PUT", f"/chats/{chat_id}/draft", {"text": text})

    async def export_chat(self, chat_id: str, format: ExportFormat = "json") -> bytes:
        return await self._wire.read_bytes(f"/chats/{chat_id}/export", {"format": format})

    async def import_chat(self, content: bytes) -> CreatedChat:
        return msgspec.convert(await self._wire.write_json("POST", "/chats/import", content), CreatedChat)

    async def get_usage(
        self, *, since: date | None = None, until: date | None = None, user: str | None = None, by_user: bool = False
    ) -> UsagePage:
        query = {"since": since, "until": until, "user": user, "by": "user" if by_user else None}
        return msgspec.convert(await self._wire.read_json("/usage", query), UsagePage)

    @asynccontextmanager
    async def open_tab(
        self, chat_id: str | None = None, *, after: str | None = None
    ) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        query = {} if chat_id is None else {"chat": chat_id}
        async with aclosing(self._wire.follow("/events", query, after=after)) as events:
            yield events
