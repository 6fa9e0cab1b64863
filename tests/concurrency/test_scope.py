"""Scopes: which cause stands, who is told, and from which thread.

What the loop does with a cause is test_acceptance_stop.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from indelible.concurrency.scope import CancelScope, Cause
from indelible.errors import Interrupted, LeaseLost, Shutdown

CAUSES: dict[Cause, Callable[[CancelScope], None]] = {
    Cause.INTERRUPTED: CancelScope.interrupt,
    Cause.SHUTDOWN: CancelScope.shutdown,
    Cause.SILENT: lambda scope: scope.cancel(Cause.SILENT),
    Cause.LEASE_LOST: lambda scope: scope.cancel(Cause.LEASE_LOST),
}


def test_a_new_scope_is_live() -> None:
    scope = CancelScope()
    assert scope.cause is None
    assert not scope.cancelled
    assert not scope.interrupted
    scope.check()


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cancelled_scope_says_why_and_needs_no_event_loop_for_it(cause: Cause) -> None:
    scope = CancelScope()
    CAUSES[cause](scope)
    assert scope.cause == cause == cause.value
    assert scope.cancelled
    assert scope.interrupted is (cause is Cause.INTERRUPTED)


@pytest.mark.parametrize(
    ("cause", "error"),
    [(Cause.INTERRUPTED, Interrupted), (Cause.SHUTDOWN, Shutdown), (Cause.LEASE_LOST, LeaseLost)],
)
def test_a_check_raises_what_the_cause_stands_for(cause: Cause, error: type[Exception]) -> None:
    scope = CancelScope()
    CAUSES[cause](scope)
    with pytest.raises(error):
        scope.check()


@pytest.mark.parametrize("cause", [None, Cause.SILENT])
def test_a_scope_that_ends_no_run_has_no_error_for_it(cause: Cause | None) -> None:
    scope = CancelScope()
    if cause is not None:
        CAUSES[cause](scope)
    with pytest.raises(RuntimeError):
        scope.error()


@pytest.mark.parametrize("first", CAUSES)
@pytest.mark.parametrize("second", CAUSES)
def test_the_first_cause_stands_unless_the_lease_is_lost(first: Cause, second: Cause) -> None:
    scope = CancelScope()
    CAUSES[first](scope)
    CAUSES[second](scope)
    expected = Cause.LEASE_LOST if second is Cause.LEASE_LOST else first
    assert scope.cause is expected


@pytest.mark.parametrize("cause", CAUSES)
async def test_a_child_sees_its_parents_cause_and_never_the_other_way_round(cause: Cause) -> None:
    parent = CancelScope()
    child, grandchild = CancelScope(parent), CancelScope(CancelScope(parent))
    CAUSES[cause](child)
    assert parent.cause is None
    assert grandchild.cause is None
    CAUSES[cause](parent)
    assert grandchild.cause is cause


async def test_a_stop_goes_before_the_silence_of_a_child() -> None:
    parent = CancelScope()
    child = CancelScope(parent)
    child.cancel(Cause.SILENT)
    parent.interrupt()
    assert child.cause is Cause.INTERRUPTED


async def test_a_child_of_a_cancelled_scope_is_cancelled() -> None:
    parent = CancelScope()
    parent.shutdown()
    called: list[str] = []
    child = CancelScope(parent)
    child.on_cancel(lambda: called.append("child"))
    assert child.cause is Cause.SHUTDOWN
    assert called == ["child"]


async def test_a_callback_is_called_exactly_once() -> None:
    scope = CancelScope()
    called: list[Cause | None] = []
    scope.on_cancel(lambda: called.append(scope.cause))
    scope.interrupt()
    scope.interrupt()
    scope.cancel(Cause.LEASE_LOST)
    assert called == [Cause.INTERRUPTED], "the cause is set before anybody is called"


async def test_a_late_callback_is_called_at_once_and_once() -> None:
    scope = CancelScope()
    scope.interrupt()
    called: list[str] = []
    scope.on_cancel(lambda: called.append("late"))
    scope.cancel(Cause.LEASE_LOST)
    assert called == ["late"]


async def test_a_forgotten_callback_is_not_called() -> None:
    scope = CancelScope()
    called: list[str] = []
    forget = scope.on_cancel(lambda: called.append("forgotten"))
    scope.on_cancel(lambda: called.append("kept"))
    forget()
    forget()
    scope.interrupt()
    forget()
    assert called == ["kept"]


async def test_a_callback_of_a_child_is_called_once_whoever_is_cancelled() -> None:
    parent = CancelScope()
    child = CancelScope(parent)
    called: list[str] = []
    child.on_cancel(lambda: called.append("child"))
    child.cancel(Cause.SILENT)
    parent.interrupt()
    assert called == ["child"]


async def test_a_child_that_was_left_hears_nothing_but_still_knows() -> None:
    parent = CancelScope()
    called: list[str] = []
    with CancelScope(parent) as child:
        child.on_cancel(lambda: called.append("child"))
    parent.interrupt()
    assert called == []
    assert child.cause is Cause.INTERRUPTED


async def test_a_callback_may_cancel_and_register_again() -> None:
    scope = CancelScope()
    called: list[str] = []

    def again() -> None:
        called.append("first")
        scope.on_cancel(lambda: called.append("second"))
        scope.cancel(Cause.LEASE_LOST)

    scope.on_cancel(again)
    scope.interrupt()
    assert called == ["first", "second"]


async def test_a_stop_from_a_thread_is_heard_on_the_event_loop() -> None:
    scope = CancelScope()
    heard: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    scope.on_cancel(lambda: heard.set_result(threading.get_ident()))
    await asyncio.to_thread(scope.interrupt)
    assert scope.interrupted
    assert await heard == threading.get_ident()


async def test_registering_while_threads_cancel_misses_nobody_and_calls_nobody_twice() -> None:
    for _ in range(50):
        scope = CancelScope()
        called: list[int] = []
        ready = threading.Barrier(4)

        def cancel(scope: CancelScope = scope, ready: threading.Barrier = ready) -> None:
            ready.wait()
            scope.interrupt()

        threads = [threading.Thread(target=cancel) for _ in range(3)]
        for thread in threads:
            thread.start()
        ready.wait()
        for number in range(20):
            scope.on_cancel(lambda number=number, called=called: called.append(number))  # type: ignore[misc]
        for thread in threads:
            thread.join()
        await asyncio.sleep(0)
        assert sorted(called) == list(range(20))


def test_a_stop_after_the_event_loop_is_gone_does_no_harm() -> None:
    scope = CancelScope()

    async def register() -> None:
        scope.on_cancel(lambda: None)

    asyncio.run(register())
    scope.interrupt()
    assert scope.interrupted


@pytest.mark.may_log("a callback of a cancelled scope failed")
async def test_a_callback_that_raises_does_not_keep_the_others_from_being_called() -> None:
    scope, called = CancelScope(), []

    def fail() -> None:
        raise RuntimeError("oops")

    scope.on_cancel(fail)
    scope.on_cancel(lambda: called.append("second"))
    scope.interrupt()
    assert called == ["second"]
