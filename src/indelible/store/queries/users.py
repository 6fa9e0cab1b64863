"""The owners of chats: who owns a chat, which names a user may have, and the one statement that makes a user.

A program on one machine has one user and no login; its caller names that user. A server's users come from logins
(store/accounts/). Both follow the same rule about names. A user who was made before the rule existed is still found.

Names are compared as they are written, but no new one may look like another's (likeness.py). The database decides, by a
unique column, so two servers cannot make such a pair at the same time.

Must stay true (tests/store/test_user_names.py, tests/store/test_accounts.py): no way to make a user allows a name that
another way refuses, and concurrent calls make one user.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from indelible.api.shapes import UserRole
from indelible.errors import Invalid
from indelible.ids import is_id, new_id
from indelible.store.database.transaction import Transaction
from indelible.store.queries.likeness import find_likeness, remove_disguise

LONGEST_USER_NAME: Final = 200
_OWNER: Final = "SELECT owner_id FROM chats WHERE id = $1"
_NEW_USER: Final = """
    INSERT INTO users (id, name, role, created_at, likeness) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING
    """
_ALIKE: Final = "SELECT name FROM users WHERE likeness = $1"
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
    """Create a user with a checked name, unless there is one with this name.

    Raises `Invalid` if it looks like another user's.
    """
    likeness, disguised = find_likeness(name), remove_disguise(name)
    if disguised == likeness or await transaction.one(_ALIKE, disguised) is None:
        await transaction.run(_NEW_USER, new_id("user"), name, role, now, likeness)
    if await transaction.one(_USER, name) is None:
        other = await transaction.one(_ALIKE, likeness) or await transaction.one(_ALIKE, disguised)
        raise Invalid(f"The name {name} looks like that of the user {other['name']}. Choose another.")


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
