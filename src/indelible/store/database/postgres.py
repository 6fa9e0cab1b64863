"""PostgreSQL: a few connections, each with a task that runs one transaction after the other.

Work is queued, and its caller waits for a future: a cancelled caller cannot leave the driver in the middle of a
statement, and no call needs a task of its own. Urgent work (the journal, heartbeats) has its own connections, so
it never waits behind other users. Connections are opened on demand and kept.

asyncpg is called directly: it prepares a statement once per connection, and a call costs a fraction of what it costs
through a layer (docs/decisions/0010). A single statement is one round trip; postgres_transaction.py keeps those of a
transaction few.

Every connection is configured before its first use: `synchronous_commit=on` whatever the server's default is,
and READ COMMITTED, which R1 and R2 rely on; `read` is one snapshot that cannot write (R9). Every transaction says so
again, because a session can be changed. A pooler that has no sessions at all is refused when the database is opened.

A connection that was lost while idle is replaced silently. If it is lost within a transaction, the caller gets the
error: whether the commit arrived is unknown. A connection that is silent for too long is dropped, and the idle ones
with it, because otherwise callers would wait for each of them in turn.

Must stay true (tests/store/test_postgres.py, test_open.py, test_broken_databases.py): no caller gets a connection
with a transaction open; a cancelled caller harms nobody; `close` leaves no connection and no task.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Generic, TypeVar

from indelible.concurrency.tasks import UncancellableFuture, run_to_completion
from indelible.errors import StoreFailed
from indelible.store.database.errors import AllConnectionsInUse, DatabaseUnusable, translate_error
from indelible.store.database.postgres_transaction import Lock, PostgresTransaction
from indelible.store.database.transaction import Dialect, Owner, Transaction, Work, make_closed

T = TypeVar("T")

CONNECTIONS: Final = 10
URGENT_CONNECTIONS: Final = 3
CONNECT_TIMEOUT_S: Final = 10.0
WAIT_TIMEOUT_S: Final = 30.0
"""How long work waits for a connection."""

COMMAND_TIMEOUT_S: Final = 30.0
"""Without it a silent network would block forever."""

SETTINGS: Final = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "application_name": "indelible",
    # A worker that freezes in the middle of a transaction must not hold its locks for longer than its lease, and no
    # transaction waits for a lock forever.
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "5s",
    # To the server, a worker that freezes after preparing a statement is not idle, and would hold its locks for as
    # long as it sleeps. No statement of ours takes this long.
    "statement_timeout": "30s",
}
# In one round trip, and whatever the session's defaults have become: R1 and R2 need this level, and P1 this durability.
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = on"
_BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_POOLER_TIMEOUT_S: Final = 5.0


class PostgresDatabase:
    """See `Database` in transaction.py. `options` are asyncpg's own, for `asyncpg.connect`."""

    dialect: Final[Dialect] = "postgresql"

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        where: str,
        connections: int = CONNECTIONS,
        urgent_connections: int = URGENT_CONNECTIONS,
    ) -> None:
        self.observe: Callable[[str], object] | None = None
        self._where = where
        self._is_closed = False
        self._owner = Owner(where)
        self._idle: set[_Connection] = set()
        self._line = _Line(self, options, connections, self._idle)
        self._urgent = _Line(self, options, urgent_connections, self._idle)

    @classmethod
    async def open(cls, options: Mapping[str, Any], *, where: str) -> PostgresDatabase:
        """Connect, so that a faulty server is reported now and not by the first user's message."""
        database = cls(options, where=where)
        try:
            if await database.read(_is_read_only, single=True):
                raise DatabaseUnusable(f"{where} is read-only. Use the primary server, not a replica.")  # noqa: TRY301
            if not await _has_own_session(options):
                raise DatabaseUnusable(  # noqa: TRY301
                    f"{where} is behind a pooler that assigns connections per transaction. Use its session mode, or "
                    "connect to PostgreSQL directly."
                )
        except BaseException:
            await database.close()
            raise
        return database

    async def write(
        self,
        work: Work[T],
        *,
        urgent: bool = False,
        slow: bool = False,  # noqa: ARG002 - jobs never share a connection
        single: bool = False,
        on_committed: Callable[[T], object] | None = None,
    ) -> T:
        return await self._submit(_Job(work, None if single else _BEGIN, on_committed), urgent=urgent)

    async def read(self, work: Work[T], *, urgent: bool = False, single: bool = False) -> T:
        return await self._submit(_Job(work, None if single else _BEGIN_READ), urgent=urgent)

    @run_to_completion
    async def close(self) -> None:
        self._is_closed = True
        await self._line.close()
        await self._urgent.close()

    def make_closed(self) -> StoreFailed:
        return make_closed(self._where)

    async def _submit(self, job: _Job[T], *, urgent: bool) -> T:
        if self._is_closed:
            raise self.make_closed()
        self._owner.check()
        (self._urgent if urgent else self._line).put(job)
        try:
            return await job.result
        except Exception as error:
            translated = translate_error(error, self._where)
            if translated is error:
                raise
            raise translated from error


class _Job(Generic[T]):
    """Work with a waiting caller, and the statement that begins its transaction; None: it is a single statement."""

    __slots__ = ("begin", "expiry", "on_committed", "result", "work")

    def __init__(self, work: Work[T], begin: str | None, on_committed: Callable[[T], object] | None = None) -> None:
        self.work = work
        self.begin = begin
        self.on_committed = on_committed
        self.result: UncancellableFuture[T] = UncancellableFuture()
        self.expiry: asyncio.TimerHandle | None = None

    def fail(self, error: BaseException) -> None:
        self.result.set_exception(error)
        self.result.exception()  # mark it as retrieved: a cancelled caller does not


class _Line:
    """A queue of jobs, and up to `size` tasks that serve it, each with a connection."""

    def __init__(
        self, database: PostgresDatabase, options: Mapping[str, Any], size: int, idle: set[_Connection]
    ) -> None:
        self._database = database
        self._options = options
        self._size = size
        self._idle = idle
        self._jobs: deque[_Job[Any]] = deque()
        self._servers: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    def put(self, job: _Job[Any]) -> None:
        self._jobs.append(job)
        while self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                return
        if len(self._servers) < self._size:
            # In its own context: the task outlives the caller that happens to start it.
            server = asyncio.get_running_loop().create_task(
                self._serve(), name="postgres connection", context=contextvars.Context()
            )
            self._servers.add(server)
            server.add_done_callback(self._forget)
        else:
            job.expiry = asyncio.get_running_loop().call_later(WAIT_TIMEOUT_S, self._expire, job)

    async def close(self) -> None:
        self._is_closed = True
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)
        if self._servers:
            await asyncio.wait(self._servers)

    def _expire(self, job: _Job[Any]) -> None:
        with suppress(ValueError):  # it is already running
            self._jobs.remove(job)
            job.fail(AllConnectionsInUse())

    def _forget(self, server: asyncio.Task[None]) -> None:
        self._servers.discard(server)
        while self._jobs and not self._servers:  # they were cancelled with their event loop, so no task is left
            self._jobs.popleft().fail(self._database.make_closed())

    async def _serve(self) -> None:
        connection = _Connection(self._options, self._idle)
        try:
            while True:
                while not self._jobs:
                    if self._is_closed:
                        return
                    await self._wait(connection)
                job = self._jobs.popleft()
                if job.expiry is not None:
                    job.expiry.cancel()
                await self._perform(connection, job)
        finally:
            await connection.close()

    async def _wait(self, connection: _Connection) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        self._idle.add(connection)
        try:
            await woken
        finally:
            self._idle.discard(connection)

    async def _perform(self, connection: _Connection, job: _Job[Any]) -> None:
        try:
            value = await connection.run(job, self._database.observe)
        except BaseException as error:
            job.fail(error)
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
        else:
            if job.on_committed is not None:
                job.on_committed(value)
            job.result.set_result(value)


class _Connection:
    """A connection that is opened on demand, and reopened when it was lost. `idle` are the other idle ones."""

    def __init__(self, options: Mapping[str, Any], idle: set[_Connection]) -> None:
        self._options = options
        self._idle = idle
        self._driver: Any = None
        self._prepared: set[str] = set()

    async def run(self, job: _Job[T], observe: Callable[[str], object] | None) -> T:
        transaction = PostgresTransaction(lambda lock: self._begin(job.begin, lock, observe), observe)
        try:
            value = await job.work(transaction)
            await transaction.flush()
            if job.begin is not None and transaction.driver is not None:
                await _commit(transaction.driver, observe)
        except TimeoutError:
            self._give_up()
            raise
        except BaseException:
            await self._roll_back(observe)
            raise
        return value

    async def _begin(
        self, begin: str | None, lock: Lock | None, observe: Callable[[str], object] | None
    ) -> tuple[Any, bool]:
        """A connection, with a transaction open if requested, and whether the row to lock is locked.

        One that was lost while idle is replaced.
        """
        if self._driver is not None and not self._driver.is_closed():
            try:
                return self._driver, await self._begin_on(self._driver, begin, lock, observe)
            except Exception:
                if not self._is_lost():
                    raise
        self.terminate()
        self._driver = await connect(self._options)
        return self._driver, await self._begin_on(self._driver, begin, lock, observe)

    async def _begin_on(
        self, driver: Any, begin: str | None, lock: Lock | None, observe: Callable[[str], object] | None
    ) -> bool:
        if begin is not None and observe is not None:
            observe(begin)
        if lock is not None and lock.name not in self._prepared:
            await driver.execute(lock.preparation)
            self._prepared.add(lock.name)
        text = "; ".join(str(part) for part in (begin, lock) if part is not None)
        return bool(text) and await driver.execute(text) == "SELECT 1"

    async def _roll_back(self, observe: Callable[[str], object] | None) -> None:
        """If it fails, the connection is closed and the server rolls back. The caller gets the original error."""
        if self._is_lost():
            return
        try:
            if self._driver.is_in_transaction():
                await _execute(self._driver, "ROLLBACK", observe)
        except TimeoutError:
            self._give_up()
        except Exception:
            self.terminate()
        except BaseException:
            self.terminate()
            raise

    def _give_up(self) -> None:
        """The server is silent: a rollback would not arrive either, nor would the idle connections work."""
        for silent in (self, *self._idle):
            silent.terminate()

    def _is_lost(self) -> bool:
        return self._driver is None or self._driver.is_closed()

    def terminate(self) -> None:
        if self._driver is not None:
            self._driver.terminate()
            self._driver = None
        self._prepared.clear()

    async def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None and not driver.is_closed():
            try:
                await driver.close(timeout=CONNECT_TIMEOUT_S)
            except Exception:
                driver.terminate()


async def connect(options: Mapping[str, Any], *, command_timeout_s: float | None = COMMAND_TIMEOUT_S) -> Any:
    """A connection whose commits are durable."""
    try:
        import asyncpg  # noqa: PLC0415  (it comes with the extra `postgres`)
    except ImportError:
        raise DatabaseUnusable("PostgreSQL needs a driver: pip install 'indelible[postgres]'.") from None
    driver = await asyncpg.connect(**{"timeout": CONNECT_TIMEOUT_S, **options}, command_timeout=command_timeout_s)
    try:
        # Not as connection parameters: poolers reject parameters that they do not know.
        await driver.execute("; ".join(f"SET {name} = '{value}'" for name, value in SETTINGS.items()))
    except BaseException:
        driver.terminate()
        raise
    return driver


async def _has_own_session(options: Mapping[str, Any]) -> bool:
    """Whether what a connection sets in its session is still there in its next transaction.

    A pooler in transaction mode hands out the connection that was used last. So a second client takes it, and the
    first one gets another, which does not know its setting, or waits for one.
    """
    async with AsyncExitStack() as stack:
        ours = await connect(options, command_timeout_s=_POOLER_TIMEOUT_S)
        stack.push_async_callback(_close, ours)
        await ours.execute("SET indelible.session = 'ours'")
        other = await connect(options, command_timeout_s=_POOLER_TIMEOUT_S)
        stack.push_async_callback(_close, other)
        await other.execute("BEGIN")
        try:
            row = await ours.fetchrow("SELECT current_setting('indelible.session', true) AS owner")
        except TimeoutError:
            return False
        return row is not None and row["owner"] == "ours"


async def _close(driver: Any) -> None:
    try:
        await driver.close(timeout=_POOLER_TIMEOUT_S)
    except Exception:
        driver.terminate()


async def _is_read_only(transaction: Transaction) -> bool:
    row = await transaction.one("SHOW transaction_read_only")
    return row is not None and row["transaction_read_only"] == "on"


async def _commit(driver: Any, observe: Callable[[str], object] | None) -> None:
    if observe is not None:
        observe("COMMIT")
    if await driver.execute("COMMIT") != "COMMIT":  # after an error the server rolls back and says only this
        raise RuntimeError("The work continued after a database error; nothing was written.")


async def _execute(driver: Any, sql: str, observe: Callable[[str], object] | None) -> None:
    if observe is not None:
        observe(sql)
    await driver.execute(sql)
