"""0018: old results of tools get an outcome, and old notices a kind: clients read the stored rows as they are.

What is journalled of attempts that still run is converted too, because their replies are still to be made of it. The
journals of ended attempts stay as they are: nothing is made of them any more. Rows that cannot be read stay too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from alembic import op
from sqlalchemy import Connection, text

from indelible.content import ToolResult, decode_blocks, decode_parts, encode
from indelible.content.blocks import recover_outcome
from indelible.store.commands.apply.texts import recover_notice
from indelible.store.database.migrations.spelling import get_dialect

revision: Final = "0018"
down_revision: Final = "0017"

_CHUNK_ROWS: Final = 100
"""Every chunk is two round trips, and each message may be long."""
_MARK: Final = b'"is_error":true'
_HAS_MARK: Final = {"sqlite": "instr({}, :mark) > 0", "postgresql": "position(:mark in {}) > 0"}
_MESSAGES: Final = """
SELECT chat_id, id, blocks FROM messages WHERE role = 'tool' AND {marked} AND (chat_id, id) > (:chat_id, :id)
ORDER BY chat_id, id LIMIT :n
"""
_JOURNAL: Final = """
SELECT j.chat_id, j.attempt_id, j.n, j.parts FROM journal AS j
JOIN attempts AS a ON a.chat_id = j.chat_id AND a.id = j.attempt_id
WHERE a.ended_at IS NULL AND {marked}
"""
_NOTICES: Final = """
SELECT chat_id, id, blocks, error FROM messages WHERE role = 'notice' AND (chat_id, id) > (:chat_id, :id)
ORDER BY chat_id, id LIMIT :n
"""
_SET_BLOCKS: Final = "UPDATE messages SET blocks = :blocks WHERE chat_id = :chat_id AND id = :id"
_SET_PARTS: Final = """
UPDATE journal SET parts = :parts WHERE chat_id = :chat_id AND attempt_id = :attempt_id AND n = :n
"""


def upgrade() -> None:
    connection, marked = op.get_bind(), _HAS_MARK[get_dialect()]
    messages = text(_MESSAGES.format(marked=marked.format("blocks"))).bindparams(mark=_MARK)
    _convert_messages(connection, messages, lambda row: _convert(row.blocks, decode_blocks, _recover_outcomes))
    _convert_messages(connection, text(_NOTICES), _convert_notice)
    journal = text(_JOURNAL.format(marked=marked.format("j.parts"))).bindparams(mark=_MARK)
    rows = connection.execute(journal).all()
    converted = [{**row._mapping, "parts": _convert(row.parts, decode_parts, _recover_outcomes)} for row in rows]
    _write(connection, _SET_PARTS, converted)


def _convert_messages(connection: Connection, chunk: Any, convert: Callable[[Any], bytes]) -> None:
    last = {"chat_id": "", "id": ""}
    while rows := connection.execute(chunk, {**last, "n": _CHUNK_ROWS}).all():
        last = _name(rows[-1])
        _write(connection, _SET_BLOCKS, [_name(row) | {"blocks": convert(row)} for row in rows])


def _name(row: Any) -> dict[str, Any]:
    return {"chat_id": row.chat_id, "id": row.id}


def _write(connection: Connection, statement: str, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(text(statement), rows)


def _convert_notice(row: Any) -> bytes:
    return _convert(row.blocks, decode_blocks, lambda blocks: recover_notice(blocks, has_failed=row.error is not None))


def _recover_outcomes(found: list[Any]) -> list[Any]:
    return [recover_outcome(each) if isinstance(each, ToolResult) else each for each in found]


def _convert(stored: bytes, decode: Callable[[bytes], list[Any]], change: Callable[[list[Any]], list[Any]]) -> bytes:
    try:
        return encode(change(decode(stored)))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return stored
