"""Running the tools that a step asked for.

Each call has a supervisor, and the tool itself runs in a task of its own (concurrency/tasks.py). A stop or a
time limit cuts the tool, never its supervisor: what a tool did is recorded whatever happens around it:

    record(`tool_started`) → the tool → record(`tool_result`)

so that after a crash it is known which tool never started, which may have run, and which did. A call that
was not started when the stop came is left unanswered here; `finalize` answers it. A tool that the stop cut gets a
result that is marked `interrupted`. A shutdown or a lost lease that cuts a tool leaves the call unsettled, because
its outcome is not known: the next worker decides.

All calls run at once, up to a cap; tools that are declared serial run one after the other, in call
order.

A plain function runs in a daemon thread of its own, so one that blocks for ever holds up neither the event loop nor the
end of the process. What a tool gives may be large, too: turning a million numbers into text takes seconds. So the event
loop only looks at short values, and everything else is read (output.py) in a thread, as a part of the tool's run: its
time limit and a stop hold for that as well.

Must stay true (tests/tools/test_tool_run.py): no call ends without a result unless the scope was
cancelled; a tool can neither raise out of here, nor hang the step past its time limit and grace.
(tests/tools/test_tool_outcome.py): nothing that a tool gives stalls the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from indelible.clock import Clock
from indelible.concurrency.scope import CancelScope, Cause
from indelible.concurrency.tasks import GracefulTask, wait_uncancelled
from indelible.content import File, Part, ResultReason, ToolCall, ToolProgress, ToolResult, ToolStarted
from indelible.content.assemble import answer_unrun, lose_result
from indelible.errors import StoreFailed, TestBroken
from indelible.logs import get_logger
from indelible.metrics import Metrics
from indelible.tools.output import BadArguments, Hide, Returned, ToolOutcome, cut_text, read_returned
from indelible.tools.tool import Tool, ToolCallRecord, ToolContext
from indelible.tools.toolset import RunHere
from indelible.tracing import span

_log: Final = get_logger(__name__)
_ENDED_BY_USER: Final = "Interrupted: the user stopped the reply while this tool was running."
_SUFFIXES: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "application/gzip": ".gz",
    "text/plain": ".txt",
    "text/csv": ".csv",
}
"""File name suffixes for files that a tool returned without a name."""
_TIMED_DIGITS: Final = 3
_NOT_STORED: Final = {
    Cause.INTERRUPTED: "the reply was stopped first",
    Cause.SHUTDOWN: "the server was shut down first",
}
"""Why files that a tool returned are missing."""
_READ_AT_ONCE: Final = (bool, int, float)
_SHORT_CHARACTERS: Final = 10_000
_NOT_BEGUN: Final = "Interrupted: the user stopped the reply before this tool began."


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many tools run at once, how long each may take, and how long one may take to stop."""

    concurrency: int = 16
    timeout_s: float = 300.0
    grace_s: float = 5.0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.timeout_s <= 0 or self.grace_s < 0:
            raise ValueError(f"{self}: at least one tool must run at once, with a time limit above 0 s")


KeepFile = Callable[[File], Awaitable[File | str]]
"""Stores a file that a tool returned: the file by reference, or the reason why it was not stored."""

Record = Callable[[ToolStarted | ToolResult, ToolCallRecord], Awaitable[None]]


class ToolRunner:
    """One step's tools.

    `publish` and `record` also collect. `publish` is never called twice at once; `record`, which waits for a commit,
    is called for several tools at a time. Without it, starts and results are published like any other part.
    """

    def __init__(
        self,
        *,
        turn_id: str,
        step: int,
        scope: CancelScope,
        publish: Callable[[Part], Awaitable[None]],
        record: Record | None,
        limits: ToolLimits,
        result_limit_bytes: int,
        clock: Clock,
        metrics: Metrics,
        keep_file: KeepFile | None = None,
        hide: Hide = str,
    ) -> None:
        self._keep_file = keep_file
        self._hide = hide
        self._turn_id = turn_id
        self._step = step
        self._scope = scope
        self._publish = publish
        self._record_with_ledger = record
        self._limits = limits
        self._result_limit_bytes = result_limit_bytes
        self._clock = clock
        self._metrics = metrics
        self._cap = asyncio.Semaphore(limits.concurrency)
        self._turns = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._failure: BaseException | None = None
        self._running: set[GracefulTask[Any]] = set()
        self._progress: set[asyncio.Task[None]] = set()

    async def run(self, calls: Sequence[tuple[int, RunHere]]) -> None:
        """Run these calls, each given with its index among the step's calls."""
        supervisors = [
            asyncio.create_task(self._supervise(index, *planned), name=f"tool {planned.call.name}")
            for index, planned in calls
        ]
        try:
            await wait_uncancelled(asyncio.gather(*supervisors), self._scope)
        finally:
            while self._progress:
                await wait_uncancelled(asyncio.gather(*self._progress, return_exceptions=True), self._scope)
        if self._failure is not None:
            raise self._failure

    async def _supervise(self, index: int, call: ToolCall, tool: Tool) -> None:
        try:
            async with contextlib.AsyncExitStack() as turns:
                if tool.serial:
                    await turns.enter_async_context(self._turns)
                await turns.enter_async_context(self._cap)
                if not self._stopped:
                    await self._run_call(index, call, tool)
        except asyncio.CancelledError as error:
            lost = StoreFailed(
                "The result of a tool could not be recorded: the ledger or the publishing was cancelled."
            )
            lost.__cause__ = error
            self._abort(lost)
        except BaseException as error:
            self._abort(error)

    @property
    def _stopped(self) -> bool:
        return self._scope.cancelled or self._failure is not None

    def _has_lost_lease(self) -> bool:
        return self._scope.cause is Cause.LEASE_LOST

    def _abort(self, error: BaseException) -> None:
        """The ledger or the journal failed: no result can be recorded any more, so stop the tools."""
        if self._failure is None:
            self._failure = error
        for task in self._running:
            task.cancel()

    async def _run_call(self, index: int, call: ToolCall, tool: Tool) -> None:
        record = ToolCallRecord(
            id=call.id,
            name=call.name,
            arguments=call.arguments,
            step=self._step,
            index=index,
            idempotency_key=f"{self._turn_id}/{self._step}/{index}",
            idempotent=tool.idempotent,
        )
        context = ToolContext(
            call_id=call.id,
            name=call.name,
            idempotency_key=record.idempotency_key,
            scope=self._scope,
            publish_progress=lambda text: self._publish_progress(ToolProgress(call.id, text)),
        )
        try:
            work = tool.bind(call.arguments, context)
        except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # a validator of the tool's own
            outcome = await read_in_thread(Returned(error=error), wants_files=False, hide=self._hide)
            if not isinstance(error, BadArguments):
                self._log_error(record, outcome.error)
            refused = lose_result(call) if call.started else answer_unrun(call, "invalid", outcome.text)
            await self._publish_in_turn(self._measure(refused, 0.0))
            return
        with span("tool", tool=record.name, call=record.id) as traced:
            await self._record(ToolStarted(call.id, call.name), record)
            result = await self._run_timed(tool, work, record, context, call)
            if result is None or self._has_lost_lease():
                return
            result = await self._keep_files(self._measure(result, result.duration_s or 0.0))
            if result is None or self._has_lost_lease():
                return
            traced.set(is_error=result.is_error, outcome=result.outcome)
            await self._record(result, record)

    async def _keep_files(self, result: ToolResult) -> ToolResult | None:
        """The result with its files by reference. Its text names each file that was not stored, and why.

        The storage has as much time as a tool, and after a stop or a shutdown the grace time. Then the result goes
        without the files that are left. None if it can no longer be recorded.
        """
        if not result.files or self._keep_file is None:
            return result
        names = [
            file.name or f"{result.name}-{number}{_SUFFIXES.get(file.media_type, '')}"
            for number, file in enumerate(result.files, 1)
        ]
        stored: list[File | str] = []
        storing = GracefulTask(
            self._store_files(self._keep_file, result.files, names, stored),
            name=f"storing files of {result.name}",
            grace_s=self._limits.grace_s,
            clock=self._clock,
        )
        self._running.add(storing)
        timer = self._clock.call_later(self._limits.timeout_s, storing.cancel)
        forget = self._scope.on_cancel(storing.start_deadline)
        try:
            await storing.wait(self._scope)
        finally:
            forget()
            timer.cancel()
            self._running.discard(storing)
        if self._failure is not None and len(stored) < len(names):
            return None
        why = f"the file storage took longer than {self._limits.timeout_s:g} s"
        if not storing.was_cancelled:
            why = _NOT_STORED.get(self._scope.cause or Cause.INTERRUPTED, "")
            if storing.abandoned:
                storing.cancel()
            else:
                storing.task.result()
        outcomes = [*stored, *[why] * (len(names) - len(stored))]
        named = zip(names, outcomes, strict=True)
        missing = "".join(f"\n[{name} was not stored: {why}]" for name, why in named if isinstance(why, str))
        kept = [file for file in outcomes if isinstance(file, File)]
        return msgspec.structs.replace(result, files=kept, output=result.output + missing)

    async def _store_files(
        self, keep_file: KeepFile, files: Sequence[File], names: Sequence[str], stored: list[File | str]
    ) -> None:
        """Store one file after the other; `stored` gets each, or why it was not stored."""
        for file, name in zip(files, names, strict=True):
            stored.append(await keep_file(msgspec.structs.replace(file, name=name)))

    async def _run_timed(
        self, tool: Tool, work: Callable[[], Any], record: ToolCallRecord, context: ToolContext, call: ToolCall
    ) -> ToolResult | None:
        """The result with its times. A tool that an earlier worker started may have taken effect, even if it is cut."""
        if self._scope.cancelled:
            return self._after_cut(lose_result(call) if call.started else answer_unrun(call, "interrupted", _NOT_BEGUN))
        started_at, started = self._clock.now(), self._clock.monotonic()
        result = await self._execute(tool, work, record, context)
        if result is None:
            return None
        seconds = round(self._clock.monotonic() - started, _TIMED_DIGITS)
        return msgspec.structs.replace(result, started_at=started_at, duration_s=seconds)

    async def _record(self, part: ToolStarted | ToolResult, record: ToolCallRecord) -> None:
        if self._record_with_ledger is not None:
            await self._record_with_ledger(part, record)
        else:
            await self._publish_in_turn(part)

    async def _publish_in_turn(self, part: Part) -> None:
        async with self._publishing:
            await self._publish(part)

    async def _publish_progress(self, part: Part) -> None:
        """Publish for a tool, which may be cut at any moment: a publish that has begun is not."""
        publishing = asyncio.create_task(self._publish_in_turn(part))
        self._progress.add(publishing)
        publishing.add_done_callback(self._end_progress)
        await asyncio.shield(publishing)

    def _end_progress(self, publishing: asyncio.Task[None]) -> None:
        self._progress.discard(publishing)
        error = None if publishing.cancelled() else publishing.exception()
        if error is not None:
            self._abort(error)

    async def _execute(
        self, tool: Tool, work: Callable[[], Any], record: ToolCallRecord, context: ToolContext
    ) -> ToolResult | None:
        """The tool's result, or None if it was cancelled and its outcome is unknown."""
        timeout_s = self._limits.timeout_s if tool.timeout_s is None else tool.timeout_s
        timed_out = False

        def time_out() -> None:
            nonlocal timed_out
            timed_out = not task.was_cancelled
            task.cancel()

        running = run_tool(work, is_async=tool.is_async, wants_files=self._keep_file is not None, hide=self._hide)
        task = GracefulTask(running, name=f"tool {record.name}", grace_s=self._limits.grace_s, clock=self._clock)
        self._running.add(task)
        timer = self._clock.call_later(timeout_s, time_out)
        forget = self._scope.on_cancel(task.cancel)
        try:
            await task.wait(self._scope)
        finally:
            forget()
            timer.cancel()
            context.close()
            self._running.discard(task)
        outcome = None if task.abandoned or task.task.cancelled() else task.task.result()
        if outcome is not None and outcome.error is None:
            return ToolResult(call_id=record.id, name=record.name, output=outcome.text, files=outcome.files)
        left = f" It did not stop within {self._limits.grace_s:g} s and was abandoned; it may still be running."
        left = left if task.abandoned else ""
        if timed_out:
            return _stop_waiting(record, f"Timed out after {timeout_s:g} s.{left}", "timed_out")
        if self._stopped:
            return self._after_cut(_stop_waiting(record, _ENDED_BY_USER + left, "interrupted"))
        if outcome is None:
            return _error(record, "The tool was cancelled from within.")
        self._log_error(record, outcome.error)
        return _error(record, outcome.text)

    def _log_error(self, record: ToolCallRecord, error: BaseException | None) -> None:
        _log.warning("the tool %s raised an error", record.name, exc_info=error, extra={"call": record.id})

    def _after_cut(self, result: ToolResult) -> ToolResult | None:
        """The result of a stopped tool; None (outcome unknown) if this worker may not write one."""
        if not self._scope.interrupted or self._failure is not None:
            return None
        return msgspec.structs.replace(result, interrupted=True)

    def _measure(self, result: ToolResult, seconds: float) -> ToolResult:
        kept = cut_text(result.output, self._result_limit_bytes)
        self._metrics.tool_ran(
            result.name,
            seconds=seconds,
            size_bytes=len(kept.text.encode()),
            truncated=kept.missing_bytes > 0,
            is_error=result.is_error,
        )
        return msgspec.structs.replace(result, output=kept.text)


def _error(record: ToolCallRecord, text: str) -> ToolResult:
    return ToolResult(call_id=record.id, name=record.name, output=text, outcome="failed")


def _stop_waiting(record: ToolCallRecord, text: str, reason: ResultReason) -> ToolResult:
    """The result of a tool that was ended before it answered: it may have taken effect."""
    return ToolResult(call_id=record.id, name=record.name, output=text, outcome="unknown", reason=reason)


# --- calling -----------------------------------------------------------------------------


async def run_tool(work: Callable[[], Any], *, is_async: bool, wants_files: bool, hide: Hide) -> ToolOutcome:
    """Call a tool's function and read its result. Cancel it to stop it."""
    returned = await (_run_async(work) if is_async else _run_in_thread(work))
    if returned.error is None and _is_short(returned.value):
        return read_returned(returned, wants_files=wants_files, hide=hide)
    return await read_in_thread(returned, wants_files=wants_files, hide=hide)


async def read_in_thread(returned: Returned, *, wants_files: bool, hide: Hide) -> ToolOutcome:
    read = await _call_in_thread(lambda: read_returned(returned, wants_files=wants_files, hide=hide))
    if read.error is not None:
        raise read.error
    outcome: ToolOutcome = read.value
    return outcome


def _is_short(value: object) -> bool:
    return value is None or type(value) in _READ_AT_ONCE or (type(value) is str and len(value) < _SHORT_CHARACTERS)


async def _run_async(work: Callable[[], Coroutine[Any, Any, Any]]) -> Returned:
    try:
        return Returned(value=await work())
    except (asyncio.CancelledError, TestBroken):
        raise
    except BaseException as error:  # a tool may raise anything, and it ends nothing but its call
        return Returned(error=error)


async def _run_in_thread(work: Callable[[], Any]) -> Returned:
    """Run a plain function; what it leaves to be awaited is awaited here."""
    returned = await _call_in_thread(work)
    if isinstance(returned.error, TestBroken):
        raise returned.error
    if inspect.isawaitable(returned.value):
        return await _run_async(lambda: _await(returned.value))
    return returned


async def _call_in_thread(work: Callable[[], Any]) -> Returned:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Returned] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(returned: Returned) -> None:
        if not done.done():
            done.set_result(returned)

    def target() -> None:
        try:
            returned = Returned(value=context.run(work))
        except BaseException as error:  # a thread has no other way to report it
            returned = Returned(error=error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and no task waits any longer
            loop.call_soon_threadsafe(deliver, returned)

    threading.Thread(target=target, name="indelible tool", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        # A thread cannot be cancelled. It may check its scope and return; the task waits for that.
        return await done


async def _await(value: Awaitable[Any]) -> Any:
    return await value
