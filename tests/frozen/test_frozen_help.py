"""What `--help` of every command says (tests/frozen/help.txt)."""

from __future__ import annotations

import re

from tests.frozen.recording import compare
from tests.support.commands import run_indelible

COMMANDS = re.compile(r"^Commands:\n((?:  .*\n)+)", re.MULTILINE)


def show_help(*command: str) -> str:
    done = run_indelible(*command, "--help", COLUMNS="80", NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    return done.stdout


def list_commands(page: str) -> list[str]:
    found = COMMANDS.search(page)
    return [] if found is None else re.findall(r"^  (\S+)", found[1], re.MULTILINE)


def test_every_command_says_of_itself_what_is_recorded() -> None:
    pages: dict[tuple[str, ...], str] = {}
    todo: list[tuple[str, ...]] = [()]
    while todo:  # not in threads: two that poll one process of multiprocessing's fork server read its status 255
        command = todo.pop()
        pages[command] = show_help(*command)
        todo += [(*command, name) for name in list_commands(pages[command])]

    assert len(pages) > 20
    shown = [f"=== {' '.join(['indelible', *command])} --help\n\n{pages[command]}" for command in sorted(pages)]
    compare("help.txt", "\n".join(shown))
