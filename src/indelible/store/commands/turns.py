"""Effects on turns and their attempts: numbering, starting and ending them.

This is the only place where journaled parts become messages: commit, stop, failure, edit, hand-over and crash all end
in `end_attempt`. The journal is read *after* the attempt's row was locked, in a later statement, so that a flush in
flight is either included or refused (R1). Nothing depends on the process that wrote it: `conclude(assembler, reason,
at)` decides the blocks, whether the reply is partial and why, and its result is the same for a live holder and for
another process that reads the journal after a crash (tests/worker/test_same_journal.py). Exactly one event tells of the
end (`message`, `reset` or `retry`, with the number of the last journal row).

A reply with nothing visible (no part, or only thinking) leaves no message when its worker died or left: the step is
retried, and readers receive `reset`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import replace

from indelible.api.shapes import Timings
from indelible.content import Message, Part, decode_parts, encode, find_open_calls, has_visible
from indelible.content.assemble import PartAssembler, conclude, to_messages
from indelible.errors import LeaseLost
from indelible.ids import new_id
from indelible.machine import effects
from indelible.machine.effects import AttemptOutcome, CloseAttempt
from indelible.machine.states import TurnKind
from indelible.store import payloads
from indelible.store.commands.change import ChatChange, Handlers
from indelible.store.commands.history import load_model, put
from indelible.store.database.transaction import Transaction, insert, to_time, update
from indelible.store.queries.open_turn import AttemptName
from indelible.store.usage import Totals, Used, add_to_chat, add_usage

_ENDS_WITH_RESET: Final = "reset"
_NEW_TURN: Final = """
INSERT INTO turns (chat_id, id, kind, message_id, model, started_at, request, number)
VALUES ($1, $2, $3, $4, $5, $6, $7, (SELECT coalesce(max(number), 0) + 1 FROM turns WHERE chat_id = $1))
"""
# A worker that was found gone may prove alive; then the takeover does not count (store/queries/leases.py).
_COUNT_TAKEOVER: Final = """
UPDATE turns SET takeovers = $4, stalled_takeovers = $5, journal_rows_at_takeover = $6,
    acquired_from = (SELECT id FROM workers WHERE id = $3 AND gone_at IS NOT NULL)
WHERE chat_id = $1 AND id = $2
"""
_LAST_ATTEMPT: Final = """
SELECT step, number, outcome FROM attempts WHERE chat_id = $1 AND turn_id = $2
ORDER BY step DESC, number DESC LIMIT 1
"""


async def close_attempt(change: ChatChange, effect: effects.CloseAttempt) -> None:
    open_attempt = change.snapshot.attempt
    assert open_attempt is not None
    ending = await end_attempt(change, open_attempt.id, effect)
    detail = {"attempt": open_attempt.id, "last_n": ending.last_n}
    if not ending.messages:
        change.emit("reset", open_attempt.id, **detail, outcome=ending.outcome)
    change.open_calls = find_open_calls([block for message in ending.messages for block in message.blocks])
    continued_id = None
    if ending.messages:
        continued_id = await change.find_partial_reply()
    for message in ending.messages:
        is_reply = message.role == "assistant"
        await put(
            change,
            replace(message, continues=continued_id if is_reply else None),
            attempt_id=open_attempt.id,
            columns=ending.columns if is_reply else None,
            totals=ending.totals if is_reply else None,
            **detail,
        )
        detail = {}


async def schedule_retry(change: ChatChange, _effect: effects.ScheduleRetry) -> None:
    detail: dict[str, Any] = dict(payloads.require(change.payload, payloads.RetryScheduled).retry)
    change.changes["retry"] = encode(detail)
    if change.snapshot.attempt is not None:
        attempt_id = change.snapshot.attempt.id
        ending = await end_attempt(change, attempt_id, effects.CloseAttempt(outcome="reset"))
        detail |= {"attempt": attempt_id, "last_n": ending.last_n}
    change.emit("retry", change.turn_id, **detail)


async def adopt_attempt(change: ChatChange, _effect: effects.AdoptAttempt) -> None:
    open_attempt = change.snapshot.attempt
    assert open_attempt is not None
    await update(change.transaction, "attempts", {"epoch": change.epoch}, chat_id=change.chat_id, id=open_attempt.id)


async def leave_attempt(change: ChatChange, _effect: effects.LeaveAttempt) -> None:
    """The parts since the last flush become the last row of the attempt, which stays open."""
    assert change.snapshot.attempt is not None
    transaction, chat_id, attempt_id = change.transaction, change.chat_id, change.snapshot.attempt.id
    pending = _get_pending(change)
    if pending:
        await transaction.lock(_LOCK_ATTEMPT, chat_id, attempt_id)
        last = "SELECT coalesce(max(n), 0) AS n FROM journal WHERE chat_id = $1 AND attempt_id = $2"
        n = (await transaction.one(last, chat_id, attempt_id))["n"] + 1
        await change.add_row(attempt_id, n, pending)


async def begin_attempt(change: ChatChange, _effect: effects.BeginAttempt) -> None:
    """The attempt gets the next number of its step if earlier attempts left nothing; otherwise a new step begins."""
    is_first = change.snapshot.turn is None or change.snapshot.turn.id != change.turn_id
    last = None if is_first else await change.transaction.one(_LAST_ATTEMPT, change.chat_id, change.turn_id)
    step, number = (1, 1) if last is None else (last["step"] + 1, 1)
    if last is not None and last["outcome"] == _ENDS_WITH_RESET:
        step, number = last["step"], last["number"] + 1
    begun = change.payload if isinstance(change.payload, payloads.AttemptStart) else payloads.AttemptStart()
    assert change.turn_id is not None
    name = AttemptName(
        chat_id=change.chat_id,
        id=new_id("attempt"),
        turn_id=change.turn_id,
        step=step,
        number=number,
        epoch=change.epoch,
    )
    row = {
        "chat_id": change.chat_id,
        "id": name.id,
        "turn_id": name.turn_id,
        "step": step,
        "number": number,
        "epoch": change.epoch,
        "provider": begun.provider,
        "model": begun.model,
        "started_at": change.now,
    }
    await insert(change.transaction, "attempts", row)
    change.attempt = name
    change.live_id = name.id
    change.changes["retry"] = None
    change.emit("attempt", name.id, step=step, number=number, model=begun.model)


async def close_turn(change: ChatChange, effect: effects.CloseTurn) -> None:
    ended = {"outcome": effect.outcome, "ended_at": change.now}
    await update(change.transaction, "turns", ended, chat_id=change.chat_id, id=change.turn_id)
    change.changes["retry"] = None
    change.ended = {"turn": change.turn_id, "outcome": effect.outcome}
    change.turn_id = None


async def record_takeover(change: ChatChange, effect: effects.RecordTakeover) -> None:
    counted = (effect.takeovers, effect.stalled, effect.journal_rows)
    await change.transaction.run(_COUNT_TAKEOVER, change.chat_id, change.turn_id, change.snapshot.holder, *counted)
    change.takeovers = effect.takeovers


async def begin_turn(change: ChatChange, effect: effects.BeginTurn) -> None:
    """Which model answers (rule 10.1): the command's, else the one stored with the message, else the chat's."""
    model = change.payload.model if isinstance(change.payload, payloads.ModelChoice) else change.put_model
    if model is None and effect.kind == "reply" and effect.message_id is not None:
        model = await load_model(change, effect.message_id)
    await open_turn(change, effect.kind, effect.message_id or change.put_id, model)


async def open_turn(change: ChatChange, kind: TurnKind, message_id: str | None, model: str | None) -> None:
    change.turn_id = new_id("turn")
    change.turn_kind = kind
    request = change.payload.request if isinstance(change.payload, payloads.NewChat | payloads.UserInput) else None
    kept = None if request is None else encode([(change.seq, request)])
    await change.transaction.defer(_NEW_TURN, change.chat_id, change.turn_id, kind, message_id, model, change.now, kept)


HANDLERS: Final[Handlers] = {
    effects.AdoptAttempt: adopt_attempt,
    effects.BeginAttempt: begin_attempt,
    effects.BeginTurn: begin_turn,
    effects.CloseAttempt: close_attempt,
    effects.CloseTurn: close_turn,
    effects.LeaveAttempt: leave_attempt,
    effects.RecordTakeover: record_takeover,
    effects.ScheduleRetry: schedule_retry,
}
_TRIED_AGAIN: frozenset[AttemptOutcome] = frozenset({"crashed", "handed_over"})
_LOCK_ATTEMPT: Final = "SELECT id FROM attempts WHERE chat_id = $1 AND id = $2 AND ended_at IS NULL FOR UPDATE"
_ENDED: Final = """
SELECT a.model, a.ended_at, c.owner_id FROM attempts AS a JOIN chats AS c ON c.id = a.chat_id
WHERE a.chat_id = $1 AND a.id = $2 AND a.epoch = $3 AND a.ended_at IS NOT NULL
"""
_JOURNAL: Final = "SELECT n, parts, at FROM journal WHERE chat_id = $1 AND attempt_id = $2 ORDER BY n"


class Ending(NamedTuple):
    """The result of an attempt: its messages, how it really ended, its last journal row, and the cost of its reply.

    `columns` are those of the reply, `totals` what it adds to the chat's.
    """

    messages: list[Message]
    outcome: AttemptOutcome
    last_n: int
    columns: dict[str, Any]
    totals: Totals


async def end_attempt(change: ChatChange, attempt_id: str, effect: CloseAttempt) -> Ending:
    """End an attempt from its journal and its holder's `pending` parts, and add what it used to the user's day."""
    transaction, chat_id, payload, now = change.transaction, change.chat_id, change.payload, change.now
    if not await transaction.lock(_LOCK_ATTEMPT, chat_id, attempt_id):
        raise LeaseLost("The attempt was ended meanwhile.")
    chat = change.chat
    provider, model = chat["attempt_provider"], chat["attempt_model"]
    assembler, last_n, first_at, last_at = await _read_journal(transaction, chat_id, attempt_id)
    pending = _get_pending(change)
    if pending:
        last_n += 1
        first_at = first_at or now
        await change.add_row(attempt_id, last_n, pending)
        for part in pending:
            assembler.add(part)
        last_at = now
    outcome = effect.outcome
    if outcome in _TRIED_AGAIN and not has_visible(assembler.blocks()):
        outcome = "reset"
    step: payloads.WithStep[Any] = payload if isinstance(payload, payloads.WithStep) else payloads.WithStep()
    error = payload.error if isinstance(payload, payloads.Failure | payloads.RetryScheduled) else None
    known = payload.usage if isinstance(payload, payloads.WithStep | payloads.RetryScheduled) else None
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
        started_at=to_time(chat["attempt_started_at"]), first_part_at=first_at, ended_at=last_at or now
    )
    columns = {"usage": encoded_usage, "cost_nanousd": step.cost_nanousd, "timings": encode(timings)}
    written: list[Message] = []
    if outcome != "reset":
        concluded = conclude(assembler, effect.reason, last_at or now)
        written = to_messages(
            concluded.blocks,
            partial=concluded.partial,
            reason=concluded.reason,
            provider=provider,
            model=model,
            response_id=step.response_id if concluded.whole else None,
        )
    begins_turn = chat["attempt_step"] == chat["attempt_number"] == 1
    used = Used(model, usage, step.cost_nanousd, begins_turn=begins_turn)
    await add_usage(transaction, change.owner_id, chat_id, used, now)
    change.live_id = None
    return Ending(written, outcome, last_n, columns, Totals(usage, step.cost_nanousd))


async def backfill_usage(
    transaction: Transaction, chat_id: str, attempt_id: str, epoch: int, step: payloads.WithStep[Any]
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


def _get_pending(change: ChatChange) -> list[Part]:
    return change.payload.pending if isinstance(change.payload, payloads.WithPending) else []


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
