"""0016: chats from before every chat had a title get one: the first words of their first message (rule 10.15).

It is provisional, as that of a new chat: the model may give a better one at the chat's next turn. A chat without a
message or without words stays as it is, and so does one whose message cannot be read any more.
"""

from __future__ import annotations

from typing import Final

import msgspec
from alembic import op
from sqlalchemy import text

from indelible.content import decode_blocks
from indelible.content.messages import extract_title
from indelible.store.database.transaction import clean_label

revision: Final = "0016"
down_revision: Final = "0015"

_CHUNK_ROWS: Final = 100
"""Every chunk is two round trips, and nobody can use the database meanwhile; each chat's message may be long."""
_UNTITLED: Final = """
SELECT id, (
    SELECT blocks FROM messages WHERE chat_id = chats.id AND role = 'user' AND visibility = 'both'
    ORDER BY created_at, id LIMIT 1
) AS blocks
FROM chats WHERE title IS NULL AND head_id IS NOT NULL AND id > :after ORDER BY id LIMIT :n
"""
_NAME: Final = "UPDATE chats SET title = :title, title_is_provisional = TRUE WHERE id = :chat_id"


def upgrade() -> None:
    connection = op.get_bind()
    after = ""
    while chats := connection.execute(text(_UNTITLED), {"after": after, "n": _CHUNK_ROWS}).all():
        after = chats[-1].id
        found = {chat.id: title for chat in chats if (title := _find_title(chat.blocks)) is not None}
        if found:
            named = [{"chat_id": chat_id, "title": clean_label(title)} for chat_id, title in found.items()]
            connection.execute(text(_NAME), named)


def _find_title(blocks: bytes | None) -> str | None:
    try:
        return None if blocks is None else extract_title(decode_blocks(blocks))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
