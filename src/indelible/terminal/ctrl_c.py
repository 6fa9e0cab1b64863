"""What Ctrl-C does during a reply: the first one stops it, the second one does not wait until it has stopped.

A stop is a durable command like any other: the worker saves the reply so far. Ctrl-C arrives as a signal, which
`receive_ctrl_c` turns into a callback of the event loop: a signal handler would run between any two bytecodes, where
nothing can be stopped safely.

Must stay true (tests/terminal/test_chat.py, tests/terminal/test_ask.py): after a stop the partial reply is saved; a
second Ctrl-C leaves, and the stop holds; it leaves even if the server that should store the stop does not answer.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from indelible.app.chat import Chat

_UNSENT_STOP_S: Final = 1.0
"""How long the second press waits for the stop to be stored: a server may be down."""


class Presses:
    """Ctrl-C during one reply: the first press, and the second."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def add(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def follow_until_stopped(follow: Coroutine[Any, Any, None], chat: Chat, presses: Presses) -> bool:
    """Follow a reply to its end; the first press stops it. False if the second one came before the end."""
    following = asyncio.create_task(follow)
    stopping = asyncio.create_task(_stop(chat, presses))
    leaving = asyncio.create_task(presses.second.wait())
    tasks = {following, stopping, leaving}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            await asyncio.wait({stopping}, timeout=_UNSENT_STOP_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not following.cancelled():
        following.result()
        return True
    if not stopping.cancelled() and leaving.cancelled():
        stopping.result()
    return False


async def _stop(chat: Chat, presses: Presses) -> None:
    await presses.first.wait()
    await chat.interrupt(wait=False)
    await presses.second.wait()


@contextmanager
def receive_ctrl_c(react: Callable[[], None]) -> Iterator[None]:
    """During the block SIGINT calls `react` in the event loop, and does nothing else."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, react)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
