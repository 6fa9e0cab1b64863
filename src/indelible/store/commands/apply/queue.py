"""Effects on the queue: messages join it, leave it for history, and change places.

Positions only grow: rows that have to stand behind a new one get positions behind the last, so that two rows never
want the same one. The order that readers learn is `queue_order`, in one event at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import delete, func, insert, select, update

from indelible.content import Message, decode_blocks, encode
from indelible.ids import new_id
from indelible.machine import effects
from indelible.machine.states import place_in_queue
from indelible.store.commands.apply.change import ChatChange, Handlers
from indelible.store.commands.apply.history import put_user
from indelible.store.commands.apply.turns import open_turn
from indelible.store.database.tables import chats, queue
from indelible.store.payloads import QueuedInput, UserInput, require


async def enqueue(change: ChatChange, effect: effects.Enqueue) -> None:
    given = require(change.payload, UserInput)
    change.queued_id = new_id("queued")
    owner = select(chats.c.owner_id).where(chats.c.id == change.chat_id).scalar_subquery()
    await change.connection.execute(
        insert(queue).values(
            id=change.queued_id,
            chat_id=change.chat_id,
            position=await _find_last_position(change) + 1,
            if_busy=effect.if_busy,
            content=encode(given.blocks),
            model=given.model,
            author_id=given.author_id or owner,
            created_at=change.now,
        )
    )
    place = place_in_queue(change.snapshot.queue, effect.if_busy)
    moved = change.queue_order[place:]
    change.queue_order.insert(place, change.queued_id)
    change.queue_changed = True
    await _move_to_the_end(change, moved)


async def start_queued(change: ChatChange, effect: effects.StartQueued) -> None:
    entered = await _enter_history(change, effect.queued_id or change.queue_order[0])
    await open_turn(change, "reply", entered.id, entered.model)


async def _enter_history(change: ChatChange, queued_id: str, **detail: Any) -> Message:
    """A queued message leaves the queue and enters history."""
    row = (
        await change.connection.execute(select(queue).where(queue.c.chat_id == change.chat_id, queue.c.id == queued_id))
    ).one()
    await _remove(change, queued_id)
    return await put_user(change, decode_blocks(row.content), row.model, queued=queued_id, **detail)


async def insert_steers(change: ChatChange, _effect: effects.InsertSteers) -> None:
    for row in change.snapshot.queue:
        if row.if_busy == "steer":
            change.steers.append(await _enter_history(change, row.id, steers=True))


async def remove_queued(change: ChatChange, effect: effects.RemoveQueued) -> None:
    await _remove(change, effect.queued_id)


async def _remove(change: ChatChange, queued_id: str) -> None:
    await change.connection.execute(delete(queue).where(queue.c.chat_id == change.chat_id, queue.c.id == queued_id))
    change.queue_order.remove(queued_id)
    change.queue_changed = True


async def edit_queued_message(change: ChatChange, effect: effects.EditQueuedMessage) -> None:
    given = require(change.payload, QueuedInput)
    written = (
        update(queue)
        .where(queue.c.chat_id == change.chat_id, queue.c.id == effect.queued_id)
        .values(content=encode(given.blocks))
    )
    await change.connection.execute(written)
    change.queue_changed = True


async def reorder_queue_rows(change: ChatChange, effect: effects.ReorderQueueRows) -> None:
    if effect.promoted_id is not None:
        promoted = (
            update(queue)
            .where(queue.c.chat_id == change.chat_id, queue.c.id == effect.promoted_id)
            .values(if_busy="promoted")
        )
        await change.connection.execute(promoted)
    change.queue_order = list(effect.queued_ids)
    change.queue_changed = True
    await _move_to_the_end(change, effect.queued_ids)


async def _find_last_position(change: ChatChange) -> int:
    last = select(func.coalesce(func.max(queue.c.position), 0)).where(queue.c.chat_id == change.chat_id)
    return int((await change.connection.execute(last)).scalar_one())


async def _move_to_the_end(change: ChatChange, queued_ids: Sequence[str]) -> None:
    """Give these rows new positions behind the last, in this order."""
    position = await _find_last_position(change) if queued_ids else 0
    for number, queued_id in enumerate(queued_ids, position + 1):
        await change.connection.execute(
            update(queue).where(queue.c.chat_id == change.chat_id, queue.c.id == queued_id).values(position=number)
        )


HANDLERS: Final[Handlers] = {
    effects.EditQueuedMessage: edit_queued_message,
    effects.Enqueue: enqueue,
    effects.InsertSteers: insert_steers,
    effects.RemoveQueued: remove_queued,
    effects.ReorderQueueRows: reorder_queue_rows,
    effects.StartQueued: start_queued,
}
