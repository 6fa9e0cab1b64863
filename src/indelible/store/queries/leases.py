"""Workers and leases: one heartbeat row per worker, and finding chats that no live worker holds.

Acquiring a chat raises its epoch, and every write of a worker carries the epoch it was given, so a lease need
not be exact about time: heartbeats only decide how soon another worker may try. They are written and judged by
the database's clock, which all workers share. A worker may also be declared gone before its lease has run out
(worker/presence.py). If it lives, its next heartbeat finds that out, and what was taken from it meanwhile does not
count as a takeover.

Acquiring takes several steps (R2). First a plain read that locks nothing chooses candidates. It is only a hint; it
keeps live workers' chats from crowding out the others. Each candidate is then locked, or skipped if it is locked
already, and the machine judges it again in later statements. A join with `workers` in the locking statement would hand
out chats of live workers.

A turn that has lost a worker before may be what killed it. Such turns are *suspects*. A search returns at most as many
suspects as requested: first those whose tool was running, then those that made no progress. A probe returns none. So a
worker tries suspects one at a time, and one that kills its worker takes no other suspect with it (S96). After a first
crash no turn is a suspect, and all are taken over at once.

A worker that received a hint does not search everything: `probe_chats` reads exactly the hinted chats, by key, and
returns which of them it holds and which it may try to acquire. The limit per user applies there too.

Must stay true (tests/store/test_leases.py): two workers never get the same chat; a chat of a live worker is
never handed out, one of a dead worker is; a probe finds among the hinted chats what a full search would find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Final

from indelible.errors import NotAllowed, NotFound, StoreFailed
from indelible.logs import get_logger
from indelible.machine.commands import Acquire
from indelible.machine.states import Status
from indelible.store.database.session_lock import build_held
from indelible.store.database.transaction import Dialect, Transaction
from indelible.store.outcome import Outcome
from indelible.store.queries.liveness import BUSY_STATUSES, bind_ago, build_ago, build_alive
from indelible.store.queries.open_turn import Held, Probe

CANDIDATES_PER_CHAT: Final = 4
_NO_LIMIT: Final = 2**31 - 1
_NOTHING: Final[Mapping[str, int]] = {}
_log: Final = get_logger(__name__)


async def beat(transaction: Transaction, worker_id: str, lock_key: int | None = None) -> bool:
    """Record this worker's heartbeat, and the lock that its process holds; the first one registers it. One statement.

    Returns whether no other process has found that it is gone.
    """
    values = (worker_id, bind_ago(transaction.dialect, 0), lock_key)
    if transaction.dialect == "sqlite":  # has no such locks
        await transaction.run(_build_beat("sqlite"), *values)
        return True
    row = await transaction.one(f"{_build_beat('postgresql')} RETURNING gone_at", *values)
    return row["gone_at"] is None


async def declare_gone(transaction: Transaction, worker_id: str, lock_key: int) -> bool:
    """Let others acquire the chats of a worker whose lock is free; False if it is held by now, or another one.

    The worker's row is locked first, against its heartbeat, and its lock is judged in a later statement (R1).
    """
    if await transaction.one(_LOCK_WORKER, worker_id, lock_key) is None or transaction.dialect == "sqlite":
        return False
    return await transaction.run(_DECLARE_GONE, worker_id, lock_key) > 0


async def revive(transaction: Transaction, worker_id: str) -> list[str]:
    """Count a worker as alive that was found gone; returns the chats that were taken from it and are still running."""
    await transaction.run("UPDATE workers SET gone_at = NULL WHERE id = $1", worker_id)
    return [row["chat_id"] for row in await transaction.all(_LOST_BY, worker_id)]


async def uncount_takeover(transaction: Transaction, chat_id: str, worker_id: str) -> bool:
    """Take back that the turn of this chat lost this worker, because the worker lives; under the chat's lock."""
    await transaction.one("SELECT id FROM chats WHERE id = $1 FOR NO KEY UPDATE", chat_id)
    return await transaction.run(_UNCOUNT, chat_id, worker_id) > 0


async def retire(transaction: Transaction, worker_id: str) -> None:
    """Remove a worker: any other may acquire its chats at once."""
    await transaction.run("DELETE FROM workers WHERE id = $1", worker_id)


async def retire_all(transaction: Transaction) -> None:
    """Remove every worker. Only for a process that has the database to itself (store/database/sqlite_file.py)."""
    await transaction.run("DELETE FROM workers")


async def forget_dead(transaction: Transaction, *, dead_for_s: float) -> None:
    """Delete workers that have been dead for this long. Their chats can still be acquired."""
    dialect = transaction.dialect
    sql = f"DELETE FROM workers WHERE heartbeat_at < {build_ago(dialect, 1)}"
    await transaction.run(sql, bind_ago(dialect, dead_for_s))


async def acquire_chats(
    candidates: Sequence[str], worker_id: str, *, limit: int, execute: Callable[[str, Acquire], Awaitable[Outcome]]
) -> list[Outcome]:
    """Acquire up to `limit` of these, skipping those that another worker has acquired by now.

    It tries as many as it still needs concurrently, so that on SQLite they share a commit.
    """
    acquired: list[Outcome] = []
    waiting = list(candidates)
    while waiting and len(acquired) < limit:
        wanted = limit - len(acquired)
        async with asyncio.TaskGroup() as group:  # a cancelled caller waits for all of them
            tried = [
                group.create_task(_try_to_acquire(chat_id, worker_id, execute), name=f"acquiring {chat_id}")
                for chat_id in waiting[:wanted]
            ]
        acquired += [outcome for outcome in (task.result() for task in tried) if outcome is not None]
        waiting = waiting[wanted:]
    return acquired


async def _try_to_acquire(
    chat_id: str, worker_id: str, execute: Callable[[str, Acquire], Awaitable[Outcome]]
) -> Outcome | None:
    try:
        outcome = await execute(chat_id, Acquire(worker_id=worker_id))
    except (NotAllowed, NotFound):
        return None
    except StoreFailed as error:
        _log.warning("%s cannot be acquired now and is skipped: %s", chat_id, error)
        return None
    except Exception:
        # A chat that cannot be read must not affect the others.
        _log.exception("%s cannot be acquired and is skipped", chat_id)
        return None
    return None if outcome.status is Status.ERROR else outcome  # failed: it was taken over too often


async def find_candidates(
    transaction: Transaction,
    worker_id: str,
    *,
    lease_timeout_s: float,
    limit: int,
    per_user: int | None = None,
    suspects: int | None = None,
    reserved: Mapping[str, int] = _NOTHING,
) -> list[str]:
    """Chats that this worker could acquire, at most `suspects` of them suspects. Only a hint: nothing is locked.

    A worker never takes over its own chats, however late its heartbeat is. Every user's first chat comes before any
    user's second, and so on, counting chats that have a live holder; among equals the longest waiting comes first. A
    user's chats beyond `per_user` have to wait, except those that are being stopped. `reserved` are the users' chats
    that are about to run, and that this cannot see yet.
    """
    dialect = transaction.dialect
    limit_per_user = _NO_LIMIT if per_user is None else per_user
    rows = await transaction.all(
        _build_candidates(dialect),
        worker_id,
        bind_ago(dialect, lease_timeout_s),
        limit_per_user,
        limit,
        _NO_LIMIT if suspects is None else suspects,
    )
    return [
        row["id"]
        for row in rows
        if row["urgent"] == 0 or row["place"] + reserved.get(row["owner_id"], 0) <= limit_per_user
    ]


async def probe_chats(
    transaction: Transaction,
    worker_id: str,
    chat_ids: Sequence[str],
    *,
    lease_timeout_s: float,
    per_user: int | None = None,
    reserved: Mapping[str, int] = _NOTHING,
) -> Probe:
    """Which of these chats the worker holds, and which it may try to acquire, in the order of `find_candidates`.

    One statement, which finds the chats by key. Only a hint: nothing is locked.
    """
    dialect = transaction.dialect
    limit = _NO_LIMIT if per_user is None else per_user
    rows = await transaction.all(_build_probe(dialect), worker_id, bind_ago(dialect, lease_timeout_s), list(chat_ids))
    held = [
        Held(row["id"], Status(row["status"]), row["epoch"], row["turn_id"])
        for row in rows
        if row["holder"] == worker_id
    ]
    free = [row for row in rows if row["ahead"] is not None and not row["suspect"]]
    is_allowed = {
        row["id"]: row["urgent"] == 0 or row["ahead"] + reserved.get(row["owner_id"], 0) < limit for row in free
    }
    held_back = [chat_id for chat_id, allowed in is_allowed.items() if not allowed]
    return Probe(held, [chat_id for chat_id, allowed in is_allowed.items() if allowed], held_back)


@cache
def _build_beat(dialect: Dialect) -> str:
    now = build_ago(dialect, 2)
    return f"""
        INSERT INTO workers (id, started_at, heartbeat_at, lock_key) VALUES ($1, {now}, {now}, $3)
        ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, lock_key = excluded.lock_key
        """


_LOCK_WORKER: Final = "SELECT id FROM workers WHERE id = $1 AND lock_key = $2 AND gone_at IS NULL FOR UPDATE"
_DECLARE_GONE: Final = f"UPDATE workers SET gone_at = clock_timestamp() WHERE id = $1 AND NOT {build_held('$2')}"
_LOST_BY: Final = "SELECT chat_id FROM turns WHERE acquired_from = $1 AND ended_at IS NULL ORDER BY chat_id"
_UNCOUNT: Final = """
    UPDATE turns SET takeovers = takeovers - 1, acquired_from = NULL,
        stalled_takeovers = CASE WHEN stalled_takeovers > 0 THEN stalled_takeovers - 1 ELSE 0 END
    WHERE chat_id = $1 AND acquired_from = $2 AND ended_at IS NULL
    """


# Below, $1 is the asking worker and $2 the lease timeout.


def _is_busy(chat: str) -> str:
    return f"{chat}.status IN {BUSY_STATUSES}"


def _is_free(chat: str, dialect: Dialect) -> str:
    """Whether no live worker holds a chat. The asking worker's own chats are not free, however late its heartbeat."""
    alive = build_alive(dialect, 2)
    return f"({chat}.holder IS NULL OR ({chat}.holder NOT IN ({alive}) AND {chat}.holder <> $1))"


def _urgency(chat: str) -> str:
    return f"CASE WHEN {chat}.status = 'interrupting' THEN 0 ELSE 1 END"


def _is_suspect(chat: str) -> str:
    """Whether the open turn of a dead worker's chat has lost a worker before. Ending a stopped turn is no risk."""
    survived = f"SELECT 1 FROM turns WHERE chat_id = {chat}.id AND ended_at IS NULL AND takeovers > 0"
    return f"({chat}.holder IS NOT NULL AND {chat}.status = 'running' AND EXISTS ({survived}))"


def _suspicion(chat: str) -> str:
    """The strongest first: a tool was running, or the turn made no progress before."""
    running = "SELECT 1 FROM tool_runs AS r JOIN turns AS t ON t.chat_id = r.chat_id AND t.id = r.turn_id"
    in_tool = f"EXISTS ({running} WHERE r.chat_id = {chat}.id AND r.state = 'started' AND t.ended_at IS NULL)"
    stalled = f"SELECT stalled_takeovers FROM turns WHERE chat_id = {chat}.id AND ended_at IS NULL"
    return f"CASE WHEN {in_tool} THEN 0 ELSE 1 END, -coalesce(({stalled}), 0)"


@cache
def _build_probe(dialect: Dialect) -> str:
    """`ahead` counts the chats of the same user that come first; it is null for a chat with a live holder.

    COALESCE keeps the database from choosing the wrong index: rivals are sought among the few busy chats and not
    among all chats that the user ever had, and a hinted chat is found by its key.
    """
    return f"""
        SELECT c.id, c.owner_id, c.status, c.epoch, c.holder, t.id AS turn_id, {_urgency("c")} AS urgent,
            {_is_suspect("c")} AS suspect,
            CASE WHEN {_is_free("c", dialect)} THEN (
                SELECT count(*) FROM chats AS rival
                WHERE {_is_busy("rival")} AND COALESCE(rival.owner_id, '') = c.owner_id AND (
                    NOT {_is_free("rival", dialect)}
                    OR ({_urgency("rival")}, rival.runnable_at, rival.id) < ({_urgency("c")}, c.runnable_at, c.id)
                )
            ) END AS ahead
        FROM chats AS c LEFT JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
        WHERE c.id = ANY($3) AND COALESCE(c.status, '') IN {BUSY_STATUSES}
        ORDER BY urgent, ahead, c.runnable_at, c.id
        """


@cache
def _build_candidates(dialect: Dialect) -> str:
    """`place` numbers the chats of each user, those with a live holder first.

    `INDEXED BY` makes SQLite use the index of busy chats. With statistics (`ANALYZE`) from a time when there were few
    chats, it would read all chats, twice a second.
    """
    by_index = "INDEXED BY chats_runnable" if dialect == "sqlite" else ""
    return f"""
        SELECT id, owner_id, urgent, place FROM (
            SELECT id, owner_id, runnable_at, urgent, held, suspect, row_number() OVER (
                PARTITION BY owner_id ORDER BY held DESC, urgent, runnable_at, id
            ) AS place, row_number() OVER (
                PARTITION BY held, suspect ORDER BY {_suspicion("busy")}, runnable_at, id
            ) AS suspect_place
            FROM (
                SELECT c.id, c.owner_id, c.runnable_at, {_urgency("c")} AS urgent,
                    CASE WHEN {_is_free("c", dialect)} THEN 0 ELSE 1 END AS held,
                    CASE WHEN {_is_suspect("c")} THEN 1 ELSE 0 END AS suspect
                FROM chats AS c {by_index} WHERE {_is_busy("c")}
            ) AS busy
        ) AS placed
        WHERE held = 0 AND (place <= $3 OR urgent = 0) AND (suspect = 0 OR suspect_place <= $5)
        ORDER BY urgent, place, runnable_at, id
        LIMIT $4
        """
