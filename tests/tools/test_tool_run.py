"""Running tools: order, caps, limits, stops, and tools that misbehave (rule 1.3, 1.5).

Tools wait for events that the test sets, and time is a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.waiting import Watched

from indelible.concurrency.scope import CancelScope, Cause
from indelible.content import File, Part, ToolCall, ToolProgress, ToolResult, ToolStarted
from indelible.errors import LeaseLost, StoreFailed
from indelible.metrics import NO_METRICS
from indelible.testing import ManualClock
from indelible.tools import Tool, ToolCallRecord, ToolContext, tool
from indelible.tools.run import KeepFile, ToolLimits, ToolRunner
from indelible.tools.toolset import RunHere


class Journal(Watched):
    """A ledger and a publisher that write into one list, in the order they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[str, str]] = []
        self.parts: list[Part] = []
        self.records: list[ToolCallRecord] = []

    async def starting(self, call: ToolCallRecord) -> None:
        self.entries.append(("starting", call.id))
        self.records.append(call)

    async def settled(self, call: ToolCallRecord, result: ToolResult) -> None:
        self.entries.append(("settled", call.id))

    async def record(self, part: ToolStarted | ToolResult, call: ToolCallRecord) -> None:
        if isinstance(part, ToolResult):
            await self.settled(call, part)
        else:
            await self.starting(call)
        await self.publish(part)

    async def publish(self, part: Part) -> None:
        self.parts.append(part)
        if isinstance(part, ToolStarted | ToolResult):
            self.entries.append((type(part).__name__, part.call_id))
        self.changed()

    @property
    def results(self) -> dict[str, ToolResult]:
        return {part.call_id: part for part in self.parts if isinstance(part, ToolResult)}


class Bench:
    """One step's tools, ready to run."""

    def __init__(
        self,
        *,
        limits: ToolLimits | None = None,
        limit_bytes: int = 65536,
        keep_file: KeepFile | None = None,
        hide: Callable[[str], str] = str,
    ) -> None:
        self.clock = ManualClock()
        self.scope = CancelScope()
        self.journal = Journal()
        self.runner = ToolRunner(
            turn_id="turn_1",
            step=2,
            scope=self.scope,
            publish=self.journal.publish,
            record=self.journal.record,
            limits=limits or ToolLimits(),
            result_limit_bytes=limit_bytes,
            clock=self.clock,
            metrics=NO_METRICS,
            keep_file=keep_file,
            hide=hide,
        )

    async def run(self, *calls: Tool | tuple[Tool, str]) -> dict[str, ToolResult]:
        """Run these as calls c0, c1, …"""
        planned = []
        for index, given in enumerate(calls):
            made, arguments = given if isinstance(given, tuple) else (given, "{}")
            call = ToolCall(id=f"c{index}", name=made.name, arguments=arguments)
            planned.append((index, RunHere(call, made)))
        await self.runner.run(planned)
        return self.journal.results


def make(function: Callable[..., Any], **options: Any) -> Tool:
    made: Tool = tool(**options)(function)
    return made


async def test_a_call_is_recorded_before_it_starts_and_when_it_settles() -> None:
    bench = Bench()

    async def work() -> str:
        bench.journal.entries.append(("running", "c0"))
        return "done"

    await bench.run(make(work))
    assert [entry for entry, _ in bench.journal.entries] == [
        "starting",
        "ToolStarted",
        "running",
        "settled",
        "ToolResult",
    ]


async def test_the_idempotency_key_names_turn_step_and_index() -> None:
    keys = []

    async def work(context: ToolContext) -> None:
        keys.append((context.call_id, context.idempotency_key))

    bench = Bench()
    await bench.run(make(work), make(work))
    assert keys == [("c0", "turn_1/2/0"), ("c1", "turn_1/2/1")]
    assert [(record.step, record.index) for record in bench.journal.records] == [(2, 0), (2, 1)]


async def test_all_tools_run_at_once() -> None:
    arrived = asyncio.Barrier(3)

    async def work() -> str:
        await arrived.wait()
        return "together"

    results = await Bench().run(*[make(work)] * 3)
    assert [result.output for result in results.values()] == ["together"] * 3


async def test_no_more_run_at_once_than_the_cap_allows() -> None:
    running = peak = 0

    async def work() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    await Bench(limits=ToolLimits(concurrency=2)).run(*[make(work)] * 6)
    assert peak == 2


async def test_serial_tools_take_turns_in_call_order_beside_the_others() -> None:
    order: list[str] = []
    both_kinds = asyncio.Event()

    async def serial(name: str) -> None:
        order.append(f"{name} begins")
        await both_kinds.wait()
        order.append(f"{name} ends")

    async def free() -> None:
        assert order == ["a begins"]
        both_kinds.set()

    one = make(serial, serial=True)
    results = await Bench().run((one, '{"name": "a"}'), (one, '{"name": "b"}'), (one, '{"name": "c"}'), make(free))
    assert order == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]
    assert not any(result.is_error for result in results.values())


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("text", "text"),
        (None, ""),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}'),
        (b"caf\xc3\xa9 \xff", "café �"),
        ("half \ud83d", "half �"),
        (float("nan"), None),
        (object(), None),
        (10**5000, None),
    ],
    ids=["text", "nothing", "json", "bytes", "half a pair", "nan", "object", "huge number"],
)
async def test_whatever_a_tool_returns_is_a_result(value: object, output: str | None) -> None:
    async def work() -> Any:
        return value

    result = (await Bench().run(make(work)))["c0"]
    assert not result.is_error
    assert isinstance(result.output, str)
    assert result.output.encode().decode() == result.output
    if output is not None:
        assert result.output == output


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "error",
    [ValueError("bad city"), KeyError("x"), SystemExit(3), StopIteration("s"), ExceptionGroup("g", [ValueError("v")])],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.may_log("the tool work raised an error")
async def test_a_raising_tool_gives_an_error_result(error: BaseException, *, plain: bool) -> None:
    def work() -> None:
        raise error

    async def work_async() -> None:
        raise error

    result = (await Bench().run(make(work if plain else work_async, name="work")))["c0"]
    assert result.is_error
    assert type(error).__name__ in result.output or "StopIteration" in result.output


@pytest.mark.may_log("the tool work raised an error")
async def test_an_error_whose_text_can_not_be_made_is_still_a_result() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def work() -> None:
        raise Mute

    result = (await Bench().run(make(work)))["c0"]
    assert result.is_error
    assert result.output.startswith("Mute")


async def test_a_tool_that_cancels_itself_gives_an_error_result() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    result = (await Bench().run(make(work)))["c0"]
    assert result.is_error
    assert result.output == "The tool was cancelled from within."


async def test_a_call_that_an_earlier_worker_began_is_never_reported_as_not_run() -> None:
    """Another version of the tool may refuse its arguments now."""
    bench = Bench()

    async def work(number: int) -> str:
        raise AssertionError(number)

    made = make(work, idempotent=True)
    begun = ToolCall(id="c0", name=made.name, arguments='{"number": "x"}', started=True)
    await bench.runner.run([(0, RunHere(begun, made))])
    result = bench.journal.results["c0"]
    assert (result.outcome, result.reason) == ("unknown", "lost")


async def test_wrong_arguments_give_an_error_result_and_the_tool_never_starts() -> None:
    async def work(count: int) -> int:
        return count

    bench = Bench()
    result = (await bench.run((make(work), '{"count": "many"}')))["c0"]
    assert result.is_error
    assert "count" in result.output
    assert bench.journal.entries == [("ToolResult", "c0")]


async def test_a_long_result_is_cut_in_the_middle_and_says_so() -> None:
    async def work() -> str:
        return "a" * 3000 + "z" * 3000

    result = (await Bench(limit_bytes=1024).run(make(work)))["c0"]
    assert len(result.output.encode()) <= 1024
    assert result.output.startswith("aaa")
    assert result.output.endswith("zzz")
    assert "missing" in result.output or "left out" in result.output or "cut" in result.output


async def test_a_plain_function_runs_off_the_event_loop() -> None:
    threads = []

    def work() -> str:
        threads.append(threading.current_thread())
        return "done"

    await Bench().run(make(work))
    assert threads[0] is not threading.main_thread()
    assert threads[0].daemon


async def test_a_plain_function_that_leaves_something_to_await_is_awaited() -> None:
    async def later() -> str:
        return "later"

    def work() -> Any:
        return later()

    assert (await Bench().run(make(work)))["c0"].output == "later"


# --- progress ---


async def test_progress_is_published_while_the_tool_runs() -> None:
    def plain(context: ToolContext) -> str:
        context.report("half")
        return "done"

    async def work(context: ToolContext) -> str:
        await context.progress("half")
        return "done"

    for function in (plain, work):
        bench = Bench()
        await bench.run(make(function))
        assert [type(part) for part in bench.journal.parts] == [ToolStarted, ToolProgress, ToolResult]


async def test_a_tool_that_was_settled_can_say_nothing_more() -> None:
    contexts: list[ToolContext] = []

    async def work(context: ToolContext) -> None:
        contexts.append(context)

    bench = Bench()
    await bench.run(make(work))
    await contexts[0].progress("too late")
    assert not any(isinstance(part, ToolProgress) for part in bench.journal.parts)


# --- time limits ---


async def test_a_tool_that_takes_too_long_is_cut_and_says_so() -> None:
    bench = Bench()
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = asyncio.create_task(bench.run(make(work, timeout_s=30)))
    await bench.clock.wait_for_timer()
    bench.clock.advance(29.9)
    assert not cancelled.is_set()
    bench.clock.advance(0.2)
    result = (await running)["c0"]
    assert cancelled.is_set()
    assert result.is_error
    assert result.output == "Timed out after 30 s."


async def test_the_default_time_limit_is_the_setting() -> None:
    bench = Bench(limits=ToolLimits(timeout_s=7))

    async def work() -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(bench.run(make(work)))
    await bench.clock.wait_for_timer()
    bench.clock.advance(7)
    assert (await running)["c0"].output == "Timed out after 7 s."


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_a_tool_that_ignores_its_time_limit_is_abandoned() -> None:
    bench = Bench()
    release = asyncio.Event()
    asked = asyncio.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                asked.set()
        return "too late"

    running = asyncio.create_task(bench.run(make(stubborn, timeout_s=1)))
    await bench.clock.wait_for_timer()
    bench.clock.advance(1)
    await asked.wait()
    bench.clock.advance(5)
    result = (await running)["c0"]
    assert result.is_error
    assert "Timed out after 1 s." in result.output
    assert "abandoned" in result.output
    release.set()


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_a_function_stuck_in_native_code_holds_up_nobody() -> None:
    bench = Bench()
    stuck = threading.Event()

    def block() -> str:
        stuck.wait()
        return "at last"

    async def quick() -> str:
        return "quick"

    running = asyncio.create_task(bench.run(make(block, timeout_s=1), make(quick)))
    await bench.clock.wait_for_timer()
    await bench.journal.wait_until(lambda: "c1" in bench.journal.results)
    bench.clock.advance(1)
    bench.clock.advance(5)
    results = await running
    assert results["c1"].output == "quick"
    assert "abandoned" in results["c0"].output
    stuck.set()


# --- stops ---


async def run_until_started(bench: Bench, *calls: Any) -> asyncio.Task[dict[str, ToolResult]]:
    running = asyncio.create_task(bench.run(*calls))
    await bench.journal.wait_until(
        lambda: sum(isinstance(part, ToolStarted) for part in bench.journal.parts) == len(calls)
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return running


async def wait_for_ever() -> str:
    await asyncio.Event().wait()
    return "never"


async def test_an_interrupt_keeps_real_results_and_answers_the_rest() -> None:
    bench = Bench()

    async def quick() -> str:
        return "real"

    running = await run_until_started(bench, make(quick), make(wait_for_ever))
    bench.scope.interrupt()
    results = await running
    assert (results["c0"].output, results["c0"].is_error) == ("real", False)
    assert results["c1"].is_error
    assert results["c1"].output.startswith("Interrupted")
    assert ("settled", "c1") in bench.journal.entries
    assert [results[call].interrupted for call in ("c0", "c1")] == [False, True]


async def test_what_a_tool_returns_when_it_is_cancelled_is_its_real_result() -> None:
    bench = Bench()

    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved half of it"
        return "never"

    running = await run_until_started(bench, make(tidy))
    bench.scope.interrupt()
    assert (await running)["c0"].output == "saved half of it"


async def test_a_plain_tool_that_watches_its_scope_ends_early_with_a_real_result() -> None:
    bench = Bench()
    looked = threading.Event()

    def work(context: ToolContext) -> str:
        looked.wait()
        return "stopped early" if context.scope.cancelled else "missed it"

    running = await run_until_started(bench, make(work))
    bench.scope.interrupt()
    looked.set()
    result = (await running)["c0"]
    assert (result.output, result.is_error) == ("stopped early", False)


@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_a_tool_that_ignores_a_stop_is_abandoned_after_the_grace_time_and_marked_so() -> None:
    bench = Bench()
    stuck = threading.Event()

    def block() -> None:
        stuck.wait()

    running = await run_until_started(bench, make(block))
    bench.scope.interrupt()
    bench.clock.advance(4.9)
    await asyncio.sleep(0)
    assert not running.done()
    bench.clock.advance(0.2)
    result = (await running)["c0"]
    assert result.is_error
    assert "abandoned" in result.output
    stuck.set()


async def test_calls_that_were_not_begun_are_left_for_seal_to_answer() -> None:
    bench = Bench(limits=ToolLimits(concurrency=1))
    running = asyncio.create_task(bench.run(make(wait_for_ever), make(wait_for_ever)))
    await bench.journal.wait_until(lambda: bool(bench.journal.parts))
    bench.scope.interrupt()
    assert list(await running) == ["c0"]
    assert [record.id for record in bench.journal.records] == ["c0"]


@pytest.mark.parametrize("cause", [Cause.SHUTDOWN, Cause.LEASE_LOST])
async def test_a_shutdown_leaves_a_cut_call_unsettled_because_its_outcome_is_unknown(cause: Cause) -> None:
    bench = Bench()
    running = await run_until_started(bench, make(wait_for_ever))
    bench.scope.cancel(cause)
    assert await running == {}
    assert ("settled", "c0") not in bench.journal.entries


async def test_cancelling_the_runner_waits_for_its_tools_and_is_a_shutdown() -> None:
    bench = Bench()
    running = await run_until_started(bench, make(wait_for_ever))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.scope.cause == "shutdown"
    assert bench.journal.results == {}


async def test_a_stop_waits_for_a_settle_that_has_begun() -> None:
    bench = Bench()
    settling, settle = asyncio.Event(), asyncio.Event()

    class SlowLedger(Journal):
        async def settled(self, call: ToolCallRecord, result: ToolResult) -> None:
            settling.set()
            await settle.wait()
            await super().settled(call, result)

    bench.journal = SlowLedger()
    bench.runner._record_with_ledger = bench.journal.record
    bench.runner._publish = bench.journal.publish

    async def work() -> str:
        return "real"

    running = asyncio.create_task(bench.run(make(work)))
    await settling.wait()
    bench.scope.interrupt()
    await asyncio.sleep(0)
    assert not running.done()
    settle.set()
    assert (await running)["c0"].output == "real"
    assert ("settled", "c0") in bench.journal.entries


async def test_a_failing_ledger_ends_the_step_and_stops_the_other_tools() -> None:
    bench = Bench()
    stopped = asyncio.Event()

    class LostLedger(Journal):
        async def settled(self, call: ToolCallRecord, result: ToolResult) -> None:
            raise LeaseLost

    bench.runner._record_with_ledger = LostLedger().record

    async def quick() -> str:
        return "real"

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pytest.raises(LeaseLost):
        await bench.run(make(slow), make(quick))
    assert stopped.is_set()
    assert bench.journal.results == {}


@pytest.mark.parametrize("when", ["starting", "settled"])
async def test_a_ledger_that_is_cancelled_from_within_ends_the_step_and_is_no_success(when: str) -> None:
    bench = Bench()

    class Cancelled(Journal):
        async def starting(self, call: ToolCallRecord) -> None:
            if when == "starting":
                raise asyncio.CancelledError

        async def settled(self, call: ToolCallRecord, result: ToolResult) -> None:
            raise asyncio.CancelledError

    bench.runner._record_with_ledger = Cancelled().record

    async def work() -> str:
        return "real"

    with pytest.raises(StoreFailed, match="could not be recorded"):
        await bench.run(make(work))


@pytest.mark.may_log("the tool work raised an error")
async def test_what_is_worse_than_an_exception_is_an_error_result_too() -> None:
    class Catastrophe(BaseException):
        pass

    async def work() -> None:
        raise Catastrophe("all is lost")

    result = (await Bench().run(make(work)))["c0"]
    assert result.is_error
    assert result.output == "Catastrophe: all is lost"


async def test_a_time_limit_during_a_shutdown_settles_nothing() -> None:
    bench = Bench()
    let_go = asyncio.Event()

    async def slow_to_stop() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await let_go.wait()
            raise

    running = await run_until_started(bench, make(slow_to_stop, timeout_s=10))
    bench.clock.advance(9)
    bench.scope.shutdown()
    await asyncio.sleep(0)
    bench.clock.advance(2)
    let_go.set()
    assert await running == {}
    assert ("settled", "c0") not in bench.journal.entries


async def test_a_result_that_comes_after_the_lease_was_lost_is_neither_settled_nor_published() -> None:
    bench = Bench()

    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "from the grave"
        return "never"

    running = await run_until_started(bench, make(tidy))
    bench.scope.cancel(Cause.LEASE_LOST)
    assert await running == {}
    assert ("settled", "c0") not in bench.journal.entries


async def test_progress_that_can_not_be_published_ends_the_step() -> None:
    bench = Bench()

    async def publish(part: Part) -> None:
        if isinstance(part, ToolProgress):
            raise LeaseLost

    bench.runner._publish = publish

    async def work(context: ToolContext) -> str:
        await context.progress("half")
        return "done"

    with pytest.raises(LeaseLost):
        await bench.run(make(work))


@pytest.mark.parametrize("limits", [{"concurrency": 0}, {"timeout_s": 0}, {"grace_s": -1}])
def test_limits_that_would_let_nothing_run_are_an_error_at_once(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least one tool"):
        ToolLimits(**limits)


@pytest.mark.parametrize("cause", [Cause.INTERRUPTED, Cause.SHUTDOWN, Cause.LEASE_LOST])
@pytest.mark.may_log("did not stop within .* and was abandoned")
async def test_a_stop_waits_for_the_storage_of_files_as_long_as_for_a_tool(cause: Cause) -> None:
    storing, is_cancelled = asyncio.Event(), asyncio.Event()

    async def keep(file: File) -> File | str:
        if file.name == "first.png":
            return File(file.media_type, name=file.name, file_id="file_1")
        storing.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled.set()
            raise
        return "never"

    async def plot() -> list[Any]:
        return ["Here:", *(File("image/png", name=name, data=b"x") for name in ("first.png", "second.png"))]

    bench = Bench(keep_file=keep)
    running = asyncio.create_task(bench.run(make(plot)))
    await storing.wait()
    bench.scope.cancel(cause)
    await bench.clock.advance(ToolLimits().grace_s - 0.1)
    assert not running.done()
    await bench.clock.advance(0.2)
    results = await running
    await is_cancelled.wait()
    if cause is Cause.LEASE_LOST:
        assert results == {}
        return
    assert [file.file_id for file in results["c0"].files] == ["file_1"]
    why = "the reply was stopped first" if cause is Cause.INTERRUPTED else "the server was shut down first"
    assert results["c0"].output.endswith(f"[second.png was not stored: {why}]")


async def test_files_that_are_stored_within_the_grace_time_of_a_stop_are_kept() -> None:
    storing, stored = asyncio.Event(), asyncio.Event()

    async def keep(file: File) -> File | str:
        storing.set()
        await stored.wait()
        return File(file.media_type, name=file.name, file_id="file_1")

    async def plot() -> File:
        return File("image/png", name="plot.png", data=b"x")

    bench = Bench(keep_file=keep)
    running = asyncio.create_task(bench.run(make(plot)))
    await storing.wait()
    bench.scope.cancel(Cause.INTERRUPTED)
    stored.set()
    results = await running
    assert [file.file_id for file in results["c0"].files] == ["file_1"]


async def plot() -> File:
    return File("image/png", name="plot.png", data=b"x")


def store_without_end() -> tuple[asyncio.Event, Callable[[File], Awaitable[File | str]]]:
    """A storage that never ends, and an event for its beginning."""
    storing = asyncio.Event()

    async def keep(_file: File) -> File | str:
        storing.set()
        await asyncio.Event().wait()
        return "never"

    return storing, keep


async def test_the_storage_of_files_has_a_time_limit() -> None:
    storing, keep = store_without_end()

    bench = Bench(keep_file=keep, limits=ToolLimits(timeout_s=10))
    running = asyncio.create_task(bench.run(make(plot)))
    await storing.wait()
    await bench.clock.advance(10.1)
    result = (await running)["c0"]
    assert (result.files, result.is_error) == ([], False)
    assert result.output.endswith("[plot.png was not stored: the file storage took longer than 10 s]")


async def test_a_ledger_that_fails_ends_the_storage_of_files_too() -> None:
    storing, keep = store_without_end()

    async def other(context: ToolContext) -> str:
        await storing.wait()
        await context.progress("half")
        return "done"

    async def publish(part: Part) -> None:
        if isinstance(part, ToolProgress):
            raise LeaseLost

    bench = Bench(keep_file=keep)
    bench.runner._publish = publish
    with pytest.raises(LeaseLost):
        await bench.run(make(plot), make(other))
    assert "c0" not in bench.journal.results
