"""0005: the index of a message's children has the parent first and the chat second.

With the chat first, PostgreSQL without statistics considered this index as good as the primary key for finding one
message, and read a whole chat to check a foreign key.
"""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute

revision: Final = "0005"
down_revision: Final = "0004"

_INDEX: Final = """
DROP INDEX messages_children

CREATE INDEX messages_children ON messages (parent_id, chat_id)
"""


def upgrade() -> None:
    execute(_INDEX)
