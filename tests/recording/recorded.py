"""Debug records made up: a run of a chat, its steps and its exchanges, with times that no test has to know.

And how many there are in a database.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver
from tests.support.engine import begin_read
from tests.support.tables import debug_attempts, debug_runs, debug_steps

from indelible.api.records import AttemptRecord, RunRecord, StepRecord
from indelible.ids import new_id

NOON: Final = datetime(2026, 1, 15, 12, tzinfo=UTC)
LATER: Final = NOON + timedelta(seconds=9)


def make_run(chat: Driver, **fields: Any) -> RunRecord:
    known: dict[str, Any] = {"id": new_id("run"), "chat_id": chat.id, "turn_id": chat.turn_id, "kind": "turn"}
    known |= {"status": "in_progress", "worker_id": "live", "started_at": NOON}
    return RunRecord(**{**known, **fields})


def make_step(run: RunRecord, step: int = 1, **fields: Any) -> StepRecord:
    known: dict[str, Any] = {"chat_id": run.chat_id, "run_id": run.id, "step": step}
    return StepRecord(**{**known, "status": "in_progress", "started_at": NOON, **fields})


def make_attempt(run: RunRecord, step: int = 1, number: int = 1, **fields: Any) -> AttemptRecord:
    known: dict[str, Any] = {"chat_id": run.chat_id, "run_id": run.id, "step": step, "number": number}
    known |= {"status": "completed", "method": "POST", "url": "https://provider.test/v1"}
    return AttemptRecord(**{**known, "started_at": NOON, "ended_at": LATER, **fields})


def make_all(chat: Driver, **fields: Any) -> tuple[RunRecord, StepRecord, AttemptRecord]:
    """A run with one step and one exchange."""
    run = make_run(chat, **fields)
    return run, make_step(run), make_attempt(run)


async def count_rows(engine: AsyncEngine) -> list[int]:
    """Runs, steps and exchanges."""
    async with begin_read(engine) as connection:
        tables = (debug_runs, debug_steps, debug_attempts)
        counts = [await connection.execute(select(func.count()).select_from(table)) for table in tables]
        return [count.scalar_one() for count in counts]
