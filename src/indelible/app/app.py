"""A database that is open: its chats, and where to read them.

See compose.py for how it is opened, and chat.py for what can be done with a chat.
"""

from __future__ import annotations

from collections.abc import Sequence

from indelible.app.chat import Chat, Content, to_blocks
from indelible.clock import Clock
from indelible.errors import NotFound
from indelible.feed import Feed
from indelible.ids import new_id
from indelible.machine import commands
from indelible.recording.storage.sql_records import SqlRecords
from indelible.store.payloads import NewChat
from indelible.store.queries.listing import ChatSummary, ListCursor
from indelible.store.sql_store import SqlStore


class App:
    """What `indelible.open` gives: the chats of one user. `models` are the names of those that may be asked for."""

    def __init__(self, store: SqlStore, feed: Feed, *, clock: Clock, owner_id: str, models: Sequence[str] = ()) -> None:
        self.store = store
        self.feed = feed
        self.records = SqlRecords(store.engine)
        self.clock = clock
        self.owner_id = owner_id
        self.models = models

    async def create(
        self,
        message: Content | None = None,
        *,
        model: str | None = None,
        system: str | None = None,
        title: str | None = None,
    ) -> Chat:
        """A new chat; with a message it is answered at once."""
        chat_id = new_id("chat")
        new = NewChat(
            owner_id=self.owner_id,
            blocks=to_blocks(message) if message is not None else [],
            model=model,
            system_prompt=system,
            title=title,
        )
        await self.store.execute(chat_id, commands.Create(with_message=message is not None), new)
        return Chat(self, chat_id)

    async def chat(self, chat_id: str) -> Chat:
        """A chat that is there. Raises `NotFound` if this user has none of this id."""
        if await self.store.owner(chat_id) != self.owner_id:
            raise NotFound("There is no such chat.")
        return Chat(self, chat_id)

    async def chats(
        self, *, search: str | None = None, archived: bool = False, after: ListCursor | None = None, limit: int = 50
    ) -> list[ChatSummary]:
        """The user's chats, the last changed first."""
        return await self.store.list_chats(self.owner_id, archived=archived, search=search, after=after, limit=limit)
