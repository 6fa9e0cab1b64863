"""How many more kills the running turns can survive.

A turn that survives ten crashes, or three in a row without writing anything, is failed on purpose: the turn itself may
be what kills its workers (machine/decide.py). A proof must not cause that, so it checks before it kills. The database
has the takeovers of each open turn, except one: a turn whose holder has sent no heartbeat since the last kill may be
about to be taken over. That is never more than one, because a chat without a holder cannot be lost again.

Must stay true (tests/prove/test_budget.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from indelible.machine.decide_worker import MAX_STALLED_TAKEOVERS, MAX_TAKEOVERS
from indelible.store.commands.facts import load_progress
from indelible.store.database.transaction import Database, Row, Transaction

_BEFORE_ALL: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RUNNING: Final = """
    SELECT t.chat_id, t.id, t.takeovers, t.stalled_takeovers, t.journal_rows_at_takeover, a.id AS attempt_id,
        c.holder IS NOT NULL AND c.holder NOT IN (SELECT id FROM workers WHERE heartbeat_at > $1) AS owed
    FROM turns AS t JOIN chats AS c ON c.id = t.chat_id
    LEFT JOIN attempts AS a ON a.chat_id = t.chat_id AND a.turn_id = t.id AND a.ended_at IS NULL
    WHERE t.ended_at IS NULL
    """


class KillBudget:
    """The crashes that the open turns of a database have had, and how many more they can survive."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_death_at = _BEFORE_ALL

    async def note_death(self) -> None:
        """Call this after every kill."""
        self._last_death_at = await self._database.read(_load_now)

    async def can_bear(self, deaths: int) -> bool:
        """Whether there is an open turn, and every open turn would survive so many more kills."""
        since = self._last_death_at
        return await self._database.read(lambda transaction: _can_bear(transaction, since, deaths))


async def _load_now(transaction: Transaction) -> datetime:
    return await transaction.now()


async def _can_bear(transaction: Transaction, since: datetime, deaths: int) -> bool:
    running = await transaction.all(_RUNNING, since)
    for turn in running:
        progress = await load_progress(transaction, turn["chat_id"], turn["id"], turn["attempt_id"])
        if not _is_bearable(turn, progress, deaths + int(turn["owed"])):
            return False
    return bool(running)


def _is_bearable(turn: Row, progress: int, deaths: int) -> bool:
    stalled = turn["stalled_takeovers"] if progress == turn["journal_rows_at_takeover"] else 0
    return bool(turn["takeovers"] + deaths < MAX_TAKEOVERS and stalled + deaths < MAX_STALLED_TAKEOVERS)
