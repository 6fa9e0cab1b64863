"""What the store costs, on both databases: writing the journal, reading a long chat, sending into one.

Beside the journal stands, in the same run and on the same database and table, the limit: the bare driver
with a transaction of the same number of rows (begin, `executemany`, commit, equally durable) that checks
nothing. The store also locks the attempts it writes for, compares their epochs and never writes a row
twice. The aim is half of the limit's rows per second or more. Raw SQLite is the blocking driver, without a
thread in between: a limit that a server could not use.

The rounds of all contestants take turns, and a share is taken within each round, so that a machine that is busy
for a while is busy for all of them. The median of the shares counts. If the aim lies among the middle half of
them, the machine was too busy to tell, and the bench says that instead.
Sends are timed as the rows were loaded and again after ANALYZE, which on PostgreSQL makes a difference.

The latency of a flush is measured with every chat speaking at 50 tokens per second: from `publish` to
the moment when readers are told, the waiting for the group included.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from typing import Final, NamedTuple

import asyncpg
from rich.console import Console
from rich.status import Status
from rich.table import Table
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_write, close_databases, get_database, open_engine

from bench.databases import EPOCH, OWNER_ID, add_owner, add_running_chats, add_waiting_chat, start_databases
from indelible.clock import SystemClock
from indelible.content import Text, TextDelta, decode_parts, encode
from indelible.ids import new_id
from indelible.machine.commands import Interrupt, Send
from indelible.store.database.transaction import format_time
from indelible.store.journal.append import JournalRow
from indelible.store.journal.writer import Journal
from indelible.store.payloads import UserInput
from indelible.store.store import Store

_CHATS: Final = (1, 50, 300)
_ROUNDS: Final = 11
_ROUND_S: Final = 0.15
_SPEAKING_S: Final = 1.2
_TOKEN_INTERVAL_S: Final = 0.02
_WORD: Final = "word "
_WORDS: Final = "x" * 80  # a row of about 120 bytes
_LONG: Final = 10_000
_SHORT: Final = 10
_PAGE: Final = 50
_SENDS: Final = 20
_SHARE_AIM: Final = 0.5
_SEND_AIM: Final = 1.5
_INSERT_SQLITE: Final = "INSERT INTO journal (chat_id, attempt_id, n, parts, at) VALUES (?, ?, ?, ?, ?)"
_INSERT_POSTGRES: Final = "INSERT INTO journal (chat_id, attempt_id, n, parts, at) VALUES ($1, $2, $3, $4, $5)"

# Writes the next row of each of its chats, durably, in one transaction.
WriteGroup = Callable[[], Awaitable[None]]


class Bench(NamedTuple):
    name: str
    address: str
    engine: AsyncEngine
    store: Store


async def measure() -> None:
    console = Console()
    rates = _make_table(
        f"The journal: rows per second, median of {_ROUNDS} rounds",
        *("chats", "raw", "store", "share", "journal", "share", f"aim ≥ {_SHARE_AIM:.0%}"),
    )
    latencies = _make_table("The journal: from publish to told, 50 tokens/s in every chat", "chats", "p50", "p99")
    reads = _make_table(f"A chat of {_LONG:,} messages: reading", f"last {_PAGE}", "all of it", "per message")
    sends = _make_table(
        "Sending a message, median", "statistics", f"after {_SHORT}", f"after {_LONG:,}", "ratio", "aim"
    )
    with console.status("starting PostgreSQL") as status:
        async with start_databases() as addresses:
            for name, address in addresses.items():
                engine = await open_engine(address)
                try:
                    await add_owner(engine)
                    bench = Bench(name, address, engine, Store(get_database(engine)))
                    await _measure_rates(bench, rates, status)
                    await _measure_latencies(bench, latencies, status)
                    await _measure_chats(bench, reads, sends, status)
                finally:
                    await close_databases()
                    await engine.dispose()
    for table in (rates, latencies, reads, sends):
        console.print(table)


def _make_table(title: str, *columns: str) -> Table:
    table = Table("database", title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


# --- rows per second -----------------------------------------------------------------------


async def _measure_rates(bench: Bench, table: Table, status: Status) -> None:
    for size in _CHATS:
        status.update(f"{bench.name}: journal rows of {size} chats")
        async with _open_raw(bench, size) as raw, _open_journal(bench, size) as journal:
            contestants = (raw, await _open_store(bench, size), journal)
            rounds = [[await _count_groups(write) for write in contestants] for _ in range(_ROUNDS)]
        raw_rate, store_rate, journal_rate = (statistics.median(rates) * size for rates in zip(*rounds, strict=True))
        store_shares = [by_store / by_raw for by_raw, by_store, _ in rounds]
        journal_shares = [by_journal / by_raw for by_raw, _, by_journal in rounds]
        table.add_row(
            *(bench.name, f"{size}", f"{raw_rate:,.0f}"),
            *(f"{store_rate:,.0f}", f"{statistics.median(store_shares):.0%}"),
            *(f"{journal_rate:,.0f}", f"{statistics.median(journal_shares):.0%}"),
            _judge_shares(journal_shares),
        )


def _judge_shares(shares: list[float]) -> str:
    lower, _, upper = statistics.quantiles(shares)
    if lower < _SHARE_AIM <= upper:
        return "too noisy to tell"
    return _judge(reached=lower >= _SHARE_AIM)


async def _count_groups(write: WriteGroup) -> float:
    """Groups per second."""
    await write()
    count = 0
    started = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started) < _ROUND_S:
        await write()
        count += 1
    return count / elapsed_s


@asynccontextmanager
async def _open_raw(bench: Bench, size: int) -> AsyncIterator[WriteGroup]:
    ids = [new_id("attempt") for _ in range(size)]
    parts = _make_parts()
    n = 0

    def make_rows(at: object) -> list[tuple[str, str, int, bytes, object]]:
        nonlocal n
        n += 1
        return [("chat_of_" + id_, id_, n, parts, at) for id_ in ids]

    if bench.name == "SQLite":
        with closing(sqlite3.connect(bench.address, isolation_level=None)) as file:
            file.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON")

            async def write_sqlite() -> None:
                file.execute("BEGIN IMMEDIATE")
                file.executemany(
                    _INSERT_SQLITE,
                    make_rows(format_time(datetime.now(UTC))),
                )
                file.execute("COMMIT")

            yield write_sqlite
        return
    server = await asyncpg.connect(bench.address)

    async def write_postgres() -> None:
        async with server.transaction():
            await server.executemany(_INSERT_POSTGRES, make_rows(datetime.now(UTC)))

    try:
        yield write_postgres
    finally:
        await server.close()


async def _open_store(bench: Bench, size: int) -> WriteGroup:
    ids = await add_running_chats(bench.engine, size)
    parts = _make_parts()
    n = 0

    async def write() -> None:
        nonlocal n
        n += 1
        appended = await bench.store.append([JournalRow(*id_, EPOCH, n, parts) for id_ in ids])
        assert len(appended.written) == size

    return write


@asynccontextmanager
async def _open_journal(bench: Bench, size: int) -> AsyncIterator[WriteGroup]:
    """Through publish and the flusher, which does not wait for more, and writes the rows of all in one flush."""
    ids = await add_running_chats(bench.engine, size)
    committed = asyncio.Event()
    journal = Journal(
        bench.store, clock=SystemClock(), on_committed=lambda rows: committed.set(), interval_s=0, rows_per_flush=size
    )
    writers = [journal.open(*id_, EPOCH) for id_ in ids]

    async def write() -> None:
        for writer in writers:
            writer.publish(TextDelta("1", _WORDS))
        while any(writer.committed < writer.accepted for writer in writers):
            committed.clear()
            await committed.wait()

    async with _flushing(journal):
        yield write
    assert len({writer.n for writer in writers}) == 1, "some chats were told more than others"


@asynccontextmanager
async def _flushing(journal: Journal) -> AsyncIterator[None]:
    flusher = asyncio.create_task(journal.run())
    try:
        yield
    finally:
        flusher.cancel()
        await asyncio.wait([flusher])


def _make_parts() -> bytes:
    return encode([TextDelta("1", _WORDS)])


# --- latency -------------------------------------------------------------------------------


async def _measure_latencies(bench: Bench, table: Table, status: Status) -> None:
    for count in _CHATS:
        status.update(f"{bench.name}: latency with {count} running chats")
        elapsed_ms = sorted(await _speak(bench, await add_running_chats(bench.engine, count)))
        p50_ms, p99_ms = (elapsed_ms[math.ceil(len(elapsed_ms) * share) - 1] for share in (0.5, 0.99))
        table.add_row(bench.name, f"{count}", f"{p50_ms:.1f} ms", f"{p99_ms:.1f} ms")


async def _speak(bench: Bench, ids: Sequence[tuple[str, str]]) -> list[float]:
    """Let chats speak, each at its own moment of the interval. Gives milliseconds per token."""
    published: dict[str, deque[float]] = {attempt_id: deque() for _, attempt_id in ids}
    committed: list[tuple[float, Sequence[JournalRow]]] = []
    journal = Journal(
        bench.store, clock=SystemClock(), on_committed=lambda rows: committed.append((time.perf_counter(), rows))
    )
    writers = [journal.open(*id_, EPOCH) for id_ in ids]

    async def speak(at: int) -> None:
        writer, times = writers[at], published[ids[at][1]]
        due = time.perf_counter() + _TOKEN_INTERVAL_S * at / len(ids)
        for _ in range(int(_SPEAKING_S / _TOKEN_INTERVAL_S)):
            await asyncio.sleep(max(0, due - time.perf_counter()))
            times.append(time.perf_counter())
            writer.publish(TextDelta("1", _WORD))
            due += _TOKEN_INTERVAL_S
        await journal.drain(writer)

    async with _flushing(journal):
        await asyncio.gather(*(speak(at) for at in range(len(ids))))
    elapsed_ms: list[float] = []
    for committed_at, rows in committed:
        for row in rows:
            words = "".join(part.delta for part in decode_parts(row.parts) if isinstance(part, TextDelta))
            times = published[row.attempt_id]
            elapsed_ms.extend((committed_at - times.popleft()) * 1000 for _ in range(len(words) // len(_WORD)))
    assert not any(published.values()), "some tokens were never committed"
    return elapsed_ms


# --- long chats ----------------------------------------------------------------------------


async def _measure_chats(bench: Bench, reads: Table, sends: Table, status: Status) -> None:
    status.update(f"{bench.name}: a chat of {_LONG:,} messages")
    long_id = await add_waiting_chat(bench.engine, _LONG)
    page_ms = statistics.median([await _time_read(bench, long_id, _PAGE) for _ in range(20)])
    whole_ms = statistics.median([await _time_read(bench, long_id, None) for _ in range(3)])
    reads.add_row(bench.name, f"{page_ms:.1f} ms", f"{whole_ms:.0f} ms", f"{whole_ms / _LONG * 1000:.1f} µs")
    await _measure_sends(bench, long_id, "none", sends, status)
    async with begin_write(bench.engine) as connection:
        await connection.execute(text("ANALYZE"))
    await _measure_sends(bench, long_id, "ANALYZE", sends, status)


async def _measure_sends(bench: Bench, long_id: str, statistics_are: str, table: Table, status: Status) -> None:
    status.update(f"{bench.name}: sending, statistics: {statistics_are}")
    short_ids = [await add_waiting_chat(bench.engine, _SHORT) for _ in range(_SENDS)]
    pairs = [(await _time_send(bench, short_id), await _time_send(bench, long_id)) for short_id in short_ids]
    short_ms, long_ms = (statistics.median(times) for times in zip(*pairs, strict=True))
    verdict = f"≤ {_SEND_AIM}: {_judge(reached=long_ms <= _SEND_AIM * short_ms)}"
    ratio = f"{long_ms / short_ms:.2f} ×"
    table.add_row(bench.name, statistics_are, f"{short_ms:.1f} ms", f"{long_ms:.1f} ms", ratio, verdict)


async def _time_read(bench: Bench, chat_id: str, limit: int | None) -> float:
    started = time.perf_counter()
    found = await bench.store.view(chat_id, limit=limit or _LONG)
    elapsed_ms = (time.perf_counter() - started) * 1000
    assert len(found.messages) == (limit or _LONG)
    return elapsed_ms


async def _time_send(bench: Bench, chat_id: str) -> float:
    """One send into a waiting chat. Then its turn is taken back, so that the next one finds the chat waiting."""
    started = time.perf_counter()
    sent = await bench.store.execute(chat_id, Send(), UserInput(author_id=OWNER_ID, blocks=[Text("And now?")]))
    elapsed_ms = (time.perf_counter() - started) * 1000
    assert sent.messages, "the message went into the queue"
    await bench.store.execute(chat_id, Interrupt())
    return elapsed_ms


def _judge(*, reached: bool) -> str:
    return "reached" if reached else "MISSED"
