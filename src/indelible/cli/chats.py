"""`indelible chats`: a list of chats. It only reads, so it may run beside a chat or a server."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from indelible.cli.options import DatabaseOption, ServerOption, find_server, read_settings, refuse_missing_database

EXAMPLES: Final = """\b
Examples:
  indelible chats                          chats in the default database
  indelible chats --database chats.db      chats in another one
  indelible chats --server http://127.0.0.1:8000"""


def chats(
    *,
    database: DatabaseOption = None,
    server: ServerOption = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="Maximum number of chats.")] = 20,
) -> None:
    """List chats, pinned first, then most recently updated first.

    Each line has number, time, status, id and title.
    """
    settings, url = read_settings(database=database), find_server(server, database)

    from indelible.terminal import print_chats  # noqa: PLC0415  (see main.py)

    if url is not None:
        from indelible.client.client import Client  # noqa: PLC0415

        print_chats(Client(url, token=settings.token or None), limit=limit)
    else:
        from indelible.app.compose import open_app  # noqa: PLC0415

        refuse_missing_database(settings)

        print_chats(open_app(settings=settings, worker=False), limit=limit)
