"""Lists of a user's chats, one page at a time: pinned ones first, then those in which something was said last.

A page starts after the last chat of the page before, in the order of the list, so that a chat that moves up
meanwhile is never shown twice. Searching matches titles. Renaming, labelling, pinning and the like move no chat
(tests/app/test_acceptance_chats.py): only `updated_at` does, which store/commands/apply/change.py writes.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from indelible.content import Usage
from indelible.store.commands.totals import Totals
from indelible.store.database.sqlite import LOWER
from indelible.store.database.transaction import Dialect, Row, Transaction, clean_label, to_time
from indelible.store.database.words import DebugMode
from indelible.store.queries.liveness import PENDING, bind_ago, spell_ago, spell_alive, spell_status

_STUCK_AFTER: Final = 10
_COLUMNS: Final = """
    c.id, c.title, c.model, c.labels, c.pinned, c.archived, c.debug, c.seq, c.created_at, c.updated_at,
    c.usage, c.cost_nanousd
    """


class ChatSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list. `version` grows with every change of the chat.

    `usage` and `cost_usd` are the sums over all its messages, as far as they are known.
    """

    id: str
    status: str
    title: str | None
    model: str | None
    labels: list[str]
    pinned: bool
    archived: bool
    debug: DebugMode | None
    version: int
    created_at: datetime
    updated_at: datetime
    usage: Usage | None = None
    cost_usd: float | None = None


class ListCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ended."""

    pinned: bool
    updated_at: datetime
    id: str


async def list_chats(
    transaction: Transaction,
    owner_id: str,
    *,
    archived: bool = False,
    search: str | None = None,
    after: ListCursor | None = None,
    limit: int = 50,
    lease_timeout_s: float,
) -> list[ChatSummary]:
    dialect = transaction.dialect
    values: list[Any] = [owner_id, archived, bind_ago(dialect, lease_timeout_s), limit]
    if search:
        values.append(_to_pattern(search))
    if after is not None:
        values += [after.pinned, after.updated_at, after.id]
    sql = _spell_list(dialect, searches=bool(search), goes_on=after is not None)
    return [_summarise(row) for row in await transaction.all(sql, *values)]


async def load_summary(transaction: Transaction, chat_id: str, *, lease_timeout_s: float) -> ChatSummary:
    """The line of one chat that exists."""
    dialect = transaction.dialect
    return _summarise(await transaction.one(_spell_one(dialect), chat_id, bind_ago(dialect, lease_timeout_s)))


@cache
def _spell_one(dialect: Dialect) -> str:
    return f"SELECT {_COLUMNS}, {spell_status(dialect, 2)} AS shown_status FROM chats AS c WHERE c.id = $1"


@cache
def _spell_list(dialect: Dialect, *, searches: bool, goes_on: bool) -> str:
    lower = LOWER if dialect == "sqlite" else "lower"  # SQLite's own `lower` handles only ASCII
    found = f"AND {lower}(c.title) LIKE $5 ESCAPE '/'" if searches else ""
    place = 6 if searches else 5
    later = f"AND (c.pinned, c.updated_at, c.id) < (${place}, ${place + 1}, ${place + 2})" if goes_on else ""
    return f"""
        SELECT {_COLUMNS}, {spell_status(dialect, 3)} AS shown_status FROM chats AS c
        WHERE c.owner_id = $1 AND c.archived = $2 {found} {later}
        ORDER BY c.pinned DESC, c.updated_at DESC, c.id DESC LIMIT $4
        """


def _to_pattern(search: str) -> str:
    """The LIKE pattern that matches texts containing this one, with its special characters escaped."""
    literal = clean_label(search).lower().replace("/", "//").replace("%", "/%").replace("_", "/_")
    return f"%{literal}%"


class ChatCount(NamedTuple):
    """The number of chats in each state, and how many running ones are stuck: without a live worker for too long."""

    by_state: dict[str, int]
    stuck: int


async def count_chats(transaction: Transaction, *, lease_timeout_s: float) -> ChatCount:
    """Over all users. `pending` counts as in lists; a chat is stuck once it was pending for ten lease timeouts."""
    dialect = transaction.dialect
    long_ago = bind_ago(dialect, _STUCK_AFTER * lease_timeout_s)
    rows = await transaction.all(_spell_count(dialect), bind_ago(dialect, lease_timeout_s), long_ago)
    by_state: dict[str, int] = {row["status"]: row["number"] for row in rows}
    by_state[PENDING] = sum(row["pending"] for row in rows)
    return ChatCount(by_state, sum(row["stuck"] for row in rows))


@cache
def _spell_count(dialect: Dialect) -> str:
    is_free = f"(c.holder IS NULL OR c.holder NOT IN ({spell_alive(dialect, 1)}))"
    is_pending = f"c.status IN ('running', 'interrupting') AND {is_free}"
    return f"""
        SELECT c.status, count(*) AS number, count(*) FILTER (WHERE {is_pending}) AS pending,
            count(*) FILTER (WHERE {is_pending} AND c.runnable_at < {spell_ago(dialect, 2)}) AS stuck
        FROM chats AS c GROUP BY c.status
        """


def _summarise(row: Row) -> ChatSummary:
    totals = Totals.read(row)
    return ChatSummary(
        id=row["id"],
        status=row["shown_status"],
        title=row["title"],
        model=row["model"],
        labels=[] if row["labels"] is None else msgspec.json.decode(row["labels"]),
        pinned=bool(row["pinned"]),
        archived=bool(row["archived"]),
        debug=row["debug"],
        version=row["seq"],
        created_at=to_time(row["created_at"]),
        updated_at=to_time(row["updated_at"]),
        usage=totals.usage,
        cost_usd=totals.cost_usd,
    )
