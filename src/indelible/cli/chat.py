"""`indelible chat` and `indelible ask`: a chat in the terminal or a filter in a pipe, and one question for scripts.

The chat itself is the package terminal. What is piped into `ask` comes before the question, as context: models read a
long text first and its question last.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from indelible.cli import options

CHAT_EXAMPLES: Final = """\b
Examples:
  indelible chat                       start a chat with the demo model
  indelible chat --resume              resume the most recent chat
  indelible chat --resume 2            resume another, by its number or id in 'indelible chats'
  indelible chat --model anthropic:claude-sonnet-4-5 --system "Be brief."
  indelible chat --tools mytools:TOOLS             let the model call your tools
  indelible chat --server http://127.0.0.1:8000    on a server; it answers
  indelible chat --pace 0.1            a slow reply, easy to stop
  echo "roll a die" | indelible chat   ask without a terminal
  indelible chat --lines < questions   each line is a message"""


def chat(
    chat: Annotated[
        str | None, typer.Argument(metavar="CHAT", help="Chat to resume: its number or id in 'indelible chats'.")
    ] = None,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a chat (default: the most recent).")] = False,
    database: options.DatabaseOption = None,
    server: options.ServerOption = None,
    model: options.ModelOption = None,
    system: options.SystemOption = None,
    tools: options.ToolsOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="No prompt and no colours, as in a pipe.")] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="In a pipe, each line is a message; otherwise all of it is one.")
    ] = False,
    pace: options.PaceOption = 0.02,
    seed: options.SeedOption = None,
) -> None:
    """Chat in the terminal. Every word is saved as it arrives.

    Ctrl-C stops a reply and keeps it. Ctrl-D exits. A reply interrupted by a crash, or by exiting, resumes with the
    chat. If a server has the database open, the chat runs on that server.
    """
    from indelible.clock import SystemClock
    from indelible.terminal.feed_view import ChatSetup
    from indelible.terminal.session import open_chat

    clock = SystemClock()
    opened, where = options.open_to_chat(
        server=server, database=database, model=model, tools=tools, clock=clock, pace_s=pace, seed=seed
    )
    status = open_chat(
        opened,
        where=where,
        clock=clock,
        setup=ChatSetup(model=model, system=system),
        resume=resume or chat is not None,
        chat_name=chat,
        plain=plain,
        lines=lines,
    )
    raise typer.Exit(status)


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
    database: options.DatabaseOption = None,
    server: options.ServerOption = None,
    model: options.ModelOption = None,
    system: options.SystemOption = None,
    tools: options.ToolsOption = None,
    pace: options.PaceOption = 0,
    seed: options.SeedOption = None,
) -> None:
    """Ask one question and print the reply.

    Piped input is the context of the question. The chat is saved: 'indelible chat --resume' continues it.
    """
    text = _join(question)

    from indelible.clock import SystemClock
    from indelible.terminal.feed_view import ChatSetup
    from indelible.terminal.session import ask as ask_in_terminal

    clock = SystemClock()
    opened, _ = options.open_to_chat(
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
        raise options.UsageMistake('There is no question. Example: indelible ask "roll a die"')
    return text
