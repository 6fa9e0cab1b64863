"""0002: idempotency keys, drafts, files."""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute

revision: Final = "0002"
down_revision: Final = "0001"

_TABLES: Final = """
CREATE TABLE idempotency_keys (
    user_id {id} NOT NULL,
    "key" TEXT NOT NULL,
    route TEXT NOT NULL,
    body_hash {bytes} NOT NULL,
    status INTEGER NOT NULL,
    body {bytes} NOT NULL,
    expires_at {time} NOT NULL,
    CONSTRAINT idempotency_keys_pk PRIMARY KEY (user_id, "key"),
    CONSTRAINT idempotency_keys_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
)

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at)

CREATE TABLE drafts (
    user_id {id} NOT NULL,
    chat_id {id} NOT NULL,
    content {bytes} NOT NULL,
    updated_at {time} NOT NULL,
    CONSTRAINT drafts_pk PRIMARY KEY (user_id, chat_id),
    CONSTRAINT drafts_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT drafts_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

CREATE INDEX drafts_chat_id ON drafts (chat_id)

CREATE TABLE files (
    id {id} NOT NULL,
    owner_id {id} NOT NULL,
    chat_id {id},
    name TEXT,
    media_type TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    sha256 {bytes} NOT NULL,
    content {bytes} NOT NULL,
    created_at {time} NOT NULL,
    CONSTRAINT files_pk PRIMARY KEY (id),
    CONSTRAINT files_size_bytes_check CHECK (size_bytes >= 0),
    CONSTRAINT files_owner_id_fk FOREIGN KEY (owner_id) REFERENCES users (id),
    CONSTRAINT files_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

CREATE INDEX files_chat_id ON files (chat_id)

CREATE INDEX files_owner_id ON files (owner_id)
"""


def upgrade() -> None:
    execute(_TABLES)
