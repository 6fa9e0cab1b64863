"""Models and tools of one's own that raise: S85 and S97."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from io import StringIO
from typing import Any

import pytest
from tests.support.app_harness import AppHarness
from tests.support.loop_harness import LoopHarness
from tests.support.messages import outline

from indelible.content import Part, TextDelta, ToolResult
from indelible.errors import ModelFailed
from indelible.logs import JsonFormatter, Redactor
from indelible.loop import TurnFailed
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts

DONE = [parts.text_delta("1", "Done"), parts.finish()]
CALL = [parts.tool_call("c", "burst", "{}"), parts.finish("tool_calls")]


class Nasty(BaseException):
    pass


ENDS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Nasty("nasty")]


def name_of(error: BaseException) -> str:
    return type(error).__name__


class RaisingModel(ScriptedModel):
    """Raises in the stream, or where it is opened or closed."""

    def __init__(self, error: BaseException, where: str) -> None:
        super().__init__()
        self._error = error
        self._where = where

    def stream(self, call: Call) -> AsyncIterator[Part]:
        if self._where == "opening":
            raise self._error
        return self._stream()

    async def _stream(self) -> AsyncIterator[Part]:
        try:
            yield TextDelta("1", "Half")
            if self._where == "reading":
                raise self._error
            await asyncio.Event().wait()
        finally:
            if self._where == "closing":
                raise self._error


@pytest.mark.parametrize("where", ["opening", "reading"])
@pytest.mark.parametrize("error", ENDS, ids=name_of)
@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_s97_a_model_that_raises_anything_ends_its_turn_only(
    harness: AppHarness, error: BaseException, where: str
) -> None:
    running = await harness.start_worker(models={"bad": RaisingModel(error, where), "good": ScriptedModel([DONE])})
    chat = await harness.app.create_chat()
    with pytest.raises(ModelFailed) as failed:
        await chat.send("Hello", model="bad")
    assert failed.value.detail is not None
    assert type(error).__name__ in failed.value.detail
    other = await harness.app.create_chat()
    assert (await other.send("Hello", model="good")).text == "Done"
    assert not running.task.done()


@pytest.mark.parametrize("error", ENDS, ids=name_of)
async def test_s97_a_model_that_raises_when_it_is_closed_ends_its_turn_only(
    harness: AppHarness, error: BaseException
) -> None:
    running = await harness.start_worker(RaisingModel(error, "closing"))
    chat = await harness.app.create_chat()
    await chat.post("Hello")
    await harness.wait_for_text(chat, "Half")
    await chat.interrupt()
    assert await chat.status() == "idle"
    assert not running.task.done()


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("error", ENDS, ids=name_of)
@pytest.mark.may_log("the tool burst raised an error")
async def test_s97_a_tool_that_raises_anything_gives_an_error_result(
    harness: AppHarness, error: BaseException, kind: str
) -> None:
    async def burst() -> str:
        raise error

    def burst_plainly() -> str:
        raise error

    burst_plainly.__name__ = "burst"
    tool: Any = burst if kind == "async" else burst_plainly
    running = await harness.start_worker(ScriptedModel([CALL, DONE]), tools=[tool])
    chat = await harness.app.create_chat()
    assert (await chat.send("Go")).text == "Done"
    assert outline(await chat.messages())[2][1].startswith(type(error).__name__)
    assert not running.task.done()


async def test_s97_a_tool_whose_value_raises_when_it_is_shown_gives_a_result(harness: AppHarness) -> None:
    class Mine:
        def __str__(self) -> str:
            raise SystemExit

    def burst() -> Mine:
        return Mine()

    await harness.start_worker(ScriptedModel([CALL, DONE]), tools=[burst])
    chat = await harness.app.create_chat()
    assert (await chat.send("Go")).text == "Done"


# --- S85 ---


@pytest.fixture
def log() -> Any:
    """What is logged, one object per line."""
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter(Redactor(())))
    logging.getLogger("indelible").addHandler(handler)
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    logging.getLogger("indelible").removeHandler(handler)


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_s85_a_model_that_raises_is_in_the_log_with_its_traceback_and_named_in_the_error(
    harness: AppHarness, log: Any
) -> None:
    await harness.start_worker(RaisingModel(ZeroDivisionError("no"), "reading"))
    chat = await harness.app.create_chat()
    with pytest.raises(ModelFailed) as failed:
        await chat.send("Hello")
    assert failed.value.detail == "ZeroDivisionError: no"
    (line,) = [line for line in log() if "ZeroDivisionError" in line.get("error", "")]
    assert "_stream" in line["error"]
    assert line["chat"] == chat.id
    assert line["turn"].startswith("turn_")
    assert line["attempt"].startswith("attempt_")


@pytest.mark.may_log("the tool burst raised an error")
async def test_s85_a_tool_that_raises_is_in_the_log_with_its_traceback_and_its_call(
    harness: AppHarness, log: Any
) -> None:
    def burst() -> str:
        raise ZeroDivisionError("no")

    await harness.start_worker(ScriptedModel([CALL, DONE]), tools=[burst])
    chat = await harness.app.create_chat()
    await chat.send("Go")
    (result,) = [block for block in (await chat.messages())[2].blocks if isinstance(block, ToolResult)]
    assert result.output == "ZeroDivisionError: no"
    (line,) = [line for line in log() if "ZeroDivisionError" in line.get("error", "")]
    assert "burst" in line["error"]
    assert (line["chat"], line["call"]) == (chat.id, "c")
    assert line["turn"].startswith("turn_")


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_s85_the_cause_of_a_failure_is_kept() -> None:
    error, harness = ZeroDivisionError("no"), LoopHarness()
    end = await harness.start(RaisingModel(error, "reading"))
    assert isinstance(end, TurnFailed)
    assert end.error.__cause__ is error
