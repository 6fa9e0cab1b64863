"""0009: errors of branches, limits as reasons, the order of lists and of waiting chats, provisional titles, and tools.

The notice of a failed turn keeps the error, so that the branch has it whenever one returns to it. Chats that are
failed now get theirs from the chat's row.

`updated_at` moves only when something is said, so it no longer shows since when a chat waits for a worker:
`runnable_at` does. Lists are pinned first, and so is their index. A chat's `tools` are run by its client.

SQLite cannot change a check: as in 0008, the table's SQL text is edited, which copies no row.
"""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute, get_dialect

revision: Final = "0009"
down_revision: Final = "0008"

_COLUMNS: Final = """
ALTER TABLE chats ADD COLUMN runnable_at {time}

ALTER TABLE chats ADD COLUMN title_is_provisional BOOLEAN DEFAULT {false} NOT NULL

ALTER TABLE chats ADD COLUMN tools {bytes}

UPDATE chats SET runnable_at = updated_at

DROP INDEX chats_of_owner

CREATE INDEX chats_of_owner ON chats (owner_id, archived, pinned, updated_at, id)

DROP INDEX chats_runnable

CREATE INDEX chats_runnable ON chats (status, runnable_at) WHERE status IN ('running', 'interrupting')

ALTER TABLE messages ADD COLUMN error {bytes}

UPDATE messages SET error = (SELECT error FROM chats WHERE id = messages.chat_id)
    WHERE role = 'notice' AND EXISTS (
        SELECT 1 FROM chats WHERE id = messages.chat_id AND head_id = messages.id AND status = 'error'
    )
"""
_POSTGRES: Final = """
ALTER TABLE messages DROP CONSTRAINT messages_reason_check

ALTER TABLE messages ADD CONSTRAINT messages_reason_check CHECK ("reason" IN (
    'interrupted', 'crashed', 'handed_over', 'failed', 'edited', 'length', 'content_filter', 'max_steps'
))
"""
_SQLITE: Final = """
PRAGMA writable_schema = ON

UPDATE sqlite_schema SET sql = replace(sql, '''length''', '''length'', ''content_filter'', ''max_steps''')
    WHERE type = 'table' AND name = 'messages'

PRAGMA writable_schema = RESET
"""


def upgrade() -> None:
    execute(_COLUMNS)
    execute(_POSTGRES if get_dialect() == "postgresql" else _SQLITE)
