"""The thread behind the prompt: what lives there, what goes wrong there, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator

import pytest

from indelible.terminal.backstage import Backstage


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
    with Backstage(live(log)) as backstage:
        assert backstage.value == "value"
        assert backstage.run(find_thread()) == "backstage"
        with pytest.raises(LookupError, match="no such thing"):
            backstage.run(fail())
        assert log == ["entered in backstage"]
    assert log == ["entered in backstage", "left"]
    assert "backstage" not in {thread.name for thread in threading.enumerate()}


def test_what_cannot_be_opened_is_raised_where_it_was_asked_for() -> None:
    class Closed(contextlib.AbstractAsyncContextManager[None]):
        async def __aenter__(self) -> None:
            raise PermissionError("closed")

        async def __aexit__(self, *_: object) -> None: ...

    with pytest.raises(PermissionError, match="closed"), Backstage(Closed()):
        pass
    assert "backstage" not in {thread.name for thread in threading.enumerate()}


def test_what_breaks_by_itself_ends_the_waiting_and_is_raised() -> None:
    broken = asyncio.Event()

    async def wait_for_ever() -> None:
        broken.set()
        await asyncio.Event().wait()

    with (
        pytest.raises(ExceptionGroup) as raised,
        Backstage(live([], fails_after=broken)) as backstage,
    ):
        backstage.run(wait_for_ever())
    assert raised.group_contains(ValueError, match="The work broke.")


def test_ctrl_c_ends_the_waiting_and_what_was_waited_for() -> None:
    log: list[str] = []

    async def press() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    with pytest.raises(KeyboardInterrupt), Backstage(live(log)) as backstage:
        backstage.run(press())
    assert log == ["entered in backstage", "ended", "left"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_it_is_being_left_changes_nothing() -> None:
    log: list[str] = []

    @contextlib.asynccontextmanager
    async def press_when_leaving() -> AsyncIterator[None]:
        async with live(log):
            try:
                yield
            finally:
                os.kill(os.getpid(), signal.SIGINT)

    with Backstage(press_when_leaving()):
        pass
    assert log[-1] == "left"
