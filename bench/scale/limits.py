"""What one SQLite file, one PostgreSQL and one disk carry, without Indelible: durable commits, rows, notifications.

Rows are as wide as those of the journal, and every commit is on disk when it returns. The CPU is that of the database's
processes; from it come the costs that model.py multiplies. The listeners of a notification are connections of this
process, which costs CPU of its own, so the number of notifications per second is a lower bound.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench.findings import Finding
from bench.options import IS_FULL
from bench.over_http.contenders import count_cpu_s, find_postmaster
from indelible.ids import new_id

_MEASURED_S: Final = 3.0 if IS_FULL else 1.5
_PARTS: Final = b"x" * 80
_FLUSH_ROWS: Final = 32
_LISTENERS: Final = (1, 80)  # a PostgreSQL has 100 connections as it comes
_TABLE: Final = (
    "(chat_id TEXT, attempt_id TEXT, n BIGINT, parts {blob}, at {time}, PRIMARY KEY (chat_id, attempt_id, n))"
)
_INSERT: Final = """
INSERT INTO {table} SELECT chat_id, attempt_id, n, $4::bytea, now()
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS given (chat_id, attempt_id, n)
"""


def measure_disk(place: Path) -> list[Finding]:
    """Sequential writes, each on disk before the next."""
    found: list[Finding] = []
    for size_bytes, what in ((8_192, "8 kB"), (1_048_576, "1 MB")):
        file = os.open(place / "disk", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            piece = os.urandom(size_bytes)

            def write(file: int = file, piece: bytes = piece) -> None:
                os.write(file, piece)
                os.fdatasync(file)

            rate = _count_calls(write)
        finally:
            os.close(file)
            (place / "disk").unlink()
        found.append(Finding(what=f"disk: durable writes of {what} per second", value=rate, unit="/s"))
    found.append(Finding(what="disk: durable bandwidth", value=found[-1].value * 1.048576, unit="MB/s"))
    return found


def measure_sqlite(place: Path) -> list[Finding]:
    found: list[Finding] = []
    with closing(sqlite3.connect(place / "limit.db", isolation_level=None)) as file:
        file.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
        file.execute(f"CREATE TABLE journal {_TABLE.format(blob='BLOB', time='TEXT')} WITHOUT ROWID")
        for count in (1, 10, 100):
            ids = [(new_id("chat"), new_id("attempt")) for _ in range(count)]
            n = 0

            def write(ids: Sequence[tuple[str, str]] = ids) -> None:
                nonlocal n
                n += 1
                file.execute("BEGIN IMMEDIATE")
                file.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, '')", [(*id_, n, _PARTS) for id_ in ids])
                file.execute("COMMIT")

            cpu_s = time.process_time()
            rate = _count_calls(write)
            cpu_us = (time.process_time() - cpu_s) / n * 1e6
            what = f"SQLite: commits of {count} row{'s' if count > 1 else ''}"
            found.append(Finding(what=f"{what} per second", value=rate, unit="/s"))
            found.append(Finding(what=f"{what}, CPU each", value=cpu_us, unit="µs"))
    return found


async def measure_postgres(address: str) -> list[Finding]:
    found: list[Finding] = []
    connections = [await asyncpg.connect(address) for _ in range(8)]
    postmaster = find_postmaster(address)
    columns = _TABLE.format(blob="BYTEA", time="TIMESTAMPTZ")
    try:
        await connections[0].execute(f"CREATE TABLE limit_plain {columns}")
        await connections[0].execute(f"CREATE TABLE limit_parted {columns} PARTITION BY HASH (chat_id)")
        for number in range(8):
            await connections[0].execute(
                f"CREATE TABLE limit_parted_{number} PARTITION OF limit_parted"
                f" FOR VALUES WITH (MODULUS 8, REMAINDER {number})"
            )
        for table, used, count in (
            *(("limit_plain", used, 1) for used in (1, 4, 8)),
            ("limit_plain", 8, _FLUSH_ROWS),
            ("limit_parted", 8, _FLUSH_ROWS),
        ):
            before = await _wal_bytes(connections[0])
            rate, cpu_us = await _share(postmaster, [_make_writer(each, table, count) for each in connections[:used]])
            written = await _wal_bytes(connections[0]) - before
            rows = "1 row" if count == 1 else f"{count} rows"
            how = "a partitioned table" if table == "limit_parted" else "one table"
            what = f"PostgreSQL: commits of {rows} to {how}, {used} connection{'s' if used > 1 else ''}"
            found.append(Finding(what=f"{what}, per second", value=rate, unit="/s"))
            found.append(Finding(what=f"{what}, CPU each", value=cpu_us, unit="µs"))
            wal_bytes = written / (rate * _MEASURED_S) / count
            found.append(Finding(what=f"{what}, WAL per row", value=wal_bytes, unit="bytes"))
        rate, cpu_us = await _share(postmaster, [_make_reader(each) for each in connections])
        found.append(Finding(what="PostgreSQL: reads by key, 8 connections, per second", value=rate, unit="/s"))
        found.append(Finding(what="PostgreSQL: reads by key, 8 connections, CPU each", value=cpu_us, unit="µs"))
        await connections[0].execute("DROP TABLE limit_plain, limit_parted")
    finally:
        for connection in connections:
            await connection.close()
    for listeners in _LISTENERS:
        found += await _measure_notifications(address, listeners)
    return found


async def _measure_notifications(address: str, listeners: int) -> list[Finding]:
    opened = [await asyncpg.connect(address) for _ in range(listeners + 1)]
    sender, postmaster = opened[0], find_postmaster(address)
    payload = " ".join("x" * 31 for _ in range(10))
    received = 0

    def note(*_: object) -> None:
        nonlocal received
        received += 1

    async def send() -> None:
        await sender.execute("SELECT pg_notify('limit', $1)", payload)

    try:
        for connection in opened[1:]:
            await connection.add_listener("limit", note)
        rate, cpu_us = await _share(postmaster, [send])
    finally:
        for connection in opened:
            connection.terminate()
    what = f"PostgreSQL: notifications, {listeners} listener{'s' if listeners > 1 else ''}"
    return [
        Finding(what=f"{what}, per second", value=rate, unit="/s"),
        Finding(what=f"{what}, received per second", value=received / _MEASURED_S, unit="/s"),
        Finding(what=f"{what}, CPU each", value=cpu_us, unit="µs"),
    ]


def _make_writer(connection: Any, table: str, count: int) -> Callable[[], Awaitable[None]]:
    ids = [(new_id("chat"), new_id("attempt")) for _ in range(count)]
    sql = _INSERT.format(table=table)
    n = 0

    async def write() -> None:
        nonlocal n
        n += 1
        await connection.execute(sql, [chat_id for chat_id, _ in ids], [id_ for _, id_ in ids], [n] * count, _PARTS)

    return write


def _make_reader(connection: Any) -> Callable[[], Awaitable[None]]:
    async def read() -> None:
        await connection.fetch("SELECT parts FROM limit_plain WHERE chat_id = $1 AND n > $2", "nobody", 1)

    return read


async def _share(postmaster: int, calls: Sequence[Callable[[], Awaitable[None]]]) -> tuple[float, float]:
    """Calls per second of all, and microseconds of the database's CPU for each."""
    count = 0

    async def repeat(call: Callable[[], Awaitable[None]]) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await call()
            count += 1

    for call in calls:
        await call()
    cpu_s, until = count_cpu_s(postmaster), time.perf_counter() + _MEASURED_S
    await asyncio.gather(*map(repeat, calls))
    return count / _MEASURED_S, (count_cpu_s(postmaster) - cpu_s) / count * 1e6


def _count_calls(call: Callable[[], None]) -> float:
    call()
    count, started = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - started) < _MEASURED_S:
        call()
        count += 1
    return count / elapsed_s


async def _wal_bytes(connection: Any) -> int:
    found: int = await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
    return found
