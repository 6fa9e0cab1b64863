"""A new chat that begins as another one did: the path to one of its messages, copied.

The copy is a chat of its own from the start. Nothing in it points to the old one, so either can be edited or
deleted without the other. What was not part of the conversation stays behind: queue, drafts, attempts, the journal.
A call that is still open at the end of the copy is answered, because nobody will bring its result here (SPEC 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.content import ToolCall, ToolResult, encode
from indelible.errors import Invalid, NotFound
from indelible.ids import new_id
from indelible.machine.states import Status
from indelible.store.commands.facts import load_end, load_now
from indelible.store.database.tables import chats, events, messages
from indelible.store.protocol import Outcome
from indelible.store.queries.ancestors import load_ancestors

_COPIED = (
    messages.c.blocks,
    messages.c.reason,
    messages.c.continues_id,
    messages.c.usage,
    messages.c.cost_nanousd,
    messages.c.provider,
    messages.c.model,
    messages.c.timings,
    messages.c.created_at,
)
_BESIDE = ("model", "system_prompt", "parameters", "title", "labels", "debug")
_CANCELLED = "Cancelled: the conversation was copied before the result of this call came."


async def fork_chat(
    connection: AsyncConnection, chat_id: str, message_id: str, *, new_chat_id: str, owner_id: str
) -> Outcome:
    """Copy the path that ends with this message into a new chat, which then waits."""
    chat = (await connection.execute(select(chats).where(chats.c.id == chat_id))).one_or_none()
    if chat is None:
        raise NotFound("Chat not found. It may have been deleted.")
    path = [row async for row in load_ancestors(connection, chat_id, message_id, *_COPIED, chunk=1000)][::-1]
    if not path:
        raise NotFound("Message not found in this chat.")
    if path[-1].visibility == "model":
        raise Invalid("A chat can only be forked at a message that people see.")
    now = await load_now(connection)
    copies = _copy_path(path, new_chat_id)
    open_calls = (await load_end(connection, chat_id, message_id)).open_calls
    if open_calls:
        last = {"chat_id": new_chat_id, "id": new_id("message"), "parent_id": copies[-1]["id"]}
        copies.append({**last, "role": "tool", "blocks": _answer(open_calls), "created_at": now})
    beside = {name: getattr(chat, name) for name in _BESIDE}
    new = {"id": new_chat_id, "owner_id": owner_id, "status": Status.IDLE.value, **beside}
    await connection.execute(insert(chats).values(**new, created_at=now, updated_at=now))
    for copy in copies:
        await connection.execute(insert(messages).values(**copy))
    written = [
        {"chat_id": new_chat_id, "seq": seq, "kind": "message", "ref": copy["id"], "payload": None, "at": now}
        for seq, copy in enumerate(copies, 1)
    ]
    await connection.execute(insert(events), written)
    changes = {"head_id": copies[-1]["id"], "seq": len(written)}
    await connection.execute(update(chats).where(chats.c.id == new_chat_id).values(**changes))
    return Outcome(chat_id=new_chat_id, effective=True, status=Status.IDLE, seq=len(written), epoch=0)


def _copy_path(path: list[Row[Any]], new_chat_id: str) -> list[dict[str, Any]]:
    names = {row.id: new_id("message") for row in path}
    return [
        {
            **{column.name: getattr(row, column.name) for column in _COPIED},
            "chat_id": new_chat_id,
            "id": names[row.id],
            "parent_id": names.get(row.parent_id),
            "role": row.role,
            "visibility": row.visibility,
            "partial": row.partial,
            "continues_id": names.get(row.continues_id),
        }
        for row in path
    ]


def _answer(open_calls: Sequence[ToolCall]) -> bytes:
    return encode(
        [ToolResult(call_id=call.id, name=call.name, output=_CANCELLED, is_error=True) for call in open_calls]
    )
