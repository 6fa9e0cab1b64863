"""The owners of chats. A program on one machine has one user and no login; a setting names that user."""

from __future__ import annotations

from typing import Final

from indelible.ids import is_id, new_id
from indelible.store.database.transaction import Transaction

_OWNER: Final = "SELECT owner_id FROM chats WHERE id = $1"
_NEW_USER: Final = "INSERT INTO users (id, name, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
_USER: Final = "SELECT id FROM users WHERE name = $1"


async def find_owner(transaction: Transaction, chat_id: str) -> str | None:
    """The owner of this chat; None if it does not exist. `chat_id` may be any text."""
    row = await transaction.one(_OWNER, chat_id) if is_id(chat_id) else None
    return None if row is None else str(row["owner_id"])


async def ensure_user(transaction: Transaction, name: str) -> str:
    """The id of the user with this name, who is created if missing. Concurrent calls get the same id."""
    await transaction.run(_NEW_USER, new_id("user"), name, await transaction.now())
    row = await transaction.one(_USER, name)
    return str(row["id"])
