"""The `indelible` command.

Each command reads its options, builds what it needs and hands over. A mistake of the user is one
line on standard error that says what to do about it, and exit status 2. A traceback is always a
fault of ours.

Must stay true (tests/test_cli.py): no mistake on the command line shows a traceback.

The chat itself is the package terminal.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from indelible.clock import SystemClock
from indelible.errors import IndelibleError
from indelible.models.demo import DemoModel
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
    model: Annotated[str, typer.Option(metavar="NAME", help="Who answers. There is: demo.")] = "demo",
    pace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long the demo model takes for a word.")
    ] = 0.02,
    seed: Annotated[int | None, typer.Option(metavar="NUMBER", help="Make the demo model choose other words.")] = None,
) -> None:
    """Chat in the terminal. The chat is kept in memory and ends with the program.

    Ctrl-C stops a reply and keeps what was said. Ctrl-D leaves.
    """
    if model not in _MODELS:
        _give_up(f"There is no model '{model}'. Available: {', '.join(_MODELS)}.", status=_BAD_USAGE)
    clock = SystemClock()
    conversation = Conversation(
        DemoModel(clock, pace_s=pace, seed=seed), clock=clock, tools=make_demo_tools(clock, pace_s=pace)
    )
    raise typer.Exit(open_chat(conversation, clock=clock))
