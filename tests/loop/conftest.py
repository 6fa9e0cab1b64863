"""A stage on which one turn is played and watched.

The loop is driven through its front door only: `stage.start(model, …)` calls `run` with every callback
wired to the stage, and whatever went out is kept in a list. Tests wait for what was published
(`heard`) rather than for time to pass: a plain `publish` wakes the test only after the reader has gone
on to its next read, so that "the model hangs after this part" is exact.

Under `--import-mode=importlib` a test can not import from here, so types come in for the type
checker alone and the rest as fixtures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from indelible.content import Block, Message, Part, Reasoning, Text, ToolCall, ToolResult
from indelible.content.assemble import assemble, finalize
from indelible.errors import Interrupted
from indelible.loop import CancelScope, Cause, FinishedStep, TurnResult, run
from indelible.models.protocol import Model
from indelible.models.retry import RetryEvent
from indelible.testing import ManualClock

Answer = BaseException | Sequence[Message] | Callable[[], Any] | None
"""What a save does: raises, returns messages, or first does something else."""


class StageClock(ManualClock):
    """Says when somebody begins to sleep, which in a turn is the wait before a retry."""

    def __init__(self, sleeping: asyncio.Event) -> None:
        super().__init__()
        self._sleeping = sleeping

    async def sleep(self, delay_s: float) -> None:
        self._sleeping.set()
        await super().sleep(delay_s)


class Stage:
    def __init__(self) -> None:
        self.scope = CancelScope()
        self.sleeping = asyncio.Event()
        self.clock: ManualClock = StageClock(self.sleeping)
        self.published: list[Part] = []
        self.saved: list[FinishedStep] = []
        self.answers: list[Answer] = []
        self.scopes: list[tuple[CancelScope, Cause | None]] = []
        self.attempts: list[tuple[int, int]] = []
        self.retries: list[RetryEvent] = []
        self.save_errors: list[BaseException] = []
        self._listeners: list[tuple[type, int, asyncio.Event]] = []

    # --- playing ---

    def start(self, model: Model, **more: Any) -> asyncio.Task[TurnResult]:
        given: dict[str, Any] = {
            "messages": [Message(role="user", blocks=[Text("hi")])],
            "persist_step": self.save,
            "publish": self.publish,
            "scope": self.scope,
            "clock": self.clock,
            "on_attempt": lambda step, number: self.attempts.append((step, number)),
            "on_retry": self.retries.append,
            "on_persist_error": self.save_errors.append,
            "chance": lambda: 1.0,
        }
        return asyncio.create_task(run(model=model, **(given | more)))

    async def interrupt_at(self, kind: type, model: Model, *, times: int = 1, **more: Any) -> None:
        """Play until so many parts of this kind were published, then stop, and see the run end so."""
        task = self.start(model, **more)
        await self.heard(kind, times=times)
        self.scope.interrupt()
        with pytest.raises(Interrupted):
            await task

    def publish(self, part: Part) -> None:
        self.published.append(part)
        for kind, times, event in self._listeners:
            if self.count(kind) >= times:
                event.set()

    async def save(self, step: FinishedStep, scope: CancelScope) -> Sequence[Message] | None:
        self.saved.append(step)
        self.scopes.append((scope, scope.cause))
        number = len(self.saved)
        answer = self.answers[number - 1] if number <= len(self.answers) else None
        if callable(answer):
            answer = answer()
            if asyncio.iscoroutine(answer):
                answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    # --- watching ---

    def count(self, kind: type) -> int:
        return sum(isinstance(part, kind) for part in self.published)

    async def heard(self, kind: type, *, times: int = 1) -> None:
        """Wait until so many parts of this kind were published."""
        event = asyncio.Event()
        self._listeners.append((kind, times, event))
        if self.count(kind) < times:
            await event.wait()

    @property
    def only(self) -> FinishedStep:
        """The one step that was saved, which saw a scope of its own that was live."""
        (step,) = self.saved
        ((scope, cause),) = self.scopes
        assert cause is None
        assert scope is not self.scope
        return step

    def finalized(self, step: FinishedStep) -> list[Block]:
        """What the step has to hold, if all that was published belongs to it."""
        return finalize(assemble(self.published), step.reason, step.ended_at)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
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
