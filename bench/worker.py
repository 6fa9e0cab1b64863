"""What a running chat costs, how soon a stop is durable, and how soon somebody goes on after a worker is gone.

The CPU per token is that of this whole process (not of the PostgreSQL server) while every chat speaks at 50 tokens per
second: from a scripted model through the loop, the journal and its commit to a reader of the same process. Beside it
stands the limit, measured in the same run: the loop alone, with the same model at the same pace and nobody behind it.
Only a stretch in the middle is measured, when all chats are speaking.

A stop is timed at 100 running chats, from the user's call to its answer: what was said until then is committed as a
partial reply by that time. Whoever was stopped begins to speak again, so it is 100 all the time.

A takeover is timed between processes with the default leases, from the signal to the first row that another worker
has committed. On SQLite the same program is started again, and that start is the most of it. (Only with BENCH_FULL=1:
`python -m bench latency` has takeovers as readers see them.)
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final

from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select
from tests.support.engine import begin_read, open_engine
from tests.support.tables import attempts, journal

import indelible
from bench.databases import start_databases
from bench.options import IS_FULL
from indelible.app.chat import Chat
from indelible.concurrency.scope import CancelScope
from indelible.content import Part, TextDelta
from indelible.loop import TurnHost, run
from indelible.models import Call
from indelible.models.protocol import ModelTraits
from indelible.settings import load_settings

_CHATS: Final = (1, 20, 100)
_TOKEN_INTERVAL_S: Final = 0.02
_WORD: Final = "word "
_MEASURED_S: Final = 2.5
_LEASES_LOST: Final = 10


class Speaker:
    """Speaks at 50 tokens per second, until it is stopped."""

    provider: Final = "bench"
    name: Final = "bench"
    context_limit: Final = None
    traits: Final = ModelTraits(makes_titles=False)

    async def stream(self, _call: Call) -> AsyncIterator[Part]:
        due = time.perf_counter()
        while True:
            due += _TOKEN_INTERVAL_S
            await asyncio.sleep(max(0, due - time.perf_counter()))
            yield TextDelta("1", _WORD)


class TokenCounter:
    """What has come to the readers of so many chats; `all_speak` is set when there is something of each."""

    def __init__(self, chats: int) -> None:
        self.tokens = 0
        self.all_speak = asyncio.Event()
        self._silent = set(range(chats))

    def add(self, chat: int, part: Part) -> None:
        if part.text:
            self.tokens += len(part.text) // len(_WORD)
            self._silent.discard(chat)
            if not self._silent:
                self.all_speak.set()


async def measure() -> None:
    console = Console()
    costs = Table(
        "chats", "loop alone", title="CPU per token, from a scripted model to a reader, 50 tokens/s in every chat"
    )
    stops = Table("database", "p50", "p99", title=f"From a stop to its durable partial, at {_CHATS[-1]} chats")
    takeovers = Table("database", "what happened", "first", "last", title="From a worker's end to the next word")
    with console.status("starting PostgreSQL") as status:
        async with start_databases() as addresses:
            rows: dict[int, list[float]] = {}
            for count in _CHATS:
                status.update(f"the loop alone, {count} chats")
                rows[count] = [await _measure_loop(count)]
            for name, address in addresses.items():
                costs.add_column(name, justify="right")
                for count in _CHATS:
                    status.update(f"{name}: {count} chats")
                    async with _speaking(address, count) as (chats, counter):
                        rows[count].append(await _measure_stretch(counter))
                        if count == _CHATS[-1]:
                            status.update(f"{name}: stopping")
                            _add_stops(stops, name, await _measure_stops(chats))
            for count, (alone_us, *with_store_us) in rows.items():
                ratios = [f"{cost_us:.0f} µs  {cost_us / alone_us:.1f} ×" for cost_us in with_store_us]
                costs.add_row(f"{count}", f"{alone_us:.0f} µs", *ratios)
            for name, address in addresses.items() if IS_FULL else ():
                for number in (signal.SIGKILL, signal.SIGTERM):
                    status.update(f"{name}: {number.name}")
                    waits_s = await _measure_takeover(address, number, alone=name == "SQLite")
                    takeovers.add_row(name, number.name, f"{min(waits_s):.2f} s", f"{max(waits_s):.2f} s")
    for table in (costs, stops, takeovers) if IS_FULL else (costs, stops):
        console.print(table)


# --- CPU per token -------------------------------------------------------------------------


async def _measure_loop(count: int) -> float:
    """Microseconds per token of the loop alone."""
    counter = TokenCounter(count)

    async def speak(at: int, scope: CancelScope) -> None:
        class Host(TurnHost):
            def publish(self, part: Part) -> None:
                counter.add(at, part)

        await run(Speaker(), [], Host(), scope=scope)

    with CancelScope() as scope:
        async with asyncio.TaskGroup() as group:
            for at in range(count):
                group.create_task(speak(at, scope))
            await counter.all_speak.wait()
            cost_us = await _measure_stretch(counter)
            scope.interrupt()
    return cost_us


async def _measure_stretch(counter: TokenCounter) -> float:
    """Microseconds of CPU per token, while all chats speak."""
    tokens, started = counter.tokens, time.process_time()
    await asyncio.sleep(_MEASURED_S)
    return (time.process_time() - started) / (counter.tokens - tokens) * 1e6


@asynccontextmanager
async def _speaking(address: str, count: int) -> AsyncIterator[tuple[list[Chat], TokenCounter]]:
    """So many chats that speak, each with a reader. At the end they are stopped."""
    counter = TokenCounter(count)

    async def read(at: int, chat: Chat) -> None:
        async for event in chat.events():
            for part in event.parts:
                counter.add(at, part)

    async with indelible.open(address, model=Speaker()) as app:
        chats = [await app.create_chat("Speak.") for _ in range(count)]
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(read(at, chat)) for at, chat in enumerate(chats)]
            await counter.all_speak.wait()
            yield chats, counter
            for task in reading:
                task.cancel()
        for chat in chats:
            await chat.interrupt(wait=False)


# --- stops ---------------------------------------------------------------------------------


async def _measure_stops(chats: Sequence[Chat]) -> list[float]:
    """Milliseconds from a stop to its answer, in order of size."""
    elapsed_ms: list[float] = []
    for chat in chats:
        started = time.perf_counter()
        stopped = await chat.interrupt()
        elapsed_ms.append((time.perf_counter() - started) * 1000)
        assert stopped.stopped, "there was nothing to stop"
        await chat.post("Speak again.")
    return sorted(elapsed_ms)


def _add_stops(table: Table, name: str, elapsed_ms: list[float]) -> None:
    p50_ms, p99_ms = (elapsed_ms[math.ceil(len(elapsed_ms) * share) - 1] for share in (0.5, 0.99))
    table.add_row(name, f"{p50_ms:.0f} ms", f"{p99_ms:.0f} ms")


# --- takeovers -----------------------------------------------------------------------------


async def _measure_takeover(address: str, number: signal.Signals, *, alone: bool) -> list[float]:
    """Seconds from the signal to the first row of the next attempt, for each chat."""
    async with indelible.open(address, worker=False) as app:
        processes = [await _start_worker(address)]
        try:
            chats = [await app.create_chat("Speak.") for _ in range(_LEASES_LOST)]
            await _wait_for_attempts(address, chats, 1)
            if not alone:
                processes.append(await _start_worker(address))
            signalled_at = datetime.now(UTC)
            os.kill(processes[0].pid or 0, number)
            await asyncio.to_thread(processes[0].join)
            if alone:
                processes.append(await _start_worker(address))
            started_at = await _wait_for_attempts(address, chats, 2)
            for chat in chats:
                await chat.interrupt(wait=False)
            return [(at - signalled_at).total_seconds() for at in started_at]
        finally:
            for process in processes:
                process.kill()
                process.join()


async def _wait_for_attempts(address: str, chats: list[Chat], count: int) -> list[datetime]:
    """Until each chat has had so many attempts that said something. Gives when the last of them first did."""
    own = attempts.c.chat_id.in_([chat.id for chat in chats])
    of_attempt = (journal.c.chat_id == attempts.c.chat_id) & (journal.c.attempt_id == attempts.c.id)
    joined = select(attempts.c.chat_id, journal.c.at).join_from(attempts, journal, of_attempt)
    first_rows = joined.where(own, journal.c.n == 1).subquery()
    newest = select(func.max(first_rows.c.at).label("at")).group_by(first_rows.c.chat_id).having(func.count() >= count)
    engine = await open_engine(address, pool_size=1)
    try:
        while True:
            async with begin_read(engine) as connection:
                found = [row.at for row in await connection.execute(newest)]
            if len(found) == len(chats):
                return found
            await asyncio.sleep(_TOKEN_INTERVAL_S)
    finally:
        await engine.dispose()


async def _start_worker(address: str) -> SpawnProcess:
    """A process that works on this database; returns when it does."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(address, sender))
    process.start()
    await asyncio.to_thread(receiver.recv)
    return process


def _work(address: str, sender: Connection) -> None:
    asyncio.run(_work_until_stopped(address, lambda: sender.send("ready")))


async def _work_until_stopped(address: str, report_ready: Callable[[], None]) -> None:
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    async with indelible.open(address, model=Speaker(), settings=load_settings()):
        report_ready()
        await leave.wait()
