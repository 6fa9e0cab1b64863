"""Effects on turns and their attempts: numbering, starting and ending them.

finish_attempt.py decides how an attempt ends; this module turns its output into messages and emits exactly one event
for its end (`message`, `reset` or `retry`, with the number of its last journal row).
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from indelible.content import encode, find_open_calls
from indelible.ids import new_id
from indelible.machine import effects
from indelible.machine.states import TurnKind
from indelible.store.commands.apply.change import ChatChange, Handlers
from indelible.store.commands.apply.history import load_model, put
from indelible.store.commands.finish_attempt import end_attempt, keep_pending
from indelible.store.database.transaction import insert, update
from indelible.store.lists.usage import add_usage
from indelible.store.outcome import AttemptName
from indelible.store.payloads import AttemptStart, ModelChoice, NewChat, RetryScheduled, UserInput, WithPending, require
from indelible.store.queries.ancestors import find_partial_reply

_ENDS_WITH_RESET: Final = "reset"
_NEW_TURN: Final = """
INSERT INTO turns (chat_id, id, kind, message_id, model, started_at, request, number)
VALUES ($1, $2, $3, $4, $5, $6, $7, (SELECT coalesce(max(number), 0) + 1 FROM turns WHERE chat_id = $1))
"""
_LAST_ATTEMPT: Final = """
SELECT step, number, outcome FROM attempts WHERE chat_id = $1 AND turn_id = $2
ORDER BY step DESC, number DESC LIMIT 1
"""


async def close_attempt(change: ChatChange, effect: effects.CloseAttempt) -> None:
    open_attempt = change.snapshot.attempt
    assert open_attempt is not None
    ending = await end_attempt(
        change.transaction, change.chat_id, open_attempt.id, effect, change.payload, now=change.now
    )
    change.live_id = None
    await add_usage(change.transaction, change.owner_id, change.chat_id, ending.used, change.now)
    detail = {"attempt": open_attempt.id, "last_n": ending.last_n}
    if not ending.messages:
        change.emit("reset", open_attempt.id, **detail, outcome=ending.outcome)
    change.open_calls = find_open_calls([block for message in ending.messages for block in message.blocks])
    continued_id = None
    if ending.messages:
        continued_id = await find_partial_reply(change.transaction, change.chat_id, change.head_id)
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
    detail: dict[str, Any] = dict(require(change.payload, RetryScheduled).retry)
    change.changes["retry"] = encode(detail)
    if change.snapshot.attempt is not None:
        attempt_id = change.snapshot.attempt.id
        effect = effects.CloseAttempt(outcome="reset")
        ending = await end_attempt(
            change.transaction, change.chat_id, attempt_id, effect, change.payload, now=change.now
        )
        await add_usage(change.transaction, change.owner_id, change.chat_id, ending.used, change.now)
        detail |= {"attempt": attempt_id, "last_n": ending.last_n}
        change.live_id = None
    change.emit("retry", change.turn_id, **detail)


async def adopt_attempt(change: ChatChange, _effect: effects.AdoptAttempt) -> None:
    open_attempt = change.snapshot.attempt
    assert open_attempt is not None
    await update(change.transaction, "attempts", {"epoch": change.epoch}, chat_id=change.chat_id, id=open_attempt.id)


async def leave_attempt(change: ChatChange, _effect: effects.LeaveAttempt) -> None:
    assert change.snapshot.attempt is not None
    pending = change.payload.pending if isinstance(change.payload, WithPending) else []
    await keep_pending(change.transaction, change.chat_id, change.snapshot.attempt.id, pending, change.now)


async def begin_attempt(change: ChatChange, _effect: effects.BeginAttempt) -> None:
    """The attempt gets the next number of its step if earlier attempts left nothing; otherwise a new step begins."""
    last = await change.transaction.one(_LAST_ATTEMPT, change.chat_id, change.turn_id)
    step, number = (1, 1) if last is None else (last["step"] + 1, 1)
    if last is not None and last["outcome"] == _ENDS_WITH_RESET:
        step, number = last["step"], last["number"] + 1
    begun = change.payload if isinstance(change.payload, AttemptStart) else AttemptStart()
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
    counted = {
        "takeovers": effect.takeovers,
        "stalled_takeovers": effect.stalled,
        "journal_rows_at_takeover": effect.journal_rows,
    }
    await update(change.transaction, "turns", counted, chat_id=change.chat_id, id=change.turn_id)
    change.takeovers = effect.takeovers


async def begin_turn(change: ChatChange, effect: effects.BeginTurn) -> None:
    """Which model answers (rule 10.1): the command's, else the one stored with the message, else the chat's."""
    model = change.payload.model if isinstance(change.payload, ModelChoice) else change.put_model
    if model is None and effect.kind == "reply" and effect.message_id is not None:
        model = await load_model(change, effect.message_id)
    await open_turn(change, effect.kind, effect.message_id or change.put_id, model)


async def open_turn(change: ChatChange, kind: TurnKind, message_id: str | None, model: str | None) -> None:
    change.turn_id = new_id("turn")
    request = change.payload.request if isinstance(change.payload, NewChat | UserInput) else None
    kept = None if request is None else encode([(change.seq, request)])
    await change.transaction.run(_NEW_TURN, change.chat_id, change.turn_id, kind, message_id, model, change.now, kept)


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
