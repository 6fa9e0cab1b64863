"""The thread behind the prompt: what lives there, what goes wrong there, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest

from indelible.terminal.loop_thread import LoopThread


@contextlib.asynccontextmanager
async def live(log: list[str], *, fails_after: asyncio.Event | None = None) -> AsyncIterator[str]:
    """Something with a task of its own, as the app has its worker."""

    async def work() -> None:
        if fails_after is not None:
            await fails_after.wait()
            raise ValueError("The work broke.")

    log.append(f"entered in {threading.current_thread().name}")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work())
        try:
            yield "value"
        finally:
            log.append("left")


async def find_thread() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise LookupError("no such thing")


def test_what_is_asked_for_is_done_in_the_other_thread_and_comes_back() -> None:
    log: list[str] = []
    with LoopThread(live(log)) as loop_thread:
        assert loop_thread.value == "value"
        assert loop_thread.run(find_thread()) == "backstage"
        with pytest.raises(LookupError, match="no such thing"):
            loop_thread.run(fail())
        assert log == ["entered in backstage"]
    assert log == ["entered in backstage", "left"]
    assert "backstage" not in {thread.name for thread in threading.enumerate()}


def test_what_cannot_be_opened_is_raised_where_it_was_asked_for() -> None:
    class Closed(contextlib.AbstractAsyncContextManager[None]):
        async def __aenter__(self) -> None:
            raise PermissionError("closed")

        async def __aexit__(self, *_: object) -> None: ...

    with pytest.raises(PermissionError, match="closed"), LoopThread(Closed()):
        pass
    assert "backstage" not in {thread.name for thread in threading.enumerate()}


def test_what_breaks_by_itself_ends_the_waiting_and_is_raised() -> None:
    broken = asyncio.Event()

    async def wait_for_ever() -> None:
        broken.set()
        await asyncio.Event().wait()

    with (
        pytest.raises(ExceptionGroup) as raised,
        LoopThread(live([], fails_after=broken)) as loop_thread,
    ):
        loop_thread.run(wait_for_ever())
    assert raised.group_contains(ValueError, match="The work broke.")


def test_what_is_cancelled_by_itself_is_told_and_nothing_else_ends() -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    with LoopThread(live([])) as loop_thread:
        with pytest.raises(asyncio.CancelledError):
            loop_thread.run(give_up())
        assert loop_thread.run(find_thread()) == "backstage"


# --- Ctrl-C ---


async def work_for_ever(log: list[str], begun: threading.Event | None = None) -> None:
    """It takes a while to end."""
    log.append("begun")
    if begun is not None:
        begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(10):
            await asyncio.sleep(0)
        log.append("ended")


def test_ctrl_c_ends_the_waiting_and_what_was_waited_for() -> None:
    log: list[str] = []

    async def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await work_for_ever(log)

    with pytest.raises(KeyboardInterrupt), LoopThread(live(log)) as loop_thread:
        loop_thread.run(press())
    assert log == ["entered in backstage", "begun", "ended", "left"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_is_heard_though_it_does_not_wake_the_main_thread() -> None:
    """It may come in the instant before that waits, or to another thread, as it does here."""
    log: list[str] = []

    async def press() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        await work_for_ever(log)

    with pytest.raises(KeyboardInterrupt), LoopThread(live(log)) as loop_thread:
        loop_thread.run(press())
    assert log == ["entered in backstage", "begun", "ended", "left"]


def test_ctrl_c_ends_what_was_waited_for_also_if_nothing_is_left() -> None:
    ended = asyncio.Event()

    async def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with LoopThread(live([])) as loop_thread:
        with pytest.raises(KeyboardInterrupt):
            loop_thread.run(press())
        assert loop_thread.run(ended.wait())


def is_waiting(what: str, called: Any) -> bool:
    """Whether the thread, which is being profiled, begins to wait for an answer."""
    return what == "c_call" and isinstance(called.__self__, SimpleQueue)


class CtrlC:
    """Comes at one of the instants until the main thread waits, which are wherever something is called or returns.

    It comes at once, or after all that was handed over until then has begun.
    """

    def __init__(self, at: int, *, at_once: bool) -> None:
        self.was_last = False
        self._instants_left = at
        self._at_once = at_once

    def interrupt(self, loop_thread: LoopThread[str], work: Coroutine[Any, Any, None]) -> None:
        sys.setprofile(partial(self._notice, loop_thread))
        loop_thread.run(work)

    def _notice(self, loop_thread: LoopThread[str], _: FrameType, what: str, called: Any) -> None:
        self._instants_left -= 1
        self.was_last = is_waiting(what, called)
        if self._instants_left == 0 or self.was_last:
            sys.setprofile(None)
            if not self._at_once:
                asyncio.run_coroutine_threadsafe(find_thread(), loop_thread.loop).result()
            raise KeyboardInterrupt


@pytest.mark.parametrize("at_once", [True, False])
def test_whenever_ctrl_c_comes_what_was_asked_for_ends_before_what_it_needs(at_once: bool) -> None:
    logs: list[list[str]] = []
    for at in itertools.count(1):
        log: list[str] = []
        logs.append(log)
        ctrl_c, work = CtrlC(at, at_once=at_once), work_for_ever(log)
        with pytest.raises(KeyboardInterrupt), LoopThread(live(log)) as loop_thread:
            ctrl_c.interrupt(loop_thread, work)
        work.close()  # if it was not handed over yet
        if ctrl_c.was_last:
            break
    whole, not_begun = ["entered in backstage", "begun", "ended", "left"], ["entered in backstage", "left"]
    assert all(log in (whole, not_begun) for log in logs), logs
    assert logs[0] == not_begun
    assert at_once or logs[-1] == whole
    assert len(logs) > 10


def test_work_that_is_under_way_ends_before_what_it_works_with_and_whoever_waits_is_told() -> None:
    log: list[str] = []
    begun = threading.Event()
    with ThreadPoolExecutor(1) as elsewhere:
        with LoopThread(live(log)) as loop_thread:
            waiting = elsewhere.submit(lambda: loop_thread.run(work_for_ever(log, begun)))
            begun.wait()
        with pytest.raises(RuntimeError, match="What lived backstage has ended"):
            waiting.result()
    assert log == ["entered in backstage", "begun", "ended", "left"]


def test_what_is_asked_for_while_it_is_being_left_is_not_begun() -> None:
    log: list[str] = []
    asked = threading.Event()
    late: list[Future[None]] = []

    def notice(_: FrameType, what: str, called: Any) -> None:
        if is_waiting(what, called):
            asked.set()

    def ask() -> None:
        sys.setprofile(notice)
        loop_thread.run(work_for_ever(log))

    @contextlib.asynccontextmanager
    async def ask_when_leaving() -> AsyncIterator[None]:
        try:
            yield
        finally:
            late.append(elsewhere.submit(ask))
            asked.wait()
            for _ in range(10):
                await asyncio.sleep(0)

    with ThreadPoolExecutor(1) as elsewhere:
        with LoopThread(ask_when_leaving()) as loop_thread:
            pass
        with pytest.raises(RuntimeError, match="What lived backstage has ended"):
            late[0].result()
    assert log == []


def test_work_ends_in_its_own_time_though_everything_is_told_to_end_twice() -> None:
    log: list[str] = []
    begun, ending = asyncio.Event(), asyncio.Event()

    async def end_slowly() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            for _ in range(10):
                await asyncio.sleep(0)
            log.append("ended")

    @contextlib.asynccontextmanager
    async def break_twice() -> AsyncIterator[None]:
        async with live(log, fails_after=ending), live(log, fails_after=begun):
            yield

    with pytest.raises(ExceptionGroup) as raised, LoopThread(break_twice()) as loop_thread:
        loop_thread.run(end_slowly())
    assert raised.group_contains(ValueError, match="The work broke.")
    assert log == ["entered in backstage"] * 2 + ["ended", "left", "left"]


def test_ctrl_c_while_it_is_being_left_changes_nothing() -> None:
    log: list[str] = []

    @contextlib.asynccontextmanager
    async def press_when_leaving() -> AsyncIterator[None]:
        async with live(log):
            try:
                yield
            finally:
                os.kill(os.getpid(), signal.SIGINT)

    with LoopThread(press_when_leaving()):
        pass
    assert log[-1] == "left"
