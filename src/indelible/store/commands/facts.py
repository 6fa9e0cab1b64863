"""Loading what `decide` may look at, under the chat's lock.

The lock comes first, and everything else is read in later statements: at READ COMMITTED a statement that
waited for a lock would still see what was there before it (R1). SQLite needs no row lock, because a
transaction that writes has the whole file.

Facts about the end of the path are found by climbing from the head, so that the length of a chat costs
nothing (store/queries/ancestors.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Row, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.content import Finish, ToolCall, ToolResult, decode_blocks, decode_parts
from indelible.machine.commands import Acquire, Command, Release
from indelible.machine.states import OpenAttempt, OpenTurn, QueuedRow, Snapshot, Status, Target
from indelible.store.database.tables import attempts, chats, journal, messages, queue, turns, workers
from indelible.store.queries.ancestors import load_ancestors

_PATIENCE_MS: Final = 250
"""Taking a chat waits no longer than this for an attempt that somebody has locked: others can be taken meanwhile."""


class Loaded(NamedTuple):
    """A snapshot, the chat's row, what its path ends with, and the database's time."""

    snapshot: Snapshot
    chat: Row[Any]
    end: End
    now: datetime
    vacant_s: float | None


class End(NamedTuple):
    """What a path ends with: `ends_partial` if its very last message is a reply that was cut."""

    open_calls: list[ToolCall]
    ends_partial: bool = False
    last_is_partial: bool = False
    last_user_id: str | None = None


async def load_now(connection: AsyncConnection) -> datetime:
    """The database's clock, which all workers share. SQLite's is this machine's."""
    if connection.dialect.name == "sqlite":
        return datetime.now(UTC)
    found: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    return found


async def load_snapshot(
    connection: AsyncConnection, chat_id: str, command: Command, *, lease_timeout_s: float
) -> Loaded | None:
    """Lock the chat and load what there is to know; None if there is no such chat.

    Acquiring does not wait for a chat that somebody else is busy with (R2): it is then as good as not there.
    """
    is_taking = isinstance(command, Acquire)
    if is_taking and connection.dialect.name == "postgresql":
        await connection.execute(text(f"SET LOCAL lock_timeout = {_PATIENCE_MS}"))
    locked = select(chats).where(chats.c.id == chat_id).with_for_update(key_share=True, skip_locked=is_taking)
    chat = (await connection.execute(locked)).one_or_none()
    if chat is None:
        return None
    now = await load_now(connection)
    end = await load_end(connection, chat_id, chat.head_id)
    snapshot = Snapshot(
        chat_id=chat_id,
        status=Status(chat.status),
        archived=chat.archived,
        epoch=chat.epoch,
        holder=chat.holder,
        holder_alive=await _is_alive(connection, chat.holder, now - timedelta(seconds=lease_timeout_s)),
        head_id=chat.head_id,
        queue=await _load_queue(connection, chat_id),
        turn=await _load_turn(connection, chat_id, counts_rows=isinstance(command, Acquire)),
        attempt=await _load_attempt(connection, chat_id, asks_for_finish=isinstance(command, Acquire | Release)),
        awaiting=tuple(call.id for call in end.open_calls),
        deadline_passed=chat.deadline_at is not None and chat.deadline_at <= now,
        last_is_partial=end.last_is_partial,
        last_user_id=end.last_user_id,
        titled=chat.title is not None,
        last_turn_kind=await _load_last_turn_kind(connection, chat_id),
        target=await _load_target(connection, chat_id, getattr(command, "message_id", None)),
    )
    vacant_s = await _find_vacancy(connection, chat.holder, now) if is_taking else None
    return Loaded(snapshot, chat, end, now, vacant_s)


async def _is_alive(connection: AsyncConnection, worker_id: str | None, since: datetime) -> bool:
    if worker_id is None:
        return False
    beating = select(workers.c.id).where(workers.c.id == worker_id, workers.c.heartbeat_at > since)
    return (await connection.execute(beating)).first() is not None


async def _find_vacancy(connection: AsyncConnection, worker_id: str | None, now: datetime) -> float | None:
    """How long ago the worker was last heard of; None if nobody knows."""
    heard = (await connection.execute(select(workers.c.heartbeat_at).where(workers.c.id == worker_id))).scalar()
    return None if heard is None else (now - heard).total_seconds()


async def _load_queue(connection: AsyncConnection, chat_id: str) -> tuple[QueuedRow, ...]:
    rows = select(queue.c.id, queue.c.if_busy).where(queue.c.chat_id == chat_id).order_by(queue.c.position)
    return tuple(QueuedRow(id=row.id, if_busy=row.if_busy) for row in await connection.execute(rows))


async def _load_turn(connection: AsyncConnection, chat_id: str, *, counts_rows: bool) -> OpenTurn | None:
    found = select(turns).where(turns.c.chat_id == chat_id, turns.c.ended_at.is_(None))
    row = (await connection.execute(found)).one_or_none()
    if row is None:
        return None
    return OpenTurn(
        id=row.id,
        kind=row.kind,
        message_id=row.message_id,
        takeovers=row.takeovers,
        stalled_takeovers=row.stalled_takeovers,
        journal_rows=await _count_journal_rows(connection, row.id) if counts_rows else row.journal_rows_at_takeover,
        journal_rows_at_takeover=row.journal_rows_at_takeover,
    )


async def _count_journal_rows(connection: AsyncConnection, turn_id: str) -> int:
    """How many journal rows a turn has; an attempt that is still open does not know its last one yet."""
    own = attempts.c.turn_id == turn_id
    ended = select(func.coalesce(func.sum(attempts.c.last_n), 0)).where(own)
    running = (
        select(func.count())
        .select_from(journal)
        .where(journal.c.attempt_id.in_(select(attempts.c.id).where(own, attempts.c.ended_at.is_(None))))
    )
    return int((await connection.execute(ended)).scalar_one()) + int((await connection.execute(running)).scalar_one())


async def _load_last_turn_kind(connection: AsyncConnection, chat_id: str) -> Any:
    ended = select(turns.c.kind).where(turns.c.chat_id == chat_id, turns.c.ended_at.is_not(None))
    return (await connection.execute(ended.order_by(turns.c.number.desc()).limit(1))).scalar() or "reply"


async def _load_attempt(connection: AsyncConnection, chat_id: str, *, asks_for_finish: bool) -> OpenAttempt | None:
    found = select(attempts).where(attempts.c.chat_id == chat_id, attempts.c.ended_at.is_(None))
    row = (await connection.execute(found)).one_or_none()
    if row is None:
        return None
    finished = asks_for_finish and await _holds_finish(connection, row.id)
    return OpenAttempt(id=row.id, turn_id=row.turn_id, epoch=row.epoch, finished=finished)


async def _holds_finish(connection: AsyncConnection, attempt_id: str) -> bool:
    rows = await connection.execute(select(journal.c.parts).where(journal.c.attempt_id == attempt_id))
    return any(isinstance(part, Finish) for row in rows for part in decode_parts(row.parts))


async def load_end(connection: AsyncConnection, chat_id: str, head_id: str | None) -> End:
    """What the path ends with, notices and people-only rows left out."""
    ends_partial: bool | None = None
    last_is_partial: bool | None = None
    last_user_id: str | None = None
    trailing: list[str] = []
    reply_id: str | None = None
    async for row in load_ancestors(connection, chat_id, head_id):
        if row.role == "notice" or row.visibility == "people":
            continue
        if ends_partial is None:
            ends_partial = row.role == "assistant" and row.partial
        if last_is_partial is None and row.role != "tool":
            last_is_partial = row.role == "assistant" and row.partial
        if reply_id is None and row.role == "tool":
            trailing.append(row.id)
        elif reply_id is None:
            reply_id = row.id if row.role == "assistant" else ""
        if row.role == "user" and row.visibility == "both":
            last_user_id = row.id
            break
    open_calls = await _load_open_calls(connection, chat_id, reply_id, trailing) if reply_id else []
    return End(open_calls, bool(ends_partial), bool(last_is_partial), last_user_id)


async def _load_open_calls(
    connection: AsyncConnection, chat_id: str, reply_id: str, result_ids: Sequence[str]
) -> list[ToolCall]:
    wanted = select(messages.c.id, messages.c.blocks).where(
        messages.c.chat_id == chat_id, messages.c.id.in_([reply_id, *result_ids])
    )
    blocks = {row.id: decode_blocks(row.blocks) for row in await connection.execute(wanted)}
    answered = {block.call_id for id_ in result_ids for block in blocks[id_] if isinstance(block, ToolResult)}
    calls = [block for block in blocks[reply_id] if isinstance(block, ToolCall) and not block.provider_executed]
    return [call for call in calls if call.id not in answered]


async def _load_target(connection: AsyncConnection, chat_id: str, message_id: str | None) -> Target | None:
    """The message that a command names; what only the model sees is nobody's to name."""
    if message_id is None:
        return None
    named: Row[Any] | None = None
    async for row in load_ancestors(connection, chat_id, message_id):
        if named is None:
            if row.visibility == "model":
                return None
            named = row
        if row.role == "user" and row.visibility == "both":
            return Target(id=named.id, role=named.role, parent_id=named.parent_id, user_above_id=row.id)
    return None if named is None else Target(id=named.id, role=named.role, parent_id=named.parent_id)
