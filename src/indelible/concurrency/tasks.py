"""Work that can be interrupted, and is abandoned if it will not end.

A model's stream and a running tool are foreign code. Cancelling their task asks them to stop
within a grace time; work that ignores that is *abandoned*: it may
keep running without effect, but no caller waits for it any longer. Python cannot end a task or a thread by
force, so this is the strongest possible promise: a stop always takes effect.

The loop awaits everything with `wait_uncancelled`: to its end, however often the waiting task is
cancelled. asyncio's cancellation has no cause; on a live scope it is a shutdown, so the scope is
shut down, and the `CancelledError` propagates once the work has ended. If the scope was
already interrupted, the cancellation is part of that interrupt and the scope's cause applies.

Must stay true (tests/concurrency/test_tasks.py): `wait` always returns after the grace time; work is never
left running without either an owner or an entry in the list of abandoned work.

Two more tools are for work that must not stop half-way: a task that is cancelled in the middle of a transaction leaves
the driver in the middle of a statement. Work that the store's threads or connection tasks do needs only a future that
refuses to be cancelled: `UncancellableFuture`. Anything else, a migration or the
closing of a database, runs in a task of its own (`run_to_completion`), and a cancelled caller waits for its end first
(tests/store/test_run_to_completion.py).

`Backoff` waits before every retry, by the clock that it is given, so that tests do not wait.

A tool may fork (`multiprocessing`, a daemon), and the child inherits every open descriptor: among them the lock of the
database and the port of the server. Both would stay taken after the process itself is gone, so the process could not be
restarted. So those descriptors are closed in every child (`closed_in_children`). A child that executes another program
never has them: Python opens all descriptors so that they are closed then. After `kill -9` of a process whose child
lives on, a new process gets the lock and the port (tests/server/test_files_and_forks.py).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, ParamSpec, TypeVar

from indelible.clock import Clock, Timer
from indelible.concurrency.scope import CancelScope

_log: Final = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

_abandoned: Final[set[asyncio.Task[Any]]] = set()
_descriptors: Final[set[int]] = set()


class GracefulTask(Generic[T]):
    """Runs `work` in a task of its own."""

    def __init__(self, work: Coroutine[Any, Any, T], *, name: str, grace_s: float, clock: Clock) -> None:
        self.abandoned = False
        self._cancelled = False
        self._grace_s = grace_s
        self._clock = clock
        self._grace: Timer | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(work, name=name)
        self.task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Cancel the work, once, and give it the grace time.

        Work that cancels itself is cancelled only at its next await: what it does until then counts.
        """
        if self._cancelled or self.task.done():
            return
        self._cancelled = True
        self.start_deadline()
        if asyncio.current_task() is self.task:
            asyncio.get_running_loop().call_soon(self.task.cancel)
        else:
            self.task.cancel()

    @property
    def was_cancelled(self) -> bool:
        return self._cancelled

    def start_deadline(self) -> None:
        """From now on the work has only the grace time left."""
        if self._grace is None and not self.task.done():
            self._grace = self._clock.call_later(self._grace_s, self._abandon)

    def stop_deadline(self) -> None:
        """The work now does something that must be awaited."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    async def wait(self, scope: CancelScope) -> None:
        """Wait until the work has ended or was abandoned."""
        await wait_uncancelled(self._ended, scope)

    def _end(self, task: asyncio.Task[T]) -> None:
        _mark_seen(task)
        self.stop_deadline()
        if not self._ended.done():
            self._ended.set_result(None)

    def _abandon(self) -> None:
        if self.task.done():
            return
        self.abandoned = True
        _abandoned.add(self.task)
        self.task.add_done_callback(_forget)
        _log.warning("%s did not stop within %g s and was abandoned", self.task.get_name(), self._grace_s)
        self._ended.set_result(None)


async def wait_uncancelled(work: asyncio.Future[Any], scope: CancelScope) -> None:
    """Wait until `work` is done, however often the caller is cancelled. The caller reads the result."""
    task = asyncio.current_task()
    assert task is not None
    cancelling = task.cancelling()
    cancellation: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancellation = error
            scope.shutdown()
    if cancellation is not None:
        if not scope.interrupted:
            _mark_seen(work)
            raise cancellation
        while task.cancelling() > cancelling:
            task.uncancel()


async def let_cancellation_through(scope: CancelScope) -> None:
    """Raise a cancellation that arrived while this task was running: here, and not at its next await."""
    task = asyncio.current_task()
    assert task is not None
    if task.cancelling():
        pause: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(pause.set_result, None)
        await wait_uncancelled(pause, scope)


def _mark_seen(work: asyncio.Future[Any]) -> None:
    """asyncio complains about an exception that was never retrieved; here the scope's cause may replace it."""
    if not work.cancelled():
        work.exception()


def count_abandoned() -> int:
    """How many tasks of this process were abandoned and still run."""
    return len(_abandoned)


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled() and task.exception() is not None:
        _log.warning("abandoned %s failed: %r", task.get_name(), task.exception())


# --- retrying ---


class Backoff:
    """Delays before retries: each is twice the last one, up to `longest_s`.

    `delay_s` is the next one, for a log line or for a caller that may give up. Cancelling `wait` is safe.
    """

    def __init__(self, clock: Clock, *, first_s: float, longest_s: float) -> None:
        self.delay_s = first_s
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s

    async def wait(self) -> None:
        delay_s = self.delay_s
        self.delay_s = min(2 * delay_s, self._longest_s)
        await self._clock.sleep(delay_s)

    def reset(self) -> None:
        """After a success: the next failure begins with the first delay."""
        self.delay_s = self._first_s


# --- work that must not stop half-way ---


class UncancellableFuture(asyncio.Future[T]):
    """The result of a job that runs elsewhere. A cancelled caller waits for it, and then gets its `CancelledError`."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002  (asyncio's)
        return False


def run_to_completion(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make a cancelled caller wait until the work has ended. Its result is then discarded."""

    @functools.wraps(method)
    async def run(*arguments: P.args, **named: P.kwargs) -> T:
        task = asyncio.create_task(method(*arguments, **named))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await _wait_for_end(task)
            raise

    return run


async def _wait_for_end(task: asyncio.Task[Any]) -> None:
    """Wait for the end, however often the caller is cancelled. The caller re-raises the cancellation."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue
    _mark_seen(task)


# --- forked children ---


@contextmanager
def closed_in_children(descriptor: int) -> Iterator[None]:
    """Within the block, a forked child closes this descriptor at once."""
    _descriptors.add(descriptor)
    try:
        yield
    finally:
        _descriptors.discard(descriptor)


def _close_all() -> None:
    for descriptor in _descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_close_all)
