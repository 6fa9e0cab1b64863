"""The prompt: which Ctrl-C stops a reply, which one leaves, which one came too late; and what each command does."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from rich.console import Console
from tests.terminal.paper import Paper, make_console

import indelible
from indelible.api.shapes import ChatMessage
from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.clock import Clock, SystemClock
from indelible.content import File, Part, Text
from indelible.errors import ModelFailed
from indelible.models import Call
from indelible.terminal.chat import TerminalChat
from indelible.terminal.feed_view import Presses, follow_until_stopped
from indelible.terminal.prompt import CommandCompleter
from indelible.testing import ManualClock, ScriptedModel, parts

OpenApp = Callable[..., AbstractAsyncContextManager[App]]
Line = str | type[BaseException] | Callable[[str], str | None]


class Keyboard:
    """Types its lines one after the other.

    An exception is a key. A function is given what stands on the line already: what it returns is typed, unless it
    is None. After the last line comes Ctrl-D.
    """

    def __init__(self, *lines: Line) -> None:
        self.left = list(lines)

    def interrupt(self) -> None:
        """No line is ever waited for."""

    async def read(self, *, prefill: str = "") -> str:
        while self.left:
            line = self.left.pop(0)
            if isinstance(line, type):
                raise line
            typed = line if isinstance(line, str) else line(prefill)
            if typed is not None:
                return typed
        raise EOFError


def say(text: str) -> list[Part]:
    return [parts.text_delta("1", text), parts.finish()]


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def say_half_and_press(call: Call) -> AsyncIterator[Part]:
    """A reply that hangs in the middle, where Ctrl-C is pressed."""
    yield parts.text_delta("1", "Half")
    press_ctrl_c()
    await asyncio.Event().wait()


class WatchedPaper(Paper):
    """A terminal whose viewer waits for a word. Replies are drawn there as they grow."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.shown = asyncio.Event()
        self._word = word

    async def wait_for(self, word: str) -> None:
        self._word = word
        self.shown.clear()
        await self.shown.wait()

    def write(self, text: str) -> int:
        if self._word in text:
            self.shown.set()
        return super().write(text)


async def talk(
    opened: AbstractAsyncContextManager[App],
    keyboard: Keyboard,
    *,
    clock: Clock | None = None,
    resume: int = 0,
    left: asyncio.Event | None = None,
    paper: Paper | None = None,
) -> str:
    """A session, and what was to be seen in it. With `resume` it begins in this chat of the list.

    `left` is set when the user has left, and the app is still open. With `paper` it is on a terminal.
    """
    screen = io.StringIO()
    async with opened as app:
        chat = await app.chat((await app.chats())[resume - 1].id) if resume else None
        console = Console(file=screen, width=80, height=24) if paper is None else make_console(paper)
        await TerminalChat(app, console=console, clock=clock or ManualClock(), keyboard=keyboard).run(chat)
        if left is not None:
            left.set()
    return screen.getvalue() if paper is None else paper.read_off()


async def load_messages(opened: AbstractAsyncContextManager[App], number: int = 1) -> list[ChatMessage]:
    """What is kept of this chat of the list."""
    async with opened as app:
        return await (await app.chat((await app.chats())[number - 1].id)).messages()


def texts(messages: list[ChatMessage]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


# --- Ctrl-C ---


async def test_ctrl_c_at_the_prompt_leaves(open_chats: OpenApp) -> None:
    keyboard = Keyboard(KeyboardInterrupt, "never read")
    await talk(open_chats(ScriptedModel()), keyboard)
    assert keyboard.left == ["never read"]


async def test_ctrl_c_just_after_a_reply_was_meant_for_it_and_the_next_one_leaves(open_chats: OpenApp) -> None:
    keyboard = Keyboard("hello", KeyboardInterrupt, KeyboardInterrupt, "never read")
    screen = await talk(open_chats(ScriptedModel([say("Hello.")])), keyboard)
    assert screen.count("The reply had already ended. Press Ctrl-C again to exit.") == 1
    assert keyboard.left == ["never read"]


async def test_ctrl_c_some_time_after_a_reply_leaves(open_chats: OpenApp) -> None:
    clock = ManualClock()

    def let_time_pass(_prefill: str) -> None:
        clock.advance(2.0)

    keyboard = Keyboard("hello", let_time_pass, KeyboardInterrupt, "never read")
    screen = await talk(open_chats(ScriptedModel([say("Hello.")])), keyboard, clock=clock)
    assert "already ended" not in screen
    assert keyboard.left == ["never read"]


async def test_ctrl_c_in_each_of_two_replies_stops_both_keeps_both_and_leaves_neither(open_chats: OpenApp) -> None:
    model = ScriptedModel([say_half_and_press] * 2)
    screen = await talk(open_chats(model), Keyboard("one", "two"))
    assert screen.count("Stopped by you.") == 2
    assert texts(await load_messages(open_chats(ScriptedModel()))) == [
        ("user", "one"),
        ("assistant", "Half"),
        ("notice", "Stopped by you."),
        ("user", "two"),
        ("assistant", "Half"),
        ("notice", "Stopped by you."),
    ]


async def test_a_second_ctrl_c_while_the_reply_is_being_stopped_leaves_and_the_stop_holds(open_chats: OpenApp) -> None:
    left = asyncio.Event()
    paper = WatchedPaper("Half")

    async def say_half_and_be_slow_to_stop(call: Call) -> AsyncIterator[Part]:
        try:
            yield parts.text_delta("1", "Half")
            await paper.shown.wait()
            press_ctrl_c()
            await asyncio.Event().wait()
        finally:
            press_ctrl_c()
            await left.wait()

    keyboard = Keyboard("one", "never read")
    before = signal.getsignal(signal.SIGINT)
    model = ScriptedModel([say_half_and_be_slow_to_stop])
    screen = await talk(open_chats(model), keyboard, clock=SystemClock(), left=left, paper=paper)
    assert keyboard.left == ["never read"]
    assert "Half" in screen
    assert "Stopped by you." not in screen
    assert signal.getsignal(signal.SIGINT) is before
    screen = await talk(open_chats(ScriptedModel()), Keyboard(), resume=1)
    assert "Half" in screen
    assert "Stopped by you." in screen


async def test_the_first_ctrl_c_is_answered_at_once_however_long_the_stop_takes(open_chats: OpenApp) -> None:
    left = asyncio.Event()
    paper = WatchedPaper("Half")

    async def say_half_and_stop_when_the_press_was_answered(call: Call) -> AsyncIterator[Part]:
        try:
            yield parts.text_delta("1", "Half")
            await paper.shown.wait()
            press_ctrl_c()
            await asyncio.Event().wait()
        finally:
            await paper.wait_for("Stopping the reply.")
            press_ctrl_c()
            await left.wait()

    model = ScriptedModel([say_half_and_stop_when_the_press_was_answered])
    screen = await talk(open_chats(model), Keyboard("one"), clock=SystemClock(), left=left, paper=paper)
    assert "Stopping" not in screen


async def test_a_second_ctrl_c_does_not_wait_for_a_server_that_does_not_answer_the_stop() -> None:
    asked, held = asyncio.Event(), []

    def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        asked.set()

    silent = await asyncio.start_server(hold, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    presses = Presses()

    async def press_twice() -> None:
        presses.add()
        await asked.wait()
        presses.add()

    async def follow() -> None:
        await asyncio.Event().wait()

    async with indelible.Client(f"http://{host}:{port}") as user, asyncio.TaskGroup() as keys:
        keys.create_task(press_twice())
        assert not await follow_until_stopped(follow(), Chat(user._service, "chat_1"), presses)
    for writer in held:
        writer.close()
    silent.close()


# --- what is kept, and comes back ---


async def test_nothing_is_kept_of_a_session_without_messages(open_chats: OpenApp) -> None:
    await talk(open_chats(ScriptedModel()), Keyboard("/help", "/list"))
    assert "There are no chats yet." in await talk(open_chats(ScriptedModel()), Keyboard("/list"))


async def test_a_resumed_chat_shows_its_end_and_goes_on(open_chats: OpenApp) -> None:
    await talk(
        open_chats(ScriptedModel([say("**One.**"), say("Two."), say("Three."), say("Four.")])), Keyboard(*"1234")
    )
    model = ScriptedModel([say("Five.")])
    screen = await talk(open_chats(model), Keyboard("5"), resume=1)
    assert "Earlier messages are kept" in screen
    assert "you › 1" not in screen
    assert screen.index("you › 2") < screen.index("Two.") < screen.index("Four.") < screen.index("Five.")
    assert [message.text for message in await load_messages(open_chats(ScriptedModel()))][-2:] == ["5", "Five."]
    assert len(model.calls[0].messages) == 9


async def test_a_reply_that_fails_says_what_to_do_and_retry_gets_it_answered(open_chats: OpenApp) -> None:
    failure = ModelFailed("The provider does not accept the key.", kind="auth", provider="acme", detail="bad key")
    screen = await talk(open_chats(ScriptedModel([failure, say("Hello.")])), Keyboard("hi", "/retry"))
    told = ["The provider does not accept the key.", "acme says: bad key", "Type /retry to try again.", "Hello."]
    assert sorted(told, key=screen.index) == told


# --- commands ---


async def test_help_names_every_command_and_an_unknown_one_is_not_sent(open_chats: OpenApp) -> None:
    screen = await talk(open_chats(ScriptedModel()), Keyboard("/help", "/frobnicate"))
    assert all(f"\n{name} " in f"\n{screen}" for name in TerminalChat.COMMANDS)
    assert "Unknown command /frobnicate." in screen


@pytest.mark.parametrize("words", ["/usr/bin is what?", "/ 2", "/etc holds what?"])
async def test_what_only_looks_like_a_command_is_a_message(open_chats: OpenApp, words: str) -> None:
    await talk(open_chats(ScriptedModel([say("Well.")])), Keyboard(words))
    assert texts(await load_messages(open_chats(ScriptedModel()))) == [("user", words), ("assistant", "Well.")]


async def test_new_begins_another_chat_and_list_has_both_the_last_changed_first(open_chats: OpenApp) -> None:
    model = ScriptedModel([say("One."), say("Two.")])
    screen = await talk(open_chats(model), Keyboard("one", "/title First", "/new", "two", "/title Second", "/list"))
    first, second = [line for line in screen.splitlines() if "chat_" in line]
    assert first.startswith("  1  ")
    assert first.endswith("  Second")
    assert second.endswith("  First")
    assert len(model.calls[1].messages) == 1


async def test_title_wants_a_title(open_chats: OpenApp) -> None:
    screen = await talk(open_chats(ScriptedModel([say("One.")])), Keyboard("one", "/title"))
    assert "Missing title" in screen


@pytest.mark.parametrize("command", ["/title Mine", "/retry", "/continue", "/edit"])
async def test_a_command_that_needs_a_chat_says_so(open_chats: OpenApp, command: str) -> None:
    assert "This chat has no messages yet." in await talk(open_chats(ScriptedModel()), Keyboard(command))


async def test_continue_goes_on_where_the_reply_was_stopped(open_chats: OpenApp) -> None:
    screen = await talk(
        open_chats(ScriptedModel([say_half_and_press, say(" of it.")])), Keyboard("one", "/continue", "/continue")
    )
    assert "Nothing to continue: the last reply is complete." in screen
    kept = [message for message in await load_messages(open_chats(ScriptedModel())) if message.role == "assistant"]
    assert [message.text for message in kept] == ["Half", " of it."]
    assert kept[1].continues == kept[0].id


async def test_retry_of_a_whole_reply_has_it_written_anew(open_chats: OpenApp) -> None:
    screen = await talk(open_chats(ScriptedModel([say("One."), say("Another.")])), Keyboard("hi", "/retry"))
    assert screen.index("One.") < screen.index("Another.")
    assert texts(await load_messages(open_chats(ScriptedModel()))) == [("user", "hi"), ("assistant", "Another.")]


async def test_edit_puts_the_last_message_on_the_line_and_answers_what_becomes_of_it(open_chats: OpenApp) -> None:
    model = ScriptedModel([say("Hi!"), say("Hi there!")])
    await talk(open_chats(model), Keyboard("hello", "/edit", lambda prefill: f"{prefill} there"))
    assert texts(await load_messages(open_chats(ScriptedModel()))) == [
        ("user", "hello there"),
        ("assistant", "Hi there!"),
    ]


@pytest.mark.parametrize("answer", [KeyboardInterrupt, EOFError, "  ", lambda prefill: prefill])
async def test_an_edit_that_changes_nothing_asks_nobody_and_leaves_nothing(open_chats: OpenApp, answer: Line) -> None:
    screen = await talk(
        open_chats(ScriptedModel([say("Hi!"), say("Still here.")])), Keyboard("hello", "/edit", answer, "?")
    )
    assert screen.index("Nothing changed.") < screen.index("Still here.")


async def test_model_and_system_are_chosen_before_a_chat_and_changed_in_it(open_chats: OpenApp) -> None:
    one, two = ScriptedModel([say("One.")]), ScriptedModel([say("Two.")])
    opened = open_chats(ScriptedModel(), models={"one": one, "two": two})
    keyboard = Keyboard(
        "/model one",
        "/system Be brief.",
        "first",
        "/model",
        "/model two",
        "/system -",
        "second",
        "/system",
        "/model no:",
    )
    screen = await talk(opened, keyboard)
    assert "Model: one. Choose one with /model NAME: one, two" in screen
    assert "No system prompt of its own." in screen
    assert "model: Unknown model 'no:'." in screen
    assert [message.role for message in one.calls[0].messages] == ["system", "user"]
    assert [message.role for message in two.calls[0].messages] == ["user", "assistant", "user"]


async def test_the_default_model_is_shown_by_its_name(open_chats: OpenApp) -> None:
    opened = open_chats("one", models={"one": ScriptedModel(), "two": ScriptedModel()})
    assert "Model: one (the default). Choose one with /model NAME: one, two" in await talk(opened, Keyboard("/model"))


async def test_files_are_attached_to_the_next_message_and_stay_when_it_is_edited(
    open_chats: OpenApp, tmp_path: Path
) -> None:
    (tmp_path / "my notes.txt").write_text("The light is out.")
    model = ScriptedModel([say("One."), say("Two."), say("Three.")])
    keyboard = Keyboard(
        f"/attach '{tmp_path}/my notes.txt' {tmp_path}/none.txt",
        "/attach",
        "read this",
        "and this?",
        "/attach",
    )
    screen = await talk(open_chats(model), keyboard)
    assert "Attached my notes.txt (text/plain, 17 bytes) to the next message." in screen
    assert "No such file or directory." in " ".join(screen.split())
    assert "Attached: my notes.txt." in screen
    assert "Missing file." in screen
    first, _, second, _ = await load_messages(open_chats(ScriptedModel()))
    assert [type(block) for block in first.blocks] == [Text, File]
    assert [type(block) for block in second.blocks] == [Text]


async def test_an_edited_message_keeps_its_files(open_chats: OpenApp, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The light is out.")
    model = ScriptedModel([say("One."), say("Two.")])
    keyboard = Keyboard(f"/attach {tmp_path}/notes.txt", "read", "/edit", lambda prefill: f"{prefill} it")
    await talk(open_chats(model), keyboard)
    edited, _ = await load_messages(open_chats(ScriptedModel()))
    assert edited.text == "read it"
    assert [block.name for block in edited.blocks if isinstance(block, File)] == ["notes.txt"]


def test_tab_completes_commands_and_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    completer = CommandCompleter({name: meaning for name, (meaning, _) in TerminalChat.COMMANDS.items()})

    def complete(typed: str) -> list[str]:
        return [found.text for found in completer.get_completions(Document(typed), CompleteEvent())]

    assert complete("/re") == ["/retry"]
    assert complete("/") == list(TerminalChat.COMMANDS)
    assert complete("hello /re") == []
    assert complete(f"/attach {tmp_path}/no") == ["tes.txt"]


async def test_quit_leaves(open_chats: OpenApp) -> None:
    keyboard = Keyboard("/quit", "never read")
    await talk(open_chats(ScriptedModel()), keyboard)
    assert keyboard.left == ["never read"]
