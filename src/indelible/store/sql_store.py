"""The store on SQLite and on PostgreSQL: one transaction per command.

What differs between the two is in engine.py (how a transaction begins, what makes it durable) and in one row
lock that SQLite does not need; everything else is the same statements on both.

The journal and the heartbeat have connections of their own, a lane beside the others: however many users wait for
the database, running replies are written and the worker is known to be alive.

Neighbours: store/commands/facts.py loads, machine/decide.py decides, store/commands/apply writes,
store/commands/finish_attempt.py ends attempts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace
from sqlalchemy import URL, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.clock import Clock
from indelible.concurrency.tasks import run_to_completion
from indelible.content import Message, encode
from indelible.errors import NotFound, TooLarge, TooMany
from indelible.ids import is_id
from indelible.machine import Snapshot, decide
from indelible.machine.commands import Acquire, Command, Create, Delete
from indelible.machine.effects import Enqueue, StartQueued
from indelible.machine.events import Position
from indelible.store.commands.apply.applier import apply_effects
from indelible.store.commands.apply.change import ChatChange
from indelible.store.commands.apply.history import forget_responses
from indelible.store.commands.facts import load_now, load_snapshot
from indelible.store.commands.finish_attempt import add_what_is_missing
from indelible.store.commands.fork import fork_chat
from indelible.store.commands.idempotency import Request, StoredResponse, claim, forget_expired, settle
from indelible.store.database.engine import begin_read, begin_write, open_engine
from indelible.store.database.migrate import migrate
from indelible.store.database.tables import chats, messages
from indelible.store.journal.append import Appended, JournalRow, append_group
from indelible.store.journal.pack import sweep
from indelible.store.journal.tool_ledger import LedgerEntry, load_runs
from indelible.store.payloads import C, NewChat, Payload, QueuedInput, UserInput, WithStep, require
from indelible.store.protocol import Outcome
from indelible.store.queries.attempts import AttemptView, load_attempts
from indelible.store.queries.changes import Changes, has_reached, load_changes, load_positions
from indelible.store.queries.chat_view import (
    ChatStatus,
    ChatView,
    Event,
    JournalEntry,
    load_events,
    load_path,
    load_rows,
    load_status,
    load_view,
)
from indelible.store.queries.history import Page, load_page
from indelible.store.queries.leases import (
    CANDIDATES_PER_CHAT,
    acquire_chats,
    beat,
    find_candidates,
    forget_dead,
    probe_chats,
    retire,
    retire_all,
)
from indelible.store.queries.listing import ChatCount, ChatSummary, ListCursor, count_chats, list_chats
from indelible.store.queries.open_turn import Expired, Held, OpenWork, Probe, load_expired, load_held, load_work
from indelible.store.queries.users import ensure_user, find_owner

LEASE_TIMEOUT_S: Final = 8.0
_LANE_SIZE: Final = 3


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one chat may hold waiting, and how large one message may be (SPEC 3.3)."""

    queued: int = 20
    message_bytes: int = 256 * 1024


DEFAULT_LIMITS: Final = StoreLimits()


class SqlStore:
    """See protocol.py for what it promises. Made by `open`, which brings the database up to date first.

    `before_delete(chat_id)` removes what is large and stands beside a chat (debug records), in short transactions
    of its own, so that deleting the chat does not keep others from writing (R12).
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        lease_timeout_s: float = LEASE_TIMEOUT_S,
        limits: StoreLimits = DEFAULT_LIMITS,
        on_committed: Callable[[str], None] | None = None,
        lane: AsyncEngine | None = None,
    ) -> None:
        self._engine = engine
        self._lane = lane or engine
        self._limits = limits
        self._on_committed = on_committed
        self.before_delete: Callable[[str], Awaitable[object]] | None = None
        self.lease_timeout_s = lease_timeout_s

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database: str | Path,
        *,
        lease_timeout_s: float = LEASE_TIMEOUT_S,
        limits: StoreLimits = DEFAULT_LIMITS,
        on_committed: Callable[[str], None] | None = None,
    ) -> AsyncIterator[Self]:
        """`on_committed(chat_id)` is called after every commit that changed a chat, and outside of it."""
        await migrate(database)
        engine = await open_engine(database)
        try:
            lane = await open_engine(database, pool_size=_LANE_SIZE)
            try:
                yield cls(engine, lease_timeout_s=lease_timeout_s, limits=limits, on_committed=on_committed, lane=lane)
            finally:
                await lane.dispose()
        finally:
            await engine.dispose()

    @property
    def url(self) -> URL:
        return self._engine.url

    @property
    def engine(self) -> AsyncEngine:
        return self._engine

    @run_to_completion
    async def execute(
        self, chat_id: str, command: C, payload: Payload[C] | None = None, *, user_id: str | None = None
    ) -> Outcome:
        _check_names(chat_id, command)
        self._check_size(payload)
        if isinstance(command, Delete) and self.before_delete is not None:
            if user_id is not None and await find_owner(self._engine, chat_id) != user_id:
                raise NotFound("Chat not found. It may have been deleted.")
            await self.before_delete(chat_id)
        async with begin_write(self._engine) as connection:
            outcome = await self._carry_out(connection, chat_id, command, payload, user_id)
        self._notify_committed(outcome)
        return outcome

    @run_to_completion
    async def execute_once(
        self,
        request: Request,
        chat_id: str,
        command: C,
        payload: Payload[C] | None = None,
        *,
        user_id: str | None = None,
        answer: Callable[[Outcome], StoredResponse],
    ) -> StoredResponse:
        _check_names(chat_id, command)
        self._check_size(payload)
        outcome: Outcome | None = None
        async with begin_write(self._engine) as connection:
            given = await claim(connection, request, await load_now(connection))
            if given is None:
                outcome = await self._carry_out(connection, chat_id, command, payload, user_id)
                given = answer(outcome)
                await settle(connection, request, given, chat_id if outcome.status is not None else None)
        if outcome is not None:
            self._notify_committed(outcome)
        return given

    def _notify_committed(self, outcome: Outcome) -> None:
        if outcome.effective and self._on_committed is not None:
            self._on_committed(outcome.chat_id)

    def _check_size(self, payload: Payload[Any] | None) -> None:
        blocks = payload.blocks if isinstance(payload, NewChat | UserInput | QueuedInput) else None
        size_bytes = len(encode(blocks)) if blocks else 0
        if size_bytes > self._limits.message_bytes:
            raise TooLarge(f"Message too long: {size_bytes:,} bytes (limit {self._limits.message_bytes:,}).")

    async def _carry_out(
        self,
        connection: AsyncConnection,
        chat_id: str,
        command: Command,
        payload: Payload[Any] | None,
        user_id: str | None,
    ) -> Outcome:
        loaded = await load_snapshot(connection, chat_id, command, lease_timeout_s=self.lease_timeout_s)
        if user_id is not None and loaded is not None and loaded.chat.owner_id != user_id:
            raise NotFound("Chat not found. It may have been deleted.")
        if loaded is None and isinstance(command, Create):
            return await self._create(connection, chat_id, command, payload)
        decision = decide(loaded.snapshot if loaded is not None else None, command)
        assert loaded is not None
        snapshot, chat, open_calls, now, vacant_s = loaded
        if not decision.effects:
            attempt_id = getattr(command, "attempt_id", None)
            if attempt_id is not None and isinstance(payload, WithStep):
                await add_what_is_missing(connection, chat_id, attempt_id, snapshot.epoch, payload)
            return Outcome(
                chat_id=chat_id,
                effective=decision.effective,
                status=snapshot.status,
                seq=chat.seq,
                epoch=snapshot.epoch,
                turn_id=snapshot.turn.id if snapshot.turn is not None else None,
                live_id=snapshot.attempt.id if snapshot.attempt is not None else None,
            )
        kinds = {type(effect) for effect in decision.effects}
        if len(snapshot.queue) >= self._limits.queued and Enqueue in kinds and StartQueued not in kinds:
            raise TooMany(f"The queue is full ({self._limits.queued} messages). Wait for a reply first.")
        change = ChatChange(connection, snapshot, payload, seq=chat.seq, open_calls=open_calls, now=now)
        outcome = await apply_effects(change, decision.effects)
        return replace(outcome, vacant_s=vacant_s) if isinstance(command, Acquire) else outcome

    async def _create(
        self, connection: AsyncConnection, chat_id: str, command: Create, payload: Payload[Any] | None
    ) -> Outcome:
        new = require(payload, NewChat)
        decision = decide(None, command)
        now = await load_now(connection)
        await connection.execute(
            insert(chats).values(
                id=chat_id,
                owner_id=new.owner_id,
                status="idle",
                model=new.model,
                system_prompt=None if new.system_prompt is None else encode(new.system_prompt),
                parameters=None if new.parameters is None else encode(new.parameters),
                title=new.title,
                created_at=now,
                updated_at=now,
            )
        )
        change = ChatChange(connection, Snapshot(chat_id=chat_id), payload, seq=0, open_calls=[], now=now)
        return await apply_effects(change, decision.effects)

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        # By this machine's clock: nobody compares a row's time with another clock's, and asking the database for its
        # own would be a second round trip on the hot path.
        return await append_group(self._lane, rows, datetime.now(UTC))

    @run_to_completion
    async def path(self, chat_id: str, *, before: str | None = None, limit: int | None = None) -> list[Message]:
        async with begin_read(self._engine) as connection:
            found = select(chats.c.head_id).where(chats.c.id == chat_id)
            head = (await connection.execute(found)).one_or_none()
            if head is None:
                raise NotFound("Chat not found. It may have been deleted.")
            start_id = head.head_id if before is None else await self._find_parent(connection, chat_id, before)
            return await load_path(connection, chat_id, start_id, limit=limit)

    @run_to_completion
    async def beat(self, worker_id: str) -> None:
        await beat(self._lane, worker_id)

    @run_to_completion
    async def retire(self, worker_id: str) -> None:
        await retire(self._engine, worker_id)

    @run_to_completion
    async def retire_all(self) -> None:
        await retire_all(self._engine)

    @run_to_completion
    async def acquire(
        self, worker_id: str, *, limit: int, per_user: int | None = None, chat_ids: Sequence[str] | None = None
    ) -> list[Outcome]:
        if chat_ids is None:
            chat_ids = await find_candidates(
                self._engine,
                worker_id,
                lease_timeout_s=self.lease_timeout_s,
                limit=limit * CANDIDATES_PER_CHAT,
                per_user=per_user,
            )
        return await acquire_chats(chat_ids, worker_id, limit=limit, execute=self.execute)

    @run_to_completion
    async def probe(self, worker_id: str, chat_ids: Sequence[str], *, per_user: int | None = None) -> Probe:
        return await probe_chats(
            self._lane, worker_id, chat_ids, lease_timeout_s=self.lease_timeout_s, per_user=per_user
        )

    @run_to_completion
    async def view(self, chat_id: str, *, limit: int = 50) -> ChatView:
        return await load_view(self._engine, chat_id, limit=limit, lease_timeout_s=self.lease_timeout_s)

    @run_to_completion
    async def events(self, chat_id: str, *, after: int, limit: int = 1000) -> list[Event]:
        return await load_events(self._engine, chat_id, after=after, limit=limit)

    @run_to_completion
    async def rows(self, attempt_id: str, *, after: int = 0) -> list[JournalEntry]:
        return await load_rows(self._engine, attempt_id, after=after)

    @run_to_completion
    async def work(self, chat_id: str) -> OpenWork:
        return await load_work(self._engine, chat_id)

    @run_to_completion
    async def forget_responses(self, chat_id: str, *, epoch: int) -> None:
        async with begin_write(self._engine) as connection:
            await forget_responses(connection, chat_id, epoch=epoch)

    @run_to_completion
    async def held(self, worker_id: str) -> list[Held]:
        return await load_held(self._lane, worker_id)

    @run_to_completion
    async def expired(self, *, limit: int) -> list[Expired]:
        return await load_expired(self._engine, limit=limit)

    @run_to_completion
    async def fork(self, chat_id: str, message_id: str, *, new_chat_id: str, owner_id: str) -> Outcome:
        async with begin_write(self._engine) as connection:
            outcome = await fork_chat(connection, chat_id, message_id, new_chat_id=new_chat_id, owner_id=owner_id)
        self._notify_committed(outcome)
        return outcome

    @run_to_completion
    async def owner(self, chat_id: str) -> str | None:
        return await find_owner(self._engine, chat_id)

    @run_to_completion
    async def status(self, chat_id: str) -> ChatStatus:
        return await load_status(self._engine, chat_id, lease_timeout_s=self.lease_timeout_s)

    @run_to_completion
    async def ensure_user(self, name: str) -> str:
        return await ensure_user(self._engine, name)

    @run_to_completion
    async def list_chats(
        self,
        owner_id: str,
        *,
        archived: bool = False,
        search: str | None = None,
        after: ListCursor | None = None,
        limit: int = 50,
    ) -> list[ChatSummary]:
        wanted: dict[str, Any] = {"archived": archived, "search": search, "after": after, "limit": limit}
        return await list_chats(self._engine, owner_id, lease_timeout_s=self.lease_timeout_s, **wanted)

    @run_to_completion
    async def count_chats(self) -> ChatCount:
        return await count_chats(self._engine, lease_timeout_s=self.lease_timeout_s)

    @run_to_completion
    async def clean_up(self, *, dead_for_s: float) -> None:
        await forget_dead(self._engine, dead_for_s=dead_for_s)
        async with begin_write(self._engine) as connection:
            await forget_expired(connection, await load_now(connection))

    @run_to_completion
    async def attempts(self, chat_id: str, *, before: str | None = None, limit: int = 50) -> list[AttemptView]:
        return await load_attempts(self._engine, chat_id, before=before, limit=limit)

    @run_to_completion
    async def runs(self, turn_id: str) -> list[LedgerEntry]:
        return await load_runs(self._engine, turn_id)

    @run_to_completion
    async def pack(self, *, ended_before: datetime, clock: Clock) -> int:
        return await sweep(self._engine, ended_before=ended_before, clock=clock)

    @run_to_completion
    async def page(self, chat_id: str, *, upto: str | None = None, before: str | None = None, limit: int = 50) -> Page:
        return await load_page(self._engine, chat_id, upto=upto, before=before, limit=limit)

    @run_to_completion
    async def changes(self, chat_id: str, after: Position) -> Changes:
        return await load_changes(self._engine, chat_id, after)

    @run_to_completion
    async def positions(self, chat_ids: Sequence[str]) -> dict[str, Position]:
        return await load_positions(self._engine, chat_ids)

    @run_to_completion
    async def reached(self, chat_id: str, position: Position) -> bool:
        return await has_reached(self._engine, chat_id, position)

    async def _find_parent(self, connection: AsyncConnection, chat_id: str, message_id: str) -> str | None:
        found = select(messages.c.parent_id).where(messages.c.chat_id == chat_id, messages.c.id == message_id)
        row = (await connection.execute(found)).one_or_none()
        if row is None:
            raise NotFound("Message not found in this chat.")
        parent_id: str | None = row.parent_id
        return parent_id


def _check_names(chat_id: str, command: Command) -> None:
    """What no id of ours looks like names nothing. (PostgreSQL would not even take some of it.)"""
    named = (getattr(command, field, None) for field in ("message_id", "queued_id", "turn_id"))
    for name in (chat_id, *named):
        if name is not None and not is_id(name):
            raise NotFound("Not found. It may have been deleted.")
