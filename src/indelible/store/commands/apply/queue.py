"""Effects on the queue: messages enter it, move to history, and change places.

Positions only grow: rows that must follow a new one get positions after the last, so two rows never have the same
one. Readers get the new order as `queue_order`, in one event at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from indelible.content import Message, decode_blocks, encode
from indelible.ids import new_id
from indelible.machine import effects
from indelible.machine.states import place_in_queue
from indelible.store.commands.apply.change import ChatChange, Handlers
from indelible.store.commands.apply.files import stop_using, use_files
from indelible.store.commands.apply.history import choose_model, put_user
from indelible.store.commands.apply.turns import open_turn
from indelible.store.database.transaction import insert, update
from indelible.store.payloads import QueuedInput, UserInput, require

_QUEUED: Final = "SELECT content, model FROM queue WHERE chat_id = $1 AND id = $2"


async def enqueue(change: ChatChange, effect: effects.Enqueue) -> None:
    given = require(change.payload, UserInput)
    blocks = await use_files(change.transaction, change.chat_id, change.owner_id, given.blocks)
    change.queued_id = new_id("queued")
    row = {
        "id": change.queued_id,
        "chat_id": change.chat_id,
        "position": await _find_last_position(change) + 1,
        "if_busy": effect.if_busy,
        "content": encode(blocks),
        "model": choose_model(change, given.model),
        "author_id": given.author_id or change.owner_id,
        "created_at": change.now,
    }
    await insert(change.transaction, "queue", row)
    place = place_in_queue(change.snapshot.queue, effect.if_busy)
    moved = change.queue_order[place:]
    change.queue_order.insert(place, change.queued_id)
    change.queue_changed = change.has_new_content = True
    await _move_to_the_end(change, moved)


async def start_queued(change: ChatChange, effect: effects.StartQueued) -> None:
    entered = await _enter_history(change, effect.queued_id or change.queue_order[0])
    await open_turn(change, "reply", entered.id, change.put_model)


async def _enter_history(change: ChatChange, queued_id: str, **detail: Any) -> Message:
    """Move a queued message into history."""
    row = await change.transaction.one(_QUEUED, change.chat_id, queued_id)
    await _remove(change, queued_id)
    return await put_user(change, decode_blocks(row["content"]), row["model"], queued=queued_id, **detail)


async def insert_steers(change: ChatChange, _effect: effects.InsertSteers) -> None:
    for row in change.snapshot.queue:
        if row.if_busy == "steer":
            change.steers.append(await _enter_history(change, row.id, steers=True))


async def remove_queued(change: ChatChange, effect: effects.RemoveQueued) -> None:
    row = await change.transaction.one(_QUEUED, change.chat_id, effect.queued_id)
    await _remove(change, effect.queued_id)
    await stop_using(change.transaction, change.chat_id, row["content"], change.now)


async def _remove(change: ChatChange, queued_id: str) -> None:
    await change.transaction.run("DELETE FROM queue WHERE chat_id = $1 AND id = $2", change.chat_id, queued_id)
    change.queue_order.remove(queued_id)
    change.queue_changed = True


async def edit_queued_message(change: ChatChange, effect: effects.EditQueuedMessage) -> None:
    given = require(change.payload, QueuedInput)
    blocks = await use_files(change.transaction, change.chat_id, change.owner_id, given.blocks)
    row = await change.transaction.one(_QUEUED, change.chat_id, effect.queued_id)
    await _update(change, effect.queued_id, content=encode(blocks))
    await stop_using(change.transaction, change.chat_id, row["content"], change.now)
    change.queue_changed = True


async def reorder_queue_rows(change: ChatChange, effect: effects.ReorderQueueRows) -> None:
    if effect.promoted_id is not None:
        await _update(change, effect.promoted_id, if_busy="promoted")
    change.queue_order = list(effect.queued_ids)
    change.queue_changed = True
    await _move_to_the_end(change, effect.queued_ids)


async def _update(change: ChatChange, queued_id: str, **changes: Any) -> None:
    await update(change.transaction, "queue", changes, chat_id=change.chat_id, id=queued_id)


async def _find_last_position(change: ChatChange) -> int:
    last = "SELECT coalesce(max(position), 0) AS position FROM queue WHERE chat_id = $1"
    return int((await change.transaction.one(last, change.chat_id))["position"])


async def _move_to_the_end(change: ChatChange, queued_ids: Sequence[str]) -> None:
    """Give these rows new positions after the last, in this order."""
    position = await _find_last_position(change) if queued_ids else 0
    for number, queued_id in enumerate(queued_ids, position + 1):
        await _update(change, queued_id, position=number)


HANDLERS: Final[Handlers] = {
    effects.EditQueuedMessage: edit_queued_message,
    effects.Enqueue: enqueue,
    effects.InsertSteers: insert_steers,
    effects.RemoveQueued: remove_queued,
    effects.ReorderQueueRows: reorder_queue_rows,
    effects.StartQueued: start_queued,
}
