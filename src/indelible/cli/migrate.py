"""`indelible migrate`: create a database, or upgrade its schema. The migrations are store/database/migrate.py."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from indelible.cli.options import DatabaseOption, read_settings

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
