"""A store that dies, and the worker that comes after it.

`CrashingStore` stands before a real store and raises `Crashed` at a chosen call: before it, so that nothing
was written, or after it, when all was written and nobody was told. `Crashed` is no Exception, because a
program that is killed runs no handler either. Whoever is dead stays dead: every later call fails as well.

`take_over` is the plainest worker there can be. It takes a chat as a restarted process would, closes what is
open, and brings the chat to rest; it knows nothing but the database.

This module needs SQLAlchemy, so `indelible.testing` does not import it by itself. What a chat must look like
afterwards is wholeness.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.content import Finish, Message, Part, TextDelta, ToolResult
from indelible.fold import Collector
from indelible.machine.commands import Acquire, Command, FinishInterruption, FinishTurn, Interrupt, StartAttempt
from indelible.machine.states import Status
from indelible.store.append import Appended, JournalRow
from indelible.store.port import NO_WORDS, Outcome, Words
from indelible.store.sql import SqlStore
from indelible.testing.wholeness import StoredChat, load_chat

T = TypeVar("T")
LAST_WORDS = "(brought to rest)"


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

    async def execute(self, chat_id: str, command: Command, words: Words = NO_WORDS) -> Outcome:
        return await self._call(command.name.value, lambda: self._store.execute(chat_id, command, words))

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
    collector = Collector()
    for part in said:
        collector.add(part)
    missing = [call for call in collector.local_calls() if not collector.has_result(call)]
    answers: list[Part] = [ToolResult(call_id=call.id, name=call.name, output="done") for call in missing]
    return answers if collector.finish is not None else [*answers, Finish()]


async def take_over(store: SqlStore, engine: AsyncEngine, chat_id: str, worker_id: str) -> StoredChat | None:
    """Take the chat, finish whatever is open or queued, and give back how it rests; None if it is gone.

    Whoever held the chat has to be dead by now: its heartbeat is old, or its row is gone.
    """
    while (stored := await load_chat(engine, chat_id)) is not None:
        status = Status(stored.chat.status)
        if status in {Status.WAITING, Status.ERROR}:
            break
        if status is Status.REQUIRES_ACTION:
            await store.execute(chat_id, Interrupt())
        elif stored.chat.holder != worker_id:
            await store.execute(chat_id, Acquire(worker_id=worker_id))
        else:
            await _end_turn(store, stored)
    return stored


async def _end_turn(store: SqlStore, stored: StoredChat) -> None:
    chat, turn, attempt = stored.chat, stored.open_turn, stored.open_attempt
    assert turn is not None
    if chat.status == Status.INTERRUPTING:
        await store.execute(chat.id, FinishInterruption(epoch=chat.epoch, turn_id=turn.id))
        return
    if attempt is not None:
        rest, attempt_id = finish_parts(stored.parts_of(attempt.id)), attempt.id
    else:
        started = await store.execute(chat.id, StartAttempt(epoch=chat.epoch, turn_id=turn.id))
        assert started.attempt is not None
        rest, attempt_id = [TextDelta("1", LAST_WORDS), Finish()], started.attempt.id
    finish = FinishTurn(epoch=chat.epoch, turn_id=turn.id, attempt_id=attempt_id)
    await store.execute(chat.id, finish, Words(rest=rest))
