"""Two commits, in pairs of rounds: `BENCH_AGAINST=…/.venv/bin/python python -m bench against`.

The other commit is a clone with an environment of its own, in which `python -m indelible` is that commit. Both serve
beside each other, each with its own databases; a pair is one round of each, one directly after the other, and who
begins changes from pair to pair. What is printed is the ratio within a pair; the same commit against itself shows how
much of it is noise. BENCH_ROUNDS is the number of pairs (otherwise nine), BENCH_ONLY chooses settings as for `http`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import asyncpg
from rich.console import Console
from rich.table import Table

from bench.databases import start_databases
from bench.options import ROUNDS, write_json
from bench.over_http.contenders import (
    INDELIBLE,
    Contender,
    change_reply,
    find_postmaster,
    start_indelible,
    start_provider,
)
from bench.over_http.measure import SETTINGS, Figure, Setting, measure_once, run_load

_OTHER: Final = os.environ.get("BENCH_AGAINST", "")
_PAIRS: Final = max(ROUNDS, 1) if os.environ.get("BENCH_ROUNDS") else 9
_RATIOS: Final[dict[str, Callable[[Figure], float]]] = {
    "CPU": lambda each: each.cpu_s,
    "CPU of the database": lambda each: each.database_cpu_s,
    "first token p50": lambda each: each.first_p50_s,
    "gap p50": lambda each: each.gap_p50_s,
    "gap p99": lambda each: each.gap_p99_s,
    "time": lambda each: each.wall_s,
}


async def measure() -> None:
    console = Console(width=140)
    if not _OTHER:
        console.print("against: set BENCH_AGAINST to the python of another commit's environment.")
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as place, ExitStack() as stack:
        async with start_databases() as addresses:
            port = stack.enter_context(start_provider(1, 0))
            for name, address in addresses.items():
                other_address = await _name_other(address)
                programs = {"now": (INDELIBLE, address), "before": ((_OTHER, "-m", "indelible"), other_address)}
                await asyncio.to_thread(_measure_database, console, name, programs, port, Path(place))


async def _name_other(address: str) -> str:
    """A second database, empty."""
    if not address.startswith("postgresql"):
        return f"{address}.before"
    connection = await asyncpg.connect(address)
    await connection.execute("CREATE DATABASE before")
    await connection.close()
    return address.replace("/postgres?", "/before?")


def _measure_database(
    console: Console, name: str, programs: Mapping[str, tuple[Sequence[str], str]], port: int, place: Path
) -> None:
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for which, (program, address) in programs.items():
            beside = (find_postmaster(address),) if address.startswith("postgresql") else ()
            started = start_indelible(port, address, place, beside=beside, program=tuple(program))
            contenders[which] = stack.enter_context(started)
            run_load(contenders[which], chats=20, turns_each=2)
        results = {}
        for setting in SETTINGS:
            change_reply(port, setting.tokens, setting.rate)
            pairs = [_measure_pair(setting, contenders, is_turned=bool(number % 2)) for number in range(_PAIRS)]
            results[setting.name] = pairs
            console.print(_tabulate(f"{name} · {setting.name} · now ÷ before, {_PAIRS} pairs", pairs))
        write_json(f"against-{name.lower()}", results)


def _measure_pair(setting: Setting, contenders: dict[str, Contender], *, is_turned: bool) -> dict[str, Figure]:
    order = reversed(contenders) if is_turned else contenders
    return {which: measure_once(setting, contenders[which]) for which in order}


def _tabulate(title: str, pairs: list[dict[str, Figure]]) -> Table:
    table = Table("", "median", "lowest", "highest", "now, median", "before, median", title=title)
    for row, read in _RATIOS.items():
        now, before = ([read(pair[which]) for pair in pairs] for which in ("now", "before"))
        if not all(before):
            continue
        ratios = [a / b for a, b in zip(now, before, strict=True)]
        spread = (statistics.median(ratios), min(ratios), max(ratios))
        absolute = (f"{statistics.median(each) * 1e3:,.1f} ms" for each in (now, before))
        table.add_row(row, *(f"{ratio:.2f}" for ratio in spread), *absolute)
    return table
