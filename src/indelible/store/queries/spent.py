"""What a user has spent since a time: tokens and costs of all replies, for the daily limit (service/budget.py).

Only chats in which something was said since then are read, by the index of a user's list, and of those the messages
since then. It is read only where a limit is set.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from indelible.content import Usage
from indelible.store.database.transaction import Transaction

_SPENT: Final = """
    SELECT m.usage, m.cost_nanousd FROM chats AS c JOIN messages AS m ON m.chat_id = c.id
    WHERE c.owner_id = $1 AND c.updated_at >= $2 AND m.created_at >= $2
        AND (m.usage IS NOT NULL OR m.cost_nanousd IS NOT NULL)
    """
_usage: Final = msgspec.json.Decoder(Usage)


class Spent(NamedTuple):
    tokens: int
    cost_nanousd: int


async def load_spent(transaction: Transaction, user_id: str, since: datetime) -> Spent:
    rows = await transaction.all(_SPENT, user_id, since)
    tokens = sum(_usage.decode(row["usage"]).total_tokens for row in rows if row["usage"] is not None)
    return Spent(tokens, sum(row["cost_nanousd"] or 0 for row in rows))
