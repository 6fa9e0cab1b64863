"""What is below a message: where a branch leads, and the tree of a chat.

A branch leads to the newest leaf that people see, never to a row for the model only: below an instruction to continue
that was never answered, the model would take the next question for the continuation.

A call is never separated from its results (rule 10.2): a switch to the message that made a call, or a copy up to it,
includes the results that follow, so that the model never reads that a tool did not run although it did.

Must stay true (tests/store/test_branches.py): a branch leads to a message that people see and that no other one
follows; results come along, also those that a client submitted later.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from indelible.api.events import MessageTree, TreeItem
from indelible.content import decode_blocks
from indelible.content.blocks import text_of
from indelible.errors import ChatNotFound
from indelible.machine.states import Destination
from indelible.store.database.transaction import Dialect, Row, Transaction, to_time
from indelible.store.queries.history import find_visible

_TEXT_CHARS: Final = 80
_ROWS_AT_ONCE: Final = 200

_NAMED: Final = "SELECT id, role, visibility, error IS NOT NULL AS failed FROM messages WHERE chat_id = $1 AND id = $2"
_RESULTS: Final = """
    SELECT id FROM messages WHERE chat_id = $1 AND parent_id = $2 AND role = 'tool' ORDER BY created_at, id LIMIT 1
    """
_HEAD: Final = "SELECT head_id FROM chats WHERE id = $1"
# Ids are in the order of creation. Blocks are read in pieces: a chat may be larger than the memory that it deserves.
_TREE: Final = """
    SELECT id, parent_id, role, visibility, model, created_at, CASE WHEN role <> 'tool' THEN blocks END AS blocks
    FROM messages WHERE chat_id = $1 AND id > $2 ORDER BY id LIMIT $3
    """


@cache
def _spell_below(dialect: Dialect) -> str:
    """LATERAL makes PostgreSQL look up children by their index; ancestors.py explains why."""
    children = "JOIN messages AS child ON child.parent_id = below.id AND child.chat_id = $1"
    if dialect == "postgresql":
        found = "SELECT id, parent_id, visibility, created_at FROM messages WHERE parent_id = below.id AND chat_id = $1"
        children = f"CROSS JOIN LATERAL ({found} OFFSET 0) AS child"
    return f"""
        WITH RECURSIVE below AS (
            SELECT id, parent_id, visibility, created_at, 1 AS depth FROM messages WHERE chat_id = $1 AND id = $2
            UNION ALL
            SELECT child.id, child.parent_id, child.visibility, child.created_at, below.depth + 1
            FROM below {children}
        )
        SELECT id, parent_id, visibility, created_at FROM below ORDER BY depth
        """


async def find_destination(
    transaction: Transaction, chat_id: str, message_id: str, *, exact: bool
) -> Destination | None:
    """Where a switch to this message leads; None if people see no such message in this chat."""
    named = await transaction.one(_NAMED, chat_id, message_id)
    if named is None or named["visibility"] == "model":
        return None
    if exact:
        place_id = await follow_results(transaction, chat_id, named)
    else:
        place_id = await _find_newest_leaf(transaction, chat_id, message_id)
    if place_id != named["id"]:
        named = await transaction.one(_NAMED, chat_id, place_id)
    return Destination(id=named["id"], failed=bool(named["failed"]))


async def follow_results(transaction: Transaction, chat_id: str, row: Row) -> str:
    """The last of the results that follow this message; the message itself if it has made no call."""
    place_id: str = row["id"]
    if row["role"] in {"assistant", "tool"}:
        while (results := await transaction.one(_RESULTS, chat_id, place_id)) is not None:
            place_id = results["id"]
    return place_id


async def _find_newest_leaf(transaction: Transaction, chat_id: str, message_id: str) -> str:
    rows = await transaction.all(_spell_below(transaction.dialect), chat_id, message_id)
    above_visible: set[str | None] = set()
    leaves: list[Row] = []
    for row in reversed(rows):  # the deepest first
        is_visible = row["visibility"] != "model"
        if is_visible or row["id"] in above_visible:
            above_visible.add(row["parent_id"])
        if is_visible and row["id"] not in above_visible:
            leaves.append(row)
    return str(max(leaves, key=lambda row: (row["created_at"], row["id"]))["id"])


async def load_tree(transaction: Transaction, chat_id: str) -> MessageTree:
    """Every message that people see, in the order of creation, with the beginning of its text."""
    chat = await transaction.one(_HEAD, chat_id)
    if chat is None:
        raise ChatNotFound
    items: list[TreeItem] = []
    hidden: dict[str, str | None] = {}
    last_id = ""
    while rows := await transaction.all(_TREE, chat_id, last_id, _ROWS_AT_ONCE):
        last_id = rows[-1]["id"]
        for row in rows:
            if row["visibility"] == "model":
                hidden[row["id"]] = row["parent_id"]
            else:
                items.append(_shorten(row))
    head_id = chat["head_id"]
    if head_id is not None:
        head_id = (await find_visible(transaction, chat_id, [head_id]))[head_id]
    return MessageTree(head=head_id, items=[_skip_hidden(item, hidden) for item in items])


def _shorten(row: Row) -> TreeItem:
    text = "" if row["blocks"] is None else " ".join(text_of(decode_blocks(row["blocks"])).split())
    return TreeItem(
        id=row["id"],
        parent_id=row["parent_id"],
        role=row["role"],
        model=row["model"] or None,
        created_at=to_time(row["created_at"]),
        text=text if len(text) <= _TEXT_CHARS else f"{text[: _TEXT_CHARS - 1]}…",
    )


def _skip_hidden(item: TreeItem, hidden: dict[str, str | None]) -> TreeItem:
    """The item under the nearest message that people see."""
    parent_id = item.parent_id
    while parent_id in hidden:
        parent_id = hidden[parent_id]
    return item if parent_id == item.parent_id else msgspec.structs.replace(item, parent_id=parent_id)
