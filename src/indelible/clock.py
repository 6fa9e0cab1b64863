"""Time as an argument.

Nothing in Indelible reads the system clock or sleeps by itself: it is given a `Clock`. So a test moves time by hand
(`indelible.testing.ManualClock`) and never sleeps, and a retry that waits a minute is tested in no time.

`now` is for people and for records (an aware UTC datetime). `monotonic` is for measuring and never goes back.
`call_later` is the one primitive for waiting; `sleep` is built on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Timer(Protocol):
    """A callback that has not been called yet."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; only differences are meaningful."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the running event loop after `delay_s`, unless it is cancelled."""

    async def sleep(self, delay_s: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of the operating system and the event loop."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
