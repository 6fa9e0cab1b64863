"""Opening a database: every connection is durable, a transaction is what it says, and a mistake is one sentence."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url
from tests.databases import execute
from tests.support.engine import OpenDatabase

from indelible.store.database.address import describe, parse_address
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable
from indelible.store.database.migrate import open_database
from indelible.store.database.postgres import CONNECTIONS, URGENT_CONNECTIONS, PostgresDatabase
from indelible.store.database.sqlite import READERS, SqliteDatabase
from indelible.store.database.sqlite_file import exclusive_file_lock
from indelible.store.database.transaction import Transaction

SECRET = "correct-horse"  # noqa: S105  (what must not be told)
DEADLINE_S = 100
ADVICE = "Check the address, and that the database runs there."
DURABLE = {
    "sqlite": {"busy_timeout": "5000", "journal_mode": "wal", "synchronous": "2", "foreign_keys": "1"},
    "postgresql": {
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "application_name": "indelible",
        "idle_in_transaction_session_timeout": "5s",
        "lock_timeout": "5s",
        "statement_timeout": "30s",
    },
}
ADD_WORKER = "INSERT INTO workers (id, started_at, heartbeat_at) VALUES ('w', '2026-11-15T00:00Z', '2026-11-15T00:00Z')"
COUNT_WORKERS = "SELECT count(*) AS count FROM workers"
OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'indelible'"


# --- durability ----------------------------------------------------------------------------


async def read_durability(transaction: Transaction) -> dict[str, str]:
    """The settings of this connection, read from the database itself."""
    asking = "PRAGMA" if transaction.dialect == "sqlite" else "SHOW"
    found = {name: await transaction.one(f"{asking} {name}") for name in DURABLE[transaction.dialect]}
    return {name: str(row[0]) for name, row in found.items()}


async def test_whoever_writes_and_every_reader_of_sqlite_is_durable(working_sqlite: Path) -> None:
    file = await open_database(working_sqlite)
    all_are_there = threading.Barrier(READERS, timeout=DEADLINE_S)

    async def read_together(transaction: Transaction) -> tuple[int, dict[str, str]]:
        all_are_there.wait()
        return threading.get_ident(), await read_durability(transaction)

    readers = dict(await asyncio.gather(*(file.read(read_together) for _ in range(READERS))))
    writers = [await file.write(read_durability), await file.write(read_durability, urgent=True)]
    await file.close()

    assert list(readers.values()) == [DURABLE["sqlite"]] * READERS
    assert writers == [DURABLE["sqlite"]] * 2


async def test_every_connection_to_postgres_is_durable_the_urgent_ones_too(migrated_postgres: str) -> None:
    server = await open_database(migrated_postgres)
    count = CONNECTIONS + URGENT_CONNECTIONS
    all_are_there = asyncio.Barrier(count)

    async def ask_together(transaction: Transaction) -> tuple[int, dict[str, str]]:
        await all_are_there.wait()
        pid = await transaction.one("SELECT pg_backend_pid()")
        return pid[0], await read_durability(transaction)

    asked = [server.write(ask_together, urgent=n >= CONNECTIONS, single=True) for n in range(count)]
    async with asyncio.timeout(DEADLINE_S):
        found = dict(await asyncio.gather(*asked))
    await server.close()

    assert list(found.values()) == [DURABLE["postgresql"]] * count


async def test_a_server_with_weaker_defaults_is_overruled(new_postgres: str) -> None:
    name = make_url(new_postgres).database
    await execute(
        new_postgres,
        f"ALTER DATABASE {name} SET synchronous_commit = off",
        f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'",
    )

    async def read(transaction: Transaction) -> tuple[dict[str, str], str]:
        return await read_durability(transaction), (await transaction.one("SHOW transaction_isolation"))[0]

    server = await open_database(new_postgres)
    written = [await server.write(read, urgent=urgent) for urgent in (False, True)]
    looked = await server.read(read)
    await server.close()

    assert written == [(DURABLE["postgresql"], "read committed")] * 2
    assert looked == (DURABLE["postgresql"], "repeatable read")


async def test_a_connection_is_still_durable_after_a_rollback(database: str) -> None:
    opened = await open_one(database)
    for ask in (opened.write, opened.read):
        with pytest.raises(Exception, match="nonsense"):
            await ask(lambda transaction: transaction.one("SELECT nonsense"))
        assert await ask(read_durability) == DURABLE[opened.dialect]
    await opened.close()


async def open_one(database: str) -> OpenDatabase:
    """As the product opens it, but with one connection to a server, so that everybody gets the same."""
    address = parse_address(database)
    if address.is_sqlite:
        return await open_database(database)
    return PostgresDatabase(address.make_postgres_options(), where="the server", connections=1)


# --- transactions --------------------------------------------------------------------------


async def count_workers(transaction: Transaction) -> int:
    return int((await transaction.one(COUNT_WORKERS))["count"])


async def test_whoever_reads_first_can_still_write_though_another_process_waits_to(working_sqlite: Path) -> None:
    """Without the lock from the start, one of the two would have been told that the file is busy."""
    first, second = [SqliteDatabase(str(working_sqlite), where="the file") for _ in range(2)]
    has_read, goes_on = threading.Event(), threading.Event()
    second.observe = lambda sql: goes_on.set() if sql == "BEGIN IMMEDIATE" else None

    async def add_one(transaction: Transaction) -> int:
        seen = await count_workers(transaction)
        has_read.set()
        goes_on.wait(DEADLINE_S)
        await transaction.run(ADD_WORKER.replace("'w'", f"'w{seen}'"))
        return seen

    leading = asyncio.create_task(first.write(add_one))
    await asyncio.to_thread(has_read.wait, DEADLINE_S)
    following = asyncio.create_task(second.write(add_one))
    assert (await leading, await following) == (0, 1)
    await first.close()
    await second.close()


async def test_a_reader_sees_one_moment_and_holds_no_writer_up(opened: OpenDatabase) -> None:
    loop = asyncio.get_running_loop()

    async def add_meanwhile() -> None:
        adding = opened.write(lambda transaction: transaction.run(ADD_WORKER))
        if opened.dialect == "sqlite":  # this is a thread
            asyncio.run_coroutine_threadsafe(adding, loop).result(DEADLINE_S)
        else:
            await adding

    async def count_twice(transaction: Transaction) -> tuple[int, int]:
        if transaction.dialect == "postgresql":
            await transaction.run("SET LOCAL idle_in_transaction_session_timeout = 0")  # a slow machine may need long
        before = await count_workers(transaction)
        await add_meanwhile()
        return before, await count_workers(transaction)

    assert await opened.read(count_twice) == (0, 0)
    assert await opened.read(count_workers) == 1


async def test_reading_leaves_nothing_behind_that_stops_the_next_from_writing(database: str) -> None:
    opened = await open_one(database)
    await opened.write(lambda transaction: transaction.run(ADD_WORKER))
    await opened.read(count_workers)
    await opened.read(count_workers, single=True)

    if opened.dialect == "sqlite":
        with closing(sqlite3.connect(database, timeout=0)) as other:
            assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "somebody still reads"
    assert await opened.write(lambda transaction: transaction.run("DELETE FROM workers")) == 1
    assert await opened.write(read_durability) == DURABLE[opened.dialect]
    await opened.close()


async def test_a_reader_cannot_write_on_postgres(new_postgres: str) -> None:
    server = await open_database(new_postgres)
    with pytest.raises(DatabaseUnusable, match="is read-only"):
        await server.read(lambda transaction: transaction.run("CREATE TABLE t (n INTEGER)"))
    await server.close()


async def test_what_a_reader_leaves_open_on_sqlite_is_rolled_back(working_sqlite: Path) -> None:
    async def leave_open(transaction: Transaction) -> None:
        await transaction.run("BEGIN IMMEDIATE")
        await transaction.run(ADD_WORKER)

    file = await open_database(working_sqlite)
    await file.read(leave_open, single=True)

    with closing(sqlite3.connect(working_sqlite, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert other.execute(COUNT_WORKERS).fetchone() == (0,)
    await file.close()


async def test_whoever_is_cancelled_while_it_waits_for_the_file_holds_nobody_up(working_sqlite: Path) -> None:
    file = await open_database(working_sqlite)
    loop, begins = asyncio.get_running_loop(), asyncio.Event()

    def note(_sql: str) -> None:
        loop.call_soon_threadsafe(begins.set)

    file.observe = note
    with closing(sqlite3.connect(working_sqlite, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(file.write(count_workers))
        await begins.wait()
        waiting.cancel()
        other.execute("ROLLBACK")
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert await file.read(count_workers) == 0
        other.execute("BEGIN IMMEDIATE")
    await file.close()


async def test_a_value_that_a_server_cannot_even_be_sent_is_no_failure_of_the_server(migrated_postgres: str) -> None:
    server = await open_database(migrated_postgres)
    with pytest.raises(asyncpg.DataError, match=r"out of .* range"):
        await server.write(lambda transaction: transaction.one("SELECT CAST($1 AS integer)", 2**40))
    await server.close()


# --- letting go ----------------------------------------------------------------------------


async def is_in_use(database: str) -> bool:
    """Whether somebody of us is connected."""
    if not database.startswith("postgresql"):
        return has_log(database)
    connection = await asyncpg.connect(database)
    try:
        return bool(await connection.fetchval(OURS))
    finally:
        await connection.close()


def has_log(file: str) -> bool:
    """SQLite moves its log into the file and removes it when the last connection is closed."""
    return Path(f"{file}-wal").exists()


async def wait_until_free(database: str) -> None:
    """A server notices a moment later that a connection has ended."""
    async with asyncio.timeout(DEADLINE_S):
        while await is_in_use(database):
            assert database.startswith("postgresql"), "the file is still open"


async def use_everywhere(opened: OpenDatabase) -> None:
    """So that there are several connections."""
    reads = [opened.read(count_workers) for _ in range(4)]
    await asyncio.gather(*reads, opened.write(count_workers), opened.write(count_workers, urgent=True))


async def test_a_database_that_is_closed_leaves_no_connection_behind_and_can_be_opened_again(database: str) -> None:
    for _ in range(2):
        opened = await open_database(database)
        await use_everywhere(opened)
        assert await is_in_use(database)
        await opened.close()
        await opened.close()
        await wait_until_free(database)


async def test_whoever_is_cancelled_while_it_closes_leaves_no_connection_behind(database: str) -> None:
    opened = await open_database(database)
    await use_everywhere(opened)
    closing_it = asyncio.create_task(opened.close())
    await asyncio.sleep(0)
    while not closing_it.done():
        closing_it.cancel()
        await asyncio.sleep(0)

    assert closing_it.cancelled()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "postgres connection"]
    await wait_until_free(database)


async def test_whoever_is_cancelled_while_it_opens_leaves_no_connection_behind(database: str) -> None:
    opening = asyncio.create_task(open_database(database))
    await asyncio.sleep(0)
    while not opening.done():
        opening.cancel()
        await asyncio.sleep(0)

    assert opening.cancelled()
    await wait_until_free(database)


# --- what cannot be opened -----------------------------------------------------------------


async def read_problem(database: str | Path, kind: type[Exception] = DatabaseUnusable) -> str:
    with pytest.raises(kind) as caught:
        await open_database(database)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is not caught.value
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


@pytest.mark.parametrize("kind", ["a device", "a pipe"])
async def test_a_device_or_a_pipe_is_no_database_and_gets_no_lock(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "chats.db"
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(os.devnull)

    assert await read_problem(path) == f"{path} is not a regular file. Choose another file."
    with pytest.raises(DatabaseUnusable, match="not a regular file"), exclusive_file_lock(path):
        pass
    assert not (tmp_path / "chats.db.lock").exists()


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


async def test_a_file_that_cannot_be_opened_leaves_no_thread(damaged: Path) -> None:
    before = set(threading.enumerate())
    await read_problem(damaged)

    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("sqlite ")]


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


async def test_a_file_with_an_odd_name_is_opened_under_it(tmp_path: Path) -> None:
    for path in (tmp_path / "100% ours?.db", tmp_path / "more#.db"):
        await (await open_database(path)).close()
        assert path.exists()
    await (await open_database(f"sqlite:///{tmp_path}/more%23.db?mode=rw")).close()


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    said = await read_problem(f"postgresql://ada:{SECRET}@127.0.0.1:1/chats", DatabaseUnreachable)

    assert said == f"postgresql://ada:***@127.0.0.1:1/chats cannot be reached: connection refused. {ADVICE}"


async def test_a_host_that_does_not_exist_is_named() -> None:
    said = await read_problem(f"postgresql://ada:{SECRET}@no-such-host.invalid/chats", DatabaseUnreachable)

    assert said.startswith("postgresql://ada:***@no-such-host.invalid/chats cannot be reached: ")
    assert "Errno" not in said
    assert said.endswith(ADVICE)


async def test_a_wrong_password_is_reported_and_not_shown(postgres_server: str) -> None:
    role = f"locked_{uuid.uuid4().hex[:8]}"
    await execute(postgres_server, f"CREATE ROLE {role} LOGIN PASSWORD 'something else'")
    written = write_url(postgres_server, username=role, password=SECRET)

    said = await read_problem(written)

    await execute(postgres_server, f"DROP ROLE {role}")
    assert said == f"{describe(parse_address(written))} rejected the password."
    assert ":***@" in said


def write_url(server: str, **changes: Any) -> str:
    return make_url(server).set(**changes).render_as_string(hide_password=False)


async def test_a_database_that_the_server_does_not_have_is_named(postgres_server: str) -> None:
    written = write_url(postgres_server, database="nowhere")

    said = await read_problem(written)

    assert said == f"{describe(parse_address(written))}: the server has no such database. Create it first."


async def test_a_server_that_only_reads_is_refused_and_let_go(new_postgres: str) -> None:
    name = make_url(new_postgres).database
    await execute(new_postgres, f"ALTER DATABASE {name} SET default_transaction_read_only = on")

    assert await read_problem(new_postgres) == (
        f"{describe(parse_address(new_postgres))} is read-only. Use the primary server, not a replica."
    )
    await wait_until_free(new_postgres)


def test_without_the_driver_for_postgres_the_error_names_it() -> None:
    program = """
import asyncio, importlib.machinery, sys
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: None if name == "asyncpg" else find(name, *rest)
from indelible.store.database.migrate import open_database
from indelible.store.database.errors import DatabaseUnusable
try:
    asyncio.run(open_database("postgresql://db/chats"))
except DatabaseUnusable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("PostgreSQL needs a driver: pip install 'indelible[postgres]'.\n", "")


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """A server that takes connections and says nothing."""
    held: list[asyncio.StreamWriter] = []
    serving = await asyncio.start_server(lambda _reader, writer: held.append(writer), "127.0.0.1", 0)
    host, port = serving.sockets[0].getsockname()
    yield f"postgresql://ada@{host}:{port}/chats"
    serving.close()
    for writer in held:
        writer.close()


async def test_a_server_that_says_nothing_is_waited_for_as_long_as_the_address_says(silent: str) -> None:
    said = await read_problem(f"{silent}?connect_timeout=0.05", DatabaseUnreachable)

    assert said == f"{silent} cannot be reached: no answer in time. {ADVICE}"


async def test_a_time_limit_in_the_address_is_one_for_the_connection(migrated_postgres: str) -> None:
    joint = "&" if "?" in migrated_postgres else "?"
    opened = await open_database(f"{migrated_postgres}{joint}connect_timeout=60")
    await opened.close()


# --- several at once -----------------------------------------------------------------------


async def test_processes_that_open_a_new_file_together_all_open_it(tmp_path: Path) -> None:
    """All but one are told that it is busy when they switch its log on, and have to try again."""
    program = """
import asyncio, sys
from indelible.store.database.migrate import open_database
async def open_and_close():
    await (await open_database(sys.argv[1])).close()
async def open_all():
    await asyncio.gather(*(open_and_close() for _ in range(5)))
print("ready", flush=True)
sys.stdin.readline()
asyncio.run(open_all())
"""
    start = partial(asyncio.create_subprocess_exec, sys.executable, "-c", program, str(tmp_path / "new.db"))
    pipe = subprocess.PIPE
    running = [await start(stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(4)]
    for process in running:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    ended = await asyncio.gather(*(process.communicate(b"now\n") for process in running))

    assert ended == [(b"", b"")] * 4
    with closing(sqlite3.connect(tmp_path / "new.db")) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
