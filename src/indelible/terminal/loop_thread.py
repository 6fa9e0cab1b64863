"""The event loop, in a thread of its own, so that the prompt may block.

A prompt waits for the user for as long as he likes, and readline and Ctrl-C want the main thread for that. The worker
must go on meanwhile: it says that it is alive, gives chats their titles, answers what others sent. So everything
asynchronous happens backstage: an asynchronous context manager (`open_app`) is entered there, lives there, and is left
there, all in one task. The main thread asks for one thing at a time and waits for its result.

Ctrl-C can come at any instant, also in the one between asking for something and waiting for it. So what is being done
is known backstage, not to whoever asked: the task that lives there ends all of it before it leaves the context manager.
And the main thread is told by a `SimpleQueue`, which is all C: in what is written in Python, as a `Future` is, Ctrl-C
can leave a lock taken that the other thread then waits for. One that comes in the instant before the main thread waits
does not end the waiting, so it looks up now and then.

Must stay true (tests/terminal/test_loop_thread.py): what goes wrong backstage is raised in the main thread; whenever
Ctrl-C comes, nothing that was asked for outlives the context manager; after the end of the block that has been left,
and the thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_LOOK_UP_EVERY_S: Final = 0.2


class LoopThread(Generic[T]):
    """`value` is what the context manager gave; `loop` is where it lives."""

    value: T
    loop: asyncio.AbstractEventLoop

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._thread = threading.Thread(target=self._live, name="backstage")
        self._staying: asyncio.Task[None] | None = None
        self._working: set[asyncio.Task[Any]] = set()
        self._leaving = False
        self._begun = threading.Event()
        self._told: SimpleQueue[asyncio.Task[Any] | None] = SimpleQueue()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            opened = self._wait()
        except BaseException:
            self._end()
            raise
        if opened is None:
            self._thread.join()
            raise self._explain_end()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if self._failure is not None and error is None:
            raise self._failure

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Have this done backstage, and wait for what comes of it."""
        try:
            done = self._wait() if self._call(self._begin, work) else None
            while done is not None and done.get_coro() is not work:
                done = self._wait()  # that was something that nobody waits for any more
        except BaseException:
            self._call(self._cancel_work)
            raise
        if done is None:
            self._thread.join()
            work.close()
            raise self._explain_end()
        result: R = done.result()
        return result

    def _call(self, do: Callable[..., object], *arguments: object) -> bool:
        """Have this called backstage; False if nobody is there any more."""
        try:
            self.loop.call_soon_threadsafe(do, *arguments)
        except RuntimeError:
            return False
        return True

    def _wait(self) -> asyncio.Task[Any] | None:
        """What is told next: something is done, or (None) all is over. Signals are heard meanwhile."""
        while True:
            with contextlib.suppress(Empty):
                return self._told.get(timeout=_LOOK_UP_EVERY_S)

    def _explain_end(self) -> BaseException:
        return self._failure or RuntimeError("What lived backstage has ended.")

    def _end(self) -> None:
        """Leave the context manager. Nothing is gained by interrupting that, so Ctrl-C is not heard meanwhile."""
        with _deaf_to_ctrl_c():
            self._begun.wait()
            self._call(self._leave)
            self._thread.join()

    # --- in the other thread ---

    def _live(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._stay())
        except BaseException as failure:
            self._failure = failure
        self._told.put(None)

    async def _stay(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._staying = asyncio.current_task()
        self._begun.set()
        async with self._manager as self.value:
            self._told.put(self._staying)
            try:
                await self.loop.create_future()
            finally:
                self._leaving = True
                self._cancel_work()
                await self._outlast_work()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        if self._leaving:
            return  # whoever asked is told at the end
        task = self.loop.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._tell)

    def _tell(self, task: asyncio.Task[Any]) -> None:
        self._working.discard(task)
        if not (self._leaving and task.cancelled()):  # else whoever asked is told at the end
            self._told.put(task)

    def _cancel_work(self) -> None:
        """Once: what is on its way to its end is not to be interrupted there."""
        for task in self._working:
            if not task.cancelling():
                task.cancel()

    async def _outlast_work(self) -> None:
        """Wait for the end of it, however often we are told to leave: that we were told is on its way already."""
        while self._working:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(self._working)

    def _leave(self) -> None:
        """Leave, unless that is what we are doing."""
        assert self._staying is not None
        if not self._leaving:
            self._staying.cancel()


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
