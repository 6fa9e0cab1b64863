"""The chat in a terminal: the prompt, its commands, and what Ctrl-C means.

During a reply Ctrl-C is a stop, a durable command like any other: the worker saves the reply so far, and the chat
continues. A second Ctrl-C while the reply is stopping exits, and so does Ctrl-C at the prompt. One
that comes just after a reply has ended by itself was meant for that reply, so it does not exit.

A chat is created with its first message, so that opening the program leaves no empty chat: what `/model` and `/system`
choose before that is kept until then. A file of `/attach` is uploaded at once and sent with the next message; if that
is refused, the file stays attached.

Must stay true (tests/test_cli.py, a real process on a real pseudo-terminal): after a stop the partial reply is saved,
and the next message is answered; after `kill -9` a resumed chat continues. (tests/terminal/test_chat.py): which Ctrl-C
exits; what each command does.

prompt.py reads the keyboard, feed_view.py decides what is shown of a reply and stops it, screen.py draws it,
and plain.py works without a terminal.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, Final, Protocol

from rich.console import Console
from rich.text import Text as StyledText

from indelible.api.shapes import Accepted, ChatMessage, StoredFile
from indelible.app.app import User
from indelible.app.chat import Chat
from indelible.clock import Clock
from indelible.content import File, Role
from indelible.content.blocks import text_of
from indelible.errors import IndelibleError, NotFound, Refused, StoreFailed
from indelible.terminal.feed_view import ChatSetup, FeedView, Presses, follow_until_stopped, receive_ctrl_c
from indelible.terminal.prompt import hold_keys
from indelible.terminal.reports import list_chats
from indelible.terminal.screen import Screen
from indelible.terminal.widgets import disarm

_LATE_STOP_S: Final = 1.0
_SEARCHED_MESSAGES: Final = 50
_NONE: Final = "-"
_STOPPING: Final = "Stopping the reply. Press Ctrl-C again to exit without waiting for it."


class Keyboard(Protocol):
    """Where lines come from: prompt.py, or a test."""

    async def read(self, *, prefill: str = "") -> str: ...

    def interrupt(self) -> None: ...


class TerminalChat:
    """One session, from the greeting to the farewell. `setup` is for new chats."""

    def __init__(
        self, user: User, *, console: Console, clock: Clock, keyboard: Keyboard, setup: ChatSetup | None = None
    ) -> None:
        self._user = user
        self._setup = setup or ChatSetup()
        self._attached: list[StoredFile] = []
        self._console = console
        self._clock = clock
        self._keyboard = keyboard
        self._view: FeedView | None = None
        self._presses: Presses | None = None
        self._screen: Screen | None = None
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
        if self._presses is None:
            self._keyboard.interrupt()
            return
        self._presses.add()
        if self._screen is not None:  # a server that is away may take long to stop it
            self._screen.announce(_STOPPING)

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
            if name in self.COMMANDS:
                await self.COMMANDS[name][1](self, rest.strip())
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
            with hold_keys(sys.stdin):
                await self._follow(begin, presses)
        finally:
            self._presses = self._screen = None
        if not presses.first.is_set():
            self._replied_at_s = self._clock.monotonic()
        if self._view is not None and self._view.status == "error":
            self._note("Type /retry to try again.\n")

    async def _follow(self, begin: Callable[[], Awaitable[Accepted]] | None, presses: Presses) -> None:
        sent = None if begin is None else await begin()
        view = self._require_chat()
        with Screen(self._console, self._clock) as screen:
            self._screen = screen
            has_ended = await follow_until_stopped(view.follow(screen, sent), view.chat, presses)
        self._is_leaving |= not has_ended

    async def _post(self, text: str) -> Accepted:
        if self._view is None:
            self._view = await self._setup.create_chat(self._user, clock=self._clock)
        accepted = await self._view.chat.post([text, *self._attached])
        self._attached.clear()
        return accepted

    # --- commands ---

    async def _print_help(self, _rest: str) -> None:
        lines = [f"{name:<12}{meaning}" for name, (meaning, _) in self.COMMANDS.items()]
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
        before = text_of(message.blocks)
        files = [block for block in message.blocks if isinstance(block, File)]
        try:
            text = (await self._keyboard.read(prefill=before)).strip()
        except (EOFError, KeyboardInterrupt):
            text = ""
        if not text or text == before:
            self._note("Nothing changed.\n")
            return
        await self._show_reply(self._require_chat().chat.edit(message.id, [text, *files]).begin)

    async def _choose_model(self, name: str) -> None:
        if name:
            if self._view is not None:
                await self._view.chat.update(model=name)
            self._setup.model = name
            self._note(f"The model is {name} from the next message on.\n")
            return
        chosen = self._setup.model if self._view is None else (await self._view.chat.details()).model
        models = await self._user.list_models()
        if chosen is None:
            chosen = next((f"{model.id} (the default)" for model in models if model.default), "the default")
        self._note(f"Model: {chosen}. Choose one with /model NAME: {', '.join(model.id for model in models)}\n")

    async def _choose_system(self, text: str) -> None:
        if text:
            system = None if text == _NONE else text
            if self._view is not None:
                await self._view.chat.update(system=system)
            self._setup.system = system
            self._note("System prompt removed.\n" if system is None else "System prompt set.\n")
            return
        chosen = self._setup.system if self._view is None else (await self._view.chat.details()).system
        shown = "No system prompt of its own." if chosen is None else f"System prompt: {disarm(chosen)}"
        self._note(f"{shown}\nSet it with /system TEXT, remove it with /system {_NONE}\n")

    async def _attach(self, names: str) -> None:
        try:
            paths = shlex.split(names)
        except ValueError:
            paths = [names]  # a name with one quotation mark
        if not paths:
            attached = ", ".join(disarm(file.name) for file in self._attached)
            self._note(f"Attached: {attached}.\n" if attached else "Missing file. Example: /attach photo.png\n")
            return
        for path in paths:
            file = await self._user.upload(_expand(path))
            self._attached.append(file)
            self._note(f"Attached {disarm(file.name)} ({file.media_type}, {file.size:,} bytes) to the next message.\n")

    async def _leave(self, _rest: str) -> None:
        self._is_leaving = True

    COMMANDS: ClassVar[dict[str, tuple[str, Callable[[TerminalChat, str], Awaitable[None]]]]] = {
        "/retry": ("retry, or regenerate the last reply", _retry),
        "/continue": ("continue an interrupted reply where it stopped", _continue),
        "/edit": ("edit your last message and get a new reply", _edit),
        "/title": ("rename this chat: /title The keeper of Farrow Head", _set_title),
        "/model": ("show the model, or choose one: /model openai:gpt-5.1", _choose_model),
        "/system": ("show the system prompt, or set it: /system Be brief.", _choose_system),
        "/attach": ("attach files to the next message: /attach photo.png", _attach),
        "/new": ("start a new chat", _start_new_chat),
        "/list": ("list your chats", _print_list),
        "/help": ("show this list", _print_help),
        "/quit": ("exit, like Ctrl-D", _leave),
    }

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


def _expand(path: str) -> Path:
    return Path(path).expanduser()
