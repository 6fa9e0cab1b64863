"""Reading a chat: one moment of it, and what has happened since.

A view and the cursor that goes with it come from one read transaction (R9): everything up to `seq`, and up to
row `n` of the running attempt, is in the view, and nothing after it. Whoever goes on reading from there
misses nothing and sees nothing twice. Readers never lock anything.

`pending` is what a running chat is called that no live worker holds. It is computed here and stored nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.content import Block, Message, Part, decode_blocks, decode_parts
from indelible.content.assemble import assemble
from indelible.errors import NotFound
from indelible.ids import is_id
from indelible.machine.states import IfBusy, Status
from indelible.store.commands.facts import alive_workers, load_now
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import DebugMode, attempts, chats, events, journal, messages, queue, turns, workers
from indelible.store.journal.pack import unpack_rows
from indelible.store.queries.ancestors import load_ancestors

PENDING = "pending"
_CHUNK_ROWS = 1000


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The running attempt as far as it is committed: up to row `n`."""

    attempt: str
    n: int
    blocks: list[Block]


class QueuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    if_busy: IfBusy
    blocks: list[Block]
    model: str | None
    created_at: datetime


class ChatView(msgspec.Struct, frozen=True, kw_only=True):
    """One chat at one moment, with the end of its path."""

    id: str
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
    queue: list[QueuedMessage]
    live: Live | None


class ChatStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Whose chat it is, what it does, its open turn and its last event."""

    owner_id: str
    status: str
    turn_id: str | None
    seq: int


class Event(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    kind: str
    ref: str | None
    payload: Any
    at: datetime


class AttemptName(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, numbered by the store."""

    chat_id: str
    id: str
    turn_id: str
    step: int
    number: int
    epoch: int


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an attempt's journal, packed or not."""

    n: int
    parts: list[Part]
    at: datetime


async def load_view(engine: AsyncEngine, chat_id: str, *, limit: int = 50, lease_timeout_s: float) -> ChatView:
    """The chat, its last `limit` messages, its queue and its running attempt, all of one moment."""
    async with begin_read(engine) as connection:
        chat = (await connection.execute(select(chats).where(chats.c.id == chat_id))).one_or_none()
        if chat is None:
            raise NotFound("Chat not found. It may have been deleted.")
        path = await load_path(connection, chat_id, chat.head_id, limit=limit + 1)
        turn = select(turns.c.id).where(turns.c.chat_id == chat_id, turns.c.ended_at.is_(None))
        return ChatView(
            id=chat_id,
            status=await _name_status(connection, chat, lease_timeout_s),
            archived=chat.archived,
            title=chat.title,
            model=chat.model,
            debug=chat.debug,
            seq=chat.seq,
            turn=(await connection.execute(turn)).scalar(),
            error=None if chat.error is None else msgspec.json.decode(chat.error),
            retry=None if chat.retry is None else msgspec.json.decode(chat.retry),
            messages=path[-limit:],
            has_more=len(path) > limit,
            queue=await _load_queue(connection, chat_id),
            live=await _load_live(connection, chat_id),
        )


async def load_status(engine: AsyncEngine, chat_id: str, *, lease_timeout_s: float) -> ChatStatus:
    """One statement, and one more for a running chat: no message and no part of a reply is read."""
    open_turn = (turns.c.chat_id == chats.c.id) & turns.c.ended_at.is_(None)
    columns = (chats.c.owner_id, chats.c.status, chats.c.holder, chats.c.seq, turns.c.id.label("turn_id"))
    found = select(*columns).outerjoin_from(chats, turns, open_turn).where(chats.c.id == chat_id)
    async with begin_read(engine) as connection:
        row = (await connection.execute(found)).one_or_none() if is_id(chat_id) else None
        if row is None:
            raise NotFound("Chat not found. It may have been deleted.")
        status = await _name_status(connection, row, lease_timeout_s)
        return ChatStatus(owner_id=row.owner_id, status=status, turn_id=row.turn_id, seq=row.seq)


async def load_path(
    connection: AsyncConnection, chat_id: str, end_id: str | None, *, limit: int | None = None
) -> list[Message]:
    """The path that ends with `end_id`, oldest first: all of it or its last `limit` messages."""
    columns = (messages.c.blocks, messages.c.reason, messages.c.provider, messages.c.model)
    more = (messages.c.response_id, messages.c.continues_id)
    path: list[Message] = []
    if limit == 0:
        return path
    async for row in load_ancestors(
        connection, chat_id, end_id, *columns, *more, chunk=min(limit or _CHUNK_ROWS, _CHUNK_ROWS)
    ):
        path.append(to_message(row))
        if len(path) == limit:
            break
    return path[::-1]


def to_message(row: Row[Any]) -> Message:
    return Message(
        role=row.role,
        blocks=decode_blocks(row.blocks),
        id=row.id,
        partial=row.partial,
        reason=row.reason,
        visibility=row.visibility,
        provider=row.provider,
        model=row.model,
        response_id=row.response_id,
        continues=row.continues_id,
    )


async def load_events(engine: AsyncEngine, chat_id: str, *, after: int, limit: int = 1000) -> list[Event]:
    """What has happened since event `after`, in order."""
    wanted = select(events).where(events.c.chat_id == chat_id, events.c.seq > after)
    async with begin_read(engine) as connection:
        rows = await connection.execute(wanted.order_by(events.c.seq).limit(limit))
        return [
            Event(
                seq=row.seq,
                kind=row.kind,
                ref=row.ref,
                payload=None if row.payload is None else msgspec.json.decode(row.payload),
                at=row.at,
            )
            for row in rows
        ]


async def load_rows(engine: AsyncEngine, attempt_id: str, *, after: int = 0) -> list[JournalEntry]:
    """What an attempt said after row `after`, by its own boundaries, however long ago it was (R11)."""
    async with begin_read(engine) as connection:
        found = select(attempts.c.chat_id).where(attempts.c.id == attempt_id)
        chat_id = (await connection.execute(found)).scalar_one_or_none()
        return [] if chat_id is None else await load_journal(connection, chat_id, attempt_id, after)


async def load_journal(connection: AsyncConnection, chat_id: str, attempt_id: str, after: int) -> list[JournalEntry]:
    """What an attempt said after row `after`, whether it is packed or not."""
    is_new = (journal.c.n > after) | (journal.c.n == 0)
    wanted = (
        select(journal)
        .where(journal.c.chat_id == chat_id, journal.c.attempt_id == attempt_id, is_new)
        .order_by(journal.c.n)
    )
    found: Sequence[Row[Any]] = (await connection.execute(wanted)).all()
    if found and found[0].n == 0:
        packed = unpack_rows(found[0].parts)
        return [JournalEntry(n=row.n, parts=decode_parts(row.parts), at=row.at) for row in packed if row.n > after]
    return [JournalEntry(n=row.n, parts=decode_parts(row.parts), at=row.at) for row in found if row.n > after]


async def _load_live(connection: AsyncConnection, chat_id: str) -> Live | None:
    running = select(attempts.c.id).where(attempts.c.chat_id == chat_id, attempts.c.ended_at.is_(None))
    attempt_id = (await connection.execute(running)).scalar()
    if attempt_id is None:
        return None
    rows = await load_journal(connection, chat_id, attempt_id, 0)
    blocks = assemble(part for row in rows for part in row.parts)
    return Live(attempt=attempt_id, n=rows[-1].n if rows else 0, blocks=blocks)


async def _load_queue(connection: AsyncConnection, chat_id: str) -> list[QueuedMessage]:
    wanted = select(queue).where(queue.c.chat_id == chat_id).order_by(queue.c.position)
    return [
        QueuedMessage(
            id=row.id,
            if_busy=row.if_busy,
            blocks=decode_blocks(row.content),
            model=row.model,
            created_at=row.created_at,
        )
        for row in await connection.execute(wanted)
    ]


async def _name_status(connection: AsyncConnection, chat: Any, lease_timeout_s: float) -> str:
    if chat.status != Status.RUNNING.value:
        return str(chat.status)
    since = await load_now(connection) - timedelta(seconds=lease_timeout_s)
    beating = alive_workers(since).where(workers.c.id == chat.holder)
    return str(chat.status) if (await connection.execute(beating)).first() is not None else PENDING
