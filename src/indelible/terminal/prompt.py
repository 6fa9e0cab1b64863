"""The prompt: prompt_toolkit in the event loop that everything else runs in, and the terminal during a reply.

One event loop, no thread: while the prompt waits for the user, the worker heartbeats, gives chats their titles, and
runs replies for other clients. The history of typed lines is a file, shared by all chats; Enter sends, Alt-Enter
starts a new line, and pasted text may have several.

Ctrl-C arrives in two ways. At the prompt it is a key, and ends the line. At any other time the terminal sends a signal
(feed_view.py). `hold_keys` keeps keys that are typed during a reply from being printed into it; they are not lost: the
next prompt reads them, also after a Ctrl-C, at which a terminal would otherwise discard them. What is pasted during a
reply is bracketed by the terminal, as at the prompt, so that several lines stay one message.

Must stay true (tests/test_cli.py, on a real pseudo-terminal): what is typed during a reply reaches the prompt;
whichever way the program ends, the terminal is left as it was.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from indelible.terminal.screen import hush_echo
from indelible.terminal.widgets import PROMPT

_BRACKET_PASTES: Final = "\x1b[?2004h"
_STOP_BRACKETING: Final = "\x1b[?2004l"
_WANTS_FILES: Final = "/attach "


class Prompt:
    """Reads a line or several. Raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C.

    The Tab key completes `commands` (name and meaning), and the files of `/attach`.
    """

    def __init__(self, commands: Mapping[str, str], *, colours: bool = True) -> None:
        style = "bold ansicyan" if colours else ""
        self._session: PromptSession[str] = PromptSession(
            FormattedText([(style, PROMPT)]),
            history=_open_history(),
            key_bindings=_bind_keys(),
            output=_open_output(),
            enable_history_search=True,
            completer=CommandCompleter(commands),
            complete_while_typing=False,
            prompt_continuation=" " * len(PROMPT),
        )

    async def read(self, *, prefill: str = "") -> str:
        """The user's input; `prefill` is on the line already, to be edited."""
        return await self._session.prompt_async(default=prefill, handle_sigint=False)

    def interrupt(self) -> None:
        """Act like Ctrl-C: for a signal that arrives while the prompt is open."""
        if self._session.app.is_running:
            self._session.app.exit(exception=KeyboardInterrupt)


class CommandCompleter(Completer):
    """Completes the name of a command at the beginning of the input, and the path after `/attach`."""

    def __init__(self, commands: Mapping[str, str]) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if typed.startswith(_WANTS_FILES):
            path = Document(typed[len(_WANTS_FILES) :])
            yield from self._paths.get_completions(path, complete_event)
        elif typed.startswith("/"):
            for name, meaning in self._commands.items():
                if name.startswith(typed):
                    yield Completion(name, start_position=-len(typed), display_meta=meaning)


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
def hold_keys(keyboard: TextIO) -> Iterator[None]:
    """During the block keys wait for the next prompt: the terminal does not echo them, and brackets what is pasted."""
    if sys.platform == "win32" or not keyboard.isatty():
        yield
        return
    with hush_echo(keyboard):
        _write(_BRACKET_PASTES)
        try:
            yield
        finally:
            _write(_STOP_BRACKETING)


def _write(sequence: str) -> None:
    sys.stdout.write(sequence)
    sys.stdout.flush()
