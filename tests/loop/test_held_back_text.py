"""Text that is held back, because it might be the beginning of a tag, and a stop: published whole, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from tests.support.waiting import wait_for_task

from indelible.content import Part, TextDelta
from indelible.content.blocks import text_of
from indelible.loop import TurnInterrupted
from indelible.testing import ScriptedModel

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness


async def test_a_cancellation_while_held_back_text_is_published_neither_loses_nor_halves_it(
    harness: LoopHarness,
) -> None:
    held, publishing, may_publish = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def say() -> AsyncIterator[Part]:
        yield TextDelta("1", "<thi")
        held.set()
        await asyncio.get_running_loop().create_future()

    async def publish(part: Part) -> None:
        publishing.set()
        await may_publish.wait()
        harness.publish(part)

    task = harness.start(ScriptedModel([lambda call: say()]), publish=publish)
    await held.wait()
    harness.scope.interrupt()
    await publishing.wait()
    for _ in range(3):  # whoever waits for the turn is cancelled, again and again
        task.cancel()
        await asyncio.sleep(0)
    may_publish.set()
    await wait_for_task(task, what="the turn")
    assert not task.cancelled()
    assert isinstance(task.result(), TurnInterrupted)
    assert harness.published == [TextDelta("1", "<thi")]
    assert text_of(harness.only.blocks) == "<thi"
