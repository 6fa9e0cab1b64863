"""What `indelible user` and `indelible token` share: the accounts of a database, with or without a running server.

These commands open an existing database and never create one: a misspelt name must not become a new, empty database.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from indelible.cli.options import read_settings, refuse_missing_database

if TYPE_CHECKING:
    from indelible.store.accounts import AccountStore

T = TypeVar("T")


def with_accounts(database: str | None, work: Callable[[AccountStore], Awaitable[T]]) -> T:
    """Run `work` on the accounts of the database."""
    settings = read_settings(database=database)
    refuse_missing_database(settings)

    import asyncio  # noqa: PLC0415  (see main.py; so below)

    from indelible.clock import SystemClock  # noqa: PLC0415
    from indelible.store.accounts import AccountStore  # noqa: PLC0415
    from indelible.store.store import Store  # noqa: PLC0415

    async def run() -> T:
        async with Store.open(settings.database) as store:
            return await work(AccountStore(store.database, clock=SystemClock()))

    return asyncio.run(run())


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns that line up; the last one is as long as it likes. Names and labels may come from anywhere."""
    from indelible.terminal.markdown import disarm  # noqa: PLC0415  (see main.py)

    rows = [tuple(disarm(cell).replace("\n", " ") for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def show_time(moment: datetime | None, *, otherwise: str) -> str:
    return otherwise if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"
