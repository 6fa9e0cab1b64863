"""A store that dies, and the worker that comes after it.

`CrashingStore` stands before a real store and raises `Crashed` at a chosen call: before it, so that nothing
was written, or after it, when all was written and nobody was told. `Crashed` is no Exception, because a
program that is killed runs no handler either. Whoever is dead stays dead: every later call fails as well.

`take_over` is the plainest worker there can be. It takes a chat as a restarted process would, closes what is
open, and brings the chat to rest; it knows nothing but the database. A call that somebody started is never run
again by it: its outcome is unknown (P5).

This module needs SQLAlchemy, so `indelible.testing` does not import it by itself. What a chat must look like
afterwards is invariants.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.content import Finish, Message, Part, TextDelta, ToolCall, ToolResult
from indelible.content.assemble import OUTCOME_UNKNOWN, PartAssembler
from indelible.machine.commands import Acquire, FinishInterruption, FinishTurn, Interrupt, StartAttempt
from indelible.machine.states import Status
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import attempts, chats, turns
from indelible.store.journal.append import Appended, JournalRow
from indelible.store.payloads import C, Payload, StepResult
from indelible.store.protocol import Outcome
from indelible.store.sql_store import SqlStore
from indelible.testing.invariants import StoredChat, load_chat

T = TypeVar("T")
LAST_WORDS = "(brought to rest)"
_AT_REST: Final = (Status.IDLE, Status.ERROR)
_OPEN_WORK: Final = (
    select(
        chats.c.status, chats.c.holder, chats.c.epoch, turns.c.id.label("turn_id"), attempts.c.id.label("attempt_id")
    )
    .select_from(chats)
    .outerjoin(turns, (turns.c.chat_id == chats.c.id) & turns.c.ended_at.is_(None))
    .outerjoin(attempts, (attempts.c.chat_id == chats.c.id) & attempts.c.ended_at.is_(None))
    .where(chats.c.id == bindparam("chat_id"))
)


class Crashed(BaseException):
    """The process is dead."""


class CrashingStore:
    """Dies at call `at` (from 1), `when` it has or has not been done; with `kind`, only calls of that kind count.

    A kind is a command's name, `append` or `path`. `calls` are the kinds so far; `at=None` never dies.
    """

    def __init__(
        self, store: SqlStore, *, at: int | None, when: Literal["before", "after"] = "before", kind: str | None = None
    ) -> None:
        self.calls: list[str] = []
        self.is_dead = False
        self._store = store
        self._at = at
        self._when = when
        self._kind = kind

    async def execute(self, chat_id: str, command: C, payload: Payload[C] | None = None) -> Outcome:
        return await self._call(command.name.value, lambda: self._store.execute(chat_id, command, payload))

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        return await self._call("append", lambda: self._store.append(rows))

    async def path(self, chat_id: str, *, before: str | None = None, limit: int | None = None) -> list[Message]:
        return await self._call("path", lambda: self._store.path(chat_id, before=before, limit=limit))

    async def _call(self, kind: str, do: Callable[[], Awaitable[T]]) -> T:
        if self.is_dead:
            raise Crashed
        self.calls.append(kind)
        counted = [call for call in self.calls if self._kind in {None, call}]
        is_the_one = len(counted) == self._at and self._kind in {None, kind}
        if is_the_one and self._when == "before":
            self._die()
        done = await do()
        if is_the_one:
            self._die()
        return done

    def _die(self) -> None:
        self.is_dead = True
        raise Crashed


def finish_parts(said: Sequence[Part]) -> list[Part]:
    """What is missing to make an attempt that said this a complete step: answers to its calls, and its end."""
    assembler = PartAssembler()
    for part in said:
        assembler.add(part)
    missing = [call for call in assembler.local_calls() if not assembler.has_result(call)]
    answers: list[Part] = [_answer(call) for call in missing]
    return answers if assembler.finish is not None else [*answers, Finish()]


def _answer(call: ToolCall) -> ToolResult:
    if call.started:
        return ToolResult(call_id=call.id, name=call.name, output=OUTCOME_UNKNOWN, is_error=True)
    return ToolResult(call_id=call.id, name=call.name, output="done")


async def take_over(store: SqlStore, engine: AsyncEngine, chat_id: str, worker_id: str) -> StoredChat | None:
    """Take the chat, finish whatever is open or queued, and give back how it rests; None if it is gone.

    Whoever held the chat has to be dead by now: its heartbeat is old, or its row is gone.
    """
    while (work := await _load_open_work(engine, chat_id)) is not None and Status(work.status) not in _AT_REST:
        if work.status == Status.REQUIRES_ACTION:
            await store.execute(chat_id, Interrupt())
        elif work.holder != worker_id:
            await store.execute(chat_id, Acquire(worker_id=worker_id))
        elif work.status == Status.INTERRUPTING:
            await store.execute(chat_id, FinishInterruption(epoch=work.epoch, turn_id=work.turn_id))
        else:
            await _end_turn(store, chat_id, work)
    return await load_chat(engine, chat_id)


async def _load_open_work(engine: AsyncEngine, chat_id: str) -> Any:
    async with begin_read(engine) as connection:
        return (await connection.execute(_OPEN_WORK, {"chat_id": chat_id})).one_or_none()


async def _end_turn(store: SqlStore, chat_id: str, work: Any) -> None:
    if work.attempt_id is not None:
        said = [part for row in await store.rows(work.attempt_id) for part in row.parts]
        rest, attempt_id = finish_parts(said), work.attempt_id
    else:
        started = await store.execute(chat_id, StartAttempt(epoch=work.epoch, turn_id=work.turn_id))
        assert started.attempt is not None
        rest, attempt_id = [TextDelta("1", LAST_WORDS), Finish()], started.attempt.id
    finish = FinishTurn(epoch=work.epoch, turn_id=work.turn_id, attempt_id=attempt_id)
    await store.execute(chat_id, finish, StepResult(pending=rest))
