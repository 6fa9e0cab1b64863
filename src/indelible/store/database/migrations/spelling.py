"""SQL for both databases: one text with placeholders, `{bytes}` and a few others, for the words that differ."""

from __future__ import annotations

from typing import Final

from alembic import op

_SPELLINGS: Final = {
    "sqlite": {"id": "TEXT", "time": "TEXT", "bytes": "BLOB", "false": "0"},
    "postgresql": {
        "id": 'TEXT COLLATE "C"',
        "time": "TIMESTAMP WITH TIME ZONE",
        "bytes": "BYTEA",
        "false": "false",
    },
}


def execute(statements: str, **words: str) -> None:
    """Execute statements that are separated by empty lines. `words` are further placeholders."""
    for statement in statements.strip().split("\n\n"):
        op.execute(statement.format(**_SPELLINGS[get_dialect()], **words))


def get_dialect() -> str:
    return op.get_context().dialect.name
