"""Durability for real: killed processes, a disk that does not sync, and an ending that races with a flush.

This file is also the program that is killed. `python test_durability.py speak …` opens databases, starts an
attempt in each and publishes numbered parts; it prints a number when it was told that the part is durable. It
forks a process for each database, because importing takes longer than everything else. Killing a process proves
that what was told was handed to the system. That the system handed it to the disk is proved by the database:
SQLite fails a commit whose fsync fails (`python test_durability.py speak_without_fsync …` has the kernel refuse
them all), and PostgreSQL counts its own.

R1 is forced with two connections and waits for the lock itself to be seen, so nothing here depends on luck.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from tests.support.engine import begin_read, begin_write, flush_statistics, get_database, open_engine
from tests.support.tables import attempts, journal, users, workers

from indelible.clock import Clock, SystemClock
from indelible.content import Finish, TextDelta, decode_parts, encode
from indelible.machine.commands import Acquire, Create, FinishTurn, StartAttempt
from indelible.store.database import sqlite
from indelible.store.database.migrate import migrate
from indelible.store.journal.append import JournalRow
from indelible.store.journal.writer import Journal
from indelible.store.payloads import NewChat
from indelible.store.queries.open_turn import AttemptName
from indelible.store.store import Store
from indelible.testing import ManualClock

pytestmark = pytest.mark.real_disk

WITH_TESTS = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
"""This file is run as a program, too."""
NOW = datetime(2026, 11, 15, tzinfo=UTC)
KILLS = {"sqlite": 40, "postgresql": 5}
SEED = 4
AT_ONCE = 4
DEADLINE_S = 100
FLUSHES = 40


async def start_attempt(store: Store, engine: AsyncEngine, name: str) -> AttemptName:
    """A running chat with an open attempt."""
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id=f"user_{name}", name=name, created_at=NOW))
        await connection.execute(insert(workers).values(id=f"worker_{name}", started_at=NOW, heartbeat_at=NOW))
    created = await store.execute(f"chat_{name}", Create(with_message=True), NewChat(owner_id=f"user_{name}"))
    held = await store.execute(f"chat_{name}", Acquire(worker_id=f"worker_{name}"))
    assert created.turn_id is not None
    started = await store.execute(f"chat_{name}", StartAttempt(epoch=held.epoch, turn_id=created.turn_id))
    assert started.attempt is not None
    return started.attempt


async def read_numbers(engine: AsyncEngine, name: str) -> tuple[list[int], list[int]]:
    """The rows of a chat's attempt, and the numbers of the parts in them."""
    found = select(journal).join(attempts, attempts.c.id == journal.c.attempt_id).order_by(journal.c.n)
    async with begin_read(engine) as connection:
        rows = (await connection.execute(found.where(attempts.c.chat_id == f"chat_{name}"))).all()
    return [row.n for row in rows], [number for row in rows for number in list_numbers(row.parts)]


def list_numbers(parts: bytes) -> list[int]:
    return [int(number) for part in decode_parts(parts) if isinstance(part, TextDelta) for number in part.delta.split()]


# --- the program that is killed ---


def print_at_once(*words: object) -> None:
    """One write, which a pipe keeps in one piece, and no buffer in which it could be lost."""
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


def fork_speakers(addresses: Sequence[str]) -> None:
    """For each database a process that speaks until it is killed. Fails if one ends in another way."""
    ends = []
    for index, address in enumerate(addresses):
        if index >= AT_ONCE:
            ends.append(os.wait()[1])
        if os.fork() == 0:
            signal.alarm(DEADLINE_S)
            asyncio.run(speak(index, address))
            os._exit(1)
    ends.extend(os.wait()[1] for _ in range(len(addresses) - len(ends)))
    assert ends == [signal.SIGKILL] * len(addresses), ends


async def speak(index: int, address: str) -> None:
    """Publish in bursts, so that parts come before, during and after a commit."""
    chance = random.Random(index)  # noqa: S311  (it only has to be the same next time)
    engine = await open_engine(address)
    attempt = await start_attempt(Store(get_database(engine)), engine, str(index))
    written = open_journal(engine, SystemClock(), index, os.getpid())
    writer = written.open(attempt.chat_id, attempt.id, attempt.epoch)
    number = 0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(written.run())
        while True:
            for _ in range(chance.randint(1, 12)):
                number += 1
                writer.publish(TextDelta("1", f"{number} "))
                await asyncio.sleep(0)
            await written.drain(writer)


async def speak_without_fsync(address: str, *pragmas: str) -> None:
    """Speak while the disk syncs and after it stopped doing so, and print whether the journal has to try again."""

    def connect(path: str) -> sqlite3.Connection:
        connection = as_it_is(path)
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        return connection

    as_it_is, sqlite.connect = sqlite.connect, connect
    engine = await open_engine(address)
    attempt = await start_attempt(Store(get_database(engine)), engine, "0")
    clock = ManualClock()
    written = open_journal(engine, clock, "told")
    writer = written.open(attempt.chat_id, attempt.id, attempt.epoch)
    flusher = asyncio.create_task(written.run())
    for number in (1, 2, 3):
        writer.publish(TextDelta("1", f"{number} "))
        await written.drain(writer)
    refuse_fsync()
    writer.publish(TextDelta("1", "4 "))
    drained = asyncio.create_task(written.drain(writer))
    back_off = asyncio.create_task(wait_for_sleep(clock))
    await asyncio.wait([drained, back_off, flusher], return_when=asyncio.FIRST_COMPLETED)
    print_at_once("tries again" if back_off.done() else "goes on")
    os._exit(0)


async def wait_for_sleep(clock: ManualClock) -> None:
    """Until somebody waits before trying again. A timer alone may be the alarm of a flush that takes long."""
    while not clock.slept:
        await clock.wait_for_timer()


def open_journal(engine: AsyncEngine, clock: Clock, *before: object) -> Journal:
    """A journal that prints the number of each part as soon as it is told that it is durable."""

    def tell(rows: Sequence[JournalRow]) -> None:
        for row in rows:
            for number in list_numbers(row.parts):
                print_at_once(*before, number)

    return Journal(Store(get_database(engine)), clock=clock, on_committed=tell, interval_s=0)


def refuse_fsync() -> None:
    """From now on the kernel answers EIO to each fsync and fdatasync of this process (a seccomp filter)."""
    seccomp, fsync, fdatasync = {"x86_64": (317, 74, 75), "aarch64": (277, 82, 83)}[platform.machine()]
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    fail, allow = 0x0005_0000 | errno.EIO, 0x7FFF_0000
    filters = [
        (load, 0, 0, 0),
        (jump_if_equal, 1, 0, fsync),
        (jump_if_equal, 0, 1, fdatasync),
        (answer, 0, 0, fail),
        (answer, 0, 0, allow),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in filters))
    libc = ctypes.CDLL(None)
    no_new_privileges, set_filter, all_threads = 38, 1, 1
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    named = struct.pack("@HP", len(filters), ctypes.addressof(program))
    assert libc.syscall(seccomp, set_filter, all_threads, named) == 0


if __name__ == "__main__":
    signal.alarm(DEADLINE_S)
    if sys.argv[1] == "speak":
        fork_speakers(sys.argv[2:])
    else:
        asyncio.run(speak_without_fsync(*sys.argv[2:]))


# --- killed ---


def kill_speakers(addresses: Sequence[str]) -> list[list[int]]:
    """Let each speak and kill it some time after a random number of lines; what each has printed."""
    chance = random.Random(SEED)  # noqa: S311  (it only has to be the same next time)
    patience = [chance.randint(1, 60) for _ in addresses]
    printed: list[list[int]] = [[] for _ in addresses]
    command = [sys.executable, __file__, "speak", *addresses]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=WITH_TESTS
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            index, pid, number = map(int, line.split())
            printed[index].append(number)
            if len(printed[index]) == patience[index]:
                os.kill(pid, signal.SIGKILL)
        assert process.wait() == 0, process.stderr.read()
    assert all(len(numbers) >= least for numbers, least in zip(printed, patience, strict=True))
    return printed


async def test_every_part_that_was_reported_durable_survives_kill_9(database: str, tmp_path: Path) -> None:
    if database.startswith("postgresql"):
        addresses = [database] * KILLS["postgresql"]
    else:
        addresses = [str(shutil.copy(database, tmp_path / f"{index}.db")) for index in range(KILLS["sqlite"])]
    printed = await asyncio.to_thread(kill_speakers, addresses)
    for index, address in enumerate(addresses):
        engine = await open_engine(address)
        rows, numbers = await read_numbers(engine, str(index))
        await engine.dispose()
        assert rows == list(range(1, len(rows) + 1))
        assert numbers == list(range(1, len(numbers) + 1))
        assert printed[index] == numbers[: len(printed[index])]


# --- synced ---


def run_without_fsync(path: Path, pragmas: Sequence[str]) -> list[str]:
    command = [sys.executable, __file__, "speak_without_fsync", str(path), *pragmas]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=WITH_TESTS).stdout.splitlines()


@pytest.mark.parametrize(
    ("pragmas", "then"),
    [([], ["tries again"]), (["synchronous=NORMAL"], ["told 4", "goes on"])],
    ids=["as it is", "were it weaker"],
)
async def test_no_flush_is_reported_on_sqlite_unless_its_fsync_succeeded(
    migrated_sqlite: Path, tmp_path: Path, pragmas: list[str], then: list[str]
) -> None:
    """With NORMAL the fourth part would be told although nothing is on the disk: the test sees the difference."""
    path = Path(shutil.copy(migrated_sqlite, tmp_path))
    printed = await asyncio.to_thread(run_without_fsync, path, pragmas)
    assert printed == ["told 1", "told 2", "told 3", *then]
    engine = await open_engine(path)
    rows, numbers = await read_numbers(engine, "0")
    await engine.dispose()
    assert rows[:3] == numbers[:3] == [1, 2, 3]


@pytest.fixture
async def postgres(own_postgres: str) -> AsyncIterator[AsyncEngine]:
    opened = await open_engine(own_postgres)
    yield opened
    await opened.dispose()


@pytest.fixture
async def alone(own_server: Any) -> AsyncIterator[AsyncEngine]:
    """PostgreSQL, with nobody whose sync could carry our commits along."""
    address = f"postgresql://postgres@/postgres?host={own_server.pgdata}"
    await migrate(address)
    opened = await open_engine(address)
    yield opened
    await opened.dispose()


async def test_postgres_syncs_its_log_at_least_once_per_flush(alone: AsyncEngine) -> None:
    store = Store(get_database(alone))
    attempt = await start_attempt(store, alone, "a")
    before = await count_syncs(alone)
    for n in range(1, FLUSHES + 1):
        await store.append(
            [JournalRow(attempt.chat_id, attempt.id, attempt.epoch, n, encode([TextDelta("1", "word")]))]
        )
    assert await count_syncs(alone) - before >= FLUSHES


async def count_syncs(engine: AsyncEngine) -> int:
    """How often the server has synced the write-ahead log."""
    await flush_statistics(engine)
    async with begin_read(engine) as connection:
        counted = "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'"
        return int((await connection.execute(text(counted))).scalar_one())


# --- R1 ---


@asynccontextmanager
async def flush_on_its_way(engine: AsyncEngine, attempt: AttemptName) -> AsyncIterator[AsyncConnection]:
    """A flush that has written its row and not committed it yet; it commits at the end of the block."""
    async with begin_write(engine) as flush:
        row = JournalRow(
            attempt.chat_id, attempt.id, attempt.epoch, 1, encode([TextDelta("1", "Hello"), Finish("stop")])
        )
        held = select(attempts).where(attempts.c.chat_id == attempt.chat_id, attempts.c.id == attempt.id)
        assert (await flush.execute(held.with_for_update(read=True))).one().ended_at is None
        written = {"chat_id": row.chat_id, "attempt_id": row.attempt_id, "n": row.n, "parts": row.parts, "at": NOW}
        await flush.execute(insert(journal).values(written))
        yield flush


async def wait_until_blocked_by(flush: AsyncConnection) -> None:
    """Until somebody waits for what the flush has locked."""
    blocked = text("SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))")
    async with asyncio.timeout(DEADLINE_S):
        while (await flush.execute(blocked)).scalar_one() == 0:
            await flush.execute(text("SELECT pg_stat_clear_snapshot()"))


async def test_r1_an_ending_that_waited_for_a_flush_holds_what_was_flushed(postgres: AsyncEngine) -> None:
    store = Store(get_database(postgres))
    attempt = await start_attempt(store, postgres, "a")
    finish = FinishTurn(epoch=attempt.epoch, turn_id=attempt.turn_id, attempt_id=attempt.id)
    async with asyncio.TaskGroup() as tasks, flush_on_its_way(postgres, attempt) as flush:
        ending = tasks.create_task(store.execute("chat_a", finish))
        await wait_until_blocked_by(flush)
    assert [message.text for message in ending.result().messages] == ["Hello"]
    async with begin_read(postgres) as connection:
        assert (await connection.execute(select(attempts.c.last_n))).scalar_one() == 1


async def test_r1_locking_and_reading_in_one_statement_would_lose_what_was_flushed(postgres: AsyncEngine) -> None:
    """Why the rule is there: the same interleaving, with the journal read by the statement that waits."""
    attempt = await start_attempt(Store(get_database(postgres)), postgres, "a")
    rows_seen = select(func.count()).where(journal.c.attempt_id == attempts.c.id).scalar_subquery()

    async def lock_and_count() -> tuple[int, int]:
        async with begin_write(postgres) as connection:
            together = select(rows_seen).select_from(attempts).where(attempts.c.id == attempt.id)
            at_once = (await connection.execute(together.with_for_update(of=attempts))).scalar_one()
            later = (await connection.execute(select(func.count()).select_from(journal))).scalar_one()
            return at_once, later

    async with asyncio.TaskGroup() as tasks, flush_on_its_way(postgres, attempt) as flush:
        counting = tasks.create_task(lock_and_count())
        await wait_until_blocked_by(flush)
    assert counting.result() == (0, 1)
