"""A chat in the terminal: a user's chats, in a database that this process opens or on a server.

In a terminal `open_chat` runs a session with a prompt (chat.py); with a pipe on either side it is a filter (plain.py).
`ask` is one question. They get a `User` to open: local.py opens one with a worker, and `indelible.Client` is one on a
server, so the terminal has no code for HTTP. Everything runs in one event loop and ends by closing the user: SIGTERM
cancels the session, the worker hands off its reply, and the terminal settings are restored.

Must stay true (tests/test_cli.py): SIGTERM at the prompt or in a reply leaves the terminal as it was, and the reply is
handed off; a chat on a server is the same chat.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text as StyledText

from indelible.app.app import User
from indelible.app.chat import Chat
from indelible.clock import Clock
from indelible.terminal.feed_view import ChatSetup
from indelible.terminal.plain import Asker, PlainChat, read_all, read_lines
from indelible.terminal.reports import find_chat


def open_chat(
    opened: AbstractAsyncContextManager[User],
    *,
    where: str,
    clock: Clock,
    setup: ChatSetup,
    resume: bool = False,
    chat_name: str | None = None,
    plain: bool = False,
    lines: bool = False,
) -> int:
    """Chat over standard input and output until they or the user end it; returns the exit status.

    With `resume` it resumes an existing chat (reports.find_chat), which is given `setup`. `where` is shown first. With
    `lines` each line of a pipe is a message; otherwise all of it is one.
    """
    source = sys.stdin or Path(os.devnull).open()  # noqa: SIM115  (closed by whoever started us)
    started_at = clock.now()
    in_terminal = not plain and source.isatty() and sys.stdout.isatty()

    async def run() -> int:
        async with opened as user:
            chat = await _resume(user, chat_name, setup) if resume else None
            if in_terminal:
                await _run_in_terminal(user, chat, where=where, clock=clock, setup=setup)
                return 0
            filtered = PlainChat(
                user, out=sys.stdout, errors=sys.stderr, clock=clock, setup=setup, started_at=started_at
            )
            read = read_lines if lines or source.isatty() else read_all
            await filtered.run(chat, read(source))
            return int(filtered.failed)

    return asyncio.run(_end_on_sigterm(run()))


async def _resume(user: User, name: str | None, setup: ChatSetup) -> Chat:
    chat = await find_chat(user, name)
    await setup.apply_to(chat)
    return chat


async def _run_in_terminal(user: User, chat: Chat | None, *, where: str, clock: Clock, setup: ChatSetup) -> None:
    from indelible.terminal.chat import TerminalChat  # noqa: PLC0415  (a pipe needs no prompt_toolkit)
    from indelible.terminal.prompt import Prompt  # noqa: PLC0415

    console = Console(highlight=False)
    console.print(StyledText.assemble(("Indelible", "bold"), (f" · {where}", "dim")))
    meanings = {name: meaning for name, (meaning, _) in TerminalChat.COMMANDS.items()}
    keyboard = Prompt(meanings, colours=console.color_system is not None)
    await TerminalChat(user, console=console, clock=clock, keyboard=keyboard, setup=setup).run(chat)


def ask(
    opened: AbstractAsyncContextManager[User],
    question: str,
    *,
    clock: Clock,
    setup: ChatSetup,
    files: Sequence[Path] = (),
    resume: bool = False,
    chat_name: str | None = None,
    as_json: bool = False,
) -> int:
    """Ask one question, in a new chat or a resumed one, and write the reply; returns the exit status."""

    async def run() -> int:
        async with opened as user:
            attached = [await user.upload(file) for file in files]
            if resume:
                chat = await _resume(user, chat_name, setup)
            else:
                chat = await user.create_chat(model=setup.model, system=setup.system)
            asker = Asker(out=sys.stdout, errors=sys.stderr, clock=clock)
            return await asker.ask(chat, [question, *attached], as_json=as_json)

    return asyncio.run(_end_on_sigterm(run()))


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
