"""The jobs of SQLite's threads: who waits for the writer and the readers, in which order, and how they are answered.

A caller creates a `Job` in its event loop and waits for the job's future, which cannot be cancelled half-way. A thread
runs the job and delivers the result in that loop. `WriterQueue` decides which jobs share a commit: urgent ones first,
then the others in order of arrival until the group's time is over, and a slow one alone.

Must stay true (tests/store/test_sqlite.py): every job is answered once; urgent work goes first, and slow work is not
starved by it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from indelible.concurrency.tasks import UncancellableFuture
from indelible.store.database.errors import translate_error
from indelible.store.database.transaction import Work

T = TypeVar("T")

GROUP_TIME_S: Final = 0.02
"""How long a group accepts work that is not urgent."""
GROUP_TIME_WITH_URGENT_S: Final = 0.005
"""The same, if urgent work waits for the group's commit."""


class Job(Generic[T]):
    """Work with a waiting caller. It is created in the caller's event loop; a thread sets `value` or `error`."""

    __slots__ = ("error", "has_begun", "loop", "on_committed", "result", "single", "slow", "urgent", "value", "work")

    def __init__(
        self,
        work: Work[T],
        *,
        urgent: bool = False,
        slow: bool = False,
        single: bool = False,
        on_committed: Callable[[T], object] | None = None,
    ) -> None:
        self.work = work
        self.urgent = urgent
        self.slow = slow
        self.single = single
        self.on_committed = on_committed
        self.has_begun = False
        self.loop = asyncio.get_running_loop()
        self.result: UncancellableFuture[T] = UncancellableFuture(loop=self.loop)
        self.value: Any = None
        self.error: BaseException | None = None


class ReaderQueue:
    """A queue of reading jobs, what is being read, and up to `size` threads that serve it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self.reading: set[Job[Any]] = set()
        self.threads: list[ServingThread] = []


class WriterQueue:
    """The jobs that wait for the writer: urgent ones first, otherwise in order of arrival."""

    def __init__(self, source: SimpleQueue[Job[Any] | None]) -> None:
        self._source = source
        self._urgent: deque[Job[Any]] = deque()
        self._others: deque[Job[Any]] = deque()
        self._is_ending = False
        self._is_turn_of_slow = False

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def wait(self) -> bool:
        """Wait for a job, and queue all that have arrived by then; False when it closes and no job is left."""
        if not self and not self._is_ending:
            self._add(self._source.get())
        self.drain()
        return bool(self)

    def drain(self) -> None:
        with suppress(Empty):
            while True:
                self._add(self._source.get_nowait())

    def pop_group(self) -> Iterable[Job[Any]]:
        """The jobs that share the next commit: those queued now, as many as the group's time allows.

        A slow job has a commit to itself. Urgent ones go before it, once.
        """
        is_turn_of_slow, self._is_turn_of_slow = self._is_turn_of_slow, False
        if is_turn_of_slow and self._others and self._others[0].slow:  # others may have failed or come before it
            yield self._others.popleft()
            return
        time_s = GROUP_TIME_WITH_URGENT_S if self._urgent else GROUP_TIME_S
        last_at_s = time.monotonic() + time_s
        is_empty = not self._urgent
        while self._urgent:
            yield self._urgent.popleft()
        while self._others:
            if self._others[0].slow and not is_empty:
                self._is_turn_of_slow = True
                return
            job = self._others.popleft()
            is_empty = False
            yield job
            if job.slow or time.monotonic() >= last_at_s:
                return

    def pop_all(self) -> list[Job[Any]]:
        jobs = [*self._urgent, *self._others]
        self._urgent.clear()
        self._others.clear()
        return jobs

    def put_back(self, jobs: Iterable[Job[Any]]) -> None:
        for job in reversed(list(jobs)):
            (self._urgent if job.urgent else self._others).appendleft(job)

    def _add(self, job: Job[Any] | None) -> None:
        if job is None:
            self._is_ending = True
        else:
            (self._urgent if job.urgent else self._others).append(job)


class ServingThread:
    """A thread whose end can be awaited. It is a daemon: it does not keep the process alive."""

    def __init__(self, name: str, serve: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: UncancellableFuture[None] = UncancellableFuture(loop=self._loop)
        self._serve = serve
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def wait_for_end(self) -> None:
        await self._ended
        self._thread.join()  # it is about to end, so this returns at once

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            with suppress(RuntimeError):  # the loop is closed, and no caller waits
                self._loop.call_soon_threadsafe(self._ended.set_result, None)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run work to its end, synchronously."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    work.close()
    raise RuntimeError("Work on SQLite may await nothing but the statements of its transaction.")


def fail(jobs: Iterable[Job[Any]], error: BaseException) -> list[Job[Any]]:
    failed = list(jobs)
    for job in failed:
        job.error = job.error or error
    return failed


def deliver(jobs: Sequence[Job[Any]], where: str) -> None:
    """Deliver results to the waiting callers, each in its own event loop; usually one loop, and so one call."""
    for loop in dict.fromkeys(job.loop for job in jobs):
        with suppress(RuntimeError):  # the loop is closed, and no caller waits
            loop.call_soon_threadsafe(_answer, [job for job in jobs if job.loop is loop], where)


def _answer(jobs: Sequence[Job[Any]], where: str) -> None:
    for job in jobs:
        if job.error is None:
            if job.on_committed is not None:
                job.on_committed(job.value)
            job.result.set_result(job.value)
        else:
            job.result.set_exception(translate_error(job.error, where))
            job.result.exception()  # mark it as retrieved: a cancelled caller does not
