"""Climbing a chat's tree of messages: from a message to its parent, and so on.

A path may be ten thousand messages long, and nearly every query is about its end. So rows are fetched
in chunks from the end upwards, and the caller stops when it has found what it needs.

A path ends with what people and the model both see last (`is_conversation`). A notice does not change whether the
last reply is partial; nor does a summary, or the instruction to continue.

Must stay true (tests/store/test_long_chats.py): no more of a chat is read than that, with or without statistics in
PostgreSQL; a reply is partial or complete after a compaction as before (tests/store/test_history_in_store.py).
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


def is_conversation(row: Row) -> bool:
    """Whether people and the model both see this message: it is no notice, no summary and no instruction."""
    return bool(row["role"] != "notice" and row["visibility"] == "both")


async def find_partial_reply(transaction: Transaction, chat_id: str, head_id: str | None) -> str | None:
    """The partial reply that the path ends with; None if it ends with anything else."""
    async for row in load_ancestors(transaction, chat_id, head_id):
        if is_conversation(row):
            return str(row["id"]) if row["role"] == "assistant" and row["partial"] else None
    return None


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
