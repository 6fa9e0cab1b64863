"""The ledger on both databases: no tool runs twice in silence (P5)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Self

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_write, get_database, transact
from tests.support.stored import load_journal, load_runs
from tests.support.tables import attempts, users

from indelible.content import Text, ToolCall, ToolResult, ToolStarted
from indelible.errors import LeaseLost
from indelible.machine.commands import Acquire, Create, StartAttempt
from indelible.store.journal.append import RunKey, RunSettled, RunStarted
from indelible.store.journal.writer import Journal, JournalWriter
from indelible.store.payloads import NewChat
from indelible.store.queries.chat_view import load_rows
from indelible.store.queries.open_turn import AttemptName
from indelible.store.store import Store
from indelible.testing import ManualClock

NOW = datetime(2026, 11, 15, tzinfo=UTC)
CALL = ToolCall(id="c1", name="pay", arguments='{"to": "ada"}')
RESULT = ToolResult(call_id="c1", name="pay", output="paid")


@pytest.fixture
async def attempt(engine: AsyncEngine) -> AttemptName:
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id="user_1", name="ada", created_at=NOW))
    store = Store(get_database(engine))
    created = await store.execute("chat_1", Create(with_message=True), NewChat(owner_id="user_1", blocks=[Text("hi")]))
    held = await store.execute("chat_1", Acquire(worker_id="worker_1"))
    assert created.turn_id is not None
    started = await store.execute("chat_1", StartAttempt(epoch=held.epoch, turn_id=created.turn_id))
    assert started.attempt is not None
    return started.attempt


class Bench:
    def __init__(self, engine: AsyncEngine, attempt: AttemptName) -> None:
        self.told: list[int] = []
        clock = ManualClock(skip_sleeps=True)
        self.journal = Journal(
            Store(get_database(engine)),
            clock=clock,
            on_committed=lambda rows: self.told.extend(row.n for row in rows),
            interval_s=0,
        )
        self.writer: JournalWriter = self.journal.open(attempt.chat_id, attempt.id, attempt.epoch)
        self.key = RunKey(attempt.turn_id, attempt.step, 0)
        self.started = RunStarted(self.key, attempt.id, CALL.id, CALL.name, CALL.arguments, "turn/1/0")

    async def __aenter__(self) -> Self:
        self._flusher = asyncio.create_task(self.journal.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._flusher.cancel()
        await asyncio.wait([self._flusher])


async def test_a_call_is_in_the_ledger_and_in_the_journal_when_record_returns(
    engine: AsyncEngine, attempt: AttemptName
) -> None:
    async with Bench(engine, attempt) as bench:
        bench.writer.publish(CALL)
        await bench.writer.record(bench.started, ToolStarted("c1", "pay"))
        (run,) = await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)
        assert (run.key, run.name, run.arguments, run.result) == (bench.key, "pay", CALL.arguments, None)
        await bench.writer.record(RunSettled(bench.key, RESULT), RESULT)
        (run,) = await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)
        assert run.result == RESULT
    said = [part for row in await transact(engine, load_rows, attempt.chat_id, attempt.id) for part in row.parts]
    assert said == [CALL, ToolStarted("c1", "pay"), RESULT]


async def test_what_is_another_chats_is_not_read_by_its_name_alone(engine: AsyncEngine, attempt: AttemptName) -> None:
    store = Store(get_database(engine))
    await store.execute("chat_2", Create(), NewChat(owner_id="user_1"))
    async with Bench(engine, attempt) as bench:
        await bench.writer.record(bench.started, ToolStarted("c1", "pay"))
    assert await load_journal(store, "chat_2", attempt.id) == []
    assert len(await load_journal(store, "chat_1", attempt.id)) == 1


async def test_whoever_lost_the_chat_can_neither_start_nor_settle(engine: AsyncEngine, attempt: AttemptName) -> None:
    async with Bench(engine, attempt) as bench:
        await bench.writer.record(bench.started, ToolStarted("c1", "pay"))
        async with begin_write(engine) as connection:
            await connection.execute(update(attempts).values(epoch=attempt.epoch + 1))
        with pytest.raises(LeaseLost):
            await bench.writer.record(RunSettled(bench.key, RESULT), RESULT)
        (run,) = await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)
        assert run.result is None


async def test_a_change_whose_answer_was_lost_is_recorded_once(engine: AsyncEngine, attempt: AttemptName) -> None:
    store = Store(get_database(engine))
    bench = Bench(engine, attempt)
    bench.writer.publish(ToolStarted("c1", "pay"))
    bench.writer._changes.append(bench.started)
    row = bench.writer.prepare_row()
    assert row is not None
    for _ in range(2):
        assert (await store.append([row])).written == {attempt.id}
    assert len(await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)) == 1


async def test_the_first_result_stands(engine: AsyncEngine, attempt: AttemptName) -> None:
    async with Bench(engine, attempt) as bench:
        await bench.writer.record(bench.started, ToolStarted("c1", "pay"))
        await bench.writer.record(RunSettled(bench.key, RESULT), RESULT)
        other = ToolResult(call_id="c1", name="pay", output="paid again")
        await bench.writer.record(RunSettled(bench.key, other), other)
    (run,) = await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)
    assert run.result == RESULT
