"""The chat as a filter: a line in, an answer out, nothing that needs a terminal.

This is what runs when standard input or output is a pipe or a file. The answer is written as it
comes, as the markdown it is; a tool's answer is a line in brackets; thinking is left out. What is
not part of an answer goes to standard error. `echo "roll a die" | indelible chat` is a whole
session, and its exit status is 0, or 1 if a reply failed.

A chat that is resumed while a reply runs, or after a crash has cut one, writes that reply first, all of it. What
was said before is not written again.

Must stay true (tests/terminal/test_plain.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.content import Part, TextDelta, ToolResult
from indelible.service.results import Accepted
from indelible.terminal.feed_view import BUSY, FeedView, begin_chat
from indelible.terminal.loop_thread import LoopThread
from indelible.terminal.markdown import disarm


class PlainChat:
    """One session. `failed` says whether any reply of it did."""

    def __init__(self, loop_thread: LoopThread[App], *, out: TextIO, errors: TextIO) -> None:
        self.failed = False
        self._backstage = loop_thread
        self._app = loop_thread.value
        self._out = out
        self._errors = errors
        self._follower: FeedView | None = None

    def run(self, chat: Chat | None, lines: Iterable[str]) -> None:
        """Answer each line that is not blank."""
        if chat is not None:
            self._backstage.run(self._resume(chat))
        for words in filter(None, map(str.strip, lines)):
            self._backstage.run(self._reply(words))

    async def _resume(self, chat: Chat) -> None:
        now = await chat.details()
        is_running = now.status in BUSY
        self._follower = FeedView(chat, clock=self._app.clock, after=None if is_running else now.cursor, shown_turns=1)
        if is_running:
            await self._write(self._follower)

    async def _reply(self, words: str) -> None:
        if self._follower is None:
            self._follower = await begin_chat(self._app)
        await self._write(self._follower, await self._follower.chat.post(words))

    async def _write(self, feed_view: FeedView, sent: Accepted | None = None) -> None:
        writer = _ReplyWriter(self._out, self._errors)
        await feed_view.follow(writer, sent)
        writer.end()
        self.failed |= feed_view.status == "error"


class _ReplyWriter:
    """A stage (feed_view.py) that is written: one reply, with a blank line after it."""

    def __init__(self, out: TextIO, errors: TextIO) -> None:
        self._out = out
        self._errors = errors
        self._at_line_start = True

    def show(self, part: Part) -> None:
        match part:
            case TextDelta():
                self._write(disarm(part.delta))
            case ToolResult():
                verb = "failed" if part.is_error else "answered"
                output = " ".join(str(part.output).split())
                self._end_line()
                self._write(disarm(f"\n[{part.name} {verb}: {output}]\n\n"))
            case _:
                pass

    def begin_attempt(self) -> None:
        pass

    def end_attempt(self, *, cut: bool) -> None:
        if not cut:
            self._end_line()

    def drop_attempt(self) -> None:
        pass

    def quote(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        self._errors.write(f"{disarm(text)}\n")
        self._errors.flush()

    def announce(self, text: str) -> None:
        self.note(text)

    def end(self) -> None:
        self._end_line()
        self._write("\n")

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")
