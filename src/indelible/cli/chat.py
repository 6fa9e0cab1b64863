"""`indelible chat`: a chat in the terminal, or a filter in a pipe. The chat itself is the package terminal."""

from __future__ import annotations

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
)

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
    database: DatabaseOption = None,
    server: ServerOption = None,
    model: ModelOption = None,
    system: SystemOption = None,
    tools: ToolsOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="No prompt and no colours, as in a pipe.")] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="In a pipe, each line is a message; otherwise all of it is one.")
    ] = False,
    pace: PaceOption = 0.02,
    seed: SeedOption = None,
) -> None:
    """Chat in the terminal. Every word is saved as it arrives.

    Ctrl-C stops a reply and keeps it. Ctrl-D exits. A reply interrupted by a crash, or by exiting, resumes with the
    chat. If a server has the database open, the chat runs on that server.
    """
    from indelible.clock import SystemClock
    from indelible.terminal.feed_view import ChatSetup
    from indelible.terminal.session import open_chat

    clock = SystemClock()
    opened, where = open_to_chat(
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
