"""`indelible login-link`: a link that logs the first admin in once, printed alone on standard output.

Whoever may open the database may have one. A server prints one by itself only on a terminal (serve.py): what it prints
elsewhere ends in a log, which more people read than may be admins.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from indelible.cli.accounts import with_accounts
from indelible.cli.options import DatabaseOption, UsageMistake, read_settings

if TYPE_CHECKING:
    from indelible.settings import Settings
    from indelible.store.accounts.sql_accounts import SqlAccounts

EXAMPLES: Final = """\b
Examples:
  indelible login-link                                for the server of the default database
  indelible login-link --url https://chats.example    for one behind a proxy
  docker exec CONTAINER indelible login-link"""


def login_link(
    *,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The server's address in your browser.", show_default="the running server"),
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """Print a link that logs the first admin in, once and within the hour."""
    settings = read_settings(database=database)
    place = _find_place(settings) if url is None else _check_url(url)

    async def offer(accounts: SqlAccounts) -> str:
        from indelible.clock import SystemClock  # noqa: PLC0415  (see main.py)
        from indelible.server.login import offer_login  # noqa: PLC0415

        return await offer_login(accounts, clock=SystemClock())

    sys.stdout.write(f"{place}{with_accounts(database, offer)}\n")


def _find_place(settings: Settings) -> str:
    """Where this database's server listens, or else where the settings say that one would."""
    from indelible.server.authentication import normalize_base_path  # noqa: PLC0415
    from indelible.server.process import find_on_this_machine, write_url  # noqa: PLC0415
    from indelible.store.database.sqlite.file_lock import find_holder  # noqa: PLC0415

    holder = find_holder(settings.database)
    found = None if holder is None else holder.server_url
    if found is None and not settings.port:
        raise UsageMistake("Can't tell where the server listens. Name its address with --url.")
    found = found or find_on_this_machine(write_url(settings.host, settings.port))
    return found + normalize_base_path(settings.base_path)


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    try:
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        is_address = False
    if not is_address or parts.query or parts.fragment or len(url.split()) != 1 or not url.isprintable():
        raise UsageMistake(f"{url!r} is not the address of a server. Write https://chats.example.")
    return url.rstrip("/")
