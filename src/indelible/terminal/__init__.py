"""A chat in the terminal: one reader and writer of a database of chats, with the worker that answers them.

`open_chat` finds out where it runs. In a terminal it is a conversation with a prompt (chat.py);
with a pipe on either side it is a filter (plain.py). `print_chats` only looks, so it may run beside
a chat that is open.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text as StyledText

from indelible.app.compose import open_app
from indelible.clock import Clock
from indelible.models.providers.demo.model import DemoModel
from indelible.settings import Settings
from indelible.store.database.address import describe, parse_address
from indelible.terminal.chat import TerminalChat
from indelible.terminal.demo_tools import make_demo_tools
from indelible.terminal.listing import find_chat, list_chats
from indelible.terminal.loop_thread import LoopThread
from indelible.terminal.plain import PlainChat

__all__ = ["open_chat", "print_chats"]


def open_chat(
    settings: Settings,
    *,
    clock: Clock,
    resume: bool = False,
    chat_name: str | None = None,
    plain: bool = False,
    demo_pace_s: float = 0.02,
    demo_seed: int | None = None,
) -> int:
    """Chat over standard input and output until they or the user end it; returns the exit status.

    With `resume` it goes on with a chat that is there (listing.find_chat). The demo model is given its pace and seed.
    """
    demo = DemoModel(clock, pace_s=demo_pace_s, seed=demo_seed)
    opened = open_app(
        settings=settings,
        model=demo if settings.model == demo.name else settings.model,
        models={demo.name: demo},
        tools=make_demo_tools(clock, pace_s=demo_pace_s) if settings.model == demo.name else (),
        clock=clock,
    )
    with LoopThread(opened) as loop_thread:
        chat = loop_thread.run(find_chat(loop_thread.value, chat_name)) if resume else None
        if plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
            filtered = PlainChat(loop_thread, out=sys.stdout, errors=sys.stderr)
            filtered.run(chat, sys.stdin)
            return int(filtered.failed)
        console = Console(highlight=False)
        where = f" · {settings.model} model · {describe(parse_address(settings.database))}"
        console.print(StyledText.assemble(("Indelible", "bold"), (where, "dim")))
        TerminalChat(loop_thread, console=console, clock=clock).run(chat)
    return 0


def print_chats(settings: Settings, *, limit: int) -> None:
    """List the user's chats on standard output."""
    with LoopThread(open_app(settings=settings, worker=False)) as loop_thread:
        lines = loop_thread.run(list_chats(loop_thread.value, limit=limit))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
