"""Files in messages: a message names a file by its id, and the chat then uses the file.

The same holds for the messages of a conversation that is brought along: an import, or the history of a compatible API.
The transaction that accepts a message locks the rows of its files, checks that they are ready and belong to the chat's
owner, and records the use. So a file cannot be swept or deleted between the upload and the message, and nobody can send
a file of another user. Name, type and size in the message come from the file's row, not from the client.

When a chat is deleted, the files that no other chat uses are marked `deleted` in the same transaction; the sweep
removes their bytes afterwards in short transactions (files/store.py). When a queued message is removed or changed,
the chat stops using its files, unless something else in the chat names them. A file that no chat uses then is kept for
a day, as after its upload, because the user may send it again. The rows are locked first and checked in a later
statement (as in R1): on PostgreSQL a single statement would see the uses from before the lock, and would delete a file
that another chat has begun to use meanwhile.

The files of a tool's result are used from the moment that its result is recorded (journal/tool_ledger.py).

Must stay true (tests/files/test_file_uses.py): a message is accepted only with files of its owner; a file is there as
long as a chat uses it, and not longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from indelible.content import Block, File, ToolResult, decode_blocks
from indelible.errors import NotFound
from indelible.ids import is_id
from indelible.store.database.transaction import Row, Transaction
from indelible.store.queries.file_mentions import find_file_ids, is_file_named

_LOCK: Final = """
SELECT id, name, media_type, size_bytes FROM files
WHERE id = ANY($1) AND owner_id = $2 AND state = 'ready' ORDER BY id FOR UPDATE
"""
_USE: Final = "INSERT INTO file_uses (chat_id, file_id) VALUES ($1, $2) ON CONFLICT (chat_id, file_id) DO NOTHING"
_KEEP: Final = "UPDATE files SET unused_since = NULL WHERE id = ANY($1) AND unused_since IS NOT NULL"
_LOCK_USED: Final = """
SELECT id FROM files WHERE id IN (SELECT file_id FROM file_uses WHERE chat_id = $1) ORDER BY id FOR UPDATE
"""
_LOCK_OWNED: Final = """
SELECT files.id FROM files JOIN chats ON chats.owner_id = files.owner_id
WHERE chats.id = $1 AND files.id = ANY($2) AND files.state = 'ready' ORDER BY files.id FOR UPDATE OF files
"""
_STOP_USING: Final = "DELETE FROM file_uses WHERE chat_id = $1 AND file_id = ANY($2)"
_MARK_UNUSED: Final = """
UPDATE files SET unused_since = $2 WHERE id = ANY($1) AND state = 'ready'
    AND NOT EXISTS (SELECT 1 FROM file_uses WHERE file_id = files.id)
"""
_RELEASE: Final = """
UPDATE files SET state = 'deleted', unused_since = $3 WHERE id = ANY($2)
    AND NOT EXISTS (SELECT 1 FROM file_uses WHERE file_id = files.id AND chat_id <> $1)
"""
_COPY: Final = """
INSERT INTO file_uses (chat_id, file_id) SELECT $2, file_id FROM file_uses WHERE chat_id = $1 AND file_id = ANY($3)
"""
_MARK: Final = b'"file_id"'


async def use_files(transaction: Transaction, chat_id: str, owner_id: str, blocks: list[Block]) -> list[Block]:
    """Record that a chat uses the files of these blocks; returns the blocks with what is stored about each file.

    Raises `NotFound` if one is not a file of this owner.
    """
    wanted = find_file_ids(blocks)
    if not wanted:
        return blocks
    known = {row["id"]: row for row in await transaction.all(_LOCK, list(filter(is_id, wanted)), owner_id)}
    for file_id in wanted:
        if file_id not in known:
            raise NotFound("File not found. It may have been deleted; upload it again.")
    await transaction.many(_USE, [(chat_id, file_id) for file_id in sorted(known)])
    await transaction.run(_KEEP, sorted(known))
    return [_describe(block, known) for block in blocks]


async def use_result_files(transaction: Transaction, chat_id: str, result: ToolResult) -> None:
    """Record that a chat uses the files of a tool's result. One that was deleted meanwhile is left out."""
    named = sorted(filter(is_id, find_file_ids([result])))
    known = [row["id"] for row in await transaction.all(_LOCK_OWNED, chat_id, named)]
    await transaction.many(_USE, [(chat_id, file_id) for file_id in known])
    await transaction.run(_KEEP, known)


async def stop_using(transaction: Transaction, chat_id: str, removed: bytes, now: datetime) -> None:
    """End the chat's use of the files that these removed blocks named, unless something else in the chat names them."""
    named = find_file_ids(decode_blocks(removed)) if _MARK in removed else set()
    if not named:
        return
    known = [row["id"] for row in await transaction.all(_LOCK_OWNED, chat_id, sorted(filter(is_id, named)))]
    left = [file_id for file_id in known if not await is_file_named(transaction, chat_id, file_id)]
    if left:
        await transaction.run(_STOP_USING, chat_id, left)
        await transaction.run(_MARK_UNUSED, left, now)


async def release_files(transaction: Transaction, chat_id: str, now: datetime) -> None:
    """Mark the files that only this chat uses as deleted. The chat's own uses go with the chat."""
    used = [row["id"] for row in await transaction.all(_LOCK_USED, chat_id)]
    if used:
        await transaction.run(_RELEASE, chat_id, used, now)


async def copy_uses(transaction: Transaction, chat_id: str, new_chat_id: str, copied: Iterable[bytes]) -> None:
    """The uses of a fork: the files in the messages that were copied."""
    blocks = [block for stored in copied if _MARK in stored for block in decode_blocks(stored)]
    named = find_file_ids(blocks)
    if named:
        await transaction.all(_LOCK_USED, chat_id)  # so that none of them is released meanwhile
        await transaction.run(_COPY, chat_id, new_chat_id, sorted(named))


def _describe(block: Block, known: dict[str, Row]) -> Block:
    if not isinstance(block, File) or block.file_id is None:
        return block
    row = known[block.file_id]
    return File(row["media_type"], name=row["name"], file_id=block.file_id, size=row["size_bytes"])
