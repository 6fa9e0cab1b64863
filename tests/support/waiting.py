"""How tests wait: for a signal wherever there is one, and with one deadline everywhere.

The deadline only says when a test has failed. It is so generous that no machine is slow enough to reach it otherwise,
and it stands here once.

`Watched` is for values that this process changes: whoever changes them calls `changed`, and a waiting test looks again.
`poll_until` is for what nobody here can signal: another process, a file, the server of a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from indelible.clock import SystemClock

DEADLINE_S: Final = 100.0
_POLL_INTERVAL_S: Final = 0.01

Condition = Callable[[], bool | Awaitable[bool]]


def deadline() -> asyncio.Timeout:
    """For `async with`: a test that waits in vain fails."""
    return asyncio.timeout(DEADLINE_S)


class Watched:
    """Something whose changes can be waited for. Its own code calls `changed` after each of them."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Event] = set()

    def changed(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def wait_until(self, condition: Condition, *, what: str = "") -> None:
        """Wait for a change after which this is true."""
        woken = asyncio.Event()
        self._waiters.add(woken)
        try:
            async with deadline():
                while not await _holds(condition):
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            raise AssertionError(f"waited in vain for: {what or condition}") from None
        finally:
            self._waiters.discard(woken)


async def poll_until(condition: Condition, *, what: str = "") -> None:
    """Look often at something that signals nothing. Pauses let the processes that are waited for have the machine."""
    try:
        async with deadline():
            while not await _holds(condition):
                await SystemClock().sleep(_POLL_INTERVAL_S)
    except TimeoutError:
        raise AssertionError(f"waited in vain for: {what or condition}") from None


async def _holds(condition: Condition) -> bool:
    answer = condition()
    return answer if isinstance(answer, bool) else await answer


async def wait_for_task(task: asyncio.Task[object], *, what: str = "the task") -> None:
    """Wait until it has ended, however it ends."""
    await asyncio.wait([task], timeout=DEADLINE_S)
    assert task.done(), f"{what} does not end"
