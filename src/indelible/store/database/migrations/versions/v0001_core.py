"""0001: users, chats and their messages, the two logs, workers."""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute, get_dialect

revision: Final = "0001"
down_revision: Final = None

# Two references point to a table that is created later. SQLite allows that, and cannot add them afterwards;
# PostgreSQL forbids it, and can.
_HEAD: Final = "CONSTRAINT chats_id_head_id_fk FOREIGN KEY (id, head_id) REFERENCES messages (chat_id, id)"
_QUESTION: Final = (
    "CONSTRAINT turns_chat_id_message_id_fk FOREIGN KEY (chat_id, message_id) REFERENCES messages (chat_id, id)"
)

_TABLES: Final = """
CREATE TABLE journal (
    attempt_id {id} NOT NULL,
    n BIGINT NOT NULL,
    parts {bytes} NOT NULL,
    at {time} NOT NULL,
    CONSTRAINT journal_pk PRIMARY KEY (attempt_id, n),
    CONSTRAINT journal_n_check CHECK (n >= 0)
)

CREATE TABLE users (
    id {id} NOT NULL,
    name TEXT NOT NULL,
    created_at {time} NOT NULL,
    CONSTRAINT users_pk PRIMARY KEY (id),
    CONSTRAINT users_name_key UNIQUE (name)
)

CREATE TABLE workers (
    id {id} NOT NULL,
    started_at {time} NOT NULL,
    heartbeat_at {time} NOT NULL,
    CONSTRAINT workers_pk PRIMARY KEY (id)
)

CREATE TABLE chats (
    id {id} NOT NULL,
    owner_id {id} NOT NULL,
    status {id} NOT NULL,
    archived BOOLEAN DEFAULT {false} NOT NULL,
    head_id {id},
    epoch BIGINT DEFAULT 0 NOT NULL,
    holder {id},
    seq BIGINT DEFAULT 0 NOT NULL,
    error {bytes},
    retry {bytes},
    deadline_at {time},
    model TEXT,
    system_prompt {bytes},
    parameters {bytes},
    title TEXT,
    labels {bytes},
    pinned BOOLEAN DEFAULT {false} NOT NULL,
    last_read_seq BIGINT DEFAULT 0 NOT NULL,
    created_at {time} NOT NULL,
    updated_at {time} NOT NULL,
    CONSTRAINT chats_pk PRIMARY KEY (id),
    CONSTRAINT chats_status_check CHECK ("status" IN (
        'waiting', 'running', 'interrupting', 'requires_action', 'error'
    )),
    CONSTRAINT chats_archived_is_idle_check CHECK (NOT archived OR status IN ('waiting', 'error')),
    CONSTRAINT chats_holder_is_busy_check CHECK (holder IS NULL OR status IN ('running', 'interrupting')),
    CONSTRAINT chats_error_is_told_check CHECK ((status = 'error') = (error IS NOT NULL)),
    CONSTRAINT chats_retry_is_busy_check CHECK (retry IS NULL OR status IN ('running', 'interrupting')),
    CONSTRAINT chats_epoch_check CHECK (epoch >= 0),
    CONSTRAINT chats_seq_check CHECK (0 <= last_read_seq AND last_read_seq <= seq),
    CONSTRAINT chats_owner_id_fk FOREIGN KEY (owner_id) REFERENCES users (id){head}
)

CREATE INDEX chats_deadline ON chats (deadline_at) WHERE status = 'requires_action' AND deadline_at IS NOT NULL

CREATE INDEX chats_of_owner ON chats (owner_id, archived, updated_at, id)

CREATE INDEX chats_runnable ON chats (status, updated_at) WHERE status IN ('running', 'interrupting')

CREATE TABLE tokens (
    id {id} NOT NULL,
    user_id {id} NOT NULL,
    hash {bytes} NOT NULL,
    name TEXT NOT NULL,
    created_at {time} NOT NULL,
    last_used_at {time},
    expires_at {time},
    revoked_at {time},
    CONSTRAINT tokens_pk PRIMARY KEY (id),
    CONSTRAINT tokens_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT tokens_hash_key UNIQUE (hash)
)

CREATE INDEX tokens_user_id ON tokens (user_id)

CREATE TABLE events (
    chat_id {id} NOT NULL,
    seq BIGINT NOT NULL,
    kind {id} NOT NULL,
    ref {id},
    payload {bytes},
    at {time} NOT NULL,
    CONSTRAINT events_pk PRIMARY KEY (chat_id, seq),
    CONSTRAINT events_seq_check CHECK (seq >= 1),
    CONSTRAINT events_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
)

CREATE TABLE queue (
    id {id} NOT NULL,
    chat_id {id} NOT NULL,
    position BIGINT NOT NULL,
    "when" {id} NOT NULL,
    content {bytes} NOT NULL,
    model TEXT,
    author_id {id} NOT NULL,
    created_at {time} NOT NULL,
    CONSTRAINT queue_pk PRIMARY KEY (id),
    CONSTRAINT queue_chat_id_position_key UNIQUE (chat_id, position),
    CONSTRAINT queue_when_check CHECK ("when" IN ('queue', 'steer', 'interrupt', 'promoted')),
    CONSTRAINT queue_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT queue_author_id_fk FOREIGN KEY (author_id) REFERENCES users (id)
)

CREATE TABLE turns (
    id {id} NOT NULL,
    chat_id {id} NOT NULL,
    number INTEGER NOT NULL,
    kind {id} NOT NULL,
    message_id {id},
    outcome {id},
    started_at {time} NOT NULL,
    ended_at {time},
    takeovers INTEGER DEFAULT 0 NOT NULL,
    barren_takeovers INTEGER DEFAULT 0 NOT NULL,
    CONSTRAINT turns_pk PRIMARY KEY (id),
    CONSTRAINT turns_chat_id_number_key UNIQUE (chat_id, number),
    CONSTRAINT turns_kind_check CHECK ("kind" IN ('reply', 'compaction')),
    CONSTRAINT turns_outcome_check CHECK ("outcome" IN ('complete', 'interrupted', 'failed', 'edited')),
    CONSTRAINT turns_one_end_check CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CONSTRAINT turns_number_check CHECK (number >= 1),
    CONSTRAINT turns_takeovers_check CHECK (barren_takeovers >= 0 AND barren_takeovers <= takeovers),
    CONSTRAINT turns_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE{question}
)

CREATE INDEX turns_of_message ON turns (chat_id, message_id) WHERE message_id IS NOT NULL

CREATE UNIQUE INDEX turns_one_open ON turns (chat_id) WHERE ended_at IS NULL

CREATE TABLE attempts (
    id {id} NOT NULL,
    chat_id {id} NOT NULL,
    turn_id {id} NOT NULL,
    step INTEGER NOT NULL,
    number INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    provider TEXT,
    model TEXT,
    outcome {id},
    last_n BIGINT,
    error {bytes},
    usage {bytes},
    started_at {time} NOT NULL,
    ended_at {time},
    packed BOOLEAN DEFAULT {false} NOT NULL,
    CONSTRAINT attempts_pk PRIMARY KEY (id),
    CONSTRAINT attempts_turn_id_step_number_key UNIQUE (turn_id, step, number),
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
    CONSTRAINT attempts_turn_id_fk FOREIGN KEY (turn_id) REFERENCES turns (id) ON DELETE CASCADE
)

CREATE INDEX attempts_of_chat ON attempts (chat_id, id)

CREATE UNIQUE INDEX attempts_one_open ON attempts (chat_id) WHERE ended_at IS NULL

CREATE INDEX attempts_to_pack ON attempts (ended_at) WHERE NOT packed AND ended_at IS NOT NULL

CREATE TABLE messages (
    chat_id {id} NOT NULL,
    id {id} NOT NULL,
    parent_id {id},
    role {id} NOT NULL,
    blocks {bytes} NOT NULL,
    visibility {id} DEFAULT 'both' NOT NULL,
    partial BOOLEAN DEFAULT {false} NOT NULL,
    reason {id},
    continues_id {id},
    usage {bytes},
    cost_nanousd BIGINT,
    provider TEXT,
    model TEXT,
    response_id TEXT,
    turn_id {id},
    attempt_id {id},
    timings {bytes},
    created_at {time} NOT NULL,
    CONSTRAINT messages_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT messages_chat_id_parent_id_fk FOREIGN KEY (chat_id, parent_id) REFERENCES messages (chat_id, id),
    CONSTRAINT messages_chat_id_continues_id_fk FOREIGN KEY (chat_id, continues_id) REFERENCES messages (chat_id, id),
    CONSTRAINT messages_role_check CHECK ("role" IN ('system', 'user', 'assistant', 'tool', 'notice')),
    CONSTRAINT messages_visibility_check CHECK ("visibility" IN ('both', 'people', 'model')),
    CONSTRAINT messages_reason_check CHECK ("reason" IN (
        'interrupted', 'crashed', 'handed_over', 'failed', 'edited', 'length'
    )),
    CONSTRAINT messages_not_its_own_parent_check CHECK (parent_id <> id),
    CONSTRAINT messages_partial_has_a_reason_check CHECK (NOT partial OR reason IS NOT NULL),
    CONSTRAINT messages_only_replies_are_cut_check CHECK (role = 'assistant' OR reason IS NULL),
    CONSTRAINT messages_only_replies_are_stored_check
        CHECK (response_id IS NULL OR (role = 'assistant' AND NOT partial)),
    CONSTRAINT messages_notice_is_for_people_check CHECK (role <> 'notice' OR visibility <> 'model'),
    CONSTRAINT messages_cost_nanousd_check CHECK (cost_nanousd >= 0),
    CONSTRAINT messages_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT messages_turn_id_fk FOREIGN KEY (turn_id) REFERENCES turns (id),
    CONSTRAINT messages_attempt_id_fk FOREIGN KEY (attempt_id) REFERENCES attempts (id)
)

CREATE INDEX messages_children ON messages (chat_id, parent_id)

CREATE INDEX messages_continuing ON messages (chat_id, continues_id) WHERE continues_id IS NOT NULL

CREATE INDEX messages_of_attempt ON messages (attempt_id) WHERE attempt_id IS NOT NULL

CREATE INDEX messages_of_turn ON messages (turn_id) WHERE turn_id IS NOT NULL

CREATE TABLE tool_runs (
    turn_id {id} NOT NULL,
    step INTEGER NOT NULL,
    call_index INTEGER NOT NULL,
    attempt_id {id} NOT NULL,
    call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments {bytes} NOT NULL,
    state {id} NOT NULL,
    idempotency_key {id} NOT NULL,
    result {bytes},
    started_at {time} NOT NULL,
    settled_at {time},
    CONSTRAINT tool_runs_pk PRIMARY KEY (turn_id, step, call_index),
    CONSTRAINT tool_runs_state_check CHECK ("state" IN ('started', 'settled')),
    CONSTRAINT tool_runs_settled_has_a_result_check CHECK ((state = 'settled') = (result IS NOT NULL)),
    CONSTRAINT tool_runs_settled_has_a_time_check CHECK ((state = 'settled') = (settled_at IS NOT NULL)),
    CONSTRAINT tool_runs_numbering_check CHECK (step >= 1 AND call_index >= 0),
    CONSTRAINT tool_runs_turn_id_fk FOREIGN KEY (turn_id) REFERENCES turns (id) ON DELETE CASCADE,
    CONSTRAINT tool_runs_attempt_id_fk FOREIGN KEY (attempt_id) REFERENCES attempts (id) ON DELETE CASCADE,
    CONSTRAINT tool_runs_idempotency_key_key UNIQUE (idempotency_key)
)

CREATE INDEX tool_runs_attempt_id ON tool_runs (attempt_id)
"""


def upgrade() -> None:
    if get_dialect() == "sqlite":
        execute(_TABLES, head=f",\n    {_HEAD}", question=f",\n    {_QUESTION}")
    else:
        execute(_TABLES, head="", question="")
        execute(f"ALTER TABLE chats ADD {_HEAD}\n\nALTER TABLE turns ADD {_QUESTION}")
