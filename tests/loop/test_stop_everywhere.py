"""The promise of the loop, for arbitrary turns: wherever a stop comes, what was published is what is kept.

A *scenario* is a turn drawn by Hypothesis: what the model says, how the tools behave, how long publishing,
saving and the hooks take. A *world* runs one on an event loop of its own. That loop counts every callback
before it runs it, and between two callbacks nothing else can happen, so "stop before the n-th callback, for
every n" is every moment at which a stop can come from outside. Stops from inside come at the n-th call of
what the run was given: publish, persist, a tool, a hook, the ledger. When the event loop has nothing left
to run, the world lets go of the next thing that is held, or moves the clock to the next timer; when there is
neither, the turn hangs, and that is a failure.

Threads run only while the event loop stands still, so an example is the same run every time.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import selectors
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVarTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.examples import count_examples, is_thorough
from tests.support.loop_harness import run_turn

from indelible.content import (
    Block,
    Finish,
    KeepAlive,
    Message,
    Part,
    Reasoning,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StreamError,
    StreamWarning,
    Text,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    ToolStarted,
    has_visible,
)
from indelible.content.assemble import append_progress, assemble, finalize
from indelible.errors import Interrupted, LeaseLost, ModelFailed, Shutdown
from indelible.loop import CancelScope, Cause, FinishedStep, RetryPolicy, ToolLimits, TurnAwaitingClient, TurnCompleted
from indelible.loop.normalize import Normalizer
from indelible.models import CallOptions
from indelible.models.protocol import Call
from indelible.models.retry import RetryEvent
from indelible.testing import ManualClock, ScriptedModel
from indelible.testing.clock import ManualTimer
from indelible.tools import Tool, ToolContext
from indelible.tools.tool import ToolCallRecord

EXAMPLES: Final = count_examples(60)
"""How many scenarios are tried, each with every way to stop. Drawing one takes as long as two runs, so it is drawn once
for all of them."""

pytestmark = [
    pytest.mark.timeout(600 + EXAMPLES / 4),
    pytest.mark.may_log("did not stop within .* and was abandoned", "the tool (plain_)?raising raised an error"),
]
"""Seconds: time to find the smallest example of a failure, and 50 ms for each stop."""

Ts = TypeVarTuple("Ts")

StopKind = Literal["interrupt", "shutdown", "lose_lease", "cancel", "interrupt, then cancel"]
ENDS: Final[dict[StopKind, type[BaseException]]] = {
    "interrupt": Interrupted,
    "shutdown": Shutdown,
    "lose_lease": LeaseLost,
    "cancel": asyncio.CancelledError,
    "interrupt, then cancel": Interrupted,
}
"""How a run can be stopped, and what it then ends with."""

UNTIL_IDLE: Final = -1
FOR_LONG: Final = -2
LONG_S: Final = 200.0
"""Longer than the silence timeout, a tool's time limit and the grace time."""

MOST_CALLBACKS: Final = 20_000


# --- what is drawn -----------------------------------------------------------------------


class Pause(NamedTuple):
    """The model takes so many turns of the event loop."""

    turns: int


class Hang(NamedTuple):
    """The model says nothing until its read is cancelled."""


class Fail(NamedTuple):
    """The model raises."""

    what: str


Step = Part | Pause | Hang | Fail

FAILURES: Final[dict[str, Callable[[], BaseException]]] = {
    "busy": lambda: ModelFailed("busy", kind="overloaded", retry_after_s=3.0),
    "refused": lambda: ModelFailed("no", kind="auth"),
    "cut off": lambda: ConnectionResetError("gone"),
    "says cancelled": asyncio.CancelledError,
}


class Script(NamedTuple):
    """One stream, and the model's answer when its read is cancelled: one of rule 1.6, a part, or none at all."""

    steps: list[Step]
    when_cancelled: Literal["raise", "interrupted", "end", "say more", "ignore"] = "raise"


class Scenario(NamedTuple):
    """A turn. Waits: none is a plain callback, else how long each call of it takes, over and over."""

    scripts: list[Script]
    provider: str = "anthropic"
    publish_waits: Sequence[int] = ()
    persist_waits: Sequence[int] = ()
    hook_waits: Sequence[int] = ()
    ledger_waits: Sequence[int] = ()
    keep_failed: bool = False
    jitter: float = 0.0
    persist_answers_interrupted: bool = False


class Stop(NamedTuple):
    """At the `nth` visit to `place`: a callback of the event loop, or a call of something the run was given.

    The second of two stops comes so many callbacks `later`.
    """

    kind: StopKind
    place: str
    nth: int
    later: int = 0


PIECES = ["Hel", "lo", " ", "\n", "`", "42", "é", "<th", "ink>", "</th", "<think>", "\U0001f600", "\ud83d", "\ude00"]
ARGUMENTS = ["{", '"a"', ": ", "1}", "{}", "\ud83d", "\ude00"]
TOOLS = [
    *("quick", "slow", "slow", "until_idle", "raising", "blocked", "stubborn", "answering_cancel"),
    *("in_turn", "in_turn", "plain", "plain_raising", "alone", "enough", "for_the_client", "nobody_knows"),
]


def say(id_: str, deltas: list[str], *, opens: bool, ends: bool) -> list[Step]:
    return [*opens * [TextStart(id_)], *(TextDelta(id_, delta) for delta in deltas), *ends * [TextEnd(id_)]]


def think(id_: str, deltas: list[str], signature: str | None, *, opens: bool, ends: bool) -> list[Step]:
    said = [ReasoningDelta(id=id_, delta=delta) for delta in deltas]
    return [*opens * [ReasoningStart(id=id_)], *said, *ends * [ReasoningEnd(id=id_, signature=signature)]]


def dictate(id_: str, name: str, deltas: list[str], *, ends: bool, whole: bool) -> list[Step]:
    """A call in pieces. Ended or whole it may be run; else half of it came."""
    pieces: list[Step] = [ToolInputStart(id=id_, name=name), *(ToolInputDelta(id_, delta) for delta in deltas)]
    call = ToolCall(id=id_, name=name, arguments="".join(deltas))
    return [*pieces, *ends * [ToolInputEnd(id_)], *whole * [call]]


def search(deltas: list[str], *, in_pieces: bool, whole: bool, answered: bool) -> list[Step]:
    """The provider's own call. Its id is never a local call's: no provider mixes them."""
    pieces: list[Step] = [
        ToolInputStart(id="p", name="search", provider_executed=True),
        *(ToolInputDelta("p", delta) for delta in deltas),
    ]
    call = ToolCall(id="p", name="search", arguments="".join(deltas), provider_executed=True)
    result = ToolResult(call_id="p", name="search", output={"hits": 1}, provider_executed=True)
    return [*in_pieces * pieces, *whole * [call], *answered * [result]]


def write_script(said: list[list[Step]], ending: list[Step], pauses: list[int], answer: Any, *, woven: bool) -> Script:
    """Phrases one after the other, or woven into each other; the pauses go round between the parts."""
    parts = itertools.chain.from_iterable(itertools.zip_longest(*said) if woven else said)
    turns: Iterator[int] = itertools.cycle(pauses or [0])
    steps: list[Step] = []
    for step in (*parts, *ending):
        if step is not None:
            steps += [*filter(lambda pause: pause.turns, [Pause(next(turns))]), step]
    return Script(steps, answer)


flags = st.booleans()
block_ids = st.sampled_from(["1", "2"])
call_ids = st.sampled_from(["a", "b", "c"])
names = st.sampled_from(TOOLS)
pieces = st.lists(st.sampled_from(PIECES), max_size=3)
arguments = st.one_of(st.just(["{}"]), st.just(["{", "}"]), st.lists(st.sampled_from(ARGUMENTS), max_size=3))
waits = st.lists(st.sampled_from([0, 1, 1, 2, 3, UNTIL_IDLE, FOR_LONG]), max_size=3)
phrases: st.SearchStrategy[list[Step]] = st.one_of(
    st.builds(say, block_ids, pieces, opens=flags, ends=flags),
    st.builds(think, block_ids, pieces, st.sampled_from([None, None, "signed"]), opens=flags, ends=flags),
    st.builds(dictate, call_ids, names, arguments, ends=flags, whole=flags),
    st.builds(lambda id_, name: [ToolCall(id=id_, name=name, arguments="{}")], call_ids, names),
    st.builds(search, pieces, in_pieces=flags, whole=flags, answered=flags),
    st.sampled_from([[StreamWarning("old model")], [KeepAlive()], [Source(id="s", url="https://example.org")]]),
)
endings: st.SearchStrategy[list[Step]] = st.one_of(
    st.just([Finish(reason="tool_calls", response_id="r1")]),
    st.sampled_from([[Finish(reason=reason, response_id="r1")] for reason in ("stop", "length", "content_filter")]),
    st.sampled_from([[], [Hang()], *([Fail(what)] for what in FAILURES)]),
    st.sampled_from([[StreamError("busy", kind="overloaded", retryable=True)], [StreamError("no", kind="auth")]]),
)
scripts = st.builds(
    write_script,
    st.lists(phrases, min_size=1, max_size=5),
    endings,
    st.lists(st.integers(0, 2), max_size=3),
    st.sampled_from(["raise", "raise", "interrupted", "end", "say more", "ignore"]),
    woven=flags,
)
scenarios = st.builds(
    Scenario,
    scripts=st.lists(scripts, min_size=1, max_size=3),
    provider=st.sampled_from(["anthropic", "openai"]),
    publish_waits=waits,
    persist_waits=waits,
    hook_waits=waits,
    ledger_waits=waits,
    keep_failed=flags,
    jitter=st.sampled_from([0.0, 0.5]),
    persist_answers_interrupted=flags,
)

DONE = Finish(reason="tool_calls", response_id="r1")
KNOWN: Final[dict[str, Scenario]] = {
    "all phases": Scenario(
        [
            Script(
                [
                    *(ReasoningStart(id="1"), ReasoningDelta(id="1", delta="hm"), Pause(1), ReasoningEnd(id="1")),
                    *(TextDelta("1", "<thi"), TextDelta("1", "nk>so</think>It is"), Pause(1), TextDelta("1", " <")),
                    *search(["{}"], in_pieces=True, whole=True, answered=True),
                    *dictate("a", "slow", ["{", "}"], ends=True, whole=True),
                    *(ToolCall(id=id_, name=id_, arguments="{}") for id_ in ("quick", "plain", "raising")),
                    *(ToolInputStart(id="b", name="quick"), ToolInputDelta("b", "{"), DONE),
                ]
            ),
            Script([TextDelta("1", "Done"), Pause(2), Finish()]),
        ],
        publish_waits=[1],
        persist_waits=[2],
        hook_waits=[1],
        ledger_waits=[1],
    ),
    "attempts that fail after they were seen, and one that does not": Scenario(
        [
            Script([TextDelta("1", "one"), Fail("cut off")]),
            Script([ReasoningDelta(id="1", delta="two"), Hang()], "end"),
            Script([TextDelta("1", "three"), Finish()]),
        ],
        persist_waits=[1],
        keep_failed=True,
        jitter=0.5,
    ),
    "attempts that fail until there is no patience left": Scenario(
        [Script([TextDelta("1", "one"), Fail("busy")]), Script([]), Script([Fail("says cancelled")], "interrupted")],
        jitter=0.5,
    ),
    "a call that nobody knows": Scenario([Script([ToolCall(id="a", name="nobody_knows", arguments="{}"), DONE])]),
    "a tool that shows its progress while publishing takes a moment": Scenario(
        [Script([ToolCall(id="a", name="blocked", arguments="{}"), DONE])], publish_waits=[2]
    ),
    "a tool that shows its progress while publishing takes very long": Scenario(
        [Script([ToolCall(id="a", name="slow", arguments="{}"), DONE])], publish_waits=[FOR_LONG]
    ),
    "a model that answers a stop with a part while publishing takes very long": Scenario(
        [
            Script([TextDelta("1", "a"), Hang()], "say more"),
            Script([TextDelta("1", "b"), Pause(2), Finish()], "say more"),
        ],
        publish_waits=[0, FOR_LONG],
    ),
    "a model and a tool that ignore cancellation": Scenario(
        [
            Script([TextDelta("1", "a"), ToolCall(id="a", name="stubborn", arguments="{}"), Pause(2), DONE], "ignore"),
            Script([TextDelta("1", "b"), Hang()], "ignore"),
        ],
        keep_failed=True,
    ),
    "saving that answers interrupted": Scenario(
        [Script([TextDelta("1", "a"), ToolCall(id="a", name="quick", arguments="{}"), DONE])],
        persist_waits=[1],
        persist_answers_interrupted=True,
    ),
}


# --- the event loop ----------------------------------------------------------------------


class IdleTeller(selectors.DefaultSelector):
    """An event loop asks its selector to wait exactly when it has nothing to run."""

    on_idle: Callable[[], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.on_idle()
        return super().select(0)


class CountingLoop(asyncio.SelectorEventLoop):
    """Tells of every callback right before it runs, and of every moment when there is none."""

    def __init__(self, before_callback: Callable[[], None], on_idle: Callable[[], None]) -> None:
        selector = IdleTeller()
        selector.on_idle = on_idle
        super().__init__(selector)
        self._before_callback = before_callback

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._announce, callback, args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._announce, callback, args, context=context)

    def _announce(self, callback: Callable[[*Ts], object], args: tuple[*Ts]) -> None:
        self._before_callback()
        callback(*args)


class SteppingClock(ManualClock):
    """A clock that can go to its next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._due: set[float] = set()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        self._due.add(self.monotonic() + delay_s)
        return super().call_later(delay_s, callback)

    def step(self) -> None:
        assert self.pending, "the turn hangs: nothing runs, nothing is held, no timer is set"
        next_s = min(self._due)
        self._due.discard(next_s)
        self.advance(next_s - self.monotonic())


# --- the world ---------------------------------------------------------------------------

COMPLAINTS: list[str] = []
"""What any event loop complained about: exceptions that nobody took, tasks that were thrown away."""


CAUSES: Final[dict[StopKind, Cause]] = {
    "interrupt": Cause.INTERRUPTED,
    "interrupt, then cancel": Cause.INTERRUPTED,
    "shutdown": Cause.SHUTDOWN,
    "lose_lease": Cause.LEASE_LOST,
}
COMPLETED: Final = TurnCompleted | TurnAwaitingClient
"""A turn that came to its own end."""


class World:
    """One run of a scenario: all that the loop is given, and a record of what it did with it."""

    def __init__(self, scenario: Scenario, stop: Stop | None = None) -> None:
        self.scenario = scenario
        self.outcome: TurnCompleted | TurnAwaitingClient | BaseException
        self.visits: Counter[str] = Counter()
        self.acts = 0
        self.attempts: dict[tuple[int, int], list[Part]] = {}
        self.yielded: dict[tuple[int, int], list[Part]] = {}
        self.publishing = 0
        self.started: list[ToolCallRecord] = []
        self.settled_calls: list[tuple[ToolCallRecord, ToolResult]] = []
        self.saves: list[FinishedStep] = []
        self.saved: list[FinishedStep] = []
        self.acts_at_stop: int | None = None
        self.saves_at_stop = 0
        self.tasks_left_behind = 0
        self.parts_too_late = 0
        self._scope = CancelScope()
        self._stop = stop
        self._cancel_in: int | None = None
        self._started = self._over = False
        self._clock = SteppingClock()
        self._loop = CountingLoop(self._before_callback, self._go_on)
        self._loop.set_exception_handler(lambda _, context: COMPLAINTS.append(context["message"]))
        self._task: asyncio.Task[TurnCompleted | TurnAwaitingClient]
        self._held: list[asyncio.Future[None]] = []
        self._released: asyncio.Future[None] = self._loop.create_future()
        self._ignoring = 0
        self._foreign_threads = set(threading.enumerate())
        self._gates: dict[threading.Thread, threading.Event] = {}
        self._answered_interrupted = False
        self._publish_waits = itertools.cycle(scenario.publish_waits)
        self._persist_waits = itertools.cycle(scenario.persist_waits)
        self._hook_waits = itertools.cycle(scenario.hook_waits)
        self._ledger_waits = itertools.cycle(scenario.ledger_waits)

    # --- running ---

    def run(self) -> World:
        try:
            self._task = self._loop.create_task(self._start())
            try:
                self.outcome = self._loop.run_until_complete(self._task)
            except (Exception, asyncio.CancelledError) as error:
                self.outcome = error
            self._over = True
            self._tidy_up()
        finally:
            self._loop.close()
        return self

    def _tidy_up(self) -> None:
        """Let those go on that ignored their cancellation; end those that should not be there."""
        left, published = asyncio.all_tasks(self._loop), self.visits["publish"]
        self.tasks_left_behind = len(left) - self._ignoring
        self._released.set_result(None)
        for task in left:
            if self.tasks_left_behind:
                task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self.parts_too_late = self.visits["publish"] - published

    async def _start(self) -> TurnCompleted | TurnAwaitingClient:
        self._started = True
        scripts = [*self.scenario.scripts, Script([Finish()])]
        end: TurnCompleted | TurnAwaitingClient = await run_turn(
            model=ScriptedModel([partial(self._play, script) for script in scripts], provider=self.scenario.provider),
            messages=[Message(role="user", blocks=[Text("hi")])],
            persist_step=self._persist,
            tools=self._make_tools(),
            client_tools=["for_the_client"],
            stop_after=["enough"],
            max_steps=3,
            scope=self._scope,
            publish=self._publish,
            record=self._record,
            call=CallOptions(store=True),
            prepare_messages=self._hook,
            open_attempt=self._on_attempt,
            schedule_retry=self._on_retry,
            keep_failed=self.scenario.keep_failed,
            retry=RetryPolicy(max_attempts=3),
            tool_limits=ToolLimits(timeout_s=60.0, concurrency=2),
            clock=self._clock,
            chance=lambda: self.scenario.jitter,
            turn_id="turn",
        )
        return end

    def _before_callback(self) -> None:
        if not self._over:
            self._visit("callback")
            assert self.visits["callback"] < MOST_CALLBACKS, "the turn goes round in circles"

    def _go_on(self) -> None:
        """The event loop is idle: let go of what is held longest, or let a thread run, or let time pass."""
        thread = next((thread for thread in threading.enumerate() if thread not in self._foreign_threads), None)
        self._held = [held for held in self._held if not held.done()]
        if self._held:
            self._held[0].set_result(None)
        elif thread is not None:
            self._gates.setdefault(thread, threading.Event()).set()
            thread.join()
        else:
            self._clock.step()

    def _visit(self, place: str) -> None:
        self.visits[place] += 1
        stop = self._stop
        if stop is None:
            return
        if (place, self.visits[place]) == (stop.place, stop.nth):
            self.acts_at_stop, self.saves_at_stop = self.acts, len(self.saves)
            self._cancel_in = 0 if stop.kind == "cancel" else stop.later if "cancel" in stop.kind else None
            if stop.kind != "cancel":
                self._scope.cancel(CAUSES[stop.kind])
        elif self._cancel_in and place == "callback":
            self._cancel_in -= 1
        # A task that is cancelled before it began never begins: nobody is there to know of an interrupt.
        if self._cancel_in == 0 and (self._started or stop.kind == "cancel"):
            self._cancel_in = None
            in_thread = threading.current_thread() is not threading.main_thread()
            self._loop.call_soon_threadsafe(self._task.cancel) if in_thread else self._task.cancel()

    async def _suspend(self, wait: int) -> None:
        if wait == UNTIL_IDLE:
            self._held.append(self._loop.create_future())
            await self._held[-1]
        elif wait == FOR_LONG:
            await self._clock.sleep(LONG_S)
        else:
            for _ in range(wait):
                await asyncio.sleep(0)

    # --- the model ---

    async def _play(self, script: Script, call: Call) -> AsyncIterator[Part]:
        for step in script.steps:
            if isinstance(step, Fail):
                failure = FAILURES[step.what]()
                raise failure
            if not isinstance(step, Pause | Hang):
                yield self._note_yielded(step)
                continue
            if self._over:
                return
            try:
                await (self._suspend(step.turns) if isinstance(step, Pause) else self._loop.create_future())
            except asyncio.CancelledError:
                match script.when_cancelled:
                    case "raise":
                        raise
                    case "interrupted":
                        raise Interrupted from None
                    case "end":
                        return
                    case "say more":
                        yield self._note_yielded(TextDelta("1", " more"))
                    case "ignore":
                        await self._ignore_cancellation()

    def _note_yielded(self, part: Part) -> Part:
        if not self._over:
            list(self.yielded.values())[-1].append(part)
        return part

    async def _ignore_cancellation(self) -> None:
        self._ignoring += 1
        while not self._released.done():
            try:
                await asyncio.shield(self._released)
            except asyncio.CancelledError:
                continue
        self._ignoring -= 1

    # --- callbacks ---

    def _publish(self, part: Part) -> Awaitable[None] | None:
        self.acts += 1
        list(self.attempts.values())[-1].append(part)
        self._visit("publish")
        return self._take_time_to_publish() if self.scenario.publish_waits else None

    async def _take_time_to_publish(self) -> None:
        self.publishing += 1
        await self._suspend(next(self._publish_waits))
        self.publishing -= 1
        self.acts += 1

    def _persist(self, record: FinishedStep) -> Any:
        self.acts += 1
        self.saves.append(record)
        self._visit("persist")
        return self._take_time_to_persist(record) if self.scenario.persist_waits else self._end_persist(record)

    async def _take_time_to_persist(self, record: FinishedStep) -> None:
        await self._suspend(next(self._persist_waits))
        self.acts += 1
        self._end_persist(record)

    def _end_persist(self, record: FinishedStep) -> None:
        """Perhaps answer "interrupted", once, as a worker does whose chat is being interrupted (S24)."""
        if self.scenario.persist_answers_interrupted and self._scope.interrupted and not self._answered_interrupted:
            self._answered_interrupted = True
            raise Interrupted
        self.saved.append(record)

    def _on_attempt(self, step: int, number: int) -> Any:
        self.attempts[step, number], self.yielded[step, number] = [], []
        return self._hook()

    def _on_retry(self, event: RetryEvent) -> Any:
        return self._hook()

    def _hook(self, answer: Any = None) -> Any:
        self.acts += 1
        self._visit("hook")
        return self._take_time(self._hook_waits, answer) if self.scenario.hook_waits else answer

    async def _take_time(self, waits: Iterator[int], answer: Any = None) -> Any:
        await self._suspend(next(waits, 0))
        self.acts += 1
        return answer

    async def _record(self, part: ToolStarted | ToolResult, call: ToolCallRecord) -> None:
        """The ledger commits, and the part is seen."""
        if isinstance(part, ToolResult):
            self.settled_calls.append((call, part))
        else:
            self.started.append(call)
        self.acts += 1
        self._visit("ledger")
        await self._take_time(self._ledger_waits)
        published = self._publish(part)
        if published is not None:
            await published

    # --- tools ---

    def _make_tools(self) -> list[Tool]:
        """Those that the model calls: to read the signatures of all of them would take as long as the turn."""
        steps = itertools.chain.from_iterable(script.steps for script in self.scenario.scripts)
        called = {step.name for step in steps if isinstance(step, ToolCall | ToolInputStart)}
        kinds: dict[str, Callable[..., Any]] = {
            "quick": self._quick,
            "slow": self._slow,
            "until_idle": self._until_idle,
            "raising": self._raising,
            "blocked": self._blocked,
            "stubborn": self._stubborn,
            "answering_cancel": self._answering_cancel,
            "in_turn": self._until_idle,
            "plain": self._plain,
            "plain_raising": self._plain_raising,
            "alone": self._quick,
            "enough": self._quick,
        }
        return [
            Tool.from_schema(name, "", {}, kind, serial=name == "in_turn", exclusive=name == "alone")
            for name, kind in kinds.items()
            if name in called
        ]

    async def _quick(self, arguments: Any) -> str:
        self._visit("tool")
        return "done"

    async def _slow(self, arguments: Any, context: ToolContext) -> str:
        self._visit("tool")
        await self._suspend(2)
        await context.progress("half way")
        await self._suspend(UNTIL_IDLE)
        return "done"

    async def _until_idle(self, arguments: Any) -> None:
        self._visit("tool")
        await self._suspend(UNTIL_IDLE)

    async def _raising(self, arguments: Any) -> None:
        self._visit("tool")
        await self._suspend(1)
        raise ValueError("no such thing")

    async def _blocked(self, arguments: Any, context: ToolContext) -> None:
        self._visit("tool")
        await context.progress("this may take for ever")
        await self._loop.create_future()

    async def _stubborn(self, arguments: Any) -> str:
        self._visit("tool")
        await self._ignore_cancellation()
        return "nobody hears this"

    async def _answering_cancel(self, arguments: Any) -> str:
        self._visit("tool")
        try:
            await self._suspend(UNTIL_IDLE)
        except asyncio.CancelledError:
            await self._suspend(1)
        return "cleaned up"

    def _plain(self, arguments: Any) -> str:
        self._wait_at_gate()
        return "done"

    def _plain_raising(self, arguments: Any) -> None:
        self._wait_at_gate()
        raise LookupError("nothing there")

    def _wait_at_gate(self) -> None:
        """In a thread: go on only when the event loop has stopped to wait for us."""
        self._gates.setdefault(threading.current_thread(), threading.Event()).wait()
        self._visit("tool")


# --- what must be true -------------------------------------------------------------------


class OnScreen(NamedTuple):
    """What a reader has before him."""

    answer: str
    thinking: str
    arguments: dict[str, str]


def read_parts(parts: Sequence[Part]) -> OnScreen:
    """As a reader's page would, without `assemble`: by block, in the order in which the blocks began."""
    blocks: dict[tuple[type, str, int], str] = {}
    ended: Counter[tuple[type, str]] = Counter()
    arguments: dict[str, str] = {}
    complete: set[str] = set()
    not_ours = {part.id for part in parts if isinstance(part, ToolInputStart | ToolCall) and part.provider_executed}
    for part in parts:
        delta = part.delta if isinstance(part, TextDelta | ReasoningDelta | ToolInputDelta) else ""
        match part:
            case TextStart() | TextDelta() | TextEnd() | ReasoningStart() | ReasoningDelta() | ReasoningEnd():
                kind = Text if isinstance(part, TextStart | TextDelta | TextEnd) else Reasoning
                key = (kind, part.id, ended[kind, part.id])
                blocks[key] = blocks.get(key, "") + delta
                ended[kind, part.id] += isinstance(part, TextEnd | ReasoningEnd)
            case ToolCall():
                complete.add(part.id)
                arguments[part.id] = part.arguments
            case ToolInputStart() | ToolInputDelta() | ToolInputEnd() if part.id not in complete:
                arguments[part.id] = arguments.get(part.id, "") + delta
    answer = "".join(text for (kind, _, _), text in blocks.items() if kind is Text)
    thinking = "".join(text for (kind, _, _), text in blocks.items() if kind is Reasoning)
    return OnScreen(answer, thinking, {id_: text for id_, text in arguments.items() if id_ not in not_ours})


def read_blocks(blocks: Sequence[Block]) -> OnScreen:
    return OnScreen(
        "".join(block.text for block in blocks if isinstance(block, Text)),
        "".join(block.text for block in blocks if isinstance(block, Reasoning)),
        {block.id: block.arguments for block in blocks if isinstance(block, ToolCall) and not block.provider_executed},
    )


def check_end(world: World, kind: StopKind | None) -> None:
    """The run ends with the stop's cause; by itself only if it had nothing more to do when the stop came."""
    stopped = world.acts_at_stop is not None
    if kind is not None and isinstance(world.outcome, ENDS[kind]):
        assert stopped, f"{world.outcome!r} without a stop"
    else:
        assert isinstance(world.outcome, COMPLETED | ModelFailed), f"ended with {world.outcome!r}"
        assert not stopped or world.acts == world.acts_at_stop, f"went on after {kind}, to {world.outcome!r}"
    if all(any(isinstance(step, Finish) for step in script.steps) for script in world.scenario.scripts):
        assert all(number == 1 for _, number in world.attempts), "tried again, though every stream was complete"
    if stopped and kind in ("shutdown", "lose_lease", "cancel"):
        assert len(world.saves) == world.saves_at_stop, f"began to save after {kind}"


def check_saves(world: World) -> None:
    """What is saved is what was published, with every call answered, and saved once."""
    for record in world.saves:
        parts = world.attempts[record.index, record.attempt]
        assert record.blocks == finalize(assemble(parts), record.reason, record.ended_at)
        assert read_blocks(record.blocks) == read_parts(parts)
        calls = [block for block in record.blocks if isinstance(block, ToolCall)]
        local = [call.id for call in calls if not call.provider_executed]
        answered = [b.call_id for b in record.blocks if isinstance(b, ToolResult) and not b.provider_executed]
        awaiting = [] if record.reason is not None else [call.id for call in record.awaiting]
        assert len({call.id for call in calls}) == len(calls)
        assert answered == [id_ for id_ in local if id_ not in awaiting]
        assert record.reason is not None or not record.partial
        assert record.provider_response_id is None or (not record.partial and record.reason in (None, "interrupted"))
    saved_steps = [record.index for record in world.saved]
    assert len(set(saved_steps)) == len(saved_steps), "a step was saved twice"


def check_nothing_is_missing(world: World) -> None:
    """Of every step the last attempt is kept, if it said anything; of a failed turn, the last that said anything.

    With `keep_failed`, so is every attempt that showed something.
    """
    if not isinstance(world.outcome, COMPLETED | ModelFailed | Interrupted):
        return
    kept = {(record.index, record.attempt) for record in world.saved}
    said = {attempt: finalize(assemble(parts), "failed", None) for attempt, parts in world.attempts.items()}
    for (step, number), blocks in said.items():
        later = [others for (at, n), others in said.items() if at == step and n > number]
        replaced = any(later) if isinstance(world.outcome, ModelFailed) else bool(later)
        shown_for_good = world.scenario.keep_failed and has_visible(blocks)
        if blocks and (shown_for_good or not replaced):
            assert (step, number) in kept, f"attempt {number} of step {step} is lost"


def check_tools(world: World) -> None:
    """Half a call is never run. What was begun has its one result, and that is kept."""
    for call in world.started:
        number = max(number for step, number in world.attempts if step == call.step)
        ends = [part for part in world.attempts[call.step, number] if isinstance(part, ToolCall | ToolInputEnd)]
        assert call.id in [part.id for part in ends]
    if isinstance(world.outcome, COMPLETED | ModelFailed | Interrupted):
        settled = [call.idempotency_key for call, _ in world.settled_calls]
        assert sorted(settled) == sorted(call.idempotency_key for call in world.started)
        assert len(set(settled)) == len(settled)
        for call, result in world.settled_calls:
            steps = [record for record in world.saved if record.index == call.step]
            assert any(is_kept(result, block) for record in steps for block in record.blocks)


def is_kept(result: ToolResult, block: Block) -> bool:
    """A result is kept with the progress that the tool showed, of which an interrupted one also tells the model."""
    if not isinstance(block, ToolResult):
        return False
    told = append_progress(result.output, block.progress) if block.progress and result.interrupted else result.output
    return replace(result, output=told, progress=block.progress) == block


def check_nothing_is_held_back(world: World) -> None:
    """What the model yielded was published, the beginning of what might have been a tag included.

    Not so when the run was torn out of our hands: what nobody saw, the next holder asks for again. And with
    `keep_failed` an attempt may begin inside the thinking of the one before: that is test_thinking_in_loop.py.
    """
    if world.scenario.keep_failed or isinstance(world.outcome, LeaseLost | asyncio.CancelledError):
        return
    for attempt, yielded in world.yielded.items():
        normalizer = Normalizer(provider=world.scenario.provider, clock=ManualClock())
        said = [part for part in yielded if not isinstance(part, KeepAlive | StreamError)]
        expected = [*(out for part in said for out in normalizer.feed(part)), *normalizer.release()]
        assert read_parts(world.attempts[attempt]) == read_parts(expected)


def check_nothing_is_left(world: World) -> None:
    assert world.publishing == 0, "a publish was cut short"
    assert world.tasks_left_behind == 0, "a task was left behind"
    assert world.parts_too_late == 0, "somebody published after the end"
    assert not [part for parts in world.attempts.values() for part in parts if isinstance(part, KeepAlive)]
    complaints = COMPLAINTS.copy()
    COMPLAINTS.clear()
    assert not complaints


def check(scenario: Scenario, stop: Stop | None = None) -> Counter[str]:
    """Run the scenario and check everything. Where it came by, and how often."""
    world = World(scenario, stop).run()
    check_end(world, stop and stop.kind)
    check_saves(world)
    check_nothing_is_missing(world)
    check_tools(world)
    check_nothing_is_held_back(world)
    check_nothing_is_left(world)
    return world.visits


def check_every_stop(kind: StopKind, scenario: Scenario) -> None:
    """Interrupt the turn at every point; stop it in the other ways at every fourth, each way at others.

    So `make test` comes by every point twice, with an interrupt and with one of the others. `make nightly` stops in
    every way at every point.
    """
    visits = check(scenario)
    points = [(place, nth) for place in visits for nth in range(1, visits[place] + 1)]
    others = [each for each in ENDS if each != "interrupt"]
    if kind in others and not is_thorough():
        points = points[others.index(kind) :: len(others)]
    for place, nth in points:
        check(scenario, Stop(kind, place, nth))


# --- the tests ---------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _no_complaints_at_last() -> Iterator[None]:
    """Some complaints come only when the garbage is collected."""
    yield
    gc.collect()
    assert not COMPLAINTS


@given(data=st.data(), scenario=scenarios)
@settings(max_examples=EXAMPLES)
def test_a_stop_at_any_point_keeps_what_was_published(data: st.DataObject, scenario: Scenario) -> None:
    visits = check(scenario)
    for kind in ENDS:
        place = data.draw(st.sampled_from(sorted(visits)))
        nth = data.draw(st.integers(1, visits[place]))
        later = data.draw(st.integers(0, 5)) if "then" in kind else 0
        check(scenario, Stop(kind, place, nth, later))


@pytest.mark.parametrize("kind", ENDS)
@given(scenario=scenarios)
@settings(max_examples=max(5, EXAMPLES // 200))
def test_a_stop_at_every_point_keeps_what_was_published(kind: StopKind, scenario: Scenario) -> None:
    check_every_stop(kind, scenario)


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("known", KNOWN)
def test_a_stop_at_every_point_of_a_known_turn_keeps_what_was_published(kind: StopKind, known: str) -> None:
    check_every_stop(kind, KNOWN[known])
