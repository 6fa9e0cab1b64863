"""PostgreSQL ends a connection while it reads or stores a file of a turn: the turn waits, and has the file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import pytest
from tests.log_records import DATABASE_AWAY
from tests.support.app_harness import AppHarness
from tests.support.messages import read_text
from tests.support.waiting import DEADLINE_S, deadline

from indelible.content import File, ToolResult
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

pytestmark = [
    pytest.mark.parametrize("migrated", ["postgresql"], indirect=True),
    pytest.mark.may_log(*DATABASE_AWAY, "a failed upload could not be removed now"),
]
DATA: Final = b"It rains in Oslo.\n"
DONE: Final[Script] = [parts.text_delta("1", "Done"), parts.finish()]
FIND_BLOCKED: Final = "SELECT pid FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"


@asynccontextmanager
async def losing_connections(database: str, table: str, *, times: int) -> AsyncIterator[None]:
    """Nobody gets at this table during the body, and after it this many who wait for it lose their connection."""
    operator = await asyncpg.connect(database)
    try:
        async with operator.transaction():
            await operator.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            yield
            for _ in range(times):
                while (pid := await operator.fetchval(FIND_BLOCKED)) is None:
                    await operator.execute("SELECT pg_stat_clear_snapshot()")
                assert await operator.fetchval("SELECT pg_terminate_backend($1, $2)", pid, int(DEADLINE_S * 1000))
    finally:
        await operator.close()


@pytest.mark.parametrize("table", ["file_uses", "file_chunks"])
async def test_a_connection_that_is_cut_while_the_file_of_a_turn_is_read_fails_no_turn(
    harness: AppHarness, database: str, table: str
) -> None:
    model = ScriptedModel([DONE])
    chat = await harness.app.create_chat()
    await chat.post(["Look", await harness.app.upload(DATA, name="notes.txt")])
    async with deadline("the turn with a file"):
        async with losing_connections(database, table, times=2):
            await harness.start_worker(model)
        await harness.wait_for_end(chat)
    assert read_text((await chat.messages())[-1].blocks) == "Done"
    assert model.calls[-1].messages[-1].blocks[1:] == [File("text/plain", name="notes.txt", data=DATA)]


async def test_a_connection_that_is_cut_while_the_file_of_a_tool_is_stored_loses_no_file(
    harness: AppHarness, database: str
) -> None:
    async def chart() -> File:
        return File("text/plain", name="chart.txt", data=DATA)

    model = ScriptedModel([[parts.tool_call("c", "chart", "{}"), parts.finish("tool_calls")], DONE])
    chat = await harness.app.create_chat()
    await chat.post("Draw")
    async with deadline("the turn whose tool returns a file"):
        async with losing_connections(database, "file_chunks", times=3):
            await harness.start_worker(model, tools=[chart])
        await harness.wait_for_end(chat)
    (result,) = (await chat.messages())[2].blocks
    assert isinstance(result, ToolResult)
    assert [file.name for file in result.files] == ["chart.txt"]
    assert await harness.app.read_file(str(result.files[0].file_id)) == DATA
