"""Chats that kill their worker: S82 and S96, on both databases.

A tool that kills its process is one that kills its worker here: the worker ends without a word, its row is removed, and
the next worker is started, until one survives (app_harness.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.app_harness import AppHarness, RunningWorker
from tests.support.messages import read_text
from tests.support.waiting import deadline

from indelible.content import Finish, Part, TextDelta, ToolCall
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel
from indelible.tools.tool import tool

pytestmark = pytest.mark.both_databases

DEADLY = "Press the red button"


class Killer:
    """Kills the worker that runs it, and counts how often it did."""

    def __init__(self) -> None:
        self.kills = 0
        self.worker: RunningWorker | None = None

    async def kill(self) -> str:
        self.kills += 1
        assert self.worker is not None
        self.worker.task.cancel()
        await asyncio.Event().wait()
        return "never"


async def work_until_one_survives(harness: AppHarness, killer: Killer, model: Any, tools: list[Any]) -> None:
    """Start a worker after the other, until every turn has ended."""
    chats = [await harness.app.chat(chat_id) for chat_id in await harness.list_chat_ids()]
    async with deadline():
        while True:
            killer.worker = running = await harness.start_worker(model, tools=tools)
            ended: asyncio.Future[Any] = asyncio.gather(*(harness.wait_for_end(chat) for chat in chats))
            either: list[asyncio.Future[Any]] = [running.task, ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
                return
            ended.cancel()
            await asyncio.wait([ended])
            await harness.retire_worker(running)


class Model:
    """Calls the deadly tool if it is asked to; other replies wait until the test lets them go on."""

    provider = name = "test"
    context_limit = None
    traits = ScriptedModel.traits

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked: list[str] = []

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        asked = [read_text(message.blocks) for message in call.messages if message.role == "user"]
        self.asked.append(asked[0])
        if asked[0] == DEADLY:
            yield ToolCall(id="c", name="press", arguments="{}")
            yield Finish("tool_calls")
            return
        await self.may_answer.wait()
        yield TextDelta("1", "Hello")
        yield Finish()


def make_tool(killer: Killer, *, idempotent: bool) -> Any:
    async def press() -> str:
        return await killer.kill()

    return tool(press, idempotent=idempotent)


async def test_s82_an_idempotent_tool_kills_its_worker_three_times(harness: AppHarness) -> None:
    killer, model = Killer(), Model()
    chat = await harness.app.create_chat(DEADLY)
    await work_until_one_survives(harness, killer, model, [make_tool(killer, idempotent=True)])
    view = await harness.store.view(chat.id)
    assert (killer.kills, view.status, view.error["kind"]) == (3, "error", "crashed")
    assert model.asked == [DEADLY]


@pytest.mark.parametrize("idempotent", [True, False])
async def test_s96_a_chat_that_kills_its_worker_takes_no_other_with_it(
    harness: AppHarness, *, idempotent: bool
) -> None:
    killer, model = Killer(), Model()
    innocent = [await harness.app.create_chat(f"Hello {number}") for number in range(5)]
    guilty = await harness.app.create_chat(DEADLY)
    ending = asyncio.create_task(
        work_until_one_survives(harness, killer, model, [make_tool(killer, idempotent=idempotent)])
    )
    await harness.wait_until(guilty, lambda view: view.status == "error")
    model.may_answer.set()
    await ending
    assert (await harness.store.view(guilty.id)).error["kind"] == "crashed"
    assert [await chat.status() for chat in innocent] == ["idle"] * 5
    assert [(await chat.messages())[-1].text for chat in innocent] == ["Hello"] * 5


async def test_s96_a_model_that_kills_its_worker_takes_no_other_chat_with_it(harness: AppHarness) -> None:
    killer = Killer()

    class DeadlyModel(Model):
        async def stream(self, call: Call) -> AsyncIterator[Part]:
            if read_text(call.messages[0].blocks) == DEADLY:
                await killer.kill()
            async for part in super().stream(call):
                yield part

    model = DeadlyModel()
    model.may_answer.set()
    before = [await harness.app.create_chat(f"Hello {number}") for number in range(2)]
    guilty = await harness.app.create_chat(DEADLY)
    after = [await harness.app.create_chat(f"Hello {number}") for number in range(3)]
    await work_until_one_survives(harness, killer, model, [])
    assert (await harness.store.view(guilty.id)).error["kind"] == "crashed"
    assert killer.kills == 3
    assert [await chat.status() for chat in (*before, *after)] == ["idle"] * 5
