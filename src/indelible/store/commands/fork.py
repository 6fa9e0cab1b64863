"""Forking: a new chat that begins with a copy of the path to a message.

The copy is independent from the start. Nothing in it refers to the old chat, so either can be edited or
deleted without the other. Only the conversation is copied: not the queue, drafts, attempts or the journal.
Files in it are used by both chats, and are there as long as one of them is.
The results of the last calls come along (SPEC 10.2); a call that has none yet is answered, because its result will
never arrive there (SPEC 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from indelible.content import ToolCall, ToolResult, encode
from indelible.errors import Invalid, NotFound
from indelible.ids import new_id
from indelible.machine.states import Status
from indelible.store.commands.apply.files import copy_uses
from indelible.store.commands.facts import load_end
from indelible.store.commands.totals import add_up
from indelible.store.database.transaction import Row, Transaction, insert, update
from indelible.store.protocol import Outcome
from indelible.store.queries.ancestors import load_ancestors
from indelible.store.queries.descendants import follow_results

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
_BESIDE: Final = ("model", "system_prompt", "parameters", "tools", "title", "title_is_provisional", "labels", "debug")
_CHAT: Final = f"SELECT owner_id, {', '.join(_BESIDE)} FROM chats WHERE id = $1"
_EVENTS_AT_ONCE: Final = 100
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
        raise NotFound("Chat not found. It may have been deleted.")
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
    open_calls = (await load_end(transaction, chat_id, message_id)).open_calls
    if open_calls:
        last = dict.fromkeys(copies[-1]) | {"chat_id": new_chat_id, "id": new_id("message")}
        answer = {"parent_id": copies[-1]["id"], "role": "tool", "visibility": "both", "partial": False}
        copies.append({**last, **answer, "blocks": _answer(open_calls), "created_at": now})
    new = {"id": new_chat_id, "owner_id": owner_id, "status": Status.IDLE.value, "created_at": now, "updated_at": now}
    await insert(transaction, "chats", {**new, **{name: chat[name] for name in _BESIDE}, **add_up(copies).to_columns()})
    for copy in copies:
        await insert(transaction, "messages", copy)
    events = [
        {"chat_id": new_chat_id, "seq": seq, "kind": "message", "ref": copy["id"], "at": now}
        for seq, copy in enumerate(copies, 1)
    ]
    for start in range(0, len(events), _EVENTS_AT_ONCE):
        await insert(transaction, "events", *events[start : start + _EVENTS_AT_ONCE])
    await update(transaction, "chats", {"head_id": copies[-1]["id"], "seq": len(events)}, id=new_chat_id)
    await copy_uses(transaction, chat_id, new_chat_id, (copy["blocks"] for copy in copies))
    return Outcome(chat_id=new_chat_id, effective=True, status=Status.IDLE, seq=len(events), epoch=0)


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


def _answer(open_calls: Sequence[ToolCall]) -> bytes:
    return encode(
        [ToolResult(call_id=call.id, name=call.name, output=_CANCELLED, is_error=True) for call in open_calls]
    )
