"""0014: chats that were made for one turn and are to be deleted after it. Those from before are not known, and stay."""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute

revision: Final = "0014"
down_revision: Final = "0013"

_TABLES: Final = """
CREATE TABLE passing_chats (
    chat_id {id} NOT NULL,
    CONSTRAINT passing_chats_pk PRIMARY KEY (chat_id),
    CONSTRAINT passing_chats_chat_id_fk FOREIGN KEY(chat_id) REFERENCES chats (id) ON DELETE CASCADE
)
"""


def upgrade() -> None:
    execute(_TABLES)
