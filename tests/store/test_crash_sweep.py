"""The crash sweep: a process dies at each of its calls of the store, and nothing is lost.

A scenario is what one process does, written as plain calls; what it says goes through a real journal. It is run
once to count its calls of the store, flushes included. Then, for every call, it is run again on a new chat with a
store that dies at that call: before it does anything, or when it is done and not answered. A second worker, which
knows only the database, takes the chat over and brings it to rest. Then the chat must be whole, all that was written
must be in history exactly once, and the ledger must know of every tool that was ever started.

To die before a call is to die after the one before it: no database has seen it, and that the rows are the same has its
own test on both. So SQLite, which is quicker, is enough for that side. What PostgreSQL could do otherwise is to keep
or to lose what one kind of call has committed, so there each scenario dies at the last call of each kind, and in `make
nightly` at every one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import make_payload
from tests.store.test_begin import KeptPlace
from tests.support.engine import begin_read, get_database, is_sqlite
from tests.support.examples import is_thorough
from tests.support.stored import load_ledger, load_path
from tests.support.tables import attempts, events, journal, messages, queue, tool_runs, turns

from indelible.clock import SystemClock
from indelible.content import (
    Finish,
    Part,
    ReasoningDelta,
    Text,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolStarted,
    decode_blocks,
)
from indelible.content.assemble import OUTCOME_UNKNOWN
from indelible.errors import LeaseLost, Shutdown
from indelible.ids import new_id
from indelible.machine.commands import (
    Acquire,
    AnnounceRetry,
    AwaitAction,
    Command,
    CommitStep,
    Create,
    Delete,
    Edit,
    Fail,
    FinishInterruption,
    FinishTurn,
    Interrupt,
    Regenerate,
    Release,
    Retry,
    Send,
    SendInterrupt,
    SendSteer,
    StartAttempt,
    ToolResults,
    WorkerCommand,
)
from indelible.store.commands.begin import Reserve
from indelible.store.journal.append import RunKey, RunSettled, RunStarted
from indelible.store.journal.writer import Journal, JournalWriter
from indelible.store.outcome import Outcome
from indelible.store.payloads import NewChat, Payload, RetryScheduled, StepResult, ToolResultsInput, UserInput
from indelible.store.queries.open_turn import AttemptName
from indelible.store.store import Store
from indelible.testing.invariants import StoredChat, find_faults, load_chat
from indelible.testing.store import LAST_WORDS, Crashed, CrashingStore, take_over

Side = Literal["before", "after"]
NEVER_S = 3600.0
"""Who has died is said, and nobody is taken for dead because the machine stalled."""

RETRYING = {"attempt": 1, "delay_ms": 1000, "kind": "overloaded"}


class Process:
    """A server and its worker: it remembers what it sent and what it was told is kept, and dies when its store does."""

    def __init__(self, engine: AsyncEngine, store: CrashingStore, user_id: str) -> None:
        self.engine = engine
        self.store = store
        self.journal = Journal(store, clock=SystemClock(), on_committed=lambda rows: None, interval_s=0)
        self.chat_id = new_id("chat")
        self.user_id = user_id
        self.worker_id = new_id("worker")
        self.sent: list[str] = []
        self.kept: list[str] = []
        self.said: list[str] = []
        self.heard: list[str] = []
        self.epoch = 0
        self.turn_id = ""
        self.attempt: AttemptName | None = None
        self.writer: JournalWriter | None = None
        self.turns_with_tools: set[str] = set()
        self.is_deleted = False

    async def do(
        self, command: Command, payload: Payload[Any] | None = None, *, reserve: Reserve | None = None
    ) -> Outcome:
        given: Any = payload
        outcome = await self.store.execute(self.chat_id, command, given, reserve=reserve)
        self.epoch = outcome.epoch
        self.turn_id = outcome.turn_id or self.turn_id
        return outcome

    async def ask(self, command: Command, text: str, *, reserve: Reserve | None = None) -> Outcome:
        self.sent.append(text)
        given: Payload[Any] = UserInput(author_id=self.user_id, blocks=[Text(text)])
        if isinstance(command, Create):
            given = NewChat(owner_id=self.user_id, blocks=[Text(text)])
        outcome = await self.do(command, given, reserve=reserve)
        self.kept.append(text)
        return outcome

    async def ask_at_once(self, command: Command, text: str) -> None:
        """The chat is this process's own with the message, and its attempt is open."""
        self.worker_id = new_id("worker")
        await Store(get_database(self.engine)).beat(self.worker_id)
        begun = (await self.ask(command, text, reserve=KeptPlace(worker_id=self.worker_id))).begun
        assert begun is not None
        assert begun.attempt is not None
        self.epoch, self.turn_id, self.attempt = begun.epoch, begun.turn_id, begun.attempt
        self.writer = self.journal.open(self.attempt.chat_id, self.attempt.id, self.epoch)

    async def acquire(self) -> None:
        """Take the chat as a worker that has just started."""
        self.worker_id = new_id("worker")
        await Store(get_database(self.engine)).beat(self.worker_id)
        await self.do(Acquire(worker_id=self.worker_id))

    async def start(self) -> None:
        self.attempt = (await self.do(StartAttempt(epoch=self.epoch, turn_id=self.turn_id))).attempt
        assert self.attempt is not None
        self.writer = self.journal.open(self.attempt.chat_id, self.attempt.id, self.epoch)

    async def adopt(self) -> None:
        """Take the chat from a dead worker whose stream was complete, and go on with its attempt."""
        n = self.speaker.n
        await self.die()
        await self.acquire()
        assert self.attempt is not None
        self.writer = self.journal.open(self.attempt.chat_id, self.attempt.id, self.epoch, n=n)

    async def die(self) -> None:
        """Another worker than the one that died goes on."""
        await Store(get_database(self.engine)).retire(self.worker_id)

    @property
    def speaker(self) -> JournalWriter:
        assert self.writer is not None
        return self.writer

    async def say(self, text: str, *more: Part) -> None:
        """Told once it is committed."""
        self.publish(text, *more)
        await self.journal.drain(self.speaker)
        self.heard.append(text)

    def publish(self, text: str, *more: Part) -> None:
        self.said.append(text)
        for part in (TextDelta("1", text), *more):
            self.speaker.publish(part)

    async def run_tool(self, index: int, output: str, *, already_started: bool = False) -> None:
        assert self.attempt is not None
        self.turns_with_tools.add(self.turn_id)
        key, call_id = RunKey(self.turn_id, self.attempt.step, index), f"call_{index}"
        if not already_started:
            begun = RunStarted(key, self.attempt.id, call_id, "look", "{}", f"{self.turn_id}-{index}")
            await self.speaker.record(begun, ToolStarted(call_id, "look"))
        if output:
            result = ToolResult(call_id, "look", output)
            await self.speaker.record(RunSettled(key, result), result)

    async def end(self, kind: type[WorkerCommand], given: dict[str, Any] | None = None, **fields: Any) -> Outcome:
        """End the attempt with what was published and is in no row yet (R4)."""
        rest = await self.speaker.close()
        named = {"epoch": self.epoch, "turn_id": self.turn_id, "attempt_id": self.step_id, **fields}
        command = kind(**{name: named[name] for name in kind.__struct_fields__ if name in named})
        outcome = await self.do(command, make_payload(command, pending=rest, **(given or {})))
        self.heard = list(self.said)
        return outcome

    @property
    def step_id(self) -> str:
        assert self.attempt is not None
        return self.attempt.id

    async def begin(self) -> None:
        """A chat with a question, and the first words of its answer."""
        await self.ask(Create(with_message=True), "question")
        await self.acquire()
        await self.start()
        await self.say("one ")


# --- what a process does ---


async def commit_and_finish(process: Process) -> None:
    await process.begin()
    await process.ask(SendSteer(), "steer")
    await process.say("two ", Finish())
    await process.end(CommitStep)
    await process.start()
    await process.say("three ")
    await process.ask(Send(), "next")
    process.publish("four ", Finish())
    await process.end(FinishTurn)
    await process.start()
    await process.say("five ", Finish())
    await process.end(FinishTurn)


async def begin_at_once(process: Process) -> None:
    await process.ask_at_once(Create(with_message=True), "question")
    await process.say("one ")
    process.publish("two ", Finish())
    await process.end(FinishTurn)
    await process.ask_at_once(Send(), "next")
    await process.say("three ", Finish())
    reply, *_ = (await process.end(FinishTurn)).messages
    assert reply.id is not None
    await process.do(Regenerate(message_id=reply.id))
    await process.acquire()
    await process.start()


async def stop_by_a_live_holder(process: Process) -> None:
    await process.begin()
    await process.do(Interrupt())
    await process.say("two ")
    await process.end(FinishInterruption)


async def interrupt_with_a_message_by_a_live_holder(process: Process) -> None:
    await process.begin()
    await process.ask(Send(), "queued")
    await process.ask(SendInterrupt(), "no, this")
    await process.say("two ")
    process.publish("three ")
    await process.end(FinishInterruption)
    await process.start()


async def stop_with_a_dead_holder(process: Process) -> None:
    await process.begin()
    await process.ask(Send(), "queued")
    await process.die()
    await process.do(Interrupt())


async def edit_while_running(process: Process) -> None:
    await process.begin()
    await process.ask(Send(), "queued")
    path = await load_path(Store(get_database(process.engine)), process.chat_id)
    assert path[0].id is not None
    await process.ask(Edit(message_id=path[0].id), "edited")
    await process.acquire()
    await process.start()
    await process.say("two ")


async def regenerate_while_running(process: Process) -> None:
    await process.begin()
    await process.ask(Send(), "next")
    process.publish("two ", Finish())
    reply, _ = (await process.end(FinishTurn)).messages
    await process.start()
    await process.say("three ")
    assert reply.id is not None
    await process.do(Regenerate(message_id=reply.id))
    await process.acquire()
    await process.start()


async def delete_while_running(process: Process) -> None:
    await process.begin()
    await process.say("two ", ToolCall("call_0", "look", "{}"), Finish("tool_calls"))
    await process.run_tool(0, "")
    await process.ask(Send(), "queued")
    process.is_deleted = True
    await process.do(Delete())


async def fail_and_retry(process: Process) -> None:
    await process.begin()
    await process.ask(Send(), "queued")
    process.publish("two ")
    await process.end(Fail, {"error": {"kind": "auth", "message": "No key."}})
    await process.do(Retry())
    await process.acquire()
    await process.start()
    process.publish("three ", Finish())
    await process.end(FinishTurn)


async def announce_retries(process: Process) -> None:
    await process.ask(Create(with_message=True), "question")
    await process.acquire()
    await process.start()
    await process.say("", ReasoningDelta("2", "Hm."))
    process.publish("", ReasoningDelta("2", "Well."))
    await process.end(AnnounceRetry, {"retry": RETRYING})
    await process.start()
    await process.say("one ")
    await process.end(CommitStep, failed=True)
    await process.do(AnnounceRetry(epoch=process.epoch, turn_id=process.turn_id), RetryScheduled(retry=RETRYING))
    await process.start()
    await process.say("two ", Finish())
    await process.end(FinishTurn)


async def take_over_and_go_on(process: Process) -> None:
    await process.begin()
    await process.die()
    await process.acquire()
    await process.start()
    await process.say("two ", Finish())
    await process.adopt()
    await process.say("three ")
    await process.end(FinishTurn)


async def hand_over(process: Process) -> None:
    await process.begin()
    process.publish("two ")
    await process.end(Release)
    await process.acquire()
    await process.start()
    await process.say("three ", Finish())
    await process.do(Release(epoch=process.epoch))  # its reply is whole, so its attempt stays open
    await process.adopt()
    process.publish("four ")
    await process.end(FinishTurn)


async def run_tools(process: Process) -> None:
    await process.begin()
    await process.say("two ", ToolCall("call_0", "look", "{}"), ToolCall("call_1", "look", "{}"), Finish("tool_calls"))
    await process.run_tool(0, "first")
    await process.run_tool(1, "second")
    await process.end(CommitStep)
    await process.start()
    await process.say("three ", Finish())
    await process.end(FinishTurn)


async def adopt_with_tools_underway(process: Process) -> None:
    await process.begin()
    calls = [ToolCall(f"call_{index}", "look", "{}") for index in range(3)]
    await process.say("two ", *calls, Finish("tool_calls"))
    await process.run_tool(0, "first")
    await process.run_tool(1, "")
    await process.adopt()
    await process.run_tool(1, OUTCOME_UNKNOWN, already_started=True)
    await process.run_tool(2, "third")
    await process.end(CommitStep)


async def await_action(process: Process) -> None:
    await process.begin()
    await process.say("two ", ToolCall("call_0", "ask", "{}"), Finish("tool_calls"))
    await process.end(AwaitAction)
    await process.ask(Send(), "queued")
    results = [ToolResult("call_0", "ask", "yes")]
    await process.do(ToolResults(call_ids=("call_0",)), ToolResultsInput(results=results))
    await process.acquire()
    await process.start()
    process.publish("three ", Finish())
    await process.end(FinishTurn)


Scenario = Callable[[Process], Awaitable[None]]
SCENARIOS: list[Scenario] = [
    commit_and_finish,
    begin_at_once,
    stop_by_a_live_holder,
    interrupt_with_a_message_by_a_live_holder,
    stop_with_a_dead_holder,
    edit_while_running,
    regenerate_while_running,
    delete_while_running,
    fail_and_retry,
    announce_retries,
    take_over_and_go_on,
    hand_over,
    run_tools,
    adopt_with_tools_underway,
    await_action,
]


# --- the sweep ---


@pytest.mark.parametrize(
    ("migrated", "when"), [("sqlite", "before"), ("sqlite", "after"), ("postgresql", "after")], indirect=["migrated"]
)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_whoever_dies_at_whatever_call_loses_nothing(scenario: Scenario, when: Side, engine: AsyncEngine) -> None:
    user_id = await Store(get_database(engine)).ensure_user("Ada")
    whole = await run(scenario, engine, user_id, at=None)
    assert (whole.kept, whole.heard) == (whole.sent, whole.said)
    await check_kept(whole)
    points = list(range(1 if when == "after" else 2, len(whole.store.calls) + 1))  # before the first there is no chat
    if not is_sqlite(engine) and not is_thorough():
        points = sorted({kind: at for at, kind in enumerate(whole.store.calls, 1)}.values())
    for at in points:
        process = await run(scenario, engine, user_id, at=at, when=when)
        assert process.store.is_dead
        assert process.store.calls == whole.store.calls[:at]
        await check_kept(process, when=when)


async def test_whoever_dies_before_the_first_call_leaves_nothing(engine: AsyncEngine) -> None:
    user_id = await Store(get_database(engine)).ensure_user("Ada")
    process = await run(commit_and_finish, engine, user_id, at=1, when="before")
    assert await load_chat(get_database(engine), process.chat_id) is None


async def test_to_die_before_a_call_is_to_die_after_the_one_before_it(engine: AsyncEngine) -> None:
    user_id = await Store(get_database(engine)).ensure_user("Ada")
    count = len((await run(hand_over, engine, user_id, at=None)).store.calls)
    for at in range(2, count + 1):
        before = await run(hand_over, engine, user_id, at=at, when="before")
        after = await run(hand_over, engine, user_id, at=at - 1, when="after")
        assert await describe(before) == await describe(after), before.store.calls
        if at == count:
            await bring_to_rest(before, typed=before.kept, said=before.heard)


async def test_a_call_that_died_with_its_store_is_reported_as_unknown_and_never_as_not_run(engine: AsyncEngine) -> None:
    """Its partner settled before: that answer stays."""

    async def start_two_tools(process: Process) -> None:
        await process.begin()
        await process.say("two ", ToolCall("call_0", "look", "{}"), ToolCall("call_1", "look", "{}"))
        await process.run_tool(0, "first")
        await process.run_tool(1, "never told")

    user_id = await Store(get_database(engine)).ensure_user("Ada")
    process = await run(start_two_tools, engine, user_id, at=6, kind="append", when="before")
    rested = await bring_to_rest(process, typed=process.kept, said=process.heard)
    assert read_answers(rested) == {"call_0": "first", "call_1": OUTCOME_UNKNOWN}


async def test_a_worker_that_wakes_up_after_its_attempt_was_adopted_writes_nothing(engine: AsyncEngine) -> None:
    async def speak(process: Process) -> None:
        await process.begin()
        await process.say("two ", ToolCall("call_0", "look", "{}"), Finish("tool_calls"))
        await process.die()
        second_id = new_id("worker")
        await Store(get_database(engine)).beat(second_id)
        await Store(get_database(engine)).execute(process.chat_id, Acquire(worker_id=second_id))
        adopted = await load_chat(get_database(engine), process.chat_id)
        for command in (CommitStep, FinishTurn, AwaitAction, Fail):
            late = command(epoch=process.epoch, turn_id=process.turn_id, attempt_id=process.step_id)
            with pytest.raises(LeaseLost):
                await process.do(late, StepResult(pending=[TextDelta("1", "late ")]))
        with pytest.raises(LeaseLost):
            await process.run_tool(0, "late")
        assert await load_chat(get_database(engine), process.chat_id) == adopted

    process = await run(speak, engine, await Store(get_database(engine)).ensure_user("Ada"), at=None)
    rested = await bring_to_rest(process, typed=process.kept, said=process.heard)
    assert read_answers(rested) == {"call_0": "done"}


async def test_a_store_dies_at_the_call_of_a_kind_and_stays_dead(engine: AsyncEngine) -> None:
    user_id = await Store(get_database(engine)).ensure_user("Ada")
    process = await run(commit_and_finish, engine, user_id, at=2, kind="append")
    assert process.store.calls.count("append") == 2
    assert process.store.calls[-1] == "append"
    with pytest.raises(Crashed):
        await process.store.append([])
    rested = await bring_to_rest(process, typed=process.sent, said=process.said)
    assert "one two " in [message.text for message in rested.path]


async def run(
    scenario: Scenario,
    engine: AsyncEngine,
    user_id: str,
    *,
    at: int | None,
    when: Side = "after",
    kind: str | None = None,
) -> Process:
    lasting = Store(get_database(engine), lease_timeout_s=NEVER_S)
    process = Process(engine, CrashingStore(lasting, at=at, when=when, kind=kind), user_id)
    try:
        async with asyncio.TaskGroup() as group:
            flushing = group.create_task(process.journal.run())
            await scenario(process)
            flushing.cancel()
    except* (Crashed, Shutdown):  # whoever waits for a flush hears that there will be none
        assert process.store.is_dead
    return process


async def describe(process: Process) -> list[Any]:
    """What there is of a chat, without names and times."""
    stored = await load_chat(get_database(process.engine), process.chat_id)
    assert stored is not None
    return [
        (stored.chat.status, stored.chat.epoch, stored.chat.seq, stored.chat.holder is None),
        [(row.number, row.kind, row.outcome, row.takeovers) for row in stored.turns],
        [(row.step, row.number, row.epoch, row.outcome, row.last_n) for row in stored.attempts],
        [(row.role, row.blocks, row.partial, row.reason) for row in stored.messages],
        [(row.if_busy, row.content) for row in stored.queue],
        [row.kind for row in stored.events],
        [(row.n, row.parts) for row in stored.journal],
    ]


# --- afterwards ---


async def check_kept(process: Process, *, when: Side = "after") -> None:
    """Whatever was sent was written, whether or not that was told; but for the last, if it died before that."""
    if when == "before" and await load_chat(get_database(process.engine), process.chat_id) is not None:
        await bring_to_rest(process, typed=process.kept, said=process.heard)
    elif process.is_deleted:
        assert await load_chat(get_database(process.engine), process.chat_id) is None
        await expect_nothing_left(process)
    else:
        await bring_to_rest(process, typed=process.sent, said=process.said)


async def bring_to_rest(process: Process, *, typed: list[str], said: list[str]) -> StoredChat:
    """A second worker takes over; what it finds and what it leaves must be whole, with just this in it."""
    engine, store, second_id = process.engine, Store(get_database(process.engine)), new_id("worker")
    found = await load_chat(get_database(engine), process.chat_id)
    assert found is not None
    assert find_faults(found) == []
    await store.retire_all()
    await store.beat(second_id)
    rested = await take_over(store, store.database, process.chat_id, second_id)
    if rested is not None and rested.chat.status == "error":
        await store.execute(process.chat_id, Retry())
        rested = await take_over(store, store.database, process.chat_id, second_id)
    assert rested is not None
    assert (rested.chat.status, rested.queue) == ("idle", [])
    assert find_faults(rested) == []
    assert Counter(rested.typed) == Counter(typed)
    replies = [decode_blocks(row.blocks) for row in rested.messages if row.role == "assistant"]
    text = " ".join(block.text for blocks in replies for block in blocks if isinstance(block, Text))
    assert Counter(text.replace(LAST_WORDS, "").split()) == Counter("".join(said).split())
    await check_ledger(process, rested)
    return rested


async def check_ledger(process: Process, rested: StoredChat) -> None:
    """It and the journal agree, and what was started and never settled is told as unknown."""
    store, answers = Store(get_database(process.engine)), read_answers(rested)
    parts = [part for attempt in rested.attempts for part in rested.parts_of(attempt.id)]
    told = {part.call_id: part for part in parts if isinstance(part, ToolResult)}
    runs = [run for turn_id in process.turns_with_tools for run in await load_ledger(store, rested.chat.id, turn_id)]
    assert [run.call_id for run in runs] == [part.call_id for part in parts if isinstance(part, ToolStarted)]
    for run in runs:
        assert run.result is None or run.result == told[run.call_id]
        assert answers[run.call_id] == (OUTCOME_UNKNOWN if run.result is None else run.result.output)


def read_answers(stored: StoredChat) -> dict[str, Any]:
    blocks = [block for row in stored.messages for block in decode_blocks(row.blocks)]
    answers = [(block.call_id, block.output) for block in blocks if isinstance(block, ToolResult)]
    assert len(dict(answers)) == len(answers), "a call is answered once"
    return dict(answers)


async def expect_nothing_left(process: Process) -> None:
    async with begin_read(process.engine) as connection:
        for table in (turns, attempts, messages, queue, events):
            left = select(func.count()).select_from(table).where(table.c.chat_id == process.chat_id)
            assert (await connection.execute(left)).scalar_one() == 0, table.name
        for table in (journal, tool_runs):
            left = select(func.count()).select_from(table).where(table.c.attempt_id == process.step_id)
            assert (await connection.execute(left)).scalar_one() == 0, table.name
