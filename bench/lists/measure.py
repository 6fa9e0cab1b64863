"""Lists and searches through the store, each BENCH_RUNS times (100), and the plan of each search.

What is asked is whether anything a user can type takes long: the most frequent word and the rarest, words that occur
together and words that do not, beginnings of words, words in a row as they stand in a message, a word that was frequent
long ago; for the user who owns everything and for one of a hundred with few chats. The aim is a p99 of 200 ms.

PostgreSQL has the statistics that it gathers by itself sooner or later (ANALYZE). The load of the machine is printed
with the numbers, because it is in them; the least time has least of it. BENCH_CHATS=10000 loads fewer chats; by default
loading takes most of the time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from tests.support.engine import close_databases, get_database, open_engine

from bench.databases import start_databases
from bench.findings import quantile
from bench.lists.corpus import ALL, CHATS, EARLY, MESSAGES, OWNER, VOCABULARY, make_messages
from bench.lists.load import load
from bench.options import write_json
from indelible.content import decode_blocks
from indelible.content.blocks import text_of
from indelible.store.database.transaction import Transaction
from indelible.store.queries.listing import ChatFilter, ListCursor
from indelible.store.search import WINDOW, find_matches
from indelible.store.search_index import parse_query
from indelible.store.store import Store

RUNS: Final = int(os.environ.get("BENCH_RUNS", "100"))
AIM_MS: Final = 200.0
_SMALL: Final = "user_007"
_VALUE: Final = re.compile(r"'.*?'::\w+")
_PAGE: Final = 50


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    database: str
    found: int
    least_ms: float
    p50_ms: float
    p99_ms: float
    plan: list[str] = []


async def measure() -> None:
    console = Console(width=140)
    measured: list[Measured] = []
    load_before = os.getloadavg()[0]
    async with start_databases() as addresses:
        for name, address in addresses.items():
            started = time.perf_counter()
            await _load(console, name, address)
            loaded_s = time.perf_counter() - started
            console.print(f"{name}: {ALL:,} chats, {ALL * MESSAGES:,} messages, loaded in {loaded_s:.0f} s.")
            measured += await measure_database(console, name, address)
    console.print(_tabulate(measured))
    _print_plans(console, measured)
    console.print(f"Load of the machine (1 min): {load_before:.1f} before, {os.getloadavg()[0]:.1f} after.")
    console.print(f"Written: {write_json('lists', measured)}.")


async def _load(console: Console, name: str, address: str) -> None:
    with _make_progress(console) as progress:
        task = progress.add_task(f"{name}: loading", total=ALL * MESSAGES)
        await load(address, lambda count: progress.advance(task, count))


async def measure_database(console: Console, name: str, address: str) -> list[Measured]:
    engine = await open_engine(address)
    try:
        store = Store(get_database(engine))
        calls = {**await _make_lists(store), **_make_searches(store)}
        measured = []
        with _make_progress(console) as progress:
            task = progress.add_task(f"{name}: measuring", total=len(calls))
            for what, (call, explain) in calls.items():
                measured.append(await _measure(what, name, call, explain))
                progress.advance(task)
        return measured
    finally:
        await close_databases()
        await engine.dispose()


def _make_progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


class Explaining:
    """A transaction that notes the plan of every statement before it runs it."""

    def __init__(self, transaction: Transaction) -> None:
        self.plans: list[str] = []
        self.dialect = transaction.dialect
        self._transaction = transaction

    async def all(self, sql: str, *values: Any) -> Any:
        await self._note(sql, values)
        return await self._transaction.all(sql, *values)

    async def one(self, sql: str, *values: Any) -> Any:
        await self._note(sql, values)
        return await self._transaction.one(sql, *values)

    async def run(self, sql: str, *values: Any) -> Any:
        return await self._transaction.run(sql, *values)

    async def _note(self, sql: str, values: Sequence[Any]) -> None:
        explain = "EXPLAIN QUERY PLAN" if self.dialect == "sqlite" else "EXPLAIN (COSTS OFF)"
        rows = await self._transaction.all(f"{explain} {sql}", *values)
        lines = [row["detail"] if self.dialect == "sqlite" else row[0] for row in rows]
        # Numbers and words differ from search to search, and say nothing about the way.
        self.plans += [_VALUE.sub("…", line) for line in lines]


Call = Callable[[], Awaitable[int]]
Explain = Callable[[], Awaitable[list[str]]]


async def _make_lists(store: Store) -> dict[str, tuple[Call, Explain | None]]:
    page = await store.list_chats(OWNER, limit=_PAGE)
    after = ListCursor(page[-1].pinned, page[-1].updated_at, page[-1].id)

    def listing(**given: Any) -> tuple[Call, None]:
        async def call() -> int:
            return len(await store.list_chats(OWNER, limit=_PAGE, **given))

        return call, None

    return {
        f"list of {CHATS:,}: first page": listing(),
        "… second page": listing(after=after),
        "… unread": listing(wanted=ChatFilter(unread=True)),
        "… with a label that no chat has": listing(wanted=ChatFilter(label="x")),
    }


def _make_searches(store: Store) -> dict[str, tuple[Call, Explain]]:
    row = next(make_messages()).row
    in_a_row = " ".join(text_of(decode_blocks(row[3])).split()[4:8])
    longer = [word for word in VOCABULARY if len(word) > 4]
    queries = {
        "the most frequent word": VOCABULARY[0],
        "a frequent word of six letters": next(word for word in VOCABULARY if len(word) == 6),
        "a medium word": longer[1_000],
        "a rare word": longer[-1],
        "a word that nobody wrote": "nowhere",
        "two frequent words": f"{VOCABULARY[1]} {VOCABULARY[2]}",
        "a frequent and a rare word": f"{VOCABULARY[0]} {longer[-2]}",
        "two rare words that do not meet": f"{longer[-3]} {longer[-4]}",
        "four words in a row of an old message": in_a_row,
        "a beginning, 1 letter": "t",
        "a beginning, 2 letters": "ta",
        "a beginning, 4 letters": longer[200][:4],
        "a word that was frequent long ago": EARLY,
        "… and a frequent one": f"{VOCABULARY[0]} {EARLY}",
    }
    mine = {f"search: {what}": _searching(store, OWNER, text) for what, text in queries.items()}
    few = {
        f"few chats, search: {what}": _searching(store, _SMALL, queries[what])
        for what in (
            "the most frequent word",
            "a medium word",
            "a beginning, 2 letters",
            "a word that was frequent long ago",
        )
    }
    return {**mine, **few}


def _searching(store: Store, owner_id: str, text: str) -> tuple[Call, Explain]:
    query = parse_query(text)
    assert query is not None

    async def call() -> int:
        return len((await store.search(owner_id, text, limit=_PAGE)).items)

    async def explain() -> list[str]:
        async def ask(transaction: Transaction) -> list[str]:
            explaining = Explaining(transaction)
            await find_matches(cast(Transaction, explaining), owner_id, query, top=2**63 - 1, limit=WINDOW)
            return explaining.plans

        return await store.database.read(ask)

    return call, explain


async def _measure(what: str, database: str, call: Call, explain: Explain | None) -> Measured:
    found = await call()
    times_ms = []
    for _ in range(RUNS):
        started = time.perf_counter()
        await call()
        times_ms.append((time.perf_counter() - started) * 1e3)
    return Measured(
        what=what,
        database=database,
        found=found,
        least_ms=min(times_ms),
        p50_ms=quantile(times_ms, 0.5),
        p99_ms=quantile(times_ms, 0.99),
        plan=[] if explain is None else await explain(),
    )


def _tabulate(measured: list[Measured]) -> Table:
    databases = list(dict.fromkeys(each.database for each in measured))
    table = Table("", title=f"Lists and searches: least / p50 / p99 of {RUNS}, and how many are on the page of {_PAGE}")
    for database in databases:
        table.add_column(database, justify="right")
    for what in dict.fromkeys(each.what for each in measured):
        cells = [each for each in measured if each.what == what]
        table.add_row(what, *(_show(each) for each in cells))
    return table


def _show(each: Measured) -> str:
    missed = " MISSED" if each.p99_ms > AIM_MS else ""
    return f"{each.least_ms:.1f} / {each.p50_ms:.1f} / {each.p99_ms:.1f} ms ({each.found}){missed}"


def _print_plans(console: Console, measured: list[Measured]) -> None:
    """Each plan once, with the searches that have it."""
    plans: dict[tuple[str, ...], list[str]] = {}
    for each in measured:
        if each.plan:
            plans.setdefault((each.database, *each.plan), []).append(each.what.removeprefix("search: "))
    for (database, *lines), whats in plans.items():
        console.print(f"\n{database}: {', '.join(whats)}", style="bold")
        for line in lines:
            console.print(f"    {line}", highlight=False, markup=False)
