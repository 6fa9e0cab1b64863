"""The one statement that SQLAlchemy does not spell the same for both databases: INSERT … ON CONFLICT.

Both databases know it and mean the same by it; only the construct has two homes in SQLAlchemy. Code that
inserts a row that may already exist calls `upsert` and continues with `on_conflict_do_nothing` or
`on_conflict_do_update`, as that differs from place to place. What else differs is in engine.py (how a transaction
begins) and migrations/spelling.py (the names of types).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects.postgresql import insert as insert_postgres
from sqlalchemy.dialects.sqlite import insert as insert_sqlite


def upsert(dialect: str, table: Table) -> Any:
    """An INSERT into this table that knows ON CONFLICT; `dialect` is the name of the connection's."""
    return insert_sqlite(table) if dialect == "sqlite" else insert_postgres(table)
