"""Being a worker: one row with one heartbeat, and finding chats that nobody works on.

Taking a chat raises its epoch, and every write of a worker carries the epoch it was given, so a lease need
not be exact about time: heartbeats only decide how soon another worker may try. They are written and judged by
the database's clock, which all workers share.

Acquiring goes in steps (R2). Candidates are chosen by a plain read that locks nothing: it is a hint, which keeps
live workers' chats from crowding out the others. Each candidate is then locked, unless somebody has it locked
already, and judged anew by the machine in later statements. A join with `workers` in the locking statement
would hand out chats of live workers.

A worker that received a hint does not ask for everything: `probe_chats` reads exactly the hinted chats, by key, and
says which of them are its own and which it may try to acquire. The limit per user holds there as well.

Must stay true (tests/store/test_leases.py): two workers never get the same chat; a chat of a live worker is
never handed out, one of a dead worker is; a probe finds of the hinted chats what a full search would find.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from sqlalchemy import Integer, Interval, Select, bindparam, case, delete, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.errors import NotAllowed, NotFound, StoreFailed
from indelible.machine.commands import Acquire
from indelible.machine.states import Status
from indelible.store.commands.facts import alive_workers, load_now
from indelible.store.database.dialect import upsert
from indelible.store.database.engine import begin_read, begin_write
from indelible.store.database.tables import chats, turns, workers
from indelible.store.database.types import UtcTime
from indelible.store.protocol import Outcome
from indelible.store.queries.open_turn import Held, Probe

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
    acquired: list[Outcome] = []
    for chat_id in candidates:
        if len(acquired) == limit:
            break
        try:
            outcome = await execute(chat_id, Acquire(worker_id=worker_id))
        except (NotAllowed, NotFound):
            continue
        except StoreFailed as error:
            _log.warning("%s cannot be acquired now and is skipped: %s", chat_id, error)
            continue
        except Exception:
            # One chat that cannot be read is not the others' trouble.
            _log.exception("%s cannot be acquired and is skipped", chat_id)
            continue
        if outcome.status is not Status.ERROR:  # taken over too often, and given up
            acquired.append(outcome)
    return acquired


async def find_candidates(
    engine: AsyncEngine, worker_id: str, *, lease_timeout_s: float, limit: int, per_user: int | None = None
) -> list[str]:
    """Chats that look as if this worker should take them. Only a hint: nothing is locked.

    What it holds itself it does not take over, however late its heartbeat is.
    Every user's first chat comes before anybody's second, and so on, counting those that are being worked on; among
    equals the oldest comes first. Beyond `per_user` a chat has to wait. What is being stopped never has to.
    """
    async with begin_read(engine) as connection:
        values = {
            "worker": worker_id,
            "per_user": _NO_LIMIT if per_user is None else per_user,
            "limit": limit,
            **_bind_death(connection, lease_timeout_s),
        }
        return list((await connection.execute(_build_candidates(connection.dialect.name), values)).scalars())


async def probe_chats(
    engine: AsyncEngine, worker_id: str, chat_ids: Sequence[str], *, lease_timeout_s: float, per_user: int | None = None
) -> Probe:
    """Which of these chats the worker holds, and which it may try to acquire, in the order of `find_candidates`.

    One statement, which finds the chats by key. Only a hint: nothing is locked.
    """
    limit = _NO_LIMIT if per_user is None else per_user
    async with begin_read(engine) as connection:
        values = {"worker": worker_id, "chat_ids": list(chat_ids), **_bind_death(connection, lease_timeout_s)}
        rows = (await connection.execute(_build_probe(connection.dialect.name), values)).all()
    held = [Held(row.id, Status(row.status), row.epoch, row.turn_id) for row in rows if row.holder == worker_id]
    return Probe(held, [row.id for row in rows if row.ahead is not None and (row.urgent == 0 or row.ahead < limit)])


def _bind_death(connection: AsyncConnection, lease_timeout_s: float) -> dict[str, Any]:
    """When a worker counts as dead. PostgreSQL reckons that by its own clock, in the statement that asks."""
    lease_timeout = timedelta(seconds=lease_timeout_s)
    if connection.dialect.name == "sqlite":
        return {"dead_before": datetime.now(UTC) - lease_timeout}
    return {"lease_timeout": lease_timeout}


def _is_free(rows: Any, dialect: str) -> Any:
    """Whether nobody alive holds a chat. What the asking worker holds itself is not free, however late it beats."""
    dead_before: Any = bindparam("dead_before", type_=UtcTime())
    if dialect != "sqlite":
        dead_before = func.clock_timestamp() - bindparam("lease_timeout", type_=Interval())
    alive = alive_workers(dead_before)
    return rows.c.holder.is_(None) | (rows.c.holder.not_in(alive) & (rows.c.holder != bindparam("worker")))


def _is_busy(rows: Any) -> Any:
    return rows.c.status.in_([Status.RUNNING.value, Status.INTERRUPTING.value])


def _urgency(rows: Any) -> Any:
    return case((rows.c.status == Status.INTERRUPTING.value, 0), else_=1)


@cache
def _build_probe(dialect: str) -> Select[Any]:
    """`ahead` counts the chats of the same user that come first; it is null for a chat that somebody holds."""
    rival = chats.alias("rival")
    comes_first = ~_is_free(rival, dialect) | (
        tuple_(_urgency(rival), rival.c.updated_at, rival.c.id)
        < tuple_(_urgency(chats), chats.c.updated_at, chats.c.id)
    )
    # `coalesce` keeps both databases from reading every chat that the user ever had: the busy ones are few.
    same_user = func.coalesce(rival.c.owner_id, "") == chats.c.owner_id
    rivals = select(func.count()).select_from(rival).where(_is_busy(rival), same_user, comes_first)
    ahead = case((_is_free(chats, dialect), rivals.correlate(chats).scalar_subquery()))
    columns = (chats.c.id, chats.c.status, chats.c.epoch, chats.c.holder, turns.c.id.label("turn_id"))
    urgent = _urgency(chats).label("urgent")
    found = select(*columns, urgent, ahead.label("ahead"))
    found = found.outerjoin_from(chats, turns, (turns.c.chat_id == chats.c.id) & turns.c.ended_at.is_(None))
    found = found.where(chats.c.id.in_(bindparam("chat_ids", expanding=True)), _is_busy(chats))
    return found.order_by(urgent, "ahead", chats.c.updated_at, chats.c.id)


@cache
def _build_candidates(dialect: str) -> Select[Any]:
    """Built once: it is asked for many times a second, and building it costs more than answering it."""
    is_busy = _is_busy(chats)
    urgent = _urgency(chats)
    is_held = case((_is_free(chats, dialect), 0), else_=1)
    order = (is_held.desc(), urgent, chats.c.updated_at, chats.c.id)
    place = func.row_number().over(partition_by=chats.c.owner_id, order_by=order)
    columns = (chats.c.id, chats.c.updated_at, urgent.label("urgent"), is_held.label("held"), place.label("place"))
    busy = select(*columns).where(is_busy).subquery()
    within = (busy.c.place <= bindparam("per_user", type_=Integer)) | (busy.c.urgent == 0)
    found = select(busy.c.id).where(busy.c.held == 0, within)
    found = found.order_by(busy.c.urgent, busy.c.place, busy.c.updated_at, busy.c.id)
    return found.limit(bindparam("limit", type_=Integer))
