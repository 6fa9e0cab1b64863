"""`indelible debug`: what was exchanged with providers, as a tree or in full, and replayed offline.

`indelible debug 2` is short for `indelible debug show 2`. The printing is terminal/debugging.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from indelible.cli.default_command import make_group_with_default
from indelible.cli.options import DatabaseOption, read_settings, refuse_missing_database

DEBUG_EXAMPLES: Final = """\b
Examples:
  indelible debug                       runs of the most recent chat
  indelible debug 2                     runs of another: its number or id
  indelible debug --run RUN             requests and responses of one run
  indelible debug --run RUN --json      the same, as JSON
  indelible debug replay RUN            replay its last response
  indelible debug replay RUN --attempt 1.2 --save strange.json"""


debug_app: Final = typer.Typer(cls=make_group_with_default("show"), rich_markup_mode=None)


@debug_app.callback(epilog=DEBUG_EXAMPLES)
def debug() -> None:
    """Show what was sent to providers and what came back.

    Without a command, 'show' runs.
    """


@debug_app.command("show")
def show_runs(
    chat: Annotated[
        str | None, typer.Argument(metavar="CHAT", help="Number or id of a chat (default: the most recent).")
    ] = None,
    *,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Show only this run, with headers and bodies.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten bodies.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Maximum number of runs.")] = 20,
    database: DatabaseOption = None,
) -> None:
    """Show the runs of a chat as a tree, or one run in full."""
    settings = read_settings(database=database)
    refuse_missing_database(settings)

    from indelible.terminal.debugging import print_records

    print_records(settings, chat_name=chat, run_id=run, limit=limit, full=full, as_json=json)


@debug_app.command()
def replay(
    target: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, or a file made with --save.")],
    *,
    attempt: Annotated[
        str | None, typer.Option(metavar="STEP.NUMBER", help="Attempt to replay.", show_default="the last")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Save it as a test fixture.")] = None,
    database: DatabaseOption = None,
) -> None:
    """Replay a recorded response offline and show the parsed blocks."""
    settings = read_settings(database=database)
    if not Path(target).is_file():
        refuse_missing_database(settings)

    from indelible.terminal.debugging import print_replay

    print_replay(settings, target, place=attempt, save_to=save)
