"""Which chats a command uses: those of a server, those in a database, or those of the server that holds the database.

A SQLite file has one working process. If that is a server of the same user, a command that needs a worker talks to it
over loopback instead of refusing: its URL is in the lock file (store/database/sqlite_file.py). The token is the
one of INDELIBLE_TOKEN, as for any other server. A command that only reads opens the file beside whoever works on it.

Must stay true (tests/test_cli_commands.py): a chat beside a running server is a chat on it.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple

from indelible.cli.options import (
    UsageMistake,
    check_model,
    find_server,
    load_named_tools,
    read_settings,
    refuse_missing_database,
)
from indelible.errors import Invalid

if TYPE_CHECKING:
    from indelible.app.app import User
    from indelible.clock import Clock
    from indelible.settings import Settings


class OpenedChats(NamedTuple):
    """A user to open, and what to call the place."""

    opened: AbstractAsyncContextManager[User]
    where: str


def open_to_read(
    *, server: str | None, database: str | None, creates: bool = False
) -> AbstractAsyncContextManager[User]:
    """The chats, without a worker. A missing database is refused, unless the command `creates` one."""
    settings, url = read_settings(database=database), find_server(server, database)
    if url is not None:
        return _open_server(url, settings)

    from indelible.app.compose import open_app  # noqa: PLC0415  (see main.py; so below)

    if not creates:
        refuse_missing_database(settings)
    return open_app(settings=settings, worker=False)


def open_to_chat(
    *,
    server: str | None,
    database: str | None,
    model: str | None,
    tools: list[str] | None,
    clock: Clock,
    pace_s: float,
    seed: int | None,
) -> OpenedChats:
    """The chats, and somebody who answers them: a server, or a worker in this process."""
    settings, url = read_settings(model=model, database=database), find_server(server, database)
    if url is not None:
        _refuse_tools(tools, url)
        return OpenedChats(_open_server(url, settings), url)

    from indelible.store.database.sqlite_file import find_holder  # noqa: PLC0415
    from indelible.terminal import describe_database, open_database  # noqa: PLC0415

    holder = find_holder(settings.database)
    if holder is not None:
        if holder.server_url is None:
            raise holder
        _refuse_tools(tools, holder.server_url)
        where = f"{holder.server_url}, the server that has {settings.database} open"
        return OpenedChats(_open_server(holder.server_url, settings), where)
    check_model(settings)
    found = load_named_tools(tools, settings) if tools else []
    opened = open_database(settings, clock=clock, tools=found, demo_pace_s=pace_s, demo_seed=seed)
    return OpenedChats(opened, describe_database(settings))


def _open_server(url: str, settings: Settings) -> AbstractAsyncContextManager[User]:
    from indelible.client.client import Client  # noqa: PLC0415

    try:
        return Client(url, token=settings.token or None)
    except Invalid as error:
        raise UsageMistake(str(error)) from error


def _refuse_tools(tools: list[str] | None, url: str) -> None:
    if tools:
        raise UsageMistake(f"{url} runs its own tools. Start it with: indelible serve --tools {tools[0]}")
