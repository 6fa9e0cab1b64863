"""The owners of chats: who owns a chat, which names a user may have, and the one statement that makes a user.

A program on one machine has one user and no login; its caller names that user. A server's users come from logins
(store/accounts/). Both follow the same rule about names. A user who was made before the rule existed is still found.

Must stay true (tests/store/test_open_turn.py, tests/store/test_accounts.py): no way to make a user allows a name that
another way refuses, and concurrent calls make one user.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from indelible.errors import Invalid
from indelible.ids import is_id, new_id
from indelible.store.database.tables.enumerations import UserRole
from indelible.store.database.transaction import Transaction

LONGEST_USER_NAME: Final = 200
_OWNER: Final = "SELECT owner_id FROM chats WHERE id = $1"
_NEW_USER: Final = "INSERT INTO users (id, name, role, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
_USER: Final = "SELECT id FROM users WHERE name = $1"


async def find_owner(transaction: Transaction, chat_id: str) -> str | None:
    """The owner of this chat; None if it does not exist. `chat_id` may be any text."""
    row = await transaction.one(_OWNER, chat_id) if is_id(chat_id) else None
    return None if row is None else str(row["owner_id"])


async def find_user(transaction: Transaction, name: str) -> str | None:
    """The id of the user with this name. None if a new user may have the name; `Invalid` if not."""
    row = await transaction.one(_USER, name)
    if row is None:
        check_user_name(name)
    return None if row is None else str(row["id"])


async def ensure_user(transaction: Transaction, name: str) -> str:
    """The id of the user with this name, who is created if missing. Concurrent calls get the same id."""
    found = await find_user(transaction, name)
    if found is None:
        await insert_user(transaction, name, "user", await transaction.now())
        found = str((await transaction.one(_USER, name))["id"])
    return found


async def insert_user(transaction: Transaction, name: str, role: UserRole, now: datetime) -> None:
    """Create a user with a checked name, unless there is one with this name."""
    await transaction.run(_NEW_USER, new_id("user"), name, role, now)


def check_user_name(name: object) -> None:
    """Raise `Invalid` for a name that a new user may not have: it stands in headers, commands and lines of a list."""
    if (
        not isinstance(name, str)
        or not name
        or len(name) > LONGEST_USER_NAME
        or not name.isprintable()
        or name != name.strip()
    ):
        raise Invalid(f"A user's name has 1 to {LONGEST_USER_NAME} printable characters, and no spaces around it.")
