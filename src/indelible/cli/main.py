"""The `indelible` command: it assembles the commands and reports failures.

Each command has its own module of the same name. A command reads its options, imports what it needs, and runs it. A
failure is one line on standard error: status 2 for a mistake on the command line or in a setting, 1 for everything else
(a database or a port in use, a user or a chat that does not exist). A traceback is always a bug.

The help is plain text, not boxes: its examples keep their columns, and nothing has to be imported to draw it.

Must stay true (tests/test_cli.py): no mistake on the command line shows a traceback; `indelible --help` loads neither
the database nor the settings.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from indelible.cli.ask import ASK_EXAMPLES, ask
from indelible.cli.backup import BACKUP_EXAMPLES, backup
from indelible.cli.chat import CHAT_EXAMPLES, chat
from indelible.cli.chats import chats_app
from indelible.cli.completion import COMPLETION_EXAMPLES, completion, prepare_completion
from indelible.cli.copy import COPY_EXAMPLES, copy
from indelible.cli.debug import debug_app
from indelible.cli.doctor import DOCTOR_EXAMPLES, doctor
from indelible.cli.login_link import LOGIN_LINK_EXAMPLES, login_link
from indelible.cli.migrate import MIGRATE_EXAMPLES, migrate
from indelible.cli.options import UsageMistake
from indelible.cli.prove import PROVE_EXAMPLES, prove
from indelible.cli.serve import SERVE_EXAMPLES, serve
from indelible.cli.token import token_app
from indelible.cli.usage import USAGE_EXAMPLES, usage
from indelible.cli.user import user_app
from indelible.cli.worker import WORKER_EXAMPLES, worker
from indelible.errors import IndelibleError

_PROBLEM: Final = 1
_BAD_USAGE: Final = 2


def main() -> None:
    """The entry point. A failure becomes one line."""
    signal.signal(signal.SIGTERM, _exit)
    prepare_completion()
    _escape_what_cannot_be_encoded()
    try:
        sys.exit(_assemble()(prog_name="indelible", standalone_mode=False))
    except typer.TyperException as error:
        _fail_as_typed(error)
    except UsageMistake as error:
        _fail(str(error), status=_BAD_USAGE)
    except IndelibleError as error:
        _fail(str(error), status=_PROBLEM)
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_PROBLEM)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(128 + signal.SIGINT)


def _escape_what_cannot_be_encoded() -> None:
    """Chats hold any letter, and a locale's encoding may lack it: the output then gets its number, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a closed one is None
            stream.reconfigure(errors="backslashreplace")


def _assemble() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(indelible)
    app.command(epilog=CHAT_EXAMPLES)(chat)
    app.command(epilog=ASK_EXAMPLES)(ask)
    app.add_typer(chats_app, name="chats")
    app.command(epilog=USAGE_EXAMPLES)(usage)
    app.command(epilog=SERVE_EXAMPLES)(serve)
    app.command(epilog=WORKER_EXAMPLES)(worker)
    app.command(epilog=MIGRATE_EXAMPLES)(migrate)
    app.command(epilog=BACKUP_EXAMPLES)(backup)
    app.command(epilog=COPY_EXAMPLES)(copy)
    app.command(epilog=DOCTOR_EXAMPLES)(doctor)
    app.add_typer(debug_app, name="debug")
    app.add_typer(user_app, name="user")
    app.add_typer(token_app, name="token")
    app.command(epilog=LOGIN_LINK_EXAMPLES)(login_link)
    app.command(epilog=PROVE_EXAMPLES)(prove)
    app.command(epilog=COMPLETION_EXAMPLES)(completion)
    return app


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit through every `finally`, so that the terminal's cursor and echo are restored."""
    sys.exit(128 + number)


def _fail_as_typed(error: typer.TyperException) -> NoReturn:
    """A mistake that typer found; `indelible user` alone is one, and gets its help."""
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if context is not None and message == context.get_help():
        sys.stderr.write(f"{message}\n")
        sys.exit(error.exit_code)
    command = "indelible" if context is None else context.command_path
    _fail(f"{message.rstrip('.')}. See '{command} --help'.", status=error.exit_code)


def _fail(sentence: str, *, status: int) -> NoReturn:
    sys.stderr.write(f"indelible: {sentence}\n")
    sys.exit(status)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"indelible {_find_version()}\n")
        raise typer.Exit


def _find_version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("indelible")
    except importlib.metadata.PackageNotFoundError:
        return "(from a source tree that is not installed)"


def indelible(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable chats with language models. Every token is saved before you see it."""
