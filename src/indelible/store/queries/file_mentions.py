"""Whether a chat still names a file, and whether people see it there.

A chat's use of a file is one row (`file_uses`), however often the file is named. So the content decides whether the use
ends when a queued message is removed, and whether a guest may open the file: messages, the queue, and results of tools,
which are in the ledger before they are in a message. Guests see the active branch, so they open what that shows. The
rows are found by the file's id in their bytes, and then read: a text that quotes the id names no file.

Only the messages of one chat are searched, and only when a queued message with a file is removed or changed, or a guest
opens a file.

Must stay true (tests/files/test_file_uses.py): only content that holds the file as a file names it; text that quotes
its id does not.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from indelible.content import decode_blocks, decode_part
from indelible.content.blocks import Block, File, ToolResult
from indelible.store.database.transaction import Dialect, Row, Transaction
from indelible.store.queries.ancestors import load_ancestors

_SHOWN: Final = "SELECT id, blocks AS content FROM messages WHERE chat_id = $1 AND visibility <> 'model' AND {found}"
_ALL: Final = "SELECT blocks AS content FROM messages WHERE chat_id = $1 AND {found}"
_QUEUED: Final = "SELECT content FROM queue WHERE chat_id = $1 AND {found}"
_RESULTS: Final = "SELECT result AS content FROM tool_runs WHERE chat_id = $1 AND {found}"
_RUNNING: Final = f"""
{_RESULTS} AND turn_id IN (SELECT id FROM turns WHERE chat_id = $1 AND ended_at IS NULL)
"""
_HEAD: Final = "SELECT head_id FROM chats WHERE id = $1"
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
    for place in (_QUEUED, _ALL, _RESULTS):
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
