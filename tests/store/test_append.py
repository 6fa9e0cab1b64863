"""One group of journal rows beside endings and takeovers, at every moment at which they can meet.

The moments are forced and not waited for. On PostgreSQL a flush is stopped in the middle of its statement by a row
that somebody else has written and not yet committed, and `pg_blocking_pids` says when it stands there. On SQLite,
where a writer has the whole file, it stands at its BEGIN, and the database tells its observer so.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from tests.support.engine import (
    begin_read,
    begin_write,
    close_databases,
    get_database,
    is_sqlite,
    open_engine,
    transact,
)
from tests.support.stored import load_runs
from tests.support.tables import attempts, journal, users, workers

from indelible.content import Text, TextDelta, encode
from indelible.errors import StoreFailed
from indelible.machine.commands import Acquire, Create, Fail, Send, StartAttempt
from indelible.store.database.address import parse_address
from indelible.store.database.postgres import PostgresDatabase
from indelible.store.database.transaction import Transaction
from indelible.store.journal.append import Appended, BadRows, JournalRow, RunKey, RunStarted, append_group
from indelible.store.payloads import NewChat, UserInput
from indelible.store.queries.open_turn import AttemptName
from indelible.store.store import Store

NOW = datetime(2026, 11, 15, tzinfo=UTC)
DEADLINE_S = 100
NOBODY: frozenset[str] = frozenset()
ENDED = {"outcome": "reset", "ended_at": NOW, "last_n": 0}
END = "UPDATE attempts SET outcome = 'reset', ended_at = '2026-11-15T00:00:00.000000Z', last_n = 0"
ADOPT = "UPDATE attempts SET epoch = epoch + 1"


async def start_attempt(engine: AsyncEngine, name: str) -> AttemptName:
    """A running chat with an open attempt."""
    store = Store(get_database(engine))
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id=f"user_{name}", name=name, created_at=NOW))
        await connection.execute(insert(workers).values(id=f"worker_{name}", started_at=NOW, heartbeat_at=NOW))
    words = NewChat(owner_id=f"user_{name}", blocks=[Text("hi")])
    created = await store.execute(f"chat_{name}", Create(with_message=True), words)
    held = await store.execute(f"chat_{name}", Acquire(worker_id=f"worker_{name}"))
    assert created.turn_id is not None
    started = await store.execute(f"chat_{name}", StartAttempt(epoch=held.epoch, turn_id=created.turn_id))
    assert started.attempt is not None
    return started.attempt


def make_row(attempt: AttemptName, n: int = 1, word: str = "word") -> JournalRow:
    return JournalRow(attempt.chat_id, attempt.id, attempt.epoch, n, encode([TextDelta("1", word)]))


async def append(engine: AsyncEngine, *rows: JournalRow) -> Appended:
    async with asyncio.timeout(DEADLINE_S):
        return await append_group(get_database(engine), rows, NOW)


async def read_rows(engine: AsyncEngine) -> set[tuple[str, int, bytes]]:
    async with begin_read(engine) as connection:
        return {(row.attempt_id, row.n, row.parts) for row in await connection.execute(select(journal))}


def name_rows(*rows: JournalRow) -> set[tuple[str, int, bytes]]:
    return {(row.attempt_id, row.n, row.parts) for row in rows}


# --- both databases ---


async def test_a_group_is_written_whole(engine: AsyncEngine) -> None:
    rows = [make_row(await start_attempt(engine, name)) for name in "abc"]
    assert await append(engine, *rows) == Appended(frozenset(row.attempt_id for row in rows), NOBODY)
    assert await read_rows(engine) == name_rows(*rows)


async def test_of_an_attempt_that_has_ended_or_has_another_epoch_nothing_is_written(engine: AsyncEngine) -> None:
    ended, adopted, mine = [await start_attempt(engine, name) for name in ("ended", "adopted", "mine")]
    async with begin_write(engine) as connection:
        await connection.execute(update(attempts).where(attempts.c.id == ended.id).values(ENDED))
        adopt = update(attempts).where(attempts.c.id == adopted.id)
        await connection.execute(adopt.values(epoch=adopted.epoch + 1))
    rows = [make_row(ended), make_row(adopted), make_row(mine)]
    assert await append(engine, *rows) == Appended(frozenset({mine.id}), frozenset({ended.id, adopted.id}))
    assert await read_rows(engine) == name_rows(rows[2])


@pytest.mark.parametrize("with_change", [False, True])
async def test_r6_a_late_row_of_an_ended_attempt_harms_neither_its_chats_newer_one_nor_another_chat(
    engine: AsyncEngine, with_change: bool
) -> None:
    """It may come from a worker that froze: the chat has had another turn meanwhile."""
    ended, other = [await start_attempt(engine, name) for name in ("a", "b")]
    newer = await start_next_attempt(engine, ended)
    run = RunStarted(RunKey(other.turn_id, other.step, 0), other.id, "c1", "pay", "{}", "once")
    late, unrelated = make_row(ended), make_row(other)._replace(changes=(run,) if with_change else ())
    assert await append(engine, late, unrelated) == Appended(frozenset({other.id}), frozenset({ended.id}))
    assert await append(engine, late, make_row(newer)) == Appended(frozenset({newer.id}), frozenset({ended.id}))
    assert await read_rows(engine) == name_rows(unrelated, make_row(newer))


async def start_next_attempt(engine: AsyncEngine, attempt: AttemptName) -> AttemptName:
    """The turn of this attempt fails, and the next turn of its chat has one."""
    store = Store(get_database(engine))
    fail = Fail(epoch=attempt.epoch, turn_id=attempt.turn_id, attempt_id=attempt.id)
    await store.execute(attempt.chat_id, fail)
    sent = await store.execute(attempt.chat_id, Send(), UserInput(blocks=[Text("again")]))
    held = await store.execute(attempt.chat_id, Acquire(worker_id="worker_a"))
    started = await store.execute(attempt.chat_id, StartAttempt(epoch=held.epoch, turn_id=sent.turn_id or ""))
    assert started.attempt is not None
    return started.attempt


async def test_an_attempt_that_is_gone_is_closed(engine: AsyncEngine) -> None:
    attempt = await start_attempt(engine, "a")
    gone = JournalRow("chat_gone", "attempt_gone", 1, 1, b"[]")
    assert await append(engine, make_row(attempt), gone) == Appended(
        frozenset({attempt.id}), frozenset({gone.attempt_id})
    )


async def test_r5_the_same_row_again_is_a_success_among_new_ones(engine: AsyncEngine) -> None:
    first, second = [await start_attempt(engine, name) for name in "ab"]
    await append(engine, make_row(first))
    both = frozenset({first.id, second.id})
    assert await append(engine, make_row(first), make_row(second)) == Appended(both, NOBODY)
    assert await read_rows(engine) == name_rows(make_row(first), make_row(second))


@pytest.mark.parametrize("with_change", [False, True])
async def test_other_bytes_under_the_same_number_are_refused_and_the_others_can_be_tried_again(
    engine: AsyncEngine, with_change: bool
) -> None:
    """Nothing of the group is written; on PostgreSQL only what is one statement was a transaction by itself."""
    good, bad = [await start_attempt(engine, name) for name in ("good", "bad")]
    run = RunStarted(RunKey(good.turn_id, good.step, 0), good.id, "c1", "pay", "{}", "once")
    wanted = make_row(good)._replace(changes=(run,) if with_change else ())
    once = make_row(bad, word="once")
    await append(engine, once)
    with pytest.raises(BadRows):
        await append(engine, wanted, make_row(bad, word="twice"))
    left = name_rows(once) if with_change or is_sqlite(engine) else name_rows(once, wanted)
    assert await read_rows(engine) == left
    assert await append(engine, wanted) == Appended(frozenset({good.id}), NOBODY)
    with pytest.raises(BadRows):
        await append(engine, make_row(bad, word="twice"))
    assert await read_rows(engine) == name_rows(once, wanted)


async def test_data_that_is_refused_costs_the_whole_group(engine: AsyncEngine) -> None:
    good, bad = [await start_attempt(engine, name) for name in ("good", "bad")]
    with pytest.raises(BadRows):
        await append(engine, make_row(good), make_row(bad)._replace(parts=None))  # type: ignore[arg-type]
    assert await read_rows(engine) == set()


async def test_a_change_of_the_ledger_is_written_with_its_row(engine: AsyncEngine) -> None:
    attempt = await start_attempt(engine, "a")
    change = RunStarted(RunKey(attempt.turn_id, attempt.step, 0), attempt.id, "c1", "pay", "{}", "once")
    await append(engine, make_row(attempt)._replace(changes=(change,)))
    assert [run.name for run in await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)] == ["pay"]


# --- PostgreSQL ---


@pytest.fixture
async def postgres(own_postgres: str) -> AsyncIterator[AsyncEngine]:
    engine = await open_engine(own_postgres)
    yield engine
    await close_databases()
    await engine.dispose()


async def test_r7_an_attempt_that_is_being_ended_is_skipped_and_neither_lost_nor_waited_for(
    postgres: AsyncEngine,
) -> None:
    ending, other = [await start_attempt(postgres, name) for name in ("ending", "other")]
    async with postgres.connect() as connection:
        await connection.execute(update(attempts).where(attempts.c.id == ending.id).values(ENDED))
        appended = await append(postgres, make_row(ending), make_row(other))
        assert appended == Appended(frozenset({other.id}), NOBODY)
        await connection.rollback()
    assert await append(postgres, make_row(ending)) == Appended(frozenset({ending.id}), NOBODY)
    assert await read_rows(postgres) == name_rows(make_row(ending), make_row(other))


@asynccontextmanager
async def stopped_at(postgres: AsyncEngine, attempt: AttemptName) -> AsyncIterator[AsyncConnection]:
    """A flush that comes to this attempt's first row cannot go on before this is over."""
    async with postgres.connect() as connection:
        await connection.execute(
            insert(journal).values(chat_id=attempt.chat_id, attempt_id=attempt.id, n=1, parts=b"[]", at=NOW)
        )
        yield connection
        await connection.rollback()


async def wait_until_blocked(blocker: AsyncConnection) -> None:
    blocked = text("SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))")
    async with asyncio.timeout(DEADLINE_S):
        while (await blocker.execute(blocked)).scalar_one() == 0:
            await blocker.execute(text("SELECT pg_stat_clear_snapshot()"))


@pytest.mark.parametrize("way", ["ended", "adopted"])
async def test_what_commits_between_the_snapshot_of_a_flush_and_its_lock_closes_the_attempt(
    postgres: AsyncEngine, way: str
) -> None:
    """The flush has begun when the attempt was open and its own. It comes to it when it no longer is."""
    first, late = [await start_attempt(postgres, name) for name in ("first", "late")]
    async with asyncio.TaskGroup() as tasks, stopped_at(postgres, first) as blocker:
        flush = tasks.create_task(append(postgres, make_row(first), make_row(late)))
        await wait_until_blocked(blocker)
        if way == "ended":
            fail = Fail(epoch=late.epoch, turn_id=late.turn_id, attempt_id=late.id)
            await Store(get_database(postgres)).execute("chat_late", fail)
        else:
            async with begin_write(postgres) as connection:
                adopt = update(attempts).where(attempts.c.id == late.id)
                await connection.execute(adopt.values(epoch=late.epoch + 1))
    assert flush.result() == Appended(frozenset({first.id}), frozenset({late.id}))
    assert await read_rows(postgres) == name_rows(make_row(first))


@pytest.mark.parametrize("way", ["ended", "adopted", "rolled back"])
async def test_an_attempt_that_was_skipped_is_judged_by_its_row_when_its_lock_is_free(
    postgres: AsyncEngine, way: str
) -> None:
    """Somebody held the attempt when the flush came to it, and is done before the flush looks again."""
    held, last = [await start_attempt(postgres, name) for name in ("held", "last")]
    async with asyncio.TaskGroup() as tasks, stopped_at(postgres, last) as blocker, postgres.connect() as holder:
        values = {"epoch": held.epoch + 1} if way == "adopted" else ENDED
        await holder.execute(update(attempts).where(attempts.c.id == held.id).values(values))
        flush = tasks.create_task(append(postgres, make_row(held), make_row(last)))
        await wait_until_blocked(blocker)
        await (holder.rollback() if way == "rolled back" else holder.commit())
    if way == "rolled back":
        assert flush.result() == Appended(frozenset({held.id, last.id}), NOBODY)
        assert await read_rows(postgres) == name_rows(make_row(held), make_row(last))
    else:
        assert flush.result() == Appended(frozenset({last.id}), frozenset({held.id}))
        assert await read_rows(postgres) == name_rows(make_row(last))


async def test_what_was_written_is_announced_though_its_attempt_ends_while_the_others_are_examined(
    postgres: AsyncEngine, own_postgres: str
) -> None:
    """The one urgent connection does something else between the statement that wrote it and the second look."""
    mine, gone = [await start_attempt(postgres, name) for name in ("mine", "gone")]
    options = parse_address(own_postgres).make_postgres_options()
    busy = PostgresDatabase(options, where="the server", urgent_connections=1)
    fail = Fail(epoch=mine.epoch, turn_id=mine.turn_id, attempt_id=mine.id)

    async def end_mine(_transaction: Transaction) -> None:
        await Store(busy).execute("chat_mine", fail)

    async with asyncio.TaskGroup() as tasks, stopped_at(postgres, mine) as blocker:
        rows = [make_row(mine), make_row(gone)._replace(epoch=gone.epoch + 1)]
        flush = tasks.create_task(append_group(busy, rows, NOW))
        await wait_until_blocked(blocker)
        ending = tasks.create_task(busy.write(end_mine, urgent=True, single=True))
        await asyncio.sleep(0)  # it stands in line
        assert not ending.done()
    await busy.close()
    assert flush.result() == Appended(frozenset({mine.id}), frozenset({gone.id}))
    assert await read_rows(postgres) == name_rows(make_row(mine))


# --- SQLite ---


class Traced:
    """An engine, and what the store has begun to execute on the same file."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.path = str(engine.url.database)
        self._statements: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def note(statement: str) -> None:
            loop.call_soon_threadsafe(self._statements.put_nowait, statement)

        get_database(engine).observe = note

    async def wait_for(self, statement: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self._statements.get() != statement:
                pass

    def forget(self) -> None:
        while not self._statements.empty():
            self._statements.get_nowait()

    def check_no_transaction_is_open(self) -> None:
        with closing(sqlite3.connect(self.path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")


@pytest.fixture
async def traced(migrated_sqlite: Path, tmp_path: Path) -> AsyncIterator[Traced]:
    engine = await open_engine(shutil.copy(migrated_sqlite, tmp_path))
    yield Traced(engine)
    await close_databases()
    await engine.dispose()


@contextmanager
def writing(path: str) -> Iterator[sqlite3.Connection]:
    """Another connection to the file, which has the write lock until it is told to commit or roll back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        yield file


@pytest.mark.parametrize(("way", "statement"), [("ended", END), ("adopted", ADOPT), ("rolled back", END)])
async def test_on_sqlite_a_flush_that_waited_for_the_file_finds_what_was_done_to_its_attempt(
    traced: Traced, way: str, statement: str
) -> None:
    attempt = await start_attempt(traced.engine, "a")
    traced.forget()
    async with asyncio.TaskGroup() as tasks:
        with writing(traced.path) as other:
            other.execute(statement)
            flush = tasks.create_task(append(traced.engine, make_row(attempt)))
            await traced.wait_for("BEGIN IMMEDIATE")
            other.execute("ROLLBACK" if way == "rolled back" else "COMMIT")
    whose = frozenset({attempt.id})
    assert flush.result() == (Appended(whose, NOBODY) if way == "rolled back" else Appended(NOBODY, whose))
    assert await read_rows(traced.engine) == (name_rows(make_row(attempt)) if way == "rolled back" else set())
    traced.check_no_transaction_is_open()


@pytest.mark.parametrize("ended", [False, True])
async def test_on_sqlite_a_flush_that_is_cancelled_leaves_no_transaction_open(traced: Traced, ended: bool) -> None:
    """It goes on, on its thread, and is told that it is cancelled when it is over."""
    attempt = await start_attempt(traced.engine, "a")
    traced.forget()
    with writing(traced.path) as other:
        if ended:
            other.execute(END)
        flush = asyncio.create_task(append(traced.engine, make_row(attempt)))
        await traced.wait_for("BEGIN IMMEDIATE")
        flush.cancel()
        other.execute("COMMIT")
        await asyncio.wait([flush])
        assert flush.cancelled()
        assert await read_rows(traced.engine) == (set() if ended else name_rows(make_row(attempt)))
        again = await append(traced.engine, make_row(attempt))
        other.execute("BEGIN IMMEDIATE")
    assert again == (Appended(NOBODY, frozenset({attempt.id})) if ended else Appended(frozenset({attempt.id}), NOBODY))
    assert await read_rows(traced.engine) == (set() if ended else name_rows(make_row(attempt)))


async def test_on_sqlite_a_flush_that_fails_leaves_no_transaction_open(traced: Traced) -> None:
    attempt = await start_attempt(traced.engine, "a")
    await get_database(traced.engine).write(lambda transaction: transaction.one("PRAGMA max_page_count=1"))
    with pytest.raises(StoreFailed, match="the disk is full"):
        await append(traced.engine, make_row(attempt, word="x" * 100_000))
    with writing(traced.path):
        assert await read_rows(traced.engine) == set()
