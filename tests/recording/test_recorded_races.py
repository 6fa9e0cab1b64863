"""The end of a body and a close that fails, at the same time, from tasks and from threads (S35 to S38).

In every round: one entry, the close error in it, nobody waiting for ever.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial

import pytest
from tests.recording.answers import JSON, SSE, Answer, Broken, only
from tests.support.examples import count_examples
from tests.support.waiting import DEADLINE_S, deadline

from indelible.models.http.hooks import HttpResponse
from indelible.recording import ExchangeLog, ExchangeRecord, wrap

ROUNDS = min(count_examples(50), 1000)


@pytest.fixture(autouse=True)
def threads_that_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Ending(Answer):
    """Its one read ends it and its one close fails, each when its gate opens. A gate blocks its thread or its task."""

    def __init__(
        self, *, before_end: Callable[[], Awaitable[object]], before_close: Callable[[], Awaitable[object]]
    ) -> None:
        super().__init__(content_type=SSE)
        self._before_end = before_end
        self._before_close = before_close

    async def read(self) -> bytes:
        await self._before_end()
        return b""

    async def aclose(self) -> None:
        await self._before_close()
        raise Broken("closing failed")


async def open_gate() -> None:
    """Nothing to wait for."""


def block_on(event: threading.Event) -> Callable[[], Awaitable[object]]:
    async def wait() -> None:
        assert event.wait(DEADLINE_S)

    return wait


def block_at(barrier: threading.Barrier) -> Callable[[], Awaitable[object]]:
    async def wait() -> None:
        barrier.wait(DEADLINE_S)

    return wait


def run_threads(*jobs: Callable[[], object]) -> None:
    """Run them at the same time; raise what the first of them raised."""
    errors: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    if errors:
        raise errors[0]


async def end(response: HttpResponse) -> None:
    assert await response.read() == b""


async def close(response: HttpResponse) -> None:
    with pytest.raises(Broken, match="closing failed"):
        await response.aclose()


async def shut(response: HttpResponse) -> None:
    """Whether or not it fails."""
    with suppress(Broken):
        await response.aclose()


def run(job: Callable[[HttpResponse], Coroutine[None, None, None]], response: HttpResponse) -> None:
    asyncio.run(job(response))


def assert_one_failed_entry(log: ExchangeLog, told: list[ExchangeRecord]) -> None:
    attempt = only(log)
    assert (attempt.number, attempt.status, attempt.error) == (1, "failed", "closing failed")
    assert told[-1] == attempt
    assert log.dropped == 0


# --- S35: the end comes first ---


def test_s35_in_threads_the_end_first_then_a_failing_close() -> None:
    for _ in range(ROUNDS):
        told: list[ExchangeRecord] = []
        log = ExchangeLog(on_change=told.append)
        ended = threading.Event()
        response = wrap(Ending(before_end=open_gate, before_close=block_on(ended)), log)

        def end_first(response: HttpResponse = response, ended: threading.Event = ended) -> None:
            run(end, response)
            ended.set()

        run_threads(end_first, partial(run, close, response))
        assert [attempt.status for attempt in told] == ["completed", "failed"]
        assert_one_failed_entry(log, told)


async def test_s35_in_tasks_the_end_first_then_a_failing_close() -> None:
    for _ in range(ROUNDS):
        told: list[ExchangeRecord] = []
        log = ExchangeLog(on_change=told.append)
        ended = asyncio.Event()
        response = wrap(Ending(before_end=open_gate, before_close=ended.wait), log)
        async with asyncio.TaskGroup() as tasks:
            closing = tasks.create_task(close(response))
            await asyncio.sleep(0)
            await end(response)
            assert not closing.done()
            ended.set()
        assert [attempt.status for attempt in told] == ["completed", "failed"]
        assert_one_failed_entry(log, told)


# --- S36: the close comes first ---


def test_s36_in_threads_a_failing_close_first_then_the_end() -> None:
    for _ in range(ROUNDS):
        told: list[ExchangeRecord] = []
        log = ExchangeLog(on_change=told.append)
        closed = threading.Event()
        response = wrap(Ending(before_end=block_on(closed), before_close=open_gate), log)

        def close_first(response: HttpResponse = response, closed: threading.Event = closed) -> None:
            run(close, response)
            closed.set()

        run_threads(partial(run, end, response), close_first)
        assert len(told) == 1
        assert_one_failed_entry(log, told)


async def test_s36_in_tasks_a_failing_close_first_then_the_end() -> None:
    for _ in range(ROUNDS):
        told: list[ExchangeRecord] = []
        log = ExchangeLog(on_change=told.append)
        closed = asyncio.Event()
        response = wrap(Ending(before_end=closed.wait, before_close=open_gate), log)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(end(response))
            await asyncio.sleep(0)
            await close(response)
            assert not reading.done()
            closed.set()
        assert len(told) == 1
        assert_one_failed_entry(log, told)


# --- S37: both at once ---


def test_s37_in_threads_reading_and_closing_at_once_never_deadlocks() -> None:
    for _ in range(ROUNDS):
        told: list[ExchangeRecord] = []
        log = ExchangeLog(on_change=told.append)
        both = block_at(threading.Barrier(2))
        response = wrap(Ending(before_end=both, before_close=both), log)
        run_threads(
            partial(run, end, response),
            partial(run, close, response),
        )
        assert len(told) <= 2
        assert_one_failed_entry(log, told)


async def test_s37_in_tasks_reading_and_closing_at_once_never_deadlocks() -> None:
    for _ in range(ROUNDS):
        told: list[ExchangeRecord] = []
        log = ExchangeLog(on_change=told.append)
        both = asyncio.Barrier(2).wait
        response = wrap(Ending(before_end=both, before_close=both), log)
        async with deadline():
            await asyncio.gather(end(response), close(response))
        assert_one_failed_entry(log, told)


def test_s37_a_body_with_many_readers_and_closers_has_one_entry() -> None:
    pieces = [b"%d," % number for number in range(50)]
    for content_type in (SSE, JSON):
        for _ in range(ROUNDS // 10):
            told: list[ExchangeRecord] = []
            log = ExchangeLog(on_change=told.append)
            response = wrap(Answer(*pieces, content_type=content_type, closes=[None, Broken("closing failed")]), log)
            got: list[bytes] = []

            async def read(response: HttpResponse, got: list[bytes] = got) -> None:
                while piece := await response.read():
                    got.append(piece)

            run_threads(*(partial(run, job, response) for job in (read, read, shut, shut)))
            assert sorted(got) == sorted(pieces)
            assert "closing failed" in str(only(log).error)
            assert told[-1] == only(log)


# --- S38: the order of the locks ---


def test_s38_whoever_takes_the_locks_takes_them_in_one_order() -> None:
    """Everything that takes both locks, or one of them, at once: on several bodies of one log."""
    for _ in range(ROUNDS):
        told: list[ExchangeRecord] = []
        log = ExchangeLog(on_change=told.append)
        jobs = 6
        gate = threading.Barrier(jobs)
        at_gate = block_at(gate)
        one = wrap(Ending(before_end=at_gate, before_close=at_gate), log)
        other = wrap(Ending(before_end=at_gate, before_close=at_gate), log)

        def finalise(log: ExchangeLog = log, gate: threading.Barrier = gate) -> None:
            gate.wait(DEADLINE_S)
            log.finalise()

        def look(log: ExchangeLog = log, gate: threading.Barrier = gate) -> None:
            gate.wait(DEADLINE_S)
            while len(log.attempts) < 2:
                assert log.dropped == 0

        run_threads(
            partial(run, end, one),
            partial(run, end, other),
            partial(run, close, one),
            partial(run, close, other),
            finalise,
            look,
        )
        assert [attempt.number for attempt in log.attempts] == [1, 2]
        assert all(str(attempt.error).endswith("closing failed") for attempt in log.attempts)
        assert {attempt.number: attempt for attempt in told} == {attempt.number: attempt for attempt in log.attempts}


def test_s38_no_lock_is_held_while_a_change_is_announced_and_changes_are_announced_in_order() -> None:
    """The listener lets other threads use everything, and waits for them before it has heard."""
    heard: list[tuple[int, str]] = []

    def hear(attempt: ExchangeRecord) -> None:
        if attempt.status == "completed":
            run_threads(partial(run, close, response), log.finalise, lambda: log.attempts)
        heard.append((attempt.number, attempt.status))

    log = ExchangeLog(on_change=hear)
    response = wrap(Ending(before_end=open_gate, before_close=open_gate), log)
    wrap(Answer(), log)
    asyncio.run(end(response))

    assert heard[0] == (1, "completed")
    assert sorted(heard[1:]) == [(1, "failed"), (2, "failed")]
    assert [attempt.status for attempt in log.attempts] == ["failed", "failed"]
