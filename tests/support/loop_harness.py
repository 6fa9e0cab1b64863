"""The loop, driven through its front door and watched: `LoopHarness` for tests/loop, `run_turn` for everybody else.

A turn is run with `run` and its last step saved with `save_end`, as every runner does it, so that `saved` holds all
steps in order, however the turn ended. Everything that leaves the loop is kept in a list. Tests wait for what was
published (`heard`) rather than for time to pass: a plain `publish` wakes the test only after the reader has gone on to
its next read, so that "the model hangs after this part" is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.waiting import deadline

from indelible.content import Block, Message, Part, Text
from indelible.content.assemble import assemble, finalize
from indelible.errors import Interrupted, Shutdown
from indelible.loop import (
    CancelScope,
    FinishedStep,
    TurnEnd,
    TurnFailed,
    TurnHost,
    TurnInterrupted,
    TurnLeaseLost,
    TurnOptions,
    TurnShutDown,
    run,
    save_end,
)
from indelible.models.protocol import Model
from indelible.models.retry import RetryEvent
from indelible.testing import ManualClock

Answer = BaseException | Sequence[Message] | Callable[[], Any] | None
"""What a save does: raises, returns messages, or first does something else."""

HOST_METHODS = frozenset(name for name in vars(TurnHost) if not name.startswith("_"))


class FunctionHost(TurnHost):
    """A host made of functions. What is not given, or None, keeps its default."""

    def __init__(self, **given: Any) -> None:
        for name, function in given.items():
            assert name in HOST_METHODS, name
            if function is not None:
                setattr(self, name, function)


async def end_turn(*, model: Model, messages: Sequence[Message], scope: CancelScope | None = None, **more: Any) -> Any:
    """Run a turn, save its last step by `persist_step` as well, and return its end.

    What is a method of a host is one; `tools` are tools; everything else is an option.
    """
    host = FunctionHost(**{name: more.pop(name) for name in list(more) if name in HOST_METHODS})
    tools = more.pop("tools", ())
    scope = scope or CancelScope()
    end = await run(model, messages, host, tools, TurnOptions(**more), scope=scope)

    def save(end: TurnEnd) -> Any:
        return None if end.step is None else host.persist_step(end.step)

    return await save_end(end, save, scope=scope, host=host)


async def run_turn(**given: Any) -> Any:
    """The same, for tests in which a turn that does not complete is an error: it is raised."""
    end = await end_turn(**given)
    match end:
        case TurnInterrupted():
            raise Interrupted
        case TurnShutDown():
            raise Shutdown
        case TurnFailed() | TurnLeaseLost():
            raise end.error
        case _:
            return end


async def raise_failure(ending: Any) -> TurnEnd:
    """Wait for the end of a turn, and raise what it failed with."""
    end: TurnEnd = await ending
    if isinstance(end, TurnFailed):
        raise end.error
    return end


class HarnessClock(ManualClock):
    """Signals when somebody begins to sleep, which in a turn is the wait before a retry."""

    def __init__(self, sleeping: asyncio.Event) -> None:
        super().__init__()
        self._sleeping = sleeping

    async def sleep(self, delay_s: float) -> None:
        self._sleeping.set()
        await super().sleep(delay_s)


class LoopHarness:
    """One turn. `cancellations` holds, for each save, how often the saving task was being cancelled: never."""

    def __init__(self) -> None:
        self.scope = CancelScope()
        self.sleeping = asyncio.Event()
        self.clock: ManualClock = HarnessClock(self.sleeping)
        self.published: list[Part] = []
        self.saved: list[FinishedStep] = []
        self.answers: list[Answer] = []
        self.cancellations: list[int] = []
        self.attempts: list[tuple[int, int]] = []
        self.retries: list[RetryEvent] = []
        self.save_errors: list[BaseException] = []
        self._listeners: list[tuple[type, int, asyncio.Event]] = []

    # --- running ---

    def start(self, model: Model, **more: Any) -> asyncio.Task[Any]:
        """A task that gives the turn's end, after its last step was saved."""
        given: dict[str, Any] = {
            "messages": [Message(role="user", blocks=[Text("hi")])],
            "persist_step": self.save,
            "publish": self.publish,
            "scope": self.scope,
            "clock": self.clock,
            "open_attempt": lambda step, number: self.attempts.append((step, number)),
            "schedule_retry": self.retries.append,
            "report_unsaved": self.save_errors.append,
            "chance": lambda: 1.0,
        }
        return asyncio.create_task(end_turn(model=model, **(given | more)))

    async def interrupt_at(self, kind: type, model: Model, *, times: int = 1, **more: Any) -> None:
        """Run until so many parts of this kind were published, then stop, and see the turn end so."""
        task = self.start(model, **more)
        await self.heard(kind, times=times)
        self.scope.interrupt()
        assert isinstance(await task, TurnInterrupted)

    def publish(self, part: Part) -> None:
        self.published.append(part)
        for kind, times, event in self._listeners:
            if self.count(kind) >= times:
                event.set()

    async def save(self, step: FinishedStep) -> Sequence[Message] | None:
        task = asyncio.current_task()
        assert task is not None
        self.saved.append(step)
        self.cancellations.append(task.cancelling())
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
            async with deadline(f"{times} of {kind.__name__}"):
                await event.wait()

    @property
    def only(self) -> FinishedStep:
        """The one step that was saved, by a task that nobody was cancelling."""
        (step,) = self.saved
        assert self.cancellations == [0]
        return step

    def finalized(self, step: FinishedStep) -> list[Block]:
        """What the step has to hold, if all that was published belongs to it."""
        return finalize(assemble(self.published), step.reason, step.ended_at)
