"""0003: the state that takeovers and retries of a turn need, and the chat of an idempotency key."""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute

revision: Final = "0003"
down_revision: Final = "0002"

_COLUMNS: Final = """
ALTER TABLE turns ADD COLUMN model TEXT

ALTER TABLE turns ADD COLUMN said BIGINT DEFAULT 0 NOT NULL

ALTER TABLE idempotency_keys ADD COLUMN chat_id {id}
    CONSTRAINT idempotency_keys_chat_id_fk REFERENCES chats (id) ON DELETE CASCADE

CREATE INDEX idempotency_keys_chat_id ON idempotency_keys (chat_id)
"""


def upgrade() -> None:
    execute(_COLUMNS)
