"""The use cases of lists on a server behind a URL (service/lists/protocol.py says what each one promises).

Each method is one route (http_transport.py sends the requests), whose JSON is decoded into the same types that the
server encoded. A tab reconnects by itself: its list starts over with `chats`, and the feed of its chat resumes from its
cursor.

Must stay true (tests/app/test_same_script.py): one script gives the same results here and in process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import date

from indelible.api.events import FeedEvent
from indelible.api.shapes import CreatedChat, Draft, ExportFormat, UsagePage
from indelible.client.http_transport import HttpTransport


class RemoteLists:
    """The lists of the user of the token."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http

    async def mark_read(self, chat_id: str, seq: int | None = None) -> None:
        await self._http.write(object, "POST", f"/chats/{chat_id}/read", {"seq": seq})

    async def get_draft(self, chat_id: str) -> Draft:
        return await self._http.read(Draft, f"/chats/{chat_id}/draft")

    async def save_draft(self, chat_id: str, text: str) -> None:
        await self._http.write(object, "PUT", f"/chats/{chat_id}/draft", {"text": text})

    async def export_chat(self, chat_id: str, format: ExportFormat = "json") -> bytes:
        return await self._http.read_bytes(f"/chats/{chat_id}/export", {"format": format})

    async def import_chat(self, content: bytes) -> CreatedChat:
        return await self._http.write(CreatedChat, "POST", "/chats/import", content)

    async def get_usage(
        self, *, since: date | None = None, until: date | None = None, user: str | None = None, by_user: bool = False
    ) -> UsagePage:
        query = {"since": since, "until": until, "user": user, "by": "user" if by_user else None}
        return await self._http.read(UsagePage, "/usage", query)

    @asynccontextmanager
    async def open_tab(
        self, chat_id: str | None = None, *, after: str | None = None
    ) -> AsyncIterator[AsyncIterator[FeedEvent]]:
        async with aclosing(self._http.follow("/events", {"chat": chat_id}, after=after)) as events:
            yield events
