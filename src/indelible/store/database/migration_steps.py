"""What a migration does that SQL cannot: Python functions, by the number of their migration.

A step runs after the SQL of its file, in the same transaction, and while nobody can use the database. It is written as
a command is, over a `Transaction`: it awaits its statements and nothing else. It reads in chunks if rows may be many,
and it never fails because of a row that somebody else wrote badly.

Must stay true (tests/store/test_migrations.py, test_user_names.py): what cannot be read stays as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from indelible.content import decode_blocks
from indelible.content.messages import extract_title
from indelible.store.database.transaction import Transaction
from indelible.store.queries.likeness import find_likeness

_CHUNK_ROWS: Final = 100
"""Every chunk is two round trips, and nobody can use the database meanwhile; each chat's message may be long."""
_UNTITLED: Final = """
SELECT id, (
    SELECT blocks FROM messages WHERE chat_id = chats.id AND role = 'user' AND visibility = 'both'
    ORDER BY created_at, id LIMIT 1
) AS blocks
FROM chats WHERE title IS NULL AND head_id IS NOT NULL AND id > $1 ORDER BY id LIMIT $2
"""


async def name_untitled_chats(transaction: Transaction) -> None:
    """0016. A chat without words, or whose message cannot be read any more, stays as it is."""
    after = ""
    while chats := await transaction.all(_UNTITLED, after, _CHUNK_ROWS):
        after = chats[-1]["id"]
        named = [(title, chat["id"]) for chat in chats if (title := _find_title(chat["blocks"])) is not None]
        await transaction.many("UPDATE chats SET title = $1, title_is_provisional = TRUE WHERE id = $2", named)


def _find_title(blocks: bytes | None) -> str | None:
    try:
        return None if blocks is None else extract_title(decode_blocks(blocks))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


async def give_likenesses(transaction: Transaction) -> None:
    """0017. Of several users who look the same, the oldest has the likeness."""
    first: dict[str, str] = {}
    for user in await transaction.all("SELECT id, name FROM users ORDER BY created_at, id"):
        first.setdefault(find_likeness(user["name"]), user["id"])
    await transaction.many("UPDATE users SET likeness = $1 WHERE id = $2", first.items())


STEPS: Final[dict[str, Callable[[Transaction], Awaitable[None]]]] = {
    "0016": name_untitled_chats,
    "0017": give_likenesses,
}
