"""Starting the crowd, the probe and the server, and one table of what they found: see bench/crowd/__init__.py.

A phase has the gaps between the words that the probe received in it, and the most memory that the server's processes
had in it. A gap that has no end in the phase is in the next one. The aim is that the probe notices nothing: it gets 20
words a second, so a gap of 50 ms is what the provider does.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.crowd.crowd import Phase
from bench.crowd.sizes import Sizes, read_sizes
from bench.databases import start_databases
from bench.findings import quantile
from bench.options import write_json
from bench.over_http.contenders import ROOT, Contender, count_memory_bytes, start_indelible, start_provider

_RATE: Final = 20
_TOKENS: Final = 20_000
"""More than anybody can say while it runs: 1,000 seconds."""
_PHASES: Final = 8
_SAMPLE_S: Final = 0.1
_LIMITS: Final = {"INDELIBLE_USER_MAX_FEEDS": "10000", "INDELIBLE_ADDRESS_MAX_CONNECTIONS": "10000"}


Show = Callable[[str], None]
"""Tells which phase begins."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One phase on one database."""

    phase: str
    database: str
    elapsed_s: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    memory_mb: float
    memory_peak_mb: float
    came_p50_ms: float | None
    came_p99_ms: float | None
    errors: list[str]


class Watch:
    """What the probe heard and how much memory the server had, with the time of each."""

    def __init__(self, server: Contender) -> None:
        self._server = server
        self.received_at: list[float] = []
        self.memory: list[tuple[float, int]] = []
        self.probe_errors = 0

    async def watch_memory(self) -> None:
        while True:
            self.memory.append((time.monotonic(), count_memory_bytes(self._server.pid)))
            await asyncio.sleep(_SAMPLE_S)

    async def listen(self, probe: Process) -> None:
        assert probe.stdout is not None
        async for line in probe.stdout:
            at, errors = line.split()
            self.received_at.append(float(at))
            self.probe_errors = int(errors)

    def judge(self, phase: Phase, database: str) -> Measured:
        gaps_ms = [(to - since) * 1e3 for since, to in pairwise(self.received_at) if phase.began <= to <= phase.ended]
        known = [(at, size / 1e6) for at, size in self.memory if at <= phase.ended]
        memory = [size for at, size in known if at >= phase.began] or [size for _, size in known[-1:]]
        came_ms = [each * 1e3 for each in phase.times_s]
        errors = list(phase.errors)
        if self.probe_errors:
            errors.append(f"the probe: {self.probe_errors} words are missing or came twice")
        return Measured(
            phase=phase.name,
            database=database,
            elapsed_s=phase.ended - phase.began,
            gap_p50_ms=quantile(gaps_ms, 0.5),
            gap_p99_ms=quantile(gaps_ms, 0.99),
            gap_max_ms=max(gaps_ms, default=0.0),
            memory_mb=memory[-1] if memory else 0.0,
            memory_peak_mb=max(memory, default=0.0),
            came_p50_ms=quantile(came_ms, 0.5) if came_ms else None,
            came_p99_ms=quantile(came_ms, 0.99) if came_ms else None,
            errors=errors,
        )


async def measure() -> None:
    console = Console(width=150)
    measured: list[Measured] = []
    sizes = read_sizes()
    os.environ.update(_LIMITS)
    _raise_file_limit()
    started, load_before = time.monotonic(), os.getloadavg()[0]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True) as progress,
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
    ):
        task = progress.add_task("starting the databases", total=2 * _PHASES)
        async with start_databases() as addresses:
            for name, address in addresses.items():

                def show(phase: str, name: str = name) -> None:
                    progress.update(task, description=f"{name}: {phase}", advance=1)

                with (
                    start_provider(_TOKENS, _RATE) as port,
                    start_indelible(port, address, Path(directory)) as server,
                ):
                    measured += await _measure_server(name, server, sizes, show)
    for name in addresses:
        console.print(_tabulate(name, [each for each in measured if each.database == name]))
    _print_errors(console, measured)
    console.print(
        f"{time.monotonic() - started:.0f} s; load of the machine (1 min): {load_before:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after. Written: {write_json('crowd', measured)}."
    )


async def _measure_server(name: str, server: Contender, sizes: Sizes, show: Show) -> list[Measured]:
    watch = Watch(server)
    phases: list[Phase] = []
    async with _start("probe", server.url) as probe, asyncio.TaskGroup() as group:
        watching = [group.create_task(watch.watch_memory()), group.create_task(watch.listen(probe))]
        async with _start("crowd", server.url, msgspec.json.encode(sizes).decode()) as crowd:
            assert crowd.stdout is not None
            async for line in crowd.stdout:
                if line.startswith(b"{"):
                    phases.append(msgspec.json.decode(line, type=Phase))
                else:
                    show(line.decode().strip())
            if status := await crowd.wait():
                raise RuntimeError(f"The crowd failed with status {status}. Its error is above.")
        for each in watching:
            each.cancel()
    return [watch.judge(phase, name) for phase in phases]


@asynccontextmanager
async def _start(name: str, *arguments: str) -> AsyncIterator[Process]:
    command = (sys.executable, "-m", f"bench.crowd.{name}", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, cwd=ROOT, limit=2**24)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _raise_file_limit() -> None:
    """Let this process and those that it starts open as many files as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tabulate(database: str, measured: list[Measured]) -> Table:
    table = Table("", title=f"A crowd on one server, {database}")
    for column in ("probe: gap p50", "p99", "max", "memory", "at most", "readers came p50", "p99", "errors", "took"):
        table.add_column(column, justify="right")
    for each in measured:
        came = ("", "") if each.came_p50_ms is None else (f"{each.came_p50_ms:,.0f} ms", f"{each.came_p99_ms:,.0f} ms")
        gaps = (f"{gap:,.0f} ms" for gap in (each.gap_p50_ms, each.gap_p99_ms, each.gap_max_ms))
        memory = (f"{size:,.0f} MB" for size in (each.memory_mb, each.memory_peak_mb))
        table.add_row(each.phase, *gaps, *memory, *came, str(len(each.errors)), f"{each.elapsed_s:.1f} s")
    return table


def _print_errors(console: Console, measured: list[Measured]) -> None:
    """Each kind of error once, with how often it happened."""
    for each in measured:
        for error in dict.fromkeys(each.errors):
            console.print(f"{each.database}, {each.phase}: {each.errors.count(error)} × {error}", style="red")
