"""The chat without a terminal: answers on one side, everything else on the other."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest
from tests.support.waiting import poll_until

from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.clock import SystemClock
from indelible.content import Part
from indelible.errors import Invalid, ModelFailed
from indelible.models.protocol import Call, Model
from indelible.models.providers.demo import DemoModel
from indelible.terminal.local import make_demo_tools
from indelible.terminal.plain import PlainChat, read_all, read_lines
from indelible.testing import ManualClock, ScriptedModel, parts

OpenApp = Callable[..., AbstractAsyncContextManager[App]]


async def filter_lines(
    opened: AbstractAsyncContextManager[App],
    lines: Iterable[str],
    *,
    resume: bool = False,
    out: io.StringIO | None = None,
) -> tuple[str, str, bool]:
    """What comes out, what is written beside it, and whether a reply failed."""
    out, errors = out or io.StringIO(), io.StringIO()

    async def give() -> AsyncIterator[str]:
        for line in lines:
            yield line

    async with opened as app:
        chat = PlainChat(app, out=out, errors=errors, clock=app.clock)
        await chat.run(await app.chat((await app.chats(limit=1))[0].id) if resume else None, give())
    return out.getvalue(), errors.getvalue(), chat.failed


async def test_each_line_is_answered_and_a_failure_is_written_to_standard_error(open_chats: OpenApp) -> None:
    model = ScriptedModel([[parts.text_delta("1", "One."), parts.finish()], ModelFailed("It broke.")])
    assert await filter_lines(open_chats(model), ["first\n", "  \n", "second\n"]) == ("One.\n\n\n", "It broke.\n", True)
    assert [len(call.messages) for call in model.calls] == [1, 3]


async def test_a_reply_in_a_pipe_keeps_the_marks_of_its_language_and_nothing_that_turns_it(
    open_chats: OpenApp,
) -> None:
    model = ScriptedModel([[parts.text_delta("1", "C\u200f\u200e\u061c \u202ehs.x\x1b[2J"), parts.finish()]])
    shown = "C\u200f\u200e\u061c \ufffdhs.x\ufffd[2J\n\n"
    assert await filter_lines(open_chats(model), ["first"]) == (shown, "", False)


async def test_a_retry_is_written_to_standard_error(open_chats: OpenApp) -> None:
    overloaded = ModelFailed("The provider is overloaded.", kind="overloaded")
    model = ScriptedModel([[parts.text_delta("1", "On"), overloaded], [parts.text_delta("1", "e."), parts.finish()]])
    told = "The provider is overloaded. Trying again in 0 s.\n"
    assert await filter_lines(open_chats(model), ["first"]) == ("One.\n\n", told, False)


async def test_a_resumed_chat_writes_only_what_is_new(open_chats: OpenApp) -> None:
    await filter_lines(open_chats(ScriptedModel([[parts.text_delta("1", "One."), parts.finish()]])), ["first"])
    model = ScriptedModel([[parts.text_delta("1", "Two."), parts.finish()]])
    assert await filter_lines(open_chats(model), ["second"], resume=True) == ("Two.\n\n", "", False)


async def test_a_resumed_chat_writes_the_whole_of_a_reply_that_was_left(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel([[parts.text_delta("1", "Half"), parts.hang()]])) as app:
        chat = await app.create_chat()
        async for part in chat.send("first"):
            if part.text:
                break
    out = io.StringIO()

    async def continue_when_read(_call: Call) -> AsyncIterator[Part]:
        await poll_until(lambda: out.getvalue() == "Half")
        yield parts.text_delta("1", " and half.")
        yield parts.finish()

    model = ScriptedModel([continue_when_read])
    assert await filter_lines(open_chats(model), [], resume=True, out=out) == ("Half and half.\n\n", "", False)


async def test_a_resumed_chat_writes_a_reply_that_was_left_and_has_ended_before_anybody_looks(
    open_chats: OpenApp,
) -> None:
    async with open_chats(ScriptedModel([[parts.text_delta("1", "Half"), parts.hang()]])) as app:
        chat = await app.create_chat()
        async for part in chat.send("first"):
            if part.text:
                break
    started_at, out = SystemClock().now(), io.StringIO()
    async with open_chats(ScriptedModel([[parts.text_delta("1", " and half."), parts.finish()]])) as app:
        chat = await app.chat(chat.id)
        await poll_until(partial(is_idle, chat))
        await PlainChat(app, out=out, errors=out, clock=app.clock, started_at=started_at).run(chat, read_nothing())
    assert out.getvalue() == "Half and half.\n\n"


async def is_idle(chat: Chat) -> bool:
    return await chat.status() == "idle"


async def read_nothing() -> AsyncIterator[str]:
    return
    yield


async def test_the_demo_tools_are_called_and_answer(open_chats: OpenApp) -> None:
    clock = ManualClock(skip_sleeps=True)
    tools = make_demo_tools(clock, pace_s=0.02)
    model: Model = DemoModel(pace_s=0)
    out, _, _ = await filter_lines(open_chats(model, tools=tools), ["roll a die", "what time is it?"])
    assert any(f"[roll_die answered: {number}]" in out for number in range(1, 7))
    assert str(clock.now().astimezone().year) in out


async def test_lines_are_read_from_a_pipe_as_they_come_and_the_loop_goes_on_meanwhile() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, encoding="utf-8") as source, os.fdopen(write_end, "wb", buffering=0) as pipe:
        lines = read_lines(source)
        first = asyncio.ensure_future(anext(lines))
        pipe.write("zwölf\nhal".encode()[:3])
        await asyncio.sleep(0)
        assert not first.done()
        pipe.write("zwölf\nhal".encode()[3:])
        assert await first == "zwölf"
        pipe.write(b"f")
        pipe.close()
        assert [line async for line in lines] == ["half"]


async def test_all_of_a_file_may_be_one_message(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\n\ntwo")
    with (tmp_path / "lines").open() as source:
        assert [message async for message in read_all(source)] == ["one\n\ntwo"]


async def test_an_endless_input_is_refused() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, encoding="utf-8") as source, os.fdopen(write_end, "wb", buffering=0) as pipe:
        os.set_blocking(write_end, False)
        reading = asyncio.ensure_future(anext(read_all(source)))
        while not reading.done():
            with contextlib.suppress(BlockingIOError):
                pipe.write(bytes(65536))
            await asyncio.sleep(0)
        with pytest.raises(Invalid, match="The input is longer than"):
            await reading


async def test_lines_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\n\ntwo")
    with (tmp_path / "lines").open() as source:
        assert [line async for line in read_lines(source)] == ["one", "", "two"]
