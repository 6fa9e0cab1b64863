"""0008: the chat leads the key of turns, attempts, drafts and debug records too, and every reference between them.

A message, an attempt or a tool call can then only name a turn and an attempt of its own chat.

PostgreSQL replaces the constraints. While a table has no statistics, every index that begins with the chat has the
same estimated cost, whatever the other conditions, and PostgreSQL picks the newest. So a full index by turn or by
attempt has the chat second: then it is never picked instead of the primary key. It is created after that key, and so
are the indexes of open rows. With the chat first, deleting a chat of 600 turns took 360,000 index lookups
(tests/store/test_long_chats.py). The indexes of messages are partial, and only used where they are meant to be.

SQLite cannot change a primary key: the table is renamed, created again and filled. Tables that refer to it must now
refer to the new one, which `legacy_alter_table` ensures. Of messages and the ledger only the references change; for
that, SQLite's documentation recommends editing the table's SQL text, which copies no row.
"""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute, get_dialect

revision: Final = "0008"
down_revision: Final = "0007"

_POSTGRES: Final = """
LOCK TABLE debug_runs, debug_steps, debug_attempts IN ACCESS EXCLUSIVE MODE

ALTER TABLE messages DROP CONSTRAINT messages_turn_id_fk, DROP CONSTRAINT messages_attempt_id_fk

ALTER TABLE tool_runs DROP CONSTRAINT tool_runs_turn_id_fk, DROP CONSTRAINT tool_runs_attempt_id_fk

ALTER TABLE attempts
    DROP CONSTRAINT attempts_turn_id_fk,
    DROP CONSTRAINT attempts_pk,
    DROP CONSTRAINT attempts_turn_id_step_number_key

ALTER TABLE turns DROP CONSTRAINT turns_pk

ALTER TABLE turns ADD CONSTRAINT turns_pk PRIMARY KEY (chat_id, id)

DROP INDEX turns_one_open

CREATE UNIQUE INDEX turns_one_open ON turns (chat_id) WHERE ended_at IS NULL

DROP INDEX attempts_of_chat

ALTER TABLE attempts ADD CONSTRAINT attempts_pk PRIMARY KEY (chat_id, id)

DROP INDEX attempts_one_open

CREATE UNIQUE INDEX attempts_one_open ON attempts (chat_id) WHERE ended_at IS NULL

ALTER TABLE attempts
    ADD CONSTRAINT attempts_turn_id_chat_id_step_number_key UNIQUE (turn_id, chat_id, step, number)

ALTER TABLE attempts ADD CONSTRAINT attempts_chat_id_turn_id_fk
    FOREIGN KEY (chat_id, turn_id) REFERENCES turns (chat_id, id) ON DELETE CASCADE

DROP INDEX messages_of_turn

CREATE INDEX messages_of_turn ON messages (chat_id, turn_id) WHERE turn_id IS NOT NULL

DROP INDEX messages_of_attempt

CREATE INDEX messages_of_attempt ON messages (chat_id, attempt_id) WHERE attempt_id IS NOT NULL

ALTER TABLE messages
    ADD CONSTRAINT messages_chat_id_turn_id_fk
        FOREIGN KEY (chat_id, turn_id) REFERENCES turns (chat_id, id),
    ADD CONSTRAINT messages_chat_id_attempt_id_fk
        FOREIGN KEY (chat_id, attempt_id) REFERENCES attempts (chat_id, id)

DROP INDEX tool_runs_turn_id

DROP INDEX tool_runs_attempt_id

CREATE INDEX tool_runs_of_attempt ON tool_runs (attempt_id, chat_id)

ALTER TABLE tool_runs
    ADD CONSTRAINT tool_runs_chat_id_turn_id_fk
        FOREIGN KEY (chat_id, turn_id) REFERENCES turns (chat_id, id) ON DELETE CASCADE,
    ADD CONSTRAINT tool_runs_chat_id_attempt_id_fk
        FOREIGN KEY (chat_id, attempt_id) REFERENCES attempts (chat_id, id) ON DELETE CASCADE

DROP INDEX drafts_chat_id

CREATE INDEX drafts_user_id ON drafts (user_id)

ALTER TABLE drafts DROP CONSTRAINT drafts_pk

ALTER TABLE drafts ADD CONSTRAINT drafts_pk PRIMARY KEY (chat_id, user_id)

ALTER TABLE debug_steps ADD COLUMN chat_id {id}

UPDATE debug_steps SET chat_id = debug_runs.chat_id FROM debug_runs WHERE debug_runs.id = debug_steps.run_id

ALTER TABLE debug_steps ALTER COLUMN chat_id SET NOT NULL

ALTER TABLE debug_attempts ADD COLUMN chat_id {id}

UPDATE debug_attempts SET chat_id = debug_runs.chat_id FROM debug_runs WHERE debug_runs.id = debug_attempts.run_id

ALTER TABLE debug_attempts ALTER COLUMN chat_id SET NOT NULL

ALTER TABLE debug_attempts DROP CONSTRAINT debug_attempts_run_id_step_fk, DROP CONSTRAINT debug_attempts_pk

ALTER TABLE debug_steps DROP CONSTRAINT debug_steps_run_id_fk, DROP CONSTRAINT debug_steps_pk

ALTER TABLE debug_runs DROP CONSTRAINT debug_runs_pk

DROP INDEX debug_runs_of_chat

ALTER TABLE debug_runs ADD CONSTRAINT debug_runs_pk PRIMARY KEY (chat_id, id)

ALTER TABLE debug_steps
    ADD CONSTRAINT debug_steps_pk PRIMARY KEY (chat_id, run_id, step),
    ADD CONSTRAINT debug_steps_chat_id_run_id_fk
        FOREIGN KEY (chat_id, run_id) REFERENCES debug_runs (chat_id, id) ON DELETE CASCADE

ALTER TABLE debug_attempts
    ADD CONSTRAINT debug_attempts_pk PRIMARY KEY (chat_id, run_id, step, number),
    ADD CONSTRAINT debug_attempts_chat_id_run_id_step_fk
        FOREIGN KEY (chat_id, run_id, step) REFERENCES debug_steps (chat_id, run_id, step) ON DELETE CASCADE
"""

_SQLITE: Final = """
PRAGMA legacy_alter_table = ON

ALTER TABLE turns RENAME TO turns_old

CREATE TABLE turns (
    chat_id TEXT NOT NULL,
    id TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    message_id TEXT,
    outcome TEXT,
    started_at TEXT NOT NULL,
    ended_at TEXT,
    takeovers INTEGER DEFAULT 0 NOT NULL,
    stalled_takeovers INTEGER DEFAULT 0 NOT NULL,
    model TEXT,
    journal_rows_at_takeover BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT turns_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT turns_chat_id_number_key UNIQUE (chat_id, number),
    CONSTRAINT turns_kind_check CHECK ("kind" IN ('reply', 'compaction')),
    CONSTRAINT turns_outcome_check CHECK ("outcome" IN ('complete', 'interrupted', 'failed', 'edited')),
    CONSTRAINT turns_one_end_check CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CONSTRAINT turns_number_check CHECK (number >= 1),
    CONSTRAINT turns_takeovers_check CHECK (stalled_takeovers >= 0 AND stalled_takeovers <= takeovers),
    CONSTRAINT turns_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT turns_chat_id_message_id_fk FOREIGN KEY (chat_id, message_id) REFERENCES messages (chat_id, id)
)

INSERT INTO turns (chat_id, id, number, kind, message_id, outcome, started_at, ended_at, takeovers, stalled_takeovers,
        model, journal_rows_at_takeover)
    SELECT chat_id, id, number, kind, message_id, outcome, started_at, ended_at, takeovers, stalled_takeovers,
        model, journal_rows_at_takeover
    FROM turns_old

DROP TABLE turns_old

CREATE INDEX turns_of_message ON turns (chat_id, message_id) WHERE message_id IS NOT NULL

CREATE UNIQUE INDEX turns_one_open ON turns (chat_id) WHERE ended_at IS NULL

ALTER TABLE attempts RENAME TO attempts_old

CREATE TABLE attempts (
    chat_id TEXT NOT NULL,
    id TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    number INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    provider TEXT,
    model TEXT,
    outcome TEXT,
    last_n BIGINT,
    error BLOB,
    usage BLOB,
    started_at TEXT NOT NULL,
    ended_at TEXT,
    packed BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT attempts_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT attempts_turn_id_chat_id_step_number_key UNIQUE (turn_id, chat_id, step, number),
    CONSTRAINT attempts_outcome_check CHECK ("outcome" IN (
        'complete', 'interrupted', 'failed', 'crashed', 'handed_over', 'edited', 'reset'
    )),
    CONSTRAINT attempts_one_end_check CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CONSTRAINT attempts_last_n_is_told_check CHECK ((outcome IS NULL) = (last_n IS NULL)),
    CONSTRAINT attempts_numbering_check CHECK (step >= 1 AND number >= 1),
    CONSTRAINT attempts_epoch_check CHECK (epoch >= 0),
    CONSTRAINT attempts_last_n_check CHECK (last_n >= 0),
    CONSTRAINT attempts_packed_has_ended_check CHECK (NOT packed OR ended_at IS NOT NULL),
    CONSTRAINT attempts_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT attempts_chat_id_turn_id_fk
        FOREIGN KEY (chat_id, turn_id) REFERENCES turns (chat_id, id) ON DELETE CASCADE
)

INSERT INTO attempts (chat_id, id, turn_id, step, number, epoch, provider, model, outcome, last_n, error, usage,
        started_at, ended_at, packed)
    SELECT chat_id, id, turn_id, step, number, epoch, provider, model, outcome, last_n, error, usage,
        started_at, ended_at, packed
    FROM attempts_old

DROP TABLE attempts_old

CREATE UNIQUE INDEX attempts_one_open ON attempts (chat_id) WHERE ended_at IS NULL

CREATE INDEX attempts_to_pack ON attempts (ended_at) WHERE NOT packed AND ended_at IS NOT NULL

PRAGMA writable_schema = ON

UPDATE sqlite_schema SET sql = replace(replace(replace(replace(sql,
        '_turn_id_fk FOREIGN KEY (turn_id)', '_chat_id_turn_id_fk FOREIGN KEY (chat_id, turn_id)'),
        '_attempt_id_fk FOREIGN KEY (attempt_id)', '_chat_id_attempt_id_fk FOREIGN KEY (chat_id, attempt_id)'),
        'REFERENCES turns (id)', 'REFERENCES turns (chat_id, id)'),
        'REFERENCES attempts (id)', 'REFERENCES attempts (chat_id, id)')
    WHERE type = 'table' AND name IN ('messages', 'tool_runs')

PRAGMA writable_schema = RESET

DROP INDEX messages_of_turn

CREATE INDEX messages_of_turn ON messages (chat_id, turn_id) WHERE turn_id IS NOT NULL

DROP INDEX messages_of_attempt

CREATE INDEX messages_of_attempt ON messages (chat_id, attempt_id) WHERE attempt_id IS NOT NULL

DROP INDEX tool_runs_turn_id

DROP INDEX tool_runs_attempt_id

CREATE INDEX tool_runs_of_attempt ON tool_runs (attempt_id, chat_id)

ALTER TABLE drafts RENAME TO drafts_old

CREATE TABLE drafts (
    chat_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    content BLOB NOT NULL,
    updated_at TEXT NOT NULL,
    CONSTRAINT drafts_pk PRIMARY KEY (chat_id, user_id),
    CONSTRAINT drafts_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT drafts_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

INSERT INTO drafts (chat_id, user_id, content, updated_at)
    SELECT chat_id, user_id, content, updated_at FROM drafts_old

DROP TABLE drafts_old

CREATE INDEX drafts_user_id ON drafts (user_id)

ALTER TABLE debug_runs RENAME TO debug_runs_old

CREATE TABLE debug_runs (
    chat_id TEXT NOT NULL,
    id TEXT NOT NULL,
    turn_id TEXT,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    worker_id TEXT NOT NULL,
    model TEXT,
    error TEXT,
    started_at TEXT NOT NULL,
    ended_at TEXT,
    CONSTRAINT debug_runs_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT debug_runs_kind_check CHECK ("kind" IN ('turn', 'title', 'compaction')),
    CONSTRAINT debug_runs_status_check CHECK ("status" IN ('in_progress', 'completed', 'error', 'interrupted')),
    CONSTRAINT debug_runs_one_end_check CHECK ((status = 'in_progress') = (ended_at IS NULL)),
    CONSTRAINT debug_runs_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

INSERT INTO debug_runs (chat_id, id, turn_id, kind, status, worker_id, model, error, started_at, ended_at)
    SELECT chat_id, id, turn_id, kind, status, worker_id, model, error, started_at, ended_at FROM debug_runs_old

ALTER TABLE debug_steps RENAME TO debug_steps_old

CREATE TABLE debug_steps (
    chat_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    status TEXT NOT NULL,
    error TEXT,
    started_at TEXT NOT NULL,
    ended_at TEXT,
    CONSTRAINT debug_steps_pk PRIMARY KEY (chat_id, run_id, step),
    CONSTRAINT debug_steps_status_check CHECK ("status" IN ('in_progress', 'completed', 'error', 'interrupted')),
    CONSTRAINT debug_steps_one_end_check CHECK ((status = 'in_progress') = (ended_at IS NULL)),
    CONSTRAINT debug_steps_chat_id_run_id_fk
        FOREIGN KEY (chat_id, run_id) REFERENCES debug_runs (chat_id, id) ON DELETE CASCADE
)

INSERT INTO debug_steps (chat_id, run_id, step, status, error, started_at, ended_at)
    SELECT runs.chat_id, old.run_id, old.step, old.status, old.error, old.started_at, old.ended_at
    FROM debug_steps_old AS old JOIN debug_runs_old AS runs ON runs.id = old.run_id

DROP TABLE debug_steps_old

ALTER TABLE debug_attempts RENAME TO debug_attempts_old

CREATE TABLE debug_attempts (
    chat_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    number INTEGER NOT NULL,
    status TEXT NOT NULL,
    status_code INTEGER,
    method TEXT NOT NULL,
    url TEXT NOT NULL,
    request_headers BLOB NOT NULL,
    request_body BLOB NOT NULL,
    response_headers BLOB,
    response_body BLOB NOT NULL,
    error TEXT,
    started_at TEXT NOT NULL,
    head_at TEXT,
    ended_at TEXT NOT NULL,
    CONSTRAINT debug_attempts_pk PRIMARY KEY (chat_id, run_id, step, number),
    CONSTRAINT debug_attempts_status_check CHECK ("status" IN ('completed', 'failed')),
    CONSTRAINT debug_attempts_numbering_check CHECK (step >= 1 AND number >= 1),
    CONSTRAINT debug_attempts_chat_id_run_id_step_fk
        FOREIGN KEY (chat_id, run_id, step) REFERENCES debug_steps (chat_id, run_id, step) ON DELETE CASCADE
)

INSERT INTO debug_attempts (chat_id, run_id, step, number, status, status_code, method, url, request_headers,
        request_body, response_headers, response_body, error, started_at, head_at, ended_at)
    SELECT runs.chat_id, old.run_id, old.step, old.number, old.status, old.status_code, old.method, old.url,
        old.request_headers, old.request_body, old.response_headers, old.response_body, old.error, old.started_at,
        old.head_at, old.ended_at
    FROM debug_attempts_old AS old JOIN debug_runs_old AS runs ON runs.id = old.run_id

DROP TABLE debug_attempts_old

DROP TABLE debug_runs_old

CREATE INDEX debug_runs_open ON debug_runs (chat_id, id) WHERE ended_at IS NULL

CREATE INDEX debug_runs_started_at ON debug_runs (started_at)

PRAGMA legacy_alter_table = OFF
"""


def upgrade() -> None:
    execute(_POSTGRES if get_dialect() == "postgresql" else _SQLITE)
