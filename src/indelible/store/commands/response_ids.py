"""Forgetting what a provider calls its replies, when it may not know them any more (SPEC 4.4)."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.errors import LeaseLost
from indelible.store.database.tables import chats, messages


async def forget_responses(connection: AsyncConnection, chat_id: str, *, epoch: int) -> None:
    held = select(chats.c.epoch).where(chats.c.id == chat_id).with_for_update(key_share=True)
    if (await connection.execute(held)).scalar() != epoch:
        raise LeaseLost(f"The lease of epoch {epoch} is over.")
    named = update(messages).where(messages.c.chat_id == chat_id, messages.c.response_id.is_not(None))
    await connection.execute(named.values(response_id=None))
