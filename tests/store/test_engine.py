"""Opening a database: every connection is durable, a transaction is what it says, and a mistake is one sentence."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import traceback
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.errors import StoreFailed
from indelible.store.database.address import describe, parse_address
from indelible.store.database.engine import begin_read, begin_write, open_engine, read_durability, run_on_sqlite
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable

SECRET = "correct-horse"  # noqa: S105  (what must not be told)
DURABLE = {
    "sqlite": {"busy_timeout": "5000", "journal_mode": "wal", "synchronous": "2", "foreign_keys": "1"},
    "postgresql": {
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "application_name": "indelible",
        "idle_in_transaction_session_timeout": "5s",
        "lock_timeout": "5s",
    },
}


# --- durability ----------------------------------------------------------------------------


async def test_every_connection_of_the_pool_is_durable(database: str) -> None:
    engine = await open_engine(database, pool_size=4)
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(engine.connect()) for _ in range(4)]
        found = [await read_durability(connection) for connection in connections]
    await engine.dispose()

    assert found == [DURABLE[engine.dialect.name]] * 4


async def test_the_connection_beside_the_pool_is_as_durable(single: AsyncEngine) -> None:
    def read(file: sqlite3.Connection) -> dict[str, str]:
        return {name: str(file.execute(f"PRAGMA {name}").fetchone()[0]) for name in DURABLE["sqlite"]}

    assert await run_on_sqlite(single, read) == DURABLE["sqlite"]


async def test_a_server_with_weaker_defaults_is_overruled(new_postgres: str) -> None:
    name = make_url(new_postgres).database
    engine = await open_engine(new_postgres)
    async with begin_write(engine) as connection:
        await connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
        await connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"))
    await engine.dispose()

    reopened = await open_engine(new_postgres)
    async with begin_write(reopened) as connection:
        found = await read_durability(connection)
        isolation = (await connection.execute(text("SHOW transaction_isolation"))).scalar_one()
    await reopened.dispose()

    assert found == DURABLE["postgresql"]
    assert isolation == "read committed"


async def test_a_connection_is_still_durable_after_a_rollback(engine: AsyncEngine) -> None:
    with pytest.raises(StoreFailed, match="nonsense"):
        async with begin_write(engine) as connection:
            await connection.execute(text("SELECT nonsense"))

    async with begin_write(engine) as connection:
        assert await read_durability(connection) == DURABLE[engine.dialect.name]


# --- transactions --------------------------------------------------------------------------


async def test_whoever_reads_first_can_still_write_on_sqlite(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "count.db")
    async with begin_write(engine) as connection:
        await connection.execute(text("CREATE TABLE count (n INTEGER)"))
        await connection.execute(text("INSERT INTO count VALUES (0)"))

    async def count_up() -> None:
        async with begin_write(engine) as connection:
            seen = (await connection.execute(text("SELECT n FROM count"))).scalar_one()
            await connection.execute(text("UPDATE count SET n = :n"), {"n": seen + 1})

    await asyncio.gather(*[count_up() for _ in range(10)])

    async with begin_read(engine) as connection:
        counted = (await connection.execute(text("SELECT n FROM count"))).scalar_one()
    await engine.dispose()
    assert counted == 10


async def test_a_reader_sees_one_moment_and_holds_no_writer_up(engine: AsyncEngine) -> None:
    count = text("SELECT count(*) FROM workers")
    async with begin_read(engine) as reading:
        before = (await reading.execute(count)).scalar_one()
        async with begin_write(engine) as writing:
            await writing.execute(text("INSERT INTO workers VALUES ('w', '2026-11-15T00:00Z', '2026-11-15T00:00Z')"))
        during = (await reading.execute(count)).scalar_one()
    async with begin_read(engine) as reading:
        after = (await reading.execute(count)).scalar_one()

    assert (before, during, after) == (0, 0, 1)


async def test_reading_leaves_nothing_behind_that_stops_the_next_from_writing(database: str) -> None:
    engine = await open_engine(database, pool_size=1)
    async with begin_read(engine) as connection:
        await connection.execute(text("SELECT 1"))

    async with begin_write(engine) as connection:
        await connection.execute(text("DELETE FROM workers"))
        found = await read_durability(connection)
    await engine.dispose()

    assert found == DURABLE[engine.dialect.name]


async def test_a_reader_cannot_write_on_postgres(new_postgres: str) -> None:
    engine = await open_engine(new_postgres)
    with pytest.raises(DatabaseUnusable, match="is read-only"):
        async with begin_read(engine) as connection:
            await connection.execute(text("CREATE TABLE t (n INTEGER)"))
    await engine.dispose()


@pytest.fixture
async def single(migrated_sqlite: Path, tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """A pool with one connection, to a SQLite file."""
    engine = await open_engine(shutil.copy(migrated_sqlite, tmp_path), pool_size=1)
    yield engine
    await engine.dispose()


async def test_what_is_left_open_on_a_connection_is_rolled_back_when_it_goes_back_to_the_pool(
    single: AsyncEngine,
) -> None:
    async with single.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.execute("BEGIN IMMEDIATE")

    with closing(sqlite3.connect(str(single.url.database), timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")


async def test_what_a_visit_leaves_open_is_rolled_back(single: AsyncEngine) -> None:
    def leave_open(file: sqlite3.Connection) -> None:
        file.execute("BEGIN IMMEDIATE")
        file.execute("INSERT INTO workers VALUES ('w', '2026-11-15T00:00Z', '2026-11-15T00:00Z')")

    await run_on_sqlite(single, leave_open)

    with closing(sqlite3.connect(str(single.url.database), timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert other.execute("SELECT count(*) FROM workers").fetchone() == (0,)


def is_open(engine: AsyncEngine) -> bool:
    """SQLite removes its log when the last connection to the file is closed."""
    return Path(f"{engine.url.database}-wal").exists()


async def test_an_engine_that_is_disposed_of_leaves_no_connection_behind_and_can_be_used_again(
    single: AsyncEngine,
) -> None:
    for _ in range(2):
        assert await run_on_sqlite(single, lambda file: file.execute("SELECT 1").fetchone()) == (1,)
        assert is_open(single)
        await single.dispose()
        assert not is_open(single)


async def test_whoever_is_cancelled_in_a_transaction_leaves_none_open(single: AsyncEngine) -> None:
    begun = asyncio.Event()

    async def write() -> None:
        async with begin_write(single) as connection:
            await connection.execute(text("INSERT INTO workers VALUES ('w', '2026-11-15T00:00Z', '2026-11-15T00:00Z')"))
            begun.set()
            await asyncio.Event().wait()

    writing = asyncio.create_task(write())
    await begun.wait()
    writing.cancel()
    await asyncio.wait([writing])

    assert writing.cancelled()
    async with begin_write(single) as connection:
        assert (await connection.execute(text("SELECT count(*) FROM workers"))).scalar_one() == 0


async def test_whoever_is_cancelled_while_it_waits_for_the_file_holds_nobody_up(single: AsyncEngine) -> None:
    def count(file: sqlite3.Connection) -> int:
        return int(file.execute("SELECT count(*) FROM workers").fetchone()[0])

    async def write() -> None:
        async with begin_write(single):
            pass

    loop, begins = asyncio.get_running_loop(), asyncio.Event()
    async with single.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.set_trace_callback(lambda statement: loop.call_soon_threadsafe(begins.set))
    with closing(sqlite3.connect(str(single.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(write())
        await begins.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        other.execute("ROLLBACK")
        assert await run_on_sqlite(single, count) == 0
        other.execute("BEGIN IMMEDIATE")


# --- who is to blame -----------------------------------------------------------------------


async def test_data_that_a_database_refuses_is_told_in_the_words_of_the_driver(engine: AsyncEngine) -> None:
    with pytest.raises(IntegrityError):
        async with begin_write(engine) as connection:
            await connection.execute(text("INSERT INTO workers (id) VALUES ('w')"))


async def test_text_that_a_server_cannot_even_be_sent_is_no_failure_of_the_server(migrated_postgres: str) -> None:
    engine = await open_engine(migrated_postgres)
    with pytest.raises(DBAPIError, match="surrogates not allowed"):
        async with begin_write(engine) as connection:
            await connection.execute(text("SELECT CAST(:half AS text)"), {"half": "\ud83d"})
    await engine.dispose()


async def test_a_pool_without_a_free_connection_is_told(database: str) -> None:
    engine = await open_engine(database, pool_size=1)
    engine.sync_engine.pool._timeout = 0.01  # type: ignore[attr-defined]
    async with AsyncExitStack() as stack:
        for _ in range(1 + engine.sync_engine.pool._max_overflow):  # type: ignore[attr-defined]
            await stack.enter_async_context(begin_read(engine))
        with pytest.raises(DatabaseUnreachable, match="is in use"):
            await stack.enter_async_context(begin_read(engine))
    await engine.dispose()


# --- addresses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("chats.db", URL.create("sqlite+aiosqlite", database="chats.db")),
        (Path("/var/chats.db"), URL.create("sqlite+aiosqlite", database="/var/chats.db")),
        ("sqlite:///chats.db", URL.create("sqlite+aiosqlite", database="chats.db")),
        ("sqlite:////var/chats.db", URL.create("sqlite+aiosqlite", database="/var/chats.db")),
        ("postgres://ada@db/chats", URL.create("postgresql+asyncpg", username="ada", host="db", database="chats")),
        ("postgresql+asyncpg://db/chats", URL.create("postgresql+asyncpg", host="db", database="chats")),
        (
            "postgresql://db/chats?sslmode=require&connect_timeout=3",
            URL.create("postgresql+asyncpg", host="db", database="chats", query={"ssl": "require", "timeout": "3"}),
        ),
    ],
)
def test_an_address_is_a_file_or_a_url(written: str | Path, url: URL) -> None:
    assert parse_address(written) == url


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (":memory:", "not in memory"),
        ("", "not in memory"),
        ("sqlite://", "not in memory"),
        ("sqlite:///:memory:", "not in memory"),
        ("sqlite:///chats.db?mode=memory", "not in memory"),
        ("file:chats?mode=memory", "not in memory"),
        ("sqlite:///chats.db?cache=shared", "A SQLite URL supports one option, mode"),
        (f"mysql://ada:{SECRET}@db/chats", "does not support 'mysql'"),
        (f"postgresql://ada:{SECRET}@db:port/chats", "cannot be read"),
        (
            f"postgresql://ada:{SECRET}@db/chats?synchronous_commit=off",
            "Unknown option in the database URL: synchronous_commit",
        ),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(written: str, said: str) -> None:
    with pytest.raises(DatabaseUnusable, match=said) as caught:
        parse_address(written)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_database_is_described_without_its_password() -> None:
    assert (
        describe(parse_address(f"postgres://ada:{SECRET}@db/chats?sslmode=require")) == "postgresql://ada:***@db/chats"
    )
    assert describe(parse_address("sqlite:////var/my%20chats.db?mode=ro")) == "/var/my chats.db"


# --- what cannot be opened -----------------------------------------------------------------


async def read_problem(database: str | Path, kind: type[Exception] = DatabaseUnusable) -> str:
    with pytest.raises(kind) as caught:
        await open_engine(database)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


async def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    assert await read_problem(tmp_path / "missing" / "chats.db") == (
        f"Can't create the database: the directory {tmp_path / 'missing'} does not exist. "
        "Create it, or choose another file."
    )


async def test_a_directory_is_no_database(tmp_path: Path) -> None:
    assert await read_problem(tmp_path) == (
        f"{tmp_path} cannot be opened. Check that it is a file, and the permissions of the file and its directory."
    )


async def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Ada, " * 1000)

    assert await read_problem(path) == f"{path} is not a SQLite database. Choose another file."
    assert path.read_text() == "Dear Ada, " * 1000


@pytest.fixture
def damaged(tmp_path: Path, migrated_sqlite: Path) -> Path:
    path = tmp_path / "chats.db"
    whole = migrated_sqlite.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * 4000 + whole[4100:])
    return path


async def test_a_damaged_file_is_named(damaged: Path) -> None:
    assert await read_problem(damaged) == f"{damaged} is damaged. Restore it from a backup."


@pytest.mark.parametrize("log", ["wal", "delete"])
async def test_a_file_that_is_opened_read_only_is_named(tmp_path: Path, migrated_sqlite: Path, log: str) -> None:
    path = Path(shutil.copy(migrated_sqlite, tmp_path / "my chats.db"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={log}")

    assert await read_problem(f"sqlite:///{path}?mode=ro") == (
        f"{path} cannot be written. Check its mode, and the permissions of the file and its directory."
    )


async def test_a_file_that_must_exist_and_does_not_is_named(tmp_path: Path) -> None:
    assert await read_problem(f"sqlite:///{tmp_path}/chats.db?mode=rw") == (
        f"{tmp_path}/chats.db cannot be opened. "
        "Check that it is a file, and the permissions of the file and its directory."
    )
    assert not (tmp_path / "chats.db").exists()


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    said = await read_problem(f"postgresql://ada:{SECRET}@127.0.0.1:1/chats", DatabaseUnreachable)

    assert said.startswith("postgresql://ada:***@127.0.0.1:1/chats cannot be reached: ")


async def test_a_host_that_does_not_exist_is_named() -> None:
    said = await read_problem(f"postgresql://ada:{SECRET}@no-such-host.invalid/chats", DatabaseUnreachable)

    assert said.startswith("postgresql://ada:***@no-such-host.invalid/chats cannot be reached: ")


async def test_a_wrong_password_is_told_and_not_shown(postgres_server: str) -> None:
    role = f"locked_{uuid.uuid4().hex[:8]}"
    admin = await open_engine(postgres_server)
    async with begin_write(admin) as connection:
        await connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'something else'"))
    url = make_url(postgres_server).set(username=role, password=SECRET)

    said = await read_problem(url.render_as_string(hide_password=False))

    async with begin_write(admin) as connection:
        await connection.execute(text(f"DROP ROLE {role}"))
    await admin.dispose()
    assert said == f"{describe(url)} rejected the password."
    assert ":***@" in said


async def test_a_database_that_the_server_does_not_have_is_named(postgres_server: str) -> None:
    url = make_url(postgres_server).set(database="nowhere")

    said = await read_problem(url.render_as_string(hide_password=False))

    assert said == f"{describe(url)}: the server has no such database. Create it first."


async def test_a_server_that_only_reads_is_refused(new_postgres: str) -> None:
    engine = await open_engine(new_postgres)
    async with begin_write(engine) as connection:
        name = make_url(new_postgres).database
        await connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = on"))
    await engine.dispose()

    assert await read_problem(new_postgres) == (
        f"{describe(make_url(new_postgres))} is read-only. Use the primary server, not a replica."
    )


def test_without_the_driver_for_postgres_its_name_is_told() -> None:
    program = """
import asyncio, importlib.machinery, sys
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: None if name == "asyncpg" else find(name, *rest)
from indelible.store.database.engine import open_engine
from indelible.store.database.errors import DatabaseUnusable
try:
    asyncio.run(open_engine("postgresql://db/chats"))
except DatabaseUnusable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.stdout == "PostgreSQL needs a driver: pip install 'indelible[postgres]'.\n"


async def test_a_time_limit_in_the_address_is_one_for_the_connection(migrated_postgres: str) -> None:
    joint = "&" if "?" in migrated_postgres else "?"
    engine = await open_engine(f"{migrated_postgres}{joint}connect_timeout=60")
    await engine.dispose()
