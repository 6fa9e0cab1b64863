"""Work with the database is carried out to its end, whoever stops waiting for it.

A task that is cancelled in the middle of a transaction leaves the driver in the middle of a statement. The pool
then throws the connection away, but on SQLite a cursor that is still referenced keeps its transaction alive, and with
it the one write lock: nobody in the process can write until it is collected (it was measured). So each call of the
store runs in a task of its own, and whoever is cancelled meanwhile waits for the end of it first. That takes
no longer than a transaction does, because the database's own time limits hold (engine.py).

What a thread does at one go needs no task to be whole, only somebody who waits for it to the end: that is a `Promise`.

Must stay true (tests/store/test_whole.py): a call that is cancelled at any of its statements leaves nothing locked.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Promise(asyncio.Future[T]):
    """What a thread will bring in any case. Whoever is cancelled while waiting for it is told so when it has come."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002  (asyncio's)
        return False


def to_its_end(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a cancelled caller wait until the work has ended. What it came to is then told to nobody."""

    @functools.wraps(method)
    async def run(*arguments: P.args, **named: P.kwargs) -> T:
        task = asyncio.create_task(method(*arguments, **named))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await _outlast(task)
            raise

    return run


async def _outlast(task: asyncio.Task[Any]) -> None:
    """Wait for the end, however often we are told to stop. The caller raises what it was told."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    if not task.cancelled():
        task.exception()
