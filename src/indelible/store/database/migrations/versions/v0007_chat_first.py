"""0007: the chat leads the key of the journal, the queue and the ledger, so that a database can be split by chat.

The journal and the ledger had no chat id; each row gets that of its attempt. SQLite cannot change a primary key: the
table is renamed, created again and filled, in the one transaction of the migration. Nothing refers to these tables,
so no other table changes. PostgreSQL replaces the key in place.
"""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute, get_dialect

revision: Final = "0007"
down_revision: Final = "0006"

_POSTGRES: Final = """
ALTER TABLE journal ADD COLUMN chat_id {id}

UPDATE journal SET chat_id = attempts.chat_id FROM attempts WHERE attempts.id = journal.attempt_id

DELETE FROM journal WHERE chat_id IS NULL

ALTER TABLE journal ALTER COLUMN chat_id SET NOT NULL

ALTER TABLE journal DROP CONSTRAINT journal_pk

ALTER TABLE journal ADD CONSTRAINT journal_pk PRIMARY KEY (chat_id, attempt_id, n)

ALTER TABLE tool_runs ADD COLUMN chat_id {id}

UPDATE tool_runs SET chat_id = attempts.chat_id FROM attempts WHERE attempts.id = tool_runs.attempt_id

ALTER TABLE tool_runs ALTER COLUMN chat_id SET NOT NULL

ALTER TABLE tool_runs DROP CONSTRAINT tool_runs_pk

ALTER TABLE tool_runs ADD CONSTRAINT tool_runs_pk PRIMARY KEY (chat_id, turn_id, step, call_index)

ALTER TABLE tool_runs ADD CONSTRAINT tool_runs_chat_id_fk
    FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE

ALTER TABLE queue DROP CONSTRAINT queue_pk

ALTER TABLE queue ADD CONSTRAINT queue_pk PRIMARY KEY (chat_id, id)

CREATE INDEX tool_runs_turn_id ON tool_runs (turn_id)
"""

_SQLITE: Final = """
ALTER TABLE journal RENAME TO journal_old

CREATE TABLE journal (
    chat_id TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    n BIGINT NOT NULL,
    parts BLOB NOT NULL,
    at TEXT NOT NULL,
    CONSTRAINT journal_pk PRIMARY KEY (chat_id, attempt_id, n),
    CONSTRAINT journal_n_check CHECK (n >= 0)
)

INSERT INTO journal (chat_id, attempt_id, n, parts, at)
    SELECT attempts.chat_id, old.attempt_id, old.n, old.parts, old.at
    FROM journal_old AS old JOIN attempts ON attempts.id = old.attempt_id

DROP TABLE journal_old

ALTER TABLE queue RENAME TO queue_old

CREATE TABLE queue (
    id TEXT NOT NULL,
    chat_id TEXT NOT NULL,
    position BIGINT NOT NULL,
    if_busy TEXT NOT NULL,
    content BLOB NOT NULL,
    model TEXT,
    author_id TEXT NOT NULL,
    created_at TEXT NOT NULL,
    CONSTRAINT queue_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT queue_chat_id_position_key UNIQUE (chat_id, position),
    CONSTRAINT queue_if_busy_check CHECK ("if_busy" IN ('queue', 'steer', 'interrupt', 'promoted')),
    CONSTRAINT queue_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT queue_author_id_fk FOREIGN KEY (author_id) REFERENCES users (id)
)

INSERT INTO queue (id, chat_id, position, if_busy, content, model, author_id, created_at)
    SELECT id, chat_id, position, if_busy, content, model, author_id, created_at FROM queue_old

DROP TABLE queue_old

ALTER TABLE tool_runs RENAME TO tool_runs_old

CREATE TABLE tool_runs (
    chat_id TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    call_index INTEGER NOT NULL,
    attempt_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments BLOB NOT NULL,
    state TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    result BLOB,
    started_at TEXT NOT NULL,
    settled_at TEXT,
    CONSTRAINT tool_runs_pk PRIMARY KEY (chat_id, turn_id, step, call_index),
    CONSTRAINT tool_runs_state_check CHECK ("state" IN ('started', 'settled')),
    CONSTRAINT tool_runs_settled_has_a_result_check CHECK ((state = 'settled') = (result IS NOT NULL)),
    CONSTRAINT tool_runs_settled_has_a_time_check CHECK ((state = 'settled') = (settled_at IS NOT NULL)),
    CONSTRAINT tool_runs_numbering_check CHECK (step >= 1 AND call_index >= 0),
    CONSTRAINT tool_runs_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT tool_runs_turn_id_fk FOREIGN KEY (turn_id) REFERENCES turns (id) ON DELETE CASCADE,
    CONSTRAINT tool_runs_attempt_id_fk FOREIGN KEY (attempt_id) REFERENCES attempts (id) ON DELETE CASCADE,
    CONSTRAINT tool_runs_idempotency_key_key UNIQUE (idempotency_key)
)

INSERT INTO tool_runs (chat_id, turn_id, step, call_index, attempt_id, call_id, name, arguments, state,
        idempotency_key, result, started_at, settled_at)
    SELECT attempts.chat_id, old.turn_id, old.step, old.call_index, old.attempt_id,
        old.call_id, old.name, old.arguments, old.state, old.idempotency_key,
        old.result, old.started_at, old.settled_at
    FROM tool_runs_old AS old JOIN attempts ON attempts.id = old.attempt_id

DROP TABLE tool_runs_old

CREATE INDEX tool_runs_attempt_id ON tool_runs (attempt_id)

CREATE INDEX tool_runs_turn_id ON tool_runs (turn_id)
"""


def upgrade() -> None:
    execute(_POSTGRES if get_dialect() == "postgresql" else _SQLITE)
