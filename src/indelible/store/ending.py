"""How an attempt ends: the one place where what was said becomes messages.

Commit, stop, failure, edit, hand-over and crash all come here. The journal is read *after* the attempt's row
was locked, in a later statement, so that a flush that was on its way is either in it or refused (R1). Nothing
is taken from the process that wrote it: `seal(fold(parts), reason, at)` gives the same blocks to a live holder
and to whoever finds the journal after a crash.

A reply that shows nothing (no part, or thinking alone) leaves no message when its worker died or left: the
step is tried again, and readers are told `reset`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.content import Message, PartialReason, Usage, decode_parts, encode, has_visible
from indelible.errors import LeaseLost
from indelible.fold import Collector, seal, to_messages
from indelible.machine.acts import AttemptOutcome, CloseAttempt
from indelible.store.port import Words
from indelible.store.tables import attempts, journal, messages

_TRIED_AGAIN: frozenset[AttemptOutcome] = frozenset({"crashed", "handed_over"})


class Ending(NamedTuple):
    """What an attempt left: its messages, how it really ended, its last journal row, and its tokens."""

    messages: list[Message]
    outcome: AttemptOutcome
    last_n: int
    usage: Usage | None


async def end_attempt(
    connection: AsyncConnection, attempt_id: str, act: CloseAttempt, words: Words, now: datetime
) -> Ending:
    """End an attempt from its journal, and from what its holder brings along (`words.rest`)."""
    locked = select(attempts).where(attempts.c.id == attempt_id).with_for_update()
    row = (await connection.execute(locked)).one()
    if row.ended_at is not None:
        raise LeaseLost("The attempt was ended meanwhile.")
    collector, last_n, said_at = await _read_journal(connection, attempt_id)
    if words.rest:
        last_n += 1
        await connection.execute(
            insert(journal).values(attempt_id=attempt_id, n=last_n, parts=encode(words.rest), at=now)
        )
        for part in words.rest:
            collector.add(part)
        said_at = now
    outcome = act.outcome
    if outcome in _TRIED_AGAIN and not has_visible(collector.blocks()):
        outcome = "reset"
    finish = collector.finish
    usage = words.usage or (finish.usage if finish is not None else None)
    await connection.execute(
        update(attempts)
        .where(attempts.c.id == attempt_id)
        .values(
            outcome=outcome,
            ended_at=now,
            last_n=last_n,
            usage=None if usage is None else encode(usage),
            error=None if words.error is None else encode(words.error),
        )
    )
    written = [] if outcome == "reset" else _write_messages(collector, act, words, row, said_at or now)
    return Ending(written, outcome, last_n, usage)


async def add_usage(connection: AsyncConnection, chat_id: str, attempt_id: str, epoch: int, usage: Usage) -> None:
    """What the holder of an attempt knows of it, if somebody else ended it from the journal, which did not (1.8)."""
    known = encode(usage)
    own = (attempts.c.chat_id == chat_id, attempts.c.id == attempt_id, attempts.c.epoch == epoch)
    missing = update(attempts).where(*own, attempts.c.usage.is_(None), attempts.c.ended_at.is_not(None))
    if (await connection.execute(missing.values(usage=known))).rowcount:
        reply = (messages.c.chat_id == chat_id, messages.c.attempt_id == attempt_id, messages.c.role == "assistant")
        await connection.execute(update(messages).where(*reply).values(usage=known))


async def _read_journal(connection: AsyncConnection, attempt_id: str) -> tuple[Collector, int, datetime | None]:
    collector, last_n, said_at = Collector(), 0, None
    rows = select(journal).where(journal.c.attempt_id == attempt_id).order_by(journal.c.n)
    for row in await connection.execute(rows):
        for part in decode_parts(row.parts):
            collector.add(part)
        last_n, said_at = row.n, row.at
    return collector, last_n, said_at


def _write_messages(
    collector: Collector, act: CloseAttempt, words: Words, attempt: Any, said_at: datetime
) -> list[Message]:
    finish = collector.finish
    reason: PartialReason | None = act.reason
    if reason is None and finish is None:
        reason = "failed"  # told to be complete, but its stream never finished
    elif reason is None and finish is not None and finish.reason == "length":
        reason = "length"
    unanswered = any(not collector.has_result(call) for call in collector.local_calls())
    cut = finish is None or reason == "length" or (reason is not None and unanswered)
    if words.partial is not None:
        cut = words.partial
    if cut and reason is None:
        reason = "failed"  # it broke off and nobody said why
    blocks = seal(collector.blocks(), reason, said_at)
    return to_messages(
        blocks,
        partial=cut and has_visible(blocks),
        reason=reason,
        provider=attempt.provider,
        model=attempt.model,
        response_id=None if cut else words.response_id,
    )
