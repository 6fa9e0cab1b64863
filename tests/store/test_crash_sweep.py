"""The crash sweep: a process dies before and after each of its calls of the store, and nothing is lost.

A scenario is what one process does, written as plain calls. It is run once to count them; then, for every
call and on each side of it, it is run again on a new chat with a store that dies there. A second worker, which
knows only the database, takes the chat over and brings it to rest. Then the chat must be whole, and everything
that the dead process was told is kept must be in history exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from sqlalchemy import delete, insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.content import Finish, Part, Text, TextDelta, ToolCall, ToolResult, ToolStarted, decode_blocks, encode
from indelible.fold import OUTCOME_UNKNOWN
from indelible.ids import new_id
from indelible.machine.commands import (
    Acquire,
    AwaitAction,
    Command,
    CommitStep,
    Create,
    Edit,
    FinishInterruption,
    FinishTurn,
    Interrupt,
    Release,
    Send,
    SendInterrupt,
    SendSteer,
    StartAttempt,
    ToolResults,
)
from indelible.store.append import JournalRow
from indelible.store.engine import begin_write
from indelible.store.port import AttemptName, Outcome, Words
from indelible.store.sql import SqlStore
from indelible.store.tables import users, workers
from indelible.testing.store import LAST_WORDS, Crashed, CrashingStore, take_over
from indelible.testing.wholeness import StoredChat, find_faults, load_chat

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
Side = Literal["before", "after"]


class Process:
    """A server and its worker: it remembers what it was told is kept, and dies when its store does."""

    def __init__(self, engine: AsyncEngine, store: CrashingStore) -> None:
        self.engine = engine
        self.store = store
        self.chat_id = new_id("chat")
        self.user_id = new_id("user")
        self.worker_id = new_id("worker")
        self.typed: list[str] = []
        self.unsure: list[str] = []
        self.said: list[str] = []
        self.epoch = 0
        self.turn_id = ""
        self.attempt: AttemptName | None = None
        self.n = 0

    async def do(self, command: Command, words: Words | None = None) -> Outcome:
        outcome = await self.store.execute(self.chat_id, command, words or Words())
        self.epoch = outcome.epoch
        self.turn_id = outcome.turn_id or self.turn_id
        return outcome

    async def type(self, command: Command, text: str) -> Outcome:
        self.unsure.append(text)
        words = Words(owner_id=self.user_id, author_id=self.user_id, blocks=[Text(text)])
        outcome = await self.do(command, words)
        self.typed.append(text)
        return outcome

    async def acquire(self) -> None:
        await self.do(Acquire(worker_id=self.worker_id))

    async def start(self) -> None:
        self.attempt = (await self.do(StartAttempt(epoch=self.epoch, turn_id=self.turn_id))).attempt
        self.n = 0

    async def say(self, text: str, *more: Part) -> None:
        assert self.attempt is not None
        self.n += 1
        parts = encode([TextDelta("1", text), *more])
        appended = await self.store.append([JournalRow(self.attempt.id, self.epoch, self.n, parts)])
        assert appended.written == {self.attempt.id}
        self.said.append(text)

    @property
    def step(self) -> dict[str, Any]:
        """What a worker's command has to name."""
        assert self.attempt is not None
        return {"epoch": self.epoch, "turn_id": self.turn_id, "attempt_id": self.attempt.id}

    async def lose_worker(self) -> None:
        async with begin_write(self.engine) as connection:
            silent = update(workers).where(workers.c.id == self.worker_id)
            await connection.execute(silent.values(heartbeat_at=LONG_AGO))

    async def begin(self) -> None:
        """A chat with a question, and the first words of its answer."""
        await self.type(Create(with_message=True), "question")
        await self.acquire()
        await self.start()
        await self.say("one ")


# --- what a process does ---


async def commit_and_finish(process: Process) -> None:
    await process.begin()
    await process.type(SendSteer(), "steer")
    await process.say("two ", Finish())
    await process.do(CommitStep(**process.step))
    await process.start()
    await process.say("three ")
    await process.type(Send(), "next")
    await process.do(FinishTurn(**process.step), Words(rest=[Finish()]))
    await process.start()
    await process.say("four ", Finish())
    await process.do(FinishTurn(**process.step))


async def stop_by_a_live_holder(process: Process) -> None:
    await process.begin()
    await process.do(Interrupt())
    await process.say("two ")
    await process.do(FinishInterruption(**process.step))
    await process.type(Send(), "again")
    await process.acquire()
    await process.start()
    await process.say("three ")
    await process.type(SendInterrupt(), "no, this")
    await process.do(FinishInterruption(**process.step))


async def stop_with_a_dead_holder(process: Process) -> None:
    await process.begin()
    await process.type(Send(), "queued")
    await process.lose_worker()
    await process.do(Interrupt())


async def edit_while_running(process: Process) -> None:
    await process.begin()
    await process.type(Send(), "queued")
    path = await process.store.path(process.chat_id)
    assert path[0].id is not None
    await process.type(Edit(message_id=path[0].id), "edited")
    await process.acquire()
    await process.start()
    await process.say("two ")


async def take_over_and_go_on(process: Process) -> None:
    await process.begin()
    await process.lose_worker()
    process.worker_id = await add_worker(process.engine)
    await process.acquire()
    await process.start()
    await process.say("two ", Finish())
    await process.lose_worker()
    process.worker_id = await add_worker(process.engine)
    await process.acquire()  # adopts
    await process.say("three ")
    await process.do(Release(epoch=process.epoch))


async def run_tools(process: Process) -> None:
    await process.begin()
    await process.say("two ", ToolCall("call_1", "look", "{}"), ToolCall("call_2", "look", "{}"), Finish("tool_calls"))
    await process.say("", ToolStarted("call_1", "look"))
    await process.say("", ToolResult("call_1", "look", "first"))
    await process.say("", ToolStarted("call_2", "look"))
    await process.do(CommitStep(**process.step), Words(rest=[ToolResult("call_2", "look", "second")]))
    await process.start()
    await process.say("three ", Finish())
    await process.do(FinishTurn(**process.step))


async def await_action(process: Process) -> None:
    await process.begin()
    await process.say("two ", ToolCall("call_1", "ask", "{}"), Finish("tool_calls"))
    await process.do(AwaitAction(**process.step))
    await process.type(Send(), "queued")
    results = [ToolResult("call_1", "ask", "yes")]
    await process.do(ToolResults(call_ids=("call_1",)), Words(results=list(results)))
    await process.acquire()
    await process.start()
    await process.say("three ")
    await process.do(FinishTurn(**process.step), Words(rest=[Finish()]))


Scenario = Callable[[Process], Awaitable[None]]
SCENARIOS: list[Scenario] = [
    commit_and_finish,
    stop_by_a_live_holder,
    stop_with_a_dead_holder,
    edit_while_running,
    take_over_and_go_on,
    run_tools,
    await_action,
]


# --- the sweep ---


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_whoever_dies_at_whatever_call_loses_nothing(scenario: Scenario, engine: AsyncEngine) -> None:
    whole = await run(scenario, engine, at=None)
    await bring_to_rest(whole)
    for at in range(1, len(whole.store.calls) + 1):
        for side in ("before", "after"):
            process = await run(scenario, engine, at=at, when=side)
            assert process.store.is_dead
            assert process.store.calls == whole.store.calls[:at]
            if (at, side) == (1, "before"):
                assert await load_chat(engine, process.chat_id) is None
            else:
                await bring_to_rest(process)


async def test_a_call_that_died_with_its_store_is_told_as_unknown_and_never_as_not_run(engine: AsyncEngine) -> None:
    """Its partner settled before: that answer stays."""

    async def start_two_tools(process: Process) -> None:
        await process.begin()
        await process.say("two ", ToolCall("call_1", "look", "{}"), ToolCall("call_2", "look", "{}"))
        await process.say("", ToolStarted("call_1", "look"), ToolResult("call_1", "look", "first"))
        await process.say("", ToolStarted("call_2", "look"))
        await process.say("never")

    process = await run(start_two_tools, engine, at=8)
    rested = await bring_to_rest(process)
    answers = {
        block.call_id: block.output
        for message in rested.path
        for block in message.blocks
        if isinstance(block, ToolResult)
    }
    assert answers == {"call_1": "first", "call_2": OUTCOME_UNKNOWN}


async def test_a_store_dies_at_the_call_of_a_kind_and_stays_dead(engine: AsyncEngine) -> None:
    process = await run(commit_and_finish, engine, at=2, when="after", kind="append")
    assert process.store.calls.count("append") == 2
    assert process.store.calls[-1] == "append"
    with pytest.raises(Crashed):
        await process.store.path(process.chat_id)
    rested = await bring_to_rest(process)
    assert "one two " in [message.text for message in rested.path]


async def run(
    scenario: Scenario, engine: AsyncEngine, *, at: int | None, when: Side = "before", kind: str | None = None
) -> Process:
    process = Process(engine, CrashingStore(SqlStore(engine), at=at, when=when, kind=kind))
    async with begin_write(engine) as connection:
        user = insert(users).values(id=process.user_id, name=process.user_id, created_at=LONG_AGO)
        await connection.execute(user)
    process.worker_id = await add_worker(engine)
    try:
        await scenario(process)
    except Crashed:
        assert process.store.is_dead
    return process


async def add_worker(engine: AsyncEngine) -> str:
    id_ = new_id("worker")
    async with begin_write(engine) as connection:
        now = datetime.now(UTC)
        await connection.execute(insert(workers).values(id=id_, started_at=now, heartbeat_at=now))
    return id_


async def bring_to_rest(process: Process) -> StoredChat:
    """A second worker takes over; what it finds and what it leaves must be whole."""
    found = await load_chat(process.engine, process.chat_id)
    assert found is not None
    assert find_faults(found) == []
    async with begin_write(process.engine) as connection:
        await connection.execute(delete(workers))
    second_id = await add_worker(process.engine)
    rested = await take_over(SqlStore(process.engine), process.engine, process.chat_id, second_id)
    assert rested is not None
    assert (rested.chat.status, rested.queue) == ("waiting", [])
    assert find_faults(rested) == []
    check_kept(process, rested)
    return rested


def check_kept(process: Process, rested: StoredChat) -> None:
    """A message whose answer was lost may be there or not, but never twice."""
    typed, told = Counter(rested.typed), Counter(process.typed)
    assert told <= typed <= Counter(process.unsure)
    replies = [decode_blocks(row.blocks) for row in rested.messages if row.role == "assistant"]
    text = "".join(block.text for blocks in replies for block in blocks if isinstance(block, Text))
    words = Counter(text.replace(LAST_WORDS, "").split())
    assert set(words.values()) <= {1}
    assert {word.strip() for word in process.said if word} <= set(words)
