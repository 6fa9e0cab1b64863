"""Being a worker: one row with one heartbeat, and finding chats that nobody works on.

Taking a chat raises its epoch, and every write of a worker carries the epoch it was given, so a lease need
not be exact about time: heartbeats only decide how soon another worker may try. They are written and judged by
the database's clock, which all workers share.

Acquiring goes in steps (R2). Candidates are chosen by a plain read that locks nothing: it is a hint, which keeps
live workers' chats from crowding out the others. Each candidate is then locked, unless somebody has it locked
already, and judged anew by the machine in later statements. A join with `workers` in the locking statement
would hand out chats of live workers.

Must stay true (tests/store/test_leases.py): two workers never get the same chat; a chat of a live worker is
never handed out, one of a dead worker is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final

from sqlalchemy import Integer, Select, bindparam, case, delete, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.errors import NotAllowed, NotFound, StoreFailed
from indelible.machine.commands import Acquire
from indelible.machine.states import Status
from indelible.store.commands.facts import alive_workers, load_now
from indelible.store.database.dialect import upsert
from indelible.store.database.engine import begin_read, begin_write
from indelible.store.database.tables import chats, workers
from indelible.store.database.types import UtcTime
from indelible.store.protocol import Outcome

CANDIDATES_PER_CHAT: Final = 4
_NO_LIMIT: Final = 2**31 - 1
_log: Final = logging.getLogger(__name__)


async def beat(engine: AsyncEngine, worker_id: str) -> None:
    """Say that this worker is alive; the first time, that there is one."""
    async with begin_write(engine) as connection:
        now = await load_now(connection)
        row = upsert(connection.dialect.name, workers).values(id=worker_id, started_at=now, heartbeat_at=now)
        await connection.execute(row.on_conflict_do_update(index_elements=[workers.c.id], set_={"heartbeat_at": now}))


async def retire(engine: AsyncEngine, worker_id: str) -> None:
    """Say that a worker is gone: what it still holds is anybody's at once."""
    async with begin_write(engine) as connection:
        await connection.execute(delete(workers).where(workers.c.id == worker_id))


async def retire_all(engine: AsyncEngine) -> None:
    """Say that every worker is gone. Only for whoever holds the database alone (store/database/file_lock.py)."""
    async with begin_write(engine) as connection:
        await connection.execute(delete(workers))


async def forget_dead(engine: AsyncEngine, *, dead_for_s: float) -> None:
    """Forget workers that have been dead for so long. A chat that names one is anybody's all the same."""
    async with begin_write(engine) as connection:
        dead_before = await load_now(connection) - timedelta(seconds=dead_for_s)
        await connection.execute(delete(workers).where(workers.c.heartbeat_at < dead_before))


async def acquire_chats(
    candidates: Sequence[str], worker_id: str, *, limit: int, execute: Callable[[str, Acquire], Awaitable[Outcome]]
) -> list[Outcome]:
    """Take up to `limit` of these, leaving out those that somebody else has by now."""
    taken: list[Outcome] = []
    for chat_id in candidates:
        if len(taken) == limit:
            break
        try:
            outcome = await execute(chat_id, Acquire(worker_id=worker_id))
        except (NotAllowed, NotFound):
            continue
        except StoreFailed as error:
            _log.warning("%s cannot be taken now, and is passed over: %s", chat_id, error)
            continue
        except Exception:
            # One chat that cannot be read is not the others' trouble.
            _log.exception("%s cannot be taken, and is passed over", chat_id)
            continue
        if outcome.status is not Status.ERROR:  # taken over too often, and given up
            taken.append(outcome)
    return taken


async def find_candidates(
    engine: AsyncEngine, worker_id: str, *, lease_timeout_s: float, limit: int, per_user: int | None = None
) -> list[str]:
    """Chats that look as if this worker should take them. Only a hint: nothing is locked.

    What it holds itself it does not take over, however late its heartbeat is.
    Every user's first chat comes before anybody's second, and so on, counting those that are being worked on; among
    equals the oldest comes first. Beyond `per_user` a chat has to wait. What is being stopped never has to.
    """
    async with begin_read(engine) as connection:
        dead_before = await load_now(connection) - timedelta(seconds=lease_timeout_s)
        values = {
            "worker": worker_id,
            "dead_before": dead_before,
            "per_user": _NO_LIMIT if per_user is None else per_user,
            "limit": limit,
        }
        return list((await connection.execute(_build_candidates(), values)).scalars())


@cache
def _build_candidates() -> Select[Any]:
    """Built once: it is asked for many times a second, and building it costs more than answering it."""
    alive = alive_workers(bindparam("dead_before", type_=UtcTime()))
    is_busy = chats.c.status.in_([Status.RUNNING.value, Status.INTERRUPTING.value])
    is_free = chats.c.holder.is_(None) | (chats.c.holder.not_in(alive) & (chats.c.holder != bindparam("worker")))
    urgent = case((chats.c.status == Status.INTERRUPTING.value, 0), else_=1)
    is_held = case((is_free, 0), else_=1)
    order = (is_held.desc(), urgent, chats.c.updated_at, chats.c.id)
    place = func.row_number().over(partition_by=chats.c.owner_id, order_by=order)
    columns = (chats.c.id, chats.c.updated_at, urgent.label("urgent"), is_held.label("held"), place.label("place"))
    busy = select(*columns).where(is_busy).subquery()
    within = (busy.c.place <= bindparam("per_user", type_=Integer)) | (busy.c.urgent == 0)
    found = select(busy.c.id).where(busy.c.held == 0, within)
    found = found.order_by(busy.c.urgent, busy.c.place, busy.c.updated_at, busy.c.id)
    return found.limit(bindparam("limit", type_=Integer))
