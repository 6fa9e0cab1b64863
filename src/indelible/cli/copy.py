"""`indelible copy`: move a SQLite database to PostgreSQL. The copying is store/database/copy_to_postgres.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from indelible.cli.options import read_settings

COPY_EXAMPLES: Final = """\b
Examples:
  INDELIBLE_DATABASE=postgresql://ada:secret@host/chats indelible copy chats.db
  indelible copy chats.db --to postgresql://ada@host/chats"""


def copy(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="SQLite database to copy.")],
    *,
    target: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Empty PostgreSQL database.", show_default="the 'database' setting"),
    ] = None,
) -> None:
    """Copy a SQLite database to PostgreSQL.

    Stop the server first. Every row is verified before anything is committed; the file is not changed.
    """
    chosen = read_settings(database=target).database

    import asyncio

    from rich.console import Console
    from rich.progress import Progress

    from indelible.store.database.address import describe, parse_address
    from indelible.store.database.copy_to_postgres import copy_database

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("Copying", total=None)

        def show(table: str, copied: int, total: int) -> None:
            progress.update(task, description=f"Copying {table}", completed=copied, total=total)

        tables = asyncio.run(copy_database(source, chosen, on_progress=show))
    rows, where = sum(table.rows for table in tables), describe(parse_address(chosen))
    sys.stdout.write(f"Copied {source} to {where}: {rows:,} rows in {len(tables)} tables, all verified.\n")
