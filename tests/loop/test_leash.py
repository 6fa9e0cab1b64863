"""Work on a leash: it ends, or it is let go of; and whoever waits for it can not be pulled away."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from indelible.leash import Leash, outlast
from indelible.scope import Cause, Scope
from indelible.testing import ManualClock


async def wait_for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def give(value: int) -> int:
    return value


async def ignore_until(let_go: asyncio.Event) -> str:
    while not let_go.is_set():
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            continue
    return "too late"


def tie(work: Coroutine[Any, Any, Any], clock: ManualClock) -> Leash[Any]:
    return Leash(work, name="the work", grace_s=5, clock=clock)


# --- the leash ---------------------------------------------------------------------------


async def test_work_that_ends_gives_its_result() -> None:
    clock = ManualClock()
    leash = tie(give(42), clock)
    await leash.wait(Scope())
    assert leash.task.result() == 42
    assert not leash.abandoned
    assert clock.pending == 0


async def test_work_that_is_cut_is_cancelled_and_waited_for() -> None:
    clock = ManualClock()
    leash = tie(wait_for_ever(), clock)
    await asyncio.sleep(0)
    leash.cut()
    await leash.wait(Scope())
    assert leash.task.cancelled()
    assert not leash.abandoned
    assert clock.pending == 0


async def test_work_is_cancelled_once_however_often_it_is_cut() -> None:
    clock = ManualClock()
    cancellations = 0
    let_go = asyncio.Event()

    async def count() -> None:
        nonlocal cancellations
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                cancellations += 1

    leash = tie(count(), clock)
    await asyncio.sleep(0)
    for _ in range(3):
        leash.cut()
        await clock.advance(1)
    let_go.set()
    await leash.wait(Scope())
    assert cancellations == 1


async def test_the_grace_time_is_not_prolonged_by_cutting_again() -> None:
    clock = ManualClock()
    let_go = asyncio.Event()
    leash = tie(ignore_until(let_go), clock)
    await asyncio.sleep(0)
    leash.cut()
    await clock.advance(3)
    leash.cut()
    leash.start_grace()
    await clock.advance(2)
    assert leash.abandoned
    let_go.set()
    await leash.task


async def test_work_that_ignores_the_cut_is_abandoned_after_the_grace_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    let_go = asyncio.Event()
    leash = tie(ignore_until(let_go), clock)
    await asyncio.sleep(0)
    leash.cut()
    waiting = asyncio.create_task(leash.wait(Scope()))
    await clock.advance(4.9)
    assert not waiting.done()
    with caplog.at_level(logging.WARNING):
        await clock.advance(0.1)
    await waiting
    assert leash.abandoned
    assert not leash.task.done()
    assert "the work did not stop within 5 s" in caplog.text
    let_go.set()
    assert await leash.task == "too late"


async def test_work_that_has_ended_is_never_called_abandoned() -> None:
    """The grace time runs out between the end of the task and the news of it."""
    clock = ManualClock()
    let_go = asyncio.Event()
    leash = tie(ignore_until(let_go), clock)
    await asyncio.sleep(0)
    leash.cut()
    await asyncio.sleep(0)
    let_go.set()
    while not leash.task.done():
        await asyncio.sleep(0)
    clock.advance(5)
    await leash.wait(Scope())
    assert not leash.abandoned


async def test_work_that_cuts_itself_and_ends_keeps_its_result() -> None:
    clock = ManualClock()

    async def cut_and_give() -> int:
        leash.cut()
        return 42

    leash = tie(cut_and_give(), clock)
    await leash.wait(Scope())
    assert not leash.abandoned
    assert not leash.task.cancelled()
    assert leash.task.result() == 42


async def test_abandoned_work_that_fails_later_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    let_go = asyncio.Event()

    async def fail_late() -> None:
        await ignore_until(let_go)
        raise OSError("pipe is gone")

    leash = tie(fail_late(), clock)
    await asyncio.sleep(0)
    leash.cut()
    await clock.advance(5)
    await leash.wait(Scope())
    let_go.set()
    with caplog.at_level(logging.WARNING):
        await clock.advance(0)
    assert "pipe is gone" in caplog.text


async def test_abandoned_work_is_not_collected_while_it_runs() -> None:
    """asyncio holds tasks weakly; one that nobody holds may vanish in the middle of its work."""
    clock = ManualClock()
    done: list[str] = []
    let_go = asyncio.Event()

    async def work() -> None:
        done.append(await ignore_until(let_go))

    leash = tie(work(), clock)
    await asyncio.sleep(0)
    leash.cut()
    await clock.advance(5)
    assert leash.abandoned
    del leash
    gc.collect()
    let_go.set()
    await clock.advance(0)
    assert done == ["too late"]


async def test_work_that_fails_unseen_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OSError("nobody asked")

    leash = tie(fail(), ManualClock())
    await leash.wait(Scope())
    assert isinstance(leash.task.exception(), OSError)
    del leash
    gc.collect()
    assert caplog.text == ""


async def test_grace_without_a_cut_is_for_work_that_should_end_by_itself() -> None:
    clock = ManualClock()
    let_go = asyncio.Event()
    leash = tie(ignore_until(let_go), clock)
    await asyncio.sleep(0)
    leash.start_grace()
    await clock.advance(5)
    assert leash.abandoned
    let_go.set()
    await leash.task
    assert leash.task.cancelling() == 0


# --- outlasting --------------------------------------------------------------------------


async def test_outlasting_work_that_is_done_takes_no_time() -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    work.set_result(None)
    scope = Scope()
    await outlast(work, scope)
    assert scope.cause is None


async def test_a_cancellation_on_a_live_scope_is_a_shutdown_and_goes_on_after_the_work() -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    scope = Scope()
    waiting = asyncio.create_task(outlast(work, scope))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    assert scope.cause is Cause.SHUTDOWN
    assert not waiting.done()
    work.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancellation_on_an_interrupted_scope_is_spent(caplog: pytest.LogCaptureFixture) -> None:
    work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    scope = Scope()
    waiting = asyncio.create_task(outlast(work, scope))
    await asyncio.sleep(0)
    scope.interrupt()
    for _ in range(3):
        waiting.cancel()
        await asyncio.sleep(0)
    work.set_result("saved")
    await waiting
    assert waiting.cancelling() == 0
    assert scope.cause is Cause.INTERRUPTED


async def test_a_cancellation_from_before_is_left_to_whoever_made_it() -> None:
    """A task that was cancelled, and went on, is waiting: that request is not ours to spend."""
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    scope = Scope()
    scope.interrupt()

    async def carry_on() -> int:
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            await outlast(work, scope)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    carrying = asyncio.create_task(carry_on())
    await asyncio.sleep(0)
    carrying.cancel()
    await asyncio.sleep(0)
    carrying.cancel()
    await asyncio.sleep(0)
    work.set_result(None)
    assert await carrying == 1


async def test_a_failure_of_work_whose_waiter_was_cancelled_makes_no_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("nobody asked")

    work = asyncio.create_task(fail())
    waiting = asyncio.create_task(outlast(work, Scope()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    del work
    gc.collect()
    assert caplog.text == ""


async def test_work_that_is_cancelled_itself_ends_the_wait() -> None:
    work = asyncio.create_task(wait_for_ever())
    scope = Scope()
    waiting = asyncio.create_task(outlast(work, scope))
    await asyncio.sleep(0)
    work.cancel()
    await waiting
    assert scope.cause is None
