"""Loading what `decide` needs to know, under the chat's lock.

The lock comes first, and everything else is read in later statements: at READ COMMITTED a statement that
waited for a lock would still see what was there before it (R1). SQLite needs no row lock, because a
transaction that writes has the whole file.

The locked row says the status, and with it what else there can be: a chat at rest has no open turn, an idle one no
queue. Beyond that only the facts are loaded that the command declares for this status (machine/transitions.py,
`FACTS`). What was not loaded has its default in the snapshot; that `decide` never reads it is checked by
tests/machine/test_facts.py, and what a stop costs by tests/store/test_statements.py.

Facts about the end of the path are found by climbing from the head, so that the length of a chat costs
nothing (store/queries/ancestors.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import BindParameter, Row, Select, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.content import Finish, ToolCall, ToolResult, decode_blocks, decode_parts
from indelible.machine.commands import Acquire, Command
from indelible.machine.states import OpenAttempt, OpenTurn, QueuedRow, Snapshot, Status, Target
from indelible.machine.transitions import Fact, find_facts
from indelible.store.database.tables import attempts, chats, journal, messages, queue, turns, workers
from indelible.store.queries.ancestors import load_ancestors

_ACQUIRE_LOCK_TIMEOUT_MS: Final = 250
"""Acquiring waits no longer than this for an attempt that somebody has locked: others can be acquired meanwhile."""
_BUSY: Final = (Status.RUNNING, Status.INTERRUPTING)
_HAS_TURN: Final = (*_BUSY, Status.REQUIRES_ACTION)
_AT_THE_END: Final = {Fact.OPEN_CALLS, Fact.LAST_REPLY, Fact.LAST_USER}


class Loaded(NamedTuple):
    """A snapshot, the chat's row, the calls that are open at its end if they were asked for, the database's time.

    `vacant_s` is how long ago the holder's last heartbeat was, if a command asked for it.
    """

    snapshot: Snapshot
    chat: Row[Any]
    open_calls: list[ToolCall]
    now: datetime
    vacant_s: float | None


class End(NamedTuple):
    """What a path ends with."""

    open_calls: list[ToolCall]
    last_is_partial: bool = False
    last_user_id: str | None = None


_NO_END: Final = End([])


async def load_now(connection: AsyncConnection) -> datetime:
    """The database's clock, which all workers share. SQLite's is this machine's."""
    if connection.dialect.name == "sqlite":
        return datetime.now(UTC)
    found: datetime = (await connection.execute(text("SELECT clock_timestamp()"))).scalar_one()
    return found


def alive_workers(dead_before: datetime | BindParameter[datetime]) -> Select[Any]:
    """The workers whose last heartbeat is younger than this."""
    return select(workers.c.id).where(workers.c.heartbeat_at > dead_before)


async def load_snapshot(
    connection: AsyncConnection, chat_id: str, command: Command, *, lease_timeout_s: float
) -> Loaded | None:
    """Lock the chat and load what the command needs to know; None if there is no such chat.

    Acquiring does not wait for a chat that somebody else is busy with (R2): it is then as good as not there.
    """
    is_acquiring = isinstance(command, Acquire)
    if is_acquiring and connection.dialect.name == "postgresql":
        await connection.execute(text(f"SET LOCAL lock_timeout = {_ACQUIRE_LOCK_TIMEOUT_MS}"))
    locked = select(chats).where(chats.c.id == chat_id).with_for_update(key_share=True, skip_locked=is_acquiring)
    chat = (await connection.execute(locked)).one_or_none()
    if chat is None:
        return None
    status = Status(chat.status)
    facts = find_facts(command.name, status)
    now = await load_now(connection)
    end = await load_end(connection, chat_id, chat.head_id) if facts & _AT_THE_END else _NO_END
    vacant_s = await _find_vacancy(connection, chat.holder, now) if Fact.HOLDER_ALIVE in facts else None
    turn, attempt = await _load_open_work(connection, chat, facts) if status in _HAS_TURN else (None, None)
    snapshot = Snapshot(
        chat_id=chat_id,
        status=status,
        archived=chat.archived,
        epoch=chat.epoch,
        holder=chat.holder,
        holder_alive=vacant_s is not None and vacant_s < lease_timeout_s,
        head_id=chat.head_id,
        queue=await _load_queue(connection, chat_id) if status is not Status.IDLE else (),
        turn=turn,
        attempt=attempt,
        awaiting=tuple(call.id for call in end.open_calls),
        deadline_passed=chat.deadline_at is not None and chat.deadline_at <= now,
        last_is_partial=end.last_is_partial,
        last_user_id=end.last_user_id,
        titled=chat.title is not None,
        last_turn_kind=await _load_last_turn_kind(connection, chat_id) if Fact.LAST_TURN in facts else "reply",
        target=await _load_target(connection, chat_id, command) if Fact.TARGET in facts else None,
    )
    return Loaded(snapshot, chat, end.open_calls, now, vacant_s)


async def _find_vacancy(connection: AsyncConnection, worker_id: str | None, now: datetime) -> float | None:
    """How long ago the worker's last heartbeat was; None if nobody knows."""
    if worker_id is None:
        return None
    beaten = (await connection.execute(select(workers.c.heartbeat_at).where(workers.c.id == worker_id))).scalar()
    return None if beaten is None else (now - beaten).total_seconds()


async def _load_queue(connection: AsyncConnection, chat_id: str) -> tuple[QueuedRow, ...]:
    rows = select(queue.c.id, queue.c.if_busy).where(queue.c.chat_id == chat_id).order_by(queue.c.position)
    return tuple(QueuedRow(id=row.id, if_busy=row.if_busy) for row in await connection.execute(rows))


async def _load_open_work(
    connection: AsyncConnection, chat: Row[Any], facts: frozenset[Fact]
) -> tuple[OpenTurn | None, OpenAttempt | None]:
    """The open turn, and its open attempt if there is one: one statement."""
    found = (
        select(turns, attempts.c.id.label("attempt_id"), attempts.c.epoch.label("attempt_epoch"))
        .outerjoin_from(turns, attempts, (attempts.c.turn_id == turns.c.id) & attempts.c.ended_at.is_(None))
        .where(turns.c.chat_id == chat.id, turns.c.ended_at.is_(None))
    )
    row = (await connection.execute(found)).one_or_none()
    if row is None:
        return None, None
    counts_rows = Fact.JOURNAL_ROWS in facts and chat.holder is not None  # only a takeover from somebody counts
    turn = OpenTurn(
        id=row.id,
        kind=row.kind,
        message_id=row.message_id,
        takeovers=row.takeovers,
        stalled_takeovers=row.stalled_takeovers,
        journal_rows=await _count_journal_rows(connection, chat.id, row.id)
        if counts_rows
        else row.journal_rows_at_takeover,
        journal_rows_at_takeover=row.journal_rows_at_takeover,
    )
    if row.attempt_id is None:
        return turn, None
    finished = Fact.FINISHED in facts and await _holds_finish(connection, chat.id, row.attempt_id)
    return turn, OpenAttempt(id=row.attempt_id, turn_id=row.id, epoch=row.attempt_epoch, finished=finished)


async def _count_journal_rows(connection: AsyncConnection, chat_id: str, turn_id: str) -> int:
    """How many journal rows a turn has; an attempt that is still open does not know its last one yet."""
    own = (attempts.c.chat_id == chat_id) & (attempts.c.turn_id == turn_id)
    ended = select(func.coalesce(func.sum(attempts.c.last_n), 0)).where(own)
    running = (
        select(func.count())
        .select_from(journal)
        .where(
            journal.c.chat_id == chat_id,
            journal.c.attempt_id.in_(select(attempts.c.id).where(own, attempts.c.ended_at.is_(None))),
        )
    )
    return int((await connection.execute(ended)).scalar_one()) + int((await connection.execute(running)).scalar_one())


async def _load_last_turn_kind(connection: AsyncConnection, chat_id: str) -> Any:
    ended = select(turns.c.kind).where(turns.c.chat_id == chat_id, turns.c.ended_at.is_not(None))
    return (await connection.execute(ended.order_by(turns.c.number.desc()).limit(1))).scalar() or "reply"


async def _holds_finish(connection: AsyncConnection, chat_id: str, attempt_id: str) -> bool:
    own = (journal.c.chat_id == chat_id, journal.c.attempt_id == attempt_id)
    rows = await connection.execute(select(journal.c.parts).where(*own))
    return any(isinstance(part, Finish) for row in rows for part in decode_parts(row.parts))


async def load_end(connection: AsyncConnection, chat_id: str, head_id: str | None) -> End:
    """What the path ends with, notices and people-only rows left out."""
    last_is_partial: bool | None = None
    last_user_id: str | None = None
    trailing: list[str] = []
    reply_id: str | None = None
    async for row in load_ancestors(connection, chat_id, head_id):
        if row.role == "notice" or row.visibility == "people":
            continue
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
    return End(open_calls, bool(last_is_partial), last_user_id)


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


async def _load_target(connection: AsyncConnection, chat_id: str, command: Command) -> Target | None:
    """The message that a command names; what only the model sees is nobody's to name."""
    message_id: str = getattr(command, "message_id")  # noqa: B009 - each command that declares it has it
    named: Row[Any] | None = None
    async for row in load_ancestors(connection, chat_id, message_id):
        if named is None:
            if row.visibility == "model":
                return None
            named = row
        if row.role == "user" and row.visibility == "both":
            return Target(id=named.id, role=named.role, parent_id=named.parent_id, user_above_id=row.id)
    return None if named is None else Target(id=named.id, role=named.role, parent_id=named.parent_id)
