"""Messages as people see them.

What only a model may see is left out, and a message that hangs on such a row is shown as hanging on what stands
above it: whoever draws the conversation never meets a name that it was not given. Blocks and usage stay the JSON
that they are in the database.

A page is read from its end upwards, so the end of a long conversation costs no more than that of a short one.

Must stay true (tests/store/test_history.py): no hidden row is shown or named; a page has as many messages as it was
asked for, if there are so many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from sqlalchemy import Row, false, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.errors import NotFound
from indelible.machine.events import ShownMessage, ShownQueued
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import chats, messages, queue
from indelible.store.queries.ancestors import load_ancestors

_HIDDEN: Final = "model"
_NANO: Final = 1_000_000_000
_COLUMNS: Final = (
    messages.c.blocks,
    messages.c.reason,
    messages.c.continues_id,
    messages.c.model,
    messages.c.usage,
    messages.c.cost_nanousd,
    messages.c.created_at,
)
_SHAPE: Final = (messages.c.id, messages.c.parent_id, messages.c.role, messages.c.visibility, messages.c.partial)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the path, oldest first, and whether there is more above it."""

    items: list[ShownMessage]
    has_more: bool


async def load_page(
    engine: AsyncEngine, chat_id: str, *, upto: str | None = None, before: str | None = None, limit: int = 50
) -> Page:
    """The last `limit` messages of the path: of the active one, of that which ends with `upto`, or above `before`."""
    async with begin_read(engine) as connection:
        head = (await connection.execute(select(chats.c.head_id).where(chats.c.id == chat_id))).one_or_none()
        if head is None:
            raise NotFound("Chat not found. It may have been deleted.")
        start_id = before or upto or head.head_id
        found: list[Row[Any]] = []
        is_known = start_id is None
        async for row in load_ancestors(connection, chat_id, start_id, *_COLUMNS, chunk=limit + 2):
            is_known = True
            if row.visibility != _HIDDEN and row.id != before:
                found.append(row)
            if len(found) > limit:
                break
        if not is_known:
            raise NotFound("Message not found in this chat.")
        branches = await _load_branches(connection, chat_id, {row.parent_id for row in found[:limit]})
    items = [
        _show(row, None if above is None else above.id, siblings=branches[row.parent_id])
        for row, above in zip(found[:limit], [*found[1:], None], strict=False)
    ]
    return Page(items=items[::-1], has_more=len(found) > limit)


async def load_shown(connection: AsyncConnection, chat_id: str, ids: Iterable[str]) -> dict[str, ShownMessage]:
    """Those of these messages that people see, by id."""
    wanted = select(*_SHAPE, *_COLUMNS).where(
        messages.c.chat_id == chat_id, messages.c.id.in_(ids), messages.c.visibility != _HIDDEN
    )
    rows = (await connection.execute(wanted)).all()
    above = await find_visible(connection, chat_id, {row.parent_id for row in rows if row.parent_id is not None})
    return {row.id: _show(row, above.get(row.parent_id)) for row in rows}


async def find_visible(connection: AsyncConnection, chat_id: str, ids: Iterable[str]) -> dict[str, str | None]:
    """For each of these messages itself, or the nearest above it that people see."""
    found: dict[str, str | None] = {id_: id_ for id_ in ids}
    while unknown := {id_ for id_ in found.values() if id_ is not None}:
        hidden = select(messages.c.id, messages.c.parent_id).where(
            messages.c.chat_id == chat_id, messages.c.id.in_(unknown), messages.c.visibility == _HIDDEN
        )
        above = {row.id: row.parent_id for row in await connection.execute(hidden)}
        if not above:
            break
        found = {id_: above.get(place, place) if place is not None else None for id_, place in found.items()}
    return found


async def load_queued(connection: AsyncConnection, chat_id: str) -> list[ShownQueued]:
    """What waits in the queue now, in order."""
    wanted = select(queue).where(queue.c.chat_id == chat_id).order_by(queue.c.position)
    return [
        ShownQueued(
            id=row.id, if_busy=row.if_busy, blocks=msgspec.Raw(row.content), model=row.model, created_at=row.created_at
        )
        for row in await connection.execute(wanted)
    ]


async def _load_branches(
    connection: AsyncConnection, chat_id: str, parent_ids: set[str | None]
) -> dict[str | None, list[str]]:
    """What people see directly below each of these, oldest first; None is the beginning."""
    below = or_(
        messages.c.parent_id.in_([id_ for id_ in parent_ids if id_ is not None]),
        messages.c.parent_id.is_(None) if None in parent_ids else false(),
    )
    wanted = select(messages.c.id, messages.c.parent_id).where(
        messages.c.chat_id == chat_id, below, messages.c.visibility != _HIDDEN
    )
    branches: dict[str | None, list[str]] = {parent_id: [] for parent_id in parent_ids}
    for row in await connection.execute(wanted.order_by(messages.c.created_at, messages.c.id)):
        branches[row.parent_id].append(row.id)
    return branches


def _show(row: Any, parent_id: str | None, siblings: list[str] | msgspec.UnsetType = msgspec.UNSET) -> ShownMessage:
    return ShownMessage(
        id=row.id,
        parent_id=parent_id,
        role=row.role,
        blocks=msgspec.Raw(row.blocks),
        partial=row.partial,
        reason=row.reason,
        continues=row.continues_id,
        model=row.model,
        usage=msgspec.Raw(row.usage or b"null"),
        cost_usd=None if row.cost_nanousd is None else row.cost_nanousd / _NANO,
        created_at=row.created_at,
        siblings=siblings,
    )
