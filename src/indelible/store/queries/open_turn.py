"""What a worker needs to know of a chat that it holds, all of one moment.

`load_work` is asked once per turn, and again after a takeover: the open turn, the conversation, and the attempt
that is still open, if the last holder left one whose stream was complete (R3). `load_held` is asked all the time
and is one small query: whether the chats that a worker holds are still its own, and still to be worked on.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Row, bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.content import Message, Part, Usage
from indelible.errors import NotFound
from indelible.machine.states import Status, TurnKind
from indelible.store.commands.facts import load_now
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import DebugMode, attempts, chats, messages, turns
from indelible.store.queries.chat_view import AttemptName, load_journal, load_path


class OpenWork(msgspec.Struct, frozen=True, kw_only=True):
    """The open turn of a chat.

    `model` is the one that was chosen for the turn, or else for the chat. `next_step` is the number that the turn's
    next step will get; attempts that left nothing do not count. `attempt` is open, and `parts` are what it said up
    to row `n`. `usage` is the last reply's. `debug` is what the chat wants recorded; None: as the setting says.
    """

    chat_id: str
    owner_id: str
    status: Status
    epoch: int
    holder: str | None
    titled: bool
    turn_id: str | None = None
    kind: TurnKind = "reply"
    model: str | None = None
    system_prompt: str | None = None
    parameters: dict[str, Any] = {}
    debug: DebugMode | None = None
    messages: list[Message] = []
    usage: Usage | None = None
    next_step: int = 1
    completed_steps: int = 0
    attempt: AttemptName | None = None
    parts: list[Part] = []
    n: int = 0


class Held(NamedTuple):
    """A chat that a worker holds, as the database has it now."""

    chat_id: str
    status: Status
    epoch: int
    turn_id: str | None


class Probe(NamedTuple):
    """What a worker finds out about hinted chats: those that it holds, and those that it may try to acquire."""

    held: list[Held]
    runnable: list[str]


class Expired(NamedTuple):
    """A chat that has waited in vain for answers from outside."""

    chat_id: str
    turn_id: str


async def load_work(engine: AsyncEngine, chat_id: str) -> OpenWork:
    async with begin_read(engine) as connection:
        chat = (await connection.execute(select(chats).where(chats.c.id == chat_id))).one_or_none()
        if chat is None:
            raise NotFound("Chat not found. It may have been deleted.")
        found = select(turns).where(turns.c.chat_id == chat_id, turns.c.ended_at.is_(None))
        turn = (await connection.execute(found)).one_or_none()
        work = OpenWork(
            chat_id=chat_id,
            owner_id=chat.owner_id,
            status=Status(chat.status),
            epoch=chat.epoch,
            holder=chat.holder,
            titled=chat.title is not None,
            model=chat.model,
            system_prompt=None if chat.system_prompt is None else msgspec.json.decode(chat.system_prompt),
            parameters={} if chat.parameters is None else msgspec.json.decode(chat.parameters),
            debug=chat.debug,
        )
        return work if turn is None else await _add_turn(connection, work, chat, turn)


async def _add_turn(connection: AsyncConnection, work: OpenWork, chat: Row[Any], turn: Row[Any]) -> OpenWork:
    kept = attempts.c.outcome.is_(None) | (attempts.c.outcome != "reset")
    last_step = select(func.coalesce(func.max(attempts.c.step), 0)).where(attempts.c.turn_id == turn.id, kept)
    complete = (attempts.c.turn_id == turn.id, attempts.c.outcome == "complete")
    completed_steps = select(func.count()).select_from(attempts).where(*complete)
    work = msgspec.structs.replace(
        work,
        turn_id=turn.id,
        kind=turn.kind,
        model=turn.model or chat.model,
        messages=await load_path(connection, work.chat_id, chat.head_id),
        next_step=(await connection.execute(last_step)).scalar_one() + 1,
        completed_steps=(await connection.execute(completed_steps)).scalar_one(),
    )
    replies = [message.id for message in work.messages if message.role == "assistant"]
    if replies:
        usage = select(messages.c.usage).where(messages.c.chat_id == work.chat_id, messages.c.id == replies[-1])
        used = (await connection.execute(usage)).scalar()
        work = msgspec.structs.replace(work, usage=None if used is None else msgspec.json.decode(used, type=Usage))
    found = select(attempts).where(attempts.c.turn_id == turn.id, attempts.c.ended_at.is_(None))
    row = (await connection.execute(found)).one_or_none()
    if row is None:
        return work
    rows = await load_journal(connection, row.chat_id, row.id, after=0)
    return msgspec.structs.replace(
        work,
        attempt=AttemptName(
            chat_id=row.chat_id, id=row.id, turn_id=turn.id, step=row.step, number=row.number, epoch=row.epoch
        ),
        parts=[part for entry in rows for part in entry.parts],
        n=rows[-1].n if rows else 0,
    )


_HELD: Final = (
    select(chats.c.id, chats.c.status, chats.c.epoch, turns.c.id.label("turn_id"))
    .outerjoin_from(chats, turns, (turns.c.chat_id == chats.c.id) & turns.c.ended_at.is_(None))
    .where(chats.c.holder == bindparam("worker"))
)


async def load_held(engine: AsyncEngine, worker_id: str) -> list[Held]:
    async with begin_read(engine) as connection:
        rows = await connection.execute(_HELD, {"worker": worker_id})
        return [Held(row.id, Status(row.status), row.epoch, row.turn_id) for row in rows]


async def load_expired(engine: AsyncEngine, *, limit: int) -> list[Expired]:
    """Chats whose time to be answered from outside is over, the longest waiting first. Only a hint."""
    async with begin_read(engine) as connection:
        now = await load_now(connection)
        found = (
            select(chats.c.id, turns.c.id.label("turn_id"))
            .join_from(chats, turns, (turns.c.chat_id == chats.c.id) & turns.c.ended_at.is_(None))
            .where(chats.c.status == Status.REQUIRES_ACTION.value, chats.c.deadline_at <= now)
            .order_by(chats.c.deadline_at)
            .limit(limit)
        )
        return [Expired(row.id, row.turn_id) for row in await connection.execute(found)]
