"""A chat in the terminal: one reader and writer of a database of chats, with the worker that answers them.

`open_chat` finds out where it runs: in a terminal it is a conversation with a prompt (chat.py), with a pipe on either
side a filter (plain.py). Everything is one event loop and ends by leaving `open_app`: SIGTERM cancels the session, the
worker hands off its reply, and the terminal gets its settings back. `print_chats` only reads, so it may run beside an
open chat.

Must stay true (tests/test_cli.py): SIGTERM at the prompt or in a reply leaves the terminal as it was, and the reply is
handed off.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from rich.console import Console
from rich.text import Text as StyledText

from indelible.app.app import App
from indelible.app.compose import open_app
from indelible.clock import Clock
from indelible.models.providers.demo.model import DemoModel
from indelible.settings import Settings
from indelible.store.database.address import describe, parse_address
from indelible.terminal.demo_tools import make_demo_tools
from indelible.terminal.listing import find_chat, list_chats
from indelible.terminal.plain import PlainChat, read_lines

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

    With `resume` it resumes an existing chat (listing.find_chat). The demo model is given its pace and seed.
    """
    demo = DemoModel(clock, pace_s=demo_pace_s, seed=demo_seed)
    opened = open_app(
        settings=settings,
        model=demo if settings.model == demo.name else settings.model,
        models={demo.name: demo},
        tools=make_demo_tools(clock, pace_s=demo_pace_s) if settings.model == demo.name else (),
        clock=clock,
    )
    in_terminal = not plain and sys.stdin.isatty() and sys.stdout.isatty()

    async def run() -> int:
        async with opened as app:
            chat = await find_chat(app, chat_name) if resume else None
            if in_terminal:
                await _chat_in_terminal(app, settings, clock).run(chat)
                return 0
            filtered = PlainChat(app, out=sys.stdout, errors=sys.stderr)
            await filtered.run(chat, read_lines(sys.stdin))
            return int(filtered.failed)

    return asyncio.run(_end_on_sigterm(run()))


def _chat_in_terminal(app: App, settings: Settings, clock: Clock) -> Any:
    from indelible.terminal.chat import TerminalChat  # noqa: PLC0415  (a pipe needs no prompt_toolkit)
    from indelible.terminal.prompt import Prompt  # noqa: PLC0415

    console = Console(highlight=False)
    where = f" · {settings.model} model · {describe(parse_address(settings.database))}"
    console.print(StyledText.assemble(("Indelible", "bold"), (where, "dim")))
    keyboard = Prompt(colours=console.color_system is not None)
    return TerminalChat(app, console=console, clock=clock, keyboard=keyboard)


async def _end_on_sigterm(work: Coroutine[Any, Any, int]) -> int:
    """Do this. SIGTERM cancels it, once: what is on its way out must not be interrupted there."""
    task = asyncio.ensure_future(work)
    loop, terminated = asyncio.get_running_loop(), False

    def terminate() -> None:
        nonlocal terminated
        if not terminated:
            terminated = True
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await task
    except asyncio.CancelledError:
        if not terminated:
            raise
        return 128 + signal.SIGTERM
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def print_chats(settings: Settings, *, limit: int) -> None:
    """List the user's chats on standard output."""

    async def load() -> list[str]:
        async with open_app(settings=settings, worker=False) as app:
            return await list_chats(app, limit=limit)

    lines = asyncio.run(load())
    sys.stdout.write("".join(f"{line}\n" for line in lines))
