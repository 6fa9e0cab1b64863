"""Databases that fail while they are used: full, read-only, damaged, busy, cut off, restarted.

Each failure is a real one, made with the database's own means, and comes at a known moment: the journal's clock
stands still, so its back-off is where a test finds out that a flush has failed, mends the database, and lets it
try again. What has to hold every time: what was told is there, everything is there once in the end, and whoever
asked for something else meanwhile gets a `StoreFailed` with a true sentence, whatever it was that he asked.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import insert, make_url, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.databases import execute
from tests.log_records import DATABASE_AWAY
from tests.support.engine import begin_read, begin_write, close_databases, get_database, open_engine
from tests.support.tables import attempts, journal, users, workers

from indelible.clock import Clock, SystemClock
from indelible.content import Text, TextDelta, decode_parts, encode
from indelible.errors import StoreFailed
from indelible.machine.commands import Acquire, Create, Interrupt, StartAttempt
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable
from indelible.store.database.migrate import migrate, open_database
from indelible.store.database.transaction import Transaction
from indelible.store.database.transaction import insert as insert_rows
from indelible.store.journal.append import BadRows, JournalRow
from indelible.store.journal.writer import Journal
from indelible.store.payloads import NewChat
from indelible.store.queries.open_turn import AttemptName
from indelible.store.store import Store
from indelible.testing import ManualClock

pytestmark = pytest.mark.may_log(*DATABASE_AWAY)

NOW = datetime(2026, 11, 15, tzinfo=UTC)
DEADLINE_S = 100
ENOUGH_PAGES = 1 << 30


async def start_attempt(store: Store, engine: AsyncEngine) -> AttemptName:
    """A running chat with an open attempt."""
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id="user_a", name="a", created_at=NOW))
        await connection.execute(insert(workers).values(id="worker_a", started_at=NOW, heartbeat_at=NOW))
    created = await store.execute("chat_a", Create(with_message=True), NewChat(owner_id="user_a", blocks=[Text("hi")]))
    held = await store.execute("chat_a", Acquire(worker_id="worker_a"))
    assert created.turn_id is not None
    started = await store.execute("chat_a", StartAttempt(epoch=held.epoch, turn_id=created.turn_id))
    assert started.attempt is not None
    return started.attempt


class Speaking:
    """An attempt that is being said through a journal, and what readers were told of it."""

    def __init__(self, engine: AsyncEngine, attempt: AttemptName, clock: Clock) -> None:
        self.told: list[JournalRow] = []
        self.said: list[str] = []
        self.journal = Journal(Store(get_database(engine)), clock=clock, on_committed=self.told.extend, interval_s=0)
        self._engine = engine
        self._writer = self.journal.open(attempt.chat_id, attempt.id, attempt.epoch)

    def publish(self, word: str) -> None:
        self.said.append(word)
        self._writer.publish(TextDelta("1", word))

    async def say(self, word: str) -> None:
        self.publish(word)
        await self.drain()

    async def drain(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.journal.drain(self._writer)

    async def check_all_was_told_once(self) -> None:
        stored = await read_rows(self._engine)
        assert [(row.n, row.parts) for row in self.told] == stored
        assert [n for n, _ in stored] == list(range(1, len(stored) + 1))
        assert "".join(join_text(parts) for _, parts in stored) == "".join(self.said)


def join_text(parts: bytes) -> str:
    return "".join(part.delta for part in decode_parts(parts) if isinstance(part, TextDelta))


async def read_rows(engine: AsyncEngine) -> list[tuple[int, bytes]]:
    async with begin_read(engine) as connection:
        return [(row.n, row.parts) for row in await connection.execute(select(journal).order_by(journal.c.n))]


@asynccontextmanager
async def speaking(engine: AsyncEngine, clock: Clock) -> AsyncIterator[Speaking]:
    spoken = Speaking(engine, await start_attempt(Store(get_database(engine)), engine), clock)
    flusher = asyncio.create_task(spoken.journal.run())
    try:
        yield spoken
    finally:
        flusher.cancel()
        await asyncio.wait([flusher])


async def wait_for_failure(clock: ManualClock, number: int = 1) -> None:
    """Until a flush has failed so often and the journal waits before it tries again."""
    async with asyncio.timeout(DEADLINE_S):
        while len(clock.slept) < number:  # any other timer is the alarm of a flush that takes long
            await clock.wait_for_timer()


def try_again(clock: ManualClock) -> None:
    clock.advance(10)


# --- SQLite ---


@pytest.fixture
async def sqlite(migrated_sqlite: Path, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = await open_engine(shutil.copy(migrated_sqlite, tmp_path))
    yield engine
    await close_databases()
    await engine.dispose()


async def set_pragma(engine: AsyncEngine, *pragmas: str) -> Callable[[int], None]:
    """Returns what chooses one of these for the writer's connection, from its next transaction on."""
    database = get_database(engine)

    async def take_connection(transaction: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = transaction._connection
        return connection

    connection = await database.write(take_connection)
    chosen = pragmas[0]

    def set_it(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE":  # of the writer, in its thread
            connection.execute(f"PRAGMA {chosen}").close()

    def choose(number: int) -> None:
        nonlocal chosen
        chosen = pragmas[number]

    database.observe = set_it
    return choose


BREAK_AND_MEND = [
    pytest.param("max_page_count=1", f"max_page_count={ENOUGH_PAGES}", "the disk is full", id="full"),
    pytest.param("query_only=ON", "query_only=OFF", "cannot be written", id="read-only"),
]


@pytest.mark.parametrize(("broken", "mended", "sentence"), BREAK_AND_MEND)
async def test_what_a_sqlite_file_has_no_room_for_is_kept_until_it_has(
    sqlite: AsyncEngine, broken: str, mended: str, sentence: str
) -> None:
    clock = ManualClock()
    async with speaking(sqlite, clock) as spoken:
        await spoken.say("told ")
        choose = await set_pragma(sqlite, broken, mended)
        spoken.publish("x" * 100_000)
        for number in (1, 2, 3):
            await wait_for_failure(clock, number)
            try_again(clock)
        await wait_for_failure(clock, 4)
        assert len(spoken.told) == 1
        assert await read_rows(sqlite) == [(1, spoken.told[0].parts)]
        with pytest.raises(DatabaseUnusable, match=sentence):
            await Store(get_database(sqlite)).execute("chat_b", Create(with_message=True), long_message())
        choose(1)
        try_again(clock)
        await spoken.drain()
        await spoken.say(" and on")
        await spoken.check_all_was_told_once()


def long_message() -> NewChat:
    return NewChat(owner_id="user_a", blocks=[Text("y" * 100_000)])


async def test_a_damaged_file_is_reported_and_its_messages_can_still_be_read(sqlite: AsyncEngine) -> None:
    store = Store(get_database(sqlite))
    attempt = await start_attempt(store, sqlite)
    rows = [
        JournalRow(attempt.chat_id, attempt.id, attempt.epoch, n, encode([TextDelta("1", f"{n} ")])) for n in (1, 2)
    ]
    await store.append(rows[:1])
    await close_databases()
    await sqlite.dispose()
    overwrite_table(Path(str(sqlite.url.database)), attempts.name)
    store = Store(get_database(sqlite))
    with pytest.raises(DatabaseUnusable, match="is damaged"):
        await store.append(rows[1:])
    with pytest.raises(DatabaseUnusable, match="is damaged"):
        await store.execute("chat_a", Interrupt())
    assert await read_rows(sqlite) == [(1, rows[0].parts)]


async def test_a_file_that_another_process_keeps_locked_is_reported(sqlite: AsyncEngine) -> None:
    await get_database(sqlite).write(lambda transaction: transaction.one("PRAGMA busy_timeout=0"))
    with closing(sqlite3.connect(str(sqlite.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnreachable, match="is busy"):
            await Store(get_database(sqlite)).beat("worker_a")


def overwrite_table(path: Path, table: str) -> None:
    """Put garbage on a table's first page, as a failing disk would. Nobody may have the file open."""
    connection = sqlite3.connect(path)
    [page] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()
    [page_bytes] = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xa5" * page_bytes)


# --- PostgreSQL ---


@pytest.fixture
async def postgres(own_postgres: str) -> AsyncIterator[AsyncEngine]:
    engine = await open_engine(own_postgres)
    yield engine
    await close_databases()
    await engine.dispose()


@pytest.fixture
async def operator(own_postgres: str) -> AsyncIterator[asyncpg.Connection]:
    """A second connection, which does to the first what an operator, or an accident, would."""
    connection = await asyncpg.connect(own_postgres)
    yield connection
    await connection.close()


FIND_BLOCKED = "SELECT pid FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
WAIT_IN_COMMIT = """
CREATE FUNCTION wait_in_commit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock(4); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER wait_in_commit AFTER INSERT ON journal DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION wait_in_commit();
"""
FAIL_WITH = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = '{state}'; END $$;
CREATE TRIGGER fail BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION fail();
"""


@pytest.mark.parametrize("moment", ["in the insert", "in the commit"])
async def test_a_connection_that_is_cut_in_a_flush_costs_nothing(
    postgres: AsyncEngine, operator: asyncpg.Connection, moment: str
) -> None:
    clock = ManualClock()
    await operator.execute(WAIT_IN_COMMIT)
    async with speaking(postgres, clock) as spoken:
        await spoken.say("told ")
        async with operator.transaction():
            if moment == "in the insert":
                await operator.execute("LOCK TABLE journal IN EXCLUSIVE MODE")
            else:
                await operator.execute("SELECT pg_advisory_xact_lock(4)")
            spoken.publish("cut ")
            assert await operator.fetchval("SELECT pg_terminate_backend($1)", await wait_for_blocked(operator))
            await wait_for_failure(clock)
        assert await read_rows(postgres) == [(1, spoken.told[0].parts)]
        try_again(clock)
        await spoken.drain()
        await spoken.say("and on")
        await spoken.check_all_was_told_once()


async def wait_for_blocked(operator: asyncpg.Connection) -> int:
    """The process that waits for what the operator has locked, as soon as there is one."""
    async with asyncio.timeout(DEADLINE_S):
        while (pid := await operator.fetchval(FIND_BLOCKED)) is None:
            await operator.execute("SELECT pg_stat_clear_snapshot()")
    assert isinstance(pid, int)
    return pid


@pytest.mark.parametrize(
    ("state", "raised"),
    [
        pytest.param("22021", BadRows, id="characters it does not have"),
        pytest.param("23514", BadRows, id="a broken constraint"),
        pytest.param("54000", BadRows, id="too large"),
        pytest.param("53100", DatabaseUnusable, id="disk full"),
        pytest.param("55P03", DatabaseUnreachable, id="no lock in time"),
        pytest.param("XX001", DatabaseUnusable, id="a damaged page"),
        pytest.param("P0001", StoreFailed, id="something else"),
    ],
)
async def test_r6_only_an_error_about_the_data_is_blamed_on_the_row(
    postgres: AsyncEngine, operator: asyncpg.Connection, state: str, raised: type[StoreFailed]
) -> None:
    store = Store(get_database(postgres))
    attempt = await start_attempt(store, postgres)
    await operator.execute(FAIL_WITH.format(state=state))
    with pytest.raises(StoreFailed) as told:
        await store.append(
            [JournalRow(attempt.chat_id, attempt.id, attempt.epoch, 1, encode([TextDelta("1", "word")]))]
        )
    assert type(told.value) is raised
    assert await read_rows(postgres) == []


# --- what is told, in the database's own cases ---


async def add_worker(engine: AsyncEngine, worker_id: str) -> None:
    row = {"id": worker_id, "started_at": NOW, "heartbeat_at": NOW}
    await get_database(engine).write(lambda transaction: insert_rows(transaction, workers.name, row))


async def test_a_full_disk_is_reported_without_what_was_to_be_written(
    postgres: AsyncEngine, operator: asyncpg.Connection
) -> None:
    await operator.execute(FAIL_WITH.format(state="53100").replace("ON journal", "ON workers"))
    with pytest.raises(DatabaseUnusable, match=r"cannot be written: the disk is full\.$"):
        await add_worker(postgres, "worker_a")


async def test_an_unforeseen_error_is_reported_in_the_words_of_the_server_alone(
    postgres: AsyncEngine, operator: asyncpg.Connection
) -> None:
    await operator.execute(FAIL_WITH.format(state="P0001").replace("ON journal", "ON workers"))
    with pytest.raises(StoreFailed, match=r"failed: as told$"):
        await add_worker(postgres, "worker_a")


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [("lock_timeout", "is busy"), ("statement_timeout", "cancelled a statement that took too long")],
)
async def test_a_lock_that_is_not_given_in_time_is_reported(
    postgres: AsyncEngine, operator: asyncpg.Connection, limit: str, sentence: str
) -> None:
    async def wait_a_little(transaction: Transaction) -> None:
        await transaction.run(f"SET LOCAL {limit} = '10ms'")
        await transaction.run("UPDATE workers SET heartbeat_at = $1", NOW)

    async with operator.transaction():
        await operator.execute("LOCK TABLE workers IN EXCLUSIVE MODE")
        with pytest.raises(DatabaseUnreachable, match=sentence):
            await get_database(postgres).write(wait_a_little)


async def test_a_deadlock_is_an_error_for_the_one_that_has_to_give_way(
    postgres: AsyncEngine, operator: asyncpg.Connection
) -> None:
    await add_worker(postgres, "worker_a")
    await add_worker(postgres, "worker_b")
    beat = "UPDATE workers SET heartbeat_at = now() WHERE id = $1"
    has_begun = asyncio.Event()

    async def stand_in_the_way(transaction: Transaction) -> None:
        """Whoever waits looks for a deadlock only once. So this one waits when there is one already."""
        await transaction.run("SET LOCAL deadlock_timeout = '10ms'")
        await transaction.run(beat, "worker_b")
        has_begun.set()
        while await transaction.one(FIND_BLOCKED) is None:
            await transaction.one("SELECT pg_stat_clear_snapshot()")
        await transaction.run(beat, "worker_a")

    async with asyncio.timeout(DEADLINE_S), operator.transaction():
        await operator.execute("SET LOCAL deadlock_timeout = '1h'")
        await operator.execute(beat, "worker_a")
        other = asyncio.create_task(get_database(postgres).write(stand_in_the_way))
        await has_begun.wait()
        await operator.execute(beat, "worker_b")
        with pytest.raises(DatabaseUnreachable, match="because of a deadlock"):
            await other


async def test_too_many_connections_are_reported(postgres: AsyncEngine, operator: asyncpg.Connection) -> None:
    role = f"crowd_{uuid.uuid4().hex[:8]}"
    await operator.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    try:
        with pytest.raises(DatabaseUnreachable, match="has too many connections"):
            await open_database(postgres.url.set(username=role, drivername="postgresql").render_as_string())
    finally:
        await operator.execute(f"DROP ROLE {role}")


async def test_a_migration_that_gets_no_connection_says_so(new_postgres: str) -> None:
    """It needs one beside that which has looked at the revision."""
    role = f"crowd_{uuid.uuid4().hex[:8]}"
    await execute(new_postgres, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
    try:
        with pytest.raises(DatabaseUnreachable, match="has too many connections"):
            await migrate(make_url(new_postgres).set(username=role).render_as_string())
    finally:
        await execute(new_postgres, f"DROP ROLE {role}")


@pytest.mark.parametrize("busy", [True, False], ids=["in a statement", "between two"])
async def test_a_connection_that_an_operator_ends_is_reported(
    postgres: AsyncEngine, operator: asyncpg.Connection, busy: bool
) -> None:
    async def use(transaction: Transaction) -> None:
        pid = (await transaction.one("SELECT pg_backend_pid() AS pid"))["pid"]
        if not busy:
            await end_connection(operator, pid)
        await transaction.run("UPDATE workers SET heartbeat_at = $1", NOW)

    async with operator.transaction():
        await operator.execute("LOCK TABLE workers IN EXCLUSIVE MODE")
        using = asyncio.create_task(get_database(postgres).write(use))
        if busy:
            await end_connection(operator, await wait_for_blocked(operator))
        with pytest.raises(
            DatabaseUnreachable, match="closed the connection because" if busy else "connection .* lost"
        ):
            await using


async def test_a_refusal_keeps_its_reason_though_the_connection_is_lost_with_it(
    postgres: AsyncEngine, operator: asyncpg.Connection
) -> None:
    async def refuse(transaction: Transaction) -> None:
        pid = (await transaction.one("SELECT pg_backend_pid() AS pid"))["pid"]
        await end_connection(operator, pid)
        raise LookupError("no such chat")

    with pytest.raises(LookupError, match="no such chat"):
        await get_database(postgres).write(refuse)
    await add_worker(postgres, "worker_a")


async def end_connection(operator: asyncpg.Connection, pid: int) -> None:
    """Returns when the server has ended it."""
    assert await operator.fetchval("SELECT pg_terminate_backend($1, $2)", pid, DEADLINE_S * 1000)


# --- a server that goes ---


class Cable:
    """Carries a connection to PostgreSQL. Told to, it breaks when the server gives an answer, before it is heard."""

    def __init__(self, server: str) -> None:
        self._url = make_url(server)
        self.breaks_at: bytes | None = None
        self.broken = 0

    @asynccontextmanager
    async def plugged_in(self) -> AsyncIterator[str]:
        serving = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        host, port = serving.sockets[0].getsockname()
        try:
            yield self._url.set(host=host, port=port, query={}).render_as_string(hide_password=False)
        finally:
            serving.close()

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        directory = self._url.query.get("host")
        if directory is None:
            server, to_server = await asyncio.open_connection(self._url.host, self._url.port or 5432)
        else:
            server, to_server = await asyncio.open_unix_connection(f"{directory}/.s.PGSQL.{self._url.port or 5432}")
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry_one_way(client, to_server))
                ways.create_task(self._carry_one_way(server, to_client, is_answer=True))
        finally:
            to_server.close()
            to_client.close()

    async def _carry_one_way(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        while data := await source.read(1 << 16):
            if is_answer and self.breaks_at is not None and self.breaks_at in data:
                self.breaks_at = None
                self.broken += 1
                break
            target.write(data)
            await target.drain()
        target.close()


async def test_r5_a_commit_whose_answer_is_lost_is_not_written_twice(own_postgres: str) -> None:
    clock = ManualClock()
    cable = Cable(own_postgres)
    async with cable.plugged_in() as address:
        engine = await open_engine(address)
        async with speaking(engine, clock) as spoken:
            await spoken.say("told ")
            cable.breaks_at = b"INSERT 0 1\x00"  # the row, which is a transaction by itself
            spoken.publish("committed, and nobody knows ")
            await wait_for_failure(clock)
            assert (cable.broken, len(spoken.told)) == (1, 1)
            assert len(await read_rows(engine)) == 2
            try_again(clock)
            await spoken.drain()
            await spoken.say("and on")
            await spoken.check_all_was_told_once()
        await close_databases()
        await engine.dispose()


async def test_a_command_whose_commit_is_not_answered_fails_and_may_have_been_carried_out(
    own_postgres: str,
) -> None:
    cable = Cable(own_postgres)
    async with cable.plugged_in() as address:
        store = Store(await open_database(address))
        user_id = await store.ensure_user("ada")
        cable.breaks_at = b"COMMIT\x00"
        with pytest.raises(DatabaseUnreachable):
            await store.execute("chat_a", Create(), NewChat(owner_id=user_id))
        assert cable.broken == 1
        assert await store.owner("chat_a") == user_id
        await store.database.close()


def crash(server: Any) -> None:
    """End it as a power cut would: it writes nothing more, and recovers from its log at the next start."""
    server._postmaster_info.process.send_signal(signal.SIGQUIT)
    server._postmaster_info.process.wait(DEADLINE_S)


ASK_ANYTHING: list[Callable[[Store], Awaitable[object]]] = [
    lambda store: store.execute("chat_a", Interrupt()),
    lambda store: store.beat("worker_a"),
    lambda store: store.retire("worker_a"),
    lambda store: store.acquire("worker_a", limit=1),
    lambda store: store.view("chat_a"),
    lambda store: store.events("chat_a", after=0),
    lambda store: store.pack(ended_before=NOW, clock=SystemClock()),
]


async def test_a_server_that_is_stopped_or_crashes_and_comes_back_costs_nothing(own_server: Any) -> None:
    address = f"postgresql://postgres@/postgres?host={own_server.pgdata}"
    await migrate(address)
    engine = await open_engine(address)
    async with speaking(engine, SystemClock()) as spoken:
        for end in (own_server.stop, lambda: crash(own_server)):
            for n in range(20):
                await spoken.say(f"{n} ")
            spoken.publish("on its way ")
            await asyncio.to_thread(end)
            spoken.publish("while it is away ")
            for ask in ASK_ANYTHING:
                with pytest.raises(DatabaseUnreachable):
                    await ask(Store(get_database(engine)))
            await asyncio.to_thread(own_server.ensure_postgres_running)
            await spoken.drain()
        await engine.dispose()
        await spoken.say("and on")
        await spoken.check_all_was_told_once()
    await close_databases()
    await engine.dispose()


async def test_a_server_that_is_stopping_and_a_damaged_page_are_reported(own_server: Any) -> None:
    address = f"postgresql://postgres@/postgres?host={own_server.pgdata}"
    await migrate(address)
    still_there = await open_database(address)
    await Store(still_there).beat("worker_a")
    found = await still_there.read(
        lambda transaction: transaction.one("SELECT pg_relation_filepath('workers') AS page")
    )
    own_server._postmaster_info.process.send_signal(signal.SIGTERM)
    assert "is starting or stopping" in await wait_for_refusal(address)
    await still_there.close()
    await asyncio.to_thread(own_server._postmaster_info.process.wait, DEADLINE_S)
    with (Path(own_server.pgdata) / found["page"]).open("r+b") as file:
        file.write(b"\xa5" * 8192)
    await asyncio.to_thread(own_server.ensure_postgres_running)
    back_again = await open_database(address)
    with pytest.raises(DatabaseUnusable, match="is damaged"):
        await Store(back_again).beat("worker_a")
    await back_again.close()


async def wait_for_refusal(address: str) -> str:
    """What is told of a server that takes no more connections, as soon as it takes none."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                opened = await open_database(address)
            except DatabaseUnreachable as error:
                return str(error)
            await opened.close()
