"""The `indelible` command.

Each command reads its options, builds what it needs and hands over. A mistake of the user is one
line on standard error that says what to do about it, and exit status 2. A traceback is always a
fault of ours.

Must stay true (tests/test_cli.py): no mistake on the command line shows a traceback.

What a command needs is imported by the command: `indelible --help` loads neither the database nor the settings
(tests/test_cli.py). The chat itself is the package terminal.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from indelible.errors import IndelibleError, ModelFailed

if TYPE_CHECKING:
    from indelible.settings import Settings

_BAD_USAGE: Final = 2
_TOOLS: Final = "Tools for the model: a tool, or a list of them, in a module that can be imported. May be repeated."
_MODEL: Final = "Who answers: demo, or provider:NAME such as openai:gpt-5.1. Otherwise the setting 'model'."
_DATABASE: Final = "A SQLite file or a URL. Otherwise the setting 'database'."

app: Final = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """The entry point: what goes wrong becomes one line."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        sys.exit(app(prog_name="indelible", standalone_mode=False))
    except typer.TyperException as error:
        _give_up(f"{error.format_message().rstrip('.')}. See 'indelible --help'.", status=error.exit_code)
    except IndelibleError as error:
        _give_up(str(error), status=1)
    except BrokenPipeError:
        # Whoever read our output has left. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(128 + signal.SIGINT)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """End by way of every `finally`, so that a terminal gets its cursor and its echo back."""
    sys.exit(128 + number)


def _give_up(sentence: str, *, status: int) -> NoReturn:
    print(f"indelible: {sentence}", file=sys.stderr)
    sys.exit(status)


def _read_settings(**given: Any) -> Settings:
    from indelible.settings import BadSettings, load_settings  # noqa: PLC0415  (see the module header; so below)

    try:
        return load_settings(**given)
    except BadSettings as error:
        _give_up(str(error), status=_BAD_USAGE)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        print(f"indelible {_find_version()}")
        raise typer.Exit


def _find_version() -> str:
    import importlib.metadata  # noqa: PLC0415

    try:
        return importlib.metadata.version("indelible")
    except importlib.metadata.PackageNotFoundError:
        return "(from a source tree that is not installed)"


@app.callback()
def indelible(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Chats with models in which everything that was said is kept."""


@app.command(
    epilog="""Examples:\n
    indelible chat                       begin a chat, with the demo model\n
    indelible chat --resume              go on with the last one\n
    indelible chat --resume 2            or with another, by its number or its id in 'indelible chats'\n
    indelible chat --model anthropic:claude-sonnet-4-5

    indelible chat --pace 0.1            a slow one, easy to stop\n
    echo "roll a die" | indelible chat   a question without a terminal"""
)
def chat(
    chat: Annotated[
        str | None, typer.Argument(metavar="[CHAT]", help="Which chat to resume, if it is not the last.")
    ] = None,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a chat, the last one if none is named.")] = False,
    database: Annotated[str | None, typer.Option(metavar="URL", help=_DATABASE)] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help=_MODEL)] = None,
    plain: Annotated[bool, typer.Option("--plain", help="No prompt and no colours, as in a pipe.")] = False,
    pace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long the demo model takes for a word.")
    ] = 0.02,
    seed: Annotated[int | None, typer.Option(metavar="NUMBER", help="Make the demo model choose other words.")] = None,
) -> None:
    """Chat in the terminal. Everything that is said is kept in a database, while it is being said.

    Ctrl-C stops a reply and keeps what was said. Ctrl-D leaves. A reply that was cut off, by a crash or by leaving,
    goes on when the chat is resumed.
    """
    settings = _read_settings(model=model, database=database)

    from indelible.clock import SystemClock  # noqa: PLC0415
    from indelible.terminal import open_chat  # noqa: PLC0415

    clock = SystemClock()
    _check_model(settings)
    status = open_chat(
        settings,
        clock=clock,
        resume=resume or chat is not None,
        chat_name=chat,
        plain=plain,
        demo_pace_s=pace,
        demo_seed=seed,
    )
    raise typer.Exit(status)


def _check_model(settings: Settings) -> None:
    """Whoever starts something should learn at once that its model can not be used, and why."""
    from indelible.models.catalog import Catalog  # noqa: PLC0415

    try:
        Catalog(settings).find(settings.model)
    except ModelFailed as failure:
        _give_up(failure.message, status=_BAD_USAGE)


def _load_tools(names: list[str] | None, settings: Settings) -> list[Any]:
    """The tools that were named; the demo model has something to show even without."""
    from indelible.clock import SystemClock  # noqa: PLC0415
    from indelible.terminal.demo_tools import make_demo_tools  # noqa: PLC0415
    from indelible.tools.load import load_tools  # noqa: PLC0415

    if not names and settings.model == "demo":
        return list(make_demo_tools(SystemClock(), pace_s=0.02))
    return load_tools(names or [])


@app.command(
    epilog="""Examples:\n
    indelible serve                                      a page and an API on http://127.0.0.1:8000\n
    indelible serve --port 0 --database chats.db         on any free port, with another database\n
    indelible serve --model openai:gpt-5.1               with a real model; its key is in OPENAI_API_KEY

    indelible serve --tools mytools:TOOLS                the model may call your tools\n
    INDELIBLE_TOKEN=secret indelible serve --host 0.0.0.0"""
)
def serve(
    *,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where to listen. Otherwise the setting 'host'.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="0 is any free one. Otherwise the setting.")
    ] = None,
    database: Annotated[str | None, typer.Option(metavar="URL", help=_DATABASE)] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help=_MODEL)] = None,
    tools: Annotated[list[str] | None, typer.Option(metavar="MODULE:NAME", help=_TOOLS)] = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Only serve; chats are answered by 'indelible worker'.")
    ] = False,
) -> None:
    """Serve chats over HTTP, with a web page, and answer them. One line says when it is ready.

    On SIGTERM it tells its readers to come back elsewhere and hands its chats over.
    """
    settings = _read_settings(host=host, port=port, database=database, model=model)
    if not no_worker:
        _check_model(settings)

    from indelible.server.app import Server  # noqa: PLC0415
    from indelible.server.process import serve as run_server  # noqa: PLC0415

    server = Server(settings, tools=_load_tools(tools, settings), worker=not no_worker)
    run_server(server, on_ready=lambda url: print(f"Indelible is ready at {url}", flush=True))


@app.command(
    epilog="""Examples:\n
    indelible worker --database postgresql://ada:secret@host/chats\n
    indelible worker --tools mytools:TOOLS"""
)
def worker(
    *,
    database: Annotated[str | None, typer.Option(metavar="URL", help=_DATABASE)] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help=_MODEL)] = None,
    tools: Annotated[list[str] | None, typer.Option(metavar="MODULE:NAME", help=_TOOLS)] = None,
) -> None:
    """Answer chats, and nothing else. Start as many as you like on one PostgreSQL database."""
    settings = _read_settings(database=database, model=model)
    _check_model(settings)

    import asyncio  # noqa: PLC0415

    from indelible.server.process import work_until_told  # noqa: PLC0415

    found = _load_tools(tools, settings)
    ready = "Indelible's worker is ready"
    asyncio.run(work_until_told(settings, tools=found, on_ready=lambda: print(ready, flush=True)))


@app.command(
    epilog="""Examples:\n
    indelible prove                                          a server on a new SQLite file, killed 20 times\n
    indelible prove --kills 300 --chats 20                   more of it\n
    indelible prove --database postgresql://ada@host/proof   two servers on an empty database\n
    indelible prove --server http://127.0.0.1:8000           use a running server, and kill nothing"""
)
def prove(
    *,
    kills: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=0, help="How often a server is taken away. 20 otherwise.")
    ] = None,
    chats: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="How many chats are going on meanwhile.")] = 6,
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="End sooner. With --server, how long: 20 otherwise.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="An empty database. Otherwise a new SQLite file.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Prove a server that is running. Nothing is killed.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=0, help="Draw what is said and killed as that run did.")
    ] = None,
    short_leases: Annotated[
        bool, typer.Option("--short-leases", help="Take a server for dead after 0.8 s instead of 8 s.")
    ] = False,
) -> None:
    """Kill a real server again and again while people use it, and see whether anything was lost.

    Every reply is known in advance and every reader takes note of all it sees; in the end both are compared with what
    is stored. The exit status is 0 if all promises were kept, and 1 if one was broken.
    """
    if server is not None and (kills is not None or database is not None or short_leases):
        _give_up(
            "--server kills nothing, so it goes without --kills, --database and --short-leases.", status=_BAD_USAGE
        )

    import random  # noqa: PLC0415

    from indelible.prove.command import prove_and_tell, prove_server_and_tell  # noqa: PLC0415
    from indelible.prove.run import Plan  # noqa: PLC0415

    chosen = random.SystemRandom().randrange(10**6) if seed is None else seed
    if server is not None:
        token = _read_settings().token or None
        length_s = 20.0 if seconds is None else seconds
        raise typer.Exit(prove_server_and_tell(server, seed=chosen, chats=chats, seconds=length_s, token=token))
    plan = Plan(
        seed=chosen,
        database=database,
        kills=20 if kills is None else kills,
        chats=chats,
        seconds=seconds,
        short_leases=short_leases,
    )
    raise typer.Exit(prove_and_tell(plan))


@app.command(
    epilog="""Examples:\n
    indelible chats                          those in the database of the settings\n
    indelible chats --database chats.db      those in another one"""
)
def chats(
    *,
    database: Annotated[str | None, typer.Option(metavar="URL", help=_DATABASE)] = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="How many at most.")] = 20,
) -> None:
    """List your chats, the last changed first: number, time, state, id and title."""
    settings = _read_settings(database=database)

    from indelible.terminal import print_chats  # noqa: PLC0415

    print_chats(settings, limit=limit)


class _ShowUnlessNamed(TyperGroup):
    """`indelible debug 2` is `indelible debug show 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if is_named else ["show", *args])


debug_app: Final = typer.Typer(cls=_ShowUnlessNamed)
app.add_typer(debug_app, name="debug")


@debug_app.callback(
    epilog="""Examples:\n
    indelible debug                       what was recorded of the last chat\n
    indelible debug 2                     of another: its number, or its id\n
    indelible debug --run RUN             what was sent, and what came back\n
    indelible debug --run RUN --json      the same, for other programs

    indelible debug replay RUN            hear the last answer of it again\n
    indelible debug replay RUN --attempt 1.2 --save strange.json"""
)
def debug() -> None:
    """See what was sent to providers and what came back. Without a command it is 'show'."""


@debug_app.command()
def show(
    chat: Annotated[
        str | None, typer.Argument(metavar="[CHAT]", help="Its number or its id. Otherwise the last one.")
    ] = None,
    *,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Show this run only, with headers and bodies.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten bodies.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, help="How many runs at most.")] = 20,
    database: Annotated[str | None, typer.Option(metavar="URL", help=_DATABASE)] = None,
) -> None:
    """Print the runs of a chat as a tree of steps and attempts, or one run with all that was exchanged."""
    settings = _read_settings(database=database)

    from indelible.terminal.debugging import print_records  # noqa: PLC0415

    print_records(settings, chat_name=chat, run_id=run, limit=limit, full=full, as_json=json)


@debug_app.command()
def replay(
    target: Annotated[str, typer.Argument(metavar="RUN|FILE", help="A run, or a recording that was saved.")],
    *,
    attempt: Annotated[
        str | None, typer.Option(metavar="STEP.NUMBER", help="Which exchange of the run. Otherwise the last one.")
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep it as a fixture for tests.")] = None,
    database: Annotated[str | None, typer.Option(metavar="URL", help=_DATABASE)] = None,
) -> None:
    """Hear a recorded answer again, offline, and show the blocks that it gives."""
    settings = _read_settings(database=database)

    from indelible.terminal.debugging import print_replay  # noqa: PLC0415

    print_replay(settings, target, place=attempt, save_to=save)


@app.command(
    epilog="""Examples:\n
    indelible migrate                          the database of the settings\n
    indelible migrate --database chats.db      a SQLite file, new or not\n
    INDELIBLE_DATABASE=postgresql://ada:secret@host/chats indelible migrate"""
)
def migrate(
    *,
    database: Annotated[str | None, typer.Option(metavar="URL", help=_DATABASE)] = None,
) -> None:
    """Bring a database up to date, or create it. Nothing that is in it is lost; there is no way back."""
    chosen = _read_settings(database=database).database

    import asyncio  # noqa: PLC0415

    from indelible.store.database.address import describe, parse_address  # noqa: PLC0415
    from indelible.store.database.migrate import migrate as bring_up_to_date  # noqa: PLC0415

    where = describe(parse_address(chosen))
    before, after = asyncio.run(bring_up_to_date(chosen))
    if before is None:
        print(f"{where} is new and has schema {after} now.")
    elif before == after:
        print(f"{where} has schema {after} already. There was nothing to do.")
    else:
        print(f"{where} had schema {before} and has schema {after} now.")


@app.command(
    epilog="""Examples:\n
    indelible backup saved.db                        the database of the settings\n
    indelible backup --database chats.db saved.db    another one\n
    indelible backup --force saved.db                in place of yesterday's"""
)
def backup(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The file to write.")],
    *,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="A SQLite file. Otherwise the setting 'database'.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite TARGET if it is there.")] = False,
) -> None:
    """Copy a SQLite database while it is in use. The copy is checked before it gets its name."""
    chosen = _read_settings(database=database).database

    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress  # noqa: PLC0415

    from indelible.store.database.backup import back_up  # noqa: PLC0415

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("Copying", total=None)

        def show(copied: int, total: int) -> None:
            description = "Copying" if copied < total else "Checking"
            progress.update(task, description=description, completed=copied, total=total)

        size_bytes = back_up(chosen, target, overwrite=force, on_progress=show)
    print(f"{target} is a whole copy, checked, of {size_bytes:,} bytes.")
