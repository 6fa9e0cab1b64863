"""The ledger: every local tool call, written before it starts and when it settles (P5).

A change of the ledger and the part that reports it (`tool_started`, `tool_result`) are one journal row and one
transaction, under the same condition: the attempt is open, and it is ours. So after a crash the journal and the
ledger agree about what was started and how it ended, and a worker that lost the chat can settle nothing.

The key of a call is (turn, step, index), because providers' ids repeat.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.content import ToolResult, decode_part, encode
from indelible.store.database.dialect import upsert
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import tool_runs


class RunKey(NamedTuple):
    turn_id: str
    step: int
    call_index: int


class RunStarted(NamedTuple):
    key: RunKey
    attempt_id: str
    call_id: str
    name: str
    arguments: str
    idempotency_key: str


class RunSettled(NamedTuple):
    key: RunKey
    result: ToolResult


RunChange = RunStarted | RunSettled


class LedgerEntry(NamedTuple):
    """One call of the ledger. Without a result its effect is unknown."""

    key: RunKey
    call_id: str
    name: str
    arguments: str
    idempotency_key: str
    result: ToolResult | None


async def write_change(connection: AsyncConnection, chat_id: str, change: RunChange, at: datetime) -> None:
    """Record a change. Repeating it changes nothing: the response to its commit may have been lost."""
    if isinstance(change, RunSettled):
        settled = {"state": "settled", "result": encode(change.result), "settled_at": at}
        await connection.execute(
            update(tool_runs).where(_is_run(chat_id, change.key), tool_runs.c.state == "started").values(**settled)
        )
        return
    started = upsert(connection.dialect.name, tool_runs).values(
        chat_id=chat_id,
        turn_id=change.key.turn_id,
        step=change.key.step,
        call_index=change.key.call_index,
        attempt_id=change.attempt_id,
        call_id=change.call_id,
        name=change.name,
        arguments=change.arguments.encode("utf-8", "replace"),
        state="started",
        idempotency_key=change.idempotency_key,
        started_at=at,
    )
    await connection.execute(started.on_conflict_do_nothing())


async def load_runs(engine: AsyncEngine, turn_id: str) -> list[LedgerEntry]:
    """Every call of a turn that was ever started, in order."""
    order = (tool_runs.c.step, tool_runs.c.call_index)
    async with begin_read(engine) as connection:
        rows = await connection.execute(select(tool_runs).where(tool_runs.c.turn_id == turn_id).order_by(*order))
        return [
            LedgerEntry(
                key=RunKey(row.turn_id, row.step, row.call_index),
                call_id=row.call_id,
                name=row.name,
                arguments=row.arguments.decode(),
                idempotency_key=row.idempotency_key,
                result=None if row.result is None else _decode_result(row.result),
            )
            for row in rows
        ]


def _decode_result(data: bytes) -> ToolResult:
    result = decode_part(data)
    assert isinstance(result, ToolResult)
    return result


def _is_run(chat_id: str, key: RunKey) -> Any:
    return (
        (tool_runs.c.chat_id == chat_id)
        & (tool_runs.c.turn_id == key.turn_id)
        & (tool_runs.c.step == key.step)
        & (tool_runs.c.call_index == key.call_index)
    )
