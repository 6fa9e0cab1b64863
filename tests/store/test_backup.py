"""A backup is whole whatever is written meanwhile, and one that fails leaves everything as it was."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_write, close_databases, get_database, open_engine
from tests.support.tables import journal

from indelible.store.database.backup import back_up
from indelible.store.database.errors import DatabaseUnusable
from indelible.store.database.migrate import HEAD, load_revision

DEADLINE_S = 100.0
NOW = datetime(2026, 11, 15, tzinfo=UTC)
ROWS_BEFORE = 200


@pytest.fixture
def source(migrated_sqlite: Path, tmp_path: Path) -> Path:
    """A database of some 200 pages of journal."""
    path = tmp_path / "chats.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [("chat_1", "attempt_1", n, os.urandom(3000), NOW.isoformat()) for n in range(1, ROWS_BEFORE + 1)]
        connection.executemany("INSERT INTO journal (chat_id, attempt_id, n, parts, at) VALUES (?, ?, ?, ?, ?)", rows)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory for backups."""
    place = tmp_path / "backups"
    place.mkdir()
    return place


async def append(engine: AsyncEngine, n: int) -> None:
    async with begin_write(engine) as connection:
        row = {"chat_id": "chat_1", "attempt_id": "attempt_1", "n": n, "parts": b"[]", "at": NOW}
        await connection.execute(insert(journal).values(**row))


def read_numbers(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [n for (n,) in connection.execute("SELECT n FROM journal ORDER BY n")]


def run_backup(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "indelible", "backup", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


# --- while others write --------------------------------------------------------------------


async def test_a_commit_between_any_two_chunks_neither_restarts_nor_spoils_the_copy(source: Path, place: Path) -> None:
    engine = await open_engine(source)
    loop = asyncio.get_running_loop()
    chunks: list[tuple[int, int]] = []

    def write_meanwhile(copied: int, total: int) -> None:
        chunks.append((copied, total))
        assert len(chunks) < 1000, "it starts again and again"
        writing = append(engine, ROWS_BEFORE + len(chunks))
        asyncio.run_coroutine_threadsafe(writing, loop).result(DEADLINE_S)

    target = place / "saved.db"
    size_bytes = await asyncio.to_thread(back_up, source, target, on_progress=write_meanwhile, chunk_pages=10)
    await engine.dispose()

    assert len(chunks) > 10
    assert chunks == sorted(chunks)
    assert chunks[-1][0] == chunks[-1][1]
    assert read_numbers(target) == list(range(1, ROWS_BEFORE + 1))
    assert read_numbers(source) == list(range(1, ROWS_BEFORE + len(chunks) + 1))
    assert size_bytes == target.stat().st_size


async def test_the_command_copies_beside_a_process_that_writes_without_pause(source: Path, place: Path) -> None:
    engine = await open_engine(source)
    committed = ROWS_BEFORE
    copying = True
    wrote_some = asyncio.Event()

    async def write() -> None:
        nonlocal committed
        while copying:
            await append(engine, committed + 1)
            committed += 1
            if committed >= ROWS_BEFORE + 5:
                wrote_some.set()

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        await wrote_some.wait()
        before = committed
        done = await asyncio.to_thread(run_backup, "--database", source, place / "saved.db")
        copying = False
    await engine.dispose()

    assert done.returncode == 0, done.stderr
    copied = read_numbers(place / "saved.db")
    assert before <= len(copied) < committed
    assert copied == list(range(1, len(copied) + 1))


async def test_the_copy_is_a_migrated_database_that_can_be_written(source: Path, place: Path) -> None:
    back_up(source, place / "saved.db")

    engine = await open_engine(place / "saved.db")
    assert await load_revision(get_database(engine)) == HEAD
    await close_databases()
    await append(engine, ROWS_BEFORE + 1)
    await engine.dispose()

    assert read_numbers(place / "saved.db") == list(range(1, ROWS_BEFORE + 2))


def test_what_is_only_in_the_log_is_copied_too(source: Path, place: Path) -> None:
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("INSERT INTO journal VALUES ('chat_1', 'attempt_1', 201, x'5b5d', '2026-11-15')")
        connection.commit()
        assert source.with_name("chats.db-wal").stat().st_size > 0

        back_up(source, place / "saved.db")

    assert read_numbers(place / "saved.db")[-1] == 201


# --- what is left behind -------------------------------------------------------------------


def test_a_backup_is_one_file_that_only_its_owner_may_read(source: Path, place: Path) -> None:
    back_up(source, place / "saved.db")

    assert [path.name for path in place.iterdir()] == ["saved.db"]
    assert (place / "saved.db").stat().st_mode & 0o777 == 0o600


def test_the_name_appears_only_when_the_copy_is_whole(source: Path, place: Path) -> None:
    seen: set[bool] = set()
    back_up(source, place / "saved.db", on_progress=lambda *_: seen.add((place / "saved.db").exists()))

    assert seen == {False}
    assert (place / "saved.db").exists()


@pytest.mark.parametrize("there", [None, b"yesterday's"])
def test_a_backup_that_is_cut_leaves_everything_as_it_was(source: Path, place: Path, there: bytes | None) -> None:
    def cut(_copied: int, _total: int) -> None:
        raise KeyboardInterrupt

    if there is not None:
        (place / "saved.db").write_bytes(there)
    with pytest.raises(KeyboardInterrupt):
        back_up(source, place / "saved.db", overwrite=True, on_progress=cut)

    assert [path.read_bytes() for path in place.iterdir()] == ([] if there is None else [there])


def test_a_damaged_database_is_reported_and_does_not_replace_a_good_backup(source: Path, place: Path) -> None:
    (place / "saved.db").write_bytes(b"yesterday's")
    with source.open("r+b") as file:
        file.seek(source.stat().st_size // 2)
        file.write(b"\xff" * 65536)

    with pytest.raises(DatabaseUnusable, match=r"chats\.db is damaged \(.+\)\. No backup was made\."):
        back_up(source, place / "saved.db", overwrite=True)

    assert [path.read_bytes() for path in place.iterdir()] == [b"yesterday's"]


def test_a_file_that_came_meanwhile_is_not_overwritten(source: Path, place: Path) -> None:
    with pytest.raises(DatabaseUnusable, match="already exists"):
        back_up(source, place / "saved.db", on_progress=lambda *_: (place / "saved.db").touch())

    assert [path.read_bytes() for path in place.iterdir()] == [b""]


# --- refusals ------------------------------------------------------------------------------


@pytest.fixture
def refused(source: Path, place: Path) -> Iterator[Path]:
    """The source, which is the same after the test, as is the number of files."""
    before = source.read_bytes()
    yield source
    assert source.read_bytes() == before
    assert not list(place.glob(".*"))


def test_an_existing_file_is_overwritten_only_by_force(refused: Path, place: Path) -> None:
    target = place / "saved.db"
    target.write_bytes(b"yesterday's")

    with pytest.raises(DatabaseUnusable, match=r"already exists\. Choose another file, or replace it with --force"):
        back_up(refused, target)
    assert target.read_bytes() == b"yesterday's"

    back_up(refused, target, overwrite=True)
    assert len(read_numbers(target)) == ROWS_BEFORE


def test_a_database_is_never_replaced_by_its_own_backup(refused: Path, place: Path) -> None:
    (place / "link.db").symlink_to(refused)
    for target in (refused, place / "link.db"):
        with pytest.raises(DatabaseUnusable, match="is the database itself"):
            back_up(refused, target, overwrite=True)


@pytest.mark.parametrize("companion", ["-wal", "-shm", "-journal"])
def test_the_log_of_another_database_is_not_taken_for_the_copys(refused: Path, place: Path, companion: str) -> None:
    (place / f"saved.db{companion}").touch()

    with pytest.raises(DatabaseUnusable, match="is in use"):
        back_up(refused, place / "saved.db", overwrite=True)


def test_a_target_that_cannot_be_a_file_is_refused(refused: Path, place: Path) -> None:
    with pytest.raises(DatabaseUnusable, match="is a directory"):
        back_up(refused, place, overwrite=True)
    with pytest.raises(DatabaseUnusable, match=r"the directory .* does not exist"):
        back_up(refused, place / "nowhere" / "saved.db")
    with pytest.raises(DatabaseUnusable, match="cannot be used: File name too long"):
        back_up(refused, place / ("long" * 100))


def test_a_database_that_is_not_there_is_not_created(tmp_path: Path, place: Path) -> None:
    with pytest.raises(DatabaseUnusable, match=r"Can't find the database .*missing\.db"):
        back_up(tmp_path / "missing.db", place / "saved.db")

    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize(
    ("content", "expected"), [(b"", "is not an Indelible database"), (b"a letter " * 999, "is not a SQLite database")]
)
def test_a_file_of_another_program_is_reported(tmp_path: Path, place: Path, content: bytes, expected: str) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(content)

    with pytest.raises(DatabaseUnusable, match=expected):
        back_up(other, place / "saved.db")

    assert not list(place.iterdir())


# --- the command ---------------------------------------------------------------------------


def test_the_command_copies_and_says_so(source: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_DATABASE", f"sqlite:///{source}")
    target = place / "saved.db"

    done = run_backup(target)

    assert done.stdout == f"Backed up to {target} ({target.stat().st_size:,} bytes, integrity check passed).\n"
    assert (done.returncode, done.stderr) == (0, "")
    assert len(read_numbers(target)) == ROWS_BEFORE


def test_the_command_overwrites_only_by_force(source: Path, place: Path) -> None:
    (place / "saved.db").write_bytes(b"yesterday's")
    arguments = ("--database", source, place / "saved.db")

    refused, forced = run_backup(*arguments), run_backup("--force", *arguments)

    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert refused.stderr.startswith(f"indelible: {place / 'saved.db'} already exists.")
    assert forced.returncode == 0
    assert len(read_numbers(place / "saved.db")) == ROWS_BEFORE


def test_the_command_sends_users_of_postgresql_to_pg_dump_without_telling_their_password(place: Path) -> None:
    done = run_backup("--database", "postgresql://ada:hush@db.example/chats", place / "saved.db")

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "pg_dump" in done.stderr
    assert "hush" not in done.stderr
    assert not list(place.iterdir())
