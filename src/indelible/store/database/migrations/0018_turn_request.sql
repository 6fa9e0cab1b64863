-- What a compatible API repeats about a request is a column of its turn. Before, it was hidden in the metadata of the last
-- block that came with the request; migration_steps.py moves it.

ALTER TABLE turns ADD COLUMN request BYTEA;
COMMENT ON COLUMN turns.request IS 'What a compatible API repeats: [seq, request] of each that began or resumed it.';
