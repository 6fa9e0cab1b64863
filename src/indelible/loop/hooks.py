"""Calling what the caller of `run` handed in: hooks that may be plain or async.

There are two kinds. What only *tells* (save this, a retry is coming, this attempt begins) must come
to its end whoever cancels us, for half of it would be worse than none. What *asks* (prepare the
messages, reload the history, wait) may be cut short by a stop at any moment.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine
from typing import Any

from indelible.clock import Clock
from indelible.concurrency.scope import CancelScope
from indelible.concurrency.tasks import GracefulTask, wait_uncancelled
from indelible.loop.setup import Hook


class Hooks:
    def __init__(self, scope: CancelScope, *, clock: Clock, grace_s: float) -> None:
        self._scope = scope
        self._clock = clock
        self._grace_s = grace_s

    async def call_shielded(self, hook: Hook, *arguments: Any) -> Any:
        """Call something that must come to its end. Its answer, or what it raised."""
        answer = hook(*arguments)
        if not inspect.isawaitable(answer):
            return answer
        task = asyncio.create_task(_as_coroutine(answer))
        await wait_uncancelled(task, self._scope)
        return task.result()

    async def call_cancellable(self, hook: Hook, *arguments: Any) -> Any:
        """Call something that a stop may cut short; then what the scope says is raised."""
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
    """A coroutine goes into its task as it is: wrapped, it would be left unawaited by an early cancellation."""
    return answer if inspect.iscoroutine(answer) else _await(answer)


async def _await(answer: Awaitable[Any]) -> Any:
    return await answer
