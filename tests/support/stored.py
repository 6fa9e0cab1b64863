"""What only tests read of a stored chat: its whole active path, the journal of an attempt, the tool ledger."""

from __future__ import annotations

from typing import NamedTuple

from indelible.content import Message, ToolResult, decode_part
from indelible.store.database.transaction import Transaction
from indelible.store.journal.append import RunKey
from indelible.store.queries.chat_view import JournalEntry, load_rows
from indelible.store.store import Store

_RUNS = """
SELECT turn_id, step, call_index, call_id, name, arguments, idempotency_key, result FROM tool_runs
WHERE chat_id = $1 AND turn_id = $2 ORDER BY step, call_index
"""
_MORE_THAN_ANY_TEST_WRITES = 1_000_000


class LedgerEntry(NamedTuple):
    """One call in the ledger. Without a result its effect is unknown."""

    key: RunKey
    call_id: str
    name: str
    arguments: str
    idempotency_key: str
    result: ToolResult | None


async def load_path(store: Store, chat_id: str) -> list[Message]:
    """The active path, oldest first."""
    return (await store.view(chat_id, limit=_MORE_THAN_ANY_TEST_WRITES)).messages


async def load_journal(store: Store, chat_id: str, attempt_id: str) -> list[JournalEntry]:
    """The journal rows of an attempt."""
    return await store.database.read(lambda transaction: load_rows(transaction, chat_id, attempt_id))


async def load_ledger(store: Store, chat_id: str, turn_id: str) -> list[LedgerEntry]:
    """Every tool call of a turn that was ever started, with its result if it is known."""
    return await store.database.read(lambda transaction: load_runs(transaction, chat_id, turn_id))


async def load_runs(transaction: Transaction, chat_id: str, turn_id: str) -> list[LedgerEntry]:
    return [
        LedgerEntry(
            key=RunKey(row["turn_id"], row["step"], row["call_index"]),
            call_id=row["call_id"],
            name=row["name"],
            arguments=row["arguments"].decode(),
            idempotency_key=row["idempotency_key"],
            result=None if row["result"] is None else _decode_result(row["result"]),
        )
        for row in await transaction.all(_RUNS, chat_id, turn_id)
    ]


def _decode_result(data: bytes) -> ToolResult:
    result = decode_part(data)
    assert isinstance(result, ToolResult)
    return result
