"""The chat without a terminal: answers on one side, everything else on the other."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.errors import ModelFailed
from indelible.models.protocol import Model
from indelible.models.providers.demo.model import DemoModel
from indelible.terminal.demo_tools import make_demo_tools
from indelible.terminal.loop_thread import LoopThread
from indelible.terminal.plain import PlainChat
from indelible.testing import ManualClock, ScriptedModel, parts

OpenApp = Callable[..., AbstractAsyncContextManager[App]]


def filter_lines(
    opened: AbstractAsyncContextManager[App], lines: Iterable[str], *, resume: bool = False
) -> tuple[str, str, bool]:
    """What comes out, what is said beside it, and whether a reply failed."""
    out, errors = io.StringIO(), io.StringIO()
    with LoopThread(opened) as loop_thread:
        app = loop_thread.value

        async def find_last() -> Chat:
            return await app.chat((await app.chats(limit=1))[0].id)

        chat = PlainChat(loop_thread, out=out, errors=errors)
        chat.run(loop_thread.run(find_last()) if resume else None, lines)
    return out.getvalue(), errors.getvalue(), chat.failed


def test_each_line_is_answered_and_a_failure_is_told_on_the_other_side(open_chats: OpenApp) -> None:
    model = ScriptedModel([[parts.text_delta("1", "One."), parts.finish()], ModelFailed("It broke.")])
    assert filter_lines(open_chats(model), ["first\n", "  \n", "second\n"]) == ("One.\n\n\n", "It broke.\n", True)
    assert [len(call.messages) for call in model.calls] == [1, 3]


def test_a_retry_is_told_on_the_other_side(open_chats: OpenApp) -> None:
    overloaded = ModelFailed("The provider is overloaded.", kind="overloaded")
    model = ScriptedModel([[parts.text_delta("1", "On"), overloaded], [parts.text_delta("1", "e."), parts.finish()]])
    told = "The provider is overloaded. Trying again in 0 s.\n"
    assert filter_lines(open_chats(model), ["first"]) == ("One.\n\n", told, False)


def test_a_resumed_chat_writes_only_what_is_new(open_chats: OpenApp) -> None:
    filter_lines(open_chats(ScriptedModel([[parts.text_delta("1", "One."), parts.finish()]])), ["first"])
    model = ScriptedModel([[parts.text_delta("1", "Two."), parts.finish()]])
    assert filter_lines(open_chats(model), ["second"], resume=True) == ("Two.\n\n", "", False)


def test_a_resumed_chat_writes_the_whole_of_a_reply_that_was_left(open_chats: OpenApp) -> None:
    async def leave_in_the_middle(app: App) -> None:
        chat = await app.create_chat()
        async for part in chat.send("first"):
            if part.text:
                return

    with LoopThread(open_chats(ScriptedModel([[parts.text_delta("1", "Half"), parts.hang()]]))) as loop_thread:
        loop_thread.run(leave_in_the_middle(loop_thread.value))
    model = ScriptedModel([[parts.text_delta("1", " and half."), parts.finish()]])
    assert filter_lines(open_chats(model), [], resume=True) == ("Half and half.\n\n", "", False)


def test_the_demo_tools_are_called_and_answer(open_chats: OpenApp) -> None:
    clock = ManualClock(skip_sleeps=True)
    tools = make_demo_tools(clock, pace_s=0.02)
    model: Model = DemoModel(pace_s=0)
    out, _, _ = filter_lines(open_chats(model, tools=tools), ["roll a die", "what time is it?"])
    assert any(f"[roll_die answered: {number}]" in out for number in range(1, 7))
    assert str(clock.now().astimezone().year) in out
