"""`indelible chats`: a list of chats. It only reads, so it may run beside a chat or a server."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from indelible.cli.options import DatabaseOption, read_settings

EXAMPLES: Final = """\b
Examples:
  indelible chats                          chats in the default database
  indelible chats --database chats.db      chats in another one"""


def chats(
    *,
    database: DatabaseOption = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Maximum number of chats.")] = 20,
) -> None:
    """List chats, most recently updated first.

    Each line has number, time, status, id and title.
    """
    settings = read_settings(database=database)

    from indelible.terminal import print_chats  # noqa: PLC0415  (see main.py)

    print_chats(settings, limit=limit)
