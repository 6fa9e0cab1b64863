"""What a store promises, whichever database is behind it.

A store carries out commands (machine/) on chats. Each is one transaction: lock the chat's row, load the
snapshot, call `decide`, apply the effects, append one event per fact, commit. Nothing is published before the
commit. There is one implementation for both databases (sql_store.py), and one suite of tests that both pass
(tests/store/test_conformance.py); a behaviour exists when it has a docstring here and a test there.

Content comes with a command as a payload (payloads.py); the machine that decides never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from indelible.api.events import MessageTree, Position
from indelible.api.shapes import AttemptView, ChatSummary, QueuedMessage
from indelible.clock import Clock
from indelible.content import Message
from indelible.machine.states import Status
from indelible.store.commands.idempotency import Request, StoredResponse
from indelible.store.journal.append import Appended, JournalRow
from indelible.store.payloads import C, ChatPatch, Payload, ToolResultsInput, UserInput
from indelible.store.queries.changes import Changes, Resumption
from indelible.store.queries.chat_view import Answering, AttemptName, ChatStatus, ChatView, Event
from indelible.store.queries.history import Page
from indelible.store.queries.listing import ALL_CHATS, ChatCount, ChatFilter, ListCursor
from indelible.store.queries.liveness import UnheldStop, Vacancy
from indelible.store.queries.open_turn import Expired, Held, OpenWork, Probe

if TYPE_CHECKING:
    from indelible.store.lists.protocol import ListStore


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command. `effective` is False if there was nothing to do; then nothing was written.

    One thing may still be written later: the usage of an attempt that another process ended (rule 1.8).

    `seq` is the chat's last event, and `live_id` the attempt open at that moment. `messages` entered history, in
    order; `steers` are those of them that a running turn must receive. `vacant_s` is set when the chat was acquired
    from a dead worker: the seconds since that worker's last heartbeat; `takeovers` is how often that happened in this
    turn, and `in_tool` whether a tool was running. `wakes_readers` is whether there are new events, or a new chat.
    `wakes_workers` is whether a worker has to act now: the chat is runnable and nobody holds it, or its holder has to
    stop, or has lost it. `summary` is the chat's metadata after an update, or that of a new copy.
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
    wakes_readers: bool = True
    wakes_workers: bool = True
    vacant_s: float | None = None
    summary: ChatSummary | None = None
    takeovers: int = 0
    in_tool: bool = False


class Once(NamedTuple):
    """A request that may be repeated, and what makes the response that is stored with its key.

    * The write, its response and the key are one transaction.
    * A repeated request writes nothing and raises `RequestRepeated`, which has the response to the first.
    * A concurrent request with the same key waits for the first.
    * The same key with another body or route is `Invalid`. A refused write leaves no key behind.
    """

    request: Request
    respond: Callable[[Outcome], StoredResponse]


class ForkPoint(NamedTuple):
    """Where a copy of a chat ends, and the id of the copy."""

    message_id: str
    new_chat_id: str


class ChatStore(Protocol):
    """A write with `once` may be repeated, and is carried out once."""

    @property
    def lists(self) -> ListStore:
        """What lists of chats need beyond `list_chats`: search, read marks, drafts, usage, files."""

    async def execute(
        self,
        chat_id: str,
        command: C,
        payload: Payload[C] | None = None,
        *,
        user_id: str | None = None,
        once: Once | None = None,
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
          (limits.py).
        """

    async def find_response(self, request: Request) -> StoredResponse | None:
        """The response that this request got before; None if it was not made before. Nothing is claimed."""

    async def update(
        self,
        chat_id: str,
        patch: ChatPatch,
        *,
        archived: bool | None = None,
        user_id: str | None = None,
        once: Once | None = None,
    ) -> Outcome:
        """Change a chat's metadata, and archive or unarchive it, in one transaction.

        * A repeated request changes nothing.
        """

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
        """Change a chat's settings and start a turn with a message, or resume one with results, in one transaction.

        * A refused request has changed nothing, the settings included, and has left no copy.
        * With `fork`, it happens in a copy of the path to a message, and the chat does not change (see `fork`).
        * A message that would have to wait is `NotAllowed`. Beside results, it joins the turn that they resume.
        * A repeated request makes no second copy and starts no second turn.
        """

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        """Write rows of running attempts, of several chats, in one durable transaction.

        * A row is written only if its attempt is open under its epoch; the result lists the refused ones.
        * It never waits for an attempt that is being ended: such a row is skipped.
        * The same row again is a success; another one under its number is `BadRows`, and the others, which may be
          written by then or not, can be tried again.
        """

    async def beat(self, worker_id: str) -> None:
        """Record a worker's heartbeat by the database's clock; the first one registers the worker."""

    async def retire(self, worker_id: str) -> None:
        """Remove a worker: any other worker may acquire its chats at once."""

    async def retire_all(self) -> None:
        """Remove every worker. Only a process that has the database to itself may call this."""

    async def acquire(
        self,
        worker_id: str,
        *,
        limit: int,
        per_user: int | None = None,
        chat_ids: Sequence[str] | None = None,
        suspects: int | None = None,
    ) -> list[Outcome]:
        """Acquire up to `limit` runnable chats without a live holder: interrupted ones first, then the longest waiting.

        * Two workers never get the same chat; a chat of a live worker is never handed out.
        * A chat that another transaction has locked is skipped, not waited for.
        * Every user's first chat comes before any user's second; no user gets more than `per_user` at a time.
        * What a dead worker left open is closed, or adopted if its stream was complete, in the same transaction.
          A turn that was taken over too often fails instead, and is not returned.
        * With `chat_ids` it tries only these, in this order: the chats that `probe` found runnable.
        * It tries at most `suspects` chats whose turn has lost a worker before, those first whose tool was running.
        """

    async def probe(self, worker_id: str, chat_ids: Sequence[str], *, per_user: int | None = None) -> Probe:
        """Of these chats, which the worker holds and with what instruction, and which it may try to `acquire`.

        * One statement that finds the chats by key, for a worker that received a hint.
        * Runnable is what a full search would find among them, in the same order and within the limit of a user, except
          those whose turn has lost a worker before: a full search tries them one by one.
        """

    async def work(self, chat_id: str) -> OpenWork:
        """What there is to do in a chat: its open turn, the conversation, an open attempt. All of one moment."""

    async def forget_responses(self, chat_id: str, *, epoch: int) -> None:
        """Erase the provider's names for the replies of a chat: none of them is chained to again (rule 4.4).

        * Only the holder of this epoch may; any other worker gets `LeaseLost`, and nothing changes.
        * Nothing that a reader sees changes, so there is no event.
        """

    async def held(self, worker_id: str) -> list[Held]:
        """The chats that a worker holds, with their current status."""

    async def expired(self, *, limit: int) -> list[Expired]:
        """Chats whose deadline for tool results has passed, the longest waiting first. Only a hint."""

    async def unheld_stops(self, *, limit: int) -> list[UnheldStop]:
        """Turns that were stopped and that no live worker holds, the longest waiting first. Only a hint."""

    async def clean_up(self, *, dead_for_s: float) -> None:
        """Delete what is no longer needed: expired idempotency keys, and workers long dead."""

    async def fork(
        self,
        chat_id: str,
        message_id: str,
        *,
        new_chat_id: str,
        owner_id: str,
        user_id: str | None = None,
        once: Once | None = None,
    ) -> Outcome:
        """Create a new chat whose history is a copy of the path to this message. It is idle and independent.

        * Results that follow the message come along; calls that have none are answered in the copy.
        * Queue, attempts and journal are not copied.
        * The old chat does not change.
        * With `user_id`, a chat that this user does not own is `NotFound`.
        * A repeated request makes no second copy.
        """

    async def owner(self, chat_id: str) -> str | None:
        """The owner of a chat; None if the chat does not exist."""

    async def check_writable(self, user_id: str) -> None:
        """Commit a write that changes nothing. Raises `StoreFailed` if the database cannot be written now."""

    async def status(self, chat_id: str) -> ChatStatus:
        """The owner of a chat, its status as people see it, and its open turn.

        The cost does not depend on the length of the chat or of a running reply.
        """

    async def find_user(self, name: str) -> str | None:
        """The id of the user with this name; None if there is none.

        A name that no new user may have is refused, as `ensure_user` does it.
        """

    async def ensure_user(self, name: str) -> str:
        """The id of the user with this name, who is created if missing.

        A name that no new user may have is refused with `Invalid`: it is empty, longer than 200 characters, has spaces
        around it or a character that is not printable.
        """

    async def list_chats(
        self,
        owner_id: str,
        *,
        wanted: ChatFilter = ALL_CHATS,
        after: ListCursor | None = None,
        limit: int = 50,
    ) -> list[ChatSummary]:
        """A user's chats, pinned first, then most recently updated first, from `after` on, or before it.

        * A chat moves when something is said in it, and not when its metadata changes.
        * `wanted` selects chats: archived or not, with a label, pinned or not, unread or not.
        """

    async def count_chats(self) -> ChatCount:
        """The number of chats in each state, and how many are stuck."""

    async def view(self, chat_id: str, *, limit: int = 50) -> ChatView:
        """The chat, its last `limit` messages, its queue and its running attempt: all of one moment.

        Its `seq` and `live.n` are the cursor: reading on from there misses nothing and sees nothing twice.
        """

    async def snapshot(self, chat_id: str, *, limit: int = 50) -> tuple[ChatView, Page]:
        """The chat without messages, and its last `limit` messages as people see them (`page`): all of one moment."""

    async def queue(self, chat_id: str) -> list[QueuedMessage]:
        """The queued messages, in order. It reads no message of the history and no part of a running reply."""

    async def events(self, chat_id: str, *, after: int, limit: int = 1000) -> list[Event]:
        """The events after number `after`, in order and without gaps."""

    async def answering(self, chat_id: str, message_id: str) -> Answering | None:
        """The last turn that answers a user's message; None if no turn did.

        It is told with the events at which it began, and at which it was resumed with results.
        """

    async def attempts(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[AttemptView]:
        """The attempts of a chat, newest first: the newest, those next older than `before`, or next newer than `after`.

        Attempts that left nothing are included, and so is the open one.
        """

    async def pack(self, *, ended_before: datetime, clock: Clock) -> int:
        """Pack the journals of attempts that ended before this, for a short time; returns how many were packed.

        Every read gives the same result afterwards.
        """

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

    async def tree(self, chat_id: str) -> MessageTree:
        """Every message of every branch in short, in the order of creation, as people see them; and the active end."""

    async def changes(self, chat_id: str, after: Position) -> Changes:
        """What a reader at this position has not seen yet, from both logs, in the order of rule 6.2.

        All of one moment. A long answer is limited to its first piece; reading on from its end gives the next.
        Raises `NotFound` if the chat does not exist.
        """

    async def positions(self, chat_ids: Sequence[str]) -> dict[str, Position]:
        """The current position of each of these chats. A chat that does not exist is left out."""

    async def vacant(self, chat_ids: Sequence[str]) -> dict[str, Vacancy]:
        """Which of these chats are running, and whether no worker is alive to answer them. One statement."""

    async def resume(self, chat_id: str, position: Position | None) -> Resumption | None:
        """What a reader needs that returns with a position; None if the chat does not exist. All of one moment.

        * The chat's owner, and its current position.
        * Whether a reader of this chat can have reached exactly the given position by now. No position is not reached.
        """
