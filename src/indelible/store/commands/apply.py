"""Carrying out what `decide` decided: effects become rows and events.

One object per command. It keeps the chat's row in memory and writes it once, at the end, because the
checks of the schema look at every statement; the row and the events that tell of the change are in the
same transaction as everything else. Events are numbered here and nowhere else: the chat's lock is held,
so their numbers have neither gaps nor races.

Must stay true (tests/store/test_conformance.py): after every command the chat is in the state that the
machine's own interpreter of the same effects is in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import replace
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.content import Block, Message, Text, ToolCall, ToolResult, decode_blocks, encode
from indelible.errors import Invalid
from indelible.ids import new_id
from indelible.machine import effects
from indelible.machine.states import Snapshot, TurnKind, place_in_queue
from indelible.store.commands.finish_attempt import end_attempt, keep_pending
from indelible.store.database.tables import DebugMode, attempts, chats, events, journal, messages, queue, turns
from indelible.store.payloads import (
    AttemptStart,
    AwaitedStep,
    ChatPatch,
    CompactionResult,
    Failure,
    ModelChoice,
    NewChat,
    Payload,
    QueuedInput,
    RetryScheduled,
    Summary,
    ToolResultsInput,
    UserInput,
    WithPending,
    require,
)
from indelible.store.protocol import Outcome
from indelible.store.queries.ancestors import load_ancestors
from indelible.store.queries.chat_view import AttemptName

CONTINUE: Final = "Your last message was cut off. Go on exactly where it ends, without repeating any of it."
NOTICES: Final[dict[effects.NoticeKind, str]] = {
    "stopped": "Stopped by you.",
    "failed": "The reply failed.",
    "crashed": "The reply was cut off by a crash again and again, and was given up. What it said is kept.",
    "empty": "The model returned nothing.",
    "compacted": "The conversation was summarised for the model. Everything above stays as it is for you.",
}
ERRORS: Final[dict[effects.ErrorKind, dict[str, Any]]] = {
    "failed": {"kind": "unknown", "message": NOTICES["failed"]},
    "crashed": {"kind": "crashed", "message": NOTICES["crashed"]},
}
ANSWERS: Final[dict[effects.AnswerReason, str]] = {
    "cancelled": "Cancelled: the user went on without the result of this call.",
    "expired": "Expired: nobody gave the result of this call in time.",
}
DEBUG_MODES: Final[tuple[str, ...]] = get_args(DebugMode)
_ENDS_WITH_RESET: Final = "reset"
_KEPT_AS_JSON: Final = ("labels", "system_prompt", "parameters")
_KEPT_TO_OURSELVES: Final = ("system_prompt", "parameters")


class EffectApplier:
    """The effects of one command on one chat."""

    def __init__(
        self,
        connection: AsyncConnection,
        snapshot: Snapshot,
        payload: Payload[Any] | None,
        *,
        seq: int,
        open_calls: list[ToolCall],
        now: datetime,
    ) -> None:
        self._connection = connection
        self._chat_id = snapshot.chat_id
        self._snapshot = snapshot
        self._payload = payload
        self._open_calls = open_calls
        self._now = now
        self._changes: dict[str, Any] = {}
        self._events: list[dict[str, Any]] = []
        self._seq = seq
        self._head_id = snapshot.head_id
        self._status = snapshot.status
        self._epoch = snapshot.epoch
        self._turn_id = snapshot.turn.id if snapshot.turn is not None else None
        self._live_id = snapshot.attempt.id if snapshot.attempt is not None else None
        self._ended: dict[str, Any] | None = None
        self._dropped = False
        self._put_id: str | None = None
        self._queue_order = [row.id for row in snapshot.queue]
        self._queue_changed = False
        self._messages: list[Message] = []
        self._steers: list[Message] = []
        self._queued_id: str | None = None
        self._attempt: AttemptName | None = None

    async def carry_out(self, decided: Sequence[effects.Effect]) -> Outcome:
        for effect in decided:
            await _DO[type(effect)](self, effect)
        if not self._dropped:
            await self._write_chat()
        return Outcome(
            chat_id=self._chat_id,
            effective=True,
            status=None if self._dropped else self._status,
            seq=self._seq,
            epoch=self._epoch,
            messages=self._messages,
            steers=self._steers,
            queued_id=self._queued_id,
            turn_id=self._turn_id,
            attempt=self._attempt,
            live_id=self._live_id,
        )

    # --- the chat's row and its events ---

    def _tell(self, kind: str, ref: str | None = None, /, **payload: Any) -> None:
        self._seq += 1
        told = encode(payload) if payload else None
        self._events.append(
            {"chat_id": self._chat_id, "seq": self._seq, "kind": kind, "ref": ref, "payload": told, "at": self._now}
        )

    async def _write_chat(self) -> None:
        turn_before = self._snapshot.turn.id if self._snapshot.turn is not None else None
        if self._status is not self._snapshot.status or self._turn_id != turn_before:
            ended = {} if self._ended is None else {"ended": self._ended}
            self._tell("status", self._turn_id, status=self._status.value, **ended)
        if self._queue_changed:
            self._tell("queue", ids=self._queue_order)
        changes = {**self._changes, "status": self._status.value, "head_id": self._head_id, "seq": self._seq}
        changes |= {"epoch": self._epoch, "updated_at": self._now}
        await self._connection.execute(update(chats).where(chats.c.id == self._chat_id).values(**changes))
        if self._events:
            await self._connection.execute(insert(events), self._events)

    async def _set_status(self, effect: effects.SetStatus) -> None:
        self._status = effect.status

    async def _set_error(self, effect: effects.SetError) -> None:
        given = self._payload.error if isinstance(self._payload, Failure) else None
        error = given or ERRORS[effect.kind]
        self._changes["error"] = encode(error)
        self._tell("error", **error)

    async def _clear_error(self, _act: effects.ClearError) -> None:
        self._changes["error"] = None

    async def _set_deadline(self, _act: effects.SetDeadline) -> None:
        deadline_s = self._payload.deadline_s if isinstance(self._payload, AwaitedStep) else None
        deadline_at = self._now + timedelta(seconds=deadline_s) if deadline_s else None
        self._changes["deadline_at"] = deadline_at
        self._tell("action", self._turn_id, calls=self._open_calls, deadline_at=deadline_at)

    async def _clear_holder(self, _act: effects.ClearHolder) -> None:
        self._changes["holder"] = None

    async def _raise_epoch(self, effect: effects.RaiseEpoch) -> None:
        self._epoch += 1
        self._changes |= {"holder": effect.holder, "retry": None}

    async def _set_archived(self, effect: effects.SetArchived) -> None:
        self._changes["archived"] = effect.archived
        self._tell("chat", archived=effect.archived)

    async def _set_description(self, _act: effects.UpdateMetadata) -> None:
        told = msgspec.to_builtins(require(self._payload, ChatPatch))
        if told.get("debug") not in (None, *DEBUG_MODES):
            raise Invalid(f"What is recorded of a chat is one of {', '.join(DEBUG_MODES)}.")
        kept = {name: encode(value) for name, value in told.items() if name in _KEPT_AS_JSON and value is not None}
        self._changes |= {**told, **kept}
        if told:
            self._tell("chat", **{name: value for name, value in told.items() if name not in _KEPT_TO_OURSELVES})

    async def _drop_chat(self, _act: effects.DeleteChat) -> None:
        """The journal has no foreign key (R7), so it goes first. With the attempts locked nobody packs it meanwhile."""
        own = select(attempts.c.id).where(attempts.c.chat_id == self._chat_id)
        await self._connection.execute(own.order_by(attempts.c.id).with_for_update())
        await self._connection.execute(delete(journal).where(journal.c.attempt_id.in_(own)))
        await self._connection.execute(
            update(chats).where(chats.c.id == self._chat_id).values(head_id=None, holder=None)
        )
        await self._connection.execute(delete(chats).where(chats.c.id == self._chat_id))
        self._dropped = True

    # --- attempts and turns ---

    async def _close_attempt(self, effect: effects.CloseAttempt) -> None:
        open_attempt = self._snapshot.attempt
        assert open_attempt is not None
        ending = await end_attempt(self._connection, open_attempt.id, effect, self._payload, self._now)
        self._live_id = None
        told = {"attempt": open_attempt.id, "last_n": ending.last_n}
        if not ending.messages:
            self._tell("reset", open_attempt.id, **told, outcome=ending.outcome)
        self._open_calls = find_open_calls(ending.messages)
        continued_id = await self._find_continued() if ending.messages else None
        for message in ending.messages:
            is_reply = message.role == "assistant"
            await self._put(
                replace(message, continues=continued_id if is_reply else None),
                attempt_id=open_attempt.id,
                columns=ending.columns if is_reply else None,
                **told,
            )
            told = {}

    async def _find_continued(self) -> str | None:
        """The partial reply that the path ends with, perhaps followed by the instruction to go on."""
        async for row in load_ancestors(self._connection, self._chat_id, self._head_id):
            is_instruction = row.role == "user" and row.visibility == "model"
            if not (is_instruction or row.role == "notice" or row.visibility == "people"):
                return str(row.id) if row.role == "assistant" and row.partial else None
        return None

    async def _tell_retry(self, _act: effects.ScheduleRetry) -> None:
        told: dict[str, Any] = dict(require(self._payload, RetryScheduled).retry)
        self._changes["retry"] = encode(told)
        if self._snapshot.attempt is not None:
            attempt_id = self._snapshot.attempt.id
            effect = effects.CloseAttempt(outcome="reset")
            ending = await end_attempt(self._connection, attempt_id, effect, self._payload, self._now)
            told |= {"attempt": attempt_id, "last_n": ending.last_n}
            self._live_id = None
        self._tell("retry", self._turn_id, **told)

    async def _adopt_attempt(self, _act: effects.AdoptAttempt) -> None:
        open_attempt = self._snapshot.attempt
        assert open_attempt is not None
        await self._connection.execute(
            update(attempts).where(attempts.c.id == open_attempt.id).values(epoch=self._epoch)
        )

    async def _leave_attempt(self, _act: effects.LeaveAttempt) -> None:
        assert self._snapshot.attempt is not None
        pending = self._payload.pending if isinstance(self._payload, WithPending) else []
        await keep_pending(self._connection, self._snapshot.attempt.id, pending, self._now)

    async def _open_attempt(self, _act: effects.BeginAttempt) -> None:
        """The number counts on in a step whose attempts left nothing, else a new step begins."""
        last = (
            await self._connection.execute(
                select(attempts.c.step, attempts.c.number, attempts.c.outcome)
                .where(attempts.c.turn_id == self._turn_id)
                .order_by(attempts.c.step.desc(), attempts.c.number.desc())
                .limit(1)
            )
        ).one_or_none()
        step, number = (1, 1) if last is None else (last.step + 1, 1)
        if last is not None and last.outcome == _ENDS_WITH_RESET:
            step, number = last.step, last.number + 1
        begun = self._payload if isinstance(self._payload, AttemptStart) else AttemptStart()
        assert self._turn_id is not None
        name = AttemptName(
            chat_id=self._chat_id,
            id=new_id("attempt"),
            turn_id=self._turn_id,
            step=step,
            number=number,
            epoch=self._epoch,
        )
        await self._connection.execute(
            insert(attempts).values(
                id=name.id,
                chat_id=self._chat_id,
                turn_id=name.turn_id,
                step=step,
                number=number,
                epoch=self._epoch,
                provider=begun.provider,
                model=begun.model,
                started_at=self._now,
            )
        )
        self._attempt = name
        self._live_id = name.id
        self._changes["retry"] = None
        self._tell("attempt", name.id, step=step, number=number, model=begun.model)

    async def _close_turn(self, effect: effects.CloseTurn) -> None:
        await self._connection.execute(
            update(turns).where(turns.c.id == self._turn_id).values(outcome=effect.outcome, ended_at=self._now)
        )
        self._changes["retry"] = None
        self._ended = {"turn": self._turn_id, "outcome": effect.outcome}
        self._turn_id = None

    async def _count_takeover(self, effect: effects.RecordTakeover) -> None:
        counted = {
            "takeovers": effect.takeovers,
            "stalled_takeovers": effect.stalled,
            "journal_rows_at_takeover": effect.journal_rows,
        }
        await self._connection.execute(update(turns).where(turns.c.id == self._turn_id).values(**counted))

    async def _start_turn(self, effect: effects.BeginTurn) -> None:
        choice = self._payload if isinstance(self._payload, NewChat | UserInput | ModelChoice) else ModelChoice()
        await self._open_turn(effect.kind, effect.message_id or self._put_id, choice.model)

    async def _open_turn(self, kind: TurnKind, message_id: str | None, model: str | None) -> None:
        last = select(func.coalesce(func.max(turns.c.number), 0)).where(turns.c.chat_id == self._chat_id)
        self._turn_id = new_id("turn")
        await self._connection.execute(
            insert(turns).values(
                id=self._turn_id,
                chat_id=self._chat_id,
                number=(await self._connection.execute(last)).scalar_one() + 1,
                kind=kind,
                message_id=message_id,
                model=model,
                started_at=self._now,
            )
        )

    # --- messages ---

    async def _put(
        self, message: Message, *, attempt_id: str | None = None, columns: dict[str, Any] | None = None, **told: Any
    ) -> Message:
        """Add a message under the head, and make it the head."""
        id_ = new_id("message")
        await self._connection.execute(
            insert(messages).values(
                chat_id=self._chat_id,
                id=id_,
                parent_id=self._head_id,
                role=message.role,
                blocks=encode(message.blocks),
                visibility=message.visibility,
                partial=message.partial,
                reason=message.reason,
                continues_id=message.continues,
                provider=message.provider,
                model=message.model,
                response_id=message.response_id,
                turn_id=self._turn_id,
                attempt_id=attempt_id,
                created_at=self._now,
                **(columns or {}),
            )
        )
        self._head_id = id_
        self._tell("message", id_, **told)
        stored = replace(message, id=id_)
        self._messages.append(stored)
        return stored

    async def _put_message(self, _act: effects.AddMessage) -> None:
        new = self._payload if isinstance(self._payload, NewChat) else require(self._payload, UserInput)
        await self._put_user(new.blocks, new.model)

    async def _put_user(self, blocks: list[Block], model: str | None, **told: Any) -> Message:
        stored = await self._put(Message(role="user", blocks=blocks, model=model), **told)
        self._put_id = stored.id
        return stored

    async def _ends_partial(self) -> bool:
        """Whether the path ends with a reply that was cut, notices left out."""
        async for row in load_ancestors(self._connection, self._chat_id, self._head_id):
            if row.role != "notice" and row.visibility != "people":
                return bool(row.role == "assistant" and row.partial)
        return False

    async def _put_instruction(self, _act: effects.AddInstruction) -> None:
        if await self._ends_partial():
            await self._put(Message(role="user", blocks=[Text(CONTINUE)], visibility="model"))

    async def _put_summary(self, _act: effects.AddSummary) -> None:
        """Once: the answer to the first time may have been lost."""
        summary = self._payload.summary if isinstance(self._payload, CompactionResult | Summary) else None
        if summary is None:
            return
        head = select(messages.c.blocks).where(messages.c.chat_id == self._chat_id, messages.c.id == self._head_id)
        if (await self._connection.execute(head)).scalar() != encode(summary.blocks):
            await self._put(replace(summary, visibility="model"))

    async def _put_results(self, _act: effects.AddToolResults) -> None:
        names = {call.id: call.name for call in self._open_calls}
        given = {result.call_id: result for result in require(self._payload, ToolResultsInput).results}
        ordered = [
            ToolResult(call_id=call_id, name=name, output=given[call_id].output, is_error=given[call_id].is_error)
            for call_id, name in names.items()
        ]
        await self._put(Message(role="tool", blocks=list(ordered)))

    async def _answer_calls(self, effect: effects.AnswerOpenCalls) -> None:
        answers: list[Block] = [
            ToolResult(call_id=call.id, name=call.name, output=ANSWERS[effect.reason], is_error=True)
            for call in self._open_calls
        ]
        await self._put(Message(role="tool", blocks=answers))

    async def _put_notice(self, effect: effects.AddNotice) -> None:
        given = self._payload.notice if isinstance(self._payload, CompactionResult | Failure) else None
        if effect.kind == "stopped":
            given = None  # whatever arrives in a stop, the user stopped it
        text = given or NOTICES[effect.kind]
        await self._put(Message(role="notice", blocks=[Text(text)], visibility="people"))

    async def _move_head(self, effect: effects.MoveHead) -> None:
        self._head_id = effect.message_id
        self._tell("head", effect.message_id)

    # --- the queue ---

    async def _enqueue(self, effect: effects.Enqueue) -> None:
        given = require(self._payload, UserInput)
        self._queued_id = new_id("queued")
        owner = select(chats.c.owner_id).where(chats.c.id == self._chat_id).scalar_subquery()
        await self._connection.execute(
            insert(queue).values(
                id=self._queued_id,
                chat_id=self._chat_id,
                position=await self._find_last_position() + 1,
                if_busy=effect.if_busy,
                content=encode(given.blocks),
                model=given.model,
                author_id=given.author_id or owner,
                created_at=self._now,
            )
        )
        place = place_in_queue(self._snapshot.queue, effect.if_busy)
        moved = self._queue_order[place:]
        self._queue_order.insert(place, self._queued_id)
        self._queue_changed = True
        await self._move_to_the_end(moved)

    async def _take_queued(self, effect: effects.StartQueued) -> None:
        entered = await self._enter(effect.queued_id or self._queue_order[0])
        await self._open_turn("reply", entered.id, entered.model)

    async def _enter(self, queued_id: str, **told: Any) -> Message:
        """A queued message leaves the queue and enters history."""
        row = (await self._connection.execute(select(queue).where(queue.c.id == queued_id))).one()
        await self._remove(queued_id)
        return await self._put_user(decode_blocks(row.content), row.model, queued=queued_id, **told)

    async def _move_steers_in(self, _act: effects.InsertSteers) -> None:
        for row in self._snapshot.queue:
            if row.if_busy == "steer":
                self._steers.append(await self._enter(row.id, steers=True))

    async def _remove_queued(self, effect: effects.RemoveQueued) -> None:
        await self._remove(effect.queued_id)

    async def _remove(self, queued_id: str) -> None:
        await self._connection.execute(delete(queue).where(queue.c.id == queued_id))
        self._queue_order.remove(queued_id)
        self._queue_changed = True

    async def _rewrite_queued(self, effect: effects.EditQueuedMessage) -> None:
        given = require(self._payload, QueuedInput)
        written = update(queue).where(queue.c.id == effect.queued_id).values(content=encode(given.blocks))
        await self._connection.execute(written)
        self._queue_changed = True

    async def _arrange_queue(self, effect: effects.ReorderQueueRows) -> None:
        if effect.promoted_id is not None:
            promoted = update(queue).where(queue.c.id == effect.promoted_id).values(if_busy="promoted")
            await self._connection.execute(promoted)
        self._queue_order = list(effect.queued_ids)
        self._queue_changed = True
        await self._move_to_the_end(effect.queued_ids)

    async def _find_last_position(self) -> int:
        last = select(func.coalesce(func.max(queue.c.position), 0)).where(queue.c.chat_id == self._chat_id)
        return int((await self._connection.execute(last)).scalar_one())

    async def _move_to_the_end(self, queued_ids: Sequence[str]) -> None:
        """Give these rows new positions behind the last, in this order."""
        position = await self._find_last_position() if queued_ids else 0
        for number, queued_id in enumerate(queued_ids, position + 1):
            await self._connection.execute(update(queue).where(queue.c.id == queued_id).values(position=number))


def find_open_calls(written: Sequence[Message]) -> list[ToolCall]:
    """The calls in these messages that none of them answers, and that are not the provider's own."""
    blocks = [block for message in written for block in message.blocks]
    answered = {block.call_id for block in blocks if isinstance(block, ToolResult)}
    calls = [block for block in blocks if isinstance(block, ToolCall) and not block.provider_executed]
    return [call for call in calls if call.id not in answered]


_DO: Final[dict[type[effects.Effect], Callable[[EffectApplier, Any], Awaitable[None]]]] = {
    effects.AdoptAttempt: EffectApplier._adopt_attempt,
    effects.AnswerOpenCalls: EffectApplier._answer_calls,
    effects.ReorderQueueRows: EffectApplier._arrange_queue,
    effects.ClearError: EffectApplier._clear_error,
    effects.ClearHolder: EffectApplier._clear_holder,
    effects.CloseAttempt: EffectApplier._close_attempt,
    effects.CloseTurn: EffectApplier._close_turn,
    effects.RecordTakeover: EffectApplier._count_takeover,
    effects.DeleteChat: EffectApplier._drop_chat,
    effects.Enqueue: EffectApplier._enqueue,
    effects.LeaveAttempt: EffectApplier._leave_attempt,
    effects.MoveHead: EffectApplier._move_head,
    effects.InsertSteers: EffectApplier._move_steers_in,
    effects.BeginAttempt: EffectApplier._open_attempt,
    effects.AddInstruction: EffectApplier._put_instruction,
    effects.AddMessage: EffectApplier._put_message,
    effects.AddNotice: EffectApplier._put_notice,
    effects.AddToolResults: EffectApplier._put_results,
    effects.AddSummary: EffectApplier._put_summary,
    effects.RaiseEpoch: EffectApplier._raise_epoch,
    effects.RemoveQueued: EffectApplier._remove_queued,
    effects.EditQueuedMessage: EffectApplier._rewrite_queued,
    effects.SetArchived: EffectApplier._set_archived,
    effects.SetDeadline: EffectApplier._set_deadline,
    effects.UpdateMetadata: EffectApplier._set_description,
    effects.SetError: EffectApplier._set_error,
    effects.SetStatus: EffectApplier._set_status,
    effects.BeginTurn: EffectApplier._start_turn,
    effects.StartQueued: EffectApplier._take_queued,
    effects.ScheduleRetry: EffectApplier._tell_retry,
}
