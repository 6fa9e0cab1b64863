"""Being a worker: one row with one heartbeat, and finding chats that nobody works on.

Taking a chat raises its epoch, and every write of a worker carries the epoch it was given, so a lease need
not be exact about time: heartbeats only decide how soon another worker may try. They are written and judged by
the database's clock, which all workers share.

Acquiring goes in steps (R2). Candidates are chosen by a plain read that locks nothing: it is a hint, which keeps
live workers' chats from crowding out the others. Each candidate is then locked, unless somebody has it locked
already, and judged anew by the machine in later statements. A join with `workers` in the locking statement
would hand out chats of live workers.

Must stay true (tests/store/test_lease.py): two workers never get the same chat; a chat of a live worker is
never handed out, one of a dead worker is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import case, delete, select
from sqlalchemy.dialects.postgresql import insert as insert_postgres
from sqlalchemy.dialects.sqlite import insert as insert_sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.errors import NotAllowed, NotFound
from indelible.machine.commands import Acquire
from indelible.machine.states import Status
from indelible.store.engine import begin_read, begin_write
from indelible.store.port import Outcome
from indelible.store.snapshot import load_now
from indelible.store.tables import chats, workers

CANDIDATES_PER_CHAT: Final = 4


async def beat(engine: AsyncEngine, worker_id: str) -> None:
    """Say that this worker is alive; the first time, that there is one."""
    async with begin_write(engine) as connection:
        now = await load_now(connection)
        add = insert_sqlite if connection.dialect.name == "sqlite" else insert_postgres
        row = add(workers).values(id=worker_id, started_at=now, heartbeat_at=now)
        await connection.execute(row.on_conflict_do_update(index_elements=[workers.c.id], set_={"heartbeat_at": now}))


async def retire(engine: AsyncEngine, worker_id: str) -> None:
    """Say that a worker is gone: what it still holds is anybody's at once."""
    async with begin_write(engine) as connection:
        await connection.execute(delete(workers).where(workers.c.id == worker_id))


async def acquire_chats(
    candidates: Sequence[str], worker_id: str, *, limit: int, execute: Callable[[str, Acquire], Awaitable[Outcome]]
) -> list[Outcome]:
    """Take up to `limit` of these, leaving out those that somebody else has by now."""
    taken: list[Outcome] = []
    for chat_id in candidates:
        if len(taken) == limit:
            break
        try:
            taken.append(await execute(chat_id, Acquire(worker_id=worker_id)))
        except (NotAllowed, NotFound):
            continue
    return taken


async def find_candidates(engine: AsyncEngine, *, dead_after_s: float, limit: int) -> list[str]:
    """Chats that look as if somebody should take them. Only a hint: nothing is locked."""
    async with begin_read(engine) as connection:
        dead_before = await load_now(connection) - timedelta(seconds=dead_after_s)
        alive = select(workers.c.id).where(workers.c.heartbeat_at > dead_before)
        urgent = case((chats.c.status == Status.INTERRUPTING.value, 0), else_=1)
        found = (
            select(chats.c.id)
            .where(chats.c.status.in_([Status.RUNNING.value, Status.INTERRUPTING.value]))
            .where(chats.c.holder.is_(None) | chats.c.holder.not_in(alive))
            .order_by(urgent, chats.c.updated_at, chats.c.id)
            .limit(limit)
        )
        return list((await connection.execute(found)).scalars())
