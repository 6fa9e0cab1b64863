"""Where the time goes: the CPU of `indelible serve` by layer, per token and per turn (`python -m bench layers`).

The server is started with the sampler of sampled.py in it, on each database. docs/performance.md shows the picture.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench.chart import draw_stacks
from bench.databases import start_databases
from bench.options import IS_FULL, OUT, write_json
from bench.over_http.contenders import (
    INDELIBLE,
    Contender,
    count_cpu_s,
    find_postmaster,
    start_indelible,
    start_provider,
)
from bench.over_http.measure import run_load
from bench.over_http.sampled import LAYERS

DATABASE: Final = "PostgreSQL's processes"
_PROGRAM: Final = (INDELIBLE[0], "-m", "bench.over_http.sampled")
_TIMEOUT_S: Final = 10.0


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    unit: str
    tokens: int
    rate: float
    chats: int
    turns_each: int


SETTINGS: Final = (
    Setting(
        name="A token: 100 chats, replies of 250 tokens at 50/s",
        unit="µs",
        tokens=250,
        rate=50,
        chats=100,
        turns_each=3 if IS_FULL else 1,
    ),
    Setting(
        name="A turn: 20 chats, replies of one token",
        unit="µs",
        tokens=1,
        rate=0,
        chats=20,
        turns_each=150 if IS_FULL else 50,
    ),
)


async def measure() -> None:
    console = Console(width=140)
    results: dict[str, dict[str, dict[str, float]]] = {}
    with console.status("starting PostgreSQL") as status, tempfile.TemporaryDirectory(prefix="bench-") as directory:
        async with start_databases() as addresses:
            for setting in SETTINGS:
                for name, address in addresses.items():
                    status.update(f"{name}: {setting.name}")
                    found = await asyncio.to_thread(_measure_once, setting, name, address, Path(directory))
                    results.setdefault(setting.name, {})[name] = found
    for setting in SETTINGS:
        console.print(_tabulate(setting, results[setting.name]))
    write_json("layers", results)
    note = "CPU of indelible serve by layer, in µs; the database's own processes at the end."
    await draw_stacks("Where the time goes", note, results, OUT / "layers.png")
    console.print(f"Written: {OUT / 'layers.json'} and {OUT / 'layers.png'}.")


def _measure_once(setting: Setting, name: str, address: str, place: Path) -> dict[str, float]:
    """Microseconds by layer: of a token, or of a turn if it has only one."""
    os.environ["BENCH_LAYERS"] = str(place / "layers.json")
    postmaster = find_postmaster(address) if name == "PostgreSQL" else None
    with (
        start_provider(setting.tokens, setting.rate) as port,
        start_indelible(port, address, place, program=_PROGRAM) as server,
    ):
        run_load(server, chats=10, turns_each=2)
        before, database_s = _read(server), count_cpu_s(postmaster) if postmaster else 0.0
        load = run_load(server, chats=setting.chats, turns_each=setting.turns_each)
        after = _read(server)
    found = {layer: after.get(layer, 0.0) - before.get(layer, 0.0) for layer in LAYERS}
    if postmaster:
        found[DATABASE] = count_cpu_s(postmaster) - database_s
    return {layer: spent_s / load.words * 1e6 for layer, spent_s in found.items() if spent_s > 0}


def _read(server: Contender) -> dict[str, float]:
    path = Path(os.environ["BENCH_LAYERS"])
    path.unlink(missing_ok=True)
    os.kill(server.pid, signal.SIGUSR1)
    until = time.monotonic() + _TIMEOUT_S
    while not path.exists():
        if time.monotonic() > until:
            raise RuntimeError("The sampler does not answer.")
        time.sleep(0.01)
    return msgspec.json.decode(path.read_bytes(), type=dict[str, float])


def _tabulate(setting: Setting, found: dict[str, dict[str, float]]) -> Table:
    table = Table("layer", title=f"{setting.name}: CPU by layer")
    for name in found:
        table.add_column(f"{name}, {setting.unit}", justify="right")
    for layer in (*LAYERS, DATABASE):
        if any(layer in each for each in found.values()):
            table.add_row(layer, *(f"{each.get(layer, 0):,.0f}" for each in found.values()))
    totals = [sum(value for layer, value in each.items() if layer != DATABASE) for each in found.values()]
    table.add_row("all of the server", *(f"{total:,.0f}" for total in totals), style="bold")
    return table
