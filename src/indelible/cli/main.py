"""The `indelible` command: it assembles the commands and reports failures.

A command reads its options, imports what it needs, and runs it. A
failure is one line on standard error: status 2 for a mistake on the command line or in a setting, 1 for everything else
(a database or a port in use, a user or a chat that does not exist). A traceback is always a bug.

A shell completes by a script of typer's: for each Tab it runs `indelible` with a variable that asks what may come next
(`COMPLETE`), which loads no more than `--help` does. We print the script and change no file of the user.

The help is plain text, not boxes: its examples keep their columns, and nothing has to be imported to draw it.

Must stay true (tests/test_cli.py): no mistake on the command line shows a traceback; `indelible --help` loads neither
the database nor the settings. (tests/test_cli_commands.py): bash completes commands, commands of groups, and options.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from indelible.cli import database
from indelible.cli.accounts import LOGIN_LINK_EXAMPLES, login_link, token_app, user_app
from indelible.cli.chat import ASK_EXAMPLES, CHAT_EXAMPLES, ask, chat
from indelible.cli.chats import USAGE_EXAMPLES, chats_app, debug_app, usage
from indelible.cli.options import UsageMistake
from indelible.cli.prove import PROVE_EXAMPLES, prove
from indelible.cli.serve import SERVE_EXAMPLES, WORKER_EXAMPLES, serve, worker
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
    app.command(epilog=database.MIGRATE_EXAMPLES)(database.migrate)
    app.command(epilog=database.BACKUP_EXAMPLES)(database.backup)
    app.command(epilog=database.COPY_EXAMPLES)(database.copy)
    app.command(epilog=database.DOCTOR_EXAMPLES)(database.doctor)
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


COMPLETE: Final = "_INDELIBLE_COMPLETE"

COMPLETION_EXAMPLES: Final = """\b
Examples:
  eval "$(indelible completion bash)"      in ~/.bashrc
  eval "$(indelible completion zsh)"       in ~/.zshrc, after compinit
  indelible completion fish > ~/.config/fish/completions/indelible.fish"""

_SHELLS: Final = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="The shell.")],
) -> None:
    """Print the script that makes a shell complete commands and options."""
    if shell not in _SHELLS:
        raise UsageMistake(f"Unknown shell {shell!r}. Choose {', '.join(_SHELLS[:-1])} or {_SHELLS[-1]}.")

    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    sys.stdout.write(get_completion_script(prog_name="indelible", complete_var=COMPLETE, shell=shell) + "\n")


def prepare_completion() -> None:
    """If a shell asks what may come next, let typer answer it."""
    if COMPLETE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
