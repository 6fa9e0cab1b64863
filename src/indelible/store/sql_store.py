"""The store on SQLite and on PostgreSQL: one transaction per command.

database/sqlite.py and database/postgres.py hold the differences: where a transaction runs, and what makes it
durable. The statements are the same on both. A cancelled caller waits until its transaction has ended.

The journal, heartbeats and a worker's frequent queries are urgent: however many users wait for the database, running
replies are written and the worker counts as alive.

Neighbours: store/commands/facts.py loads, machine/decide.py decides, store/commands/apply writes,
store/commands/finish_attempt.py ends attempts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from msgspec.structs import replace

from indelible.api.events import MessageTree, Position
from indelible.api.shapes import AttemptView, ChatSummary, QueuedMessage
from indelible.clock import Clock
from indelible.concurrency.tasks import run_to_completion
from indelible.content import encode
from indelible.errors import ChatNotFound, NotAllowed, NotFound, TooMany
from indelible.ids import is_id
from indelible.logs import get_logger
from indelible.machine import Snapshot, decide
from indelible.machine.commands import (
    Acquire,
    Archive,
    Command,
    Create,
    Delete,
    Send,
    SendSteer,
    ToolResults,
    Unarchive,
    UpdateChat,
)
from indelible.machine.effects import Enqueue, StartQueued
from indelible.store.commands.apply.applier import apply_effects
from indelible.store.commands.apply.change import ChatChange
from indelible.store.commands.apply.history import forget_responses
from indelible.store.commands.facts import load_snapshot
from indelible.store.commands.finish_attempt import backfill_usage
from indelible.store.commands.fork import fork_chat
from indelible.store.commands.idempotency import (
    Request,
    RequestRepeated,
    StoredResponse,
    claim,
    find_response,
    forget_expired,
    settle,
)
from indelible.store.commands.labels import write_labels
from indelible.store.database.address import parse_address
from indelible.store.database.migrate import LEASE_TIMEOUT_S, open_database, upgrade_schema
from indelible.store.database.transaction import Database, Transaction, Work, insert, insert_new
from indelible.store.journal.append import Appended, JournalRow, append_group
from indelible.store.journal.pack import sweep
from indelible.store.limits import StoreLimits, check_payload
from indelible.store.lists.sql_lists import SqlLists
from indelible.store.payloads import C, ChatPatch, NewChat, Payload, ToolResultsInput, UserInput, WithStep, require
from indelible.store.protocol import ForkPoint, Once, Outcome
from indelible.store.queries.attempts import load_attempts
from indelible.store.queries.changes import Changes, Resumption, load_changes, load_positions, load_resumption
from indelible.store.queries.chat_view import (
    Answering,
    ChatStatus,
    ChatView,
    Event,
    load_answering,
    load_events,
    load_queue,
    load_status,
    load_view,
)
from indelible.store.queries.descendants import load_tree
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
from indelible.store.queries.listing import ChatCount, count_chats, list_chats, load_summary
from indelible.store.queries.liveness import UnheldStop, Vacancy, load_unheld_stops, load_vacant
from indelible.store.queries.open_turn import Expired, Held, OpenWork, Probe, load_expired, load_held, load_work
from indelible.store.queries.users import ensure_user, find_owner, find_user

_log: Final = get_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
Query = Callable[Concatenate[Transaction, P], Coroutine[Any, Any, T]]
_CHANGE_NOTHING: Final = "UPDATE users SET name = name WHERE id = $1"


DEFAULT_LIMITS: Final = StoreLimits()


class SqlStore:
    """Implements protocol.py. Create it with `open`, which migrates the database first.

    `before_delete(chat_id)` removes a chat's bulky extras (debug records) in short transactions of its own, so that
    deleting the chat does not block other writers (R12).
    """

    def __init__(
        self,
        database: Database,
        *,
        lease_timeout_s: float = LEASE_TIMEOUT_S,
        limits: StoreLimits = DEFAULT_LIMITS,
        on_committed: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.database = database
        self.limits = limits
        self._on_committed = on_committed
        self.before_delete: Callable[[str], Awaitable[object]] | None = None
        self.lease_timeout_s = lease_timeout_s
        self.lists = SqlLists(self)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        database: str | Path,
        *,
        lease_timeout_s: float = LEASE_TIMEOUT_S,
        limits: StoreLimits = DEFAULT_LIMITS,
        on_committed: Callable[[Outcome], None] | None = None,
    ) -> AsyncIterator[Self]:
        """`on_committed(outcome)` is called after every commit that changed a chat, outside the transaction."""
        address = parse_address(database)
        opened = await open_database(address)
        try:
            await upgrade_schema(opened, address, lease_timeout_s=lease_timeout_s)
            yield cls(opened, lease_timeout_s=lease_timeout_s, limits=limits, on_committed=on_committed)
        finally:
            await opened.close()

    async def execute(
        self,
        chat_id: str,
        command: C,
        payload: Payload[C] | None = None,
        *,
        user_id: str | None = None,
        once: Once | None = None,
    ) -> Outcome:
        _check_names(chat_id, command)
        check_payload(payload, self.limits)
        work = partial(self._decide_and_apply, chat_id=chat_id, command=command, payload=payload, user_id=user_id)
        if not isinstance(command, Delete):
            return await self.commit(work, once=once)
        if once is not None and (given := await self.find_response(once.request)) is not None:
            raise RequestRepeated(given)
        return await self._delete(chat_id, user_id, partial(self.commit, work, once=once, slow=True))

    @run_to_completion
    async def _delete(self, chat_id: str, user_id: str | None, delete: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """All or nothing: a chat whose deletion is refused must not lose its debug records."""
        if self.before_delete is not None and (user_id is None or await self.owner(chat_id) == user_id):
            await self.before_delete(chat_id)
        return await delete()

    async def find_response(self, request: Request) -> StoredResponse | None:
        return await self._ask(find_response, request)

    async def update(
        self,
        chat_id: str,
        patch: ChatPatch,
        *,
        archived: bool | None = None,
        user_id: str | None = None,
        once: Once | None = None,
    ) -> Outcome:
        _check_names(chat_id, UpdateChat())
        check_payload(patch, self.limits)
        work = partial(self._update, chat_id=chat_id, patch=patch, archived=archived, user_id=user_id)
        return await self.commit(work, once=once)

    async def _update(
        self, transaction: Transaction, *, chat_id: str, patch: ChatPatch, archived: bool | None, user_id: str | None
    ) -> Outcome:
        apply = partial(self._decide_and_apply, transaction, chat_id=chat_id, user_id=user_id)
        is_moved = False
        if archived is not None:
            is_moved = (await apply(command=Archive() if archived else Unarchive(), payload=None)).effective
        outcome = await apply(command=UpdateChat(), payload=patch)
        summary = await load_summary(transaction, chat_id, lease_timeout_s=self.lease_timeout_s)
        wakes_readers = outcome.wakes_readers or is_moved
        return replace(outcome, effective=outcome.effective or is_moved, wakes_readers=wakes_readers, summary=summary)

    async def continue_chat(
        self,
        chat_id: str,
        message: UserInput | None = None,
        *,
        results: ToolResultsInput | None = None,
        patch: ChatPatch | None = None,
        fork: ForkPoint | None = None,
        user_id: str,
        once: Once | None = None,
    ) -> Outcome:
        _check_names(chat_id, Send())
        for payload in (message, results, patch):
            check_payload(payload, self.limits)
        given = partial(self._continue, message=message, results=results, patch=patch, fork=fork)
        work = partial(given, chat_id=chat_id, user_id=user_id)
        return await self.commit(work, once=once, slow=fork is not None)

    async def _continue(
        self,
        transaction: Transaction,
        *,
        chat_id: str,
        message: UserInput | None,
        results: ToolResultsInput | None,
        patch: ChatPatch | None,
        fork: ForkPoint | None,
        user_id: str,
    ) -> Outcome:
        if fork is not None:
            await fork_chat(transaction, chat_id, **fork._asdict(), owner_id=user_id, user_id=user_id)
            chat_id = fork.new_chat_id
        apply = partial(self._decide_and_apply, transaction, chat_id=chat_id, user_id=user_id)
        if patch is not None:
            await apply(command=UpdateChat(), payload=patch)
        if results is None:
            outcome = await apply(command=Send(), payload=message)
            if outcome.queued_id is not None:
                raise NotAllowed(command=Send.name.value, state=str(outcome.status))
            return outcome
        call_ids = tuple(result.call_id for result in results.results)
        outcome = await apply(command=ToolResults(call_ids=call_ids), payload=results)
        if message is None:
            return outcome
        joined = await apply(command=SendSteer(), payload=message)
        return replace(outcome, seq=joined.seq, status=joined.status)

    async def commit(self, work: Work[Outcome], *, once: Once | None = None, slow: bool = False) -> Outcome:
        work = work if once is None else partial(_claim_and_apply, once=once, work=work)
        return await self.database.write(work, slow=slow, on_committed=self._notify_committed)

    def _notify_committed(self, outcome: Outcome) -> None:
        if outcome.effective and self._on_committed is not None:
            try:
                self._on_committed(outcome)
            except Exception:  # the commit stands, and other callers wait for their results
                _log.exception("notifying readers and workers failed; they will notice at their next poll")

    async def _decide_and_apply(
        self,
        transaction: Transaction,
        *,
        chat_id: str,
        command: Command,
        payload: Payload[Any] | None,
        user_id: str | None,
    ) -> Outcome:
        loaded = await load_snapshot(transaction, chat_id, command, lease_timeout_s=self.lease_timeout_s)
        if user_id is not None and loaded is not None and loaded.chat["owner_id"] != user_id:
            raise ChatNotFound
        if loaded is None and isinstance(command, Create):
            created = await self._create(transaction, chat_id, command, payload)
            if created is not None:
                return created
            named: dict[str, Any] = {"chat_id": chat_id, "command": command, "payload": payload, "user_id": user_id}
            return await self._decide_and_apply(transaction, **named)
        decision = decide(loaded.snapshot if loaded is not None else None, command)
        assert loaded is not None
        snapshot, chat, open_calls, now, vacant_s = loaded
        if not decision.effects:
            attempt_id = getattr(command, "attempt_id", None)
            if attempt_id is not None and isinstance(payload, WithStep):
                await backfill_usage(transaction, chat_id, attempt_id, snapshot.epoch, payload)
            return Outcome(
                chat_id=chat_id,
                effective=decision.effective,
                status=snapshot.status,
                seq=chat["seq"],
                epoch=snapshot.epoch,
                turn_id=snapshot.turn.id if snapshot.turn is not None else None,
                live_id=snapshot.attempt.id if snapshot.attempt is not None else None,
            )
        kinds = {type(effect) for effect in decision.effects}
        if len(snapshot.queue) >= self.limits.queued and Enqueue in kinds and StartQueued not in kinds:
            raise TooMany(f"The queue is full ({self.limits.queued} messages). Wait for a reply first.")
        change = ChatChange(transaction, snapshot, payload, chat=chat, open_calls=open_calls, now=now)
        outcome = await apply_effects(change, decision.effects)
        return replace(outcome, vacant_s=vacant_s) if isinstance(command, Acquire) else outcome

    async def _create(
        self, transaction: Transaction, chat_id: str, command: Create, payload: Payload[Any] | None
    ) -> Outcome | None:
        """None if another transaction has just created the chat."""
        new = require(payload, NewChat)
        decision = decide(None, command)
        now = await transaction.now()
        row = {
            "id": chat_id,
            "owner_id": new.owner_id,
            "status": "idle",
            "model": new.model,
            "system_prompt": None if new.system_prompt is None else encode(new.system_prompt),
            "parameters": None if new.parameters is None else encode(new.parameters),
            "tools": None if new.tools is None else encode(new.tools),
            "title": new.title,
            "labels": encode(new.labels) if new.labels else None,
            "unindexed_at": None if new.title is None else now,
            "created_at": now,
            "updated_at": now,
        }
        if not await insert_new(transaction, "chats", row):
            return None
        if new.labels:
            await write_labels(transaction, chat_id, new.owner_id, new.labels)
        if new.ephemeral:
            await insert(transaction, "ephemeral_chats", {"chat_id": chat_id})
        chat = row | {"has_title": new.title is not None, "seq": 0, "usage": None, "cost_nanousd": None}
        change = ChatChange(transaction, Snapshot(chat_id=chat_id), payload, chat=chat, open_calls=[], now=now)
        outcome = await apply_effects(change, decision.effects)
        return replace(outcome, wakes_readers=True)  # lists show it, with or without an event

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        # By this machine's clock: a row's time is never compared with another clock, and asking the database for its
        # time would be a second round trip on the hot path.
        return await append_group(self.database, rows, datetime.now(UTC))

    async def beat(self, worker_id: str) -> None:
        await self.database.write(lambda transaction: beat(transaction, worker_id), urgent=True, single=True)

    async def retire(self, worker_id: str) -> None:
        await self.database.write(lambda transaction: retire(transaction, worker_id), single=True)

    async def retire_all(self) -> None:
        await self.database.write(retire_all, single=True)

    async def acquire(
        self,
        worker_id: str,
        *,
        limit: int,
        per_user: int | None = None,
        chat_ids: Sequence[str] | None = None,
        suspects: int | None = None,
    ) -> list[Outcome]:
        if chat_ids is None:
            wanted: dict[str, Any] = {
                "limit": limit * CANDIDATES_PER_CHAT,
                "per_user": per_user,
                "suspects": suspects,
            }
            chat_ids = await self._ask(find_candidates, worker_id, lease_timeout_s=self.lease_timeout_s, **wanted)
        return await acquire_chats(chat_ids, worker_id, limit=limit, execute=self.execute)

    async def probe(self, worker_id: str, chat_ids: Sequence[str], *, per_user: int | None = None) -> Probe:
        timeout_s = self.lease_timeout_s
        return await self.database.read(
            lambda given: probe_chats(given, worker_id, chat_ids, lease_timeout_s=timeout_s, per_user=per_user),
            urgent=True,
            single=True,
        )

    async def held(self, worker_id: str) -> list[Held]:
        return await self.database.read(lambda given: load_held(given, worker_id), urgent=True, single=True)

    async def view(self, chat_id: str, *, limit: int = 50) -> ChatView:
        return await self._read(load_view, chat_id, limit=limit, lease_timeout_s=self.lease_timeout_s)

    async def snapshot(self, chat_id: str, *, limit: int = 50) -> tuple[ChatView, Page]:
        async def load(transaction: Transaction) -> tuple[ChatView, Page]:
            view = await load_view(transaction, chat_id, limit=0, lease_timeout_s=self.lease_timeout_s)
            if view.head_id is None:
                return view, Page(items=[], has_more=False)
            return view, await load_page(transaction, chat_id, upto=view.head_id, limit=limit)

        return await self._read(load)

    async def queue(self, chat_id: str) -> list[QueuedMessage]:
        return await self._ask(load_queue, chat_id)

    async def events(self, chat_id: str, *, after: int, limit: int = 1000) -> list[Event]:
        return await self._ask(load_events, chat_id, after=after, limit=limit)

    async def answering(self, chat_id: str, message_id: str) -> Answering | None:
        return await self._read(load_answering, chat_id, message_id)

    async def work(self, chat_id: str) -> OpenWork:
        return await self._read(load_work, chat_id)

    async def forget_responses(self, chat_id: str, *, epoch: int) -> None:
        await self.database.write(lambda transaction: forget_responses(transaction, chat_id, epoch=epoch))

    async def expired(self, *, limit: int) -> list[Expired]:
        return await self._ask(load_expired, limit=limit)

    async def unheld_stops(self, *, limit: int) -> list[UnheldStop]:
        return await self._ask(load_unheld_stops, limit=limit, lease_timeout_s=self.lease_timeout_s)

    async def fork(self, chat_id: str, message_id: str, *, once: Once | None = None, **named: Any) -> Outcome:
        work = partial(self._fork, chat_id=chat_id, message_id=message_id, **named)
        return await self.commit(work, once=once, slow=True)

    async def _fork(self, transaction: Transaction, *, new_chat_id: str, **named: Any) -> Outcome:
        outcome = await fork_chat(transaction, new_chat_id=new_chat_id, **named)
        summary = await load_summary(transaction, new_chat_id, lease_timeout_s=self.lease_timeout_s)
        return replace(outcome, summary=summary)

    async def owner(self, chat_id: str) -> str | None:
        return await self._ask(find_owner, chat_id)

    async def check_writable(self, user_id: str) -> None:
        await self.database.write(lambda transaction: transaction.run(_CHANGE_NOTHING, user_id), single=True)

    async def status(self, chat_id: str) -> ChatStatus:
        return await self._ask(load_status, chat_id, lease_timeout_s=self.lease_timeout_s)

    async def find_user(self, name: str) -> str | None:
        return await self._ask(find_user, name)

    async def ensure_user(self, name: str) -> str:
        return await self.database.write(lambda transaction: ensure_user(transaction, name))

    async def list_chats(self, owner_id: str, **where: Any) -> list[ChatSummary]:
        return await self._ask(list_chats, owner_id, lease_timeout_s=self.lease_timeout_s, **where)

    async def count_chats(self) -> ChatCount:
        return await self._ask(count_chats, lease_timeout_s=self.lease_timeout_s)

    async def clean_up(self, *, dead_for_s: float) -> None:
        async def forget(transaction: Transaction) -> None:
            await forget_expired(transaction, await transaction.now())

        await self.database.write(lambda transaction: forget_dead(transaction, dead_for_s=dead_for_s), single=True)
        await self.database.write(forget)

    async def attempts(self, chat_id: str, **where: Any) -> list[AttemptView]:
        return await self._ask(load_attempts, chat_id, **where)

    async def pack(self, *, ended_before: datetime, clock: Clock) -> int:
        return await sweep(self.database, ended_before=ended_before, clock=clock)

    async def page(self, chat_id: str, **where: Any) -> Page:
        return await self._read(load_page, chat_id, **where)

    async def changes(self, chat_id: str, after: Position) -> Changes:
        return await self._read(load_changes, chat_id, after)

    async def positions(self, chat_ids: Sequence[str]) -> dict[str, Position]:
        return await self._ask(load_positions, chat_ids)

    async def tree(self, chat_id: str) -> MessageTree:
        return await self._read(load_tree, chat_id)

    async def vacant(self, chat_ids: Sequence[str]) -> dict[str, Vacancy]:
        return await self._ask(load_vacant, chat_ids, lease_timeout_s=self.lease_timeout_s)

    async def resume(self, chat_id: str, position: Position | None) -> Resumption | None:
        return await self._read(load_resumption, chat_id, position)

    async def _read(self, load: Query[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Run a query of several statements on one snapshot."""
        return await self.database.read(lambda transaction: load(transaction, *given, **named))

    async def _ask(self, load: Query[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Run a query of one statement."""
        return await self.database.read(lambda transaction: load(transaction, *given, **named), single=True)


async def _claim_and_apply(transaction: Transaction, *, once: Once, work: Work[Outcome]) -> Outcome:
    """Do the work and store its response, in the transaction that claims the request's key."""
    given = await claim(transaction, once.request, await transaction.now())
    if given is not None:
        raise RequestRepeated(given)
    outcome = await work(transaction)
    chat_id = outcome.chat_id if outcome.status is not None else None
    await settle(transaction, once.request, once.respond(outcome), chat_id)
    return outcome


def _check_names(chat_id: str, command: Command) -> None:
    """Raise `NotFound` for text that cannot be one of our ids. (PostgreSQL would even reject some of it.)"""
    named = (getattr(command, field, None) for field in ("message_id", "queued_id", "turn_id"))
    for name in (chat_id, *named):
        if name is not None and not is_id(name):
            raise NotFound("Not found. It may have been deleted.")
