"""Rounds, one contender after the other, so that a noisy moment falls on all alike; medians with their range.

`python -m bench http` has 20, 100 and 200 chats with replies of 250 tokens. BENCH_FULL=1 adds one chat and replies of
50 and 1,000 tokens, and makes five rounds: see bench/options.py. The clock of a process tree ticks every 10 ms, so
settings in which little is said have many turns. Memory is what the process has by then, after all settings before.

The time to the first token is also given above that of `limit` in the same round: what a provider, the network and
the load cost is in both.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench.chart import Bar, Panel, draw_bars
from bench.databases import start_databases
from bench.findings import quantile
from bench.options import IS_FULL, ONLY, OUT, ROUNDS, write_json
from bench.over_http.contenders import (
    ROOT,
    Contender,
    change_reply,
    count_cpu_s,
    count_memory_bytes,
    find_postmaster,
    start_indelible,
    start_limit,
    start_plain,
    start_provider,
    start_raw,
)
from bench.over_http.load import Load

_ENOUGH_TOKENS: Final = 500


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` is tokens per second and chat, 0: as fast as possible; `arrivals` is new chats per second, 0: at once."""

    name: str
    tokens: int
    rate: float
    chats: int
    turns_each: int = 1
    arrivals: float = 0


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one contender. `database_cpu_s` is what the database's own processes used, if it has any."""

    turns: int
    words: int
    wall_s: float
    cpu_s: float
    database_cpu_s: float
    first_p50_s: float
    first_p99_s: float
    gap_p50_s: float
    gap_p99_s: float
    memory_bytes: int
    out_of_order: int


TURN: Final = [
    *([Setting(name="1 chat, 1 token", tokens=1, rate=0, chats=1, turns_each=200)] if IS_FULL else []),
    Setting(name="20 chats, 1 token", tokens=1, rate=0, chats=20, turns_each=30),
    Setting(name="100 chats, 1 token", tokens=1, rate=0, chats=100, turns_each=6),
]
STREAM: Final = [
    Setting(
        name=f"{chats} chat{'s' if chats > 1 else ''}, {tokens:,} tokens at 50/s",
        tokens=tokens,
        rate=50,
        chats=chats,
        turns_each=_ENOUGH_TOKENS // (chats * tokens) + 1 if tokens < 250 or chats == 1 else 1,
    )
    for tokens in ((50, 250, 1000) if IS_FULL else (250,))
    for chats in ((1, 20, 100, 200) if IS_FULL else (20, 100, 200))
]
BURST: Final = [Setting(name="burst, 50 chats, 250 tokens", tokens=250, rate=0, chats=50, turns_each=4)]
ARRIVE: Final = [
    Setting(name="100 arrivals/s, 250 tokens at 50/s", tokens=250, rate=50, chats=100, arrivals=100),
    Setting(name="100 arrivals/s, 50 tokens at 50/s", tokens=50, rate=50, chats=400 if IS_FULL else 200, arrivals=100),
]
SETTINGS: Final = [setting for setting in (*TURN, *STREAM, *BURST, *ARRIVE) if ONLY.search(setting.name)]


async def measure() -> None:
    console = Console(width=140)
    results: dict[str, dict[str, list[Figure]]] = {}
    with console.status("starting PostgreSQL") as status, tempfile.TemporaryDirectory(prefix="bench-") as place:
        async with start_databases() as addresses:
            with ExitStack() as stack:
                port = stack.enter_context(start_provider(1, 0))
                contenders = await asyncio.to_thread(_start_contenders, stack, port, addresses, Path(place))
                for setting in SETTINGS:
                    change_reply(port, setting.tokens, setting.rate)
                    results[setting.name] = await asyncio.to_thread(_measure, setting, contenders, status.update)
                    console.print(_tabulate(setting, results[setting.name]))
    write_json("http", results)
    await draw_bars(
        "What a chat costs",
        "Over HTTP, all processes of the server. Lines show the range of the rounds. Shorter is better.",
        _make_panels(results),
        OUT / "http.png",
    )
    console.print(f"Written: {OUT / 'http.json'} and {OUT / 'http.png'}.")


def _start_contenders(stack: ExitStack, port: int, addresses: dict[str, str], place: Path) -> dict[str, Contender]:
    contenders = {
        "raw": stack.enter_context(start_raw(port)),
        "limit": stack.enter_context(start_limit(port)),
        "plain": stack.enter_context(start_plain(port, place)),
    }
    for name, address in addresses.items():
        beside = () if name == "SQLite" else (find_postmaster(address),)
        started = start_indelible(port, address, place, beside=beside)
        contenders[f"Indelible, {name}"] = stack.enter_context(started)
    for contender in contenders.values():
        run_load(contender, chats=20, turns_each=2)  # what the first requests load for good is no part of it
    return contenders


def _measure(
    setting: Setting, contenders: dict[str, Contender], report: Callable[[str], None]
) -> dict[str, list[Figure]]:
    figures: dict[str, list[Figure]] = {}
    for round_ in range(ROUNDS):
        for name, contender in contenders.items():
            report(f"{setting.name}: {name}, round {round_ + 1} of {ROUNDS}")
            figures.setdefault(name, []).append(measure_once(setting, contender))
    return figures


def measure_once(setting: Setting, contender: Contender) -> Figure:
    before_s, database_before_s = count_cpu_s(contender.pid), count_cpu_s(*contender.beside)
    load = run_load(contender, chats=setting.chats, turns_each=setting.turns_each, arrivals=setting.arrivals)
    expected = load.turns * setting.tokens
    if load.words != expected:
        raise RuntimeError(f"{contender.url} gave {load.words} of {expected} words.")
    return Figure(
        turns=load.turns,
        words=load.words,
        wall_s=load.wall_s,
        cpu_s=count_cpu_s(contender.pid) - before_s,
        database_cpu_s=count_cpu_s(*contender.beside) - database_before_s,
        first_p50_s=quantile(load.first_s, 0.5),
        first_p99_s=quantile(load.first_s, 0.99),
        gap_p50_s=quantile(load.gaps_s, 0.5),
        gap_p99_s=quantile(load.gaps_s, 0.99),
        memory_bytes=count_memory_bytes(contender.pid),
        out_of_order=load.out_of_order,
    )


def run_load(contender: Contender, *, chats: int, turns_each: int, arrivals: float = 0) -> Load:
    kind = "indelible" if contender.is_indelible else "other"
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        path = Path(place) / "load.json"
        options = [contender.url, kind, str(chats), str(turns_each), str(arrivals), str(path)]
        subprocess.run([sys.executable, "-m", "bench.over_http.load", *options], check=True, cwd=ROOT)
        return msgspec.json.decode(path.read_bytes(), type=Load)


_ROWS: Final[dict[str, tuple[Callable[[Figure], float], int]]] = {
    "CPU per turn, ms": (lambda each: each.cpu_s / each.turns * 1e3, 2),
    "CPU per token, µs": (lambda each: each.cpu_s / each.words * 1e6, 0),
    "+ the database's, µs": (lambda each: each.database_cpu_s / each.words * 1e6, 0),
    "tokens/s": (lambda each: each.words / each.wall_s, 0),
    "first token p50, ms": (lambda each: each.first_p50_s * 1e3, 0),
    "first token p99, ms": (lambda each: each.first_p99_s * 1e3, 0),
    "gap p50, ms": (lambda each: each.gap_p50_s * 1e3, 0),
    "gap p99, ms": (lambda each: each.gap_p99_s * 1e3, 0),
    "memory, MB": (lambda each: each.memory_bytes / 1e6, 0),
    "pieces out of order": (lambda each: each.out_of_order, 0),
}


def _tabulate(setting: Setting, figures: dict[str, list[Figure]]) -> Table:
    """One row for each thing that is measured. What is compared is compared within a round."""
    table = Table("", title=f"{setting.name} · {'one round' if ROUNDS == 1 else f'median of {ROUNDS} (range)'}")
    for name in figures:
        table.add_column(name, justify="right")
    for row, (read, digits) in _ROWS.items():
        table.add_row(row, *(_span([read(each) for each in rounds], digits) for rounds in figures.values()))
        if row.startswith("CPU per token"):
            for other in ("limit", "plain"):
                ratios = [_compare(rounds, figures[other], _divide_cpu) for rounds in figures.values()]
                table.add_row(f"CPU ÷ {other}", *(_span(values, 2) for values in ratios))
        if row.startswith("first token p99"):
            for name, subtract in (("p50", _subtract_p50), ("p99", _subtract_p99)):
                above = [_compare(rounds, figures["limit"], subtract) for rounds in figures.values()]
                table.add_row(f"first token {name} above limit, ms", *(_span(values, 0) for values in above))
    return table


def _compare(
    rounds: Sequence[Figure], others: Sequence[Figure], compare: Callable[[Figure, Figure], float]
) -> list[float]:
    """Within each round: the noise of a moment falls on both."""
    return [compare(each, other) for each, other in zip(rounds, others, strict=True)]


def _divide_cpu(each: Figure, other: Figure) -> float:
    return each.cpu_s / max(other.cpu_s, 0.01)


def _subtract_p50(each: Figure, other: Figure) -> float:
    return (each.first_p50_s - other.first_p50_s) * 1e3


def _subtract_p99(each: Figure, other: Figure) -> float:
    return (each.first_p99_s - other.first_p99_s) * 1e3


def _span(values: Sequence[float], digits: int) -> str:
    median, lowest, highest = (
        f"{value:,.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return median if lowest == highest else f"{median} ({lowest}–{highest})"


def _make_panels(results: dict[str, dict[str, list[Figure]]]) -> list[Panel]:
    """CPU per token where replies of 250 tokens are streamed, CPU of a turn of one token, and the first token."""

    def collect(settings: Sequence[Setting], read: Callable[[Figure], float]) -> dict[str, dict[str, Bar]]:
        return {
            setting.name.partition(",")[0]: {
                name: _make_bar([read(each) for each in rounds]) for name, rounds in results[setting.name].items()
            }
            for setting in settings
            if setting.name in results
        }

    streams = [each for each in STREAM if each.tokens == 250 and each.chats > 1]
    turns = [each for each in TURN if each.chats > 1]
    return [
        Panel(
            "CPU per token, µs",
            "replies of 250 tokens at 50/s",
            collect(streams, lambda each: each.cpu_s / each.words * 1e6),
        ),
        Panel("CPU per turn, ms", "replies of one token", collect(turns, lambda each: each.cpu_s / each.turns * 1e3)),
        Panel(
            "First token, ms",
            "p50, replies of 250 tokens at 50/s",
            collect(ARRIVE[:1], lambda each: each.first_p50_s * 1e3),
        ),
    ]


def _make_bar(values: Sequence[float]) -> Bar:
    return Bar(statistics.median(values), min(values), max(values))
