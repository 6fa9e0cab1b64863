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
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from types import AsyncGeneratorType, FrameType
from typing import Any, Final, Generic, Self, TypeVar, cast
from weakref import WeakKeyDictionary, ref

T = TypeVar("T")


class Reading:
    """Who reads a generator: it notes that as it begins, since whoever asks for it may give it to another task."""

    def __init__(self) -> None:
        self._task: ref[asyncio.Task[Any]] | None = None

    def begin(self) -> None:
        """In the task that reads."""
        task = asyncio.current_task()
        self._task = None if task is None else ref(task)

    def is_left(self) -> bool:
        """Whether it was begun by this task, or by one that has ended."""
        if self._task is None:
            return False
        task = self._task()
        return task is None or task is asyncio.current_task() or task.done()


class Readings:
    """The open generators of one app or client, and who reads them."""

    def __init__(self) -> None:
        # A task may hold its generator, so only weak references to it keep neither alive.
        self._open: WeakKeyDictionary[AsyncGenerator[Any, None], Reading] = WeakKeyDictionary()

    def add(self, read: Callable[[Reading], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """The generator that this makes. It calls `begin` first."""
        reading = Reading()
        generator = read(reading)
        self._open[generator] = reading
        return generator

    def add_endless(self, opened: AbstractAsyncContextManager[AsyncIterator[T]]) -> AsyncGenerator[T, None]:
        """The items of a feed, opened when they are read first; it ends when the process is told to end."""

        async def read(reading: Reading) -> AsyncGenerator[T, None]:
            reading.begin()
            async with opened as items:
                with until_process_ends(items) as endless:
                    async for item in endless:
                        yield item

        return self.add(read)

    async def aclose(self) -> None:
        """Close those that were left. One that waits for its next item has a reader, whoever began it."""
        for generator, reading in list(self._open.items()):
            if reading.is_left() and not cast("AsyncGeneratorType[Any, None]", generator).ag_running:
                await generator.aclose()


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
_Handler = Callable[[int, FrameType | None], Any]


class _EndsFeeds:
    """The handler of a signal that ends the feeds, and then does what the handler before it would.

    A program may put a handler of its own over this one, which calls it or puts it back, while another feed is opened.
    So each has one handler before it, for ever.
    """

    def __init__(self, before: _Handler) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for endless in list(_endless):
            endless.end_soon()
        self.before(number, frame)


def _chain_handlers() -> None:
    """Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number, handler in _find_handlers():
        if not isinstance(handler, _EndsFeeds):
            signal.signal(number, _EndsFeeds(handler))


def _find_handlers() -> Iterator[tuple[int, _Handler]]:
    """What the program has for being told to end."""
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler):
        yield signal.SIGTERM, handler
        # An event loop has the same one for every signal that it handles.
        if signal.getsignal(signal.SIGINT) == handler and not _is_of_loop(handler):
            yield signal.SIGINT, handler


def _is_of_loop(handler: _Handler) -> bool:
    return getattr(handler, "__module__", "") in ("asyncio.unix_events", "uvloop.loop")


def _restore_handlers() -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if isinstance(handler, _EndsFeeds):  # else somebody has it who may put it back, and call it
                signal.signal(number, handler.before)
