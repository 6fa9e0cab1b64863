"""The chat as a filter: a line in, an answer out, nothing that needs a terminal.

This is what runs when standard input or output is a pipe or a file. The answer is written as it
comes, as the markdown it is; a tool's answer is a line in brackets; thinking is left out. What is
not part of an answer goes to standard error. `echo "roll a die" | indelible chat` is a whole
session, and its exit status is 0, or 1 if a reply failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TextIO

from indelible.content import Part, TextDelta, ToolResult
from indelible.loop import Scope
from indelible.terminal.conversation import Conversation
from indelible.terminal.markdown import disarm


def answer_lines(conversation: Conversation, lines: Iterable[str], *, out: TextIO, errors: TextIO) -> int:
    """Answer each line that is not blank; returns the exit status."""

    def tell(text: str) -> None:
        errors.write(f"{text}\n")
        errors.flush()

    status = 0
    with asyncio.Runner() as runner:
        for words in filter(None, map(str.strip, lines)):
            writer = _ReplyWriter(out)
            if not runner.run(conversation.reply(words, scope=Scope(), publish=writer.write_part, tell=tell)):
                status = 1
            writer.end()
    return status


class _ReplyWriter:
    """Writes one reply, with a blank line after it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._at_line_start = True

    def write_part(self, part: Part) -> None:
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
