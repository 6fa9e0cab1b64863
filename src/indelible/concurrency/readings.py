"""The loops over replies and feeds that a program has open: what happens to them when their app or the process ends.

**A loop that was left.** `break` leaves a generator standing in the middle of others, its connections and its place in
the feed with it. If nobody closes it, the event loop does so at its very end: all generators at once, the inner ones
first, which each outer one reports with a traceback. So an app and a client close those that are left (`aclose`), from
the outside in, before what they read is gone. A loop of a task that still runs was not left: the task is told by what
it reads that it ends too early, which a closed generator cannot do.

**A feed that never ends.** A server in whose process the program runs (uvicorn) answers SIGTERM and Ctrl-C by waiting
for its responses, and one that relays `chat.events()` would wait for ever: the app is closed only after them. So while
an endless feed is open, the handler that the program has for SIGTERM is chained: the feeds end, then the handler does
what it would. SIGINT is another matter: a program may use it to stop a reply. It ends feeds only if it has the same
handler as SIGTERM. A process without a handler ends by itself, and replies end by themselves: they are not cut.

Must stay true (tests/app/test_leaving.py).
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, Generic, Self, TypeVar
from weakref import WeakKeyDictionary, ref

T = TypeVar("T")


class Readings:
    """The open generators of one app or client, and the tasks that read them."""

    def __init__(self) -> None:
        # A task may hold its generator, so only weak references to it keep neither alive.
        self._open: WeakKeyDictionary[AsyncGenerator[Any, None], ref[asyncio.Task[Any]] | None] = WeakKeyDictionary()

    def add(self, reading: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Of the task that calls this."""
        task = None if asyncio._get_running_loop() is None else asyncio.current_task()
        self._open[reading] = None if task is None else ref(task)
        return reading

    async def aclose(self) -> None:
        """Close those that were left: by this task, or by one that has ended."""
        here = asyncio.current_task()
        for reading, found in list(self._open.items()):
            task = None if found is None else found()
            if task is None or task is here or task.done():
                await reading.aclose()


class Endless(Generic[T]):
    """An iterator that also ends when the process is told to end."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Task[Any] | None = None
        self._is_over = False
        self._has_cancelled = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._is_over:
            raise StopAsyncIteration
        self._waiting = task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            return await anext(self._items)
        except asyncio.CancelledError:
            if self._has_cancelled and task.cancelling() == before + 1:
                raise StopAsyncIteration from None
            raise  # somebody else cancels it, too
        finally:
            self._waiting = None
            if self._has_cancelled:
                self._has_cancelled = False
                task.uncancel()

    def end_soon(self) -> None:
        """From any thread, and from the handler of a signal."""
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self._waiting is not None:
                self._has_cancelled = True
                self._waiting.cancel()


@contextmanager
def until_process_ends(items: AsyncIterator[T]) -> Iterator[Endless[T]]:
    """These, until the process is told to end."""
    endless = Endless(items)
    _endless.add(endless)
    _chain_handlers()
    try:
        yield endless
    finally:
        _endless.discard(endless)
        if not _endless:
            _restore_handlers()


# --- signals -------------------------------------------------------------------------------

_endless: Final[set[Endless[Any]]] = set()
_chained: Final[dict[int, Callable[[int, FrameType | None], Any]]] = {}
"""The program's own handlers, by signal."""


def _end_feeds(number: int, frame: FrameType | None) -> None:
    for endless in list(_endless):
        endless.end_soon()
    _chained[number](number, frame)


def _chain_handlers() -> None:
    """Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number, handler in _find_handlers():
        if handler is not _end_feeds:
            _chained[number] = handler
            signal.signal(number, _end_feeds)


def _find_handlers() -> Iterator[tuple[int, Callable[[int, FrameType | None], Any]]]:
    """What the program has for being told to end."""
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler):
        yield signal.SIGTERM, handler
        # asyncio has the same one for every signal that it handles.
        if signal.getsignal(signal.SIGINT) == handler and not _is_of_asyncio(handler):
            yield signal.SIGINT, handler


def _is_of_asyncio(handler: Callable[..., Any]) -> bool:
    return getattr(handler, "__module__", "") == "asyncio.unix_events"


def _restore_handlers() -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in list(_chained.items()):
            if signal.getsignal(number) is _end_feeds:  # else somebody has it who may put it back, and call it
                signal.signal(number, handler)
                del _chained[number]
