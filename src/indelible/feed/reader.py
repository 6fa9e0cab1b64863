"""One reader of a chat: an async iterator of events with its own pace.

It begins with a snapshot, or at its cursor, and reads the store at its own pace until it covers the position
of its chat's channel. From then on it is *live*: the channel pushes every further step to it, and it drops steps that
it has already seen (R9: subscribe first, then read, then drop).

Only a live reader buffers steps, and only up to a number of bytes. A slower one drops its buffer and reads the store
again, at its own pace: it costs no memory and delays no other reader. One that falls far behind gets `resync` and
starts over with a snapshot, which is shorter than everything it missed. One that accepts none of its waiting events for
a long time is ended. The cursor of `resync` and of `end` is the reader's true position, so it can also resume there and
miss nothing. So a reader has a *cursor*, where it stands and what waits for it there, and a *pace*, whether it still
accepts what waits.

A database that does not respond delays a reader that has begun; it does not end the reader.

Waiting for the next event may be cancelled at any time (`asyncio.timeout`) without losing one.

Must stay true (tests/feed/test_reader.py, tests/feed/test_resume.py): no event is missed or sent twice, whenever a
reader joins; a slow reader holds a bounded number of bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self

import msgspec

from indelible.api.events import ChatSnapshot, EndReason, EventBody, EventKind, FeedEvent, Position
from indelible.content import encode
from indelible.errors import NotFound, StoreFailed
from indelible.feed.channel import Channel
from indelible.feed.chat_list import ListReader
from indelible.feed.events import TimelineStep, covers, follow
from indelible.metrics import NO_METRICS, Metrics
from indelible.store.queries.liveness import PENDING

BUFFER_BYTES: Final = 1024 * 1024
RESYNC_BYTES: Final = 8 * 1024 * 1024
Show = Callable[[FeedEvent], FeedEvent | None]
"""Reduces an event to what a guest may see (service/guests.py); None hides the event."""
Stays = Callable[[], bool]
"""Whether a client that cannot resume in another process still reads along."""
_log: Final = logging.getLogger(__name__)


class _Cursor:
    """Where a reader stands, and the steps that wait for it there: of the store, or of the channel while it is live."""

    __slots__ = (
        "held_bytes",
        "is_lagging",
        "is_live",
        "limit_bytes",
        "missed_bytes",
        "position",
        "resync_bytes",
        "steps",
    )

    def __init__(self, limit_bytes: int, resync_bytes: int) -> None:
        self.position: Position | None = None
        self.limit_bytes = limit_bytes
        self.resync_bytes = resync_bytes
        self.steps: deque[TimelineStep] = deque()
        self.held_bytes = 0
        self.missed_bytes: int | None = None  # since it was last live, if it was
        self.is_live = False
        self.is_lagging = False

    def push(self, step: TimelineStep) -> bool:
        """Take a step of the channel, if it is live and there is room; returns whether it now begins to lag."""
        size_bytes = step.size_bytes
        if self.is_live:
            held_bytes = self.held_bytes + size_bytes
            if held_bytes <= self.limit_bytes or not self.steps:
                self.steps.append(step)
                self.held_bytes = held_bytes
                return False
            self.missed_bytes = self.held_bytes
            self.drop()
        if self.missed_bytes is not None:
            self.missed_bytes += size_bytes
            if self.missed_bytes > self.resync_bytes:
                self.missed_bytes = None
                self.drop()
                self.is_lagging = True
                return True
        return False

    def buffer(self, steps: list[TimelineStep]) -> None:
        """Take what was loaded."""
        self.steps.extend(steps)
        self.held_bytes += sum(step.size_bytes for step in steps)

    def drop(self) -> None:
        self.steps.clear()
        self.held_bytes = 0
        self.is_live = False

    def pop_new(self) -> TimelineStep | None:
        """The next step that is new, and the position after it."""
        steps, before = self.steps, self.position
        while steps:
            step = steps.popleft()
            self.held_bytes = self.held_bytes - step.size_bytes if steps else 0
            position = follow(before, step)
            if position is not before:
                self.position = position
                return step
        return None

    def go_live(self) -> None:
        self.is_live = True
        self.missed_bytes = None


class _Pace:
    """Whether a reader accepts what waits for it."""

    __slots__ = ("has_received", "idle_since_s", "is_receiving")

    def __init__(self) -> None:
        self.is_receiving = False
        self.has_received = False
        self.idle_since_s: float | None = None

    def is_stalled(self, now_s: float, *, idle_limit_s: float, has_something: bool) -> bool:
        """Whether events have waited for this long and it has received none."""
        if self.is_receiving or self.has_received or not has_something:
            self.has_received = False
            self.idle_since_s = None
        elif self.idle_since_s is None:
            self.idle_since_s = now_s
        else:
            return now_s - self.idle_since_s >= idle_limit_s
        return False


class Reader:
    """See the module header. Made by `Feed.open`. For one task at a time."""

    def __init__(
        self,
        channel: Channel,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        resync_bytes: int = RESYNC_BYTES,
        metrics: Metrics = NO_METRICS,
        show: Show | None = None,
        stays: Stays | None = None,
    ) -> None:
        self._channel = channel
        self._metrics = metrics
        self._show = show
        self._stays = stays
        self._cursor = _Cursor(buffer_bytes, resync_bytes)
        self._pace = _Pace()
        self._is_failing = False
        self._shows_pending: bool | None = False  # None: unknown, because some clients see an attempt as an end of it
        self._unsent_status: dict[str, Any] | None = None
        self._list: ListReader | None = None
        self._end_reason: EndReason | None = None
        self._is_over = False
        self._woken = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FeedEvent:
        if self._is_over:
            raise StopAsyncIteration
        pace = self._pace
        pace.is_receiving = True
        try:
            while (event := self._next_event()) is None:
                await self._move_on()
            return event
        finally:
            pace.is_receiving = False
            pace.has_received = True

    def get_nowait(self) -> FeedEvent | None:
        """The next event if there is one without waiting, for a server that sends several at once."""
        self._pace.has_received = True
        return None if self._is_over else self._next_event()

    @property
    def position(self) -> Position | None:
        """Where it stands; None before its snapshot."""
        return self._cursor.position

    @property
    def held_bytes(self) -> int:
        """The buffered bytes that the reader has not received yet."""
        return self._cursor.held_bytes

    @property
    def stays(self) -> bool:
        """Whether it reads on while the process drains."""
        return self._stays is not None and self._stays()

    def attach(self, chats: ListReader) -> None:
        """Weave the events of a list of chats into this feed, as soon as they come. They have no position."""
        self._list = chats
        chats.on_change = self._woken.set
        self._woken.set()

    # --- called by the channel and the feed ---

    async def start(self, user_id: str | None = None) -> None:
        """Begin with a snapshot; the channel starts there, if it has no position yet. Raises `NotFound`."""
        snapshot, position = await self._channel.loader.load_snapshot(user_id)
        self._channel.start(position)
        self._cursor.buffer([self._share(snapshot, position)])

    def start_at(self, position: Position) -> None:
        """Begin after this position, live at once if the channel is no further."""
        self._cursor.position = position
        self._cursor.is_live = self._has_caught_up(position)

    def resume_at(self, position: Position | None) -> None:
        """Begin after this position, with what the store has; None: with a snapshot."""
        self._cursor.position = position

    def push(self, step: TimelineStep) -> None:
        if not step.is_row:
            self._note_event(step.event)
        if self._cursor.push(step):
            self._metrics.reader_resynced()
        self._woken.set()

    def set_vacancy(self, turn_id: str, *, is_vacant: bool) -> None:
        """Send a computed status, if it is new to the reader, once everything before it was received."""
        status = {"status": PENDING if is_vacant else "running", "turn": turn_id}
        self._unsent_status = None if is_vacant is self._shows_pending else status
        if self._unsent_status is not None:
            self._woken.set()

    def end(self, reason: EndReason) -> None:
        """End the reader, before anything that it has not received yet."""
        self._cursor.drop()
        self._end_reason = self._end_reason or reason
        self._woken.set()

    def check_pace(self, now_s: float, *, idle_limit_s: float) -> None:
        """End a reader that has events to receive and has received none for this long; wake one that failed to load."""
        if self._is_failing:
            self._woken.set()
        has_something = bool(self._cursor.steps) or not self._cursor.is_live
        if self._pace.is_stalled(now_s, idle_limit_s=idle_limit_s, has_something=has_something):
            self.end("slow")

    def _note_event(self, event: FeedEvent | None) -> None:
        """A stored status replaces every computed one."""
        if event is not None and event.kind == "status":
            self._shows_pending, self._unsent_status = False, None
        elif event is not None and event.kind == "attempt" and self._shows_pending:
            self._shows_pending = None

    # --- receiving ---

    def _next_event(self) -> FeedEvent | None:
        """The next event that needs no waiting."""
        cursor = self._cursor
        if self._end_reason is not None:
            self._is_over = True
            return self._make_event("end", {"reason": self._end_reason})
        if self._list is not None and (event := self._list.get_nowait()) is not None:
            return event
        if cursor.is_lagging:
            cursor.is_lagging = False
            cursor.drop()
            resync = self._make_event("resync", {"reason": "slow"})
            cursor.position = None
            return resync
        while (step := cursor.pop_new()) is not None:
            event = step.event if self._show is None or step.event is None else self._show(step.event)
            if event is not None:
                is_shared = cursor.position is step.after or cursor.position == step.after
                return event if is_shared else msgspec.structs.replace(event, cursor=self._write_cursor())
        if self._unsent_status is not None and cursor.is_live:
            status, self._unsent_status = self._unsent_status, None
            self._shows_pending = status["status"] == PENDING
            return self._make_event("status", status)
        return None

    def _make_event(self, kind: EventKind, data: dict[str, Any]) -> FeedEvent:
        return FeedEvent(kind, self._write_cursor(), EventBody(encode(data)))

    def _write_cursor(self) -> str | None:
        position = self._cursor.position
        return None if position is None else self._channel.loader.cursors.write(position)

    async def _move_on(self) -> None:
        """The buffer is empty: wait, go live, or load. A failed load is tried again at the feed's next poll."""
        self._woken.clear()
        try:
            await self._wait_or_load()
        except StoreFailed as error:
            _log.info("a reader of %s waits for the database: %s", self._channel.loader.chat_id, error)
            self._is_failing = True
            try:
                await self._woken.wait()
            finally:
                self._is_failing = False

    async def _wait_or_load(self) -> None:
        cursor = self._cursor
        if cursor.is_live:
            await self._woken.wait()
        elif cursor.position is not None and self._has_caught_up(cursor.position):
            cursor.go_live()
        else:
            try:
                steps = await self._load(cursor.position)
            except NotFound:
                self.end("deleted")
                return
            cursor.buffer(steps)
            if not steps:  # the channel knows of a commit that this read was too early for
                await self._woken.wait()

    def _has_caught_up(self, position: Position) -> bool:
        edge = self._channel.position
        return edge is not None and covers(position, edge)

    async def _load(self, position: Position | None) -> list[TimelineStep]:
        """What comes after this position, or a snapshot if there is none."""
        if position is None:
            return [self._share(*await self._channel.loader.load_snapshot())]
        return (await self._channel.loader.load_after(position))[0]

    def _share(self, snapshot: ChatSnapshot, position: Position) -> TimelineStep:
        self._shows_pending = snapshot.status == PENDING
        event = FeedEvent("snapshot", snapshot.cursor, EventBody(encode(snapshot)))
        return self._channel.share(TimelineStep(position, event))
