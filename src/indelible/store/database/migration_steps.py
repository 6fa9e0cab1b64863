"""What a migration does that SQL cannot: Python functions, by the number of their migration.

A step runs after the SQL of its file, in the same transaction, and while nobody can use the database. It is written as
a command is, over a `Transaction`: it awaits its statements and nothing else. It reads in chunks if rows may be many,
and it never fails because of a row that somebody else wrote badly.

Must stay true (tests/store/test_migrations.py, test_user_names.py): what cannot be read stays as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec

from indelible.content import ToolResult, decode_blocks, decode_parts, encode
from indelible.content.blocks import pop_note, recover_outcome
from indelible.content.messages import extract_title
from indelible.store.commands.change import recover_notice
from indelible.store.database.transaction import Row, Transaction
from indelible.store.queries.listing import find_likeness

_CHUNK_ROWS: Final = 100
"""Every chunk is two round trips, and nobody can use the database meanwhile; each chat's message may be long."""
_UNTITLED: Final = """
SELECT id, (
    SELECT blocks FROM messages WHERE chat_id = chats.id AND role = 'user' AND visibility = 'both'
    ORDER BY created_at, id LIMIT 1
) AS blocks
FROM chats WHERE title IS NULL AND head_id IS NOT NULL AND id > $1 ORDER BY id LIMIT $2
"""

_HAS_NOTE: Final = """position(convert_to('"request"', 'UTF8') IN {}) > 0"""
_NOTED: Final = "SELECT chat_id, id, blocks FROM messages WHERE {has_note} AND {after}"
_TURNS_OF: Final = """
SELECT e.chat_id, e.ref AS message_id, e.seq, t.id AS turn_id, t.request
FROM events AS e JOIN turns AS t ON t.chat_id = e.chat_id AND t.id = (
    SELECT ref FROM events WHERE chat_id = e.chat_id AND seq > e.seq AND kind = 'status' ORDER BY seq LIMIT 1
)
WHERE e.chat_id = ANY($1) AND e.ref = ANY($2) AND e.kind = 'message'
"""
_SET_REQUEST: Final = "UPDATE turns SET request = $1 WHERE chat_id = $2 AND id = $3"
_MARK: Final = b'"is_error":true'
_HAS_MARK: Final = {
    "sqlite": "instr({column}, {mark}) > 0",
    "postgresql": "position(CAST({mark} AS BYTEA) IN {column}) > 0",
}
_AFTER: Final = "(chat_id, id) > ($1, $2) ORDER BY chat_id, id LIMIT $3"
_RESULTS: Final = f"SELECT chat_id, id, blocks FROM messages WHERE role = 'tool' AND {{marked}} AND {_AFTER}"
_NOTICES: Final = f"SELECT chat_id, id, blocks, error FROM messages WHERE role = 'notice' AND {_AFTER}"
_SET_BLOCKS: Final = "UPDATE messages SET blocks = $1 WHERE chat_id = $2 AND id = $3"
_RUNNING: Final = """
SELECT j.chat_id, j.attempt_id, j.n, j.parts FROM journal AS j
JOIN attempts AS a ON a.chat_id = j.chat_id AND a.id = j.attempt_id
WHERE a.ended_at IS NULL AND {marked}
"""
_SET_PARTS: Final = "UPDATE journal SET parts = $1 WHERE chat_id = $2 AND attempt_id = $3 AND n = $4"


async def name_untitled_chats(transaction: Transaction) -> None:
    """0016. A chat without words, or whose message cannot be read any more, stays as it is."""
    after = ""
    while chats := await transaction.all(_UNTITLED, after, _CHUNK_ROWS):
        after = chats[-1]["id"]
        named = [(title, chat["id"]) for chat in chats if (title := _find_title(chat["blocks"])) is not None]
        await transaction.many("UPDATE chats SET title = $1, title_is_provisional = TRUE WHERE id = $2", named)


def _find_title(blocks: bytes | None) -> str | None:
    try:
        return None if blocks is None else extract_title(decode_blocks(blocks))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


async def give_likenesses(transaction: Transaction) -> None:
    """0017. Of several users who look the same, the oldest has the likeness."""
    first: dict[str, str] = {}
    for user in await transaction.all("SELECT id, name FROM users ORDER BY created_at, id"):
        first.setdefault(find_likeness(user["name"]), user["id"])
    await transaction.many("UPDATE users SET likeness = $1 WHERE id = $2", first.items())


async def move_requests(transaction: Transaction) -> None:
    """0018. What a compatible API noted in the metadata of a block, as `request`, moves to the turn of its message.

    The note leaves the message (`pop_note`). That of a message that no turn answers (a copy's) is dropped: nothing
    names it.
    """
    has_note = "instr({}, '\"request\"') > 0" if transaction.dialect == "sqlite" else _HAS_NOTE
    messages = _NOTED.format(has_note=has_note.format("blocks"), after=_AFTER)
    last = ("", "")
    while rows := await transaction.all(messages, *last, _CHUNK_ROWS):
        last = (rows[-1]["chat_id"], rows[-1]["id"])
        written, requests = [], {}
        for row in rows:
            blocks = _read_blocks(row["blocks"])
            notes = list(_pop_notes(blocks))
            if notes:
                written.append((msgspec.json.encode(blocks), row["chat_id"], row["id"]))
            if notes and "response" in notes[-1]:
                requests[row["chat_id"], row["id"]] = notes[-1]
        await transaction.many(_SET_BLOCKS, written)
        await _keep_requests(transaction, requests)
    for row in await transaction.all(f"SELECT chat_id, id, content FROM queue WHERE {has_note.format('content')}"):
        blocks = _read_blocks(row["content"])
        if list(_pop_notes(blocks)):
            named = (row["chat_id"], row["id"], msgspec.json.encode(blocks))
            await transaction.run("UPDATE queue SET content = $3 WHERE chat_id = $1 AND id = $2", *named)


def _read_blocks(blocks: bytes) -> list[Any]:
    try:
        return list(msgspec.json.decode(blocks))
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return []


def _pop_notes(blocks: list[Any]) -> Iterator[dict[str, Any]]:
    """Remove the notes from these blocks."""
    for block in blocks:
        metadata = block.get("metadata") if isinstance(block, dict) else None
        note = pop_note(metadata) if isinstance(metadata, dict) else None
        if note is not None:
            if not metadata:
                del block["metadata"]
            yield note


async def _keep_requests(transaction: Transaction, requests: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Put each message's note into the turn whose status follows it. Of two before one status, the later one counts.

    The events of a chat are looked through once for all of its messages: a long one has many of both.
    """
    chat_ids, message_ids = list({chat_id for chat_id, _ in requests}), [message_id for _, message_id in requests]
    kept: dict[tuple[str, str], list[Any]] = {}
    for found in await transaction.all(_TURNS_OF, chat_ids, message_ids):
        note = requests.get((found["chat_id"], found["message_id"]))
        if note is not None:
            stored = [] if found["request"] is None else msgspec.json.decode(found["request"])
            kept.setdefault((found["chat_id"], found["turn_id"]), stored).append([found["seq"], note])
    rows = [(msgspec.json.encode(sorted(notes, key=itemgetter(0))), *turn) for turn, notes in kept.items()]
    await transaction.many(_SET_REQUEST, rows)


async def give_outcomes(transaction: Transaction) -> None:
    """0019. Clients read the stored rows as they are.

    What is journalled of attempts that still run is converted too, because their replies are still to be made of it.
    The journals of ended attempts stay as they are: nothing is made of them any more.
    """
    marked = _HAS_MARK[transaction.dialect]
    await _convert_messages(
        transaction, _RESULTS.format(marked=marked.format(column="blocks", mark="$4")), _convert_results, _MARK
    )
    await _convert_messages(transaction, _NOTICES, _convert_notice)
    running = _RUNNING.format(marked=marked.format(column="parts", mark="$1"))
    rows = await transaction.all(running, _MARK)
    converted = [
        (_convert(row["parts"], decode_parts, _recover_outcomes), row["chat_id"], row["attempt_id"], row["n"])
        for row in rows
    ]
    await transaction.many(_SET_PARTS, converted)


async def _convert_messages(transaction: Transaction, sql: str, convert: Callable[[Row], bytes], *mark: bytes) -> None:
    after = ("", "")
    while rows := await transaction.all(sql, *after, _CHUNK_ROWS, *mark):
        after = (rows[-1]["chat_id"], rows[-1]["id"])
        await transaction.many(_SET_BLOCKS, [(convert(row), row["chat_id"], row["id"]) for row in rows])


def _convert_results(row: Row) -> bytes:
    return _convert(row["blocks"], decode_blocks, _recover_outcomes)


def _convert_notice(row: Row) -> bytes:
    return _convert(row["blocks"], decode_blocks, partial(recover_notice, has_failed=row["error"] is not None))


def _recover_outcomes(found: list[Any]) -> list[Any]:
    return [recover_outcome(each) if isinstance(each, ToolResult) else each for each in found]


def _convert(stored: bytes, decode: Callable[[bytes], list[Any]], change: Callable[[list[Any]], list[Any]]) -> bytes:
    try:
        return encode(change(decode(stored)))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return stored


STEPS: Final[dict[str, Callable[[Transaction], Awaitable[None]]]] = {
    "0016": name_untitled_chats,
    "0017": give_likenesses,
    "0018": move_requests,
    "0019": give_outcomes,
}
