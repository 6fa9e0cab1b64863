"""One question, one reply: `indelible ask`.

The reply is a chat like any other, saved as it arrives, and can be continued (`indelible chat --resume`). Standard
output gets the reply alone, so that a script can use it: drawn in a terminal, plain markdown in a pipe, one JSON object
with `as_json`. Tool results, retries and errors go to standard error.

The exit status says how it went: 0, 1 if the reply failed or waits for somebody else's tools, 130 after Ctrl-C. Ctrl-C
stops the reply as it does in a chat: what was written is saved.

Must stay true (tests/terminal/test_ask.py): the three outputs, and the status of every outcome.
"""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TextIO

import msgspec
from rich.console import Console

from indelible.api.inputs import Content
from indelible.app.chat import Chat
from indelible.app.reply import Reply
from indelible.clock import Clock
from indelible.content import Usage
from indelible.errors import ModelFailed
from indelible.terminal.ctrl_c import Presses, follow_until_stopped, receive_ctrl_c
from indelible.terminal.feed_view import FeedView, Stage
from indelible.terminal.plain import PlainReply
from indelible.terminal.reports import to_json
from indelible.terminal.screen import Screen

FAILED: Final = 1
STOPPED: Final = 128 + signal.SIGINT


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
            if isinstance(stage, PlainReply):
                stage.end()
        if view.status == "requires_action":
            self._errors.write("The reply waits for tools that a client has to run. Its chat is saved.\n")
        self._status = 0 if view.status == "idle" else FAILED

    def _open_stage(self) -> AbstractContextManager[Stage]:
        if self._out.isatty():
            return Screen(Console(file=self._out, highlight=False), self._clock)
        return nullcontext(PlainReply(self._out, self._errors, tools=False))

    async def _write_json(self, chat: Chat, content: Content) -> None:
        reply, error = chat.send(content), None
        try:
            await reply
        except ModelFailed as failure:
            error = {"kind": failure.kind, "message": failure.message, "detail": failure.detail}
        answer = _describe(chat, reply, error)
        self._out.write(to_json(answer) + "\n")
        self._out.flush()
        self._status = 0 if reply.outcome == "complete" else FAILED


def _describe(chat: Chat, reply: Reply, error: dict[str, Any] | None) -> AskResult:
    message = reply.message
    return AskResult(
        chat_id=chat.id,
        message_id=None if message is None else message.id,
        outcome=reply.outcome,
        text=reply.text,
        model=None if message is None else message.model,
        usage=reply.usage,
        cost_usd=reply.cost,
        error=error,
    )
