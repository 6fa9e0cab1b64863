"""`indelible backup`: a verified copy of a SQLite database in use. The copying is store/database/backup.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from indelible.cli.options import read_settings

EXAMPLES: Final = """\b
Examples:
  indelible backup saved.db                        back up the default database
  indelible backup --database chats.db saved.db    another one
  indelible backup --force saved.db                replace an older backup"""


def backup(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="File to write.")],
    *,
    database: Annotated[
        str | None, typer.Option(metavar="FILE", help="SQLite file.", show_default="the 'database' setting")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace TARGET if it exists.")] = False,
) -> None:
    """Back up a SQLite database, even while it is in use.

    The copy is verified before it replaces the target.
    """
    chosen = read_settings(database=database).database

    from rich.console import Console  # noqa: PLC0415  (see main.py)
    from rich.progress import Progress  # noqa: PLC0415

    from indelible.store.database.backup import back_up  # noqa: PLC0415

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("Copying", total=None)

        def show(copied: int, total: int) -> None:
            description = "Copying" if copied < total else "Verifying"
            progress.update(task, description=description, completed=copied, total=total)

        size_bytes = back_up(chosen, target, overwrite=force, on_progress=show)
    sys.stdout.write(f"Backed up to {target} ({size_bytes:,} bytes, integrity check passed).\n")
