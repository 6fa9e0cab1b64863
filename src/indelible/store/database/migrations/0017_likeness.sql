-- No two new users have names that look the same. Of those who do already, the first one has the likeness, which
-- migration_steps.py finds.

ALTER TABLE users ADD COLUMN likeness TEXT;
CREATE UNIQUE INDEX users_likeness ON users (likeness);
COMMENT ON COLUMN users.likeness IS 'What names that look the same share. Null: another user has it since before this was a rule.';
