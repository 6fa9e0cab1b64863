"""The chat in a terminal: the prompt, its commands, and what Ctrl-C means.

During a reply Ctrl-C is a stop, a durable command like any other: the worker saves the reply so far, and the chat
continues. A second Ctrl-C while the reply is stopping exits, and so does Ctrl-C at the prompt. One
that comes just after a reply has ended by itself was meant for that reply, so it does not exit.

A chat is created with its first message, so that opening the program leaves no empty chat.

Must stay true (tests/test_cli.py, a real process on a real pseudo-terminal): after a stop the partial reply is saved,
and the next message is answered; after `kill -9` a resumed chat continues. (tests/terminal/test_chat.py): which Ctrl-C
exits; what each command does.

prompt.py reads the keyboard, screen.py draws a reply, feed_view.py decides what is shown of it, and plain.py works
without a terminal.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from rich.console import Console
from rich.text import Text as StyledText

from indelible.app.chat import Chat
from indelible.app.user import User
from indelible.clock import Clock
from indelible.content import Role
from indelible.errors import IndelibleError, NotFound, Refused, StoreFailed
from indelible.service.results import Accepted, ChatMessage
from indelible.terminal.feed_view import FeedView, begin_chat, describe_blocks
from indelible.terminal.listing import list_chats
from indelible.terminal.prompt import hush_echo, receive_ctrl_c
from indelible.terminal.screen import Screen

_LATE_STOP_S: Final = 1.0
_SEARCHED_MESSAGES: Final = 50


class Keyboard(Protocol):
    """Where lines come from: prompt.py, or a test."""

    async def read(self, *, prefill: str = "") -> str: ...

    def interrupt(self) -> None: ...


class Presses:
    """Ctrl-C during one reply: the first press, and the second."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def add(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


class TerminalChat:
    """One session, from the greeting to the farewell. `model` is for new chats; otherwise the default."""

    def __init__(
        self, user: User, *, console: Console, clock: Clock, keyboard: Keyboard, model: str | None = None
    ) -> None:
        self._user = user
        self._model = model
        self._console = console
        self._clock = clock
        self._keyboard = keyboard
        self._view: FeedView | None = None
        self._presses: Presses | None = None
        self._replied_at_s = -math.inf
        self._is_leaving = False

    async def run(self, chat: Chat | None = None) -> None:
        """Chat until the user leaves: in this chat, whose last turns are shown first, or in a new one."""
        self._note("Send a message: “help”, for example. Ctrl-C stops a reply, Ctrl-D exits, /help lists commands.\n")
        with receive_ctrl_c(self._receive_ctrl_c):
            if chat is not None:
                self._view = FeedView(chat, clock=self._clock)
                await self._show_reply()
            while not self._is_leaving:
                line = await self._read_line()
                if line is None:
                    break
                await self._handle(line.strip())
        if self._view is not None:
            self._note("Chat saved. Resume it with: indelible chat --resume")

    def _receive_ctrl_c(self) -> None:
        if self._presses is not None:
            self._presses.add()
        else:
            self._keyboard.interrupt()

    async def _read_line(self) -> str | None:
        """What the user types next; None when they leave."""
        while True:
            try:
                return await self._keyboard.read()
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._clock.monotonic() - self._replied_at_s > _LATE_STOP_S:
                    return None
                self._replied_at_s = -math.inf
                self._note("The reply had already ended. Press Ctrl-C again to exit.\n")

    async def _handle(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        try:
            if name in COMMANDS:
                await COMMANDS[name][1](self, rest.strip())
            elif line.startswith("/") and line[1:].isalpha():
                self._note(f"Unknown command {line}. Type /help for a list.\n")
            elif line:
                await self._show_reply(lambda: self._post(line))
        except Refused as refusal:
            self._note(f"{refusal}\n")
        except StoreFailed as failure:
            self._note(f"Not saved: {failure} Press the up arrow to get your message back.\n")
        except IndelibleError as failure:  # a server that is away, for example
            self._note(f"{failure}\n")

    # --- replies ---

    async def _show_reply(self, begin: Callable[[], Awaitable[Accepted]] | None = None) -> None:
        """Start a reply, and show it to its end."""
        self._presses = presses = Presses()
        if begin is not None:
            self._console.print()
        try:
            with hush_echo(sys.stdin):
                await self._follow(begin, presses)
        finally:
            self._presses = None
        if not presses.first.is_set():
            self._replied_at_s = self._clock.monotonic()
        if self._view is not None and self._view.status == "error":
            self._note("Type /retry to try again.\n")

    async def _follow(self, begin: Callable[[], Awaitable[Accepted]] | None, presses: Presses) -> None:
        sent = None if begin is None else await begin()
        view = self._require_chat()
        with Screen(self._console, self._clock) as screen:
            following = asyncio.create_task(view.follow(screen, sent))
            stopping = asyncio.create_task(self._stop(view.chat, presses))
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
        """Returns when the user does not want to wait until the reply has stopped."""
        await presses.first.wait()
        await chat.interrupt(wait=False)
        await presses.second.wait()

    async def _post(self, text: str) -> Accepted:
        if self._view is None:
            self._view = await begin_chat(self._user, clock=self._clock, model=self._model)
        return await self._view.chat.post(text)

    # --- commands ---

    async def _print_help(self, _rest: str) -> None:
        lines = [f"{name:<12}{meaning}" for name, (meaning, _) in COMMANDS.items()]
        keys = "Ctrl-C stops a reply and keeps it. Alt-Enter starts a new line. Ctrl-D exits."
        self._note("\n".join(lines) + f"\n\n{keys}\n")

    async def _print_list(self, _rest: str) -> None:
        lines = await list_chats(self._user)
        self._console.print(StyledText("\n".join(lines)), "", sep="\n")

    async def _start_new_chat(self, _rest: str) -> None:
        self._view = None
        self._note("New chat. /list shows the others.\n")

    async def _set_title(self, title: str) -> None:
        if not title:
            self._note("Missing title. Example: /title The keeper of Farrow Head\n")
            return
        await self._require_chat().chat.update(title=title)
        self._note(f"Renamed to “{title}”.\n")

    async def _retry(self, _rest: str) -> None:
        chat = self._require_chat().chat

        async def begin() -> Accepted:
            last = await self._find_last("user", "assistant", "tool")
            if await chat.status() == "error" or last.role != "assistant":
                return await chat.retry().begin()
            return await chat.regenerate(last.id).begin()

        await self._show_reply(begin)

    async def _continue(self, _rest: str) -> None:
        await self._show_reply(self._require_chat().chat.continue_().begin)

    async def _edit(self, _rest: str) -> None:
        message = await self._find_last("user")
        before = describe_blocks(message.blocks)
        try:
            text = (await self._keyboard.read(prefill=before)).strip()
        except (EOFError, KeyboardInterrupt):
            text = ""
        if not text or text == before:
            self._note("Nothing changed.\n")
            return
        await self._show_reply(self._require_chat().chat.edit(message.id or "", text).begin)

    async def _leave(self, _rest: str) -> None:
        self._is_leaving = True

    async def _find_last(self, *roles: Role) -> ChatMessage:
        messages = await self._require_chat().chat.messages(limit=_SEARCHED_MESSAGES)
        found = next((message for message in reversed(messages) if message.role in roles), None)
        if found is None:
            raise NotFound("Nothing to edit." if roles == ("user",) else "Nothing to retry.")
        return found

    def _require_chat(self) -> FeedView:
        if self._view is None:
            raise NotFound("This chat has no messages yet.")
        return self._view

    def _note(self, text: str) -> None:
        self._console.print(StyledText(text, style="dim"))


COMMANDS: Final[dict[str, tuple[str, Callable[[TerminalChat, str], Awaitable[None]]]]] = {
    "/retry": ("retry, or regenerate the last reply", TerminalChat._retry),
    "/continue": ("continue an interrupted reply where it stopped", TerminalChat._continue),
    "/edit": ("edit your last message and get a new reply", TerminalChat._edit),
    "/title": ("rename this chat: /title The keeper of Farrow Head", TerminalChat._set_title),
    "/new": ("start a new chat", TerminalChat._start_new_chat),
    "/list": ("list your chats", TerminalChat._print_list),
    "/help": ("show this list", TerminalChat._print_help),
    "/quit": ("exit, like Ctrl-D", TerminalChat._leave),
}
