"""`indelible usage`: tokens and costs by day and model. The table is terminal/reports.py."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import TYPE_CHECKING, Annotated, Final

import typer

from indelible.cli.opening import open_to_read
from indelible.cli.options import DatabaseOption, ServerOption, UsageMistake

if TYPE_CHECKING:
    from indelible.app.app import User

USAGE_EXAMPLES: Final = """\b
Examples:
  indelible usage                              the last 30 days
  indelible usage --since 2026-11-01 --until 2026-11-15
  indelible usage --by-user                    of everybody, for admins
  indelible usage --user ada --json
  indelible usage --server http://127.0.0.1:8000"""

DateOption = Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Day of UTC, included.")]


def usage(
    *,
    since: DateOption = None,
    until: DateOption = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Of this user; admins only.")] = None,
    by_user: Annotated[bool, typer.Option("--by-user", help="Of every user; admins only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    database: DatabaseOption = None,
    server: ServerOption = None,
) -> None:
    """Show what was used: turns, tokens and costs by day and model.

    Failed and interrupted replies count too, because they were paid for. Costs are those of known prices.
    """
    first, last = _parse_day(since, "--since"), _parse_day(until, "--until")
    if first is not None and last is not None and first > last:
        raise UsageMistake(f"--since {since} is after --until {until}.")
    opened = open_to_read(server=server, database=database)

    from indelible.terminal.reports import load_usage
    from indelible.terminal.session import print_lines

    async def load(opener: User) -> Iterable[str]:
        return await load_usage(opener, since=first, until=last, of=user, by_user=by_user, as_json=json)

    print_lines(opened, load)


def _parse_day(text: str | None, option: str) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise UsageMistake(f"Can't read {option} {text!r} as a day. Write 2026-11-01.") from None
