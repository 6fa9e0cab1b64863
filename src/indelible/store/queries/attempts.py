"""What was tried in a chat: every attempt, also those that came to nothing.

These are the rows that the work itself leaves, so they are always there; what was exchanged with a provider meanwhile
is there only if it was recorded (recording/storage/protocol.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.content import Usage
from indelible.machine.effects import AttemptOutcome
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import attempts


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One try at one step of a turn. Without an outcome it is open. `last_n` is the last row of its journal."""

    id: str
    turn_id: str
    step: int
    number: int
    provider: str | None
    model: str | None
    outcome: AttemptOutcome | None
    error: Any
    usage: Usage | None
    started_at: datetime
    ended_at: datetime | None
    last_n: int | None


async def load_attempts(
    engine: AsyncEngine, chat_id: str, *, before: str | None = None, limit: int = 50
) -> list[AttemptView]:
    wanted = select(attempts).where(attempts.c.chat_id == chat_id)
    if before is not None:
        wanted = wanted.where(attempts.c.id < before)
    async with begin_read(engine) as connection:
        rows = await connection.execute(wanted.order_by(attempts.c.id.desc()).limit(limit))
        return [_show(row) for row in rows]


def _show(row: Row[Any]) -> AttemptView:
    return AttemptView(
        id=row.id,
        turn_id=row.turn_id,
        step=row.step,
        number=row.number,
        provider=row.provider,
        model=row.model,
        outcome=row.outcome,
        error=None if row.error is None else msgspec.json.decode(row.error),
        usage=None if row.usage is None else msgspec.json.decode(row.usage, type=Usage),
        started_at=row.started_at,
        ended_at=row.ended_at,
        last_n=row.last_n,
    )
