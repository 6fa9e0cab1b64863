"""0006: names that the field uses: `idle` for `waiting`, `if_busy` for `when`, what a takeover found.

SQLite cannot change a CHECK constraint; for a change that leaves the rows as they are, its documentation recommends
editing the table's SQL text. PostgreSQL names NOT NULL constraints from version 18 on. Existing rows are not checked
again.
"""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute, get_dialect

revision: Final = "0006"
down_revision: Final = "0005"

_COLUMNS: Final = """
ALTER TABLE turns RENAME COLUMN barren_takeovers TO stalled_takeovers

ALTER TABLE turns RENAME COLUMN said TO journal_rows_at_takeover

ALTER TABLE queue RENAME COLUMN "when" TO if_busy
"""

_POSTGRES: Final = """
ALTER TABLE queue RENAME CONSTRAINT queue_when_check TO queue_if_busy_check

DO $$ DECLARE renamed record; BEGIN
    FOR renamed IN SELECT * FROM (VALUES
        ('queue', 'queue_when_not_null', 'queue_if_busy_not_null'),
        ('turns', 'turns_barren_takeovers_not_null', 'turns_stalled_takeovers_not_null'),
        ('turns', 'turns_said_not_null', 'turns_journal_rows_at_takeover_not_null')
    ) AS names (owner, before, after) WHERE before IN (SELECT conname FROM pg_constraint)
    LOOP EXECUTE format('ALTER TABLE %I RENAME CONSTRAINT %I TO %I', renamed.owner, renamed.before, renamed.after);
    END LOOP;
END $$

ALTER TABLE chats DROP CONSTRAINT chats_status_check

ALTER TABLE chats DROP CONSTRAINT chats_archived_is_idle_check

UPDATE chats SET status = 'idle' WHERE status = 'waiting'

ALTER TABLE chats ADD CONSTRAINT chats_status_check CHECK ("status" IN (
    'idle', 'running', 'interrupting', 'requires_action', 'error'
))

ALTER TABLE chats ADD CONSTRAINT chats_archived_is_idle_check CHECK (NOT archived OR status IN ('idle', 'error'))

UPDATE events SET payload = convert_to(
    replace(convert_from(payload, 'UTF8'), '"status":"waiting"', '"status":"idle"'), 'UTF8'
) WHERE kind = 'status'
"""

_SQLITE: Final = """
PRAGMA writable_schema = ON

UPDATE sqlite_schema SET sql = replace(sql, '''waiting''', '''idle''') WHERE type = 'table' AND name = 'chats'

UPDATE sqlite_schema
    SET sql = replace(replace(sql, 'queue_when_check', 'queue_if_busy_check'), '"if_busy" TEXT', 'if_busy TEXT')
    WHERE type = 'table' AND name = 'queue'

PRAGMA writable_schema = RESET

UPDATE chats SET status = 'idle' WHERE status = 'waiting'

UPDATE events SET payload = CAST(
    replace(CAST(payload AS TEXT), '"status":"waiting"', '"status":"idle"') AS BLOB
) WHERE kind = 'status'
"""


def upgrade() -> None:
    execute(_COLUMNS)
    execute(_POSTGRES if get_dialect() == "postgresql" else _SQLITE)
