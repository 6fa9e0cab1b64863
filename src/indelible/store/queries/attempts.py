"""The attempts of a chat, including those that left nothing.

The work itself writes these rows, so they always exist; the exchanges with a provider exist only if they were
recorded (recording/storage.py).
"""

from __future__ import annotations

from typing import Final

import msgspec

from indelible.api.shapes import AttemptView
from indelible.content import Usage
from indelible.store.database.transaction import Row, Transaction, to_time

_COLUMNS: Final = "id, turn_id, step, number, provider, model, outcome, error, usage, started_at, ended_at, last_n"
_NEWEST: Final = f"SELECT {_COLUMNS} FROM attempts WHERE chat_id = $1 ORDER BY id DESC LIMIT $2"
_AFTER: Final = f"SELECT {_COLUMNS} FROM attempts WHERE chat_id = $1 AND id > $3 ORDER BY id LIMIT $2"
_BEFORE: Final = f"SELECT {_COLUMNS} FROM attempts WHERE chat_id = $1 AND id < $3 ORDER BY id DESC LIMIT $2"


async def load_attempts(
    transaction: Transaction, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
) -> list[AttemptView]:
    """Newest first: the newest, those next older than `before`, or those next newer than `after`."""
    if after is not None:
        rows = (await transaction.all(_AFTER, chat_id, limit, after))[::-1]
    elif before is None:
        rows = await transaction.all(_NEWEST, chat_id, limit)
    else:
        rows = await transaction.all(_BEFORE, chat_id, limit, before)
    return [_show(row) for row in rows]


def _show(row: Row) -> AttemptView:
    return AttemptView(
        id=row["id"],
        turn_id=row["turn_id"],
        step=row["step"],
        number=row["number"],
        provider=row["provider"],
        model=row["model"],
        outcome=row["outcome"],
        error=None if row["error"] is None else msgspec.json.decode(row["error"]),
        usage=None if row["usage"] is None else msgspec.json.decode(row["usage"], type=Usage),
        started_at=to_time(row["started_at"]),
        ended_at=to_time(row["ended_at"]),
        last_n=row["last_n"],
    )
