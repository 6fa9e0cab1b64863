"""The store on SQLite and on PostgreSQL: one transaction per command.

What differs between the two is in engine.py (how a transaction begins, what makes it durable) and in one row
lock that SQLite does not need; everything else is the same statements on both.

Neighbours: snapshot.py loads, machine/decide.py decides, carry_out.py writes, ending.py ends attempts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec.structs import replace
from sqlalchemy import insert, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.clock import Clock
from indelible.content import Message, encode
from indelible.errors import Invalid, NotFound, TooLarge, TooMany
from indelible.machine import Snapshot, decide
from indelible.machine.acts import Enqueue, TakeQueued
from indelible.machine.commands import Command, Create
from indelible.store.address import describe
from indelible.store.append import Appended, JournalRow, append_rows
from indelible.store.carry_out import Applier
from indelible.store.ending import add_usage
from indelible.store.engine import begin_read, begin_write, open_engine
from indelible.store.failures import read_failure
from indelible.store.idempotency import Answer, Request, claim, settle
from indelible.store.journal import BadRows
from indelible.store.lease import CANDIDATES_PER_CHAT, acquire_chats, beat, find_candidates, retire
from indelible.store.ledger import ToolRun, load_runs
from indelible.store.migrate import migrate
from indelible.store.pack import sweep
from indelible.store.port import NO_WORDS, Outcome, Words
from indelible.store.read import ChatView, Event, JournalEntry, load_events, load_path, load_rows, load_view
from indelible.store.snapshot import load_now, load_snapshot
from indelible.store.tables import chats, messages

DEAD_AFTER_S: Final = 8.0
_DATA_STATES: Final = ("22", "23", "54")


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one chat may hold waiting, and how large one message may be (SPEC 3.3)."""

    queued: int = 20
    message_bytes: int = 256 * 1024


DEFAULT_LIMITS: Final = StoreLimits()


class SqlStore:
    """See port.py for what it promises. Made by `open`, which brings the database up to date first."""

    def __init__(
        self, engine: AsyncEngine, *, dead_after_s: float = DEAD_AFTER_S, limits: StoreLimits = DEFAULT_LIMITS
    ) -> None:
        self._engine = engine
        self._limits = limits
        self.dead_after_s = dead_after_s

    @classmethod
    @asynccontextmanager
    async def open(cls, database: str | Path, *, dead_after_s: float = DEAD_AFTER_S) -> AsyncIterator[Self]:
        await migrate(database)
        engine = await open_engine(database)
        try:
            yield cls(engine, dead_after_s=dead_after_s)
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def _tell_failures(
        self, begin: Callable[[AsyncEngine], AbstractAsyncContextManager[AsyncConnection]]
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction in which a failing database raises a `StoreFailed`. Data it refuses is not its failure."""
        try:
            async with begin(self._engine) as connection:
                yield connection
        except (DBAPIError, OSError) as error:
            if _is_about_data(error):
                raise
            raise read_failure(error, describe(self._engine.url)) from error

    async def execute(self, chat_id: str, command: Command, words: Words = NO_WORDS) -> Outcome:
        self._check_size(words)
        async with self._tell_failures(begin_write) as connection:
            return await self._carry_out(connection, chat_id, command, words)

    async def execute_once(
        self,
        request: Request,
        chat_id: str,
        command: Command,
        words: Words = NO_WORDS,
        *,
        answer: Callable[[Outcome], Answer],
    ) -> Answer:
        self._check_size(words)
        async with self._tell_failures(begin_write) as connection:
            given = await claim(connection, request, await load_now(connection))
            if given is None:
                given = answer(await self._carry_out(connection, chat_id, command, words))
                await settle(connection, request, given)
            return given

    def _check_size(self, words: Words) -> None:
        size_bytes = len(encode(words.blocks)) if words.blocks else 0
        if size_bytes > self._limits.message_bytes:
            raise TooLarge(f"A message may have {self._limits.message_bytes:,} bytes at most; this has {size_bytes:,}.")

    async def _carry_out(self, connection: AsyncConnection, chat_id: str, command: Command, words: Words) -> Outcome:
        loaded = await load_snapshot(connection, chat_id, command, dead_after_s=self.dead_after_s)
        if loaded is None and isinstance(command, Create):
            return await self._create(connection, chat_id, command, words)
        decision = decide(loaded.snapshot if loaded is not None else None, command)
        assert loaded is not None
        snapshot, chat, open_calls, now = loaded
        if not decision.acts:
            attempt_id = getattr(command, "attempt_id", None)
            if attempt_id is not None and words.usage is not None:
                await add_usage(connection, chat_id, attempt_id, snapshot.epoch, words.usage)
            return Outcome(
                chat_id=chat_id,
                effective=decision.effective,
                status=snapshot.status,
                seq=chat.seq,
                epoch=snapshot.epoch,
                turn_id=snapshot.turn.id if snapshot.turn is not None else None,
            )
        kinds = {type(act) for act in decision.acts}
        if len(snapshot.queue) >= self._limits.queued and Enqueue in kinds and TakeQueued not in kinds:
            raise TooMany(f"{self._limits.queued} messages wait already. Let the chat answer some of them first.")
        words = words if words.author_id is not None else replace(words, author_id=chat.owner_id)
        applier = Applier(connection, snapshot, words, seq=chat.seq, open_calls=open_calls, now=now)
        return await applier.carry_out(decision.acts)

    async def _create(self, connection: AsyncConnection, chat_id: str, command: Create, words: Words) -> Outcome:
        if words.owner_id is None:
            raise Invalid("A chat needs an owner.")
        decision = decide(None, command)
        now = await load_now(connection)
        await connection.execute(
            insert(chats).values(
                id=chat_id,
                owner_id=words.owner_id,
                status="waiting",
                model=words.model,
                system_prompt=None if words.system_prompt is None else encode(words.system_prompt),
                title=words.title,
                created_at=now,
                updated_at=now,
            )
        )
        applier = Applier(connection, Snapshot(chat_id=chat_id), words, seq=0, open_calls=(), now=now)
        return await applier.carry_out(decision.acts)

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        try:
            async with self._tell_failures(begin_write) as connection:
                # By this machine's clock: nobody compares a row's time with another clock's, and asking the
                # database for its own would be a second round trip on the hot path.
                return await append_rows(connection, rows, datetime.now(UTC))
        except DBAPIError as error:
            raise BadRows(f"The database refused a journal row: {error.orig}") from error

    async def path(self, chat_id: str, *, before: str | None = None, limit: int | None = None) -> list[Message]:
        async with self._tell_failures(begin_read) as connection:
            found = select(chats.c.head_id).where(chats.c.id == chat_id)
            head = (await connection.execute(found)).one_or_none()
            if head is None:
                raise NotFound("There is no such chat.")
            start_id = head.head_id if before is None else await self._find_parent(connection, chat_id, before)
            return await load_path(connection, chat_id, start_id, limit=limit)

    async def beat(self, worker_id: str) -> None:
        await beat(self._engine, worker_id)

    async def retire(self, worker_id: str) -> None:
        await retire(self._engine, worker_id)

    async def acquire(self, worker_id: str, *, limit: int) -> list[Outcome]:
        candidates = await find_candidates(
            self._engine, dead_after_s=self.dead_after_s, limit=limit * CANDIDATES_PER_CHAT
        )
        return await acquire_chats(candidates, worker_id, limit=limit, execute=self.execute)

    async def view(self, chat_id: str, *, limit: int = 50) -> ChatView:
        return await load_view(self._engine, chat_id, limit=limit, dead_after_s=self.dead_after_s)

    async def events(self, chat_id: str, *, after: int, limit: int = 1000) -> list[Event]:
        return await load_events(self._engine, chat_id, after=after, limit=limit)

    async def rows(self, attempt_id: str, *, after: int = 0) -> list[JournalEntry]:
        return await load_rows(self._engine, attempt_id, after=after)

    async def runs(self, turn_id: str) -> list[ToolRun]:
        return await load_runs(self._engine, turn_id)

    async def pack(self, *, ended_before: datetime, clock: Clock) -> int:
        return await sweep(self._engine, ended_before=ended_before, clock=clock)

    async def _find_parent(self, connection: AsyncConnection, chat_id: str, message_id: str) -> str | None:
        found = select(messages.c.parent_id).where(messages.c.chat_id == chat_id, messages.c.id == message_id)
        row = (await connection.execute(found)).one_or_none()
        if row is None:
            raise NotFound("There is no such message in this chat.")
        parent_id: str | None = row.parent_id
        return parent_id


def _is_about_data(error: Exception) -> bool:
    """Whether what was to be written is to blame, and not the database (R6). asyncpg's class alone does not tell."""
    state = str(getattr(getattr(error, "orig", None), "sqlstate", None))
    return isinstance(error, DataError | IntegrityError) or state.startswith(_DATA_STATES)
