-- A worker on PostgreSQL holds an advisory lock, so that others see at once that its process is gone. A worker without a lock
-- is dead when its lease has run out, as before. A turn keeps whose process was found gone, until its last takeover stands.

ALTER TABLE workers ADD COLUMN lock_key BIGINT;
ALTER TABLE workers ADD COLUMN gone_at TIMESTAMPTZ;
ALTER TABLE turns ADD COLUMN acquired_from TEXT COLLATE "C";
COMMENT ON COLUMN workers.lock_key IS 'The advisory lock that its process holds; null: only its lease counts.';
COMMENT ON COLUMN workers.gone_at IS 'When another process found that lock free. A heartbeat of the worker clears it.';
COMMENT ON COLUMN turns.acquired_from IS 'The worker that was found gone at the last takeover; null: its lease had run out.';
