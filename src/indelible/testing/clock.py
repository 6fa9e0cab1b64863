"""A clock that moves only when the test moves it.

`advance` moves it and fires the due timers in order. Call it and continue, or await it to let everything that was woken
run first. With `skip_sleeps=True` a `sleep` returns at once and moves the clock by its length, so a retry policy is
tested in no time; timers (the silence guard, tool timeouts) still fire only when they are due.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_TURNS_OF_THE_LOOP: Final = 50


class ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Settling:
    """Await it to let the event loop run the tasks that were woken."""

    def __await__(self) -> Generator[Any, None, None]:
        for _ in range(_TURNS_OF_THE_LOOP):
            yield from asyncio.sleep(0).__await__()


class ManualClock:
    def __init__(self, start: datetime = _START, *, skip_sleeps: bool = False) -> None:
        self.slept: list[float] = []
        self._start = start
        self._elapsed_s = 0.0
        self._skip_sleeps = skip_sleeps
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._numbers = itertools.count()
        self._waiters: list[asyncio.Future[None]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        heapq.heappush(self._timers, (self._elapsed_s + delay_s, next(self._numbers), timer))
        for waiter in self._waiters:
            _wake(waiter)
        self._waiters.clear()
        return timer

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        if self._skip_sleeps:
            self.advance(delay_s)
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_s, lambda: _wake(woken))
        try:
            await woken
        finally:
            timer.cancel()

    def advance(self, seconds: float) -> Settling:
        """Move the clock and fire the due timers; await the result to let the woken tasks run."""
        target = self._elapsed_s + seconds
        while self._timers and self._timers[0][0] <= target:
            due_s, _, timer = heapq.heappop(self._timers)
            self._elapsed_s = max(self._elapsed_s, due_s)
            if timer.callback is not None:
                timer.callback()
        self._elapsed_s = target
        return Settling()

    @property
    def pending(self) -> int:
        """The number of pending timers."""
        return sum(timer.callback is not None for _, _, timer in self._timers)

    async def wait_for_timer(self) -> None:
        """Wait until the next timer is set."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
