"""Reading a chat: a snapshot, and what has happened since.

A view and its cursor come from one read transaction (R9): everything up to `seq`, and up to
row `n` of the running attempt, is in the view, and nothing after it. A reader that continues from there
misses nothing and sees nothing twice. Readers never lock anything.

A running chat without a live holder is `pending`. That status is computed (liveness.py), never stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from functools import cache
from typing import Any, Final

import msgspec

from indelible.api.events import ShownQueued
from indelible.api.shapes import AwaitedAction, DebugMode, QueuedMessage
from indelible.content import Block, Message, Part, decode_blocks, decode_parts
from indelible.content.assemble import assemble
from indelible.errors import ChatNotFound
from indelible.ids import is_id
from indelible.machine.states import Status
from indelible.store.commands.facts import load_end
from indelible.store.database.transaction import Dialect, Row, Transaction, to_time
from indelible.store.journal.pack import unpack_rows
from indelible.store.queries.history import load_ancestors, load_shown_queue
from indelible.store.queries.liveness import bind_ago, build_status
from indelible.store.usage import Totals

_CHUNK_ROWS: Final = 1000
_MESSAGE: Final = ("blocks", "reason", "provider", "model", "response_id", "continues_id")
_EVENTS: Final = """
    SELECT seq, kind, ref, payload, at FROM events WHERE chat_id = $1 AND seq > $2 ORDER BY seq LIMIT $3
    """
_ANSWERING: Final = "SELECT id FROM turns WHERE chat_id = $1 AND message_id = $2 ORDER BY number DESC LIMIT 1"
_CHANGES: Final = "SELECT seq, payload FROM events WHERE chat_id = $1 AND kind = 'status' AND ref = $2 ORDER BY seq"
_JOURNAL: Final = """
    SELECT n, parts, at FROM journal
    WHERE chat_id = $1 AND attempt_id = $2 AND (n > $3 OR n = 0)
    ORDER BY n
    """


@cache
def _build_view(dialect: Dialect) -> str:
    return f"""
        SELECT c.owner_id, c.status, c.archived, c.title, c.model, c.debug, c.seq, c.error, c.retry, c.head_id,
            c.deadline_at, c.usage, c.cost_nanousd,
            {build_status(dialect, 2)} AS shown_status, t.id AS turn_id, a.id AS attempt_id,
            EXISTS (SELECT id FROM queue WHERE chat_id = $1) AS has_queue
        FROM chats AS c
        LEFT JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
        LEFT JOIN attempts AS a ON a.chat_id = c.id AND a.ended_at IS NULL
        WHERE c.id = $1
        """


@cache
def _build_chat_status(dialect: Dialect) -> str:
    return f"""
        SELECT c.owner_id, c.seq, {build_status(dialect, 2)} AS shown_status, t.id AS turn_id,
            COALESCE(t.model, c.model) AS model
        FROM chats AS c
        LEFT JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
        WHERE c.id = $1
        """


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The committed part of the running attempt: up to row `n`."""

    attempt: str
    n: int
    blocks: list[Block]


class ChatView(msgspec.Struct, frozen=True, kw_only=True):
    """One chat at one moment, with the end of its path. `totals` are what all its messages used and cost."""

    id: str
    owner_id: str
    head_id: str | None
    status: str
    archived: bool
    title: str | None
    model: str | None
    debug: DebugMode | None
    seq: int
    turn: str | None
    error: Any
    retry: Any
    messages: list[Message]
    has_more: bool
    queue: list[ShownQueued]
    live: Live | None
    action: AwaitedAction | None = None
    totals: Totals = Totals()


class ChatStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a chat, its status, its open turn and its last event.

    `model` is the open turn's, or else the chat's; None means the setting.
    """

    owner_id: str
    status: str
    turn_id: str | None
    seq: int
    model: str | None


class Answering(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that answers a message. `starts` are the events with which it began, and was resumed after each wait."""

    turn_id: str
    starts: list[int]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    kind: str
    ref: str | None
    payload: Any
    at: datetime


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an attempt's journal, packed or not."""

    n: int
    parts: list[Part]
    at: datetime


async def load_view(transaction: Transaction, chat_id: str, *, limit: int = 50, lease_timeout_s: float) -> ChatView:
    """The chat, its last `limit` messages, its queue and its running attempt, all of one moment."""
    dialect = transaction.dialect
    chat = await transaction.one(_build_view(dialect), chat_id, bind_ago(dialect, lease_timeout_s))
    if chat is None:
        raise ChatNotFound
    path = await load_path(transaction, chat_id, chat["head_id"], limit=limit + 1) if limit else []
    return ChatView(
        id=chat_id,
        owner_id=chat["owner_id"],
        head_id=chat["head_id"],
        status=chat["shown_status"],
        archived=bool(chat["archived"]),
        title=chat["title"],
        model=chat["model"],
        debug=chat["debug"],
        seq=chat["seq"],
        turn=chat["turn_id"],
        error=None if chat["error"] is None else msgspec.json.decode(chat["error"]),
        retry=None if chat["retry"] is None else msgspec.json.decode(chat["retry"]),
        messages=path[-limit:],
        has_more=len(path) > limit,
        queue=await load_shown_queue(transaction, chat_id) if chat["has_queue"] else [],
        live=None if chat["attempt_id"] is None else await _load_live(transaction, chat_id, chat["attempt_id"]),
        action=await _load_action(transaction, chat_id, chat) if chat["status"] == "requires_action" else None,
        totals=Totals.read(chat),
    )


async def load_status(transaction: Transaction, chat_id: str, *, lease_timeout_s: float) -> ChatStatus:
    """One statement that reads no message and no part of a reply. `chat_id` may be any text."""
    dialect = transaction.dialect
    wanted = (_build_chat_status(dialect), chat_id, bind_ago(dialect, lease_timeout_s))
    row = await transaction.one(*wanted) if is_id(chat_id) else None
    if row is None:
        raise ChatNotFound
    return ChatStatus(
        owner_id=row["owner_id"],
        status=row["shown_status"],
        turn_id=row["turn_id"],
        seq=row["seq"],
        model=row["model"] or None,
    )


async def load_path(
    transaction: Transaction, chat_id: str, end_id: str | None, *, limit: int | None = None
) -> list[Message]:
    """The path that ends with `end_id`, oldest first: all of it or its last `limit` messages."""
    path: list[Message] = []
    if limit == 0:
        return path
    async for row in load_path_rows(transaction, chat_id, end_id, chunk=min(limit or _CHUNK_ROWS, _CHUNK_ROWS)):
        path.append(to_message(row))
        if len(path) == limit:
            break
    return path[::-1]


def load_path_rows(
    transaction: Transaction, chat_id: str, end_id: str | None, *columns: str, chunk: int = _CHUNK_ROWS
) -> AsyncIterator[Row]:
    """The rows of a path, from its end upwards, for `to_message`. `columns` are fetched in addition."""
    return load_ancestors(transaction, chat_id, end_id, *_MESSAGE, *columns, chunk=chunk)


def to_message(row: Row) -> Message:
    return Message(
        role=row["role"],
        blocks=decode_blocks(row["blocks"]),
        id=row["id"],
        partial=bool(row["partial"]),
        reason=row["reason"],
        visibility=row["visibility"],
        provider=row["provider"],
        model=row["model"] or None,
        response_id=row["response_id"],
        continues=row["continues_id"],
    )


async def load_events(transaction: Transaction, chat_id: str, *, after: int, limit: int = 1000) -> list[Event]:
    """The events after number `after`, in order."""
    return [to_event(row) for row in await transaction.all(_EVENTS, chat_id, after, limit)]


async def load_answering(transaction: Transaction, chat_id: str, message_id: str) -> Answering | None:
    """The last turn that answers this message, if there was one."""
    turn = await transaction.one(_ANSWERING, chat_id, message_id)
    if turn is None:
        return None
    changes = await transaction.all(_CHANGES, chat_id, turn["id"])
    starts = [row["seq"] for row in changes if msgspec.json.decode(row["payload"])["status"] == Status.RUNNING]
    return Answering(turn_id=turn["id"], starts=starts)


def to_event(row: Row) -> Event:
    return Event(
        seq=row["seq"],
        kind=row["kind"],
        ref=row["ref"],
        payload=None if row["payload"] is None else msgspec.json.decode(row["payload"]),
        at=to_time(row["at"]),
    )


async def load_rows(transaction: Transaction, chat_id: str, attempt_id: str, *, after: int = 0) -> list[JournalEntry]:
    """The journal rows of an attempt after row `after`, with their original boundaries, packed or not (R11)."""
    found = await transaction.all(_JOURNAL, chat_id, attempt_id, after)
    if found and found[0]["n"] == 0:
        packed = unpack_rows(found[0]["parts"])
        return [JournalEntry(n=row.n, parts=decode_parts(row.parts), at=row.at) for row in packed if row.n > after]
    return [JournalEntry(n=row["n"], parts=decode_parts(row["parts"]), at=to_time(row["at"])) for row in found]


async def _load_live(transaction: Transaction, chat_id: str, attempt_id: str) -> Live:
    rows = await load_rows(transaction, chat_id, attempt_id)
    blocks = assemble(part for row in rows for part in row.parts)
    return Live(attempt=attempt_id, n=rows[-1].n if rows else 0, blocks=blocks)


async def _load_action(transaction: Transaction, chat_id: str, chat: Row) -> AwaitedAction:
    end = await load_end(transaction, chat_id, chat["head_id"])
    return AwaitedAction(calls=end.open_calls, deadline_at=to_time(chat["deadline_at"]))


async def load_queue(transaction: Transaction, chat_id: str) -> list[QueuedMessage]:
    """The queued messages, in order, with their blocks decoded."""
    return [
        QueuedMessage(
            id=queued.id,
            if_busy=queued.if_busy,
            blocks=decode_blocks(queued.blocks),
            model=queued.model,
            created_at=queued.created_at,
        )
        for queued in await load_shown_queue(transaction, chat_id)
    ]
