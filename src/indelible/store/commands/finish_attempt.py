"""How an attempt ends: the only place where journaled parts become messages.

Commit, stop, failure, edit, hand-over and crash all end here. The journal is read *after* the attempt's row
was locked, in a later statement, so that a flush in flight is either included or refused (R1). Nothing
depends on the process that wrote it: `conclude(assembler, reason, at)` decides the blocks, whether the reply is partial
and why, and its result is the same for a live holder and for another process that reads the journal after a crash
(tests/worker/test_same_journal.py).

A reply with nothing visible (no part, or only thinking) leaves no message when its worker died or left: the
step is retried, and readers receive `reset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from indelible.api.shapes import Timings
from indelible.content import Message, Part, decode_parts, encode, has_visible
from indelible.content.assemble import PartAssembler, conclude, to_messages
from indelible.errors import LeaseLost
from indelible.machine.effects import AttemptOutcome, CloseAttempt
from indelible.store.commands.totals import Totals, add_to_chat
from indelible.store.database.transaction import Row, Transaction, insert, to_time, update
from indelible.store.lists.usage import Used, add_usage
from indelible.store.payloads import Failure, Payload, RetryScheduled, WithPending, WithStep

_TRIED_AGAIN: frozenset[AttemptOutcome] = frozenset({"crashed", "handed_over"})

_LOCK_ATTEMPT: Final = """
SELECT provider, model, step, number, started_at, ended_at FROM attempts WHERE chat_id = $1 AND id = $2 FOR UPDATE
"""
_ENDED: Final = """
SELECT a.model, a.ended_at, c.owner_id FROM attempts AS a JOIN chats AS c ON c.id = a.chat_id
WHERE a.chat_id = $1 AND a.id = $2 AND a.epoch = $3 AND a.ended_at IS NOT NULL
"""
_JOURNAL: Final = "SELECT n, parts, at FROM journal WHERE chat_id = $1 AND attempt_id = $2 ORDER BY n"


class Ending(NamedTuple):
    """The result of an attempt: its messages, how it really ended, its last journal row, and the cost of its reply.

    `columns` are those of the reply, `totals` what it adds to the chat's, `used` what it adds to the user's day.
    """

    messages: list[Message]
    outcome: AttemptOutcome
    last_n: int
    columns: dict[str, Any]
    totals: Totals
    used: Used


async def end_attempt(
    transaction: Transaction,
    chat_id: str,
    attempt_id: str,
    effect: CloseAttempt,
    payload: Payload[Any] | None,
    *,
    now: datetime,
) -> Ending:
    """End an attempt from its journal and its holder's `pending` parts."""
    row = await transaction.one(_LOCK_ATTEMPT, chat_id, attempt_id)
    if row["ended_at"] is not None:
        raise LeaseLost("The attempt was ended meanwhile.")
    assembler, last_n, first_at, last_at = await _read_journal(transaction, chat_id, attempt_id)
    pending = payload.pending if isinstance(payload, WithPending) else []
    if pending:
        last_n += 1
        first_at = first_at or now
        await _add_row(transaction, chat_id, attempt_id, last_n, pending, now=now)
        for part in pending:
            assembler.add(part)
        last_at = now
    outcome = effect.outcome
    if outcome in _TRIED_AGAIN and not has_visible(assembler.blocks()):
        outcome = "reset"
    step: WithStep[Any] = payload if isinstance(payload, WithStep) else WithStep()
    error = payload.error if isinstance(payload, Failure | RetryScheduled) else None
    known = payload.usage if isinstance(payload, WithStep | RetryScheduled) else None
    usage = known or assembler.usage
    encoded_usage = None if usage is None else encode(usage)
    ended = {
        "outcome": outcome,
        "ended_at": now,
        "last_n": last_n,
        "usage": encoded_usage,
        "error": None if error is None else encode(error),
    }
    await update(transaction, "attempts", ended, chat_id=chat_id, id=attempt_id)
    timings = step.timings or Timings(
        started_at=to_time(row["started_at"]), first_part_at=first_at, ended_at=last_at or now
    )
    columns = {"usage": encoded_usage, "cost_nanousd": step.cost_nanousd, "timings": encode(timings)}
    written = [] if outcome == "reset" else _write_messages(assembler, effect, step, row, last_at or now)
    begins_turn = row["step"] == row["number"] == 1
    used = Used(row["model"], usage, step.cost_nanousd, begins_turn=begins_turn)
    return Ending(written, outcome, last_n, columns, Totals(usage, step.cost_nanousd), used)


async def backfill_usage(
    transaction: Transaction, chat_id: str, attempt_id: str, epoch: int, step: WithStep[Any]
) -> None:
    """Add what only the holder knows (its usage) to an attempt that another process ended from the journal (1.8)."""
    ended = await transaction.one(_ENDED, chat_id, attempt_id, epoch)
    if ended is None:
        return
    late_usage, late_cost = None, None
    if step.usage is not None:
        usage = encode(step.usage)
        unknown = "UPDATE attempts SET usage = $3 WHERE chat_id = $1 AND id = $2 AND usage IS NULL"
        late_usage = step.usage if await transaction.run(unknown, chat_id, attempt_id, usage) else None
        if await transaction.run(_fill_in("usage"), chat_id, attempt_id, usage):
            await add_to_chat(transaction, chat_id, step.usage, None)
    if step.cost_nanousd is not None and await transaction.run(
        _fill_in("cost_nanousd"), chat_id, attempt_id, step.cost_nanousd
    ):
        late_cost = step.cost_nanousd
        await add_to_chat(transaction, chat_id, None, step.cost_nanousd)
    late = Used(ended["model"], late_usage, late_cost)
    await add_usage(transaction, ended["owner_id"], chat_id, late, to_time(ended["ended_at"]))
    if step.timings is not None:
        await transaction.run(_fill_in("timings"), chat_id, attempt_id, encode(step.timings))


def _fill_in(column: Literal["usage", "cost_nanousd", "timings"]) -> str:
    """The SQL that sets this column of the attempt's reply where it is still empty."""
    reply = f"chat_id = $1 AND attempt_id = $2 AND role = 'assistant' AND {column} IS NULL"
    return f"UPDATE messages SET {column} = $3 WHERE {reply}"


async def keep_pending(
    transaction: Transaction, chat_id: str, attempt_id: str, pending: Sequence[Part], now: datetime
) -> None:
    """Write the parts since the last flush as the last row of an attempt that stays open."""
    if not pending:
        return
    await transaction.one(_LOCK_ATTEMPT, chat_id, attempt_id)
    last = "SELECT coalesce(max(n), 0) AS n FROM journal WHERE chat_id = $1 AND attempt_id = $2"
    n = (await transaction.one(last, chat_id, attempt_id))["n"] + 1
    await _add_row(transaction, chat_id, attempt_id, n, pending, now=now)


async def _add_row(
    transaction: Transaction, chat_id: str, attempt_id: str, n: int, pending: Sequence[Part], *, now: datetime
) -> None:
    row = {"chat_id": chat_id, "attempt_id": attempt_id, "n": n, "parts": encode(pending), "at": now}
    await insert(transaction, "journal", row)


async def _read_journal(
    transaction: Transaction, chat_id: str, attempt_id: str
) -> tuple[PartAssembler, int, datetime | None, datetime | None]:
    """The parts, the number of the last row, and the times of the first and the last row."""
    assembler = PartAssembler()
    rows = await transaction.all(_JOURNAL, chat_id, attempt_id)
    for row in rows:
        for part in decode_parts(row["parts"]):
            assembler.add(part)
    if not rows:
        return assembler, 0, None, None
    return assembler, rows[-1]["n"], to_time(rows[0]["at"]), to_time(rows[-1]["at"])


def _write_messages(
    assembler: PartAssembler, effect: CloseAttempt, step: WithStep[Any], attempt: Row, last_at: datetime
) -> list[Message]:
    concluded = conclude(assembler, effect.reason, last_at)
    return to_messages(
        concluded.blocks,
        partial=concluded.partial,
        reason=concluded.reason,
        provider=attempt["provider"],
        model=attempt["model"],
        response_id=step.response_id if concluded.whole else None,
    )
