"""The prompt: prompt_toolkit in the event loop that everything else runs in, and the terminal during a reply.

One event loop, no thread: while the prompt waits for the user, the worker heartbeats, gives chats their titles, and
runs replies for other clients. The history of typed lines is a file, shared by all chats; Enter sends, Alt-Enter
starts a new line, and pasted text may have several.

Ctrl-C arrives in two ways. At the prompt it is a key, and ends the line. At any other time the terminal sends a signal,
which `receive_ctrl_c` turns into a callback of the event loop: a signal handler would run between any two bytecodes,
where nothing can be stopped safely. `hush_echo` keeps keys that are typed during a reply from being
printed into it; they are not lost: the next prompt reads them.

Must stay true (tests/test_cli.py, on a real pseudo-terminal): what is typed during a reply reaches the prompt;
whichever way the program ends, the terminal is left as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from indelible.terminal.widgets import PROMPT

if sys.platform != "win32":
    import termios


class Prompt:
    """Reads a line or several. Raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C."""

    def __init__(self, *, colours: bool = True) -> None:
        style = "bold ansicyan" if colours else ""
        self._session: PromptSession[str] = PromptSession(
            FormattedText([(style, PROMPT)]),
            history=_open_history(),
            key_bindings=_bind_keys(),
            output=_open_output(),
            enable_history_search=True,
            prompt_continuation=" " * len(PROMPT),
        )

    async def read(self, *, prefill: str = "") -> str:
        """The user's input; `prefill` is on the line already, to be edited."""
        return await self._session.prompt_async(default=prefill, handle_sigint=False)

    def interrupt(self) -> None:
        """Act like Ctrl-C: for a signal that arrives while the prompt is open."""
        if self._session.app.is_running:
            self._session.app.exit(exception=KeyboardInterrupt)


def _bind_keys() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _open_output() -> Output:
    """Standard output. It does not query the cursor position: some terminals never reply, and nothing here needs it."""
    if sys.platform == "win32":
        return create_output()
    output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
    output.enable_cpr = False
    return output


def _open_history() -> History:
    """The file in the user's state directory; if it cannot be written, the memory of this session."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(state) / "indelible" / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


@contextlib.contextmanager
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


@contextlib.contextmanager
def hush_echo(keyboard: TextIO) -> Iterator[None]:
    """During the block the terminal does not echo typed keys."""
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
