"""`indelible migrate`, `backup`, `copy` and `doctor`: looking after a database.

The migrations are store/database/migrate.py, the backup of a SQLite database in use is store/database/backup.py,
the move to PostgreSQL is store/database/copy_to_postgres.py, and what doctor checks is doctor_checks.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from indelible.cli.options import DatabaseOption, ModelOption, read_settings

BACKUP_EXAMPLES: Final = """\b
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

    from rich.console import Console
    from rich.progress import Progress

    from indelible.store.database.backup import back_up

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("Copying", total=None)

        def show(copied: int, total: int) -> None:
            description = "Copying" if copied < total else "Verifying"
            progress.update(task, description=description, completed=copied, total=total)

        size_bytes = back_up(chosen, target, overwrite=force, on_progress=show)
    sys.stdout.write(f"Backed up to {target} ({size_bytes:,} bytes, integrity check passed).\n")


MIGRATE_EXAMPLES: Final = """\b
Examples:
  indelible migrate                          the default database
  indelible migrate --database chats.db      a SQLite file, new or existing
  INDELIBLE_DATABASE=postgresql://ada:secret@host/chats indelible migrate"""


def migrate(
    *,
    database: DatabaseOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Upgrade even if processes of an earlier version seem to be running.")
    ] = False,
) -> None:
    """Create or upgrade the database.

    Stop every process of an earlier version first. Nothing is lost. This can't be undone; back up first.
    """
    settings = read_settings(database=database)
    chosen = settings.database

    import asyncio

    from indelible.store.database.address import describe, parse_address
    from indelible.store.database.migrate import migrate as upgrade

    name = describe(parse_address(chosen))
    before, after = asyncio.run(upgrade(chosen, lease_timeout_s=settings.lease_timeout_s, force=force))
    if before is None:
        sentence = f"Created {name} (schema {after})."
    elif before == after:
        sentence = f"{name} is up to date (schema {after})."
    else:
        sentence = f"Upgraded {name} from schema {before} to {after}."
    sys.stdout.write(f"{sentence}\n")


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


DOCTOR_EXAMPLES: Final = """\b
Examples:
  indelible doctor                          the default database and settings
  INDELIBLE_DATABASE=postgresql://ada:secret@host/chats indelible doctor
  indelible doctor --json | jq '.[] | select(.status != "ok")'"""

_MARKS: Final = {"ok": "ok     ", "warning": "WARNING", "failed": "FAILED "}


def doctor(
    *,
    database: DatabaseOption = None,
    model: ModelOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of findings.")] = False,
) -> None:
    """Check settings, keys, port, disk and database.

    It changes nothing. The exit status is 1 if a check failed; warnings are not failures.
    """
    settings = read_settings(database=database, model=model)

    import asyncio

    import msgspec

    from indelible.cli.doctor_checks import examine

    findings = asyncio.run(examine(settings))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings)).decode() + "\n")
    else:
        for finding in findings:
            sys.stdout.write(f"{_MARKS[finding.status]} {finding.check:<11} {finding.message}\n")
    if any(finding.status == "failed" for finding in findings):
        raise typer.Exit(1)
