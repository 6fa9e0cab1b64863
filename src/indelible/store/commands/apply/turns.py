"""Effects on turns and their attempts: they are numbered, begun and ended here.

How an attempt ends is finish_attempt.py; what it left becomes messages here, and exactly one event tells of its end
(`message`, `reset` or `retry`, with the number of its last journal row).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import func, insert, select, update

from indelible.content import Message, ToolCall, ToolResult, encode
from indelible.ids import new_id
from indelible.machine import effects
from indelible.machine.states import TurnKind
from indelible.store.commands.apply.change import ChatChange, Handlers
from indelible.store.commands.apply.history import put
from indelible.store.commands.finish_attempt import end_attempt, keep_pending
from indelible.store.database.tables import attempts, turns
from indelible.store.payloads import AttemptStart, ModelChoice, NewChat, RetryScheduled, UserInput, WithPending, require
from indelible.store.queries.ancestors import load_ancestors
from indelible.store.queries.chat_view import AttemptName

_ENDS_WITH_RESET: Final = "reset"


async def close_attempt(change: ChatChange, effect: effects.CloseAttempt) -> None:
    open_attempt = change.snapshot.attempt
    assert open_attempt is not None
    ending = await end_attempt(change.connection, open_attempt.id, effect, change.payload, change.now)
    change.live_id = None
    detail = {"attempt": open_attempt.id, "last_n": ending.last_n}
    if not ending.messages:
        change.emit("reset", open_attempt.id, **detail, outcome=ending.outcome)
    change.open_calls = find_open_calls(ending.messages)
    continued_id = await _find_continued(change) if ending.messages else None
    for message in ending.messages:
        is_reply = message.role == "assistant"
        await put(
            change,
            replace(message, continues=continued_id if is_reply else None),
            attempt_id=open_attempt.id,
            columns=ending.columns if is_reply else None,
            **detail,
        )
        detail = {}


async def _find_continued(change: ChatChange) -> str | None:
    """The partial reply that the path ends with, perhaps followed by the instruction to go on."""
    async for row in load_ancestors(change.connection, change.chat_id, change.head_id):
        is_instruction = row.role == "user" and row.visibility == "model"
        if not (is_instruction or row.role == "notice" or row.visibility == "people"):
            return str(row.id) if row.role == "assistant" and row.partial else None
    return None


async def schedule_retry(change: ChatChange, _effect: effects.ScheduleRetry) -> None:
    detail: dict[str, Any] = dict(require(change.payload, RetryScheduled).retry)
    change.changes["retry"] = encode(detail)
    if change.snapshot.attempt is not None:
        attempt_id = change.snapshot.attempt.id
        effect = effects.CloseAttempt(outcome="reset")
        ending = await end_attempt(change.connection, attempt_id, effect, change.payload, change.now)
        detail |= {"attempt": attempt_id, "last_n": ending.last_n}
        change.live_id = None
    change.emit("retry", change.turn_id, **detail)


async def adopt_attempt(change: ChatChange, _effect: effects.AdoptAttempt) -> None:
    open_attempt = change.snapshot.attempt
    assert open_attempt is not None
    await change.connection.execute(update(attempts).where(attempts.c.id == open_attempt.id).values(epoch=change.epoch))


async def leave_attempt(change: ChatChange, _effect: effects.LeaveAttempt) -> None:
    assert change.snapshot.attempt is not None
    pending = change.payload.pending if isinstance(change.payload, WithPending) else []
    await keep_pending(change.connection, change.snapshot.attempt.id, pending, change.now)


async def begin_attempt(change: ChatChange, _effect: effects.BeginAttempt) -> None:
    """The number counts on in a step whose attempts left nothing, else a new step begins."""
    last = (
        await change.connection.execute(
            select(attempts.c.step, attempts.c.number, attempts.c.outcome)
            .where(attempts.c.turn_id == change.turn_id)
            .order_by(attempts.c.step.desc(), attempts.c.number.desc())
            .limit(1)
        )
    ).one_or_none()
    step, number = (1, 1) if last is None else (last.step + 1, 1)
    if last is not None and last.outcome == _ENDS_WITH_RESET:
        step, number = last.step, last.number + 1
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
    await change.connection.execute(
        insert(attempts).values(
            id=name.id,
            chat_id=change.chat_id,
            turn_id=name.turn_id,
            step=step,
            number=number,
            epoch=change.epoch,
            provider=begun.provider,
            model=begun.model,
            started_at=change.now,
        )
    )
    change.attempt = name
    change.live_id = name.id
    change.changes["retry"] = None
    change.emit("attempt", name.id, step=step, number=number, model=begun.model)


async def close_turn(change: ChatChange, effect: effects.CloseTurn) -> None:
    await change.connection.execute(
        update(turns).where(turns.c.id == change.turn_id).values(outcome=effect.outcome, ended_at=change.now)
    )
    change.changes["retry"] = None
    change.ended = {"turn": change.turn_id, "outcome": effect.outcome}
    change.turn_id = None


async def record_takeover(change: ChatChange, effect: effects.RecordTakeover) -> None:
    counted = {
        "takeovers": effect.takeovers,
        "stalled_takeovers": effect.stalled,
        "journal_rows_at_takeover": effect.journal_rows,
    }
    await change.connection.execute(update(turns).where(turns.c.id == change.turn_id).values(**counted))


async def begin_turn(change: ChatChange, effect: effects.BeginTurn) -> None:
    choice = change.payload if isinstance(change.payload, NewChat | UserInput | ModelChoice) else ModelChoice()
    await open_turn(change, effect.kind, effect.message_id or change.put_id, choice.model)


async def open_turn(change: ChatChange, kind: TurnKind, message_id: str | None, model: str | None) -> None:
    last = select(func.coalesce(func.max(turns.c.number), 0)).where(turns.c.chat_id == change.chat_id)
    change.turn_id = new_id("turn")
    await change.connection.execute(
        insert(turns).values(
            id=change.turn_id,
            chat_id=change.chat_id,
            number=(await change.connection.execute(last)).scalar_one() + 1,
            kind=kind,
            message_id=message_id,
            model=model,
            started_at=change.now,
        )
    )


def find_open_calls(written: Sequence[Message]) -> list[ToolCall]:
    """The calls in these messages that none of them answers, and that are not the provider's own."""
    blocks = [block for message in written for block in message.blocks]
    answered = {block.call_id for block in blocks if isinstance(block, ToolResult)}
    calls = [block for block in blocks if isinstance(block, ToolCall) and not block.provider_executed]
    return [call for call in calls if call.id not in answered]


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
