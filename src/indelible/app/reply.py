"""A reply: the parts of the turn that answers a message, from the first to the last.

A reply reads the chat's feed and nothing else, so it yields what was committed, in order, without gap or repetition,
whichever worker wrote it and however often another one took over: after a crash it pauses and then continues.
Thinking may start again after a failure; text that was shown is never retracted. The same class reads the feed of this
process and, with a cursor that survives lost connections, the feed of a server.

A message may wait in the queue first, or join a running turn (a steer). The events of its entry into history show which
turn is its own: a message that opens a turn is followed by that turn's `status`, one that joins a turn is not.

If its cursor is of no use, as after a restored backup, the feed sends a snapshot: the reply continues from what is
stored, and ends with it if its turn is no longer running.

Nothing is sent until the reply is read: `begin`, `async with`, `async for` and `await` all send, once. A reply that is
dropped without any of them would lose the message silently, so it causes a warning.

Must stay true (tests/app/test_reply.py).
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from itertools import takewhile
from types import AsyncGeneratorType
from typing import Any, Literal, Self, cast

import msgspec

from indelible.api.events import FeedEvent
from indelible.api.operations import ChatApi
from indelible.api.shapes import Accepted, ChatMessage, LiveBlocks
from indelible.concurrency.readings import Reading
from indelible.content import Part, TextDelta, Usage
from indelible.content.blocks import text_of
from indelible.errors import FailureKind, ModelFailed, NotFound, Shutdown

ReplyOutcome = Literal["complete", "interrupted", "failed", "edited", "requires_action", "withdrawn", "deleted"]


class NeverSent(RuntimeWarning):
    """A reply was dropped before anybody read it, so its message was never sent."""


class _MessageEvent(msgspec.Struct):
    message: ChatMessage


class _Queued(msgspec.Struct):
    id: str


class _Snapshot(msgspec.Struct):
    """The fields used of a snapshot event."""

    status: str
    turn: str | None
    error: dict[str, Any] | None
    queue: list[_Queued]
    live: LiveBlocks | None
    messages: list[ChatMessage]
    has_more: bool


class Reply:
    """Read it with `async for part in reply`, or `await reply` for all of it. Nothing is sent until then.

    `text` is the text read so far, and `messages` are those that the turn has added so far.
    `outcome` is known at the end: "complete"; "interrupted" by the user; "edited", or regenerated, meanwhile;
    "requires_action" if client tools have to be run; "withdrawn" if the message was removed from the queue; "deleted"
    with its chat. A reply that failed raises `ModelFailed`, after its last part.
    """

    def __init__(self, service: ChatApi, chat_id: str, begin: Callable[[], Awaitable[Accepted]] | Accepted) -> None:
        self.text = ""
        self.turn_id: str | None = None
        self.outcome: ReplyOutcome | None = None
        self.messages: list[ChatMessage] = []
        self._service = service
        self._chat_id = chat_id
        self._begin = begin
        self._sending: asyncio.Future[Accepted] | None = None
        self._has_begun = isinstance(begin, Accepted)
        self._reading: AsyncGeneratorType[Part, None] | None = None
        self._unread: deque[Part] = deque()
        self._message_id: str | None = None
        self._queued_id: str | None = None
        self._has_entered = False
        self._attempts: set[str] = set()
        self._cursor: str | None = None
        self._current_turn: str | None = None
        self._error: dict[str, Any] | None = None

    # --- results ---

    @property
    def message(self) -> ChatMessage | None:
        """The last message that the model wrote in this turn, as far as it was read; None if there is none yet."""
        return next((message for message in reversed(self.messages) if message.role == "assistant"), None)

    @property
    def usage(self) -> Usage | None:
        """The tokens of all steps of the turn; None if the provider reported none."""
        known = [message.usage for message in self.messages if message.usage is not None]
        return sum(known[1:], start=known[0]) if known else None

    @property
    def cost(self) -> float | None:
        """What the turn cost, in US dollars; None if no price is known."""
        known = [message.cost_usd for message in self.messages if message.cost_usd is not None]
        return sum(known) if known else None

    @property
    def cursor(self) -> str | None:
        """The position in the feed: `chat.events(after=…)` continues from here. None until the reply has begun."""
        return self._cursor

    # --- reading ---

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Part]:
        if self._reading is not None and self._reading.ag_running:
            raise RuntimeError("This reply is being read already. Use chat.events(after=…) for a second reader.")
        self._reading = cast("AsyncGeneratorType[Part, None]", self._service.readings.add(self._read))
        return self._reading

    def __await__(self) -> Generator[Any, None, Self]:
        return self._read_all().__await__()

    def __del__(self) -> None:
        if not getattr(self, "_has_begun", True):
            text = "This reply was never read, so its message was not sent: await it, or use chat.post()."
            warnings.warn(text, NeverSent, stacklevel=2, source=self)

    async def begin(self) -> Accepted:
        """Send the message, once. When this returns it is on disk; the reply may be read then, or never."""
        self._has_begun = True
        if isinstance(self._begin, Accepted):
            return self._begin
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._begin())
            self._sending.add_done_callback(_mark_seen)
        try:
            # A cancelled caller must not cancel the send: it may have succeeded, and would then be repeated.
            self._begin = await asyncio.shield(self._sending)
        except Exception:
            self._sending = None  # it was refused, or failed: another call sends again
            raise
        return self._begin

    async def wait(self) -> None:
        """Wait until the turn has ended, however it ended."""
        try:
            await self
        except ModelFailed:
            return

    async def aclose(self) -> None:
        """Stop reading. The reply continues, and reading can be resumed later."""
        if self._reading is not None:
            await self._reading.aclose()

    async def _read_all(self) -> Self:
        async for _ in self:
            pass
        return self

    async def _read(self, reading: Reading) -> AsyncGenerator[Part, None]:
        reading.begin()
        if self._cursor is None:
            begun = await self.begin()
            self._current_turn = begun.turn
            self._message_id = begun.message
            self._queued_id = begun.queued
            self._has_entered = begun.queued is None
            self.turn_id = begun.turn if self._has_entered else None
            self._cursor = begun.cursor
        while self._unread:  # an earlier loop was left in the middle of an event
            yield self._pop_unread()
        while not self._has_ended():
            try:
                async with self._service.open_events(self._chat_id, after=self._cursor) as events:
                    async for event in events:
                        if event.kind == "resync":  # too slow: reconnect at the cursor
                            break
                        self._cursor = event.cursor or self._cursor
                        self._note(event)
                        if event.kind == "part" and event.data["attempt"] in self._attempts:
                            self._unread.extend(event.parts)
                            while self._unread:
                                yield self._pop_unread()
                        elif event.kind == "snapshot" and (unread := self._note_snapshot(event)):
                            yield TextDelta("stored", unread)
                        if self._has_ended():
                            break
            except NotFound:
                self.outcome = "deleted"
        if self.outcome == "failed":
            raise self._describe_failure()

    def _pop_unread(self) -> Part:
        part = self._unread.popleft()
        self.text += part.text
        return part

    def _has_ended(self) -> bool:
        return self.outcome is not None

    def _note(self, event: FeedEvent) -> None:
        data = event.data if event.kind != "part" else {}
        if event.kind == "message":
            self._note_message(event)
        elif event.kind == "status":
            self._note_status(data)
        elif event.kind == "queue":
            self._note_queue(data)
        elif event.kind == "attempt" and self._is_own_turn():
            self._attempts.add(data["attempt"])
        elif event.kind == "error":
            self._error = data
        elif event.kind == "end" and data["reason"] == "deleted":
            self.outcome = "deleted"
        elif event.kind == "end" and data["reason"] == "shutdown":
            raise Shutdown("The program is shutting down. The reply resumes when it is started again.")

    def _is_own_turn(self) -> bool:
        return self.turn_id is not None and self._current_turn == self.turn_id

    def _note_message(self, event: FeedEvent) -> None:
        if self._queued_id is not None and event.data.get("queued") == self._queued_id:
            self._has_entered = True
            self._message_id = event.data["message"]["id"]
        elif self._is_own_turn() and event.data["message"]["role"] != "user":
            self.messages.append(msgspec.json.decode(event.json, type=_MessageEvent).message)

    def _note_status(self, data: dict[str, Any]) -> None:
        ended = data.get("ended")
        if ended is not None and self.turn_id is not None and ended["turn"] == self.turn_id:
            self.outcome = ended["outcome"]
        elif data["status"] == "requires_action" and data["turn"] == self.turn_id is not None:
            self.outcome = "requires_action"
        self._current_turn = data["turn"]
        if self._has_entered and self.turn_id is None:
            self.turn_id = data["turn"]

    def _note_queue(self, data: dict[str, Any]) -> None:
        if self._queued_id is None or self.turn_id is not None:
            return
        if self._has_entered:
            self.turn_id = self._current_turn
        elif self._queued_id not in data["ids"]:
            self.outcome = "withdrawn"

    def _note_snapshot(self, event: FeedEvent) -> str:
        """Continue from what is stored; returns the text that was not read yet."""
        chat = msgspec.json.decode(event.json, type=_Snapshot)
        self._current_turn = chat.turn
        if self._has_entered and self.turn_id is None:
            self.turn_id = chat.turn
        live = chat.live if self._is_own_turn() else None
        if live is not None:
            self._attempts.add(live.attempt)
        if not self._is_own_turn():
            self.outcome = self._find_outcome(chat)
        elif chat.status == "requires_action":
            self.outcome = "requires_action"
        following = self._list_following(chat)
        if following is None:  # not known where it begins: it is what was read
            return ""
        before, self.messages = self.text, list(takewhile(_is_reply, following))
        self.text = "".join(message.text for message in self.messages if message.role == "assistant")
        self.text += "" if live is None else text_of(live.blocks)
        return self.text.removeprefix(before) if self.text.startswith(before) else ""

    def _list_following(self, chat: _Snapshot) -> list[ChatMessage] | None:
        """The messages after the one that is answered; None if that is not among the last of the branch."""
        places = [place for place, message in enumerate(chat.messages, start=1) if message.id == self._message_id]
        return chat.messages[places[0] :] if places else None

    def _find_outcome(self, chat: _Snapshot) -> ReplyOutcome | None:
        """How the turn ended, as far as it can be seen; None if the message is still in the queue."""
        following = self._list_following(chat)
        if not self._has_entered:
            return None if any(queued.id == self._queued_id for queued in chat.queue) else "withdrawn"
        if following is None and self._message_id is not None and not chat.has_more:
            return "edited"
        if chat.error is not None and all(map(_is_reply, following or ())):
            self._error = chat.error
            return "failed"
        replies = [message for message in takewhile(_is_reply, following or ()) if message.role == "assistant"]
        return "interrupted" if replies and replies[-1].partial else "complete"

    def _describe_failure(self) -> ModelFailed:
        error = self._error or {}
        return ModelFailed(
            error.get("message") or "The reply failed.",
            kind=cast("FailureKind", error.get("kind", "unknown")),
            retryable=False,
            status=error.get("status"),
            provider=error.get("provider"),
            detail=error.get("detail"),
        )


def _is_reply(message: ChatMessage) -> bool:
    return message.role != "user"


def _mark_seen(sending: asyncio.Future[Accepted]) -> None:
    """asyncio complains about an exception that nobody received; here the caller may have been cancelled."""
    if not sending.cancelled():
        sending.exception()
