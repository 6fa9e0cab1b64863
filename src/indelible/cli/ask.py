"""`indelible ask`: one question, for scripts and for a quick answer. The asking itself is terminal/plain.py.

What is piped in comes before the question, as context: models read a long text first and its question last.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from indelible.cli.opening import open_to_chat
from indelible.cli.options import (
    DatabaseOption,
    ModelOption,
    PaceOption,
    SeedOption,
    ServerOption,
    SystemOption,
    ToolsOption,
    UsageMistake,
)

ASK_EXAMPLES: Final = """\b
Examples:
  indelible ask "roll a die"
  git diff | indelible ask "Write a commit message." --model openai:gpt-5.1
  indelible ask "What is in this picture?" --file photo.png
  indelible ask --resume "And in French?"          in the most recent chat
  indelible ask "roll a die" --json | jq -r .text
  indelible ask "roll a die" </dev/null            in a loop that reads its own input

The exit status is 0, 1 if the reply failed, 2 for a mistake, 130 after Ctrl-C."""


def ask(
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="What to ask (default: all of standard input).")
    ] = None,
    *,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", metavar="FILE", exists=True, dir_okay=False, help="Attach a file. Repeatable."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Ask in the most recent chat.")] = False,
    chat: Annotated[
        str | None, typer.Option("--chat", metavar="CHAT", help="Ask in this chat: its number or id.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object: text, outcome, ids, usage, cost, error.")
    ] = False,
    database: DatabaseOption = None,
    server: ServerOption = None,
    model: ModelOption = None,
    system: SystemOption = None,
    tools: ToolsOption = None,
    pace: PaceOption = 0,
    seed: SeedOption = None,
) -> None:
    """Ask one question and print the reply.

    Piped input is the context of the question. The chat is saved: 'indelible chat --resume' continues it.
    """
    text = _join(question)

    from indelible.clock import SystemClock
    from indelible.terminal.feed_view import ChatSetup
    from indelible.terminal.session import ask as ask_in_terminal

    clock = SystemClock()
    opened, _ = open_to_chat(
        server=server, database=database, model=model, tools=tools, clock=clock, pace_s=pace, seed=seed
    )
    status = ask_in_terminal(
        opened,
        text,
        clock=clock,
        setup=ChatSetup(model=model, system=system),
        files=file or (),
        resume=resume or chat is not None,
        chat_name=chat,
        as_json=json,
    )
    raise typer.Exit(status)


def _join(question: str | None) -> str:
    """The context that is piped in, and the question below it."""
    from indelible.terminal.plain import MAX_INPUT_BYTES, refuse_endless

    piped = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    refuse_endless(len(piped))
    context = piped.decode(sys.stdin.encoding, errors="replace") if piped else ""
    text = "\n\n".join(part for part in (context.strip(), (question or "").strip()) if part)
    if not text:
        raise UsageMistake('There is no question. Example: indelible ask "roll a die"')
    return text
