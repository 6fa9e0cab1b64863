"""Which workers are alive, by the database's clock, the status of a chat without a live holder, and which chats wait.

A worker is dead if its last heartbeat is older than the lease timeout, or if another process has declared it gone: the
lock of its session was free (worker/presence.py). This rule is written here, once in SQL and once for a row that was
read, and everybody who asks uses it: acquiring, stopping, `pending`, vacancy.

PostgreSQL reads its clock within the statement, which saves a round trip; SQLite has no clock of its own, so the time
is a parameter of the statement. So each moment has two halves: its SQL (`build_ago`), and the value to bind
(`bind_ago`).

Must stay true (tests/store/test_liveness.py): both spellings of the rule agree, and so does everybody who asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final, NamedTuple

from indelible.machine.states import BUSY
from indelible.store.database.transaction import Dialect, Transaction

PENDING: Final = "pending"
BUSY_STATUSES: Final = "(" + ", ".join(f"'{status}'" for status in BUSY) + ")"
"""As SQL writes them. A partial index serves only queries with its own condition."""


def build_ago(dialect: Dialect, place: int) -> str:
    """The moment that is parameter `$place` ago.

    The subquery runs once. Without it PostgreSQL would read its clock again for each row, and could not use an index.
    """
    return f"${place}" if dialect == "sqlite" else f"(SELECT clock_timestamp() - CAST(${place} AS INTERVAL))"


def bind_ago(dialect: Dialect, seconds: float) -> datetime | timedelta:
    """The value for `build_ago`."""
    ago = timedelta(seconds=seconds)
    return datetime.now(UTC) - ago if dialect == "sqlite" else ago


def build_alive(dialect: Dialect, place: int) -> str:
    """The ids of the live workers; parameter `$place` is the lease timeout."""
    return build_alive_since(build_ago(dialect, place))


def build_alive_since(moment: str) -> str:
    """The ids of the live workers; a lease that was not renewed since this moment has run out."""
    return f"SELECT id FROM workers WHERE heartbeat_at > {moment} AND gone_at IS NULL"


def is_alive(gone_at: datetime | str | None, *, vacant_s: float | None, lease_timeout_s: float) -> bool:
    """The same of a worker's row, whose last heartbeat was `vacant_s` ago; None: there is no row."""
    return vacant_s is not None and vacant_s < lease_timeout_s and gone_at is None


async def load_vacant(
    transaction: Transaction, chat_ids: Sequence[str], *, lease_timeout_s: float
) -> dict[str, Vacancy]:
    """Which of these chats are running, with their turn, and whether no worker is alive to answer them.

    A turn that no worker has claimed yet may have just begun, so it counts as waiting only after the lease timeout.
    """
    dialect = transaction.dialect
    rows = await transaction.all(_build_vacant(dialect), list(chat_ids), bind_ago(dialect, lease_timeout_s))
    return {row["id"]: Vacancy(row["turn_id"], bool(row["is_vacant"])) for row in rows}


class Vacancy(NamedTuple):
    turn_id: str
    is_vacant: bool


@cache
def _build_vacant(dialect: Dialect) -> str:
    waits = f"(c.holder IS NOT NULL OR t.started_at < {build_ago(dialect, 2)})"
    return f"""
        SELECT c.id, t.id AS turn_id,
            CASE WHEN {waits} AND NOT EXISTS ({build_alive(dialect, 2)}) THEN 1 ELSE 0 END AS is_vacant
        FROM chats AS c JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
        WHERE c.id = ANY($1) AND c.status = 'running'
        """


class UnheldStop(NamedTuple):
    """A turn that was stopped, and that no live worker holds."""

    chat_id: str
    turn_id: str


async def load_unheld_stops(transaction: Transaction, *, limit: int, lease_timeout_s: float) -> list[UnheldStop]:
    """Stopped turns that no live worker will end, the longest waiting first. Only a hint."""
    dialect = transaction.dialect
    rows = await transaction.all(_build_unheld_stops(dialect), bind_ago(dialect, lease_timeout_s), limit)
    return [UnheldStop(row["id"], row["turn_id"]) for row in rows]


@cache
def _build_unheld_stops(dialect: Dialect) -> str:
    """Without `INDEXED BY`, SQLite may read all chats. It may use that index only if the query names its condition."""
    by_index = "INDEXED BY chats_runnable" if dialect == "sqlite" else ""
    return f"""
        SELECT c.id, t.id AS turn_id
        FROM chats AS c {by_index} JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
        WHERE c.status IN {BUSY_STATUSES} AND c.status = 'interrupting' AND {build_unheld(dialect, 1)}
        ORDER BY c.runnable_at LIMIT $2
        """


def build_status(dialect: Dialect, place: int) -> str:
    """The status of the chat `c` as people see it: `pending` if it is running and no live worker holds it."""
    return f"CASE WHEN c.status = 'running' AND {build_unheld(dialect, place)} THEN '{PENDING}' ELSE c.status END"


def build_unheld(dialect: Dialect, place: int) -> str:
    """Whether no live worker holds the chat `c`. For a worker that looks for chats, leases.py has a rule of its own."""
    return f"NOT EXISTS ({build_alive(dialect, place)} AND id = c.holder)"
