"""A store that crashes, and the worker that takes over.

`CrashingStore` wraps a real store and raises `Crashed` at a chosen call: before it, so that nothing
was written, or after it, when everything was written and the caller does not know. `Crashed` is not an `Exception`,
because a killed process runs no handler either. A crashed store stays dead: every later call fails as well.

`take_over` is the simplest possible worker. It acquires a chat as a restarted process would, closes open work
and finishes the chat; it knows nothing but the database. It never runs a started tool call
again: its outcome is unknown (P5).

This module needs the store, so `indelible.testing` does not import it by itself. invariants.py checks the chat
afterwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeVar

from indelible.content import Finish, Part, TextDelta, ToolCall, ToolResult
from indelible.content.assemble import PartAssembler, lose_result
from indelible.machine.commands import Acquire, FinishInterruption, FinishTurn, Interrupt, StartAttempt
from indelible.machine.states import RESTING, Status
from indelible.store.commands.begin import Reserve
from indelible.store.database.transaction import Database, Row
from indelible.store.journal.append import Appended, JournalRow
from indelible.store.outcome import Outcome
from indelible.store.payloads import C, Payload, StepResult
from indelible.store.queries.chat_view import load_rows
from indelible.store.store import Store
from indelible.testing.invariants import StoredChat, load_chat

T = TypeVar("T")
LAST_WORDS = "(brought to rest)"
_OPEN_WORK: Final = """
    SELECT c.status, c.holder, c.epoch, t.id AS turn_id, a.id AS attempt_id
    FROM chats AS c
    LEFT JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
    LEFT JOIN attempts AS a ON a.chat_id = c.id AND a.ended_at IS NULL
    WHERE c.id = $1
    """


class Crashed(BaseException):
    """The process is dead."""


class CrashingStore:
    """Crashes at call `at` (from 1); `when` says before or after it. With `kind`, only calls of that kind count.

    A kind is a command's name, or `append`. `calls` are the kinds so far; `at=None` never crashes.
    """

    def __init__(
        self, store: Store, *, at: int | None, when: Literal["before", "after"] = "before", kind: str | None = None
    ) -> None:
        self.calls: list[str] = []
        self.is_dead = False
        self._store = store
        self._at = at
        self._when = when
        self._kind = kind

    async def execute(
        self, chat_id: str, command: C, payload: Payload[C] | None = None, *, reserve: Reserve | None = None
    ) -> Outcome:
        execute = partial(self._store.execute, chat_id, command, payload, reserve=reserve)
        return await self._call(command.name.value, execute)

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        return await self._call("append", lambda: self._store.append(rows))

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


def finish_parts(published: Sequence[Part]) -> list[Part]:
    """The parts that complete an attempt with these parts: results of its calls, and its finish."""
    assembler = PartAssembler()
    for part in published:
        assembler.add(part)
    missing = [call for call in assembler.local_calls() if not assembler.has_result(call)]
    answers: list[Part] = [_answer(call) for call in missing]
    return answers if assembler.finish is not None else [*answers, Finish()]


def _answer(call: ToolCall) -> ToolResult:
    if call.started:
        return lose_result(call)
    return ToolResult(call_id=call.id, name=call.name, output="done")


async def take_over(store: Store, database: Database, chat_id: str, worker_id: str) -> StoredChat | None:
    """Acquire the chat and finish its open and queued work; returns its final rows, or None if it does not exist.

    Its last holder must be dead by now: its heartbeat is old, or its row is deleted.
    """
    while (work := await _load_open_work(database, chat_id)) is not None and Status(work["status"]) not in RESTING:
        if work["status"] == Status.REQUIRES_ACTION:
            await store.execute(chat_id, Interrupt())
        elif work["holder"] != worker_id:
            await store.execute(chat_id, Acquire(worker_id=worker_id))
        elif work["status"] == Status.INTERRUPTING:
            await store.execute(chat_id, FinishInterruption(epoch=work["epoch"], turn_id=work["turn_id"]))
        else:
            await _end_turn(store, database, chat_id, work)
    return await load_chat(database, chat_id)


async def _load_open_work(database: Database, chat_id: str) -> Row:
    return await database.read(lambda transaction: transaction.one(_OPEN_WORK, chat_id))


async def _end_turn(store: Store, database: Database, chat_id: str, work: Row) -> None:
    epoch, turn_id, attempt_id = work["epoch"], work["turn_id"], work["attempt_id"]
    if attempt_id is not None:
        rows = await database.read(lambda transaction: load_rows(transaction, chat_id, attempt_id))
        published = [part for row in rows for part in row.parts]
        rest = finish_parts(published)
    else:
        started = await store.execute(chat_id, StartAttempt(epoch=epoch, turn_id=turn_id))
        assert started.attempt is not None
        rest, attempt_id = [TextDelta("1", LAST_WORDS), Finish()], started.attempt.id
    finish = FinishTurn(epoch=epoch, turn_id=turn_id, attempt_id=attempt_id)
    await store.execute(chat_id, finish, StepResult(pending=rest))
