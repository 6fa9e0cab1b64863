"""The port: every promise has a docstring, an implementation, and a test that uses it on both databases."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.content import Finish, Text, TextDelta, encode
from indelible.machine.commands import Create, FinishTurn, StartAttempt
from indelible.store.append import JournalRow
from indelible.store.engine import begin_write
from indelible.store.port import ChatStore, Words
from indelible.store.sql import SqlStore
from indelible.store.tables import users
from indelible.testing import ManualClock

PROMISES = sorted(name for name, _ in inspect.getmembers(ChatStore, inspect.isfunction) if not name.startswith("_"))


@pytest.mark.parametrize("name", PROMISES)
def test_every_promise_is_written_down_kept_and_tried(name: str) -> None:
    assert (inspect.getdoc(getattr(ChatStore, name)) or "").strip()
    assert callable(getattr(SqlStore, name))
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert f"store.{name}(" in tests


async def test_a_chat_from_beginning_to_end_through_the_port_alone(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id="user_1", name="ada", created_at=datetime.now(UTC)))
    store: ChatStore = SqlStore(engine)
    await store.beat("worker_1")
    await store.execute("chat_1", Create(with_message=True), Words(owner_id="user_1", blocks=[Text("hi")]))
    (held,) = await store.acquire("worker_1", limit=5)
    turn_id = (await store.view("chat_1")).turn
    assert turn_id is not None
    attempt = (await store.execute("chat_1", StartAttempt(epoch=held.epoch, turn_id=turn_id))).attempt
    assert attempt is not None
    said = encode([TextDelta("1", "Hello"), Finish("stop")])
    await store.append([JournalRow(attempt.id, attempt.epoch, 1, said)])
    await store.execute("chat_1", FinishTurn(epoch=held.epoch, turn_id=turn_id, attempt_id=attempt.id))
    assert [message.text for message in await store.path("chat_1")] == ["hi", "Hello"]
    told = await store.events("chat_1", after=0)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    before = await store.rows(attempt.id)
    assert await store.pack(ended_before=datetime(2099, 1, 1, tzinfo=UTC), clock=ManualClock()) == 1
    assert await store.rows(attempt.id) == before
    assert await store.runs(turn_id) == []
    await store.retire("worker_1")
    assert (await store.view("chat_1")).status == "waiting"
