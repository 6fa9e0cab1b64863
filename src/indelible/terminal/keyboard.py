"""The keyboard: a line at the prompt; during a reply Ctrl-C is a wish that the event loop hears, and other keys wait.

A signal handler runs between any two bytecodes of the main thread, which is no place to stop anything. So it only
wakes the event loop, and the reaction runs there like any other callback.

Without `hush_echo` the terminal would print whatever is typed during a reply into the middle of it.
The keys are not lost: the next prompt reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TextIO

if sys.platform != "win32":
    import readline  # importing it gives `input` its line editing
    import termios


def read_line(prompt: str, *, prefill: str = "") -> str:
    """What the user types; `prefill` stands on the line already, to be changed."""
    if sys.platform == "win32" or not prefill:
        return input(prompt)
    readline.set_startup_hook(lambda: readline.insert_text(prefill))
    try:
        return input(prompt)
    finally:
        readline.set_startup_hook(None)


@contextlib.contextmanager
def catch_ctrl_c(react: Callable[[], None], loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Within, Ctrl-C calls `react` on the event loop, and does nothing else.

    A press that the event loop did not come to hear within is forgotten: it must not stop what comes next.
    """
    listening = True

    def wake(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(react_in_time)

    def react_in_time() -> None:
        if listening:
            react()

    previous = signal.signal(signal.SIGINT, wake)
    try:
        yield
    finally:
        listening = False
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def hush_echo(keyboard: TextIO) -> Iterator[None]:
    """Within, the terminal does not show what is typed."""
    if sys.platform == "win32" or not keyboard.isatty():
        yield
        return
    before = termios.tcgetattr(keyboard)
    hushed = before.copy()
    hushed[3] &= ~termios.ECHO
    termios.tcsetattr(keyboard, termios.TCSANOW, hushed)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)
