"""Ephemeral chats: made for one turn of a program that did not want it stored (`store: false` of the Responses API).

The program's request deletes its chat when the response was delivered. If the client disconnects first, or the process
ends, nothing would delete the chat. So such a chat has a row here from its creation on, and the workers' upkeep
archives it some time after its turn (worker/upkeep.py): it is out of the way, and nothing is destroyed that a user
may just have begun to use (P10). A chat that a user has continued is that user's, and is not archived.

Must stay true (tests/store/test_ephemeral.py, tests/worker/test_list_upkeep.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from indelible.store.database.transaction import Transaction
from indelible.store.queries.liveness import BUSY_STATUSES

_LEFT: Final = f"""
    SELECT p.chat_id FROM ephemeral_chats AS p JOIN chats AS c ON c.id = p.chat_id
    WHERE c.updated_at < $1 AND c.status NOT IN {BUSY_STATUSES} AND NOT c.pinned AND NOT c.archived
        AND (SELECT count(*) FROM turns WHERE chat_id = c.id) < 2
    ORDER BY c.updated_at LIMIT $2
    """


async def find_left(transaction: Transaction, updated_before: datetime, limit: int) -> list[str]:
    """Ephemeral chats whose one turn ended before this time."""
    return [row["chat_id"] for row in await transaction.all(_LEFT, updated_before, limit)]
