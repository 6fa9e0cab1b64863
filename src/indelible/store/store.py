"""The store: what it promises, and how it keeps it on SQLite and on PostgreSQL.

A store carries out commands (machine/) on chats. Each is one transaction: lock the chat's row, load the facts, decide,
apply the effects, append one event per fact, commit (commands/execute.py). Nothing is published before the commit.
Content comes with a command as a payload (payloads.py); the machine that decides never sees it.

The databases differ in where a transaction runs and what makes it durable (database/), and the statements are the
same. A cancelled caller waits until its transaction has ended. The journal, heartbeats and a worker's frequent queries
are urgent: however many users wait for the database, running replies are written and the worker counts as alive.

Must stay true (tests/store/test_promises.py): every sentence of a docstring here has a test on both databases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from indelible.clock import Clock
from indelible.concurrency.tasks import run_to_completion
from indelible.errors import Refused
from indelible.ids import new_id
from indelible.logs import get_logger
from indelible.machine.commands import Delete
from indelible.store import drafts, search_index, transfer
from indelible.store.commands import history as history_effects
from indelible.store.commands.begin import Place, Reserve
from indelible.store.commands.execute import Executor, check_names
from indelible.store.database.address import parse_address
from indelible.store.database.migrate import LEASE_TIMEOUT_S, open_database, upgrade_schema
from indelible.store.database.transaction import Database, Transaction, Work
from indelible.store.journal.append import Appended, JournalRow, append_group
from indelible.store.journal.pack import sweep
from indelible.store.outcome import ForkPoint, IdempotencyKey, Outcome, RequestRepeated, forget_expired, perform_once
from indelible.store.payloads import C, ChatPatch, Payload, StoreLimits, ToolResultsInput, UserInput, check_payload
from indelible.store.queries import leases, listing
from indelible.store.queries.listing import ALL_CHATS, ChatFilter
from indelible.store.readable import ReadableStore
from indelible.store.search import SearchCursor, SearchPage, search_chats
from indelible.store.search_index import parse_query
from indelible.store.transfer import ChatFile

_log: Final = get_logger(__name__)
DEFAULT_LIMITS: Final = StoreLimits()
_CHANGE_NOTHING: Final = "UPDATE users SET name = name WHERE id = $1"
_INDEXED_BEFORE_A_SEARCH: Final = 1000


class Store(ReadableStore):
    """Create it with `open`, which migrates the database first. A write with a `key` is carried out once.

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
        super().__init__(database, lease_timeout_s=lease_timeout_s)
        self.limits = limits
        self.before_delete: Callable[[str], Awaitable[object]] | None = None
        self._on_committed = on_committed
        self._executor = Executor(lease_timeout_s=lease_timeout_s, limits=limits)

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

    # --- commands ---

    async def execute(
        self,
        chat_id: str,
        command: C,
        payload: Payload[C] | None = None,
        *,
        user_id: str | None = None,
        key: IdempotencyKey | None = None,
        reserve: Reserve | None = None,
    ) -> Outcome:
        """Execute one command on one chat, entirely or not at all.

        * With `user_id`, a chat that this user does not own is `NotFound`; the locked row decides.

        * A refused command (`Refused`, `LeaseLost`, `Interrupted`) has changed nothing: no row, no event, no number.
        * Commands on one chat run one after the other, from every client and worker.
        * `seq` of a chat grows by one per event, without gaps, and an event exists exactly if the
          change it describes does.
        * A command of a worker whose epoch is over changes nothing, the live stream included.
        * When this returns, the transaction is durable.
        * More messages in the queue than the limit raise `TooMany`.
        * Content that is too large raises `TooLarge`, and a title, label or model name that is too long `Invalid`
          (payloads.py).
        * With `reserve`, a worker may get the chat in the same transaction (commands/begin.py). The rows and events are
          those that it would leave afterwards, and the outcome is the command's.
        """
        check_names(chat_id, command)
        check_payload(payload, self.limits)
        work = partial(self._executor.execute, chat_id=chat_id, command=command, payload=payload, user_id=user_id)
        if not isinstance(command, Delete):
            return await self._commit(work, key, reserve=reserve)
        if key is not None and (given := await self.find_response(key)) is not None:
            raise RequestRepeated(given)
        return await self._delete(chat_id, user_id, partial(self._commit, work, key, slow=True))

    async def update(
        self,
        chat_id: str,
        patch: ChatPatch,
        *,
        archived: bool | None = None,
        user_id: str | None = None,
        key: IdempotencyKey | None = None,
    ) -> Outcome:
        """Change a chat's metadata, and archive or unarchive it, in one transaction.

        * A repeated request changes nothing.
        """
        check_names(chat_id)
        check_payload(patch, self.limits)
        of: dict[str, Any] = {"archived": archived, "user_id": user_id}
        return await self._commit(lambda given: self._executor.update(given, chat_id, patch, **of), key)

    async def continue_chat(
        self,
        chat_id: str,
        message: UserInput | None = None,
        *,
        results: ToolResultsInput | None = None,
        patch: ChatPatch | None = None,
        fork: ForkPoint | None = None,
        user_id: str,
        key: IdempotencyKey | None = None,
        reserve: Reserve | None = None,
    ) -> Outcome:
        """Change a chat's settings and start a turn with a message, or resume one with results, in one transaction.

        * A refused request has changed nothing, the settings included, and has left no copy.
        * With `fork`, it happens in a copy of the path to a message, and the chat does not change (see `fork`).
        * A message that would have to wait is `NotAllowed`. Beside results, it joins the turn that they resume.
        * A repeated request makes no second copy and starts no second turn.
        * With `reserve`, a worker may get the chat in the same transaction, as in `execute`.
        """
        check_names(chat_id)
        for payload in (message, results, patch):
            check_payload(payload, self.limits)
        of: dict[str, Any] = {"results": results, "patch": patch, "fork": fork, "user_id": user_id}
        work = partial(self._executor.continue_chat, chat_id=chat_id, message=message, **of)
        return await self._commit(work, key, slow=fork is not None, reserve=reserve)

    async def fork(
        self,
        chat_id: str,
        message_id: str,
        *,
        new_chat_id: str,
        owner_id: str,
        user_id: str | None = None,
        key: IdempotencyKey | None = None,
    ) -> Outcome:
        """Create a new chat whose history is a copy of the path to this message. It is idle and independent.

        * Results that follow the message come along; calls that have none are answered in the copy.
        * Queue, attempts and journal are not copied.
        * The old chat does not change.
        * With `user_id`, a chat that this user does not own is `NotFound`.
        * A repeated request makes no second copy.
        """
        of: dict[str, Any] = {"fork": ForkPoint(message_id, new_chat_id), "owner_id": owner_id, "user_id": user_id}
        return await self._commit(partial(self._executor.fork, chat_id=chat_id, **of), key, slow=True)

    async def import_chat(self, file: ChatFile, *, owner_id: str, key: IdempotencyKey | None = None) -> Outcome:
        """Create a chat from an exported one: the same tree under new ids. It is idle.

        * All of it is written, or nothing. Exporting it again gives the same.
        """
        check_payload(transfer.make_patch(file), self.limits)
        chat_id = new_id("chat")
        rows = await asyncio.to_thread(transfer.make_rows, file, chat_id)  # a large one would hold up everybody
        of: dict[str, Any] = {"new_chat_id": chat_id, "owner_id": owner_id, **self._timeout}
        return await self._commit(partial(transfer.import_chat, file=file, rows=rows, **of), key, slow=True)

    # --- beside the conversation ---

    async def mark_read(
        self, chat_id: str, user_id: str, seq: int | None = None, *, key: IdempotencyKey | None = None
    ) -> Outcome:
        """Mark a chat as read up to event `seq`; None: all of it.

        * A mark only moves forward. A message of the user's own moves it too.
        * A chat that the user does not own is `NotFound`.
        """
        return await self._commit(partial(drafts.mark_read, chat_id=chat_id, owner_id=user_id, seq=seq), key)

    async def save_draft(self, chat_id: str, user_id: str, text: str, *, key: IdempotencyKey | None = None) -> Outcome:
        """Replace the user's draft; an empty text deletes it.

        * It goes with its chat, and nobody else sees it.
        """
        return await self._commit(partial(drafts.save_draft, chat_id=chat_id, user_id=user_id, text=text), key)

    async def forget_responses(self, chat_id: str, *, epoch: int) -> None:
        """Erase the provider's names for the replies of a chat: none of them is chained to again (rule 4.4).

        * Only the holder of this epoch may; any other worker gets `LeaseLost`, and nothing changes.
        * Nothing that a reader sees changes, so there is no event.
        """
        await self.database.write(lambda given: history_effects.forget_responses(given, chat_id, epoch=epoch))

    async def search(
        self,
        owner_id: str,
        text: str,
        *,
        wanted: ChatFilter = ALL_CHATS,
        cursor: SearchCursor | None = None,
        limit: int = 50,
    ) -> SearchPage:
        """The user's chats whose title or messages have all words of the text, newest match first.

        * The last word may be the beginning of one. Case, diacritics and the order of words do not matter.
        * It finds what was committed before it was called.
        * Reasoning, results of tools and what only a model sees is not found.
        * Only the newest matches are looked at, so a common word costs no more than a rare one.
        """
        query = parse_query(text)
        if query is None:
            return SearchPage(items=[], next=None, previous=None)
        await search_index.index_pending(self.database, owner_id=owner_id, limit=_INDEXED_BEFORE_A_SEARCH)
        of: dict[str, Any] = {"wanted": wanted, "cursor": cursor, "limit": limit}
        return await self._read(search_chats, owner_id, query, **of, **self._timeout)

    async def index(self, *, limit: int) -> int:
        """Add what is new in up to `limit` chats to the search index; returns how many chats it tried.

        * Each commit is short. A crash in between loses nothing.
        """
        return await search_index.index_pending(self.database, limit=limit)

    async def forget_chat(self, chat_id: str) -> None:
        """Remove a chat that is about to be deleted from the search index, in short transactions.

        * If it is not deleted after all, it is found again.
        """
        await search_index.forget_chat(self.database, chat_id)

    async def ensure_user(self, name: str) -> str:
        """The id of the user with this name, who is created if missing.

        A name that no new user may have is refused with `Invalid`: it is empty, longer than 200 characters, has spaces
        around it or a character that is not printable.
        """
        return await self.database.write(lambda given: listing.ensure_user(given, name))

    async def check_writable(self, user_id: str) -> None:
        """Commit a write that changes nothing. Raises `StoreFailed` if the database cannot be written now."""
        await self.database.write(lambda given: given.run(_CHANGE_NOTHING, user_id), single=True)

    # --- workers ---

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        """Write rows of running attempts, of several chats, in one durable transaction.

        * A row is written only if its attempt is open under its epoch; the result lists the refused ones.
        * It never waits for an attempt that is being ended: such a row is skipped.
        * The same row again is a success; another one under its number is `BadRows`, and the others, which may be
          written by then or not, can be tried again.
        """
        # By this machine's clock: a row's time is never compared with another clock, and asking the database for its
        # time would be a second round trip on the hot path.
        return await append_group(self.database, rows, datetime.now(UTC))

    async def beat(self, worker_id: str, *, lock_key: int | None = None) -> bool:
        """Record a worker's heartbeat by the database's clock; the first one registers the worker.

        `lock_key` is the session lock that its process holds, by which others see whether it lives. Returns whether
        nobody has declared it gone.
        """
        return await self.database.write(
            lambda given: leases.beat(given, worker_id, lock_key), urgent=True, single=True
        )

    async def declare_gone(self, worker_id: str, lock_key: int) -> list[str]:
        """Declare that the process of a worker is gone, if its lock is free now; returns the busy chats that it held.

        * Any other worker may acquire them at once, before its lease has run out.
        * A worker without this lock is not declared gone.
        """
        if not await self.database.write(lambda given: leases.declare_gone(given, worker_id, lock_key), urgent=True):
            return []
        return [chat.chat_id for chat in await self.held(worker_id)]

    async def revive(self, worker_id: str) -> list[str]:
        """A worker that was declared gone lives; returns the chats of which this takes back a takeover.

        * What was taken from it since then is no takeover for the budget of the turn.
        """
        lost = await self.database.write(lambda given: leases.revive(given, worker_id), urgent=True)
        return [chat_id for chat_id in lost if await self._uncount_takeover(chat_id, worker_id)]

    async def retire(self, worker_id: str) -> None:
        """Remove a worker: any other worker may acquire its chats at once."""
        await self.database.write(lambda given: leases.retire(given, worker_id), single=True)

    async def retire_all(self) -> None:
        """Remove every worker. Only a process that has the database to itself may call this."""
        await self.database.write(leases.retire_all, single=True)

    async def acquire(
        self,
        worker_id: str,
        *,
        limit: int,
        per_user: int | None = None,
        chat_ids: Sequence[str] | None = None,
        suspects: int | None = None,
        reserved: Mapping[str, int] | None = None,
    ) -> list[Outcome]:
        """Acquire up to `limit` runnable chats without a live holder: interrupted ones first, then the longest waiting.

        * Two workers never get the same chat; a chat of a live worker is never handed out.
        * A chat that another transaction has locked is skipped, not waited for.
        * Every user's first chat comes before any user's second; no user gets more than `per_user` at a time.
        * What a dead worker left open is closed, or adopted if its stream was complete, in the same transaction.
          A turn that was taken over too often fails instead, and is not returned.
        * With `chat_ids` it tries only these, in this order: the chats that `probe` found runnable.
        * `reserved` counts for the limit, too: how many chats of which user are just beginning to run.
        * It tries at most `suspects` chats whose turn has lost a worker before, those first whose tool was running.
        """
        if chat_ids is None:
            most = limit * leases.CANDIDATES_PER_CHAT
            of: dict[str, Any] = {"limit": most, "per_user": per_user, "suspects": suspects, "reserved": reserved or {}}
            chat_ids = await self._ask(leases.find_candidates, worker_id, **self._timeout, **of)
        return await leases.acquire_chats(chat_ids, worker_id, limit=limit, execute=self.execute)

    async def pack(self, *, ended_before: datetime, clock: Clock) -> int:
        """Pack the journals of attempts that ended before this, for a short time; returns how many were packed.

        Every read gives the same result afterwards.
        """
        return await sweep(self.database, ended_before=ended_before, clock=clock)

    async def clean_up(self, *, dead_for_s: float) -> None:
        """Delete what is no longer needed: expired idempotency keys, and workers long dead."""

        async def forget(transaction: Transaction) -> None:
            await forget_expired(transaction, await transaction.now())

        await self.database.write(lambda given: leases.forget_dead(given, dead_for_s=dead_for_s), single=True)
        await self.database.write(forget)

    # --- how they are carried out ---

    async def _uncount_takeover(self, chat_id: str, worker_id: str) -> bool:
        return await self.database.write(lambda given: leases.uncount_takeover(given, chat_id, worker_id))

    async def _commit(
        self,
        work: Callable[..., Coroutine[Any, Any, Outcome]],
        key: IdempotencyKey | None,
        *,
        slow: bool = False,
        reserve: Reserve | None = None,
    ) -> Outcome:
        place = None if reserve is None else reserve()
        if place is None:
            once = work if key is None else partial(perform_once, key=key, work=work)
            return await self.database.write(once, slow=slow, on_committed=self._notify_committed)
        begin: Work[Outcome] = partial(work, place=place)
        once = begin if key is None else partial(perform_once, key=key, work=begin)
        notify = partial(self._notify_committed, place=place)
        try:
            outcome: Outcome = await self.database.write(once, slow=slow, on_committed=notify)
        except (Refused, RequestRepeated):
            place.give_back()
            raise
        except BaseException:  # the answer of a commit may be lost, and so is the outcome of a cancelled caller
            place.doubt()
            raise
        place.give_back()
        return outcome

    @run_to_completion
    async def _delete(self, chat_id: str, user_id: str | None, delete: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """All or nothing: a chat whose deletion is refused must not lose its debug records."""
        if self.before_delete is not None and (user_id is None or await self.owner(chat_id) == user_id):
            await self.before_delete(chat_id)
        return await delete()

    def _notify_committed(self, outcome: Outcome, *, place: Place | None = None) -> None:
        try:
            if place is not None and outcome.begun is not None:
                place.fill(outcome.begun)
            if outcome.effective and self._on_committed is not None:
                self._on_committed(outcome)
        except Exception:  # the commit stands, and other callers wait for their results
            _log.exception("notifying readers and workers failed; they will notice at their next poll")
