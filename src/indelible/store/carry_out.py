"""Carrying out what `decide` decided: acts become rows and events.

One object per command. It keeps the chat's row in memory and writes it once, at the end, because the
checks of the schema look at every statement; the row and the events that tell of the change are in the
same transaction as everything else. Events are numbered here and nowhere else: the chat's lock is held,
so their numbers have neither gaps nor races.

Must stay true (tests/store/test_conformance.py): after every command the chat is in the state that the
machine's own interpreter of the same acts is in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.content import Block, Message, Text, ToolCall, ToolResult, Usage, decode_blocks, encode
from indelible.ids import new_id
from indelible.machine import acts
from indelible.machine.states import Snapshot, place_in_queue
from indelible.store.climb import climb
from indelible.store.ending import end_attempt
from indelible.store.port import AttemptName, Outcome, Words
from indelible.store.tables import attempts, chats, events, journal, messages, queue, turns

CONTINUE: Final = "Your last message was cut off. Go on exactly where it ends, without repeating any of it."
NOTICES: Final[dict[acts.NoticeKind, str]] = {
    "stopped": "Stopped by you.",
    "failed": "The reply failed.",
    "empty": "The model returned nothing.",
}
ANSWERS: Final[dict[acts.AnswerReason, str]] = {
    "cancelled": "Cancelled: the user went on without the result of this call.",
    "expired": "Expired: nobody gave the result of this call in time.",
}
_ENDS_WITH_RESET: Final = "reset"


class Applier:
    """The acts of one command on one chat."""

    def __init__(
        self,
        connection: AsyncConnection,
        snapshot: Snapshot,
        words: Words,
        *,
        seq: int,
        open_calls: Sequence[ToolCall],
        now: datetime,
    ) -> None:
        self._connection = connection
        self._chat_id = snapshot.chat_id
        self._snapshot = snapshot
        self._words = words
        self._open_calls = open_calls
        self._now = now
        self._changes: dict[str, Any] = {}
        self._events: list[dict[str, Any]] = []
        self._seq = seq
        self._head_id = snapshot.head_id
        self._status = snapshot.status
        self._epoch = snapshot.epoch
        self._turn_id = snapshot.turn.id if snapshot.turn is not None else None
        self._dropped = False
        self._put_id: str | None = None
        self._partial_end = snapshot.last_is_partial
        self._queue_order = [row.id for row in snapshot.queue]
        self._queue_changed = False
        self._messages: list[Message] = []
        self._steers: list[Message] = []
        self._queued_id: str | None = None
        self._attempt: AttemptName | None = None

    async def carry_out(self, decided: Sequence[acts.Act]) -> Outcome:
        for act in decided:
            await _DO[type(act)](self, act)
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
        )

    # --- the chat's row and its events ---

    def _tell(self, kind: str, ref: str | None = None, /, **payload: Any) -> None:
        self._seq += 1
        told = encode(payload) if payload else None
        self._events.append(
            {"chat_id": self._chat_id, "seq": self._seq, "kind": kind, "ref": ref, "payload": told, "at": self._now}
        )

    async def _write_chat(self) -> None:
        if self._status is not self._snapshot.status:
            self._tell("status", self._turn_id, status=self._status.value)
        if self._queue_changed:
            self._tell("queue", ids=self._queue_order)
        changes = {**self._changes, "status": self._status.value, "head_id": self._head_id, "seq": self._seq}
        changes |= {"epoch": self._epoch, "updated_at": self._now}
        await self._connection.execute(update(chats).where(chats.c.id == self._chat_id).values(**changes))
        if self._events:
            await self._connection.execute(insert(events), self._events)

    async def _set_status(self, act: acts.SetStatus) -> None:
        self._status = act.status

    async def _set_error(self, _act: acts.SetError) -> None:
        error = self._words.error or {"kind": "unknown", "message": NOTICES["failed"]}
        self._changes["error"] = encode(error)
        self._tell("error", **error)

    async def _clear_error(self, _act: acts.ClearError) -> None:
        self._changes["error"] = None

    async def _set_deadline(self, _act: acts.SetDeadline) -> None:
        deadline_s = self._words.deadline_s
        self._changes["deadline_at"] = self._now + timedelta(seconds=deadline_s) if deadline_s else None

    async def _clear_holder(self, _act: acts.ClearHolder) -> None:
        self._changes["holder"] = None

    async def _raise_epoch(self, act: acts.RaiseEpoch) -> None:
        self._epoch += 1
        self._changes["holder"] = act.holder

    async def _set_archived(self, act: acts.SetArchived) -> None:
        self._changes["archived"] = act.archived
        self._tell("chat", archived=act.archived)

    async def _drop_chat(self, _act: acts.DropChat) -> None:
        """The journal has no foreign key (R7), so it goes first."""
        own = select(attempts.c.id).where(attempts.c.chat_id == self._chat_id)
        await self._connection.execute(delete(journal).where(journal.c.attempt_id.in_(own)))
        await self._connection.execute(
            update(chats).where(chats.c.id == self._chat_id).values(head_id=None, holder=None)
        )
        await self._connection.execute(delete(chats).where(chats.c.id == self._chat_id))
        self._dropped = True

    # --- attempts and turns ---

    async def _close_attempt(self, act: acts.CloseAttempt) -> None:
        open_attempt = self._snapshot.attempt
        assert open_attempt is not None
        ending = await end_attempt(self._connection, open_attempt.id, act, self._words, self._now)
        told = {"attempt": open_attempt.id, "last_n": ending.last_n}
        if not ending.messages:
            self._tell("reset", open_attempt.id, **told, outcome=ending.outcome)
        continued_id = await self._find_continued() if ending.messages else None
        for message in ending.messages:
            is_reply = message.role == "assistant"
            await self._put(
                replace(message, continues=continued_id if is_reply else None),
                attempt_id=open_attempt.id,
                usage=ending.usage if is_reply else None,
                **told,
            )
            told = {}

    async def _find_continued(self) -> str | None:
        """The partial reply that the path ends with, perhaps followed by the instruction to go on."""
        async for row in climb(self._connection, self._chat_id, self._head_id):
            is_instruction = row.role == "user" and row.visibility == "model"
            if not (is_instruction or row.role == "notice" or row.visibility == "people"):
                return str(row.id) if row.role == "assistant" and row.partial else None
        return None

    async def _adopt_attempt(self, _act: acts.AdoptAttempt) -> None:
        open_attempt = self._snapshot.attempt
        assert open_attempt is not None
        await self._connection.execute(
            update(attempts).where(attempts.c.id == open_attempt.id).values(epoch=self._epoch)
        )

    async def _open_attempt(self, _act: acts.OpenAttempt) -> None:
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
        assert self._turn_id is not None
        name = AttemptName(id=new_id("attempt"), turn_id=self._turn_id, step=step, number=number, epoch=self._epoch)
        await self._connection.execute(
            insert(attempts).values(
                id=name.id,
                chat_id=self._chat_id,
                turn_id=name.turn_id,
                step=step,
                number=number,
                epoch=self._epoch,
                provider=self._words.provider,
                model=self._words.model,
                started_at=self._now,
            )
        )
        self._attempt = name
        self._tell("attempt", name.id, step=step, number=number, model=self._words.model)

    async def _close_turn(self, act: acts.CloseTurn) -> None:
        await self._connection.execute(
            update(turns).where(turns.c.id == self._turn_id).values(outcome=act.outcome, ended_at=self._now)
        )
        self._turn_id = None

    async def _start_turn(self, act: acts.StartTurn) -> None:
        last = select(func.coalesce(func.max(turns.c.number), 0)).where(turns.c.chat_id == self._chat_id)
        self._turn_id = new_id("turn")
        await self._connection.execute(
            insert(turns).values(
                id=self._turn_id,
                chat_id=self._chat_id,
                number=(await self._connection.execute(last)).scalar_one() + 1,
                kind=act.kind,
                message_id=act.message_id or self._put_id,
                started_at=self._now,
            )
        )

    # --- messages ---

    async def _put(
        self, message: Message, *, attempt_id: str | None = None, usage: Usage | None = None, **told: Any
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
                usage=None if usage is None else encode(usage),
                provider=message.provider,
                model=message.model,
                response_id=message.response_id,
                turn_id=self._turn_id,
                attempt_id=attempt_id,
                created_at=self._now,
            )
        )
        self._head_id = id_
        if message.role != "notice" and message.visibility != "people":
            self._partial_end = message.role == "assistant" and message.partial
        self._tell("message", id_, **told)
        stored = replace(message, id=id_)
        self._messages.append(stored)
        return stored

    async def _put_message(self, _act: acts.PutMessage) -> None:
        await self._put_user(self._words.blocks, self._words.model)

    async def _put_user(self, blocks: list[Block], model: str | None) -> Message:
        stored = await self._put(Message(role="user", blocks=blocks, model=model))
        self._put_id = stored.id
        return stored

    async def _put_instruction(self, _act: acts.PutInstruction) -> None:
        if self._partial_end:
            await self._put(Message(role="user", blocks=[Text(CONTINUE)], visibility="model"))

    async def _put_results(self, _act: acts.PutResults) -> None:
        names = {call.id: call.name for call in self._open_calls}
        given = {result.call_id: result for result in self._words.results}
        ordered = [
            ToolResult(call_id=call_id, name=name, output=given[call_id].output, is_error=given[call_id].is_error)
            for call_id, name in names.items()
        ]
        await self._put(Message(role="tool", blocks=list(ordered)))

    async def _answer_calls(self, act: acts.AnswerCalls) -> None:
        answers: list[Block] = [
            ToolResult(call_id=call.id, name=call.name, output=ANSWERS[act.reason], is_error=True)
            for call in self._open_calls
        ]
        await self._put(Message(role="tool", blocks=answers))

    async def _put_notice(self, act: acts.PutNotice) -> None:
        told = self._words.notice if act.kind != "stopped" else None  # whatever arrives in a stop, the user stopped it
        text = told or NOTICES[act.kind]
        await self._put(Message(role="notice", blocks=[Text(text)], visibility="people"))

    async def _move_head(self, act: acts.MoveHead) -> None:
        self._head_id = act.message_id
        self._tell("head", act.message_id)

    # --- the queue ---

    async def _enqueue(self, act: acts.Enqueue) -> None:
        self._queued_id = new_id("queued")
        owner = select(chats.c.owner_id).where(chats.c.id == self._chat_id).scalar_subquery()
        await self._connection.execute(
            insert(queue).values(
                id=self._queued_id,
                chat_id=self._chat_id,
                position=await self._find_last_position() + 1,
                when=act.when,
                content=encode(self._words.blocks),
                model=self._words.model,
                author_id=self._words.author_id or owner,
                created_at=self._now,
            )
        )
        place = place_in_queue(self._snapshot.queue, act.when)
        moved = self._queue_order[place:]
        self._queue_order.insert(place, self._queued_id)
        self._queue_changed = True
        await self._move_to_the_end(moved)

    async def _take_queued(self, act: acts.TakeQueued) -> None:
        await self._enter(act.queued_id or self._queue_order[0])
        await self._start_turn(acts.StartTurn(message_id=self._put_id))

    async def _enter(self, queued_id: str) -> Message:
        """A queued message leaves the queue and enters history."""
        row = (await self._connection.execute(select(queue).where(queue.c.id == queued_id))).one()
        await self._remove(queued_id)
        return await self._put_user(decode_blocks(row.content), row.model)

    async def _move_steers_in(self, _act: acts.MoveSteersIn) -> None:
        for row in self._snapshot.queue:
            if row.when == "steer":
                self._steers.append(await self._enter(row.id))

    async def _remove_queued(self, act: acts.RemoveQueued) -> None:
        await self._remove(act.queued_id)

    async def _remove(self, queued_id: str) -> None:
        await self._connection.execute(delete(queue).where(queue.c.id == queued_id))
        self._queue_order.remove(queued_id)
        self._queue_changed = True

    async def _rewrite_queued(self, act: acts.RewriteQueued) -> None:
        written = update(queue).where(queue.c.id == act.queued_id).values(content=encode(self._words.blocks))
        await self._connection.execute(written)
        self._queue_changed = True

    async def _arrange_queue(self, act: acts.ArrangeQueue) -> None:
        if act.promoted_id is not None:
            promoted = update(queue).where(queue.c.id == act.promoted_id).values(when="promoted")
            await self._connection.execute(promoted)
        self._queue_order = list(act.queued_ids)
        self._queue_changed = True
        await self._move_to_the_end(act.queued_ids)

    async def _find_last_position(self) -> int:
        last = select(func.coalesce(func.max(queue.c.position), 0)).where(queue.c.chat_id == self._chat_id)
        return int((await self._connection.execute(last)).scalar_one())

    async def _move_to_the_end(self, queued_ids: Sequence[str]) -> None:
        """Give these rows new positions behind the last, in this order."""
        position = await self._find_last_position() if queued_ids else 0
        for number, queued_id in enumerate(queued_ids, position + 1):
            await self._connection.execute(update(queue).where(queue.c.id == queued_id).values(position=number))


_DO: Final[dict[type[acts.Act], Callable[[Applier, Any], Awaitable[None]]]] = {
    acts.AdoptAttempt: Applier._adopt_attempt,
    acts.AnswerCalls: Applier._answer_calls,
    acts.ArrangeQueue: Applier._arrange_queue,
    acts.ClearError: Applier._clear_error,
    acts.ClearHolder: Applier._clear_holder,
    acts.CloseAttempt: Applier._close_attempt,
    acts.CloseTurn: Applier._close_turn,
    acts.DropChat: Applier._drop_chat,
    acts.Enqueue: Applier._enqueue,
    acts.MoveHead: Applier._move_head,
    acts.MoveSteersIn: Applier._move_steers_in,
    acts.OpenAttempt: Applier._open_attempt,
    acts.PutInstruction: Applier._put_instruction,
    acts.PutMessage: Applier._put_message,
    acts.PutNotice: Applier._put_notice,
    acts.PutResults: Applier._put_results,
    acts.RaiseEpoch: Applier._raise_epoch,
    acts.RemoveQueued: Applier._remove_queued,
    acts.RewriteQueued: Applier._rewrite_queued,
    acts.SetArchived: Applier._set_archived,
    acts.SetDeadline: Applier._set_deadline,
    acts.SetError: Applier._set_error,
    acts.SetStatus: Applier._set_status,
    acts.StartTurn: Applier._start_turn,
    acts.TakeQueued: Applier._take_queued,
}
