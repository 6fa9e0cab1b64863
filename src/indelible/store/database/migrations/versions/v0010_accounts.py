"""0010: roles, scopes of tokens, sessions and shares.

The user `local`, whose chats a server without a login serves, is the first admin. No token could be made before this
revision, so the defaults of the new columns of `tokens` meet no row.
"""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute

revision: Final = "0010"
down_revision: Final = "0009"

_TABLES: Final = """
ALTER TABLE users ADD COLUMN role {id} DEFAULT 'user' NOT NULL
    CONSTRAINT users_role_check CHECK ("role" IN ('admin', 'user'))

ALTER TABLE users ADD COLUMN disabled_at {time}

UPDATE users SET role = 'admin' WHERE name = 'local'

ALTER TABLE tokens ADD COLUMN prefix TEXT DEFAULT '?' NOT NULL

ALTER TABLE tokens ADD COLUMN scopes TEXT DEFAULT 'read' NOT NULL

ALTER TABLE tokens ADD COLUMN single_use BOOLEAN DEFAULT {false} NOT NULL

CREATE TABLE sessions (
    id {id} NOT NULL,
    user_id {id} NOT NULL,
    token_id {id},
    hash {bytes} NOT NULL,
    method {id} NOT NULL,
    scopes TEXT NOT NULL,
    created_at {time} NOT NULL,
    last_used_at {time} NOT NULL,
    expires_at {time} NOT NULL,
    CONSTRAINT sessions_pk PRIMARY KEY (id),
    CONSTRAINT sessions_method_check CHECK ("method" IN ('token', 'oidc')),
    CONSTRAINT sessions_user_id_fk FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE,
    CONSTRAINT sessions_token_id_fk FOREIGN KEY(token_id) REFERENCES tokens (id) ON DELETE CASCADE,
    CONSTRAINT sessions_hash_key UNIQUE (hash)
)

CREATE INDEX sessions_user_id ON sessions (user_id)

CREATE INDEX sessions_token_id ON sessions (token_id)

CREATE INDEX sessions_expires_at ON sessions (expires_at)

CREATE TABLE shares (
    chat_id {id} NOT NULL,
    id {id} NOT NULL,
    user_id {id},
    hash {bytes},
    created_at {time} NOT NULL,
    CONSTRAINT shares_pk PRIMARY KEY (chat_id, id),
    CONSTRAINT shares_chat_id_user_id_key UNIQUE (chat_id, user_id),
    CONSTRAINT shares_link_or_user_check CHECK ((user_id IS NULL) <> (hash IS NULL)),
    CONSTRAINT shares_chat_id_fk FOREIGN KEY(chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT shares_user_id_fk FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
)

CREATE INDEX shares_hash ON shares (hash)

CREATE INDEX shares_user_id ON shares (user_id)
"""


def upgrade() -> None:
    execute(_TABLES)
