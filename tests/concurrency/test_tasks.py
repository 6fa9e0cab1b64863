"""Work on a task: it ends, or it is let go of; and whoever waits for it can not be pulled away."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from indelible.concurrency.scope import CancelScope, Cause
from indelible.concurrency.tasks import Backoff, GracefulTask, wait_uncancelled
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


def tie(work: Coroutine[Any, Any, Any], clock: ManualClock) -> GracefulTask[Any]:
    return GracefulTask(work, name="the work", grace_s=5, clock=clock)


# --- the task ---------------------------------------------------------------------------


async def test_work_that_ends_gives_its_result() -> None:
    clock = ManualClock()
    task = tie(give(42), clock)
    await task.wait(CancelScope())
    assert task.task.result() == 42
    assert not task.abandoned
    assert clock.pending == 0


async def test_work_that_is_cut_is_cancelled_and_waited_for() -> None:
    clock = ManualClock()
    task = tie(wait_for_ever(), clock)
    await asyncio.sleep(0)
    task.cancel()
    await task.wait(CancelScope())
    assert task.task.cancelled()
    assert not task.abandoned
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

    task = tie(count(), clock)
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await clock.advance(1)
    let_go.set()
    await task.wait(CancelScope())
    assert cancellations == 1


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_the_grace_time_is_not_prolonged_by_cutting_again() -> None:
    clock = ManualClock()
    let_go = asyncio.Event()
    task = tie(ignore_until(let_go), clock)
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(3)
    task.cancel()
    task.start_deadline()
    await clock.advance(2)
    assert task.abandoned
    let_go.set()
    await task.task


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_work_that_ignores_the_cut_is_abandoned_after_the_grace_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    let_go = asyncio.Event()
    task = tie(ignore_until(let_go), clock)
    await asyncio.sleep(0)
    task.cancel()
    waiting = asyncio.create_task(task.wait(CancelScope()))
    await clock.advance(4.9)
    assert not waiting.done()
    with caplog.at_level(logging.WARNING):
        await clock.advance(0.1)
    await waiting
    assert task.abandoned
    assert not task.task.done()
    assert "the work did not stop within 5 s" in caplog.text
    let_go.set()
    assert await task.task == "too late"


async def test_work_that_has_ended_is_never_called_abandoned() -> None:
    """The grace time runs out between the end of the task and the news of it."""
    clock = ManualClock()
    let_go = asyncio.Event()
    task = tie(ignore_until(let_go), clock)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    let_go.set()
    while not task.task.done():
        await asyncio.sleep(0)
    clock.advance(5)
    await task.wait(CancelScope())
    assert not task.abandoned


async def test_work_that_cuts_itself_and_ends_keeps_its_result() -> None:
    clock = ManualClock()

    async def cut_and_give() -> int:
        task.cancel()
        return 42

    task = tie(cut_and_give(), clock)
    await task.wait(CancelScope())
    assert not task.abandoned
    assert not task.task.cancelled()
    assert task.task.result() == 42


@pytest.mark.may_log("abandoned the work failed", "did not stop within .* and was abandoned")
async def test_abandoned_work_that_fails_later_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    let_go = asyncio.Event()

    async def fail_late() -> None:
        await ignore_until(let_go)
        raise OSError("pipe is gone")

    task = tie(fail_late(), clock)
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(5)
    await task.wait(CancelScope())
    let_go.set()
    with caplog.at_level(logging.WARNING):
        await clock.advance(0)
    assert "pipe is gone" in caplog.text


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_abandoned_work_is_not_collected_while_it_runs() -> None:
    """asyncio holds tasks weakly; one that nobody holds may vanish in the middle of its work."""
    clock = ManualClock()
    done: list[str] = []
    let_go = asyncio.Event()

    async def work() -> None:
        done.append(await ignore_until(let_go))

    task = tie(work(), clock)
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(5)
    assert task.abandoned
    del task
    gc.collect()
    let_go.set()
    await clock.advance(0)
    assert done == ["too late"]


async def test_work_that_fails_unseen_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OSError("nobody asked")

    task = tie(fail(), ManualClock())
    await task.wait(CancelScope())
    assert isinstance(task.task.exception(), OSError)
    del task
    gc.collect()
    assert caplog.text == ""


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_grace_without_a_cut_is_for_work_that_should_end_by_itself() -> None:
    clock = ManualClock()
    let_go = asyncio.Event()
    task = tie(ignore_until(let_go), clock)
    await asyncio.sleep(0)
    task.start_deadline()
    await clock.advance(5)
    assert task.abandoned
    let_go.set()
    await task.task
    assert task.task.cancelling() == 0


# --- outlasting --------------------------------------------------------------------------


async def test_outlasting_work_that_is_done_takes_no_time() -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    work.set_result(None)
    scope = CancelScope()
    await wait_uncancelled(work, scope)
    assert scope.cause is None


async def test_a_cancellation_on_a_live_scope_is_a_shutdown_and_goes_on_after_the_work() -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    scope = CancelScope()
    waiting = asyncio.create_task(wait_uncancelled(work, scope))
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
    scope = CancelScope()
    waiting = asyncio.create_task(wait_uncancelled(work, scope))
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
    scope = CancelScope()
    scope.interrupt()

    async def carry_on() -> int:
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            await wait_uncancelled(work, scope)
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
    waiting = asyncio.create_task(wait_uncancelled(work, CancelScope()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    del work
    gc.collect()
    assert caplog.text == ""


async def test_work_that_is_cancelled_itself_ends_the_wait() -> None:
    work = asyncio.create_task(wait_for_ever())
    scope = CancelScope()
    waiting = asyncio.create_task(wait_uncancelled(work, scope))
    await asyncio.sleep(0)
    work.cancel()
    await waiting
    assert scope.cause is None


# --- trying again -----------------------------------------------------------------------


async def test_each_delay_is_twice_the_last_one_up_to_the_longest_and_begins_anew_after_a_success() -> None:
    clock = ManualClock(skip_sleeps=True)
    backoff = Backoff(clock, first_s=0.5, longest_s=3.0)
    waited: list[float] = []
    for number in range(6):
        if number == 4:
            backoff.reset()
        before_s = clock.monotonic()
        await backoff.wait()
        waited.append(clock.monotonic() - before_s)
    assert waited == [0.5, 1.0, 2.0, 3.0, 0.5, 1.0]
    assert backoff.delay_s == 2.0


async def test_a_wait_before_trying_again_can_be_cancelled() -> None:
    clock = ManualClock()
    backoff = Backoff(clock, first_s=0.5, longest_s=3.0)
    waiting = asyncio.create_task(backoff.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert clock.pending == 0
