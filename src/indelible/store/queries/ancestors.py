"""Going up a chat's tree of messages: from a message to the one it follows, and so on.

A path may be ten thousand messages long, and nearly every question is about its end. So rows are fetched
in chunks from the end upwards, and whoever has found what they looked for stops.

Must stay true (tests/store/test_long_chats.py): no more of a chat is read than that, whatever PostgreSQL knows of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Integer, Row, Select, bindparam, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.store.database.tables import messages
from indelible.store.database.types import Id

_CHUNK: Final = 50
_SHAPE: Final = (messages.c.id, messages.c.parent_id, messages.c.role, messages.c.visibility, messages.c.partial)


async def load_ancestors(
    connection: AsyncConnection, chat_id: str, start_id: str | None, *columns: Any, chunk: int = _CHUNK
) -> AsyncIterator[Row[Any]]:
    """The rows from `start_id` up to the first message. `columns` are fetched besides the shape of the tree."""
    while start_id is not None:
        rows = await _fetch_chunk(connection, chat_id, start_id, columns, chunk)
        for row in rows:
            yield row
        start_id = rows[-1].parent_id if rows else None


async def _fetch_chunk(
    connection: AsyncConnection, chat_id: str, start_id: str, columns: tuple[Any, ...], chunk: int
) -> Sequence[Row[Any]]:
    names = {"chat": chat_id, "start": start_id, "chunk": chunk}
    statement = _build_ancestors(columns, by_key=connection.dialect.name == "postgresql")
    rows: Sequence[Row[Any]] = (await connection.execute(statement, names)).all()
    return rows


@cache
def _build_ancestors(columns: tuple[Any, ...], *, by_key: bool) -> Select[Any]:
    """Building a recursive statement costs more than running it, and every command climbs.

    `by_key` has PostgreSQL ask for each parent by its key. Left to itself it joins with all messages of the chat while
    it has no statistics, and a connection keeps that plan when the chat is long. SQLite does it by key anyway.
    """
    chat = bindparam("chat", type_=Id)
    wanted = (*_SHAPE, *columns)
    here = select(*wanted, literal(1).label("depth")).where(
        messages.c.chat_id == chat, messages.c.id == bindparam("start", type_=Id)
    )
    up = here.cte("up", recursive=True)
    above = messages.alias("above")
    parent = select(*(above.c[column.name] for column in wanted)).where(
        above.c.chat_id == chat, above.c.id == up.c.parent_id
    )
    if by_key:
        parent = select(*parent.limit(1).lateral("parent").c).select_from(up)
    parents = parent.add_columns((up.c.depth + 1).label("depth"))
    up = up.union_all(parents.where(up.c.depth < bindparam("chunk", type_=Integer)))
    return select(up).order_by(up.c.depth)
