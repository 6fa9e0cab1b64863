"""Rounds, one contender after the other, so that a noisy moment falls on all alike; medians with their range.

`python -m bench http` takes some minutes. BENCH_FULL=1 adds the lengths and numbers that take long; BENCH_ROUNDS is the
number of rounds. The JSON and the picture are written into BENCH_OUT (default: build/bench).
"""

from __future__ import annotations

import asyncio
import os
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

from bench.databases import start_databases
from bench.over_http.chart import draw
from bench.over_http.contenders import (
    HERE,
    Contender,
    count_cpu_s,
    count_memory_bytes,
    start_indelible,
    start_limit,
    start_plain,
    start_provider,
)
from bench.over_http.load import Load

ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "3"))
IS_FULL: Final = bool(os.environ.get("BENCH_FULL"))
OUT: Final = Path(os.environ.get("BENCH_OUT", "build/bench"))


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
    gap_p99_s: float
    memory_bytes: int
    out_of_order: int


TURN: Final = [
    Setting(name="a turn of one token, 20 chats", tokens=1, rate=0, chats=20, turns_each=20),
    Setting(name="a turn of one token, 100 chats", tokens=1, rate=0, chats=100, turns_each=5),
]
STREAM: Final = [
    Setting(name=f"{chats} chats, {tokens} tokens at 50/s", tokens=tokens, rate=50, chats=chats)
    for tokens in ((50, 250, 1000) if IS_FULL else (250,))
    for chats in ((1, 20, 100, 200) if IS_FULL else (20, 100, 200))
]
BURST: Final = [Setting(name="burst, 50 chats of 250 tokens", tokens=250, rate=0, chats=50, turns_each=2)]
ARRIVE: Final = [Setting(name="100 arrivals/s, 50 tokens at 50/s", tokens=50, rate=50, chats=400, arrivals=100)]
SETTINGS: Final = [*TURN, *STREAM, *BURST, *ARRIVE]


async def measure() -> None:
    console = Console(width=200)
    results: dict[str, dict[str, list[Figure]]] = {}
    with console.status("starting PostgreSQL") as status, tempfile.TemporaryDirectory(prefix="bench-") as place:
        async with start_databases() as addresses:
            for setting in SETTINGS:
                figures = await asyncio.to_thread(_measure, setting, addresses, Path(place), status.update)
                results[setting.name] = figures
                console.print(_tabulate(setting, figures))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "http.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    await draw(_chart(results), OUT / "http.png")
    console.print(f"Written: {OUT / 'http.json'} and {OUT / 'http.png'}.")


def _measure(
    setting: Setting, addresses: dict[str, str], place: Path, report: Callable[[str], None]
) -> dict[str, list[Figure]]:
    figures: dict[str, list[Figure]] = {}
    with ExitStack() as stack:
        port = stack.enter_context(start_provider(setting.tokens, setting.rate))
        contenders = {
            "limit": stack.enter_context(start_limit(port)),
            "plain": stack.enter_context(start_plain(port, place)),
        }
        for name, address in addresses.items():
            beside = () if name == "SQLite" else (_find_postmaster(address),)
            started = start_indelible(port, address, place, beside=beside)
            contenders[f"Indelible, {name}"] = stack.enter_context(started)
        for contender in contenders.values():
            _load(contender, chats=2, turns_each=2)
        for round_ in range(ROUNDS):
            for name, contender in contenders.items():
                report(f"{setting.name}: {name}, round {round_ + 1} of {ROUNDS}")
                figures.setdefault(name, []).append(_take(setting, contender))
    return figures


def _find_postmaster(address: str) -> int:
    return int((Path(address.partition("host=")[2]) / "postmaster.pid").read_text().split()[0])


def _take(setting: Setting, contender: Contender) -> Figure:
    before_s, database_before_s = count_cpu_s(contender.pid), count_cpu_s(*contender.beside)
    load = _load(contender, chats=setting.chats, turns_each=setting.turns_each, arrivals=setting.arrivals)
    expected = load.turns * setting.tokens
    if load.words != expected:
        raise RuntimeError(f"{contender.url} gave {load.words} of {expected} words.")
    return Figure(
        turns=load.turns,
        words=load.words,
        wall_s=load.wall_s,
        cpu_s=count_cpu_s(contender.pid) - before_s,
        database_cpu_s=count_cpu_s(*contender.beside) - database_before_s,
        first_p50_s=_quantile(load.first_s, 0.5),
        first_p99_s=_quantile(load.first_s, 0.99),
        gap_p99_s=_quantile(load.gaps_s, 0.99),
        memory_bytes=count_memory_bytes(contender.pid),
        out_of_order=load.out_of_order,
    )


def _load(contender: Contender, *, chats: int, turns_each: int, arrivals: float = 0) -> Load:
    kind = "indelible" if contender.is_indelible else "other"
    command = [sys.executable, str(HERE / "load.py"), contender.url, kind, str(chats), str(turns_each), str(arrivals)]
    return msgspec.json.decode(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout, type=Load)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def _tabulate(setting: Setting, figures: dict[str, list[Figure]]) -> Table:
    table = Table("", title=f"{setting.name} · median of {ROUNDS} (range)")
    for column in ("CPU ms/turn", "CPU µs/token", "÷ limit", "÷ plain", "database µs/token", "tokens/s"):
        table.add_column(column, justify="right")
    for column in ("first p50 ms", "first p99 ms", "gap p99 ms", "MB", "out of order"):
        table.add_column(column, justify="right")
    for name, rounds in figures.items():
        table.add_row(
            name,
            _span(rounds, lambda each: each.cpu_s / each.turns * 1e3, 1),
            _span(rounds, lambda each: each.cpu_s / each.words * 1e6, 0),
            _ratio(rounds, figures["limit"]),
            _ratio(rounds, figures["plain"]),
            _span(rounds, lambda each: each.database_cpu_s / each.words * 1e6, 0),
            _span(rounds, lambda each: each.words / each.wall_s, 0),
            _span(rounds, lambda each: each.first_p50_s * 1e3, 0),
            _span(rounds, lambda each: each.first_p99_s * 1e3, 0),
            _span(rounds, lambda each: each.gap_p99_s * 1e3, 0),
            _span(rounds, lambda each: each.memory_bytes / 1e6, 0),
            str(sum(each.out_of_order for each in rounds)),
        )
    return table


def _span(rounds: Sequence[Figure], read: Callable[[Figure], float], digits: int) -> str:
    values = [read(each) for each in rounds]
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def _ratio(rounds: Sequence[Figure], others: Sequence[Figure]) -> str:
    """Of the CPU in the same round: the noise of a moment falls on both."""
    values = [each.cpu_s / max(other.cpu_s, 0.01) for each, other in zip(rounds, others, strict=True)]
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def _chart(results: dict[str, dict[str, list[Figure]]]) -> dict[str, dict[str, float]]:
    """CPU per token of each contender, for the settings that stream."""
    return {
        setting.name: {
            name: statistics.median(each.cpu_s / each.words * 1e6 for each in rounds)
            for name, rounds in results[setting.name].items()
        }
        for setting in STREAM
    }
