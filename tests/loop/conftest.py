"""A harness for each test, which leaves no task behind, and blocks spelled shortly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from tests.support.loop_harness import LoopHarness

from indelible.content import Block, Reasoning, Text, ToolCall, ToolResult


@pytest.fixture
async def harness() -> AsyncIterator[LoopHarness]:
    yield LoopHarness()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert [task for task in left if not task.done()] == [], "somebody was left running"


def spell(blocks: Sequence[Block]) -> list[tuple[str, ...]]:
    """Blocks as short tuples, for comparing at a glance."""
    spelled: list[tuple[str, ...]] = []
    for block in blocks:
        match block:
            case Text():
                spelled.append(("text", block.text))
            case Reasoning():
                spelled.append(("reasoning", block.text))
            case ToolCall():
                spelled.append(("call", block.id, block.name, block.arguments))
            case ToolResult():
                spelled.append(("error" if block.is_error else "result", block.call_id, block.name))
            case _:
                spelled.append((type(block).__name__,))
    return spelled


@pytest.fixture(name="spell")
def give_spell() -> Callable[[Sequence[Block]], list[tuple[str, ...]]]:
    return spell
