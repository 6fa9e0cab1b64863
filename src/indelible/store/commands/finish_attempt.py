"""How an attempt ends: the one place where what was said becomes messages.

Commit, stop, failure, edit, hand-over and crash all come here. The journal is read *after* the attempt's row
was locked, in a later statement, so that a flush that was on its way is either in it or refused (R1). Nothing
depends on the process that wrote it: `conclude(assembler, reason, at)` decides the blocks, whether the reply is partial
and why, and gives the same answer to a live holder and to another process that finds the journal after a crash
(tests/worker/test_same_journal.py).

A reply that shows nothing (no part, or thinking alone) leaves no message when its worker died or left: the
step is tried again, and readers are told `reset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Insert, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.content import Message, Part, decode_parts, encode, has_visible
from indelible.content.assemble import PartAssembler, conclude, to_messages
from indelible.errors import LeaseLost
from indelible.machine.effects import AttemptOutcome, CloseAttempt
from indelible.store.database.tables import attempts, journal, messages
from indelible.store.payloads import Failure, Payload, RetryScheduled, Timings, WithPending, WithStep

_TRIED_AGAIN: frozenset[AttemptOutcome] = frozenset({"crashed", "handed_over"})


class Ending(NamedTuple):
    """What an attempt left: its messages, how it really ended, its last journal row, and what its reply cost."""

    messages: list[Message]
    outcome: AttemptOutcome
    last_n: int
    columns: dict[str, Any]


async def end_attempt(
    connection: AsyncConnection, attempt_id: str, effect: CloseAttempt, payload: Payload[Any] | None, now: datetime
) -> Ending:
    """End an attempt from its journal, and from what its holder brings along (its `pending` parts)."""
    locked = select(attempts).where(attempts.c.id == attempt_id).with_for_update()
    row = (await connection.execute(locked)).one()
    if row.ended_at is not None:
        raise LeaseLost("The attempt was ended meanwhile.")
    assembler, last_n, first_at, last_at = await _read_journal(connection, row.chat_id, attempt_id)
    pending = payload.pending if isinstance(payload, WithPending) else []
    if pending:
        last_n += 1
        first_at = first_at or now
        await connection.execute(_make_row(row.chat_id, attempt_id, last_n, pending, now))
        for part in pending:
            assembler.add(part)
        last_at = now
    outcome = effect.outcome
    if outcome in _TRIED_AGAIN and not has_visible(assembler.blocks()):
        outcome = "reset"
    finish = assembler.finish
    step: WithStep[Any] = payload if isinstance(payload, WithStep) else WithStep()
    error = payload.error if isinstance(payload, Failure | RetryScheduled) else None
    known = payload.usage if isinstance(payload, WithStep | RetryScheduled) else None
    usage = known or (finish.usage if finish is not None else None)
    await connection.execute(
        update(attempts)
        .where(attempts.c.id == attempt_id)
        .values(
            outcome=outcome,
            ended_at=now,
            last_n=last_n,
            usage=None if usage is None else encode(usage),
            error=None if error is None else encode(error),
        )
    )
    timings = step.timings or Timings(started_at=row.started_at, first_part_at=first_at, ended_at=last_at or now)
    columns = {"usage": None if usage is None else encode(usage), "cost_nanousd": step.cost_nanousd}
    columns["timings"] = encode(timings)
    written = [] if outcome == "reset" else _write_messages(assembler, effect, step, row, last_at or now)
    return Ending(written, outcome, last_n, columns)


async def add_what_is_missing(
    connection: AsyncConnection, chat_id: str, attempt_id: str, epoch: int, step: WithStep[Any]
) -> None:
    """What the holder of an attempt knows of it, if somebody else ended it from the journal, which did not (1.8)."""
    own = (attempts.c.chat_id == chat_id, attempts.c.id == attempt_id, attempts.c.epoch == epoch)
    ended = select(attempts.c.id).where(*own, attempts.c.ended_at.is_not(None))
    if (await connection.execute(ended)).first() is None:
        return
    reply = (messages.c.chat_id == chat_id, messages.c.attempt_id == attempt_id, messages.c.role == "assistant")
    if step.usage is not None:
        known = encode(step.usage)
        await connection.execute(update(attempts).where(*own, attempts.c.usage.is_(None)).values(usage=known))
        await connection.execute(update(messages).where(*reply, messages.c.usage.is_(None)).values(usage=known))
    if step.cost_nanousd is not None:
        unpriced = update(messages).where(*reply, messages.c.cost_nanousd.is_(None))
        await connection.execute(unpriced.values(cost_nanousd=step.cost_nanousd))
    if step.timings is not None:
        untimed = update(messages).where(*reply, messages.c.timings.is_(None))
        await connection.execute(untimed.values(timings=encode(step.timings)))


async def keep_pending(connection: AsyncConnection, attempt_id: str, pending: Sequence[Part], now: datetime) -> None:
    """What was said since the last flush becomes the last row of an attempt that stays open."""
    if not pending:
        return
    locked = select(attempts.c.chat_id).where(attempts.c.id == attempt_id).with_for_update()
    chat_id: str = (await connection.execute(locked)).scalar_one()
    own = (journal.c.chat_id == chat_id, journal.c.attempt_id == attempt_id)
    last = select(func.coalesce(func.max(journal.c.n), 0)).where(*own)
    n = (await connection.execute(last)).scalar_one() + 1
    await connection.execute(_make_row(chat_id, attempt_id, n, pending, now))


def _make_row(chat_id: str, attempt_id: str, n: int, pending: Sequence[Part], now: datetime) -> Insert:
    return insert(journal).values(chat_id=chat_id, attempt_id=attempt_id, n=n, parts=encode(pending), at=now)


async def _read_journal(
    connection: AsyncConnection, chat_id: str, attempt_id: str
) -> tuple[PartAssembler, int, datetime | None, datetime | None]:
    """What was said, the number of its last row, and when its first and its last row were written."""
    assembler, last_n, first_at, last_at = PartAssembler(), 0, None, None
    rows = select(journal).where(journal.c.chat_id == chat_id, journal.c.attempt_id == attempt_id).order_by(journal.c.n)
    for row in await connection.execute(rows):
        for part in decode_parts(row.parts):
            assembler.add(part)
        last_n, last_at = row.n, row.at
        first_at = first_at or last_at
    return assembler, last_n, first_at, last_at


def _write_messages(
    assembler: PartAssembler, effect: CloseAttempt, step: WithStep[Any], attempt: Any, last_at: datetime
) -> list[Message]:
    concluded = conclude(assembler, effect.reason, last_at)
    return to_messages(
        concluded.blocks,
        partial=concluded.partial,
        reason=concluded.reason,
        provider=attempt.provider,
        model=attempt.model,
        response_id=step.response_id if concluded.whole else None,
    )
