"""Going up a chat's tree of messages: from a message to the one it follows, and so on.

A path may be ten thousand messages long, and nearly every question is about its end. So rows are fetched
in chunks from the end upwards, and whoever has found what they looked for stops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Integer, Row, Select, bindparam, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.store.tables import messages
from indelible.store.types import Id

_CHUNK: Final = 50
_SHAPE: Final = (messages.c.id, messages.c.parent_id, messages.c.role, messages.c.visibility, messages.c.partial)


async def climb(
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
    rows: Sequence[Row[Any]] = (await connection.execute(_build_climb(columns), names)).all()
    return rows


@cache
def _build_climb(columns: tuple[Any, ...]) -> Select[Any]:
    """Building a recursive statement costs more than running it, and every command climbs."""
    chat = bindparam("chat", type_=Id)
    here = select(*_SHAPE, *columns, literal(1).label("depth")).where(
        messages.c.chat_id == chat, messages.c.id == bindparam("start", type_=Id)
    )
    up = here.cte("up", recursive=True)
    above = messages.alias("above")
    parents = select(*(above.c[column.name] for column in (*_SHAPE, *columns)), (up.c.depth + 1).label("depth")).where(
        above.c.chat_id == chat, above.c.id == up.c.parent_id, up.c.depth < bindparam("chunk", type_=Integer)
    )
    up = up.union_all(parents)
    return select(up).order_by(up.c.depth)
