"""A chat in the terminal: a user's chats, in a database that this process opens or on a server.

In a terminal `open_chat` runs a session with a prompt (chat.py); with a pipe on either side it is a filter (plain.py).
It gets a `User` to open: `open_database` opens one with a worker, and `indelible.Client` is one on a server, so the
terminal has no code for HTTP. Everything runs in one event loop and ends by closing the user: SIGTERM cancels the
session, the worker hands off its reply, and the terminal settings are restored. `print_chats` only reads, so it may
run next to an open chat.

Must stay true (tests/test_cli.py): SIGTERM at the prompt or in a reply leaves the terminal as it was, and the reply is
handed off; a chat on a server is the same chat.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from rich.console import Console
from rich.text import Text as StyledText

from indelible.app.chat import Chat
from indelible.app.compose import open_app
from indelible.app.user import User
from indelible.clock import Clock
from indelible.models.providers.demo.model import DemoModel
from indelible.settings import Settings
from indelible.store.database.address import describe, parse_address
from indelible.terminal.demo_tools import make_demo_tools
from indelible.terminal.listing import find_chat, list_chats
from indelible.terminal.plain import PlainChat, read_lines

__all__ = ["describe_database", "open_chat", "open_database", "print_chats"]


def open_database(
    settings: Settings, *, clock: Clock, demo_pace_s: float = 0.02, demo_seed: int | None = None
) -> AbstractAsyncContextManager[User]:
    """The local user's chats, with a worker. The demo model is given its pace and seed."""
    demo = DemoModel(clock, pace_s=demo_pace_s, seed=demo_seed)
    return open_app(
        settings=settings,
        model=demo if settings.model == demo.name else settings.model,
        models={demo.name: demo},
        tools=make_demo_tools(clock, pace_s=demo_pace_s) if settings.model == demo.name else (),
        clock=clock,
    )


def describe_database(settings: Settings) -> str:
    return f"{settings.model} model · {describe(parse_address(settings.database))}"


def open_chat(
    opened: AbstractAsyncContextManager[User],
    *,
    where: str,
    clock: Clock,
    resume: bool = False,
    chat_name: str | None = None,
    model: str | None = None,
    plain: bool = False,
) -> int:
    """Chat over standard input and output until they or the user end it; returns the exit status.

    With `resume` it resumes an existing chat (listing.find_chat); `model` is for a new one. `where` is shown first.
    """
    in_terminal = not plain and sys.stdin.isatty() and sys.stdout.isatty()

    async def run() -> int:
        async with opened as user:
            chat = await find_chat(user, chat_name) if resume else None
            if in_terminal:
                await _run_in_terminal(user, chat, where=where, clock=clock, model=model)
                return 0
            filtered = PlainChat(user, out=sys.stdout, errors=sys.stderr, clock=clock, model=model)
            await filtered.run(chat, read_lines(sys.stdin))
            return int(filtered.failed)

    return asyncio.run(_end_on_sigterm(run()))


async def _run_in_terminal(user: User, chat: Chat | None, *, where: str, clock: Clock, model: str | None) -> None:
    from indelible.terminal.chat import TerminalChat  # noqa: PLC0415  (a pipe needs no prompt_toolkit)
    from indelible.terminal.prompt import Prompt  # noqa: PLC0415

    console = Console(highlight=False)
    console.print(StyledText.assemble(("Indelible", "bold"), (f" · {where}", "dim")))
    keyboard = Prompt(colours=console.color_system is not None)
    await TerminalChat(user, console=console, clock=clock, keyboard=keyboard, model=model).run(chat)


async def _end_on_sigterm(work: Coroutine[Any, Any, int]) -> int:
    """Run this. Only the first SIGTERM cancels it: the cleanup must not be interrupted."""
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


def print_chats(opened: AbstractAsyncContextManager[User], *, limit: int) -> None:
    """List the user's chats on standard output."""

    async def load() -> list[str]:
        async with opened as user:
            return await list_chats(user, limit=limit)

    lines = asyncio.run(load())
    sys.stdout.write("".join(f"{line}\n" for line in lines))
