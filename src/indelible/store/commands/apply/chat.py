"""Effects on the chat itself: its status, holder, error, deadline and metadata, and its deletion.

The texts of notices and errors are in texts.py. Deletion is the only effect that writes the chat's row at once, because
no row is left to write at the end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, get_args

import msgspec

from indelible.api.shapes import DebugMode
from indelible.content import encode
from indelible.errors import Invalid
from indelible.machine import effects
from indelible.store.commands.apply.change import ChatChange, Handlers
from indelible.store.commands.apply.files import release_files
from indelible.store.commands.apply.history import choose_error
from indelible.store.commands.labels import replace_pairs, write_labels
from indelible.store.database.transaction import update
from indelible.store.payloads import AwaitedStep, ChatPatch, require

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


HANDLERS: Final[Handlers] = {
    effects.ClearError: clear_error,
    effects.ClearHolder: clear_holder,
    effects.DeleteChat: delete_chat,
    effects.RaiseEpoch: raise_epoch,
    effects.RestoreError: restore_error,
    effects.SetArchived: set_archived,
    effects.SetDeadline: set_deadline,
    effects.SetError: set_error,
    effects.SetStatus: set_status,
    effects.UpdateMetadata: update_metadata,
}
