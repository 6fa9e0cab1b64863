"""S84: a worker that drains lets its replies end, and nothing more; on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.app_harness import AppHarness, make_settings
from tests.support.waiting import wait_for_task

from indelible.content import Part, TextDelta
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts

pytestmark = pytest.mark.both_databases


class GatedModel(ScriptedModel):
    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        yield TextDelta("1", "Half")
        await self.gate.wait()
        yield TextDelta("1", " and half")
        yield parts.finish()


async def test_s84_a_draining_worker_ends_its_reply_and_claims_no_other(harness: AppHarness) -> None:
    model = GatedModel()
    running = await harness.start_worker(model, settings=make_settings(drain_s=3600))
    chat = await harness.app.create_chat("Hello")
    await harness.wait_for_text(chat, "Half")
    running.worker.stop()
    other = await harness.app.create_chat("Hello")
    await chat.post("And now?")
    model.gate.set()
    await wait_for_task(running.task)
    assert [message.text for message in await chat.messages()] == ["Hello", "Half and half", "And now?"]
    assert [await each.status() for each in (chat, other)] == ["pending", "pending"]
    await harness.start_worker(model)
    await harness.wait_for_end(chat)
    await harness.wait_for_end(other)


async def test_s84_a_reply_can_be_stopped_while_its_worker_drains(harness: AppHarness) -> None:
    running = await harness.start_worker(GatedModel(), settings=make_settings(drain_s=3600))
    chat = await harness.app.create_chat("Hello")
    await harness.wait_for_text(chat, "Half")
    running.worker.stop()
    await chat.interrupt()
    await wait_for_task(running.task)
    assert await chat.status() == "idle"


async def test_s84_a_reply_that_does_not_end_in_time_is_handed_over(harness: AppHarness) -> None:
    model = GatedModel()
    running = await harness.start_worker(model, settings=make_settings(drain_s=0.01))
    chat = await harness.app.create_chat("Hello")
    await harness.wait_for_text(chat, "Half")
    running.worker.stop()
    await wait_for_task(running.task)
    assert await chat.status() == "pending"
    assert (await chat.messages())[-1].reason == "handed_over"
    model.gate.set()
    await harness.start_worker(model)
    await harness.wait_for_end(chat)
