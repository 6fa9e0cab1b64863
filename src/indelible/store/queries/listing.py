"""Lists of chats: what a user has, the newest first, a page at a time.

A page goes on where the last one ended: after the chat that it ended with, in the order of the list, so that a
chat that moves up meanwhile is never shown twice. Searching looks at titles. Pinned chats are the page's business.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Row, func, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.machine.states import Status
from indelible.store.commands.facts import alive_workers, load_now
from indelible.store.database.engine import LOWER, begin_read, is_sqlite
from indelible.store.database.tables import DebugMode, chats
from indelible.store.database.types import Id, UtcTime, clean_label
from indelible.store.queries.chat_view import PENDING

_STUCK_AFTER: Final = 10


class ChatSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list. `version` grows with every change of the chat."""

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


class ListCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ended."""

    updated_at: datetime
    id: str


async def list_chats(
    engine: AsyncEngine,
    owner_id: str,
    *,
    archived: bool = False,
    search: str | None = None,
    after: ListCursor | None = None,
    limit: int = 50,
    lease_timeout_s: float,
) -> list[ChatSummary]:
    wanted = select(chats).where(chats.c.owner_id == owner_id, chats.c.archived.is_(archived))
    if search:
        wanted = wanted.where(_lower(engine)(chats.c.title).contains(clean_label(search).lower(), autoescape=True))
    if after is not None:
        place = tuple_(literal(after.updated_at, UtcTime()), literal(after.id, Id))
        wanted = wanted.where(tuple_(chats.c.updated_at, chats.c.id) < place)
    async with begin_read(engine) as connection:
        since = await load_now(connection) - timedelta(seconds=lease_timeout_s)
        alive = set((await connection.execute(alive_workers(since))).scalars())
        rows = await connection.execute(wanted.order_by(chats.c.updated_at.desc(), chats.c.id.desc()).limit(limit))
        return [_summarise(row, alive) for row in rows]


class ChatCount(NamedTuple):
    """How many chats are in which state, and how many of the running ones nobody has worked on for too long."""

    by_state: dict[str, int]
    stuck: int


async def count_chats(engine: AsyncEngine, *, lease_timeout_s: float) -> ChatCount:
    """Of all users. `pending` counts as in lists; a chat is stuck if it was pending for ten times a dead lease."""
    async with begin_read(engine) as connection:
        now = await load_now(connection)
        alive = alive_workers(now - timedelta(seconds=lease_timeout_s))
        counted = select(chats.c.status, func.count()).group_by(chats.c.status)
        by_state = {str(status): int(count) for status, count in await connection.execute(counted)}
        is_running = chats.c.status.in_([Status.RUNNING.value, Status.INTERRUPTING.value])
        waiting = (is_running, chats.c.holder.is_(None) | chats.c.holder.not_in(alive))
        pending = select(func.count()).select_from(chats).where(*waiting)
        long_ago = now - timedelta(seconds=_STUCK_AFTER * lease_timeout_s)
        by_state[PENDING] = (await connection.execute(pending)).scalar_one()
        return ChatCount(
            by_state, (await connection.execute(pending.where(chats.c.updated_at < long_ago))).scalar_one()
        )


def _lower(engine: AsyncEngine) -> Any:
    """SQLite's own `lower` knows no letters but ASCII's."""
    return getattr(func, LOWER) if is_sqlite(engine.url) else func.lower


def _summarise(row: Row[Any], alive: set[str]) -> ChatSummary:
    is_pending = row.status == Status.RUNNING.value and row.holder not in alive
    return ChatSummary(
        id=row.id,
        status=PENDING if is_pending else row.status,
        title=row.title,
        model=row.model,
        labels=[] if row.labels is None else msgspec.json.decode(row.labels),
        pinned=row.pinned,
        archived=row.archived,
        debug=row.debug,
        version=row.seq,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
