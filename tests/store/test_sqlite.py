"""SQLite's one writer: groups share a commit, a refusal is nobody else's, and nobody is answered too early."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from tests.support.waiting import poll_until

from indelible.errors import StoreFailed
from indelible.store.database import sqlite
from indelible.store.database.migrate import open_database
from indelible.store.database.sqlite import READERS, SqliteDatabase
from indelible.store.database.sqlite_jobs import Job, WriterQueue
from indelible.store.database.transaction import Transaction, Work, insert

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_S = 100.0


@pytest.fixture
async def file(working_sqlite: Path) -> AsyncIterator[SqliteDatabase]:
    opened = await open_database(working_sqlite)
    assert isinstance(opened, SqliteDatabase)
    yield opened
    await opened.close()


async def add(transaction: Transaction, name: str) -> str:
    await insert(transaction, "workers", {"id": name, "started_at": BEGUN, "heartbeat_at": BEGUN})
    return name


async def refuse(transaction: Transaction, name: str) -> None:
    await add(transaction, name)
    raise LookupError(name)


def list_stored(path: Path) -> list[str]:
    """What another process would find now."""
    with closing(sqlite3.connect(path)) as other:
        return [row[0] for row in other.execute("SELECT id FROM workers ORDER BY id")]


class Gate:
    """A writer that is busy until the gate is opened, so that others have to stand in line."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    async def pass_through(self, _transaction: Transaction) -> None:
        self.entered.set()
        self.open.wait()


def list_readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "sqlite reader"}


@contextmanager
def observed(file: SqliteDatabase) -> Iterator[list[str]]:
    sent: list[str] = []
    file.observe = sent.append
    yield sent
    file.observe = None


async def stand_in_line(file: SqliteDatabase, gate: Gate) -> asyncio.Task[None]:
    """Keep the writer busy; returns when it is."""
    holding = asyncio.create_task(file.write(gate.pass_through))
    await asyncio.to_thread(gate.entered.wait)
    return holding


async def test_all_who_wait_share_one_commit(file: SqliteDatabase) -> None:
    gate = Gate()
    holding = await stand_in_line(file, gate)
    names = [f"w{number:02}" for number in range(20)]
    with observed(file) as sent:
        tasks = [asyncio.create_task(file.write(partial(add, name=name))) for name in names]
        await asyncio.sleep(0)  # each has put its work in line
        gate.open.set()
        assert await asyncio.gather(holding, *tasks) == [None, *names]

    assert sent.count("COMMIT") == 2
    assert sent.count("BEGIN IMMEDIATE") == 1


async def test_a_refusal_in_a_group_is_nobody_elses(file: SqliteDatabase, working_sqlite: Path) -> None:
    gate = Gate()
    holding = await stand_in_line(file, gate)
    wanted: list[Work[str | None]] = [partial(add, name="a"), partial(refuse, name="b")]
    wanted += [partial(add, name="a"), partial(add, name="c")]
    tasks = [asyncio.create_task(file.write(work)) for work in wanted]
    await asyncio.sleep(0)
    gate.open.set()
    await holding
    first, refused, twice, last = await asyncio.gather(*tasks, return_exceptions=True)

    assert (first, last) == ("a", "c")
    assert isinstance(refused, LookupError)
    assert isinstance(twice, sqlite3.IntegrityError)
    assert list_stored(working_sqlite) == ["a", "c"]


async def test_nobody_is_answered_before_the_commit(file: SqliteDatabase, working_sqlite: Path) -> None:
    gate = Gate()
    holding = await stand_in_line(file, gate)
    found: dict[str, list[str]] = {}

    async def add_and_look(name: str) -> None:
        await file.write(partial(add, name=name))
        found[name] = list_stored(working_sqlite)

    tasks = [asyncio.create_task(add_and_look(name)) for name in "abc"]
    await asyncio.sleep(0)
    assert list_stored(working_sqlite) == []
    gate.open.set()
    await asyncio.gather(holding, *tasks)

    assert found == {name: ["a", "b", "c"] for name in "abc"}


async def test_urgent_work_goes_first(file: SqliteDatabase) -> None:
    order: list[str] = []

    async def note(_transaction: Transaction, name: str) -> None:
        order.append(name)

    gate = Gate()
    holding = await stand_in_line(file, gate)
    tasks = [asyncio.create_task(file.write(partial(note, name=name))) for name in ("first", "second")]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(file.write(partial(note, name="urgent"), urgent=True)))
    await asyncio.sleep(0)
    gate.open.set()
    await asyncio.gather(holding, *tasks)

    assert order == ["urgent", "first", "second"]


async def test_a_group_whose_transaction_the_database_ends_is_carried_out_again(
    file: SqliteDatabase, working_sqlite: Path
) -> None:
    async def end_it(transaction: Transaction) -> None:
        again = "INSERT OR ROLLBACK INTO workers (id, started_at, heartbeat_at) VALUES ($1, $2, $2)"
        await transaction.run(again, "a", BEGUN)

    gate = Gate()
    holding = await stand_in_line(file, gate)
    tasks = [
        asyncio.create_task(file.write(partial(add, name="a"))),
        asyncio.create_task(file.write(end_it)),
        asyncio.create_task(file.write(partial(add, name="b"))),
    ]
    await asyncio.sleep(0)
    gate.open.set()
    await holding
    first, ended, last = await asyncio.gather(*tasks, return_exceptions=True)

    assert (first, last) == ("a", "b")
    assert isinstance(ended, sqlite3.IntegrityError)
    assert list_stored(working_sqlite) == ["a", "b"]


async def test_the_writer_goes_on_after_work_that_breaks_its_group(file: SqliteDatabase, working_sqlite: Path) -> None:
    async def break_it(transaction: Transaction) -> None:
        await transaction.run("RELEASE job")

    gate = Gate()
    holding = await stand_in_line(file, gate)
    tasks = [asyncio.create_task(file.write(work)) for work in (partial(add, name="a"), break_it)]
    await asyncio.sleep(0)
    gate.open.set()
    await holding
    together = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(told) for told in together] == [StoreFailed] * 2
    assert list_stored(working_sqlite) == []
    assert await file.write(partial(add, name="b")) == "b"


async def test_a_cancelled_caller_waits_for_its_commit_and_harms_nobody(
    file: SqliteDatabase, working_sqlite: Path
) -> None:
    gate = Gate()
    holding = await stand_in_line(file, gate)
    task = asyncio.create_task(file.write(partial(add, name="a")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.open.set()
    await holding
    with pytest.raises(asyncio.CancelledError):
        await task

    assert list_stored(working_sqlite) == ["a"]
    assert await file.write(partial(add, name="b")) == "b"


async def test_work_may_not_wait_for_anything_else(file: SqliteDatabase, working_sqlite: Path) -> None:
    async def wait(transaction: Transaction) -> None:
        await add(transaction, "a")
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="may await nothing but"):
        await file.write(wait)

    assert list_stored(working_sqlite) == []


async def test_a_reader_sees_one_moment_while_others_write(file: SqliteDatabase) -> None:
    gate = Gate()

    async def count(transaction: Transaction) -> int:
        return int((await transaction.one("SELECT count(*) AS count FROM workers"))["count"])

    async def count_twice(transaction: Transaction) -> tuple[int, int]:
        first = await count(transaction)
        await gate.pass_through(transaction)
        return first, await count(transaction)

    reading = asyncio.create_task(file.read(count_twice))
    await asyncio.to_thread(gate.entered.wait)
    await file.write(partial(add, name="a"))
    assert await file.read(count) == 1
    gate.open.set()

    assert await reading == (0, 0)


async def test_a_reader_cannot_write(file: SqliteDatabase, working_sqlite: Path) -> None:
    await file.read(partial(add, name="a"))

    assert list_stored(working_sqlite) == []


async def test_many_readers_share_one_thread_while_none_of_them_is_slow(
    file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def name_thread(_transaction: Transaction) -> int:
        return threading.get_ident()

    monkeypatch.setattr(sqlite, "SLOW_READ_S", DEADLINE_S)
    threads = await asyncio.gather(*(file.read(name_thread) for _ in range(50)))

    assert len(set(threads)) == 1


async def test_a_slow_reader_holds_nobody_up_for_long(file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    async def name_thread(_transaction: Transaction) -> int:
        return threading.get_ident()

    monkeypatch.setattr(sqlite, "SLOW_READ_S", 0.01)
    gates = [Gate() for _ in range(READERS - 1)]
    slow = [asyncio.create_task(file.read(gate.pass_through)) for gate in gates]
    for gate in gates:
        await asyncio.to_thread(gate.entered.wait)

    await file.read(name_thread)
    await file.read(name_thread, urgent=True)
    for gate in gates:
        gate.open.set()
    await asyncio.gather(*slow)
    assert len(list_readers()) <= READERS + 1


async def test_one_thread_reads_again_when_no_reader_is_slow_any_more(
    file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "SLOW_READ_S", 0.01)
    gates = [Gate(), Gate()]
    slow = []
    for gate in gates:
        slow.append(asyncio.create_task(file.read(gate.pass_through)))
        await asyncio.to_thread(gate.entered.wait)
    readers = list_readers()
    for gate, reading in zip(gates, slow, strict=True):
        gate.open.set()
        await reading

    await poll_until(lambda: len(list_readers()) == 1)
    assert list_readers() < readers


async def test_closing_waits_for_what_was_asked_for_and_leaves_no_thread(
    file: SqliteDatabase, working_sqlite: Path
) -> None:
    await file.read(partial(add, name="x"))
    tasks = [asyncio.create_task(file.write(partial(add, name=name))) for name in "abc"]
    await asyncio.sleep(0)
    await file.close()

    assert await asyncio.gather(*tasks) == ["a", "b", "c"]
    assert list_stored(working_sqlite) == ["a", "b", "c"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sqlite ")]
    with pytest.raises(StoreFailed, match="is closed"):
        await file.write(partial(add, name="d"))


async def test_a_file_that_cannot_be_opened_now_can_be_opened_later(tmp_path: Path, migrated_sqlite: Path) -> None:
    path = tmp_path / "later.db"
    await asyncio.to_thread(path.mkdir)
    late = SqliteDatabase(str(path), where="later.db")
    with pytest.raises(StoreFailed):
        await late.write(partial(add, name="a"))
    path.rmdir()
    shutil.copy(migrated_sqlite, path)

    assert await late.write(partial(add, name="a")) == "a"
    await late.close()


async def test_slow_work_shares_no_commit_and_lets_urgent_work_go_before_it_once(file: SqliteDatabase) -> None:
    gate = Gate()
    holding = await stand_in_line(file, gate)
    with observed(file) as sent:
        tasks = [
            asyncio.create_task(file.write(partial(add, name="slow"), slow=True)),
            asyncio.create_task(file.write(partial(add, name="other"))),
            asyncio.create_task(file.write(partial(add, name="urgent"), urgent=True)),
        ]
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(holding, *tasks)

    ends = [statement for statement in sent if statement in {"COMMIT", "BEGIN IMMEDIATE"} or "workers" in statement]
    added = [statement for statement in ends if "workers" in statement]
    assert len(added) == 3
    assert sent.count("COMMIT") == 4, "of the gate, the urgent, the slow and the other one"


async def test_a_writer_that_cannot_even_roll_back_gets_a_new_connection(
    file: SqliteDatabase, working_sqlite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql in {"COMMIT", "ROLLBACK"} and failures:
                raise failures.pop()
            return super().execute(sql, *values)

    failures: list[BaseException] = [MemoryError(), MemoryError()]
    as_it_is = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(as_it_is, factory=Failing))
    late = SqliteDatabase(str(working_sqlite), where="the file")
    with pytest.raises(MemoryError):
        await late.write(partial(add, name="a"))

    assert await late.write(partial(add, name="b")) == "b"
    await late.close()
    assert list_stored(working_sqlite) == ["b"]


async def test_work_that_hides_the_end_of_its_transaction_is_not_reported_as_written(
    file: SqliteDatabase, working_sqlite: Path
) -> None:
    async def hide(transaction: Transaction) -> str:
        await add(transaction, "a")
        again = "INSERT OR ROLLBACK INTO workers (id, started_at, heartbeat_at) VALUES ($1, $2, $2)"
        with suppress(sqlite3.IntegrityError):
            await transaction.run(again, "a", BEGUN)
        return "written"

    with pytest.raises(RuntimeError, match="nothing was written"):
        await file.write(hide)

    assert list_stored(working_sqlite) == []


async def test_a_file_that_another_process_writes_to_for_long_can_be_opened(
    working_sqlite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 10)
    with closing(sqlite3.connect(working_sqlite, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opened = await open_database(working_sqlite)
        other.execute("ROLLBACK")

    assert await opened.write(partial(add, name="a")) == "a"
    await opened.close()


async def test_slow_work_that_failed_while_it_waited_for_its_turn_costs_the_next_nothing() -> None:
    arriving: SimpleQueue[Job[Any] | None] = SimpleQueue()
    line = WriterQueue(arriving)
    urgent, slow = Job(partial(add, name="a"), urgent=True), Job(partial(add, name="b"), slow=True)
    for job in (slow, urgent):
        arriving.put(job)
    assert line.wait()
    assert list(line.pop_group()) == [urgent]
    assert line.pop_all() == [slow], "the file cannot be written now, and everyone who waits is told so"

    following = Job(partial(add, name="c"))
    arriving.put(following)
    assert line.wait()
    assert list(line.pop_group()) == [following]
