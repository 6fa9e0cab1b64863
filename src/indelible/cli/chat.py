"""`indelible chat`: a chat in the terminal, or a filter in a pipe. The chat itself is the package terminal."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from indelible.cli.options import DatabaseOption, ModelOption, ServerOption, check_model, find_server, read_settings

EXAMPLES: Final = """\b
Examples:
  indelible chat                       start a chat with the demo model
  indelible chat --resume              resume the most recent chat
  indelible chat --resume 2            resume another, by its number or id in 'indelible chats'
  indelible chat --model anthropic:claude-sonnet-4-5
  indelible chat --server http://127.0.0.1:8000    on a server; it answers
  indelible chat --pace 0.1            a slow reply, easy to stop
  echo "roll a die" | indelible chat   ask without a terminal"""


def chat(
    chat: Annotated[
        str | None, typer.Argument(metavar="CHAT", help="Chat to resume: its number or id in 'indelible chats'.")
    ] = None,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a chat (default: the most recent).")] = False,
    database: DatabaseOption = None,
    server: ServerOption = None,
    model: ModelOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="No prompt and no colours, as in a pipe.")] = False,
    pace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time the demo model takes for each word.")
    ] = 0.02,
    seed: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Make the demo model choose different words.")
    ] = None,
) -> None:
    """Chat in the terminal. Every word is saved as it arrives.

    Ctrl-C stops a reply and keeps it. Ctrl-D exits. A reply interrupted by a crash, or by exiting, resumes with the
    chat.
    """
    settings, url = read_settings(model=model, database=database), find_server(server, database)

    from indelible.clock import SystemClock  # noqa: PLC0415  (see main.py)
    from indelible.terminal import describe_database, open_chat, open_database  # noqa: PLC0415

    clock, resume = SystemClock(), resume or chat is not None
    if url is not None:
        from indelible.client.client import Client  # noqa: PLC0415

        remote = Client(url, token=settings.token or None)
        raise typer.Exit(
            open_chat(remote, where=url, clock=clock, resume=resume, chat_name=chat, model=model, plain=plain)
        )
    check_model(settings)
    local = open_database(settings, clock=clock, demo_pace_s=pace, demo_seed=seed)
    where = describe_database(settings)
    raise typer.Exit(open_chat(local, where=where, clock=clock, resume=resume, chat_name=chat, plain=plain))
