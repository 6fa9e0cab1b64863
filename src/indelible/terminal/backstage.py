"""The event loop, in a thread of its own, so that the prompt may block.

A prompt waits for the user for as long as he likes, and readline and Ctrl-C want the main thread for that. The worker
must go on meanwhile: it says that it is alive, gives chats their titles, answers what others sent. So everything
asynchronous happens backstage: an asynchronous context manager (`open_app`) is entered there, lives there, and is left
there, all in one task. The main thread asks for one thing at a time and waits for its result.

Must stay true (tests/terminal/test_backstage.py): what goes wrong backstage is raised in the main thread; after the
end of the block the thread has ended, and the context manager has been left.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Backstage(Generic[T]):
    """`value` is what the context manager gave; `loop` is where it lives."""

    value: T
    loop: asyncio.AbstractEventLoop

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._thread = threading.Thread(target=self._live, name="backstage")
        self._staying: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._opened: Future[T] = Future()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.value = self._opened.result()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if self._failure is not None and error is None:
            raise self._failure

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Have this done backstage, and wait for what comes of it."""
        if not self._thread.is_alive():
            work.close()
            raise self._explain_end()
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError:
            self._thread.join()
            raise self._explain_end() from None
        except BaseException:
            future.cancel()
            raise

    def _explain_end(self) -> BaseException:
        return self._failure or RuntimeError("What lived backstage has ended.")

    def _live(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._stay())
        except BaseException as failure:
            if self._opened.done():
                self._failure = failure
            else:
                self._opened.set_exception(failure)

    async def _stay(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._staying = asyncio.current_task()
        self._begun.set()
        async with self._manager as value:
            self._opened.set_result(value)
            await self.loop.create_future()

    def _end(self) -> None:
        """Leave the context manager. Nothing is gained by interrupting that, so Ctrl-C is not heard meanwhile."""
        with _deaf_to_ctrl_c():
            self._begun.wait()
            assert self._staying is not None
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self.loop.call_soon_threadsafe(self._staying.cancel)
            self._thread.join()


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
