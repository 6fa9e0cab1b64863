"""The ledger: every local tool call, written before it starts and when it settles (P5).

A ledger change and the part that reports it (`tool_started`, `tool_result`) are one journal row and one transaction,
under the same condition: the attempt is open under our epoch. So after a crash the journal and the ledger agree on
what was started and how it ended, and a worker that lost the chat can settle nothing. The chat's use of files that a
result names is part of the same transaction (tests/files/test_file_uses.py).

The key of a call is (turn, step, index), because providers' ids repeat.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from indelible.content import ToolResult, encode
from indelible.store.commands.apply.files import use_result_files
from indelible.store.database.transaction import Transaction

_SETTLE: Final = """
UPDATE tool_runs SET state = 'settled', result = $5, settled_at = $6
WHERE chat_id = $1 AND turn_id = $2 AND step = $3 AND call_index = $4 AND state = 'started'
"""
_START: Final = """
INSERT INTO tool_runs (chat_id, turn_id, step, call_index, attempt_id, call_id, name, arguments, state,
    idempotency_key, started_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'started', $9, $10) ON CONFLICT DO NOTHING
"""


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


async def write_change(transaction: Transaction, chat_id: str, change: RunChange, at: datetime) -> None:
    """Record a change. Repeating it changes nothing: the response to its commit may have been lost."""
    if isinstance(change, RunSettled):
        await transaction.run(_SETTLE, chat_id, *change.key, encode(change.result), at)
        if change.result.files:
            await use_result_files(transaction, chat_id, change.result)
        return
    arguments = change.arguments.encode("utf-8", "replace")
    started = (change.attempt_id, change.call_id, change.name, arguments, change.idempotency_key, at)
    await transaction.run(_START, chat_id, *change.key, *started)
