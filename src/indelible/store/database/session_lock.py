"""Session locks of PostgreSQL: a process that holds one is there, and when it is gone, so is the lock.

A session's advisory lock is held until its connection ends. The kernel closes the connections of a process that was
killed, and the server frees the lock within milliseconds. A frozen process keeps its connections, and a host that
vanishes seems to keep them for long. So a free lock says that a process is gone, and a held one says nothing.

Each process has one such connection, which is never in a transaction. It holds the lock of the process, if that has a
worker, and looks whether the locks of other workers are free. So whoever cannot be seen cannot see: a process whose own
connection was cut knows nothing about the others. The lock is shared, so that a session of our own that the server has
not given up yet is in nobody's way.

Where sessions are not what they seem (some poolers, databases that accept these locks and do nothing), none of that is
true. So before a worker's process takes its lock, `prove` tries all of it with a second connection, which it cuts as a
kill would.

Must stay true (tests/store/test_session_lock.py): a held lock is not found free, one whose connection has ended is;
what only pretends to hold locks is not relied on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

from indelible.clock import Clock
from indelible.store.database.errors import DatabaseUnreachable, read_failure
from indelible.store.database.postgres import connect
from indelible.store.queries.liveness import BUSY_STATUSES, build_alive

APPLICATION_NAME: Final = "indelible lock"
_ANSWER_TIMEOUT_S: Final = 5.0
_FREED_WITHIN_S: Final = 2.0
_CHECK_INTERVAL_S: Final = 0.02
_CONFIGURE: Final = f"SET application_name = '{APPLICATION_NAME}'"
# A frozen process keeps its lock, whatever the server does with idle sessions. Servers before 14 lack the setting.
_STAY: Final = "SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'"
_HOLD: Final = "SELECT pg_advisory_lock_shared($1)"


def build_held(key: str) -> str:
    """Whether a session of this database holds the lock with this key, an SQL expression. PostgreSQL only.

    `IN`, because PostgreSQL then looks once at all locks, and not once for each of many keys.
    """
    return f"""({key} IN (
        SELECT CAST(l.classid AS BIGINT) << 32 | CAST(l.objid AS BIGINT) FROM pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ))"""


_CHECK: Final = f"""
    SELECT others.are_busy, free.id, free.lock_key
    FROM (
        SELECT EXISTS (SELECT 1 FROM chats WHERE status IN {BUSY_STATUSES} AND holder <> $2) AS are_busy
    ) AS others
    LEFT JOIN (
        SELECT w.id, w.lock_key FROM workers AS w
        WHERE w.lock_key IS NOT NULL AND NOT {build_held("w.lock_key")} AND w.id IN ({build_alive("postgresql", 1)})
    ) AS free ON TRUE
    """
_SERVER_AGE: Final = "SELECT CAST(extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) AS FLOAT8)"
_IS_HELD: Final = f"SELECT {build_held('CAST($1 AS BIGINT)')}"


class FreeLock(NamedTuple):
    """A worker that seems to be alive, and whose lock nobody holds."""

    worker_id: str
    key: int


class LockCheck(NamedTuple):
    """Which locks are free, and whether any other worker holds a chat that would have to be taken over."""

    free: list[FreeLock]
    others_are_busy: bool


def make_key() -> int:
    """A key for one process. Other programs may use advisory locks on the same database: it is random."""
    return secrets.randbits(62) + 1


class LockSession:
    """A connection that holds a lock, and sees which ones are free. Any failure ends it: open another one."""

    def __init__(self, driver: Any, options: Mapping[str, Any]) -> None:
        self._driver = driver
        self._options = options

    @classmethod
    async def open(cls, options: Mapping[str, Any], on_lost: Callable[[], object] = lambda: None) -> Self:
        """Connect. `on_lost` is called when the connection ends, whoever ends it."""
        driver = await connect(options, command_timeout_s=_ANSWER_TIMEOUT_S)
        try:
            await driver.execute(_CONFIGURE)
            await driver.fetch(_STAY)
        except BaseException:
            driver.terminate()
            raise
        driver.add_termination_listener(lambda _: on_lost())
        return cls(driver, options)

    async def prove(self, clock: Clock) -> bool:
        """Whether a lock of another session is seen here, and is free once that session was cut."""
        import asyncpg  # noqa: PLC0415  (it comes with the extra `postgres`)

        probe = await connect(self._options, command_timeout_s=_ANSWER_TIMEOUT_S)
        key = make_key()
        try:
            await probe.fetch(_HOLD, key)
            if not await self._is_held(key):
                return False
            probe.terminate()
            limit_s = clock.monotonic() + _FREED_WITHIN_S
            while await self._is_held(key):
                if clock.monotonic() >= limit_s:
                    return False
                await clock.sleep(_CHECK_INTERVAL_S)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if self.is_lost or isinstance(read_failure(error, "the server"), DatabaseUnreachable):
                raise  # it went away meanwhile
            return False  # it does not know these locks, or does not show them
        finally:
            probe.terminate()
        return True

    async def hold(self, key: int) -> None:
        """Hold the lock until the end of the connection."""
        await self._driver.fetch(_HOLD, key)

    async def check(self, worker_id: str | None, *, lease_timeout_s: float) -> LockCheck:
        """Find the workers that everybody believes alive, by their leases, and whose locks are free. One statement.

        Other workers are those that are not this one.
        """
        rows = await self._driver.fetch(_CHECK, timedelta(seconds=lease_timeout_s), worker_id or "")
        free = [FreeLock(row["id"], row["lock_key"]) for row in rows if row["id"] is not None]
        return LockCheck(free, rows[0]["are_busy"])

    async def find_server_age(self) -> float:
        """How many seconds ago the server was started, and had no session."""
        return float(await self._driver.fetchval(_SERVER_AGE))

    @property
    def is_lost(self) -> bool:
        return bool(self._driver.is_closed())

    def terminate(self) -> None:
        """End the connection, and with it the lock, at once."""
        self._driver.terminate()

    async def _is_held(self, key: int) -> bool:
        return bool(await self._driver.fetchval(_IS_HELD, key))
