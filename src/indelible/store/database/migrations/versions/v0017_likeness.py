"""0017: no two new users have names that look the same. Of those who do already, the first one has the likeness."""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import text

from indelible.store.database.migrations.spelling import execute
from indelible.store.queries.likeness import find_likeness

revision: Final = "0017"
down_revision: Final = "0016"

_COLUMN: Final = """
ALTER TABLE users ADD COLUMN likeness TEXT

CREATE UNIQUE INDEX users_likeness ON users (likeness)
"""
_USERS: Final = "SELECT id, name FROM users ORDER BY created_at, id"
_SET: Final = "UPDATE users SET likeness = :likeness WHERE id = :id"


def upgrade() -> None:
    execute(_COLUMN)
    connection = op.get_bind()
    first: dict[str, str] = {}
    for user in connection.execute(text(_USERS)).all():
        first.setdefault(find_likeness(user.name), user.id)
    if first:
        connection.execute(text(_SET), [{"likeness": likeness, "id": user} for likeness, user in first.items()])
