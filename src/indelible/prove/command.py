"""`indelible prove` on a terminal: a progress bar while it kills, then the report. Returns the exit status.

run.py runs the proof; report.py writes the report.
"""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from indelible.prove.report import Report, print_report
from indelible.prove.run import Plan, prove, prove_server


def prove_and_report(plan: Plan) -> int:
    """Start servers, kill them, and print the report."""
    with _make_progress() as progress:
        bar = progress.add_task("Killing servers", total=plan.kills)

        def show(kills: int) -> None:
            progress.update(bar, completed=kills)
            if kills >= plan.kills:
                progress.update(bar, description="Waiting for the last replies")

        report = asyncio.run(prove(plan, on_kill=show))
    return _print(report)


def prove_server_and_report(url: str, *, seed: int, chats: int, seconds: float, token: str | None) -> int:
    """Use a server that is already running, and print the report."""
    with _make_progress() as progress:
        progress.add_task(f"Using {url}", total=None)
        report = asyncio.run(prove_server(url, seed=seed, chats=chats, seconds=seconds, token=token))
    return _print(report)


def _make_progress() -> Progress:
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


def _print(report: Report) -> int:
    print_report(report, Console())
    return 0 if report.is_proof else 1
