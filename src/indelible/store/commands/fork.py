"""Forking: a new chat that begins with a copy of the path to a message. (Importing uses `insert_copies` too.)

The copy is independent from the start. Nothing in it refers to the old chat, so either can be edited or deleted without
the other. Only the conversation is copied: not the queue, drafts, attempts or the journal. Both chats use the files in
it, and the files exist as long as one of the chats does. The results of the last calls are copied too (rule 10.2). A
call that has no result yet is answered in the copy, because its result will never arrive there (rule 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from indelible.content import encode
from indelible.content.assemble import answer_unrun
from indelible.errors import ChatNotFound, Invalid, NotFound
from indelible.ids import new_id
from indelible.machine.states import Status
from indelible.store.commands.chat import write_labels
from indelible.store.commands.facts import load_end
from indelible.store.commands.history import copy_uses
from indelible.store.database.transaction import Row, Transaction, insert, update
from indelible.store.outcome import Outcome
from indelible.store.queries.history import load_ancestors
from indelible.store.queries.tree import follow_results
from indelible.store.usage import add_up

_COPIED: Final = (
    "blocks",
    "reason",
    "continues_id",
    "usage",
    "cost_nanousd",
    "provider",
    "model",
    "timings",
    "created_at",
)
_EXTRAS: Final = ("model", "system_prompt", "parameters", "tools", "title", "title_is_provisional", "labels", "debug")
_CHAT: Final = f"SELECT owner_id, {', '.join(_EXTRAS)} FROM chats WHERE id = $1"
_EVENTS_AT_ONCE: Final = 100
_MESSAGES_AT_ONCE: Final = 50
_CANCELLED: Final = "Cancelled: the conversation was copied before the result of this call came."


async def fork_chat(
    transaction: Transaction,
    chat_id: str,
    message_id: str,
    *,
    new_chat_id: str,
    owner_id: str,
    user_id: str | None = None,
) -> Outcome:
    """Copy the path that ends with this message into a new, idle chat."""
    chat = await transaction.one(_CHAT, chat_id)
    if chat is None or user_id not in {None, chat["owner_id"]}:
        raise ChatNotFound
    named = await transaction.one(
        "SELECT id, role, visibility FROM messages WHERE chat_id = $1 AND id = $2", chat_id, message_id
    )
    if named is None:
        raise NotFound("Message not found in this chat.")
    if named["visibility"] == "model":
        raise Invalid("A chat can only be forked at a message that people see.")
    message_id = await follow_results(transaction, chat_id, named)
    path = [row async for row in load_ancestors(transaction, chat_id, message_id, *_COPIED, chunk=1000)][::-1]
    now = await transaction.now()
    copies = _copy_path(path, new_chat_id)
    new = {"id": new_chat_id, "owner_id": owner_id, "status": Status.IDLE.value, "created_at": now, "updated_at": now}
    new |= {name: chat[name] for name in _EXTRAS}
    seq = await insert_copies(transaction, new, copies, head_id=copies[-1]["id"], now=now)
    await copy_uses(transaction, chat_id, new_chat_id, (copy["blocks"] for copy in copies))
    return Outcome(chat_id=new_chat_id, effective=True, status=Status.IDLE, seq=seq, epoch=0)


async def insert_copies(
    transaction: Transaction,
    chat: dict[str, Any],
    copies: Sequence[dict[str, Any]],
    *,
    head_id: str | None,
    now: datetime,
) -> int:
    """Insert a new chat with these messages, and one event for each; returns its last event.

    A call at its end that has no result is answered: its result will never arrive here.
    """
    chat_id = chat["id"]
    await insert(transaction, "chats", {**chat, **add_up(copies).to_columns(), "unindexed_at": now})
    labels = [] if chat["labels"] is None else msgspec.json.decode(chat["labels"], type=list[str])
    await write_labels(transaction, chat_id, chat["owner_id"], labels)
    for start in range(0, len(copies), _MESSAGES_AT_ONCE):
        await insert(transaction, "messages", *copies[start : start + _MESSAGES_AT_ONCE])
    written = [copy["id"] for copy in copies]
    open_calls = (await load_end(transaction, chat_id, head_id)).open_calls if head_id is not None else []
    if open_calls:
        answer = {"chat_id": chat_id, "id": new_id("message"), "parent_id": head_id, "role": "tool", "created_at": now}
        await insert(
            transaction,
            "messages",
            {**answer, "blocks": encode([answer_unrun(call, "cancelled", _CANCELLED) for call in open_calls])},
        )
        head_id = answer["id"]
        written.append(head_id)
    events = [
        {"chat_id": chat_id, "seq": seq, "kind": "message", "ref": id_, "at": now} for seq, id_ in enumerate(written, 1)
    ]
    for start in range(0, len(events), _EVENTS_AT_ONCE):
        await insert(transaction, "events", *events[start : start + _EVENTS_AT_ONCE])
    await update(transaction, "chats", {"head_id": head_id, "seq": len(events)}, id=chat_id)
    return len(events)


def _copy_path(path: list[Row], new_chat_id: str) -> list[dict[str, Any]]:
    names = {row["id"]: new_id("message") for row in path}
    return [
        {
            **{column: row[column] for column in _COPIED},
            "chat_id": new_chat_id,
            "id": names[row["id"]],
            "parent_id": names.get(row["parent_id"]),
            "role": row["role"],
            "visibility": row["visibility"],
            "partial": row["partial"],
            "continues_id": names.get(row["continues_id"]),
        }
        for row in path
    ]
