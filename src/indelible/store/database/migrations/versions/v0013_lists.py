"""0013: the search index, labels as rows, unread marks, usage by day, and drafts of new chats.

Old chats are marked as unindexed, and the workers' sweep indexes them in the background, newest first, in short
transactions (store/lists/indexing.py): an upgrade does not wait for a million messages, and a search indexes what it
needs first. Nothing of before the upgrade is unread. Usage by day starts with the upgrade.
"""

from __future__ import annotations

from typing import Final

import msgspec
from alembic import op
from sqlalchemy import text

from indelible.store.database.migrations.spelling import execute, get_dialect
from indelible.store.database.tables.search_index import SQLITE_INDEX
from indelible.store.database.transaction import clean_label

revision: Final = "0013"
down_revision: Final = "0012"

_CHUNK_ROWS: Final = 1000
_SPELLINGS: Final = {
    "sqlite": {"number": "INTEGER NOT NULL", "words": "TEXT"},
    "postgresql": {"number": "BIGINT NOT NULL", "words": "TSVECTOR"},
}
_TABLES: Final = """
ALTER TABLE chats ADD COLUMN replied_seq BIGINT DEFAULT 0 NOT NULL

ALTER TABLE chats ADD COLUMN indexed_seq BIGINT DEFAULT 0 NOT NULL

ALTER TABLE chats ADD COLUMN unindexed_at {time}

UPDATE chats SET unindexed_at = updated_at

CREATE INDEX chats_unread ON chats (owner_id, archived, pinned, updated_at, id) WHERE replied_seq > last_read_seq

CREATE INDEX chats_unindexed ON chats (owner_id, unindexed_at) WHERE unindexed_at IS NOT NULL

CREATE TABLE search_entries (
    id {number},
    chat_id {id} NOT NULL,
    message_id {id},
    owner_id {id} NOT NULL,
    words {words} NOT NULL,
    CONSTRAINT search_entries_pk PRIMARY KEY (id),
    CONSTRAINT search_entries_chat_id_fk FOREIGN KEY(chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

CREATE INDEX search_entries_chat_id ON search_entries (chat_id)

CREATE INDEX search_entries_of_owner ON search_entries (owner_id, id)

CREATE TABLE chat_labels (
    chat_id {id} NOT NULL,
    label TEXT NOT NULL,
    owner_id {id} NOT NULL,
    CONSTRAINT chat_labels_pk PRIMARY KEY (chat_id, label),
    CONSTRAINT chat_labels_chat_id_fk FOREIGN KEY(chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

CREATE INDEX chat_labels_of_owner ON chat_labels (owner_id, label, chat_id)

CREATE TABLE usage_days (
    user_id {id} NOT NULL,
    day {id} NOT NULL,
    model TEXT NOT NULL,
    shard INTEGER NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_nanousd BIGINT NOT NULL,
    turns BIGINT NOT NULL,
    CONSTRAINT usage_days_pk PRIMARY KEY (user_id, day, model, shard),
    CONSTRAINT usage_days_user_id_fk FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
)

CREATE TABLE new_drafts (
    user_id {id} NOT NULL,
    content {bytes} NOT NULL,
    updated_at {time} NOT NULL,
    CONSTRAINT new_drafts_pk PRIMARY KEY (user_id),
    CONSTRAINT new_drafts_user_id_fk FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
)
"""
_POSTGRES: Final = "CREATE INDEX search_entries_words ON search_entries USING gin (words)"
_LABELLED: Final = (
    "SELECT id, owner_id, labels FROM chats WHERE labels IS NOT NULL AND id > :after ORDER BY id LIMIT :n"
)
_ADD_LABEL: Final = "INSERT INTO chat_labels (chat_id, label, owner_id) VALUES (:chat_id, :label, :owner_id)"


def upgrade() -> None:
    dialect = get_dialect()
    execute(_TABLES, **_SPELLINGS[dialect])
    for statement in (SQLITE_INDEX if dialect == "sqlite" else _POSTGRES).strip().split("\n\n"):
        op.execute(text(statement.replace(":", r"\:")))
    _copy_labels()


def _copy_labels() -> None:
    connection = op.get_bind()
    after = ""
    while chats := connection.execute(text(_LABELLED), {"after": after, "n": _CHUNK_ROWS}).all():
        after = chats[-1].id
        rows = [
            {"chat_id": chat.id, "owner_id": chat.owner_id, "label": label}
            for chat in chats
            for label in dict.fromkeys(map(clean_label, msgspec.json.decode(chat.labels, type=list[str])))
        ]
        if rows:
            connection.execute(text(_ADD_LABEL), rows)
