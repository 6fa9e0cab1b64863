"""Messages as people see them.

Messages for the model only are left out, and a child of such a message is shown under the nearest visible ancestor:
a client never meets an id that it was not given. Blocks and usage stay the JSON that the database holds.

A page is read from its end upwards, so the end of a long conversation costs no more than that of a short one.

A path may be ten thousand messages long, and nearly every query is about its end. So rows are fetched in chunks from
the end upwards (`load_ancestors`); the caller stops when it has what it needs (tests/store/test_long_chats.py). A path
ends with what people and the model both see last (`is_conversation`): a notice does not change whether the last reply
is partial; nor does a summary, or the instruction to continue.

The attempts of a chat include those that left nothing: the work itself writes these rows, so they always exist.

Must stay true (tests/store/test_history.py): no hidden row is shown or named; a page is only shorter than `limit` if
there are no more messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable
from functools import cache
from typing import Any, Final, Literal

import msgspec

from indelible.api.events import ShownMessage, ShownQueued
from indelible.api.shapes import AttemptView
from indelible.content import Message, Usage
from indelible.errors import ChatNotFound, NotFound
from indelible.store.database.transaction import Dialect, Row, Transaction, to_time

_HIDDEN: Final = "model"
_NANO: Final = 1_000_000_000
_COLUMNS: Final = ("blocks", "reason", "continues_id", "model", "usage", "cost_nanousd", "timings", "created_at")
_HEAD: Final = "SELECT head_id FROM chats WHERE id = $1"
# The parent is looked up by its key; `_build_ancestors` explains why.
_SHOWN: Final = f"""
    SELECT m.id, m.parent_id, m.role, m.partial, {", ".join(f"m.{column}" for column in _COLUMNS)},
        (SELECT visibility FROM messages WHERE chat_id = $1 AND id = m.parent_id) AS parent_visibility
    FROM messages AS m
    WHERE m.chat_id = $1 AND m.id = ANY($2) AND m.visibility <> 'model'
    """
_HIDDEN_OF: Final = """
    SELECT id, parent_id FROM messages WHERE chat_id = $1 AND id = ANY($2) AND visibility = 'model'
    """
_QUEUE: Final = "SELECT id, if_busy, content, model, created_at FROM queue WHERE chat_id = $1 ORDER BY position"
_BELOW: Final = """
    SELECT id, parent_id, visibility, created_at FROM messages WHERE chat_id = $1 AND parent_id = ANY($2)
    """
_FIRST: Final = """
    SELECT id, parent_id, visibility, created_at FROM messages WHERE chat_id = $1 AND parent_id IS NULL
    """
# Not OR: with UNION ALL both halves use the index of children.
_BELOW_AND_FIRST: Final = f"{_BELOW} UNION ALL {_FIRST}"


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the path, oldest first, and whether there is more above it, and below it on the active path."""

    items: list[ShownMessage]
    has_more: bool
    has_newer: bool = False


async def load_page(
    transaction: Transaction,
    chat_id: str,
    *,
    upto: str | None = None,
    before: str | None = None,
    after: str | None = None,
    limit: int = 50,
    only_active: bool = False,
) -> Page:
    """The last `limit` messages of the active path, of the path that ends with `upto`, or of the one above `before`.

    With `after`, the first `limit` below that message on the active path. `only_active`: `before` is on it, too.
    """
    head_id = upto or await _load_head(transaction, chat_id)
    if only_active and before is not None:
        await _find_below(transaction, chat_id, head_id, before, 0)
    if after is not None:
        below, has_newer = await _find_below(transaction, chat_id, head_id, after, limit)
        if not below:
            return Page(items=[], has_more=True)
        page = await load_page(transaction, chat_id, upto=below[0], limit=len(below))
        return Page(items=page.items, has_more=True, has_newer=has_newer)
    start_id = before or head_id
    found: list[Row] = []
    is_known = start_id is None
    async for row in load_ancestors(transaction, chat_id, start_id, *_COLUMNS, chunk=limit + 2):
        is_known = True
        if row["visibility"] != _HIDDEN and row["id"] != before:
            found.append(row)
        if len(found) > limit:
            break
    if not is_known:
        raise NotFound("Message not found in this chat.")
    parent_ids = [None if above is None else above["id"] for above in [*found[1:], None][: min(limit, len(found))]]
    branches = await _load_branches(transaction, chat_id, set(parent_ids))
    items = [
        show_message(row, parent_id, siblings=branches[parent_id])
        for row, parent_id in zip(found[:limit], parent_ids, strict=True)
    ]
    return Page(items=items[::-1], has_more=len(found) > limit, has_newer=before is not None)


async def _load_head(transaction: Transaction, chat_id: str) -> str | None:
    row = await transaction.one(_HEAD, chat_id)
    if row is None:
        raise ChatNotFound
    head_id: str | None = row["head_id"]
    return head_id


async def _find_below(
    transaction: Transaction, chat_id: str, head_id: str | None, after: str, limit: int
) -> tuple[list[str], bool]:
    """The first `limit` visible messages below `after`, newest first, and whether there are more below those.

    A message does not know its successor on the active path, so the path is read from its end, without content.
    """
    below: deque[str] = deque(maxlen=limit + 1)
    async for row in load_ancestors(transaction, chat_id, head_id, chunk=1000):
        if row["id"] == after:
            has_newer = len(below) > limit
            return list(below)[1:] if has_newer else list(below), has_newer
        if row["visibility"] != _HIDDEN:
            below.append(row["id"])
    raise NotFound("Message not found on the active branch.")


async def load_shown(transaction: Transaction, chat_id: str, ids: Iterable[str]) -> dict[str, ShownMessage]:
    """These messages by id, without those that people do not see."""
    rows = await transaction.all(_SHOWN, chat_id, list(ids))
    hidden = {row["parent_id"] for row in rows if row["parent_visibility"] == _HIDDEN}
    above = await find_visible(transaction, chat_id, hidden) if hidden else {}
    return {row["id"]: show_message(row, above.get(row["parent_id"], row["parent_id"])) for row in rows}


async def find_visible(transaction: Transaction, chat_id: str, ids: Iterable[str]) -> dict[str, str | None]:
    """Map each of these messages to itself if people see it, else to its nearest visible ancestor."""
    found: dict[str, str | None] = {id_: id_ for id_ in ids}
    while unknown := {id_ for id_ in found.values() if id_ is not None}:
        hidden = await transaction.all(_HIDDEN_OF, chat_id, list(unknown))
        if not hidden:
            break
        above = {row["id"]: row["parent_id"] for row in hidden}
        found = {id_: above.get(place, place) if place is not None else None for id_, place in found.items()}
    return found


async def load_shown_queue(transaction: Transaction, chat_id: str) -> list[ShownQueued]:
    """The current queue, in order. Its blocks stay JSON, like those of messages."""
    return [
        ShownQueued(
            id=row["id"],
            if_busy=row["if_busy"],
            blocks=msgspec.Raw(row["content"]),
            model=row["model"] or None,
            created_at=to_time(row["created_at"]),
        )
        for row in await transaction.all(_QUEUE, chat_id)
    ]


async def _load_branches(
    transaction: Transaction, chat_id: str, parent_ids: set[str | None]
) -> dict[str | None, list[str]]:
    """What people see next below each of these messages, oldest first; None stands for the root.

    The children of a hidden child take its place, so a continued reply and a question in its stead are alternatives.
    """
    places: dict[str | None, str | None] = {parent_id: parent_id for parent_id in parent_ids}
    found: dict[str | None, list[tuple[Any, str]]] = {parent_id: [] for parent_id in parent_ids}
    wanted, sql = list(parent_ids), _BELOW_AND_FIRST if None in parent_ids else _BELOW
    while wanted:
        rows = await transaction.all(sql, chat_id, [id_ for id_ in wanted if id_ is not None])
        wanted, sql = [], _BELOW
        for row in rows:
            place = places[row["parent_id"]]
            if row["visibility"] == _HIDDEN:
                places[row["id"]] = place
                wanted.append(row["id"])
            else:
                found[place].append((row["created_at"], row["id"]))
    return {place: [id_ for _, id_ in sorted(branches)] for place, branches in found.items()}


def show_message(
    row: Row, parent_id: str | None, *, siblings: list[str] | msgspec.UnsetType = msgspec.UNSET
) -> ShownMessage:
    """A row as people see it; `parent_id` is the nearest message above it that they see."""
    return ShownMessage(
        id=row["id"],
        parent_id=parent_id,
        role=row["role"],
        blocks=msgspec.Raw(row["blocks"]),
        partial=bool(row["partial"]),
        reason=row["reason"],
        continues=row["continues_id"],
        model=row["model"] or None,
        usage=msgspec.Raw(row["usage"] or b"null"),
        cost_usd=None if row["cost_nanousd"] is None else row["cost_nanousd"] / _NANO,
        timings=msgspec.Raw(row["timings"] or b"null"),
        created_at=to_time(row["created_at"]),
        siblings=siblings,
    )


_ATTEMPT_COLUMNS: Final = (
    "id, turn_id, step, number, provider, model, outcome, error, usage, started_at, ended_at, last_n"
)
_NEWEST: Final = f"SELECT {_ATTEMPT_COLUMNS} FROM attempts WHERE chat_id = $1 ORDER BY id DESC LIMIT $2"
_AFTER: Final = f"SELECT {_ATTEMPT_COLUMNS} FROM attempts WHERE chat_id = $1 AND id > $3 ORDER BY id LIMIT $2"
_BEFORE: Final = f"SELECT {_ATTEMPT_COLUMNS} FROM attempts WHERE chat_id = $1 AND id < $3 ORDER BY id DESC LIMIT $2"


async def load_attempts(
    transaction: Transaction, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
) -> list[AttemptView]:
    """Newest first: the newest, those next older than `before`, or those next newer than `after`."""
    if after is not None:
        rows = (await transaction.all(_AFTER, chat_id, limit, after))[::-1]
    elif before is None:
        rows = await transaction.all(_NEWEST, chat_id, limit)
    else:
        rows = await transaction.all(_BEFORE, chat_id, limit, before)
    return [_show_attempt(row) for row in rows]


def _show_attempt(row: Row) -> AttemptView:
    return AttemptView(
        id=row["id"],
        turn_id=row["turn_id"],
        step=row["step"],
        number=row["number"],
        provider=row["provider"],
        model=row["model"],
        outcome=row["outcome"],
        error=None if row["error"] is None else msgspec.json.decode(row["error"]),
        usage=None if row["usage"] is None else msgspec.json.decode(row["usage"], type=Usage),
        started_at=to_time(row["started_at"]),
        ended_at=to_time(row["ended_at"]),
        last_n=row["last_n"],
    )


_CHUNK: Final = 50
_SHAPE: Final = ("id", "parent_id", "role", "visibility", "partial")


async def load_ancestors(
    transaction: Transaction, chat_id: str, start_id: str | None, *columns: str, chunk: int = _CHUNK
) -> AsyncIterator[Row]:
    """The rows from `start_id` up to the first message. `columns` are fetched in addition to those of the tree."""
    sql = _build_ancestors(columns, transaction.dialect)
    while start_id is not None:
        rows = await transaction.all(sql, chat_id, start_id, chunk)
        for row in rows:
            yield row
        start_id = rows[-1]["parent_id"] if rows else None


def is_conversation(row: Row) -> bool:
    """Whether people and the model both see this message: it is no notice, no summary and no instruction."""
    return bool(row["role"] != "notice" and row["visibility"] == "both")


HeadKind = Literal["partial", "whole", "people", "model"]
HEAD_KIND: Final = """
CASE WHEN visibility <> 'both' THEN visibility WHEN role = 'notice' THEN 'people'
    WHEN role = 'assistant' AND partial THEN 'partial' ELSE 'whole' END
"""
"""What a head is, in SQL: a partial reply or another message of the conversation, or one that is not of it."""


def find_head_kind(message: Message) -> HeadKind:
    """The same of a message that becomes the head."""
    if message.visibility != "both":
        return message.visibility
    if message.role == "notice":
        return "people"
    return "partial" if message.role == "assistant" and message.partial else "whole"


async def find_partial_reply(transaction: Transaction, chat_id: str, head_id: str | None) -> str | None:
    """The partial reply that the path ends with; None if it ends with anything else."""
    async for row in load_ancestors(transaction, chat_id, head_id):
        if is_conversation(row):
            return str(row["id"]) if row["role"] == "assistant" and row["partial"] else None
    return None


@cache
def _build_ancestors(columns: tuple[str, ...], dialect: Dialect) -> str:
    """LATERAL makes PostgreSQL look up each parent by its key.

    Otherwise, without statistics, it joins with all messages of the chat, and a connection keeps that plan when the
    chat has become long. SQLite uses the key anyway, and has no LATERAL.
    """
    wanted = ", ".join((*_SHAPE, *columns))
    parent = ", ".join(f"parent.{column}" for column in (*_SHAPE, *columns))
    parents = "JOIN messages AS parent ON parent.chat_id = $1 AND parent.id = up.parent_id"
    if dialect == "postgresql":
        above = f"SELECT {wanted} FROM messages WHERE chat_id = $1 AND id = up.parent_id LIMIT 1"
        parents = f"CROSS JOIN LATERAL ({above}) AS parent"
    return f"""
        WITH RECURSIVE up AS (
            SELECT {wanted}, 1 AS depth FROM messages WHERE chat_id = $1 AND id = $2
            UNION ALL
            SELECT {parent}, up.depth + 1 FROM up {parents} WHERE up.depth < $3
        )
        SELECT {wanted} FROM up ORDER BY depth
        """
