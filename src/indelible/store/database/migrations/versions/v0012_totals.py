"""0012: what a chat has used and cost so far, beside the chat: the sum over all its messages, of every branch.

Lists and snapshots show it, so it is kept with the chat and not added up when somebody looks. Chats from before get the
sums of the messages that they have.
"""

from __future__ import annotations

from typing import Final

from indelible.store.database.migrations.spelling import execute, get_dialect

revision: Final = "0012"
down_revision: Final = "0011"

_NAMES: Final = ("input_tokens", "output_tokens", "reasoning_tokens", "cache_read_tokens", "cache_write_tokens")
_STATEMENTS: Final = """
ALTER TABLE chats ADD COLUMN usage {bytes}

ALTER TABLE chats ADD COLUMN cost_nanousd BIGINT

UPDATE chats SET usage = (SELECT {total} FROM messages WHERE chat_id = chats.id)
    WHERE id IN (SELECT chat_id FROM messages WHERE usage IS NOT NULL)

UPDATE chats SET cost_nanousd = (SELECT sum(cost_nanousd) FROM messages WHERE chat_id = chats.id)
    WHERE id IN (SELECT chat_id FROM messages WHERE cost_nanousd IS NOT NULL)
"""
_SUM: Final = {
    "sqlite": "coalesce(sum(json_extract(CAST(usage AS TEXT), '$.{name}')), 0)",
    "postgresql": "coalesce(sum((convert_from(usage, 'UTF8')::json ->> '{name}')::bigint), 0)",
}
_OBJECT: Final = {
    "sqlite": "CAST(json_object({pairs}) AS BLOB)",
    "postgresql": "convert_to(json_build_object({pairs})::text, 'UTF8')",
}


def upgrade() -> None:
    dialect = get_dialect()
    pairs = ", ".join(f"'{name}', {_SUM[dialect].format(name=name)}" for name in _NAMES)
    execute(_STATEMENTS, total=_OBJECT[dialect].format(pairs=pairs))
