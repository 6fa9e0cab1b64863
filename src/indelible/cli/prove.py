"""`indelible prove`: kill real servers and check that nothing is lost. The proof is the package prove.

A progress bar on standard error shows the kills; then the report (prove/report.py) is printed.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from indelible.cli.options import UsageMistake, read_settings

PROVE_EXAMPLES: Final = """\b
Examples:
  indelible prove                                          kill a server on a new SQLite file 20 times
  indelible prove --kills 300 --chats 20                   a longer run
  indelible prove --database postgresql://ada@host/proof   two servers on an empty database
  indelible prove --server http://127.0.0.1:8000           use a running server; kill nothing"""
_KILLS: Final = 20
_SERVER_S: Final = 20.0


def prove(
    *,
    kills: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=0, help="Number of kills.", show_default=str(_KILLS))
    ] = None,
    chats: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Number of chats in use meanwhile.")] = 6,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Stop killing after this long; with --server, how long to run (default: 20)."
        ),
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="An empty database.", show_default="a new SQLite file")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Check a running server. Nothing is killed.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=0, help="Reuse the random seed of an earlier run.")
    ] = None,
    short_leases: Annotated[
        bool, typer.Option("--short-leases", help="Consider a server dead after 0.8 s instead of 8 s.")
    ] = False,
    files: Annotated[
        str, typer.Option(metavar="PLACE", help="Where the servers store files, as in the setting: directory:/path.")
    ] = "database",
    drain: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Let a server that gets SIGTERM finish its replies for so long."),
    ] = 0.0,
    redis: Annotated[
        bool, typer.Option("--redis", help="Carry rows between the servers with a Redis of its own, and kill it too.")
    ] = False,
) -> None:
    """Kill a real server while people use it; check that nothing is lost.

    Every reply is known in advance and every reader logs all it sees; at the end both are compared with what is
    stored. Exit status 0: all promises held. 1: a promise was broken.
    """
    own = kills is not None or database is not None or short_leases or drain or files != "database" or redis
    if server is not None and own:
        raise UsageMistake(
            "--server kills nothing; drop --kills, --database, --files, --short-leases, --drain and --redis."
        )
    if redis and (database is None or "://" not in database or database.startswith("sqlite")):
        raise UsageMistake("--redis needs two servers; give --database postgresql://…")

    import asyncio
    import random

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from indelible.prove.report import print_report
    from indelible.prove.run import Plan, prove_server
    from indelible.prove.run import prove as run_proof

    chosen = random.SystemRandom().randrange(10**6) if seed is None else seed
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        if server is None:
            plan = Plan(
                seed=chosen,
                database=database,
                kills=_KILLS if kills is None else kills,
                chats=chats,
                seconds=seconds,
                short_leases=short_leases,
                drain_s=drain,
                files=files,
                has_redis=redis,
            )
            bar = progress.add_task("Killing servers", total=plan.kills)

            def show(done: int) -> None:
                what = "Killing servers" if done < plan.kills else "Waiting for the last replies"
                progress.update(bar, completed=done, description=what)

            report = asyncio.run(run_proof(plan, on_kill=show))
        else:
            token = read_settings().token or None
            length_s = _SERVER_S if seconds is None else seconds
            progress.add_task(f"Using {server}", total=None)
            report = asyncio.run(prove_server(server, seed=chosen, chats=chats, seconds=length_s, token=token))
    print_report(report, Console())
    raise typer.Exit(int(not report.is_proof))
