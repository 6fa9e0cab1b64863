"""Climbing a chat's tree of messages: from a message to its parent, and so on.

A path may be ten thousand messages long, and nearly every query is about its end. So rows are fetched
in chunks from the end upwards, and the caller stops when it has found what it needs.

Must stay true (tests/store/test_long_chats.py): no more of a chat is read than that, with or without statistics in
PostgreSQL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import Final

from indelible.store.database.transaction import Dialect, Row, Transaction

_CHUNK: Final = 50
_SHAPE: Final = ("id", "parent_id", "role", "visibility", "partial")


async def load_ancestors(
    transaction: Transaction, chat_id: str, start_id: str | None, *columns: str, chunk: int = _CHUNK
) -> AsyncIterator[Row]:
    """The rows from `start_id` up to the first message. `columns` are fetched in addition to those of the tree."""
    sql = _spell_ancestors(columns, transaction.dialect)
    while start_id is not None:
        rows = await transaction.all(sql, chat_id, start_id, chunk)
        for row in rows:
            yield row
        start_id = rows[-1]["parent_id"] if rows else None


@cache
def _spell_ancestors(columns: tuple[str, ...], dialect: Dialect) -> str:
    """LATERAL makes PostgreSQL look up each parent by its key.

    Otherwise, without statistics, it joins with all messages of the chat, and a connection keeps that plan when the
    chat has become long. SQLite uses the key anyway, and has no LATERAL.
    """
    wanted = ", ".join((*_SHAPE, *columns))
    parent = ", ".join(f"parent.{column}" for column in (*_SHAPE, *columns))
    parents = "JOIN messages AS parent ON parent.chat_id = $1 AND parent.id = up.parent_id"
    if dialect == "postgresql":
        above = f"SELECT {wanted} FROM messages WHERE chat_id = $1 AND id = up.parent_id LIMIT 1"
        parents = f"CROSS JOIN LATERAL ({above}) AS parent"
    return f"""
        WITH RECURSIVE up AS (
            SELECT {wanted}, 1 AS depth FROM messages WHERE chat_id = $1 AND id = $2
            UNION ALL
            SELECT {parent}, up.depth + 1 FROM up {parents} WHERE up.depth < $3
        )
        SELECT {wanted} FROM up ORDER BY depth
        """
