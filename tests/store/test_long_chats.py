"""A turn of a long chat reads its end and no more, also on a server that knows nothing of its tables yet.

PostgreSQL plans by its statistics, and a new database has none. A connection even keeps the plans with which it checks
foreign keys, and made them when there was hardly a row. What counts is how many rows were looked at, not the time.

Where two indexes begin with the chat, the wrong one reads all of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Table, insert, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import SAID_AT, Driver, settle_in
from tests.support.engine import begin_read, begin_write, flush_statistics, get_database, open_engine
from tests.support.stored import load_ledger
from tests.support.tables import attempts, chats, messages, tool_runs, turns

from indelible.content import Finish, TextDelta, ToolCall, ToolResult, encode
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.journal.append import JournalRow, RunKey, RunSettled, RunStarted
from indelible.store.store import Store

LENGTH = 600
MOST_READ = LENGTH // 2
"""The chunk of the path that every command climbs, the message itself for each of the rows that name it, and entries of
rows that changed. The server removes those when it likes, so the bound is far from what is usual (under 100), and far
from a command that reads the whole chat."""
TURNS_TO_BEGIN = 6
"""PostgreSQL plans a statement anew five times, and then keeps a plan."""
LONG = (messages, turns, attempts, tool_runs)


@pytest.fixture
async def unknown(own_postgres: str) -> AsyncIterator[AsyncEngine]:
    """A server without statistics, on one connection."""
    engine = await open_engine(own_postgres, pool_size=1)
    async with begin_write(engine) as connection:
        for table in LONG:
            await connection.execute(text(f"ALTER TABLE {table.name} SET (autovacuum_enabled = off)"))
    await settle_in(engine)
    yield engine
    await engine.dispose()


async def lengthen(engine: AsyncEngine, chat: Driver) -> None:
    """Let a long conversation follow what was said: turns of one attempt that called one tool."""
    above: str = (await chat.row()).head_id
    rows: dict[Table, list[dict[str, Any]]] = {turns: [], attempts: [], messages: [], tool_runs: []}
    for n in range(LENGTH):
        own = {"chat_id": chat.id, "turn_id": f"turn_{n}", "attempt_id": f"attempt_{n}"}
        turn = {"chat_id": chat.id, "id": f"turn_{n}", "number": n + 100, "kind": "reply", "started_at": SAID_AT}
        attempt = {"chat_id": chat.id, "id": f"attempt_{n}", "turn_id": f"turn_{n}", "step": 1, "number": 1, "epoch": 1}
        ended = {"outcome": "complete", "ended_at": SAID_AT}
        said = {"id": f"message_{n}", "parent_id": above, "role": "user", "blocks": b"[]", "created_at": SAID_AT}
        call = {"step": 1, "call_index": 0, "call_id": "c", "name": "look", "arguments": b"{}", "state": "started"}
        rows[turns].append({**turn, **ended})
        rows[attempts].append({**attempt, **ended, "last_n": 0, "started_at": SAID_AT})
        rows[messages].append({**own, **said})
        rows[tool_runs].append({**own, **call, "idempotency_key": f"key_{n}", "started_at": SAID_AT})
        above = f"message_{n}"
    async with begin_write(engine) as connection:
        for table, given in rows.items():
            await connection.execute(insert(table), given)
        await connection.execute(update(chats).where(chats.c.id == chat.id).values(head_id=above))


async def count_read(engine: AsyncEngine) -> dict[str, int]:
    """How many rows of each table were looked at until now."""
    return await count(engine, "SELECT relname, seq_tup_read + idx_tup_fetch AS read FROM pg_stat_user_tables")


async def count_visited(engine: AsyncEngine) -> dict[str, int]:
    """How many entries of the indexes of each table were looked at until now, of deleted rows too."""
    visited = "SELECT relname, sum(idx_tup_read) AS read FROM pg_stat_user_indexes GROUP BY relname"
    return await count(engine, visited)


async def count(engine: AsyncEngine, question: str) -> dict[str, int]:
    await flush_statistics(engine)
    async with begin_read(engine) as connection:
        read = {row.relname: int(row.read) for row in await connection.execute(text(question))}
    return {table.name: read[table.name] for table in LONG}


async def begin(engine: AsyncEngine) -> Driver:
    """A chat with a few turns. Whatever the connection asks in one it has asked so often that it keeps the plans."""
    chat = await Driver(Store(get_database(engine)), engine).create()
    for _ in range(TURNS_TO_BEGIN):
        await take_a_turn(chat)
        await chat.do(c.Send(), "And then?")
    await take_a_turn(chat)
    return chat


async def take_a_turn(chat: Driver) -> None:
    """All that a worker does in a turn with one tool."""
    await chat.do(c.Acquire(worker_id="live"))
    await chat.store.work(chat.id)
    await chat.start()
    key = RunKey(chat.turn_id, 1, 0)
    started = RunStarted(key, chat.attempt_id, "c1", "look", "{}", f"{chat.turn_id}/1/0")
    settled = RunSettled(key, ToolResult(call_id="c1", name="look", output="rain"))
    call = ToolCall(id="c1", name="look", arguments="{}")
    for n, parts, change in ((1, [call], started), (2, [settled.result, Finish()], settled)):
        row = JournalRow(chat.id, chat.attempt_id, chat.epoch, n, encode(parts), (change,))
        assert (await chat.store.append([row])).written == {chat.attempt_id}
    assert len(await load_ledger(chat.store, chat.id, chat.turn_id)) == 1
    await chat.end(c.CommitStep)
    await chat.start()
    await chat.say(TextDelta("1", "Rain."), Finish())
    await chat.end(c.FinishTurn)


async def test_a_send_into_a_long_chat_reads_its_end_only_though_the_server_has_no_statistics(
    unknown: AsyncEngine,
) -> None:
    chat = await Driver(Store(get_database(unknown)), unknown).create()
    await chat.do(c.Interrupt())
    await lengthen(unknown, chat)
    before = (await count_read(unknown))["messages"]
    await chat.do(c.Send(), "And now?")
    assert await chat.state() == State.RUNNING
    assert 0 < (await count_read(unknown))["messages"] - before < MOST_READ


async def test_a_turn_in_a_long_chat_reads_no_other_turns_attempts_or_calls_of_it(unknown: AsyncEngine) -> None:
    chat = await begin(unknown)
    await lengthen(unknown, chat)
    await chat.do(c.Send(), "And now?")
    before = await count_visited(unknown)
    await take_a_turn(chat)
    visited = {name: number - before[name] for name, number in (await count_visited(unknown)).items()}
    assert await chat.state() == State.IDLE
    assert all(0 < visited[table.name] < MOST_READ for table in (turns, attempts, tool_runs)), visited


async def test_deleting_a_long_chat_visits_each_of_its_rows_a_few_times(unknown: AsyncEngine) -> None:
    """Not all of them for each of them: rows that are deleted stay in the indexes until the end."""
    for _ in range(TURNS_TO_BEGIN):
        await (await begin(unknown)).do(c.Delete())
    chat = await begin(unknown)
    await lengthen(unknown, chat)
    before = await count_visited(unknown)
    await chat.do(c.Delete())
    visited = {name: number - before[name] for name, number in (await count_visited(unknown)).items()}
    assert all(LENGTH <= number < LENGTH * LENGTH // 10 for number in visited.values()), visited


@pytest.mark.parametrize("exact", [False, True])
async def test_a_branch_at_the_end_of_a_long_chat_reads_that_end_only(unknown: AsyncEngine, exact: bool) -> None:
    chat = await Driver(Store(get_database(unknown)), unknown).create()
    await chat.do(c.Interrupt())
    for _ in range(TURNS_TO_BEGIN):
        await chat.do(c.SwitchBranch(message_id=(await chat.row()).head_id, exact=exact))
    await lengthen(unknown, chat)
    before = (await count_read(unknown))["messages"]
    await chat.do(c.SwitchBranch(message_id=f"message_{LENGTH - 3}", exact=exact))
    assert (await chat.row()).head_id == f"message_{LENGTH - (3 if exact else 1)}"
    assert 0 < (await count_read(unknown))["messages"] - before < MOST_READ
