"""All of it, one after the other."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from bench.databases import start_databases
from bench.findings import Finding, tabulate
from bench.latency.idle import measure_idle
from bench.latency.processes import measure_commands, measure_restart, measure_start, measure_takeover
from bench.latency.replies import measure_replies
from bench.options import write_json
from bench.over_http.contenders import find_postmaster


async def measure() -> None:
    console = Console(width=140)
    commands = measure_commands()
    found: list[Finding] = []
    with console.status("starting PostgreSQL") as status, tempfile.TemporaryDirectory(prefix="bench-") as directory:
        place = Path(directory)
        async with start_databases() as addresses:
            for name, address in addresses.items():
                is_shared = name == "PostgreSQL"
                status.update(f"{name}: replies")
                found += await measure_replies(name, address, place)
                status.update(f"{name}: starting and killing")
                found += measure_start(name, address, place)
                found += await measure_restart(name, address, place)
                if is_shared:
                    found += await measure_takeover(name, address, place)
                status.update(f"{name}: idle")
                found += await measure_idle(name, address, place, (find_postmaster(address),) if is_shared else ())
    console.print(tabulate("Latency, over HTTP", found))
    console.print(tabulate("Starting", commands))
    console.print(f"Written: {write_json('latency', [*commands, *found])}.")
