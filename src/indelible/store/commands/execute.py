"""One command in one transaction: lock the chat, load the facts, decide, apply the effects.

The lock comes first, and everything that the decision rests on is read after it (R1). `decide` is pure
(machine/decide.py); its effects become rows and events in the order in which it names them, and the chat's row is
written at the end. What carries out several commands (an update that also archives, a turn that brings its settings
along, in a copy if need be) does so in one transaction too, so that all of them happen or none.

Must stay true (tests/store/test_conformance.py): after every command the chat is in the same state as in the machine's
own interpreter of these effects; every kind of effect has exactly one handler (tests/store/test_apply.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from indelible.content import encode
from indelible.errors import ChatNotFound, NotAllowed, NotFound, TooMany
from indelible.ids import is_id
from indelible.machine import Snapshot, commands, decide, effects
from indelible.machine.effects import Enqueue, StartQueued
from indelible.store import payloads
from indelible.store.commands import chat, history, turns
from indelible.store.commands.begin import Place, begin_turn
from indelible.store.commands.change import ChatChange, Handlers
from indelible.store.commands.chat import write_labels
from indelible.store.commands.facts import load_snapshot
from indelible.store.commands.fork import fork_chat
from indelible.store.commands.turns import backfill_usage
from indelible.store.database.transaction import Transaction, insert, insert_new
from indelible.store.outcome import ForkPoint, Outcome
from indelible.store.queries.listing import load_summary

HANDLERS: Final[Handlers] = {**chat.HANDLERS, **history.HANDLERS, **turns.HANDLERS}


class Executor(msgspec.Struct, frozen=True, kw_only=True):
    """Executes commands within the limits of a store. A worker without a heartbeat for `lease_timeout_s` is dead."""

    lease_timeout_s: float
    limits: payloads.StoreLimits

    async def execute(
        self,
        transaction: Transaction,
        chat_id: str,
        command: commands.Command,
        payload: payloads.Payload[Any] | None = None,
        *,
        user_id: str | None = None,
        place: Place | None = None,
    ) -> Outcome:
        """With a `place`, a worker may have the chat afterwards (begin.py)."""
        if isinstance(command, commands.Create):
            created = await _create(transaction, chat_id, command, payload, place)
            if created is not None:
                return created
        loaded = await load_snapshot(transaction, chat_id, command, lease_timeout_s=self.lease_timeout_s)
        if user_id is not None and loaded is not None and loaded.chat["owner_id"] != user_id:
            raise ChatNotFound
        decision = decide(loaded.snapshot if loaded is not None else None, command)
        assert loaded is not None
        snapshot, row, open_calls, now, vacant_s = loaded
        if not decision.effects:
            attempt_id = getattr(command, "attempt_id", None)
            if attempt_id is not None and isinstance(payload, payloads.WithStep):
                await backfill_usage(transaction, chat_id, attempt_id, snapshot.epoch, payload)
            return Outcome(
                chat_id=chat_id,
                effective=decision.effective,
                status=snapshot.status,
                seq=row["seq"],
                epoch=snapshot.epoch,
                turn_id=snapshot.turn.id if snapshot.turn is not None else None,
                live_id=snapshot.attempt.id if snapshot.attempt is not None else None,
            )
        kinds = {type(effect) for effect in decision.effects}
        if len(snapshot.queue) >= self.limits.queued and Enqueue in kinds and StartQueued not in kinds:
            raise TooMany(f"The queue is full ({self.limits.queued} messages). Wait for a reply first.")
        change = ChatChange(transaction, snapshot, payload, chat=row, open_calls=open_calls, now=now)
        outcome = await apply_effects(change, decision.effects, place)
        return replace(outcome, vacant_s=vacant_s) if isinstance(command, commands.Acquire) else outcome

    async def update(
        self,
        transaction: Transaction,
        chat_id: str,
        patch: payloads.ChatPatch,
        *,
        archived: bool | None,
        user_id: str | None,
    ) -> Outcome:
        is_moved = False
        if archived is not None:
            move = commands.Archive() if archived else commands.Unarchive()
            is_moved = (await self.execute(transaction, chat_id, move, user_id=user_id)).effective
        outcome = await self.execute(transaction, chat_id, commands.UpdateChat(), patch, user_id=user_id)
        summary = await load_summary(transaction, chat_id, lease_timeout_s=self.lease_timeout_s)
        wakes_readers = outcome.wakes_readers or is_moved
        return replace(outcome, effective=outcome.effective or is_moved, wakes_readers=wakes_readers, summary=summary)

    async def continue_chat(
        self,
        transaction: Transaction,
        chat_id: str,
        message: payloads.UserInput | None,
        *,
        results: payloads.ToolResultsInput | None,
        patch: payloads.ChatPatch | None,
        fork: ForkPoint | None,
        user_id: str,
        place: Place | None = None,
    ) -> Outcome:
        if fork is not None:
            await fork_chat(transaction, chat_id, **fork._asdict(), owner_id=user_id, user_id=user_id)
            chat_id = fork.new_chat_id
        if patch is not None:
            await self.execute(transaction, chat_id, commands.UpdateChat(), patch, user_id=user_id)
        if results is None:
            outcome = await self.execute(transaction, chat_id, commands.Send(), message, user_id=user_id, place=place)
            if outcome.queued_id is not None:
                raise NotAllowed(command=commands.Send.name.value, state=str(outcome.status))
            return outcome
        command = commands.ToolResults(call_ids=tuple(result.call_id for result in results.results))
        last = place if message is None else None
        outcome = await self.execute(transaction, chat_id, command, results, user_id=user_id, place=last)
        if message is None:
            return outcome
        joined = await self.execute(transaction, chat_id, commands.SendSteer(), message, user_id=user_id, place=place)
        messages = [*outcome.messages, *joined.messages]
        begun: dict[str, Any] = {"wakes_workers": joined.wakes_workers, "begun": joined.begun}
        return replace(outcome, seq=joined.seq, status=joined.status, messages=messages, **begun)

    async def fork(self, transaction: Transaction, chat_id: str, fork: ForkPoint, **of: Any) -> Outcome:
        outcome = await fork_chat(transaction, chat_id, **fork._asdict(), **of)
        summary = await load_summary(transaction, fork.new_chat_id, lease_timeout_s=self.lease_timeout_s)
        return replace(outcome, summary=summary)


async def apply_effects(change: ChatChange, decided: Sequence[effects.Effect], place: Place | None = None) -> Outcome:
    """Apply the decided effects, all in the transaction of `change`. A new chat begins with its given history."""
    if isinstance(change.payload, payloads.NewChat):
        await history.add_history(change, change.payload)
    await _apply(change, decided)
    outcome = change.conclude()
    if place is not None:
        outcome = await begin_turn(change, outcome, place, _apply)
    await change.write()
    return replace(outcome, additions=change.collect_additions())


async def _apply(change: ChatChange, decided: Sequence[effects.Effect]) -> None:
    for effect in decided:
        await HANDLERS[type(effect)](change, effect)


async def _create(
    transaction: Transaction,
    chat_id: str,
    command: commands.Create,
    payload: payloads.Payload[Any] | None,
    place: Place | None,
) -> Outcome | None:
    """None if the chat exists, even if another transaction has just created it."""
    new = payloads.require(payload, payloads.NewChat)
    decision = decide(None, command)
    now = await transaction.now()
    row = {
        "id": chat_id,
        "owner_id": new.owner_id,
        "status": "idle",
        "model": new.model,
        "system_prompt": None if new.system_prompt is None else encode(new.system_prompt),
        "parameters": None if new.parameters is None else encode(new.parameters),
        "tools": None if new.tools is None else encode(new.tools),
        "title": new.title,
        "labels": encode(new.labels) if new.labels else None,
        "unindexed_at": None if new.title is None else now,
        "created_at": now,
        "updated_at": now,
    }
    if not await insert_new(transaction, "chats", row):
        return None
    if new.labels:
        await write_labels(transaction, chat_id, new.owner_id, new.labels)
    if new.ephemeral:
        await insert(transaction, "ephemeral_chats", {"chat_id": chat_id})
    begun = row | {"has_title": new.title is not None, "head_kind": None, "seq": 0, "usage": None, "cost_nanousd": None}
    change = ChatChange(transaction, Snapshot(chat_id=chat_id), payload, chat=begun, open_calls=[], now=now)
    outcome = await apply_effects(change, decision.effects, place)
    return replace(outcome, wakes_readers=True)  # lists show it, with or without an event


def check_names(chat_id: str, command: commands.Command | None = None) -> None:
    """Raise `NotFound` for text that cannot be one of our ids. (PostgreSQL would even reject some of it.)"""
    named = (getattr(command, field, None) for field in ("message_id", "queued_id", "turn_id"))
    for name in (chat_id, *named):
        if name is not None and not is_id(name):
            raise NotFound("Not found. It may have been deleted.")
