"""Files in the results of a client's tools, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.support.engine import get_database

from indelible.content import File, Finish, ToolCall, ToolResult
from indelible.files.bytes import DatabaseBytes
from indelible.files.store import FileStore
from indelible.machine import commands as c
from indelible.store.payloads import ToolResultsInput
from indelible.store.store import Store

CALLS = [ToolCall(id=f"c{number}", name="look", arguments="{}") for number in (1, 2)]


async def upload(files: FileStore, name: str) -> File:
    async def read() -> AsyncIterator[bytes]:
        yield name.encode()

    stored = await files.upload(OWNER, read(), name=name, hint="text/plain")
    return File("text/plain", file_id=stored.id)


async def bring(store: Store, chat: Driver, files: list[File]) -> None:
    results = [
        ToolResult(call_id=call.id, name="look", output="seen", files=[file])
        for call, file in zip(CALLS, files, strict=True)
    ]
    command = c.ToolResults(call_ids=tuple(call.id for call in CALLS))
    await store.execute(chat.id, command, ToolResultsInput(results=results))


async def test_results_that_come_at_once_with_the_same_files_in_any_order_do_not_block_each_other(
    engine: AsyncEngine,
) -> None:
    await settle_in(engine)
    store = Store(get_database(engine))
    files = FileStore(store.database, [DatabaseBytes(store.database)])
    named = [await upload(files, "a.txt"), await upload(files, "b.txt")]
    for _ in range(8):
        waiting = []
        for _ in range(6):
            chat = await Driver(store, engine).create("first")
            await chat.work("live", *CALLS, Finish("tool_calls"))
            await chat.end(c.AwaitAction)
            waiting.append(chat)
        orders = [named, named[::-1]] * 3
        await asyncio.gather(*(bring(store, chat, order) for chat, order in zip(waiting, orders, strict=True)))
