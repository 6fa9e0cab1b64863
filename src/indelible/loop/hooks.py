"""Calling the host's methods, which may be plain or async.

A method that writes (save this, a retry is coming, this attempt begins) must complete, even if the turn is
cancelled, because half a write would be worse than none: `call_shielded`. A method that returns data (prepare the
messages, reload the history, wait) may be interrupted by a stop at any moment: `call_cancellable`.

Must stay true (tests/loop/test_stop_everywhere.py): a cancellation during a shielded call is raised after it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from indelible.clock import Clock
from indelible.concurrency.scope import CancelScope
from indelible.concurrency.tasks import GracefulTask, wait_uncancelled

Hook = Callable[..., Any]
"""A method or function, plain or async."""


async def call_shielded(scope: CancelScope, hook: Hook, *arguments: Any) -> Any:
    """Call something that must complete. Returns its result, or raises its error."""
    answer = hook(*arguments)
    if not inspect.isawaitable(answer):
        return answer
    task = asyncio.create_task(_as_coroutine(answer))
    await wait_uncancelled(task, scope)
    return task.result()


class Hooks:
    """Calls on behalf of one turn, whose scope says whether it was stopped."""

    def __init__(self, scope: CancelScope, *, clock: Clock, grace_s: float) -> None:
        self._scope = scope
        self._clock = clock
        self._grace_s = grace_s

    async def call_shielded(self, hook: Hook, *arguments: Any) -> Any:
        """Call something that must complete. Returns its result, or raises its error."""
        return await call_shielded(self._scope, hook, *arguments)

    async def call_cancellable(self, hook: Hook, *arguments: Any) -> Any:
        """Call something that a stop may cancel; then the cause of the scope is raised."""
        self._scope.check()
        answer = hook(*arguments)
        if not inspect.isawaitable(answer):
            return answer
        name = getattr(hook, "__name__", "hook")
        task = GracefulTask(_as_coroutine(answer), name=name, grace_s=self._grace_s, clock=self._clock)
        forget = self._scope.on_cancel(task.cancel)
        try:
            await task.wait(self._scope)
        finally:
            forget()
        self._scope.check()
        return task.task.result()

    @property
    def cancelled(self) -> bool:
        return self._scope.cancelled


def _as_coroutine(answer: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    """Do not wrap a coroutine: an early cancellation of the task would leave it unawaited."""
    return answer if inspect.iscoroutine(answer) else _await(answer)


async def _await(answer: Awaitable[Any]) -> Any:
    return await answer
