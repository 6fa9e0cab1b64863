"""The use cases of sharing a chat: with a user, or by a link that anybody can read who has it.

Must stay true (tests/server/test_access_matrix.py): a share lets others read, and nothing else.
"""

from __future__ import annotations

from msgspec.structs import asdict

from indelible.api.shapes import ChatPage, CreatedShare, Link, SharePage
from indelible.errors import NotFound
from indelible.service.access.chat_access import Access
from indelible.service.access.guests import show_summary
from indelible.store.accounts.protocol import ShareStore


class ShareService:
    """For one user."""

    def __init__(self, shares: ShareStore, access: Access, user_id: str) -> None:
        self._shares = shares
        self._access = access
        self._user_id = user_id

    async def share(self, chat_id: str, user: str | None) -> CreatedShare:
        async with self._access.explained(chat_id, self._user_id):
            if user is not None:
                made = await self._shares.share_with_user(chat_id, user, owner_id=self._user_id)
                return CreatedShare(**asdict(made), url=None)
            made, key = await self._shares.share_by_link(chat_id, owner_id=self._user_id)
            return CreatedShare(**asdict(made), url=f"/shared/{key}")

    async def list_shares(self, chat_id: str) -> SharePage:
        async with self._access.explained(chat_id, self._user_id):
            return SharePage(items=await self._shares.list_shares(chat_id, owner_id=self._user_id))

    async def delete_share(self, chat_id: str, share_id: str) -> None:
        async with self._access.explained(chat_id, self._user_id):
            await self._shares.delete_share(chat_id, share_id, owner_id=self._user_id)

    async def list_shared(self, *, limit: int) -> ChatPage:
        """The chats that others share with this user, most recently updated first."""
        found = await self._shares.list_shared(self._user_id, limit=limit)
        return ChatPage(items=[show_summary(summary) for summary in found], next=None)


async def open_link(shares: ShareStore, key: str) -> Link:
    """The chat behind a link. A link that does not exist any more never did."""
    link = await shares.find_link(key)
    if link is None:
        raise NotFound("This link does not exist, or its owner has removed it.")
    return link
