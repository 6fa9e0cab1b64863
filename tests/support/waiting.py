"""How tests wait: for a signal wherever there is one, and with one deadline everywhere.

The deadline only says when a test has failed, and what it waited for. It is so generous that no machine is slow enough
to reach it otherwise, and it stands here once. `deadline` names the line of the test or of the harness that waited;
where the line says too little, it is told in words. What a test awaits by itself (`await begun.wait()`) has the limit
of the whole test (tests/waiting_limits.py).

`Watched` is for values that this process changes: whoever changes them calls `changed`, and a waiting test looks again.
`poll_until` is for what nobody here can signal: another process, a file, the server of a database.
"""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from indelible.clock import SystemClock

DEADLINE_S: Final = 100.0
_POLL_INTERVAL_S: Final = 0.01
_TESTS: Final = Path(__file__).parents[1]

Condition = Callable[[], bool | Awaitable[bool]]


@asynccontextmanager
async def deadline(what: str = "", *, limit_s: float | None = None) -> AsyncIterator[None]:
    """A test that waits in vain fails, and says what for and where."""
    limit = asyncio.timeout(DEADLINE_S if limit_s is None else limit_s)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        cancelled = error.__cause__ or error
        found = ": ".join(filter(None, [what, _find_wait(cancelled.__traceback__)]))
        raise AssertionError(f"waited in vain for {found or 'something'}") from None


def _find_wait(trace: TracebackType | None) -> str:
    """The innermost line of a test, or of what helps it, that was being awaited."""
    found = ""
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if _TESTS in file.parents or file.name.startswith("test_"):
            found = _show_line(str(file), trace.tb_lineno)
        trace = trace.tb_next
    return found


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
            async with deadline(what or describe(condition)):
                while not await _holds(condition):
                    await woken.wait()
                    woken.clear()
        finally:
            self._waiters.discard(woken)


async def poll_until(condition: Condition, *, what: str = "") -> None:
    """Look often at something that signals nothing. Pauses let the processes that are waited for have the machine."""
    async with deadline(what or describe(condition)):
        while not await _holds(condition):
            await SystemClock().sleep(_POLL_INTERVAL_S)


def describe(condition: Callable[..., object]) -> str:
    """The first line of a function, and where it stands."""
    code = getattr(condition, "__code__", None)
    if code is None:
        return str(condition)
    return _show_line(code.co_filename, code.co_firstlineno)


def _show_line(name: str, number: int) -> str:
    file = Path(name)
    return f"{linecache.getline(name, number).strip()} ({file.parent.name}/{file.name}:{number})"


async def _holds(condition: Condition) -> bool:
    answer = condition()
    return answer if isinstance(answer, bool) else await answer


async def wait_for_task(task: asyncio.Task[object], *, what: str = "the task") -> None:
    """Wait until it has ended, however it ends."""
    await wait_for_any([task], what=f"the end of {what}")


async def wait_for_any(tasks: Iterable[asyncio.Task[object]], *, what: str) -> None:
    """Wait until one of them has ended, however it ends."""
    async with deadline(what):
        await asyncio.wait(list(tasks), return_when=asyncio.FIRST_COMPLETED)
