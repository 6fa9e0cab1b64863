"""What a store promises, whichever database is behind it.

A store carries out commands (machine/) on chats. Each is one transaction: lock the chat's row, load the
snapshot, ask `decide`, carry out the effects, append one event per fact, commit. Nothing outside is told before
the commit. There is one implementation for both databases (sql_store.py), and one suite of tests that both pass
(tests/store/test_conformance.py); a behaviour exists when it has a docstring here and a test there.

Content comes with a command as a payload (payloads.py); the machine that decides never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from indelible.clock import Clock
from indelible.content import Message
from indelible.machine.events import Position
from indelible.machine.states import Status
from indelible.store.commands.idempotency import Request, StoredResponse
from indelible.store.journal.append import Appended, JournalRow
from indelible.store.journal.tool_ledger import LedgerEntry
from indelible.store.payloads import C, Payload
from indelible.store.queries.attempts import AttemptView
from indelible.store.queries.changes import Changes
from indelible.store.queries.chat_view import AttemptName, ChatStatus, ChatView, Event, JournalEntry
from indelible.store.queries.history import Page
from indelible.store.queries.listing import ChatCount, ChatSummary, ListCursor
from indelible.store.queries.open_turn import Expired, Held, OpenWork, Probe


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a command came to. `effective` is False if it found nothing to do; then nothing was written.

    One thing may still come late: usage of an attempt that somebody else ended from the journal (SPEC 1.8).

    `seq` is the chat's last event, and `live_id` the attempt that is open then. `messages` are those that entered
    history, in order; `steers` those of them that a running turn has to hear of. `vacant_s` is, of a chat that was
    taken from a dead worker, how long ago that one was last heard of.
    """

    chat_id: str
    effective: bool
    status: Status | None
    seq: int
    epoch: int
    messages: list[Message] = []
    steers: list[Message] = []
    queued_id: str | None = None
    turn_id: str | None = None
    attempt: AttemptName | None = None
    live_id: str | None = None
    vacant_s: float | None = None


class ChatStore(Protocol):
    async def execute(
        self, chat_id: str, command: C, payload: Payload[C] | None = None, *, user_id: str | None = None
    ) -> Outcome:
        """Carry out one command on one chat, wholly or not at all.

        * With `user_id`, a chat that this user does not own is `NotFound`; the locked row decides.

        * A refused command (`Refused`, `LeaseLost`, `Interrupted`) has changed nothing: no row, no event, no number.
        * Commands on one chat are carried out one after the other, whoever sends them.
        * `seq` of a chat grows by one per event, without gaps, and an event is there exactly if what it tells
          of is.
        * A command of a worker whose epoch is over changes nothing, the live stream included.
        * When this returns, the transaction is durable.
        * More messages in the queue than the limit are `TooMany`, a larger message is `TooLarge`.
        """

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
        """Carry out a command for a request that may be repeated.

        * The command, its answer and the request's key are one transaction: the same request again gets the same
          answer, and the command is not carried out a second time.
        * A request with the same key that comes meanwhile waits for the first.
        * The same key with another body or route is `Invalid`. A refused command leaves no key behind.
        """

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        """Write rows of running attempts, of several chats, in one durable transaction.

        * A row is written only if its attempt is open under its epoch; the others are told apart in the answer.
        * It never waits for an attempt that is being ended: such a row is skipped.
        * The same row again is a success; another one under its number is `BadRows`, and nothing is written.
        """

    async def beat(self, worker_id: str) -> None:
        """Say that a worker is alive, by the database's clock; the first time, that there is one."""

    async def retire(self, worker_id: str) -> None:
        """Say that a worker is gone: what it still holds is anybody's at once."""

    async def retire_all(self) -> None:
        """Say that every worker is gone. Only for whoever holds the database alone."""

    async def acquire(
        self, worker_id: str, *, limit: int, per_user: int | None = None, chat_ids: Sequence[str] | None = None
    ) -> list[Outcome]:
        """Take up to `limit` runnable chats whose holder is missing or dead: interrupted ones first, then the oldest.

        * Two workers never get the same chat; a chat of a live worker is never handed out.
        * A chat that somebody is busy with is passed over and not waited for.
        * Every user's first chat comes before anybody's second; no user gets more than `per_user` at a time.
        * What a dead worker left open is closed, or adopted if its stream was complete, in the same transaction.
          A turn that was taken over too often fails instead, and is not in the answer.
        * With `chat_ids` it tries these, in this order, and searches for no others: what `probe` found runnable.
        """

    async def probe(self, worker_id: str, chat_ids: Sequence[str], *, per_user: int | None = None) -> Probe:
        """Of these chats, what a worker holds and what is wanted of it, and what it may try to `acquire`.

        * One statement that finds the chats by key, for a worker that received a hint.
        * Runnable is what a full search would find among them, in the same order and within the limit of a user.
        """

    async def work(self, chat_id: str) -> OpenWork:
        """What there is to do in a chat: its open turn, the conversation, an open attempt. All of one moment."""

    async def forget_responses(self, chat_id: str, *, epoch: int) -> None:
        """Erase the provider's names for the replies of a chat: none of them is chained to again (SPEC 4.4).

        * Only the holder of this epoch does so; for anybody else it is `LeaseLost`, and nothing is changed.
        * Nothing that a reader sees is changed, so there is no event.
        """

    async def held(self, worker_id: str) -> list[Held]:
        """The chats that a worker holds, with what is wanted of them now."""

    async def expired(self, *, limit: int) -> list[Expired]:
        """Chats whose time to be answered from outside is over, the longest waiting first. Only a hint."""

    async def clean_up(self, *, dead_for_s: float) -> None:
        """Forget what nobody needs any more: idempotency keys that are too old, workers long dead."""

    async def fork(self, chat_id: str, message_id: str, *, new_chat_id: str, owner_id: str) -> Outcome:
        """Make a new chat whose history is a copy of the path to this message. It waits, and owes the old one nothing.

        * The copy answers calls that were open at its end; queue, attempts and journal stay behind.
        * Nothing of the old chat is changed.
        """

    async def owner(self, chat_id: str) -> str | None:
        """Whose chat this is; None if there is no such chat."""

    async def status(self, chat_id: str) -> ChatStatus:
        """Whose chat this is, its status as people see it, and its open turn.

        The length of the chat and of a running reply costs nothing.
        """

    async def ensure_user(self, name: str) -> str:
        """The id of the user of this name, who is made if there is none."""

    async def list_chats(
        self,
        owner_id: str,
        *,
        archived: bool = False,
        search: str | None = None,
        after: ListCursor | None = None,
        limit: int = 50,
    ) -> list[ChatSummary]:
        """A user's chats, the last changed first, from `after` on; `search` looks at titles."""

    async def count_chats(self) -> ChatCount:
        """How many chats there are in which state, and how many are stuck."""

    async def view(self, chat_id: str, *, limit: int = 50) -> ChatView:
        """The chat, its last `limit` messages, its queue and its running attempt: all of one moment.

        Its `seq` and `live.n` are the cursor: reading on from there misses nothing and sees nothing twice.
        """

    async def events(self, chat_id: str, *, after: int, limit: int = 1000) -> list[Event]:
        """What has happened since event `after`, in order and without gaps."""

    async def rows(self, attempt_id: str, *, after: int = 0) -> list[JournalEntry]:
        """What an attempt said after row `after`, by its own boundaries, however long ago it was."""

    async def attempts(self, chat_id: str, *, before: str | None = None, limit: int = 50) -> list[AttemptView]:
        """What was tried in a chat, the newest attempt first, from below the attempt `before` on.

        Attempts that came to nothing are among them, and so is the open one.
        """

    async def runs(self, turn_id: str) -> list[LedgerEntry]:
        """Every tool call of a turn that was ever started, with its result if it is known."""

    async def pack(self, *, ended_before: datetime, clock: Clock) -> int:
        """Pack the journals of attempts that ended before this, for a short time; how many it were.

        Nothing can be read differently afterwards.
        """

    async def path(self, chat_id: str, *, before: str | None = None, limit: int | None = None) -> list[Message]:
        """The active path, oldest first: all of it, or the last `limit` messages above the message `before`."""

    async def page(self, chat_id: str, *, upto: str | None = None, before: str | None = None, limit: int = 50) -> Page:
        """Messages as people see them, oldest first: the last `limit` of the active path.

        With `upto` it is the path that ends with this message, with `before` the one that ends above it. What only a
        model sees is left out, and is not counted.
        """

    async def changes(self, chat_id: str, after: Position) -> Changes:
        """What a reader who has come to this position has not seen yet, from both logs, in the order of SPEC 6.2.

        All of one moment. If there is much of it, the first piece; reading on from where that ends gives the next.
        `NotFound` if there is no such chat.
        """

    async def positions(self, chat_ids: Sequence[str]) -> dict[str, Position]:
        """How far each of these chats has come. A chat that is not there is not in the answer."""

    async def reached(self, chat_id: str, position: Position) -> bool:
        """Whether a reader of this chat can have come to just this position by now."""
