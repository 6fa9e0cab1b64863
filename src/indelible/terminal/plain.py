"""Replies without a prompt: the chat as a filter, and one question.

The filter runs when standard input or output is a pipe or a file. All of the input is one message, or each line is one
(`read_all` or `read_lines`). The reply is written as it arrives, as plain markdown; a tool's result is a line in
brackets; thinking is left out. What is not part of a reply goes to standard error. `echo "roll a die" | indelible chat`
is a whole session, and its exit status is 0, or 1 if a reply failed. A chat that is resumed while a reply runs, or
after a crash has interrupted one, writes that reply first, all of it. The worker starts with the program, so it may
have ended by then. Earlier messages are not written again. Lines are read in the event loop, so that the worker keeps
running during a slow pipe, and SIGTERM does not have to wait for the next line.

`indelible ask` asks one question, in a chat like any other. Standard output gets the reply alone, so that a script can
use it: drawn in a terminal, plain markdown in a pipe, one JSON object with `as_json`. Tool results, retries and errors
go to standard error. The exit status is 0, 1 if the reply failed or waits for somebody else's tools, 130 after Ctrl-C,
which stops the reply as it does in a chat: what was written is saved.

Must stay true (tests/terminal/test_plain.py). (tests/terminal/test_ask.py): the three outputs, and the status of every
outcome.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, Self, TextIO

import msgspec
from rich.console import Console

from indelible.api.events import BUSY
from indelible.api.inputs import Content
from indelible.api.shapes import Accepted
from indelible.app.app import User
from indelible.app.chat import Chat
from indelible.clock import Clock
from indelible.content import Part, ResultOutcome, TextDelta, ToolResult, Usage
from indelible.errors import Invalid, ModelFailed
from indelible.terminal.feed_view import ChatSetup, FeedView, Presses, Stage, follow_until_stopped, receive_ctrl_c
from indelible.terminal.reports import to_json
from indelible.terminal.screen import Screen, hush_echo
from indelible.terminal.widgets import disarm, disarm_data

_READ_BYTES: Final = 65536
MAX_INPUT_BYTES: Final = 16_000_000
FAILED: Final = 1
STOPPED: Final = 128 + signal.SIGINT


class PlainChat:
    """One session, of a program that was started at `started_at`. `failed` is true if any reply failed."""

    def __init__(
        self,
        user: User,
        *,
        out: TextIO,
        errors: TextIO,
        clock: Clock,
        setup: ChatSetup | None = None,
        started_at: datetime | None = None,
    ) -> None:
        self.failed = False
        self._started_at = started_at or clock.now()
        self._user = user
        self._clock = clock
        self._setup = setup or ChatSetup()
        self._out = out
        self._errors = errors
        self._view: FeedView | None = None

    async def run(self, chat: Chat | None, messages: AsyncIterable[str]) -> None:
        """Reply to each message that is not blank."""
        if chat is not None:
            await self._resume(chat)
        async for message in messages:
            if text := message.strip():
                await self._reply(text)

    async def _resume(self, chat: Chat) -> None:
        now = await chat.details()
        is_new = now.status in BUSY or any(message.created_at >= self._started_at for message in now.messages)
        self._view = FeedView(chat, clock=self._clock, after=None if is_new else now.cursor, shown_turns=1)
        if is_new:
            await self._write(self._view)

    async def _reply(self, text: str) -> None:
        if self._view is None:
            self._view = await self._setup.create_chat(self._user, clock=self._clock)
        await self._write(self._view, await self._view.chat.post(text))

    async def _write(self, feed_view: FeedView, sent: Accepted | None = None) -> None:
        with PlainReply(self._out, self._errors) as writer:
            await feed_view.follow(writer, sent)
        self._out.write("\n")
        self._out.flush()
        self.failed |= feed_view.status == "error"


_VERBS: Final[dict[ResultOutcome, str]] = {
    "ran": "answered",
    "failed": "failed",
    "not_run": "not run",
    "unknown": "outcome unknown",
}


class PlainReply(Stage):
    """A stage that is written: one reply, which ends with its line. `tools`: whether their results are among it."""

    def __init__(self, out: TextIO, errors: TextIO, *, tools: bool = True) -> None:
        self._out = out
        self._errors = errors
        self._tools = tools
        self._disarm = disarm if out.isatty() else disarm_data
        self._at_line_start = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_line()

    def show(self, part: Part) -> None:
        match part:
            case TextDelta():
                self._write(self._disarm(part.delta))
            case ToolResult():
                line = f"[{part.name} {_VERBS[part.outcome]}: {' '.join(str(part.output).split())}]"
                self.end_line()
                if self._tools:
                    self._write(self._disarm(f"\n{line}\n\n"))
                else:
                    self.note(line)
            case _:
                pass

    def end_attempt(self, *, cut: bool) -> None:
        if not cut:
            self.end_line()

    def note(self, text: str) -> None:
        self._errors.write(f"{disarm(text)}\n")
        self._errors.flush()

    def announce(self, text: str) -> None:
        self.note(text)

    def end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")


async def read_lines(source: TextIO) -> AsyncIterator[str]:
    """The lines of a pipe, a terminal or a file, as they arrive. The last one may lack its line break."""
    decoder = codecs.getincrementaldecoder(source.encoding)(errors="replace")
    rest = ""
    while data := await _read(source.fileno()):
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        for line in lines:
            yield line
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


async def read_all(source: TextIO) -> AsyncIterator[str]:
    """Everything up to the end of a pipe or a file, as one text. Raises `Invalid` if it is endless."""
    chunks, size = [], 0
    while data := await _read(source.fileno()):
        chunks.append(data)
        size += len(data)
        refuse_endless(size)
    yield b"".join(chunks).decode(source.encoding, errors="replace")


def refuse_endless(size: int) -> None:
    """Raises `Invalid` for an input that no model reads, and that may have no end."""
    if size > MAX_INPUT_BYTES:
        raise Invalid(f"The input is longer than {MAX_INPUT_BYTES:,} bytes. Attach it as a file instead.")


async def _read(descriptor: int) -> bytes:
    """Whatever can be read now. A file is always ready: the event loop refuses to watch it."""
    if sys.platform == "win32":
        return await asyncio.to_thread(os.read, descriptor, _READ_BYTES)
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:
        return os.read(descriptor, _READ_BYTES)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _READ_BYTES)


class AskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a reply. `error` is set if it failed; `text` is what was written of it all the same."""

    chat_id: str
    message_id: str | None
    outcome: str | None
    text: str
    model: str | None
    usage: Usage | None
    cost_usd: float | None
    error: dict[str, Any] | None


class Asker:
    """Asks one question in a chat, and writes the reply."""

    def __init__(self, *, out: TextIO, errors: TextIO, clock: Clock) -> None:
        self._out = out
        self._errors = errors
        self._clock = clock
        self._status = FAILED

    async def ask(self, chat: Chat, content: Content, *, as_json: bool = False) -> int:
        """Returns the exit status."""
        presses, write = Presses(), self._write_json if as_json else self._write
        with receive_ctrl_c(presses.add):
            await follow_until_stopped(write(chat, content), chat, presses)
        return STOPPED if presses.first.is_set() else self._status

    async def _write(self, chat: Chat, content: Content) -> None:
        view = FeedView(chat, clock=self._clock, after=(await chat.details()).cursor)
        with self._open_stage() as stage:
            await view.follow(stage, await chat.post(content))
        if view.status == "requires_action":
            self._errors.write("The reply waits for tools that a client has to run. Its chat is saved.\n")
        self._status = 0 if view.status == "idle" else FAILED

    @contextmanager
    def _open_stage(self) -> Iterator[Stage]:
        if self._out.isatty():
            with hush_echo(sys.stdin), Screen(Console(file=self._out, highlight=False), self._clock) as screen:
                yield screen
        else:
            with PlainReply(self._out, self._errors, tools=False) as reply:
                yield reply

    async def _write_json(self, chat: Chat, content: Content) -> None:
        reply, error = chat.send(content), None
        try:
            await reply
        except ModelFailed as failure:
            error = {"kind": failure.kind, "message": failure.message, "detail": failure.detail}
        message = reply.message
        result = AskResult(
            chat_id=chat.id,
            message_id=None if message is None else message.id,
            outcome=reply.outcome,
            text=reply.text,
            model=None if message is None else message.model,
            usage=reply.usage,
            cost_usd=reply.cost,
            error=error,
        )
        self._out.write(to_json(result) + "\n")
        self._out.flush()
        self._status = 0 if reply.outcome == "complete" else FAILED
