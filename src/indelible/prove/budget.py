"""How many more kills the running turns can survive.

A turn that survives ten crashes, or three in a row without writing anything, is failed on purpose: the turn itself may
be what kills its workers (machine/decide.py). A proof must not cause that, so it checks before it kills. The database
has the takeovers of each open turn, except one: a turn whose holder has sent no heartbeat since the last kill may be
about to be taken over. That is never more than one, because a chat without a holder cannot be lost again.

Must stay true (tests/prove/test_budget.py).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.machine.decide_worker import MAX_STALLED_TAKEOVERS, MAX_TAKEOVERS
from indelible.store.commands.facts import load_now
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import attempts, chats, journal, turns, workers


class Budget:
    """The crashes that the open turns of a database have had, and how many more they can survive."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._last_death_at: datetime | None = None

    async def note_death(self) -> None:
        """Call this after every kill."""
        async with begin_read(self._engine) as connection:
            self._last_death_at = await load_now(connection)

    async def can_bear(self, deaths: int) -> bool:
        """Whether there is an open turn, and every open turn would survive so many more kills."""
        written = (
            select(func.count())
            .select_from(journal)
            .join(attempts, (attempts.c.chat_id == journal.c.chat_id) & (attempts.c.id == journal.c.attempt_id))
        )
        rows = written.where(attempts.c.turn_id == turns.c.id).scalar_subquery()
        alive = select(workers.c.id)
        if self._last_death_at is not None:
            alive = alive.where(workers.c.heartbeat_at > self._last_death_at)
        is_owed = chats.c.holder.is_not(None) & chats.c.holder.not_in(alive)
        columns = (
            turns.c.takeovers,
            turns.c.stalled_takeovers,
            turns.c.journal_rows_at_takeover,
            rows.label("rows"),
            is_owed.label("owed"),
        )
        found = select(*columns).join_from(turns, chats, chats.c.id == turns.c.chat_id)
        async with begin_read(self._engine) as connection:
            running = (await connection.execute(found.where(turns.c.ended_at.is_(None)))).all()
        return bool(running) and all(_is_bearable(turn, deaths + int(turn.owed)) for turn in running)


def _is_bearable(turn: Row[Any], deaths: int) -> bool:
    stalled = turn.stalled_takeovers if turn.rows == turn.journal_rows_at_takeover else 0
    return bool(turn.takeovers + deaths < MAX_TAKEOVERS and stalled + deaths < MAX_STALLED_TAKEOVERS)
