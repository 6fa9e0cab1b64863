"""0011: files in pieces, their previews, and which chats use them.

The table of 0002 held a file's bytes in its row, and named one chat. Its rows, if there are any, are cut into
pieces; SQLite cannot drop a column with a foreign key, so the table is copied, dropped and made anew.
"""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute

revision: Final = "0011"
down_revision: Final = "0010"

_TABLES: Final = """
CREATE TABLE files_until_now AS SELECT * FROM files

DROP TABLE files

CREATE TABLE files (
    id {id} NOT NULL,
    owner_id {id} NOT NULL,
    state {id} NOT NULL,
    name TEXT NOT NULL,
    media_type TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    sha256 {bytes},
    width INTEGER,
    height INTEGER,
    place {id} NOT NULL,
    preview {id} NOT NULL,
    unused_since {time},
    created_at {time} NOT NULL,
    CONSTRAINT files_pk PRIMARY KEY (id),
    CONSTRAINT files_size_bytes_check CHECK (size_bytes >= 0),
    CONSTRAINT files_complete_check CHECK (state <> 'ready' OR sha256 IS NOT NULL),
    CONSTRAINT files_state_check CHECK ("state" IN ('uploading', 'ready', 'deleted')),
    CONSTRAINT files_place_check CHECK ("place" IN ('database', 'directory', 's3')),
    CONSTRAINT files_preview_check CHECK ("preview" IN ('none', 'unmade', 'made')),
    CONSTRAINT files_owner_id_fk FOREIGN KEY (owner_id) REFERENCES users (id)
)

CREATE INDEX files_of_owner ON files (owner_id, id)

CREATE INDEX files_unused ON files (unused_since) WHERE unused_since IS NOT NULL

CREATE TABLE file_chunks (
    file_id {id} NOT NULL,
    variant {id} NOT NULL,
    n INTEGER NOT NULL,
    content {bytes} NOT NULL,
    CONSTRAINT file_chunks_pk PRIMARY KEY (file_id, variant, n),
    CONSTRAINT file_chunks_variant_check CHECK ("variant" IN ('content', 'preview')),
    CONSTRAINT file_chunks_file_id_fk FOREIGN KEY (file_id) REFERENCES files (id) ON DELETE CASCADE
)

CREATE TABLE file_uses (
    chat_id {id} NOT NULL,
    file_id {id} NOT NULL,
    CONSTRAINT file_uses_pk PRIMARY KEY (chat_id, file_id),
    CONSTRAINT file_uses_chat_id_fk FOREIGN KEY (chat_id) REFERENCES chats (id) ON DELETE CASCADE,
    CONSTRAINT file_uses_file_id_fk FOREIGN KEY (file_id) REFERENCES files (id) ON DELETE CASCADE
)

CREATE INDEX file_uses_file_id ON file_uses (file_id)

INSERT INTO files (
    id, owner_id, state, name, media_type, size_bytes, sha256, place, preview, unused_since, created_at
)
    SELECT id, owner_id, 'ready', coalesce(name, 'file'), media_type, size_bytes, sha256, 'database', 'none',
        CASE WHEN chat_id IS NULL THEN created_at END, created_at
    FROM files_until_now

INSERT INTO file_chunks (file_id, variant, n, content)
    WITH RECURSIVE pieces (file_id, n) AS (
        SELECT id, 0 FROM files_until_now
        UNION ALL
        SELECT file_id, n + 1 FROM pieces JOIN files_until_now ON id = file_id WHERE (n + 1) * 262144 < length(content)
    )
    SELECT file_id, 'content', n, substr(content, n * 262144 + 1, 262144)
    FROM pieces JOIN files_until_now ON id = file_id

INSERT INTO file_uses (chat_id, file_id) SELECT chat_id, id FROM files_until_now WHERE chat_id IS NOT NULL

DROP TABLE files_until_now
"""


def upgrade() -> None:
    execute(_TABLES)
