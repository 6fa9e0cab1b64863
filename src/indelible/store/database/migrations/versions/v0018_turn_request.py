"""0018: what a compatible API repeats about a request is a column of its turn.

Before, it was hidden in the metadata of the last block that came with the request, as `request`. It moves to the turn
that this message began or resumed, and leaves the message. A note of the AI SDK, which is only the id of a message of
the client's, becomes `ui_id` of the same block. A note of a message that no turn answers (a copy's) is dropped: nothing
names it. Whatever else a user has written there stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

import msgspec
from alembic import op
from sqlalchemy import text

from indelible.store.database.migrations.spelling import execute, get_dialect

revision: Final = "0018"
down_revision: Final = "0017"

_COLUMN: Final = "ALTER TABLE turns ADD COLUMN request {bytes}"
_COMMENT: Final = """
COMMENT ON COLUMN turns.request IS
'What a compatible API repeats: [seq, request] of each that began or resumed it.'
"""
_HAS_NOTE: Final = {
    "sqlite": """instr({column}, '"request"') > 0""",
    "postgresql": """position(convert_to('"request"', 'UTF8') IN {column}) > 0""",
}
_CHUNK_ROWS: Final = 100
_MESSAGES: Final = """
SELECT chat_id, id, blocks FROM messages
WHERE (chat_id > :chat_id OR (chat_id = :chat_id AND id > :id)) AND {has_note} ORDER BY chat_id, id LIMIT :n
"""
_QUEUED: Final = "SELECT chat_id, id, content FROM queue WHERE {has_note}"
_ADDED: Final = "SELECT seq FROM events WHERE chat_id = :chat_id AND kind = 'message' AND ref = :id"
_BEGUN: Final = """
SELECT ref FROM events WHERE chat_id = :chat_id AND seq > :seq AND kind = 'status' ORDER BY seq LIMIT 1
"""
_REQUEST: Final = "SELECT request FROM turns WHERE chat_id = :chat_id AND id = :id"
_SET_REQUEST: Final = "UPDATE turns SET request = :request WHERE chat_id = :chat_id AND id = :id"
_SET_BLOCKS: Final = "UPDATE messages SET blocks = :blocks WHERE chat_id = :chat_id AND id = :id"
_SET_CONTENT: Final = "UPDATE queue SET content = :blocks WHERE chat_id = :chat_id AND id = :id"


def upgrade() -> None:
    execute(_COLUMN)
    if get_dialect() == "postgresql":
        execute(_COMMENT)
    connection = op.get_bind()
    has_note = _HAS_NOTE[get_dialect()]
    last = {"chat_id": "", "id": ""}
    while rows := connection.execute(
        text(_MESSAGES.format(has_note=has_note.format(column="blocks"))), {**last, "n": _CHUNK_ROWS}
    ).all():
        for row in rows:
            last = {"chat_id": row.chat_id, "id": row.id}
            blocks = _read_blocks(row.blocks)
            notes = list(_take_notes(blocks))
            if notes:
                connection.execute(text(_SET_BLOCKS), {**last, "blocks": msgspec.json.encode(blocks)})
            if notes and "response" in notes[-1]:
                _keep(connection, row.chat_id, row.id, notes[-1])
    for row in connection.execute(text(_QUEUED.format(has_note=has_note.format(column="content")))).all():
        blocks = _read_blocks(row.content)
        if list(_take_notes(blocks)):
            named = {"chat_id": row.chat_id, "id": row.id}
            connection.execute(text(_SET_CONTENT), {**named, "blocks": msgspec.json.encode(blocks)})


def _read_blocks(blocks: bytes) -> list[Any]:
    try:
        return list(msgspec.json.decode(blocks))
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return []  # it cannot be read, and is left as it is


def _take_notes(blocks: list[Any]) -> Iterator[dict[str, Any]]:
    """Remove the notes from these blocks."""
    for block in blocks:
        metadata = block.get("metadata") if isinstance(block, dict) else None
        if not isinstance(metadata, dict):
            continue
        note = metadata.get("request")
        if isinstance(note, dict) and ("response" in note or "ui_id" in note):
            del metadata["request"]
            if "ui_id" in note:
                metadata["ui_id"] = note["ui_id"]
            if not metadata:
                del block["metadata"]
            yield note


def _keep(connection: Any, chat_id: str, message_id: str, note: dict[str, Any]) -> None:
    """Put the note into the turn whose status follows the message. Of two before one status, the later one counts."""
    seq = connection.execute(text(_ADDED), {"chat_id": chat_id, "id": message_id}).scalar_one_or_none()
    turn_id = connection.execute(text(_BEGUN), {"chat_id": chat_id, "seq": seq}).scalar_one_or_none()
    if seq is None or turn_id is None:
        return
    turn = {"chat_id": chat_id, "id": turn_id}
    stored = connection.execute(text(_REQUEST), turn).scalar_one_or_none()
    kept = [] if stored is None else msgspec.json.decode(stored)
    ordered = sorted([*kept, [seq, note]], key=itemgetter(0))
    connection.execute(text(_SET_REQUEST), {**turn, "request": msgspec.json.encode(ordered)})
