"""Which workers are alive, by the database's clock, and the status of a chat without a live holder.

A worker is alive if its last heartbeat is younger than the lease timeout. PostgreSQL reads its clock within the
statement, which saves a round trip; SQLite has no clock of its own, so the time is a parameter of the statement. So
each moment has two halves: its SQL (`spell_ago`), and the value to bind (`bind_ago`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from indelible.store.database.transaction import Dialect

PENDING: Final = "pending"


def spell_ago(dialect: Dialect, place: int) -> str:
    """The moment that is parameter `$place` ago.

    The subquery runs once. Without it PostgreSQL would read its clock again for each row, and could not use an index.
    """
    return f"${place}" if dialect == "sqlite" else f"(SELECT clock_timestamp() - CAST(${place} AS INTERVAL))"


def bind_ago(dialect: Dialect, seconds: float) -> datetime | timedelta:
    """The value for `spell_ago`."""
    ago = timedelta(seconds=seconds)
    return datetime.now(UTC) - ago if dialect == "sqlite" else ago


def spell_alive(dialect: Dialect, place: int) -> str:
    """The ids of the live workers; parameter `$place` is the lease timeout."""
    return f"SELECT id FROM workers WHERE heartbeat_at > {spell_ago(dialect, place)}"


def spell_status(dialect: Dialect, place: int) -> str:
    """The status of the chat `c` as people see it: `pending` if it is running and no live worker holds it."""
    alive = f"{spell_alive(dialect, place)} AND id = c.holder"
    return f"CASE WHEN c.status = 'running' AND NOT EXISTS ({alive}) THEN '{PENDING}' ELSE c.status END"
