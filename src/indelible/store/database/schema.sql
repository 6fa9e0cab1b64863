-- How chats are stored, and the rules that hold for every writer: schema 0015, in PostgreSQL's SQL.
--
-- This file never changes. Every later change is a file of its own in migrations/, and a new database gets them all:
-- migrate.py runs this file and those, and has the few rules that translate them for SQLite. Two marks are for lines
-- that only one of the two reads: SQLite's begin with `-- sqlite:`, and PostgreSQL's end with `-- postgresql`.
-- tests/frozen has the schema that comes of it all.
--
-- The rules of the machine (machine/) are repeated here as checks and partial unique indexes, as far as one row or one
-- index can express them: which values exist, that a chat has one open turn and one open attempt, that only an idle
-- chat is archived, that an outcome has its time. Rules over two tables (an idle chat has no queue; a turn is open
-- exactly while its chat is busy) are up to the code that writes under the chat's lock. Checks apply to every
-- statement, not at the end of the transaction: write a chat's row once per command.
--
-- The chat leads the key of every table that belongs to a chat, so that a database can one day be split by chat.
-- Foreign keys include its id too, so a row can only name messages, turns, attempts and runs of its own chat.
-- Idempotency keys and files belong to a user first, and keep their own keys. Everything that belongs to a chat is
-- deleted with it, except the journal: a foreign key would double the cost of its rows (R7), so code that deletes a
-- chat deletes the journal of its attempts first. The columns of each foreign key begin an index, so that a deletion
-- reads no more than it deletes.
--
-- Columns of one kind have one type:
--   * TEXT COLLATE "C": an id (ids.py), or one of a fixed list of words. In this collation their order is the order of
--     the bytes on every server, and no index breaks when the server's locale library is upgraded.
--   * TEXT: a label: shown, searched or compared, but never quoted (titles, names of models and tools, providers'
--     ids). Characters that a database cannot hold become U+FFFD, so that no label can make a write fail.
--   * BYTEA: UTF-8 JSON, or bytes. Not a JSON type, because PostgreSQL rejects U+0000 in `jsonb` and in `text`, and
--     everything that a model or a person writes must be stored (R6).
--   * TIMESTAMPTZ: a time; on SQLite text of fixed width, `2026-11-15T09:59:32.120000Z`: it sorts by time, and both
--     SQLite's date functions and people can read it. Times come from several clocks, so nothing here compares two.
-- What is stored in them may not change its form without a migration (store/database/transaction.py writes it).
--
-- Must stay true (tests/store/test_schema.py, tests/store/test_migrations.py): each constraint rejects what the machine
-- forbids, on both databases; a new database and one that was upgraded have the same schema.

-- The newest change that this database has.
CREATE TABLE indelible_schema (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT indelible_schema_pkc PRIMARY KEY (version_num)
);

-- people ------------------------------------------------------------------------------------
-- A secret (a token, the id of a session, the key of a link) is 256 random bits, and only its SHA-256 is stored:
-- whoever reads the database, or a backup of it, cannot log in with what they find. Nothing slower than SHA-256 is
-- needed, because nobody guesses 256 bits. A session ends with the token that opened it, and all of them with their
-- user.

CREATE TABLE users (
    id TEXT COLLATE "C" NOT NULL,
    name TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    role TEXT COLLATE "C" DEFAULT 'user' NOT NULL CONSTRAINT users_role_check CHECK (role IN ('admin', 'user')),
    disabled_at TIMESTAMPTZ,
    CONSTRAINT users_pk PRIMARY KEY (id),
    CONSTRAINT users_name_key UNIQUE (name)
);
COMMENT ON TABLE users IS 'The owners of chats. A server without login has one.';
COMMENT ON COLUMN users.disabled_at IS 'Null: the user may log in.';

CREATE TABLE tokens (
    id TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL,
    hash BYTEA NOT NULL,
    name TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    last_used_at TIMESTAMPTZ,
    expires_at TIMESTAMPTZ,
    revoked_at TIMESTAMPTZ,
    prefix TEXT DEFAULT '?' NOT NULL,
    scopes TEXT DEFAULT 'read' NOT NULL,
    single_use BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT tokens_pk PRIMARY KEY (id),
    CONSTRAINT tokens_hash_key UNIQUE (hash),
    CONSTRAINT tokens_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX tokens_user_id ON tokens (user_id);
COMMENT ON TABLE tokens IS 'Tokens with which a program or a browser acts for a user.';
COMMENT ON COLUMN tokens.hash IS 'SHA-256 of the token, which is shown once.';
COMMENT ON COLUMN tokens.name IS 'What its user calls it.';
COMMENT ON COLUMN tokens.last_used_at IS 'To the minute; null: never used.';
COMMENT ON COLUMN tokens.expires_at IS 'Null: never.';
COMMENT ON COLUMN tokens.revoked_at IS 'Null: it is still valid.';
COMMENT ON COLUMN tokens.prefix IS 'Its first characters, to recognise it.';
COMMENT ON COLUMN tokens.scopes IS 'Words, separated by spaces.';
COMMENT ON COLUMN tokens.single_use IS 'Revoked by its first login.';

CREATE TABLE sessions (
    id TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL,
    token_id TEXT COLLATE "C",
    hash BYTEA NOT NULL,
    method TEXT COLLATE "C" NOT NULL,
    scopes TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    last_used_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT sessions_pk PRIMARY KEY (id),
    CONSTRAINT sessions_hash_key UNIQUE (hash),
    CONSTRAINT sessions_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT sessions_token_id_fk FOREIGN KEY (token_id) REFERENCES tokens (id) ON DELETE CASCADE,
    CONSTRAINT sessions_method_check CHECK (method IN ('token', 'oidc'))
);
CREATE INDEX sessions_user_id ON sessions (user_id);
CREATE INDEX sessions_token_id ON sessions (token_id);
CREATE INDEX sessions_expires_at ON sessions (expires_at);
COMMENT ON TABLE sessions IS 'Logins of browsers.';
COMMENT ON COLUMN sessions.token_id IS 'What it was opened with.';
COMMENT ON COLUMN sessions.hash IS 'SHA-256 of the cookie''s value.';
COMMENT ON COLUMN sessions.method IS 'How the user logged in.';
COMMENT ON COLUMN sessions.scopes IS 'Words, separated by spaces.';
COMMENT ON COLUMN sessions.last_used_at IS 'To the minute.';
COMMENT ON COLUMN sessions.expires_at IS 'It moves while the session is used.';

-- chats and their messages ------------------------------------------------------------------

CREATE TABLE chats (
    id TEXT COLLATE "C" NOT NULL,
    owner_id TEXT COLLATE "C" NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    archived BOOLEAN DEFAULT false NOT NULL,
    head_id TEXT COLLATE "C",
    epoch BIGINT DEFAULT 0 NOT NULL,
    holder TEXT COLLATE "C",
    seq BIGINT DEFAULT 0 NOT NULL,
    error BYTEA,
    retry BYTEA,
    deadline_at TIMESTAMPTZ,
    model TEXT,
    system_prompt BYTEA,
    parameters BYTEA,
    title TEXT,
    labels BYTEA,
    pinned BOOLEAN DEFAULT false NOT NULL,
    last_read_seq BIGINT DEFAULT 0 NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    debug TEXT COLLATE "C" CONSTRAINT chats_debug_check CHECK (debug IN ('off', 'errors', 'all')),
    runnable_at TIMESTAMPTZ,
    title_is_provisional BOOLEAN DEFAULT false NOT NULL,
    tools BYTEA,
    usage BYTEA,
    cost_nanousd BIGINT,
    replied_seq BIGINT DEFAULT 0 NOT NULL,
    indexed_seq BIGINT DEFAULT 0 NOT NULL,
    unindexed_at TIMESTAMPTZ,
    CONSTRAINT chats_pk PRIMARY KEY (id),
    CONSTRAINT chats_owner_id_fk FOREIGN KEY (owner_id) REFERENCES users (id),
    -- sqlite: CONSTRAINT chats_id_head_id_fk FOREIGN KEY (id, head_id) REFERENCES messages (chat_id, id),
    CONSTRAINT chats_status_check CHECK (status IN ('idle', 'running', 'interrupting', 'requires_action', 'error')),
    CONSTRAINT chats_archived_is_idle_check CHECK (NOT archived OR status IN ('idle', 'error')),
    CONSTRAINT chats_holder_is_busy_check CHECK (holder IS NULL OR status IN ('running', 'interrupting')),
    CONSTRAINT chats_error_is_told_check CHECK ((status = 'error') = (error IS NOT NULL)),
    CONSTRAINT chats_retry_is_busy_check CHECK (retry IS NULL OR status IN ('running', 'interrupting')),
    CONSTRAINT chats_epoch_check CHECK (epoch >= 0),
    CONSTRAINT chats_seq_check CHECK (0 <= last_read_seq AND last_read_seq <= seq)
);
CREATE INDEX chats_deadline ON chats (deadline_at) WHERE status = 'requires_action' AND deadline_at IS NOT NULL;
CREATE INDEX chats_of_owner ON chats (owner_id, archived, pinned, updated_at, id);
CREATE INDEX chats_runnable ON chats (status, runnable_at) WHERE status IN ('running', 'interrupting');
CREATE INDEX chats_unread ON chats (owner_id, archived, pinned, updated_at, id) WHERE replied_seq > last_read_seq;
CREATE INDEX chats_unindexed ON chats (owner_id, unindexed_at) WHERE unindexed_at IS NOT NULL;
COMMENT ON TABLE chats IS 'A conversation: what it is doing, who works on it, how far it has come.';
COMMENT ON COLUMN chats.owner_id IS 'The user; the worker is the holder.';
COMMENT ON COLUMN chats.status IS 'machine.states.Status. `pending` is computed and never stored.';
COMMENT ON COLUMN chats.head_id IS 'The end of the active path; null: it has no messages yet.';
COMMENT ON COLUMN chats.epoch IS 'Raised by every acquire: fences writers.';
COMMENT ON COLUMN chats.holder IS 'The worker that works on it. It may be dead, and its row may be gone.';
COMMENT ON COLUMN chats.seq IS 'The number of its last event.';
COMMENT ON COLUMN chats.error IS 'Why its last turn failed; there exactly while the status is `error`.';
COMMENT ON COLUMN chats.retry IS 'The retry event that is being waited for, for readers that join meanwhile.';
COMMENT ON COLUMN chats.deadline_at IS 'Until when results from outside are awaited; null: for ever.';
COMMENT ON COLUMN chats.model IS 'The model that answers; null: the setting.';
COMMENT ON COLUMN chats.system_prompt IS 'A JSON string.';
COMMENT ON COLUMN chats.parameters IS 'Options for the model: temperature and the like.';
COMMENT ON COLUMN chats.labels IS 'A JSON list of strings.';
COMMENT ON COLUMN chats.last_read_seq IS 'How far the owner has read.';
COMMENT ON COLUMN chats.updated_at IS 'When something was last said; the order of lists.';
COMMENT ON COLUMN chats.debug IS 'Which exchanges with providers are recorded; null: as the setting says.';
COMMENT ON COLUMN chats.runnable_at IS 'Since when it waits for a worker, or when its worker last began something.';
COMMENT ON COLUMN chats.title_is_provisional IS 'The title is the beginning of its first message; a generated one may replace it.';
COMMENT ON COLUMN chats.tools IS 'A JSON list of the tools that its client runs.';
COMMENT ON COLUMN chats.usage IS 'content.Usage of all its messages; null: nothing is known.';
COMMENT ON COLUMN chats.cost_nanousd IS 'What its messages cost, as far as that is known; null: not at all.';
COMMENT ON COLUMN chats.replied_seq IS 'The event of the last reply; beyond `last_read_seq` the chat is unread.';
COMMENT ON COLUMN chats.indexed_seq IS 'How far its events are in the search index.';
COMMENT ON COLUMN chats.unindexed_at IS 'When something came that the search index lacks; null: nothing.';

CREATE TABLE turns (
    chat_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C",
    outcome TEXT COLLATE "C",
    started_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    takeovers INTEGER DEFAULT 0 NOT NULL,
    stalled_takeovers INTEGER DEFAULT 0 NOT NULL,
    model TEXT,
    journal_rows_at_takeover BIGINT DEFAULT 0 NOT NULL,
    -- sqlite: CONSTRAINT turns_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT turns_chat_id_number_key UNIQUE (chat_id, number),
    CONSTRAINT turns_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    -- sqlite: CONSTRAINT turns_chat_id_message_id_fk FOREIGN KEY (chat_id, message_id) REFERENCES messages (chat_id, id),
    CONSTRAINT turns_kind_check CHECK (kind IN ('reply', 'compaction')),
    CONSTRAINT turns_outcome_check CHECK (outcome IN ('complete', 'interrupted', 'failed', 'edited')),
    CONSTRAINT turns_one_end_check CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CONSTRAINT turns_number_check CHECK (number >= 1),
    CONSTRAINT turns_takeovers_check CHECK (stalled_takeovers >= 0 AND stalled_takeovers <= takeovers)
);
-- Without statistics PostgreSQL takes the newest of two indexes that begin with the chat: that has to be the key.
ALTER TABLE turns ADD CONSTRAINT turns_pk PRIMARY KEY (chat_id, id); -- postgresql
CREATE INDEX turns_of_message ON turns (chat_id, message_id) WHERE message_id IS NOT NULL;
CREATE UNIQUE INDEX turns_one_open ON turns (chat_id) WHERE ended_at IS NULL;
COMMENT ON TABLE turns IS 'All the work that answers one message.';
COMMENT ON COLUMN turns.number IS 'Counts from 1 in the chat.';
COMMENT ON COLUMN turns.kind IS 'machine.states.TurnKind.';
COMMENT ON COLUMN turns.message_id IS 'The user''s message that it answers; null: a compaction of a chat without one.';
COMMENT ON COLUMN turns.outcome IS 'machine.effects.TurnOutcome; null: it is open.';
COMMENT ON COLUMN turns.takeovers IS 'Crashes that it outlived.';
COMMENT ON COLUMN turns.stalled_takeovers IS 'How many of those in a row produced neither a new part nor a settled tool.';
COMMENT ON COLUMN turns.model IS 'The model that answers; null: the chat''s; empty: the setting.';
COMMENT ON COLUMN turns.journal_rows_at_takeover IS 'How many journal rows its attempts had when it was last taken over.';

CREATE TABLE attempts (
    chat_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    turn_id TEXT COLLATE "C" NOT NULL,
    step INTEGER NOT NULL,
    number INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    provider TEXT,
    model TEXT,
    outcome TEXT COLLATE "C",
    last_n BIGINT,
    error BYTEA,
    usage BYTEA,
    started_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    packed BOOLEAN DEFAULT false NOT NULL,
    CONSTRAINT attempts_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT attempts_turn_id_chat_id_step_number_key UNIQUE (turn_id, chat_id, step, number),
    CONSTRAINT attempts_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT attempts_chat_id_turn_id_fk FOREIGN KEY (chat_id, turn_id) REFERENCES turns (chat_id, id) ON DELETE CASCADE,
    CONSTRAINT attempts_outcome_check CHECK (outcome IN ('complete', 'interrupted', 'failed', 'crashed', 'handed_over', 'edited', 'reset')),
    CONSTRAINT attempts_one_end_check CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CONSTRAINT attempts_last_n_is_told_check CHECK ((outcome IS NULL) = (last_n IS NULL)),
    CONSTRAINT attempts_numbering_check CHECK (step >= 1 AND number >= 1),
    CONSTRAINT attempts_epoch_check CHECK (epoch >= 0),
    CONSTRAINT attempts_last_n_check CHECK (last_n >= 0),
    CONSTRAINT attempts_packed_has_ended_check CHECK (NOT packed OR ended_at IS NOT NULL)
);
CREATE UNIQUE INDEX attempts_one_open ON attempts (chat_id) WHERE ended_at IS NULL;
CREATE INDEX attempts_to_pack ON attempts (ended_at) WHERE NOT packed AND ended_at IS NOT NULL;
COMMENT ON TABLE attempts IS 'One try at one step of a turn.';
COMMENT ON COLUMN attempts.step IS 'Counts from 1 in the turn, and goes on over takeovers.';
COMMENT ON COLUMN attempts.number IS 'Counts from 1 in the step.';
COMMENT ON COLUMN attempts.epoch IS 'The lease under which it may be written to.';
COMMENT ON COLUMN attempts.outcome IS 'machine.effects.AttemptOutcome; null: it is open.';
COMMENT ON COLUMN attempts.last_n IS 'Its last journal row, 0 for none; known when it has ended.';
COMMENT ON COLUMN attempts.error IS 'Why it failed, if it did.';
COMMENT ON COLUMN attempts.usage IS 'content.Usage, also where no message came of it.';
COMMENT ON COLUMN attempts.packed IS 'Its journal is one row, n = 0.';

CREATE TABLE messages (
    chat_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    parent_id TEXT COLLATE "C",
    role TEXT COLLATE "C" NOT NULL,
    blocks BYTEA NOT NULL,
    visibility TEXT COLLATE "C" DEFAULT 'both' NOT NULL,
    partial BOOLEAN DEFAULT false NOT NULL,
    reason TEXT COLLATE "C",
    continues_id TEXT COLLATE "C",
    usage BYTEA,
    cost_nanousd BIGINT,
    provider TEXT,
    model TEXT,
    response_id TEXT,
    turn_id TEXT COLLATE "C",
    attempt_id TEXT COLLATE "C",
    timings BYTEA,
    created_at TIMESTAMPTZ NOT NULL,
    error BYTEA,
    CONSTRAINT messages_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT messages_chat_id_parent_id_fk FOREIGN KEY (chat_id, parent_id) REFERENCES messages (chat_id, id),
    CONSTRAINT messages_chat_id_continues_id_fk FOREIGN KEY (chat_id, continues_id) REFERENCES messages (chat_id, id),
    CONSTRAINT messages_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT messages_chat_id_turn_id_fk FOREIGN KEY (chat_id, turn_id) REFERENCES turns (chat_id, id),
    CONSTRAINT messages_chat_id_attempt_id_fk FOREIGN KEY (chat_id, attempt_id) REFERENCES attempts (chat_id, id),
    CONSTRAINT messages_role_check CHECK (role IN ('system', 'user', 'assistant', 'tool', 'notice')),
    CONSTRAINT messages_visibility_check CHECK (visibility IN ('both', 'people', 'model')),
    CONSTRAINT messages_reason_check CHECK (reason IN ('interrupted', 'crashed', 'handed_over', 'failed', 'edited', 'length', 'content_filter', 'max_steps')),
    CONSTRAINT messages_not_its_own_parent_check CHECK (parent_id <> id),
    CONSTRAINT messages_partial_has_a_reason_check CHECK (NOT partial OR reason IS NOT NULL),
    CONSTRAINT messages_only_replies_are_cut_check CHECK (role = 'assistant' OR reason IS NULL),
    CONSTRAINT messages_only_replies_are_stored_check CHECK (response_id IS NULL OR (role = 'assistant' AND NOT partial)),
    CONSTRAINT messages_notice_is_for_people_check CHECK (role <> 'notice' OR visibility <> 'model'),
    CONSTRAINT messages_cost_nanousd_check CHECK (cost_nanousd >= 0)
);
CREATE INDEX messages_continuing ON messages (chat_id, continues_id) WHERE continues_id IS NOT NULL;
-- With the chat first, PostgreSQL without statistics would take a full index like this one, and those of the attempts'
-- and the ledger's, for as good as the primary key, and read a whole chat to check a foreign key.
CREATE INDEX messages_children ON messages (parent_id, chat_id);
CREATE INDEX messages_of_turn ON messages (chat_id, turn_id) WHERE turn_id IS NOT NULL;
CREATE INDEX messages_of_attempt ON messages (chat_id, attempt_id) WHERE attempt_id IS NOT NULL;
COMMENT ON TABLE messages IS 'The messages: a tree, in which the chat''s head selects a path.';
COMMENT ON COLUMN messages.parent_id IS 'What it follows; null: the beginning. Messages with one parent are branches.';
COMMENT ON COLUMN messages.role IS 'content.Role. A `notice` is for people and never reaches a model.';
COMMENT ON COLUMN messages.blocks IS 'A JSON list of content.Block.';
COMMENT ON COLUMN messages.visibility IS 'content.Visibility: who gets to see it.';
COMMENT ON COLUMN messages.partial IS 'A visible piece of a cut reply.';
COMMENT ON COLUMN messages.reason IS 'content.PartialReason: what ended it; also where nothing visible is missing.';
COMMENT ON COLUMN messages.continues_id IS 'The partial message that this one carries on.';
COMMENT ON COLUMN messages.usage IS 'content.Usage of the step.';
COMMENT ON COLUMN messages.cost_nanousd IS 'What the step cost, in billionths of a dollar; null: not known.';
COMMENT ON COLUMN messages.model IS 'Who wrote it; of a question, who answers it (empty: the setting).';
COMMENT ON COLUMN messages.response_id IS 'The provider''s name for a complete reply that it stored.';
COMMENT ON COLUMN messages.turn_id IS 'The turn that wrote it; null: nobody''s work.';
COMMENT ON COLUMN messages.attempt_id IS 'The attempt that wrote it, and ended with it.';
COMMENT ON COLUMN messages.timings IS 'Of the step: start, first part, end.';
COMMENT ON COLUMN messages.error IS 'Of the notice of a failed turn: why. Its branch has this error.';

CREATE TABLE queue (
    id TEXT COLLATE "C" NOT NULL,
    chat_id TEXT COLLATE "C" NOT NULL,
    position BIGINT NOT NULL,
    if_busy TEXT COLLATE "C" NOT NULL,
    content BYTEA NOT NULL,
    model TEXT,
    author_id TEXT COLLATE "C" NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT queue_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT queue_chat_id_position_key UNIQUE (chat_id, position),
    CONSTRAINT queue_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT queue_author_id_fk FOREIGN KEY (author_id) REFERENCES users (id),
    CONSTRAINT queue_if_busy_check CHECK (if_busy IN ('queue', 'steer', 'interrupt', 'promoted'))
);
COMMENT ON TABLE queue IS 'Messages that wait for their turn.';
COMMENT ON COLUMN queue.position IS 'The order; gaps mean nothing. To rearrange, give rows new positions behind the last.';
COMMENT ON COLUMN queue.if_busy IS 'machine.states.IfBusy: where it went in.';
COMMENT ON COLUMN queue.content IS 'A JSON list of content.Block.';
COMMENT ON COLUMN queue.model IS 'The model when it was sent; null: the chat''s; empty: the setting.';

ALTER TABLE chats ADD CONSTRAINT chats_id_head_id_fk FOREIGN KEY (id, head_id) REFERENCES messages (chat_id, id); -- postgresql
ALTER TABLE turns ADD CONSTRAINT turns_chat_id_message_id_fk FOREIGN KEY (chat_id, message_id) REFERENCES messages (chat_id, id); -- postgresql

-- the two logs ------------------------------------------------------------------------------

CREATE TABLE events (
    chat_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    ref TEXT COLLATE "C",
    payload BYTEA,
    at TIMESTAMPTZ NOT NULL,
    CONSTRAINT events_pk PRIMARY KEY (chat_id, seq),
    CONSTRAINT events_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT events_seq_check CHECK (seq >= 1)
);
COMMENT ON TABLE events IS 'The first log: one row per fact, written in the transaction that made it one.';
COMMENT ON COLUMN events.seq IS 'Counts from 1, without gaps.';
COMMENT ON COLUMN events.ref IS 'The row that it is about: a message, an attempt, a turn.';
COMMENT ON COLUMN events.payload IS 'What readers get of it besides.';

CREATE TABLE journal (
    chat_id TEXT COLLATE "C" NOT NULL,
    attempt_id TEXT COLLATE "C" NOT NULL,
    n BIGINT NOT NULL,
    parts BYTEA NOT NULL,
    at TIMESTAMPTZ NOT NULL,
    CONSTRAINT journal_pk PRIMARY KEY (chat_id, attempt_id, n),
    CONSTRAINT journal_n_check CHECK (n >= 0)
);
COMMENT ON TABLE journal IS 'The second log: the parts of a running attempt, one row per flush.';
COMMENT ON COLUMN journal.chat_id IS 'The attempt''s. No foreign key: it would double the cost of a row.';
COMMENT ON COLUMN journal.n IS 'Counts from 1, without gaps. 0: all, packed.';
COMMENT ON COLUMN journal.parts IS 'A JSON list of content.Part; where n = 0, compressed.';

-- work --------------------------------------------------------------------------------------

CREATE TABLE tool_runs (
    chat_id TEXT COLLATE "C" NOT NULL,
    turn_id TEXT COLLATE "C" NOT NULL,
    step INTEGER NOT NULL,
    call_index INTEGER NOT NULL,
    attempt_id TEXT COLLATE "C" NOT NULL,
    call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments BYTEA NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C" NOT NULL,
    result BYTEA,
    started_at TIMESTAMPTZ NOT NULL,
    settled_at TIMESTAMPTZ,
    CONSTRAINT tool_runs_pk PRIMARY KEY (chat_id, turn_id, step, call_index),
    CONSTRAINT tool_runs_idempotency_key_key UNIQUE (idempotency_key),
    CONSTRAINT tool_runs_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT tool_runs_chat_id_turn_id_fk FOREIGN KEY (chat_id, turn_id) REFERENCES turns (chat_id, id) ON DELETE CASCADE,
    CONSTRAINT tool_runs_chat_id_attempt_id_fk FOREIGN KEY (chat_id, attempt_id) REFERENCES attempts (chat_id, id) ON DELETE CASCADE,
    CONSTRAINT tool_runs_state_check CHECK (state IN ('started', 'settled')),
    CONSTRAINT tool_runs_settled_has_a_result_check CHECK ((state = 'settled') = (result IS NOT NULL)),
    CONSTRAINT tool_runs_settled_has_a_time_check CHECK ((state = 'settled') = (settled_at IS NOT NULL)),
    CONSTRAINT tool_runs_numbering_check CHECK (step >= 1 AND call_index >= 0)
);
CREATE INDEX tool_runs_of_attempt ON tool_runs (attempt_id, chat_id);
COMMENT ON TABLE tool_runs IS 'The ledger: every local call, written before it starts and when it settles.';
COMMENT ON COLUMN tool_runs.call_index IS 'Which call of the step, from 0.';
COMMENT ON COLUMN tool_runs.call_id IS 'The provider''s id, which may repeat.';
COMMENT ON COLUMN tool_runs.arguments IS 'As they came: UTF-8, and meant to be JSON.';
COMMENT ON COLUMN tool_runs.state IS 'started: nobody knows yet what it did. settled: its result is here.';
COMMENT ON COLUMN tool_runs.idempotency_key IS 'The same when the call is run again.';
COMMENT ON COLUMN tool_runs.result IS 'content.ToolResult.';

CREATE TABLE workers (
    id TEXT COLLATE "C" NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    heartbeat_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT workers_pk PRIMARY KEY (id)
);
COMMENT ON TABLE workers IS 'Processes that work on chats.';
COMMENT ON COLUMN workers.id IS 'New at every start of a process.';
COMMENT ON COLUMN workers.heartbeat_at IS 'By the database''s clock, which all workers share.';

-- keys, drafts and shares -------------------------------------------------------------------

CREATE TABLE idempotency_keys (
    user_id TEXT COLLATE "C" NOT NULL,
    key TEXT NOT NULL,
    route TEXT NOT NULL,
    body_hash BYTEA NOT NULL,
    status INTEGER NOT NULL,
    body BYTEA NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    chat_id TEXT COLLATE "C" CONSTRAINT idempotency_keys_chat_id_fk REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT idempotency_keys_pk PRIMARY KEY (user_id, key),
    CONSTRAINT idempotency_keys_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);
CREATE INDEX idempotency_keys_chat_id ON idempotency_keys (chat_id);
COMMENT ON TABLE idempotency_keys IS 'Completed writes: a repeated request gets the same response.';
COMMENT ON COLUMN idempotency_keys.key IS 'As the client chose it.';
COMMENT ON COLUMN idempotency_keys.route IS 'Method and path. Another one with this key is refused.';
COMMENT ON COLUMN idempotency_keys.body_hash IS 'SHA-256 of the request''s body; another one is refused.';
COMMENT ON COLUMN idempotency_keys.status IS 'The HTTP status that was answered.';
COMMENT ON COLUMN idempotency_keys.body IS 'The body that was answered.';
COMMENT ON COLUMN idempotency_keys.chat_id IS 'The chat that the response is about.';

CREATE TABLE drafts (
    chat_id TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C" NOT NULL,
    content BYTEA NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT drafts_pk PRIMARY KEY (chat_id, user_id),
    CONSTRAINT drafts_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT drafts_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
);
CREATE INDEX drafts_user_id ON drafts (user_id);
COMMENT ON TABLE drafts IS 'What a user has typed in a chat and not sent yet.';
COMMENT ON COLUMN drafts.content IS 'A JSON list of content.Block.';

CREATE TABLE new_drafts (
    user_id TEXT COLLATE "C" NOT NULL,
    content BYTEA NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT new_drafts_pk PRIMARY KEY (user_id),
    CONSTRAINT new_drafts_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
COMMENT ON TABLE new_drafts IS 'What a user has typed for a chat that does not exist yet.';
COMMENT ON COLUMN new_drafts.content IS 'A JSON list of content.Block.';

CREATE TABLE shares (
    chat_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    user_id TEXT COLLATE "C",
    hash BYTEA,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT shares_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT shares_chat_id_user_id_key UNIQUE (chat_id, user_id),
    CONSTRAINT shares_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT shares_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT shares_link_or_user_check CHECK ((user_id IS NULL) <> (hash IS NULL))
);
CREATE INDEX shares_hash ON shares (hash);
CREATE INDEX shares_user_id ON shares (user_id);
COMMENT ON TABLE shares IS 'Who else may read a chat.';
COMMENT ON COLUMN shares.user_id IS 'Null: by link.';
COMMENT ON COLUMN shares.hash IS 'SHA-256 of the link''s key; null: with a user.';

-- files -------------------------------------------------------------------------------------
-- A file belongs to a user, not to a chat: a fork uses the same bytes, and an upload is there before its message is.
-- So a chat's use of a file is a row of its own (`file_uses`), deleted with the chat, and the file goes with its last
-- use. `unused_since` is null exactly while a chat uses the file; every other row is a candidate for the sweep, which
-- finds them by one small index however many files there are.
--
-- A file has a row before its bytes arrive (`uploading`), so that whatever a crash leaves behind is found again by the
-- sweep, and it keeps its row until its bytes are gone (`deleted`). Only `ready` files exist for anybody else.
--
-- Bytes are rows of at most a quarter of a megabyte: each is written, read and deleted in a short transaction, so that
-- a large file does not block other writers (R12).

CREATE TABLE files (
    id TEXT COLLATE "C" NOT NULL,
    owner_id TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    name TEXT NOT NULL,
    media_type TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    sha256 BYTEA,
    width INTEGER,
    height INTEGER,
    place TEXT COLLATE "C" NOT NULL,
    preview TEXT COLLATE "C" NOT NULL,
    unused_since TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT files_pk PRIMARY KEY (id),
    CONSTRAINT files_owner_id_fk FOREIGN KEY (owner_id) REFERENCES users (id),
    CONSTRAINT files_size_bytes_check CHECK (size_bytes >= 0),
    CONSTRAINT files_complete_check CHECK (state <> 'ready' OR sha256 IS NOT NULL),
    CONSTRAINT files_state_check CHECK (state IN ('uploading', 'ready', 'deleted')),
    CONSTRAINT files_place_check CHECK (place IN ('database', 'directory', 's3')),
    CONSTRAINT files_preview_check CHECK (preview IN ('none', 'unmade', 'made'))
);
CREATE INDEX files_of_owner ON files (owner_id, id);
CREATE INDEX files_unused ON files (unused_since) WHERE unused_since IS NOT NULL;
COMMENT ON TABLE files IS 'What was uploaded, or made by a tool.';
COMMENT ON COLUMN files.state IS 'FileState. Only a ready file exists for its owner.';
COMMENT ON COLUMN files.media_type IS 'By its first bytes, not by what the client claims.';
COMMENT ON COLUMN files.size_bytes IS 'While it is uploading: as many as were announced.';
COMMENT ON COLUMN files.sha256 IS 'Null while it is uploading.';
COMMENT ON COLUMN files.width IS 'Of an image, in pixels.';
COMMENT ON COLUMN files.place IS 'FilePlace: where its bytes are. The setting may change.';
COMMENT ON COLUMN files.preview IS 'PreviewState: none: there can be none.';
COMMENT ON COLUMN files.unused_since IS 'Null: a chat uses it. Otherwise the sweep deletes it a day later.';

CREATE TABLE file_chunks (
    file_id TEXT COLLATE "C" NOT NULL,
    variant TEXT COLLATE "C" NOT NULL,
    n INTEGER NOT NULL,
    content BYTEA NOT NULL,
    CONSTRAINT file_chunks_pk PRIMARY KEY (file_id, variant, n),
    CONSTRAINT file_chunks_file_id_fk FOREIGN KEY (file_id) REFERENCES files (id) ON DELETE CASCADE,
    CONSTRAINT file_chunks_variant_check CHECK (variant IN ('content', 'preview'))
);
COMMENT ON TABLE file_chunks IS 'The bytes of files that are stored in the database.';
COMMENT ON COLUMN file_chunks.variant IS 'FileVariant.';
COMMENT ON COLUMN file_chunks.n IS 'Counts from 0.';

CREATE TABLE file_uses (
    chat_id TEXT COLLATE "C" NOT NULL,
    file_id TEXT COLLATE "C" NOT NULL,
    CONSTRAINT file_uses_pk PRIMARY KEY (chat_id, file_id),
    CONSTRAINT file_uses_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT file_uses_file_id_fk FOREIGN KEY (file_id) REFERENCES files (id) ON DELETE CASCADE
);
CREATE INDEX file_uses_file_id ON file_uses (file_id);
COMMENT ON TABLE file_uses IS 'Which chats use which files. A file is deleted with the last chat that uses it.';

-- lists -------------------------------------------------------------------------------------
-- `search_entries` has one row per message (and title), numbered by the time of the message. Its words are folded and
-- without repetition (store/search_index.py), so that both databases find the same. PostgreSQL holds them as a
-- `tsvector` with a GIN index; SQLite holds them as text, and triggers keep the FTS5 table `search_index` in step with
-- it, whoever writes or deletes. `chats.unindexed_at` marks chats with something new to index; everything up to event
-- `indexed_seq` is done (store/search_index.py).
--
-- Labels are rows as well as a column, because a filter needs an index. Usage has several rows per day (`shard`):
-- turns that end together would otherwise wait for each other's commit.

CREATE TABLE search_entries (
    id BIGINT NOT NULL, -- postgresql
    -- sqlite: id INTEGER NOT NULL,
    chat_id TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C",
    owner_id TEXT COLLATE "C" NOT NULL,
    words TSVECTOR NOT NULL,
    CONSTRAINT search_entries_pk PRIMARY KEY (id),
    CONSTRAINT search_entries_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
);
CREATE INDEX search_entries_chat_id ON search_entries (chat_id);
CREATE INDEX search_entries_of_owner ON search_entries (owner_id, id);
CREATE INDEX search_entries_words ON search_entries USING gin (words); -- postgresql
COMMENT ON TABLE search_entries IS 'The search index: the words of each message and title.';
COMMENT ON COLUMN search_entries.id IS 'By time: see store/lists/indexing.py.';
COMMENT ON COLUMN search_entries.message_id IS 'Null: the title.';
COMMENT ON COLUMN search_entries.owner_id IS 'The chat''s.';
COMMENT ON COLUMN search_entries.words IS 'Folded, each word once.';

CREATE TABLE chat_labels (
    chat_id TEXT COLLATE "C" NOT NULL,
    label TEXT NOT NULL,
    owner_id TEXT COLLATE "C" NOT NULL,
    CONSTRAINT chat_labels_pk PRIMARY KEY (chat_id, label),
    CONSTRAINT chat_labels_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
);
CREATE INDEX chat_labels_of_owner ON chat_labels (owner_id, label, chat_id);
COMMENT ON TABLE chat_labels IS 'The labels of a chat, one row each, for filters. The chat''s row has them in order.';
COMMENT ON COLUMN chat_labels.owner_id IS 'The chat''s.';

CREATE TABLE usage_days (
    user_id TEXT COLLATE "C" NOT NULL,
    day TEXT COLLATE "C" NOT NULL,
    model TEXT NOT NULL,
    shard INTEGER NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cost_nanousd BIGINT NOT NULL,
    turns BIGINT NOT NULL,
    CONSTRAINT usage_days_pk PRIMARY KEY (user_id, day, model, shard),
    CONSTRAINT usage_days_user_id_fk FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
COMMENT ON TABLE usage_days IS 'What a user''s chats used, by day and model. It stays when a chat is deleted.';
COMMENT ON COLUMN usage_days.day IS 'In UTC: 2026-11-15.';
COMMENT ON COLUMN usage_days.model IS 'The model that answered; empty: not known.';
COMMENT ON COLUMN usage_days.shard IS 'By the chat. Add the shards up.';
COMMENT ON COLUMN usage_days.cost_nanousd IS 'Of what has a known price.';
COMMENT ON COLUMN usage_days.turns IS 'Turns that were begun with this model.';

CREATE TABLE ephemeral_chats (
    chat_id TEXT COLLATE "C" NOT NULL,
    CONSTRAINT ephemeral_chats_pk PRIMARY KEY (chat_id),
    CONSTRAINT ephemeral_chats_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE
);
COMMENT ON TABLE ephemeral_chats IS 'Chats that are put away after their one turn: see store/lists/ephemeral.py.';

-- `content` keeps the words once. `detail=none` and `columnsize=0` leave only which entries have a word: that is all
-- that a search asks for, and a third of the size. The tokenizer is `ascii`, which splits at spaces and takes every
-- other character of ours as part of a word: the text is folded and split already, so that both databases agree,
-- whatever Unicode tables SQLite was built with. `prefix` answers the search for the first two or three letters of a
-- word, which people type first, without reading every word that begins with them. An index without
-- `contentless_delete` (SQLite 3.43) needs the old words to delete an entry; the trigger has them.
-- sqlite: CREATE VIRTUAL TABLE search_index USING fts5(words, content='search_entries', content_rowid='id',
-- sqlite:     tokenize='ascii', detail='none', columnsize=0, prefix='2 3');

-- sqlite: CREATE TRIGGER search_entries_added AFTER INSERT ON search_entries BEGIN
-- sqlite:     INSERT INTO search_index (rowid, words) VALUES (new.id, new.words);
-- sqlite: END;

-- sqlite: CREATE TRIGGER search_entries_removed AFTER DELETE ON search_entries BEGIN
-- sqlite:     INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.id, old.words);
-- sqlite: END;

-- debug records -----------------------------------------------------------------------------

CREATE TABLE debug_runs (
    chat_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    turn_id TEXT COLLATE "C",
    kind TEXT COLLATE "C" NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    worker_id TEXT COLLATE "C" NOT NULL,
    model TEXT,
    error TEXT,
    started_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    CONSTRAINT debug_runs_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT debug_runs_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT debug_runs_kind_check CHECK (kind IN ('turn', 'title', 'compaction')),
    CONSTRAINT debug_runs_status_check CHECK (status IN ('in_progress', 'completed', 'error', 'interrupted')),
    CONSTRAINT debug_runs_one_end_check CHECK ((status = 'in_progress') = (ended_at IS NULL))
);
CREATE INDEX debug_runs_open ON debug_runs (chat_id, id) WHERE ended_at IS NULL;
CREATE INDEX debug_runs_started_at ON debug_runs (started_at);
COMMENT ON TABLE debug_runs IS 'Debug records: one piece of work with a model.';
COMMENT ON COLUMN debug_runs.turn_id IS 'The turn that it is of; null: a title''s. No foreign key, for it is only a name.';
COMMENT ON COLUMN debug_runs.kind IS 'RunKind: what the model was asked for.';
COMMENT ON COLUMN debug_runs.status IS 'RunStatus.';
COMMENT ON COLUMN debug_runs.worker_id IS 'Who asked. If it is dead, so is the run.';

CREATE TABLE debug_steps (
    chat_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    step INTEGER NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    error TEXT,
    started_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    CONSTRAINT debug_steps_pk PRIMARY KEY (chat_id, run_id, step),
    CONSTRAINT debug_steps_chat_id_run_id_fk FOREIGN KEY (chat_id, run_id) REFERENCES debug_runs (chat_id, id) ON DELETE CASCADE,
    CONSTRAINT debug_steps_status_check CHECK (status IN ('in_progress', 'completed', 'error', 'interrupted')),
    CONSTRAINT debug_steps_one_end_check CHECK ((status = 'in_progress') = (ended_at IS NULL))
);
COMMENT ON TABLE debug_steps IS 'Debug records: one model call of a run, with its retries.';
COMMENT ON COLUMN debug_steps.status IS 'RunStatus.';

CREATE TABLE debug_attempts (
    chat_id TEXT COLLATE "C" NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    step INTEGER NOT NULL,
    number INTEGER NOT NULL,
    status TEXT COLLATE "C" NOT NULL,
    status_code INTEGER,
    method TEXT NOT NULL,
    url TEXT NOT NULL,
    request_headers BYTEA NOT NULL,
    request_body BYTEA NOT NULL,
    response_headers BYTEA,
    response_body BYTEA NOT NULL,
    error TEXT,
    started_at TIMESTAMPTZ NOT NULL,
    head_at TIMESTAMPTZ,
    ended_at TIMESTAMPTZ NOT NULL,
    CONSTRAINT debug_attempts_pk PRIMARY KEY (chat_id, run_id, step, number),
    CONSTRAINT debug_attempts_chat_id_run_id_step_fk FOREIGN KEY (chat_id, run_id, step) REFERENCES debug_steps (chat_id, run_id, step) ON DELETE CASCADE,
    CONSTRAINT debug_attempts_status_check CHECK (status IN ('completed', 'failed')),
    CONSTRAINT debug_attempts_numbering_check CHECK (step >= 1 AND number >= 1)
);
COMMENT ON TABLE debug_attempts IS 'Debug records: one HTTP exchange.';
COMMENT ON COLUMN debug_attempts.number IS 'Counts from 1 in the step.';
COMMENT ON COLUMN debug_attempts.status IS 'completed or failed: whether all of it was exchanged.';
COMMENT ON COLUMN debug_attempts.status_code IS 'HTTP''s; null: there was no answer.';
COMMENT ON COLUMN debug_attempts.request_headers IS 'Redacted, as all of this is.';
COMMENT ON COLUMN debug_attempts.head_at IS 'When the answer began.';
