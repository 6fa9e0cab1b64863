"""The `indelible` command.

Each command reads its options, builds what it needs and hands over. A mistake of the user is one
line on standard error that says what to do about it, and exit status 2. A traceback is always a
fault of ours.

Must stay true (tests/test_cli.py): no mistake on the command line shows a traceback.

The chat itself is the package terminal.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from indelible.clock import SystemClock
from indelible.errors import IndelibleError
from indelible.models.demo import DemoModel
from indelible.settings import BadSettings, load_settings
from indelible.terminal import Conversation, make_demo_tools, open_chat

_MODELS: Final = ("demo",)
_BAD_USAGE: Final = 2

app: Final = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """The entry point: what goes wrong becomes one line."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        sys.exit(app(prog_name="indelible", standalone_mode=False))
    except typer.TyperException as error:
        _give_up(f"{error.format_message().rstrip('.')}. See 'indelible --help'.", status=error.exit_code)
    except BadSettings as error:
        _give_up(str(error), status=_BAD_USAGE)
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


def _print_version(*, wanted: bool) -> None:
    if wanted:
        print(f"indelible {_find_version()}")
        raise typer.Exit


def _find_version() -> str:
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
    indelible chat                       talk with the demo model\n
    indelible chat --pace 0.1            a slow one, easy to stop\n
    echo "roll a die" | indelible chat   a question without a terminal"""
)
def chat(
    *,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who answers. There is: demo. Otherwise the setting 'model'.")
    ] = None,
    pace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long the demo model takes for a word.")
    ] = 0.02,
    seed: Annotated[int | None, typer.Option(metavar="NUMBER", help="Make the demo model choose other words.")] = None,
) -> None:
    """Chat in the terminal. The chat is kept in memory and ends with the program.

    Ctrl-C stops a reply and keeps what was said. Ctrl-D leaves.
    """
    settings = load_settings(model=model)
    if settings.model not in _MODELS:
        _give_up(f"There is no model '{settings.model}'. Available: {', '.join(_MODELS)}.", status=_BAD_USAGE)
    clock = SystemClock()
    conversation = Conversation(
        DemoModel(clock, pace_s=pace, seed=seed),
        clock=clock,
        tools=make_demo_tools(clock, pace_s=pace),
        settings=settings,
    )
    raise typer.Exit(open_chat(conversation, clock=clock))


@app.command(
    epilog="""Examples:\n
    indelible migrate                          the database of the settings\n
    indelible migrate --database chats.db      a SQLite file, new or not\n
    INDELIBLE_DATABASE=postgresql://ada:secret@host/chats indelible migrate"""
)
def migrate(
    *,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="A SQLite file or a URL. Otherwise the setting 'database'.")
    ] = None,
) -> None:
    """Bring a database up to date, or create it. Nothing that is in it is lost; there is no way back."""
    # Not at the top: it takes as long as everything else that this command loads.
    from indelible.store.address import describe, parse_address  # noqa: PLC0415
    from indelible.store.migrate import migrate as bring_up_to_date  # noqa: PLC0415

    chosen = load_settings(database=database).database
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
    from rich.console import Console  # noqa: PLC0415  (as above)
    from rich.progress import Progress  # noqa: PLC0415

    from indelible.store.backup import back_up  # noqa: PLC0415

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("Copying", total=None)

        def show(copied: int, total: int) -> None:
            description = "Copying" if copied < total else "Checking"
            progress.update(task, description=description, completed=copied, total=total)

        size_bytes = back_up(load_settings(database=database).database, target, overwrite=force, on_progress=show)
    print(f"{target} is a whole copy, checked, of {size_bytes:,} bytes.")
