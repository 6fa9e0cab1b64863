"""Everything that a user can store in a chat has a limit (S102)."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, dump, settle_in
from tests.support.engine import get_database

from indelible.content import Text, ToolResult, ToolSpec
from indelible.errors import Invalid, Refused, StoreFailed, TooLarge
from indelible.machine import commands
from indelible.store.database.transaction import Transaction
from indelible.store.payloads import ChatPatch, NewChat, StoreLimits, ToolResultsInput, UserInput
from indelible.store.store import Store

LIMITS = StoreLimits(
    message_bytes=1000, system_bytes=1000, parameters_bytes=1000, tools_bytes=1000, tool_result_bytes=1000
)
LONG = "x" * 1001
TOOLS = [ToolSpec(name="x" * 64, description="x" * 700)]

TOO_MUCH: dict[str, tuple[dict[str, Any], type[Refused]]] = {
    "title": ({"title": LONG}, Invalid),
    "model": ({"model": "x" * 201}, Invalid),
    "system_prompt": ({"system_prompt": LONG}, TooLarge),
    "parameters": ({"parameters": {"stop": [LONG]}}, TooLarge),
    "a name in parameters": ({"parameters": {LONG: 1}}, TooLarge),
    "many parameters": ({"parameters": {str(number): number for number in range(200)}}, TooLarge),
    "tools": ({"tools": [ToolSpec(name="a", input_schema={"description": LONG})]}, TooLarge),
    "many tools": ({"tools": [ToolSpec(name=f"tool_{number}") for number in range(129)]}, Invalid),
    "a tool's name": ({"tools": [ToolSpec(name="x" * 65)]}, Invalid),
    "a tool's description": ({"tools": [ToolSpec(name="a", description="x" * 10_001)]}, Invalid),
    "two tools of one name": ({"tools": [ToolSpec(name="a"), ToolSpec(name="a")]}, Invalid),
    "a label": ({"labels": ["x" * 101]}, Invalid),
    "many labels": ({"labels": ["x"] * 101}, Invalid),
}


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), limits=LIMITS)


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_s102_a_chat_is_not_given_more_than_the_limit(store: Store, engine: AsyncEngine, name: str) -> None:
    fields, error = TOO_MUCH[name]
    await store.execute("chat_a", commands.Create(), NewChat(owner_id=OWNER))
    before = await dump(engine)
    if "labels" not in fields:
        with pytest.raises(error):
            await store.execute("chat_b", commands.Create(), NewChat(owner_id=OWNER, **fields))
    with pytest.raises(error):
        await store.execute("chat_a", commands.UpdateChat(), ChatPatch(**fields))
    assert await dump(engine) == before


async def test_s102_a_message_and_a_result_are_not_larger_than_the_limit(store: Store, engine: AsyncEngine) -> None:
    await store.execute("chat_a", commands.Create(), NewChat(owner_id=OWNER))
    before = await dump(engine)
    with pytest.raises(TooLarge, match=r"Message too long: 1,0\d\d bytes \(limit 1,000\)"):
        await store.execute("chat_a", commands.Send(), UserInput(blocks=[Text(LONG)]))
    results = [ToolResult(call_id="call_a", name="", output=LONG)]
    with pytest.raises(TooLarge, match=r"Tool result too long: 1,001 bytes \(limit 1,000\)"):
        await store.execute("chat_a", commands.ToolResults(call_ids=("call_a",)), ToolResultsInput(results=results))
    assert await dump(engine) == before


async def test_s102_what_is_within_the_limits_is_stored(store: Store) -> None:
    fields: dict[str, Any] = {"title": "x" * 1000, "model": "x" * 200, "system_prompt": "x" * 900}
    new = NewChat(owner_id=OWNER, parameters={"stop": ["x" * 900]}, blocks=[Text("x" * 900)], tools=TOOLS, **fields)
    await store.execute("chat_a", commands.Create(with_message=True), new)
    await store.execute("chat_a", commands.UpdateChat(), ChatPatch(labels=["x" * 100] * 100, **fields))
    work = await store.work("chat_a")
    assert (work.system_prompt, work.parameters, work.tools) == ("x" * 900, {"stop": ["x" * 900]}, TOOLS)


async def test_s102_reading_a_queue_reads_neither_messages_nor_the_running_reply(
    store: Store, engine: AsyncEngine
) -> None:
    await store.execute("chat_a", commands.Create(with_message=True), NewChat(owner_id=OWNER, blocks=[Text("One")]))
    await store.execute("chat_a", commands.Send(), UserInput(blocks=[Text("Two")]))
    statements: list[str] = []
    get_database(engine).observe = statements.append
    try:
        queue = await store.queue("chat_a")
    finally:
        get_database(engine).observe = None
    assert [row.blocks for row in queue] == [[Text("Two")]]
    assert not any("journal" in sql or "messages" in sql for sql in statements)


async def test_s109_a_check_writes_and_changes_nothing(store: Store, engine: AsyncEngine) -> None:
    before = await dump(engine)
    await store.check_writable(OWNER)
    assert await dump(engine) == before


async def test_s109_a_database_that_cannot_be_written_fails_the_check(store: Store) -> None:
    async def forbid(transaction: Transaction) -> None:
        is_sqlite = transaction.dialect == "sqlite"
        await transaction.run("PRAGMA query_only = ON" if is_sqlite else "SET default_transaction_read_only = on")

    await store.database.write(forbid)
    with pytest.raises(StoreFailed):
        await store.check_writable(OWNER)
