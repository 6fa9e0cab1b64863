"""What can be read from a store: chats, their lists, their feeds, and the work that there is to do.

A read takes no lock and changes nothing. One of several statements sees one snapshot of the database (R9). What a
worker asks all the time is urgent: however many users wait for the database, it gets its answer.

Must stay true (tests/store/test_promises.py): every sentence of a docstring here has a test on both databases.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from indelible.api.events import MessageTree, Position
from indelible.api.shapes import AttemptView, ChatExtras, ChatSummary, Draft, QueuedMessage, UsageDay
from indelible.store import drafts, transfer
from indelible.store.database.transaction import Database, Transaction
from indelible.store.outcome import IdempotencyKey, StoredResponse, find_response
from indelible.store.queries import chat_view, leases, listing
from indelible.store.queries.changes import Changes, Resumption, load_changes, load_positions, load_resumption
from indelible.store.queries.chat_view import Answering, ChatStatus, ChatView, Event
from indelible.store.queries.history import Page, load_attempts, load_page
from indelible.store.queries.listing import ALL_CHATS, ChatCount, ChatFilter, ListCursor, find_left
from indelible.store.queries.liveness import UnheldStop, Vacancy, load_unheld_stops, load_vacant
from indelible.store.queries.open_turn import Expired, Held, OpenWork, Probe, load_expired, load_held, load_work
from indelible.store.queries.tree import load_tree
from indelible.store.queries.turn_facts import TurnFacts, load_turn_facts
from indelible.store.transfer import ChatFile
from indelible.store.usage import load_usage

P = ParamSpec("P")
T = TypeVar("T")
Query = Callable[Concatenate[Transaction, P], Coroutine[Any, Any, T]]


class ReadableStore:
    """Every read. store.py adds the writes."""

    def __init__(self, database: Database, *, lease_timeout_s: float) -> None:
        self.database = database
        self.lease_timeout_s = lease_timeout_s
        self._timeout: dict[str, Any] = {"lease_timeout_s": lease_timeout_s}

    # --- a chat ---

    async def owner(self, chat_id: str) -> str | None:
        """The owner of a chat; None if the chat does not exist."""
        return await self._ask(listing.find_owner, chat_id)

    async def status(self, chat_id: str) -> ChatStatus:
        """The owner of a chat, its status as people see it, and its open turn.

        The cost does not depend on the length of the chat or of a running reply.
        """
        return await self._ask(chat_view.load_status, chat_id, **self._timeout)

    async def view(self, chat_id: str, *, limit: int = 50) -> ChatView:
        """The chat, its last `limit` messages, its queue and its running attempt: all of one moment.

        Its `seq` and `live.n` are the cursor: reading on from there misses nothing and sees nothing twice.
        """
        return await self._read(chat_view.load_view, chat_id, limit=limit, **self._timeout)

    async def snapshot(self, chat_id: str, *, limit: int = 50) -> tuple[ChatView, Page]:
        """The chat without messages, and its last `limit` messages as people see them (`page`): all of one moment."""

        async def load(transaction: Transaction) -> tuple[ChatView, Page]:
            view = await chat_view.load_view(transaction, chat_id, limit=0, **self._timeout)
            if view.head_id is None:
                return view, Page(items=[], has_more=False)
            return view, await load_page(transaction, chat_id, upto=view.head_id, limit=limit)

        return await self._read(load)

    async def page(
        self,
        chat_id: str,
        *,
        upto: str | None = None,
        before: str | None = None,
        after: str | None = None,
        limit: int = 50,
        only_active: bool = False,
    ) -> Page:
        """Messages as people see them, oldest first: the last `limit` of the active path.

        With `upto` it is the path that ends with this message, with `before` the one that ends above it. With `after`
        it is the first `limit` messages of the active path below this one. What only a model sees is left out, and is
        not counted. With `only_active`, a `before` on another branch is `NotFound`, as an `after` always is.
        """
        of: dict[str, Any] = {"upto": upto, "before": before, "after": after, "limit": limit}
        return await self._read(load_page, chat_id, **of, only_active=only_active)

    async def tree(self, chat_id: str) -> MessageTree:
        """Every message of every branch in short, in the order of creation, as people see them; and the active end."""
        return await self._read(load_tree, chat_id)

    async def queue(self, chat_id: str) -> list[QueuedMessage]:
        """The queued messages, in order. It reads no message of the history and no part of a running reply."""
        return await self._ask(chat_view.load_queue, chat_id)

    async def events(self, chat_id: str, *, after: int, limit: int = 1000) -> list[Event]:
        """The events after number `after`, in order and without gaps."""
        return await self._ask(chat_view.load_events, chat_id, after=after, limit=limit)

    async def attempts(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[AttemptView]:
        """The attempts of a chat, newest first: the newest, those next older than `before`, or next newer than `after`.

        Attempts that left nothing are included, and so is the open one.
        """
        return await self._ask(load_attempts, chat_id, before=before, after=after, limit=limit)

    async def answering(self, chat_id: str, message_id: str) -> Answering | None:
        """The last turn that answers a user's message; None if no turn did.

        It is told with the events at which it began, and at which it was resumed with results.
        """
        return await self._read(chat_view.load_answering, chat_id, message_id)

    async def turn_facts(self, chat_id: str, seq: int) -> TurnFacts:
        """The turn that this event began or resumed, and its chat now. One statement, and no message's content.

        Raises `NotFound` if there is no such chat, or nothing was said in it up to this event.
        """
        return await self._read(load_turn_facts, chat_id, seq, **self._timeout)

    async def export_chat(self, chat_id: str) -> ChatFile:
        """The whole chat, every branch, of one moment."""
        return await self._read(transfer.export_chat, chat_id)

    # --- feeds ---

    async def changes(self, chat_id: str, after: Position) -> Changes:
        """What a reader at this position has not seen yet, from both logs, in the order of rule 6.2.

        All of one moment. A long answer is limited to its first piece; reading on from its end gives the next.
        Raises `NotFound` if the chat does not exist.
        """
        return await self._read(load_changes, chat_id, after)

    async def positions(self, chat_ids: Sequence[str]) -> dict[str, Position]:
        """The current position of each of these chats. A chat that does not exist is left out."""
        return await self._ask(load_positions, chat_ids)

    async def vacant(self, chat_ids: Sequence[str]) -> dict[str, Vacancy]:
        """Which of these chats are running, and whether no worker is alive to answer them. One statement."""
        return await self._ask(load_vacant, chat_ids, **self._timeout)

    async def resume(self, chat_id: str, position: Position | None) -> Resumption | None:
        """What a reader needs that returns with a position; None if the chat does not exist. All of one moment.

        * The chat's owner, and its current position.
        * Whether a reader of this chat can have reached exactly the given position by now. No position is not reached.
        """
        return await self._read(load_resumption, chat_id, position)

    # --- lists and users ---

    async def find_user(self, name: str) -> str | None:
        """The id of the user with this name; None if there is none.

        A name that no new user may have is refused, as `ensure_user` does it.
        """
        return await self._ask(listing.find_user, name)

    async def find_response(self, key: IdempotencyKey) -> StoredResponse | None:
        """The response that this request got before; None if it was not made before. Nothing is claimed."""
        return await self._ask(find_response, key)

    async def list_chats(
        self, owner_id: str, *, wanted: ChatFilter = ALL_CHATS, after: ListCursor | None = None, limit: int = 50
    ) -> list[ChatSummary]:
        """A user's chats, pinned first, then most recently updated first, from `after` on, or before it.

        * A chat moves when something is said in it, and not when its metadata changes.
        * `wanted` selects chats: archived or not, with a label, pinned or not, unread or not.
        """
        of: dict[str, Any] = {"wanted": wanted, "after": after, "limit": limit}
        return await self._ask(listing.list_chats, owner_id, **of, **self._timeout)

    async def count_chats(self) -> ChatCount:
        """The number of chats in each state, and how many are stuck."""
        return await self._ask(listing.count_chats, **self._timeout)

    async def summaries(self, chat_ids: Sequence[str]) -> dict[str, tuple[str, ChatSummary]]:
        """The owner and the line of each of these chats, by id. One statement. A deleted chat is left out."""
        return await self._ask(listing.load_owned, chat_ids, **self._timeout)

    async def extras(self, chat_id: str, user_id: str) -> ChatExtras:
        """Labels, pin, read mark, system prompt and the user's draft of a chat. Raises `NotFound`."""
        return await self._ask(drafts.load_extras, chat_id, user_id)

    async def draft(self, chat_id: str, user_id: str) -> Draft:
        """What the user has typed in a chat; with `new` instead of an id, for the next chat."""
        return await self._ask(drafts.load_draft, chat_id, user_id)

    async def usage(self, user_id: str | None, *, since: date, until: date, name: str | None = None) -> list[UsageDay]:
        """What a user's chats used, by day and model; None: of every user, by name, or of the user with this `name`.

        * Every attempt counts with what its provider reported, once, on the day on which it ended.
        * It stays when a chat is deleted.
        * A `name` that no user has is `NotFound`.
        """
        return await self._ask(load_usage, user_id, since, until, name=name)

    async def stale(self, *, updated_before: datetime, limit: int) -> list[str]:
        """Chats in which nothing was said since then and that can be archived: idle, not pinned, not unread."""
        return await self._ask(listing.find_stale, updated_before, limit)

    async def find_ephemeral(self, *, updated_before: datetime, limit: int) -> list[str]:
        """Ephemeral chats whose turn ended before this time: nobody deleted them.

        * One that somebody has gone on with, or that is archived, is not among them.
        """
        return await self._ask(find_left, updated_before, limit)

    # --- workers ---

    async def work(self, chat_id: str) -> OpenWork:
        """What there is to do in a chat: its open turn, the conversation, an open attempt. All of one moment."""
        return await self._read(load_work, chat_id)

    async def held(self, worker_id: str) -> list[Held]:
        """The chats that a worker holds, with their current status."""
        return await self._ask_now(load_held, worker_id)

    async def probe(
        self,
        worker_id: str,
        chat_ids: Sequence[str],
        *,
        per_user: int | None = None,
        reserved: Mapping[str, int] | None = None,
    ) -> Probe:
        """Of these chats, which the worker holds and with what instruction, and which it may try to `acquire`.

        * One statement that finds the chats by key, for a worker that received a hint.
        * Runnable is what a full search would find among them, in the same order and within the limit of a user, except
          those whose turn has lost a worker before: a full search tries them one by one.
        * `reserved` counts for the limit, too: how many chats of which user are just beginning to run.
        """
        of: dict[str, Any] = {"per_user": per_user, "reserved": reserved or {}, **self._timeout}
        return await self._ask_now(leases.probe_chats, worker_id, chat_ids, **of)

    async def expired(self, *, limit: int) -> list[Expired]:
        """Chats whose deadline for tool results has passed, the longest waiting first. Only a hint."""
        return await self._ask(load_expired, limit=limit)

    async def unheld_stops(self, *, limit: int) -> list[UnheldStop]:
        """Turns that were stopped and that no live worker holds, the longest waiting first. Only a hint."""
        return await self._ask(load_unheld_stops, limit=limit, **self._timeout)

    # --- how they are carried out ---

    async def _read(self, load: Query[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Run a query of several statements on one snapshot."""
        return await self.database.read(lambda transaction: load(transaction, *given, **named))

    async def _ask(self, load: Query[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Run a query of one statement."""
        return await self.database.read(lambda transaction: load(transaction, *given, **named), single=True)

    async def _ask_now(self, load: Query[P, T], *given: P.args, **named: P.kwargs) -> T:
        """The same, before other users' work."""
        return await self.database.read(
            lambda transaction: load(transaction, *given, **named), urgent=True, single=True
        )
