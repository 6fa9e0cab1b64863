"""The chat in a terminal: the prompt, its commands, and what Ctrl-C means.

The prompt blocks, with line editing; everything else happens backstage (loop_thread.py). During a reply Ctrl-C is a
stop: it is written down like any other command, the worker keeps what was said, and the chat goes on. A second one
while that happens leaves, and so does Ctrl-C at the prompt. One that comes just after a reply has ended by itself
was meant for that reply, so it does not leave.

A chat is made when the first thing is said in it, so that looking in leaves no trace.

Must stay true (tests/test_cli.py, a real process on a real pseudo-terminal): after a stop the partial reply is kept,
and the next message is answered; after `kill -9` a resumed chat goes on. (tests/terminal/test_chat.py): which Ctrl-C
leaves; what each command does.

How a reply looks is screen.py; what is shown of it is feed_view.py; without a terminal, plain.py.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from rich.console import Console
from rich.text import Text as StyledText

from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.clock import Clock
from indelible.content import Role
from indelible.errors import NotFound, Refused, StoreFailed
from indelible.service.results import Accepted, ChatMessage
from indelible.terminal.feed_view import FeedView, begin_chat, describe_blocks
from indelible.terminal.keyboard import catch_ctrl_c, hush_echo, read_line
from indelible.terminal.listing import list_chats
from indelible.terminal.loop_thread import LoopThread
from indelible.terminal.screen import Screen
from indelible.terminal.widgets import PROMPT

_LATE_STOP_S: Final = 1.0
_LOOKED_BACK: Final = 50
# The bytes 1 and 2 tell readline what takes up no room on the line.
_COLOURED_PROMPT: Final = f"\001\033[1;36m\002{PROMPT}\001\033[0m\002"


class ReadLine(Protocol):
    def __call__(self, prompt: str, *, prefill: str = "") -> str: ...


class Presses:
    """Ctrl-C during one reply: the first press, and the second."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def add(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


class TerminalChat:
    """One session, from the greeting to the farewell."""

    def __init__(
        self, loop_thread: LoopThread[App], *, console: Console, clock: Clock, read_line: ReadLine = read_line
    ) -> None:
        self._backstage = loop_thread
        self._app = loop_thread.value
        self._console = console
        self._clock = clock
        self._read_line = read_line
        self._prompt = _COLOURED_PROMPT if console.color_system else PROMPT
        self._follower: FeedView | None = None
        self._replied_at_s = -math.inf
        self._is_leaving = False

    def run(self, chat: Chat | None = None) -> None:
        """Talk until the user leaves: in this chat, whose end is shown first, or in a new one."""
        self._remark("Say something: “help”, for example. Ctrl-C stops a reply, Ctrl-D leaves, /help lists more.\n")
        if chat is not None:
            self._follower = FeedView(chat, clock=self._clock)
            self._watch()
        while not self._is_leaving:
            line = self._listen()
            if line is None:
                break
            self._obey(line.strip())
        if self._follower is not None:
            self._remark("Everything is kept. “indelible chat --resume” goes on here.")

    def _listen(self) -> str | None:
        """What the user says next; None when they leave."""
        while True:
            try:
                return self._read_line(self._prompt)
            except EOFError:
                self._console.print()
                return None
            except KeyboardInterrupt:
                self._console.print()
                if self._clock.monotonic() - self._replied_at_s > _LATE_STOP_S:
                    return None
                self._replied_at_s = -math.inf
                self._remark("The reply had already ended. Ctrl-C again leaves.\n")

    def _obey(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        try:
            if name in COMMANDS:
                COMMANDS[name][1](self, rest.strip())
            elif line.startswith("/") and line[1:].isalpha():
                self._remark(f"There is no command {line}. /help lists those that there are.\n")
            elif line:
                self._watch(lambda: self._post(line))
        except Refused as refusal:
            self._remark(f"{refusal}\n")
        except StoreFailed as failure:
            self._remark(f"That did not reach the database: {failure} Arrow up brings back what you typed.\n")

    # --- replies ---

    def _watch(self, begin: Callable[[], Awaitable[Accepted]] | None = None) -> None:
        """Do what leads to a reply, and show it to its end."""
        presses = Presses()
        if begin is not None:
            self._console.print()
        with hush_echo(sys.stdin), catch_ctrl_c(presses.add, self._backstage.loop):
            self._backstage.run(self._follow(begin, presses))
        if not presses.first.is_set():
            self._replied_at_s = self._clock.monotonic()
        if self._follower is not None and self._follower.status == "error":
            self._remark("/retry tries again.\n")

    async def _follow(self, begin: Callable[[], Awaitable[Accepted]] | None, presses: Presses) -> None:
        sent = None if begin is None else await begin()
        feed_view = self._require_chat()
        with Screen(self._console, self._clock) as screen:
            following = asyncio.create_task(feed_view.follow(screen, sent))
            stopping = asyncio.create_task(self._stop(feed_view.chat, presses))
            try:
                await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                following.cancel()
                stopping.cancel()
                await asyncio.wait({following, stopping})
        if following.cancelled():
            stopping.result()
            self._is_leaving = True
        else:
            following.result()

    async def _stop(self, chat: Chat, presses: Presses) -> None:
        """Returns when the user is tired of waiting for the stop."""
        await presses.first.wait()
        await chat.interrupt(wait=False)
        await presses.second.wait()

    async def _post(self, words: str) -> Accepted:
        if self._follower is None:
            self._follower = await begin_chat(self._app)
        return await self._follower.chat.post(words)

    # --- commands ---

    def _print_help(self, _rest: str) -> None:
        lines = [f"{name:<12}{meaning}" for name, (meaning, _) in COMMANDS.items()]
        self._remark("\n".join(lines) + "\n\nCtrl-C stops a reply. What was said is kept.\n")

    def _print_list(self, _rest: str) -> None:
        lines = self._backstage.run(list_chats(self._app))
        self._console.print(StyledText("\n".join(lines)), "", sep="\n")

    def _begin_anew(self, _rest: str) -> None:
        self._follower = None
        self._remark("A new chat. /list has the others.\n")

    def _set_title(self, title: str) -> None:
        if not title:
            self._remark("A title is missing: /title The keeper of Farrow Head\n")
            return
        self._backstage.run(self._require_chat().chat.update(title=title))
        self._remark(f"This chat is “{title}” now.\n")

    def _retry(self, _rest: str) -> None:
        chat = self._require_chat().chat

        async def begin() -> Accepted:
            if await chat.status() == "error":
                return await chat.retry().begin()
            return await chat.regenerate((await self._find_last("assistant")).id or "").begin()

        self._watch(begin)

    def _continue(self, _rest: str) -> None:
        self._watch(self._require_chat().chat.continue_().begin)

    def _edit(self, _rest: str) -> None:
        message = self._backstage.run(self._find_last("user"))
        before = describe_blocks(message.blocks)
        try:
            words = self._read_line(self._prompt, prefill=before).strip()
        except (EOFError, KeyboardInterrupt):
            self._console.print()
            words = ""
        if not words or words == before:
            self._remark("Nothing is changed.\n")
            return
        self._watch(self._require_chat().chat.edit(message.id or "", words).begin)

    def _leave(self, _rest: str) -> None:
        self._is_leaving = True

    async def _find_last(self, role: Role) -> ChatMessage:
        messages = await self._require_chat().chat.messages(limit=_LOOKED_BACK)
        found = next((message for message in reversed(messages) if message.role == role), None)
        if found is None:
            raise NotFound("There is nothing to do that with.")
        return found

    def _require_chat(self) -> FeedView:
        if self._follower is None:
            raise NotFound("Nothing has been said in this chat yet.")
        return self._follower

    def _remark(self, text: str) -> None:
        self._console.print(StyledText(text, style="dim"))


COMMANDS: Final[dict[str, tuple[str, Callable[[TerminalChat, str], None]]]] = {
    "/retry": ("after an error: try again; else: have the last reply written anew", TerminalChat._retry),
    "/continue": ("have a reply that was cut go on where it was cut", TerminalChat._continue),
    "/edit": ("change your last message, and have that answered", TerminalChat._edit),
    "/title": ("name this chat: /title The keeper of Farrow Head", TerminalChat._set_title),
    "/new": ("begin a new chat", TerminalChat._begin_anew),
    "/list": ("list your chats", TerminalChat._print_list),
    "/help": ("print this list", TerminalChat._print_help),
    "/quit": ("leave, as Ctrl-D does", TerminalChat._leave),
}
