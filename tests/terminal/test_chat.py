"""Which Ctrl-C stops a reply, which one leaves, and which one came too late."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator, Callable

import pytest
from rich.console import Console

from indelible.content import Part
from indelible.models import Call
from indelible.models.demo import DemoModel
from indelible.terminal import Conversation, TerminalChat
from indelible.testing import ManualClock, ScriptedModel, parts

Line = str | type[BaseException] | Callable[[], None]


class Keyboard:
    """Types its lines one after the other. An exception is a key; a function is called in between."""

    def __init__(self, *lines: Line) -> None:
        self.left = list(lines)

    def read_line(self, prompt: str) -> str:
        while True:
            line = self.left.pop(0)
            if isinstance(line, str):
                return line
            if isinstance(line, type):
                raise line
            line()


def make_chat(conversation: Conversation, keyboard: Keyboard, clock: ManualClock) -> tuple[TerminalChat, io.StringIO]:
    screen = io.StringIO()
    console = Console(file=screen, width=80, height=24)
    return TerminalChat(conversation, console=console, clock=clock, read_line=keyboard.read_line), screen


def say_half_and_press(*, times: int) -> Callable[[Call], AsyncIterator[Part]]:
    """A reply that hangs in the middle, where Ctrl-C is pressed."""

    async def stream(call: Call) -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Half")
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    return stream


def test_ctrl_c_at_the_prompt_leaves() -> None:
    clock, keyboard = ManualClock(), Keyboard(KeyboardInterrupt, "never read")
    chat, _ = make_chat(Conversation(DemoModel(clock, pace_s=0), clock=clock), keyboard, clock)
    chat.run()
    assert keyboard.left == ["never read"]


def test_ctrl_c_just_after_a_reply_was_meant_for_it_and_the_next_one_leaves() -> None:
    clock, keyboard = ManualClock(), Keyboard("hello", KeyboardInterrupt, KeyboardInterrupt, "never read")
    chat, screen = make_chat(Conversation(DemoModel(clock, pace_s=0), clock=clock), keyboard, clock)
    chat.run()
    assert screen.getvalue().count("The reply had already ended. Ctrl-C again leaves.") == 1
    assert keyboard.left == ["never read"]


def test_ctrl_c_some_time_after_a_reply_leaves() -> None:
    clock = ManualClock()

    def let_time_pass() -> None:
        clock.advance(2.0)

    keyboard = Keyboard("hello", let_time_pass, KeyboardInterrupt, "never read")
    chat, screen = make_chat(Conversation(DemoModel(clock, pace_s=0), clock=clock), keyboard, clock)
    chat.run()
    assert "already ended" not in screen.getvalue()
    assert keyboard.left == ["never read"]


def test_ctrl_c_in_each_of_two_replies_stops_both_and_leaves_neither() -> None:
    clock = ManualClock()
    model = ScriptedModel([say_half_and_press(times=1)] * 2)
    conversation = Conversation(model, clock=clock)
    chat, screen = make_chat(conversation, Keyboard("one", "two", EOFError), clock)
    chat.run()
    assert screen.getvalue().count("Stopped by you.") == 2
    assert [message.text for message in conversation.history if message.role == "assistant"] == ["Half", "Half"]


def test_a_second_ctrl_c_while_the_reply_is_being_stopped_leaves() -> None:
    clock, keyboard = ManualClock(), Keyboard("one", "never read")
    conversation = Conversation(ScriptedModel([say_half_and_press(times=2)]), clock=clock)
    chat, _ = make_chat(conversation, keyboard, clock)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        chat.run()
    assert keyboard.left == ["never read"]
    assert signal.getsignal(signal.SIGINT) is before
