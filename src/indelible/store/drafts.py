"""What a user notes about a chat beside the conversation: how far they have read, and what they have typed so far.

Neither is a command: nothing about the conversation changes, no event is written, and `updated_at` stays. Readers of
lists are told all the same, by a hint after the commit. The owner's read mark is in the chat's row. It only moves
forward, and a message of the user's own moves it too (store/commands/history.py). A draft of the chat that does
not exist yet (`new`) has a table of its own.

Must stay true (tests/store/test_marks.py): a mark never goes back and never beyond the chat's last event; a draft is
its user's alone, and goes with its chat.
"""

from __future__ import annotations

from typing import Final

import msgspec

from indelible.api.shapes import NEW_CHAT, ChatExtras, Draft
from indelible.content import Text, decode_blocks, encode
from indelible.content.blocks import text_of
from indelible.errors import ChatNotFound
from indelible.ids import is_id
from indelible.store.database.transaction import Transaction, to_time, upsert
from indelible.store.outcome import Outcome
from indelible.store.queries.listing import find_owner

_MARK: Final = """
    UPDATE chats SET last_read_seq = CASE WHEN CAST($3 AS BIGINT) < seq THEN CAST($3 AS BIGINT) ELSE seq END
    WHERE id = $1 AND owner_id = $2
        AND last_read_seq < CASE WHEN CAST($3 AS BIGINT) < seq THEN CAST($3 AS BIGINT) ELSE seq END
    """
_EXTRAS: Final = """
    SELECT c.owner_id, c.labels, c.pinned, c.system_prompt, c.replied_seq > c.last_read_seq AS unread, d.content
    FROM chats AS c LEFT JOIN drafts AS d ON d.chat_id = c.id AND d.user_id = $2 WHERE c.id = $1
    """


async def mark_read(transaction: Transaction, chat_id: str, owner_id: str, seq: int | None) -> Outcome:
    """Mark a chat as read up to event `seq`, or all of it. Raises `NotFound`."""
    if not is_id(chat_id) or await find_owner(transaction, chat_id) != owner_id:
        raise ChatNotFound
    return _make_outcome(chat_id, has_changed=await transaction.run(_MARK, chat_id, owner_id, seq) > 0)


async def load_draft(transaction: Transaction, chat_id: str, user_id: str) -> Draft:
    if chat_id == NEW_CHAT:
        row = await transaction.one("SELECT content, updated_at FROM new_drafts WHERE user_id = $1", user_id)
    else:
        sql = "SELECT content, updated_at FROM drafts WHERE chat_id = $1 AND user_id = $2"
        row = await transaction.one(sql, chat_id, user_id)
    return Draft() if row is None else Draft(text=_read(row["content"]), updated_at=to_time(row["updated_at"]))


async def save_draft(transaction: Transaction, chat_id: str, user_id: str, text: str) -> Outcome:
    """Replace the draft; an empty text deletes it."""
    is_new = chat_id == NEW_CHAT
    if text:
        draft = {"content": encode([Text(text)]), "updated_at": await transaction.now()}
        of = {"user_id": user_id} if is_new else {"chat_id": chat_id, "user_id": user_id}
        await upsert(transaction, "new_drafts" if is_new else "drafts", draft, **of)
    elif is_new:
        await transaction.run("DELETE FROM new_drafts WHERE user_id = $1", user_id)
    else:
        await transaction.run("DELETE FROM drafts WHERE chat_id = $1 AND user_id = $2", chat_id, user_id)
    return _make_outcome(chat_id, has_changed=False)


def _make_outcome(chat_id: str, *, has_changed: bool) -> Outcome:
    """Readers of lists are woken by a change; no worker is, and no event was written."""
    return Outcome(
        chat_id=chat_id,
        effective=has_changed,
        status=None,
        seq=0,
        epoch=0,
        wakes_readers=has_changed,
        wakes_workers=False,
    )


async def load_extras(transaction: Transaction, chat_id: str, user_id: str) -> ChatExtras:
    row = await transaction.one(_EXTRAS, chat_id, user_id)
    if row is None:
        raise ChatNotFound
    draft = None if row["content"] is None else _read(row["content"])
    if row["owner_id"] != user_id:
        return ChatExtras(labels=[], pinned=False, unread=False, system=None, draft=draft)
    return ChatExtras(
        labels=[] if row["labels"] is None else msgspec.json.decode(row["labels"]),
        pinned=bool(row["pinned"]),
        unread=bool(row["unread"]),
        system=None if row["system_prompt"] is None else msgspec.json.decode(row["system_prompt"]),
        draft=draft,
    )


def _read(content: bytes) -> str:
    return text_of(decode_blocks(content))
