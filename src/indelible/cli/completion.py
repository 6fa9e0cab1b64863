"""`indelible completion`: the script with which a shell completes commands and options.

The script is typer's: for each Tab it runs `indelible` with a variable that asks what may come next (`COMPLETE`), which
loads no more than `--help` does. We print it and change no file of the user.

Must stay true (tests/test_cli_commands.py): bash completes commands, commands of groups, and options.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer

from indelible.cli.options import UsageMistake

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
