"""The chat in a terminal: the prompt, its commands, and what Ctrl-C means.

At the prompt no event loop runs: `input` blocks, as a prompt should, and has line editing. During a
reply Ctrl-C is a stop: the scope is interrupted, the loop keeps what was said, and the chat goes on.
Ctrl-C at the prompt leaves, and so does a second one within two seconds. One that comes just after
a reply has ended by itself was meant for that reply, so it does not leave.

Must stay true (tests/test_cli.py, a real process on a real pseudo-terminal): after a stop the
partial reply is in the history, and the next message is answered. (tests/terminal/test_chat.py):
which Ctrl-C leaves.

How a reply looks is screen.py; what is kept is conversation.py; without a terminal, plain.py.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.text import Text as StyledText

from indelible.clock import Clock
from indelible.content import Block, Text, ToolCall, ToolResult
from indelible.loop import Scope
from indelible.terminal.conversation import Conversation
from indelible.terminal.keyboard import catch_ctrl_c, hush_echo
from indelible.terminal.markdown import disarm
from indelible.terminal.screen import Screen

_SECOND_PRESS_S: Final = 2.0
_LATE_STOP_S: Final = 1.0
_PROMPT: Final = "you › "
# The bytes 1 and 2 tell readline what takes up no room on the line.
_COLOURED_PROMPT: Final = f"\001\033[1;36m\002{_PROMPT}\001\033[0m\002"
_COMMANDS: Final = """\
/history   what the model is told, word for word
/continue  ask it to go on where it was cut
/help      this list
/quit      leave, as Ctrl-D does

Ctrl-C stops a reply. What was said is kept."""


class TerminalChat:
    """One session, from the greeting to the farewell."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        console: Console,
        clock: Clock,
        read_line: Callable[[str], str] = input,
    ) -> None:
        self._conversation = conversation
        self._console = console
        self._clock = clock
        self._read_line = read_line
        self._replied_at_s = -math.inf

    def run(self) -> None:
        """Talk until the user leaves."""
        who = f" · {self._conversation.model.name} model"
        self._console.print(StyledText.assemble(("Indelible", "bold"), (who, "dim")))
        self._remark("Say something: “help”, for example. Ctrl-C stops a reply, Ctrl-D leaves, /help lists more.\n")
        with asyncio.Runner() as runner:
            while (line := self._listen()) is not None:
                match line.strip():
                    case "":
                        pass
                    case "/quit":
                        break
                    case "/help":
                        self._remark(f"{_COMMANDS}\n")
                    case "/history":
                        self._print_history()
                    case "/continue":
                        self._reply("continue", runner)
                    case words if words.startswith("/") and words[1:].isalpha():
                        self._remark(f"There is no command {words}. /help lists those that there are.\n")
                    case words:
                        self._reply(words, runner)

    def _listen(self) -> str | None:
        """What the user says next; None when they leave."""
        while True:
            try:
                return self._read_line(_COLOURED_PROMPT if self._console.color_system else _PROMPT)
            except EOFError:
                self._console.print()
                return None
            except KeyboardInterrupt:
                self._console.print()
                if self._clock.monotonic() - self._replied_at_s > _LATE_STOP_S:
                    return None
                self._replied_at_s = -math.inf
                self._remark("The reply had already ended. Ctrl-C again leaves.\n")

    def _reply(self, words: str, runner: asyncio.Runner) -> None:
        scope = Scope()
        pressed_at_s = -math.inf

        def stop() -> None:
            nonlocal pressed_at_s
            now_s = self._clock.monotonic()
            if now_s - pressed_at_s < _SECOND_PRESS_S:
                raise KeyboardInterrupt
            pressed_at_s = now_s
            scope.interrupt()

        self._console.print()
        with (
            hush_echo(sys.stdin),
            catch_ctrl_c(stop, runner.get_loop()),
            Screen(self._console, self._clock) as screen,
        ):
            runner.run(self._conversation.reply(words, scope=scope, publish=screen.show, tell=screen.note))
        if not scope.cancelled:
            self._replied_at_s = self._clock.monotonic()

    def _print_history(self) -> None:
        prompt = self._conversation.build_prompt()
        for message in prompt:
            self._console.print(StyledText(message.role, style="bold"))
            for block in message.blocks:
                self._console.print(StyledText(disarm(_describe(block))))
            self._console.print()
        self._remark(f"{len(prompt)} messages. Notices such as “Stopped by you” are for people; the model gets none.\n")

    def _remark(self, text: str) -> None:
        self._console.print(StyledText(text, style="dim"))


def _describe(block: Block) -> str:
    match block:
        case Text():
            return block.text
        case ToolCall():
            return f"[calls {block.name} {block.arguments}]"
        case ToolResult():
            return f"[{block.name} {'failed' if block.is_error else 'answered'}: {block.output}]"
        case _:
            return f"[{type(block).__name__.lower()}]"
