"""0004: debug records of the exchanges with providers, and which chats record them."""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute

revision: Final = "0004"
down_revision: Final = "0003"

_TABLES: Final = """
ALTER TABLE chats ADD COLUMN debug {id}
    CONSTRAINT chats_debug_check CHECK ("debug" IN ('off', 'errors', 'all'))

CREATE TABLE debug_runs (
    id {id} NOT NULL,
    chat_id {id} NOT NULL,
    turn_id {id},
    kind {id} NOT NULL,
    status {id} NOT NULL,
    worker_id {id} NOT NULL,
    model TEXT,
    error TEXT,
    started_at {time} NOT NULL,
    ended_at {time},
    CONSTRAINT debug_runs_pk PRIMARY KEY (id),
    CONSTRAINT debug_runs_kind_check CHECK ("kind" IN ('turn', 'title', 'compaction')),
    CONSTRAINT debug_runs_status_check CHECK ("status" IN ('in_progress', 'completed', 'error', 'interrupted')),
    CONSTRAINT debug_runs_one_end_check CHECK ((status = 'in_progress') = (ended_at IS NULL)),
    CONSTRAINT debug_runs_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

CREATE INDEX debug_runs_of_chat ON debug_runs (chat_id, id)

CREATE INDEX debug_runs_open ON debug_runs (chat_id, id) WHERE ended_at IS NULL

CREATE INDEX debug_runs_started_at ON debug_runs (started_at)

CREATE TABLE debug_steps (
    run_id {id} NOT NULL,
    step INTEGER NOT NULL,
    status {id} NOT NULL,
    error TEXT,
    started_at {time} NOT NULL,
    ended_at {time},
    CONSTRAINT debug_steps_pk PRIMARY KEY (run_id, step),
    CONSTRAINT debug_steps_status_check CHECK ("status" IN ('in_progress', 'completed', 'error', 'interrupted')),
    CONSTRAINT debug_steps_one_end_check CHECK ((status = 'in_progress') = (ended_at IS NULL)),
    CONSTRAINT debug_steps_run_id_fk FOREIGN KEY (run_id) REFERENCES debug_runs (id) ON DELETE CASCADE
)

CREATE TABLE debug_attempts (
    run_id {id} NOT NULL,
    step INTEGER NOT NULL,
    number INTEGER NOT NULL,
    status {id} NOT NULL,
    status_code INTEGER,
    method TEXT NOT NULL,
    url TEXT NOT NULL,
    request_headers {bytes} NOT NULL,
    request_body {bytes} NOT NULL,
    response_headers {bytes},
    response_body {bytes} NOT NULL,
    error TEXT,
    started_at {time} NOT NULL,
    head_at {time},
    ended_at {time} NOT NULL,
    CONSTRAINT debug_attempts_pk PRIMARY KEY (run_id, step, number),
    CONSTRAINT debug_attempts_status_check CHECK ("status" IN ('completed', 'failed')),
    CONSTRAINT debug_attempts_numbering_check CHECK (step >= 1 AND number >= 1),
    CONSTRAINT debug_attempts_run_id_step_fk
        FOREIGN KEY (run_id, step) REFERENCES debug_steps (run_id, step) ON DELETE CASCADE
)
"""


def upgrade() -> None:
    execute(_TABLES)
