"""What commands share: options, what each does first (settings, model, tools, logs), and which chats it opens.

Nothing heavy is imported here: a command imports what it needs when it runs, so that `indelible --help` loads neither
the database nor the settings. A mistake of the user is one line on standard error that says what to do about it, and
exit status 2 (`UsageMistake`); main.py prints it. `logging_as` is for the commands that run until they are stopped.

The chats are those of a server, those in a database, or those of the server that holds the database. A SQLite file has
one working process. If that is a server of the same user, a command that needs a worker talks to it over loopback
instead of refusing: its URL is in the lock file (store/database/sqlite_file.py). The token is the one of
INDELIBLE_TOKEN, as for any other server. A command that only reads opens the file beside whoever works on it.

Must stay true (tests/test_cli.py): no mistake on the command line shows a traceback; `--help` stays light.
(tests/test_cli_commands.py): a chat beside a running server is a chat on it; the shell completes the names of the
commands of a group.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer
from typer.core import TyperGroup

from indelible.errors import IndelibleError, Invalid, ModelFailed

if TYPE_CHECKING:
    from indelible.app.app import User
    from indelible.clock import Clock
    from indelible.settings import Settings

T = TypeVar("T")

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="URL", help="SQLite file or PostgreSQL URL.", show_default="the 'database' setting"
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Model to use: demo, or provider:NAME, such as openai:gpt-5.1.",
        show_default="the 'model' setting",
    ),
]
ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        metavar="MODULE:NAME",
        help="Tools that the model may call: a tool or a list of tools in a Python module. Repeatable.",
    ),
]
ClientToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--client-tools",
        metavar="MODULE:NAME",
        help="Tools that clients run: a reply that calls one waits for its result. Repeatable.",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Use a server instead of a database; its token is in INDELIBLE_TOKEN.",
        show_default="INDELIBLE_URL",
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="System prompt of the chat.", show_default="the 'system' setting"),
]


def _check_pace(seconds: float) -> float:
    """A minimum alone lets `inf` pass."""
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a number of seconds")
    return seconds


PaceOption = Annotated[
    float,
    typer.Option(
        "--pace", metavar="SECONDS", min=0, callback=_check_pace, help="Time the demo model takes for each word."
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="NUMBER", help="Make the demo model choose different words.")
]
LogFormatOption = Annotated[
    str | None,
    typer.Option("--log-format", metavar="text|json", help="Format of the log.", show_default="text"),
]
LogLevelOption = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="Least severe lines to log: debug, info, warning or error.",
        show_default="warning",
    ),
]

_OTHER_VARIABLES: Final = [
    "INDELIBLE_URL",
    "INDELIBLE_FORBID_MODEL_CALLS",
    "INDELIBLE_TEST_POSTGRES",
    "INDELIBLE_EXAMPLES",
]
"""Variables that are no settings: the server of commands, and those of tests."""


class UsageMistake(IndelibleError):
    """An option or a setting is invalid. Exit status 2."""


def read_settings(**given: Any) -> Settings:
    """The settings, with the options of the command line on top."""
    from indelible.settings import BadSettings, load_settings

    try:
        return load_settings(**given)
    except BadSettings as error:
        raise UsageMistake(str(error)) from error


def list_unknown_variables() -> list[str]:
    """A sentence for each INDELIBLE_ variable that nothing reads: a misspelt limit must not be ignored in silence.

    It is a warning and not an error: the environment is shared with other programs.
    """
    from difflib import get_close_matches

    from indelible.settings import ENV_PREFIX, Settings

    known = [ENV_PREFIX + name.upper() for name in Settings.model_fields] + _OTHER_VARIABLES
    sentences = []
    for name in sorted(os.environ):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            similar = get_close_matches(name.upper(), known, n=1)
            hint = f" Did you mean {similar[0]}?" if similar else ""
            sentences.append(f"The environment variable {name} is not a setting, and is ignored.{hint}")
    return sentences


def find_server(server: str | None, database: str | None) -> str | None:
    """The server to use, if any: the option, or INDELIBLE_URL unless --database is given."""
    if server is not None and database is not None:
        raise UsageMistake("Choose either --server or --database.")
    if server is None and database is None:
        return os.environ.get("INDELIBLE_URL") or None
    return server


def refuse_missing_database(settings: Settings) -> None:
    """A command that needs what is stored never creates a database: a misspelt name would look like an empty one."""
    from indelible.store.database.address import parse_address
    from indelible.store.database.errors import DatabaseUnusable

    address = parse_address(settings.database)
    if address.is_sqlite and not address.path.exists():
        raise DatabaseUnusable(
            f"Can't find the database {address.path}. Start 'indelible serve' first, or choose another with --database."
        )


def check_model(settings: Settings) -> None:
    """Report an unknown model or a missing key at startup, not with the first message.

    The further models of the setting `models` need no key here: users may never choose them.
    """
    from indelible.models.catalog import Catalog

    catalog = Catalog(settings)
    try:
        catalog.find(settings.model)
        for name in settings.models:
            catalog.check(name)
    except ModelFailed as failure:
        raise UsageMistake(failure.message) from failure


def load_named_tools(names: list[str] | None, settings: Settings) -> list[Any]:
    """The tools of `--tools`. The demo model has two of its own."""
    from indelible.clock import SystemClock
    from indelible.terminal.local import make_demo_tools

    if not names and settings.model == "demo":
        return list(make_demo_tools(SystemClock(), pace_s=0.02))
    return load_tools(names, "--tools")


def load_tools(names: list[str] | None, option: str) -> list[Any]:
    from indelible.tools.toolset import load_tools as load

    try:
        return list(load(names or [], option=option))
    except Invalid as error:
        raise UsageMistake(str(error)) from error


@contextmanager
def logging_as(settings: Settings) -> Iterator[None]:
    """Log as configured during the block. In JSON, the error that ends the command is also a log line."""
    import logging

    from indelible.logs import set_up_logging
    from indelible.redaction.secrets import list_process_secrets

    set_up_logging(
        format=settings.log_format,
        level=settings.log_level,
        access_log=settings.access_log,
        secrets=list_process_secrets(settings),
    )
    for sentence in list_unknown_variables():
        logging.getLogger("indelible").warning(sentence)
    try:
        yield
    except IndelibleError as error:
        if settings.log_format == "text":
            raise
        logging.getLogger("indelible").critical(str(error))
        raise typer.Exit(2 if isinstance(error, UsageMistake) else 1) from error


def describe_process(settings: Settings, *, tools: int, worker: bool = True) -> dict[str, str]:
    """What the start of a process tells its operator: what to kill, where the chats are, and who answers them."""
    from indelible.store.database.address import describe, parse_address
    from indelible.store.database.migrate import HEAD

    return {
        "process": str(os.getpid()),
        "database": f"{describe(parse_address(settings.database))} (schema {HEAD})",
        "model": settings.model if worker else "none: this process runs no replies",
        "tools": str(tools),
    }


def print_ready(settings: Settings, sentence: str, **more: str) -> None:
    """Print the line on standard output that a calling script waits for, and below it, for people, the rest.

    In JSON it is one line with all of it.
    """
    rest = ", ".join(f"{name} {value}" for name, value in more.items() if not name.endswith("url"))
    line = f"{sentence}\n  {rest}" if rest else sentence
    if settings.log_format == "json":
        import json
        from datetime import UTC, datetime

        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"time": at, "level": "info", "logger": "indelible", "message": sentence, **more})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


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

    from indelible.app.compose import open_app

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

    from indelible.store.database.sqlite_file import find_holder
    from indelible.terminal.local import describe_database, open_database

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


def with_user(opened: AbstractAsyncContextManager[User], work: Callable[[User], Awaitable[T]]) -> T:
    """Run `work` on a user's chats."""
    import asyncio

    async def run() -> T:
        async with opened as user:
            return await work(user)

    return asyncio.run(run())


def print_lines(opened: AbstractAsyncContextManager[User], load: Callable[[User], Awaitable[Iterable[str]]]) -> None:
    """Print on standard output what is loaded of a user's chats."""
    sys.stdout.write("".join(f"{line}\n" for line in with_user(opened, load)))


def _open_server(url: str, settings: Settings) -> AbstractAsyncContextManager[User]:
    from indelible.client.client import Client

    try:
        return Client(url, token=settings.token or None)
    except Invalid as error:
        raise UsageMistake(str(error)) from error


def _refuse_tools(tools: list[str] | None, url: str) -> None:
    if tools:
        raise UsageMistake(f"{url} runs its own tools. Start it with: indelible serve --tools {tools[0]}")


def make_group_with_default(default: str) -> type[TyperGroup]:
    """The class of a group whose command `default` runs if none is named."""

    class GroupWithDefault(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            is_named = bool(args) and (args[0] in self.commands or args[0] == "--help" or self._is_misspelt(args[0]))
            if is_named or ctx.resilient_parsing:  # the shell asks what may come next
                return super().parse_args(ctx, args)
            return super().parse_args(ctx, [default, *args])

        def _is_misspelt(self, word: str) -> bool:
            """Whether this can only be the name of a command: the default one has no arguments."""
            has_arguments = any(param.param_type_name == "argument" for param in self.commands[default].params)
            return not word.startswith("-") and not has_arguments

    return GroupWithDefault
