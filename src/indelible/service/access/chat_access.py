"""Who may do what with a chat: the one rule, for every use case (docs/login.md).

    the owner                 everything
    a user it is shared with  read it: the chat, its messages, its tree, its events; anything else is `ReadOnly`
    everybody else            it does not exist: `NotFound`

The store compares the owner in the locked row of every command; this module explains its refusal. So the owner's
request costs nothing here, and nobody else's can change anything.

Must stay true (tests/server/test_access_matrix.py): the table above, for every route.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from indelible.errors import ChatNotFound, NotFound, ReadOnly
from indelible.store.accounts.protocol import ShareStore
from indelible.store.protocol import ChatStore

_READ_ONLY: Final = "This chat is shared with you for reading. Only its owner can do this."


class Access:
    """Without `shares`, a chat is its owner's alone."""

    def __init__(self, store: ChatStore, shares: ShareStore | None) -> None:
        self._store = store
        self._shares = shares

    async def check_read(self, chat_id: str, user_id: str) -> str | None:
        """The share that makes the user who reads the chat a guest (guests.py); None for the owner.

        Raises `NotFound` for a user who may not read it.
        """
        if await self._store.owner(chat_id) == user_id:
            return None
        share_id = await self.find_share(chat_id, user_id)
        if share_id is None:
            raise ChatNotFound
        return share_id

    async def check_owner(self, chat_id: str, user_id: str) -> None:
        """Raises `NotFound`, or `ReadOnly`, unless the chat is this user's."""
        async with self.explained(chat_id, user_id):
            if await self._store.owner(chat_id) != user_id:
                raise ChatNotFound

    async def find_share(self, chat_id: str, user_id: str) -> str | None:
        """The share that lets this user read another's chat."""
        return None if self._shares is None else await self._shares.find_share(chat_id, user_id)

    @asynccontextmanager
    async def explained(self, chat_id: str, user_id: str) -> AsyncIterator[None]:
        """A `NotFound` within the block is `ReadOnly` to those who may read the chat."""
        try:
            yield
        except NotFound as error:
            if await self.find_share(chat_id, user_id) is not None:
                raise ReadOnly(_READ_ONLY) from error
            raise
