"""0015: chats for one turn are ephemeral, the word that the field uses; the table was `passing_chats`."""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute

revision: Final = "0015"
down_revision: Final = "0014"

_TABLES: Final = """
CREATE TABLE ephemeral_chats (
    chat_id {id} NOT NULL,
    CONSTRAINT ephemeral_chats_pk PRIMARY KEY (chat_id),
    CONSTRAINT ephemeral_chats_chat_id_fk FOREIGN KEY(chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

INSERT INTO ephemeral_chats (chat_id) SELECT chat_id FROM passing_chats

DROP TABLE passing_chats
"""


def upgrade() -> None:
    execute(_TABLES)
