"""S72: usage is kept as it comes (rule 10.7), on each wire format and on both databases."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.models.wires_under_test import WIRES, find_model_at
from tests.support.app_harness import AppHarness
from tests.support.messages import find_reply
from tests.support.waiting import deadline

from indelible.api.shapes import ChatMessage
from indelible.app.chat import Chat
from indelible.content import Part, Usage
from indelible.models.protocol import Model
from indelible.testing import ScriptedModel, SimulatedProvider, parts
from indelible.testing.model import Script
from indelible.testing.provider import WireName

pytestmark = pytest.mark.both_databases

COUNTED = Usage(input_tokens=1200, output_tokens=1)


class Priced:
    """A model whose tokens cost a nanodollar each."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.traits = replace(model.traits, price=lambda usage: usage.total_tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


async def begin(harness: AppHarness, model: Model) -> Chat:
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    await chat.post("Hello")
    await harness.wait_for_text(chat, "Half")
    return chat


async def stop(harness: AppHarness, model: Model) -> ChatMessage:
    """The reply to a question, stopped in its text."""
    chat = await begin(harness, model)
    await chat.interrupt()
    return find_reply(await chat.messages())


@pytest.mark.parametrize("wire", WIRES)
async def test_s72_a_stopped_reply_has_the_usage_cost_and_timings_that_were_reported(
    harness: AppHarness, wire: WireName
) -> None:
    script: list[Any] = [parts.usage(COUNTED), parts.text_delta("1", "Half"), parts.hang()]
    async with SimulatedProvider([script]) as provider, find_model_at(wire, provider) as model:
        reply = await stop(harness, Priced(model))
    assert (reply.partial, reply.usage, reply.cost_usd) == (True, COUNTED, 1201e-9)
    assert reply.timings is not None
    assert reply.timings.started_at is not None
    assert reply.timings.first_part_at is not None
    assert reply.timings.ended_at is not None
    assert reply.timings.started_at <= reply.timings.first_part_at <= reply.timings.ended_at


async def test_s72_usage_that_was_not_reported_is_null(harness: AppHarness) -> None:
    cut: Script = [parts.text_delta("1", "Half"), parts.hang()]
    reply = await stop(harness, ScriptedModel([cut]))
    assert (reply.usage, reply.cost_usd) == (None, None)


async def test_s72_a_crashed_reply_has_the_usage_that_was_reported(harness: AppHarness) -> None:
    cut: list[Part | Any] = [parts.usage(COUNTED), parts.text_delta("1", "Half"), parts.hang()]
    chat = await begin(harness, ScriptedModel([cut]))
    dead = harness.workers[0]
    await harness.kill_worker(dead)
    await harness.retire_worker(dead)
    await harness.start_worker(ScriptedModel([[parts.text_delta("1", " and half"), parts.finish()]]))
    await harness.wait_for_end(chat)
    crashed = [message for message in await chat.messages() if message.reason == "crashed"]
    assert [message.usage for message in crashed] == [COUNTED]


@pytest.mark.parametrize("count", [10**9 + 1, 2**62, 10**30, -5])
async def test_a_count_of_tokens_that_cannot_be_true_ends_no_turn(harness: AppHarness, count: int) -> None:
    """The sums of days and chats would overflow, and the turn could not even fail."""
    absurd = Usage(input_tokens=count, output_tokens=7)
    reply = [parts.usage(absurd), parts.text_delta("1", "Done"), parts.finish(usage=absurd)]
    await harness.start_worker(ScriptedModel([reply, reply]))
    chat = await harness.app.create_chat()
    async with deadline():
        assert (await chat.send("Hello")).text == "Done"
        assert (await chat.send("Again")).text == "Done"
    assert (await harness.store.view(chat.id)).totals.usage == Usage(output_tokens=14)
