"""What is below a message: where a branch leads, and the tree of a chat.

A branch leads to the newest leaf that people see, never to a row for the model only: below an instruction to continue
that was never answered, the model would take the next question for the continuation.

A call is never separated from its results (rule 10.2): a switch to the message that made a call, or a copy up to it,
includes the results that follow, so that the model never reads that a tool did not run although it did.

Whether a chat still names a file is read here, too, and whether people see it there: a chat's use of a file is one row,
however often the file is named. The rows are found by the file's id in their bytes, and then read: a text that quotes
the id names no file (tests/files/test_file_uses.py).

Must stay true (tests/store/test_branches.py): a branch leads to a message that people see and that no other one
follows; results come along, also those that a client submitted later.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from indelible.api.events import MessageTree, TreeItem
from indelible.content import decode_blocks, decode_part
from indelible.content.blocks import Block, File, ToolResult, text_of
from indelible.errors import ChatNotFound
from indelible.machine.states import Destination
from indelible.store.database.transaction import Dialect, Row, Transaction, to_time
from indelible.store.queries.history import find_visible, load_ancestors

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
def _build_below(dialect: Dialect) -> str:
    """LATERAL makes PostgreSQL look up children by their index; history.py explains why."""
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
    rows = await transaction.all(_build_below(transaction.dialect), chat_id, message_id)
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


_SHOWN: Final = "SELECT id, blocks AS content FROM messages WHERE chat_id = $1 AND visibility <> 'model' AND {found}"
_ALL: Final = "SELECT blocks AS content FROM messages WHERE chat_id = $1 AND {found}"
_QUEUED: Final = "SELECT content FROM queue WHERE chat_id = $1 AND {found}"
_SHOWN_RESULTS: Final = "SELECT result AS content FROM tool_runs WHERE chat_id = $1 AND {found}"
_RUNNING: Final = f"""
{_SHOWN_RESULTS} AND turn_id IN (SELECT id FROM turns WHERE chat_id = $1 AND ended_at IS NULL)
"""
_PATH_CHUNK: Final = 1000


async def is_file_shown(transaction: Transaction, chat_id: str, file_id: str) -> bool:
    """Whether the active branch shows people the file: in a message, or in the result of a tool of the running turn."""
    shown_in = {row["id"] for row in await _find_naming(transaction, chat_id, file_id, _SHOWN)}
    if shown_in:
        head = await transaction.one(_HEAD, chat_id)
        async for row in load_ancestors(transaction, chat_id, head and head["head_id"], chunk=_PATH_CHUNK):
            if row["id"] in shown_in:
                return True
    return bool(await _find_naming(transaction, chat_id, file_id, _RUNNING))


async def is_file_named(transaction: Transaction, chat_id: str, file_id: str) -> bool:
    """Whether anything in this chat names the file: a message, a queued one, or the result of a tool."""
    for place in (_QUEUED, _ALL, _SHOWN_RESULTS):
        if await _find_naming(transaction, chat_id, file_id, place):
            return True
    return False


def find_file_ids(blocks: list[Block]) -> set[str]:
    """The stored files that these blocks name, in results of tools too."""
    found = [block for block in blocks if isinstance(block, File)]
    found += [file for block in blocks if isinstance(block, ToolResult) for file in block.files]
    return {file.file_id for file in found if file.file_id is not None}


async def _find_naming(transaction: Transaction, chat_id: str, file_id: str, place: str) -> list[Row]:
    """The rows of this place whose content names the file."""
    rows = await transaction.all(_spell(place, transaction.dialect), chat_id, file_id.encode())
    return [row for row in rows if file_id in find_file_ids(_decode(row["content"]))]


@cache
def _spell(place: str, dialect: Dialect) -> str:
    """Bytes are searched by another function on each database."""
    column = "blocks" if "messages" in place else "result" if "tool_runs" in place else "content"
    found = f"instr({column}, $2) > 0" if dialect == "sqlite" else f"position(CAST($2 AS BYTEA) IN {column}) > 0"
    return place.format(found=found)


def _decode(content: bytes) -> list[Block]:
    if content.startswith(b"["):
        return decode_blocks(content)
    result = decode_part(content)
    return [result] if isinstance(result, ToolResult) else []
