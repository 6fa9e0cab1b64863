"""Effects on the chat itself and on its queue: status, holder, error, deadline and metadata, and its deletion.

Deletion is the only effect that writes the chat's row at once, because
no row is left to write at the end.

The queue holds messages that wait for their turn. Labels are rows too, so that a list can be filtered by one: the
chat's row has them in the user's order, and the rows repeat them in the same transaction (tests/store/test_listing.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, get_args

import msgspec

from indelible.api.shapes import DebugMode
from indelible.content import Message, decode_blocks, encode
from indelible.errors import Invalid
from indelible.ids import new_id
from indelible.machine import effects
from indelible.machine.states import place_in_queue
from indelible.store.commands.change import ChatChange, Handlers
from indelible.store.commands.history import choose_error, choose_model, put_user, release_files, stop_using, use_files
from indelible.store.commands.turns import open_turn
from indelible.store.database.transaction import Transaction, clean_label, insert, update
from indelible.store.payloads import AwaitedStep, ChatPatch, QueuedInput, UserInput, check_labels, require

DEBUG_MODES: Final[tuple[str, ...]] = get_args(DebugMode)
_KEPT_AS_JSON: Final = ("labels", "system_prompt", "parameters", "tools")
_KEPT_TO_OURSELVES: Final = ("system_prompt", "parameters", "tools")


async def set_status(change: ChatChange, effect: effects.SetStatus) -> None:
    change.status = effect.status


async def set_error(change: ChatChange, effect: effects.SetError) -> None:
    error = choose_error(change, effect.kind)
    change.changes["error"] = encode(error)
    change.emit("error", **error)


async def restore_error(change: ChatChange, _effect: effects.RestoreError) -> None:
    stored = "SELECT error FROM messages WHERE chat_id = $1 AND id = $2"
    row = await change.transaction.one(stored, change.chat_id, change.head_id)
    change.changes["error"] = row["error"]
    change.emit("error", **msgspec.json.decode(row["error"]))


async def clear_error(change: ChatChange, _effect: effects.ClearError) -> None:
    change.changes["error"] = None


async def set_deadline(change: ChatChange, _effect: effects.SetDeadline) -> None:
    deadline_s = change.payload.deadline_s if isinstance(change.payload, AwaitedStep) else None
    deadline_at = change.now + timedelta(seconds=deadline_s) if deadline_s else None
    change.changes["deadline_at"] = deadline_at
    change.emit("action", change.turn_id, calls=change.open_calls, deadline_at=deadline_at)


async def clear_holder(change: ChatChange, _effect: effects.ClearHolder) -> None:
    change.changes["holder"] = None


async def raise_epoch(change: ChatChange, effect: effects.RaiseEpoch) -> None:
    change.epoch += 1
    change.changes |= {"holder": effect.holder, "retry": None}


async def set_archived(change: ChatChange, effect: effects.SetArchived) -> None:
    change.changes["archived"] = effect.archived
    change.emit("chat", archived=effect.archived)


async def update_metadata(change: ChatChange, _effect: effects.UpdateMetadata) -> None:
    detail = msgspec.to_builtins(require(change.payload, ChatPatch))
    if "label_pairs" in detail:
        detail["labels"] = await replace_pairs(change.transaction, change.chat_id, detail.pop("label_pairs"))
    if detail.get("debug") not in (None, *DEBUG_MODES):
        raise Invalid(f"debug must be one of {', '.join(DEBUG_MODES)}.")
    kept = {name: encode(value) for name, value in detail.items() if name in _KEPT_AS_JSON and value is not None}
    change.changes |= {**detail, **kept}
    if "title" in detail:
        change.changes |= {"title_is_provisional": False, "unindexed_at": change.now}
    if "labels" in detail:
        await write_labels(change.transaction, change.chat_id, change.owner_id, detail["labels"] or [])
    if detail:
        change.emit("chat", **{name: value for name, value in detail.items() if name not in _KEPT_TO_OURSELVES})


async def delete_chat(change: ChatChange, _effect: effects.DeleteChat) -> None:
    """Delete the journal first: it has no foreign key (R7). Locking the attempts keeps a sweep from packing it."""
    transaction, chat_id = change.transaction, change.chat_id
    await transaction.all("SELECT id FROM attempts WHERE chat_id = $1 ORDER BY id FOR UPDATE", chat_id)
    await transaction.run("DELETE FROM journal WHERE chat_id = $1", chat_id)
    await release_files(transaction, chat_id, change.now)
    await update(transaction, "chats", {"head_id": None, "holder": None}, id=chat_id)
    await transaction.run("DELETE FROM chats WHERE id = $1", chat_id)
    change.dropped = True


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
    effects.ClearError: clear_error,
    effects.ClearHolder: clear_holder,
    effects.DeleteChat: delete_chat,
    effects.EditQueuedMessage: edit_queued_message,
    effects.Enqueue: enqueue,
    effects.InsertSteers: insert_steers,
    effects.RaiseEpoch: raise_epoch,
    effects.RemoveQueued: remove_queued,
    effects.ReorderQueueRows: reorder_queue_rows,
    effects.RestoreError: restore_error,
    effects.SetArchived: set_archived,
    effects.SetDeadline: set_deadline,
    effects.SetError: set_error,
    effects.SetStatus: set_status,
    effects.StartQueued: start_queued,
    effects.UpdateMetadata: update_metadata,
}


_LABELS: Final = "SELECT labels FROM chats WHERE id = $1"


async def replace_pairs(transaction: Transaction, chat_id: str, pairs: Sequence[str]) -> list[str]:
    """The chat's labels with these in place of those of the form `key=value`. The chat is locked."""
    row = await transaction.one(_LABELS, chat_id)
    stored = [] if row["labels"] is None else msgspec.json.decode(row["labels"], type=list[str])
    labels = [*(label for label in stored if "=" not in label), *pairs]
    check_labels(labels)
    return labels


async def write_labels(transaction: Transaction, chat_id: str, owner_id: str, labels: Sequence[str]) -> None:
    """Replace the rows of a chat's labels."""
    await transaction.run("DELETE FROM chat_labels WHERE chat_id = $1", chat_id)
    named = dict.fromkeys(clean_label(label) for label in labels)
    rows = [{"chat_id": chat_id, "label": label, "owner_id": owner_id} for label in named]
    if rows:
        await insert(transaction, "chat_labels", *rows)
