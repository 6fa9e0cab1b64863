"""One reader of a chat: an async iterator of events with its own pace.

It begins with a snapshot, or at its cursor, and reads the store at its own pace until it covers the position
of its chat's channel. From then on it is *live*: the channel pushes every further step to it, and it drops steps that
it has already seen (R9: subscribe first, then read, then drop).

Only a live reader buffers steps, and only up to a number of bytes. A slower one drops its buffer and reads the store
again, at its own pace: it costs no memory and delays no other reader. One that falls far behind gets `resync` and
starts over with a snapshot, which is shorter than everything it missed. One that accepts none of its waiting events for
a long time is ended. The cursor of `resync` and of `end` is the reader's true position, so it can also resume there and
miss nothing.

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
        self._show = show
        self._stays = stays
        self.position: Position | None = None
        self._channel = channel
        self._buffer_bytes = buffer_bytes
        self._resync_bytes = resync_bytes
        self._metrics = metrics
        self._steps: deque[TimelineStep] = deque()
        self._held_bytes = 0
        self._missed_bytes: int | None = None  # since it was last live, if it was
        self._is_live = False
        self._is_lagging = False
        self._is_receiving = False
        self._is_failing = False
        self._has_received = False
        self._idle_since_s: float | None = None
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
        self._is_receiving = True
        try:
            while (event := self._next_event()) is None:
                await self._move_on()
            return event
        finally:
            self._is_receiving = False
            self._has_received = True

    def get_nowait(self) -> FeedEvent | None:
        """The next event if there is one without waiting, for a server that sends several at once."""
        self._has_received = True
        return None if self._is_over else self._next_event()

    @property
    def held_bytes(self) -> int:
        """The buffered bytes that the reader has not received yet."""
        return self._held_bytes

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
        self._buffer([self._share(snapshot, position)])

    def start_at(self, position: Position) -> None:
        """Begin after this position, live at once if the channel is no further."""
        self.position = position
        self._is_live = self._has_caught_up(position)

    def push(self, step: TimelineStep) -> None:
        size_bytes = step.size_bytes
        if not step.is_row:
            self._note_event(step.event)
        if self._is_live and self._steps and self._held_bytes + size_bytes > self._buffer_bytes:
            self._missed_bytes = self._held_bytes
            self._drop_all()
        if self._is_live:
            self._steps.append(step)
            self._held_bytes += size_bytes
        elif self._missed_bytes is not None:
            self._count_missed(self._missed_bytes + size_bytes)
        self._woken.set()

    def set_vacancy(self, turn_id: str, *, is_vacant: bool) -> None:
        """Send a computed status, if it is new to the reader, once everything before it was received."""
        status = {"status": PENDING if is_vacant else "running", "turn": turn_id}
        self._unsent_status = None if is_vacant is self._shows_pending else status
        if self._unsent_status is not None:
            self._woken.set()

    def end(self, reason: EndReason) -> None:
        """End the reader, before anything that it has not received yet."""
        self._drop_all()
        self._end_reason = self._end_reason or reason
        self._woken.set()

    def check_pace(self, now_s: float, *, idle_limit_s: float) -> None:
        """End a reader that has events to receive and has received none for this long; wake one that failed to load."""
        if self._is_failing:
            self._woken.set()
        has_something = bool(self._steps) or not self._is_live
        if self._is_receiving or self._has_received or not has_something:
            self._has_received = False
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s >= idle_limit_s:
            self.end("slow")

    def _note_event(self, event: FeedEvent | None) -> None:
        """A stored status replaces every computed one."""
        if event is not None and event.kind == "status":
            self._shows_pending, self._unsent_status = False, None
        elif event is not None and event.kind == "attempt" and self._shows_pending:
            self._shows_pending = None

    def _count_missed(self, missed_bytes: int) -> None:
        self._missed_bytes = missed_bytes
        if missed_bytes > self._resync_bytes:
            self._missed_bytes = None
            self._drop_all()
            self._is_lagging = True
            self._metrics.reader_resynced()

    def _drop_all(self) -> None:
        self._steps.clear()
        self._held_bytes = 0
        self._is_live = False

    # --- receiving ---

    def _next_event(self) -> FeedEvent | None:
        """The next event that needs no waiting."""
        if self._end_reason is not None:
            self._is_over = True
            return self._make_event("end", {"reason": self._end_reason})
        if self._list is not None and (event := self._list.get_nowait()) is not None:
            return event
        if self._is_lagging:
            self._is_lagging = False
            self._drop_all()
            resync = self._make_event("resync", {"reason": "slow"})
            self.position = None
            return resync
        while self._steps:
            step = self._steps.popleft()
            self._held_bytes -= step.size_bytes
            position = follow(self.position, step)
            if position is self.position:
                continue
            self.position = position
            event = step.event if self._show is None or step.event is None else self._show(step.event)
            if event is not None:
                is_shared = position == step.after
                return event if is_shared else msgspec.structs.replace(event, cursor=self._write_cursor())
        if self._unsent_status is not None and self._is_live:
            status, self._unsent_status = self._unsent_status, None
            self._shows_pending = status["status"] == PENDING
            return self._make_event("status", status)
        return None

    def _make_event(self, kind: EventKind, data: dict[str, Any]) -> FeedEvent:
        return FeedEvent(kind, self._write_cursor(), EventBody(encode(data)))

    def _write_cursor(self) -> str | None:
        return None if self.position is None else self._channel.loader.cursors.write(self.position)

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
        if self._is_live:
            await self._woken.wait()
        elif self.position is None:
            self._buffer(await self._load_snapshot())
        elif self._has_caught_up(self.position):
            self._is_live = True
            self._missed_bytes = None
        else:
            steps = await self._load_after(self.position)
            self._buffer(steps)
            if not steps:  # the channel knows of a commit that this read was too early for
                await self._woken.wait()

    def _has_caught_up(self, position: Position) -> bool:
        edge = self._channel.position
        return edge is not None and covers(position, edge)

    async def _load_after(self, position: Position) -> list[TimelineStep]:
        try:
            return (await self._channel.loader.load_after(position))[0]
        except NotFound:
            self.end("deleted")
            return []

    async def _load_snapshot(self) -> list[TimelineStep]:
        try:
            snapshot, position = await self._channel.loader.load_snapshot()
        except NotFound:
            self.end("deleted")
            return []
        return [self._share(snapshot, position)]

    def _buffer(self, steps: list[TimelineStep]) -> None:
        self._steps.extend(steps)
        self._held_bytes += sum(step.size_bytes for step in steps)

    def _share(self, snapshot: ChatSnapshot, position: Position) -> TimelineStep:
        self._shows_pending = snapshot.status == PENDING
        event = FeedEvent("snapshot", snapshot.cursor, EventBody(encode(snapshot)))
        return self._channel.share(TimelineStep(position, event))
