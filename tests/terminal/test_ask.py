"""One question: the reply alone on one side, everything else on the other, and a status for every outcome."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from indelible.app.app import App
from indelible.content import Part, ToolSpec
from indelible.errors import ModelFailed
from indelible.models import Call
from indelible.models.protocol import Model
from indelible.terminal.plain import FAILED, STOPPED, Asker
from indelible.testing import ScriptedModel, parts
from indelible.tools import tool

OpenApp = Callable[..., AbstractAsyncContextManager[App]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def say(text: str) -> list[Part]:
    return [parts.text_delta("1", text), parts.finish()]


def call_tool(name: str) -> list[Part]:
    return [parts.tool_call("1", name, '{"city": "Oslo"}'), parts.finish("tool_calls")]


async def ask(
    opened: AbstractAsyncContextManager[App], *, as_json: bool = False, out: io.StringIO | None = None, **more: Any
) -> tuple[int, str, str]:
    """The status, what comes out, and what is written beside it."""
    out, errors = out or io.StringIO(), io.StringIO()
    async with opened as app:
        chat = await app.create_chat(**more)
        status = await Asker(out=out, errors=errors, clock=app.clock).ask(chat, "Well?", as_json=as_json)
    return status, out.getvalue(), errors.getvalue()


async def test_the_reply_is_on_standard_output_and_tools_are_on_standard_error(open_chats: OpenApp) -> None:
    model = ScriptedModel([call_tool("weather"), say("It **rains**.")])
    told = "[weather answered: rain in Oslo]\n"
    assert await ask(open_chats(model, tools=[weather])) == (0, "It **rains**.\n", told)


async def test_in_a_terminal_it_is_drawn(open_chats: OpenApp) -> None:
    status, drawn, _ = await ask(open_chats(ScriptedModel([say("It **rains**.")])), out=Terminal())
    assert status == 0
    assert "rains" in drawn
    assert "**" not in drawn


async def test_json_is_one_object(open_chats: OpenApp) -> None:
    status, out, errors = await ask(open_chats(ScriptedModel([say("\x1b[2JÖre")])), as_json=True)
    assert (status, errors, out.count("\n"), out.isascii()) == (0, "", 1, True)
    answer = json.loads(out)
    assert answer["message_id"].startswith("message_")
    assert (answer["text"], answer["outcome"], answer["error"]) == ("\x1b[2JÖre", "complete", None)


@pytest.mark.parametrize("as_json", [True, False])
async def test_a_reply_that_fails_has_a_status_and_says_why(open_chats: OpenApp, as_json: bool) -> None:
    failure = ModelFailed("It broke.", kind="auth", detail="bad key")
    status, out, errors = await ask(open_chats(ScriptedModel([failure])), as_json=as_json)
    assert status == FAILED
    if as_json:
        assert json.loads(out)["error"] == {"kind": "auth", "message": "It broke.", "detail": "bad key"}
    else:
        assert "It broke." in errors


async def test_a_reply_that_waits_for_somebody_elses_tool_says_so(open_chats: OpenApp) -> None:
    spec = ToolSpec(name="weather", input_schema={"type": "object"})
    status, _, errors = await ask(open_chats(ScriptedModel([call_tool("weather")])), tools=[spec])
    assert status == FAILED
    assert "waits for tools that a client has to run" in errors


@pytest.mark.parametrize("as_json", [True, False])
async def test_ctrl_c_stops_the_reply_and_keeps_it(open_chats: OpenApp, as_json: bool) -> None:
    async def say_half_and_press(call: Call) -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Half")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    model: Model = ScriptedModel([say_half_and_press])
    status, out, _ = await ask(open_chats(model), as_json=as_json)
    assert status == STOPPED
    assert "Half" in out
    async with open_chats(ScriptedModel()) as app:
        (chat,) = await app.chats()
        messages = await (await app.chat(chat.id)).messages()
    assert [message.text for message in messages][:2] == ["Well?", "Half"]
