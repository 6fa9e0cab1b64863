"""Limits first, then processes: tables and JSON."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.databases import start_databases
from bench.findings import tabulate
from bench.options import write_json
from bench.scale.limits import measure_disk, measure_postgres, measure_sqlite
from bench.scale.processes import CHATS, TOPOLOGIES, Run, run_topology


async def measure() -> None:
    console = Console(width=160)
    with console.status("starting PostgreSQL") as status, tempfile.TemporaryDirectory(prefix="bench-") as directory:
        place = Path(directory)
        async with start_databases() as addresses:
            address = addresses["PostgreSQL"]
            status.update("limits")
            limits = [
                *await asyncio.to_thread(measure_disk, place),
                *await asyncio.to_thread(measure_sqlite, place),
                *await measure_postgres(address),
            ]
            console.print(tabulate("Limits of this machine", limits))
            runs: list[Run] = []
            for topology in TOPOLOGIES:
                status.update(topology.name)
                runs.append(await run_topology(topology, address, place))
    console.print(_tabulate(runs))
    console.print(f"Written: {write_json('scale', {'limits': limits, 'runs': runs})}.")


def _tabulate(runs: list[Run]) -> Table:
    table = Table("", title=f"Processes on one PostgreSQL, {CHATS} chats at 50 tokens/s")
    columns = ("tokens/s", "CPU of each process, µs/token", "all", "PostgreSQL's, µs/token", "Redis's")
    for column in (
        *columns,
        "commits/s",
        "rows/s",
        "WAL kB/s",
        "notifications/s",
        "connections",
        "first p50 ms",
        "gap p99 ms",
    ):
        table.add_column(column, justify="right")
    for run in runs:
        each_us = [cpu_s / run.words * 1e6 for cpu_s in run.cpu_s]
        table.add_row(
            run.topology.name,
            f"{run.words / run.wall_s:,.0f}",
            " + ".join(f"{cpu_us:.0f}" for cpu_us in each_us),
            f"{sum(each_us):.0f}",
            f"{run.database_cpu_s / run.words * 1e6:.0f}",
            f"{run.redis_cpu_s / run.words * 1e6:.0f}",
            f"{run.commits / run.wall_s:,.0f}",
            f"{run.rows / run.wall_s:,.0f}",
            f"{run.wal_bytes / run.wall_s / 1e3:,.0f}",
            f"{run.notifications / run.wall_s:.0f}",
            f"{run.connections}",
            f"{run.first_p50_s * 1e3:.0f}",
            f"{run.gap_p99_s * 1e3:.0f}",
        )
    return table
