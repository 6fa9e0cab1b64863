"""The feed of a process: its readers, and when they are woken.

The owner of a feed must keep `run` running in a task. A hint (notify.py) that names exactly one chat with readers here
makes that chat's channel load its new events at once. For several hinted chats, and once a second for all chats with
readers, one small query reads the position of each chat, and the channels that are behind load. So hints only reduce
the delay (R10), and a thousand readers of idle chats cost one query a second.

A chat has a channel while it has readers. A reader joins in this order (R9): the feed opens the channel, then loads the
chat's position, or a snapshot, which has a position, and then lets the reader read. If no reader of this chat can have
reached a cursor's position, the reader gets a snapshot.

`close` sends every reader `end`: the process is shutting down, and its readers reconnect elsewhere with their cursors.
Before that, `leave` ends all but those that *stay*: they stream a reply to a client that has no cursor, such as an
OpenAI SDK, and read on while the process drains.

Must stay true (tests/feed/test_feed.py): even if every hint is lost, readers are at most one poll late and miss
nothing; a database that fails for a while delays readers and ends none. tests/feed/test_hints.py counts the queries
that a hint costs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from indelible.api.events import ChatSnapshot, FeedEvent, Position
from indelible.clock import Clock
from indelible.errors import ChatNotFound
from indelible.feed.channel import Channel, Loader
from indelible.feed.chat_list import ChatLists, ListReader
from indelible.feed.reader import BUFFER_BYTES, RESYNC_BYTES, Reader, Show, Stays
from indelible.metrics import NO_METRICS, Metrics
from indelible.notify import Changed, Notifier
from indelible.store.journal.append import JournalRow
from indelible.store.outcome import Outcome
from indelible.store.queries.changes import Changes
from indelible.store.store import Store

POLL_INTERVAL_S: Final = 1.0
IDLE_LIMIT_S: Final = 30.0
SNAPSHOT_MESSAGES: Final = 50
_REMEMBERED: Final = 1_000
"""How many chats that changed without readers are remembered: a reader follows its command within milliseconds."""
_UNKNOWN: Final = sys.maxsize
_POLLS_PER_VACANCY: Final = 4
"""How many polls pass between checks for live workers: a dead one is noticed only after the lease timeout anyway."""

_log: Final = logging.getLogger(__name__)


class _Unread(NamedTuple):
    """How far a chat without readers has come, and what comes after the command that its reader follows, if known.

    A chat that is not remembered may have come any way.
    """

    seq: int
    changes: Changes | None = None


_NOTHING_UNREAD: Final = _Unread(0)


class Feed:
    """See the module header."""

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        *,
        clock: Clock,
        metrics: Metrics = NO_METRICS,
        poll_interval_s: float = POLL_INTERVAL_S,
        buffer_bytes: int = BUFFER_BYTES,
        resync_bytes: int = RESYNC_BYTES,
        idle_limit_s: float = IDLE_LIMIT_S,
        snapshot_messages: int = SNAPSHOT_MESSAGES,
    ) -> None:
        self._store = store
        self.notifier = notifier
        self._clock = clock
        self._metrics = metrics
        self._poll_interval_s = poll_interval_s
        self._buffer_bytes = buffer_bytes
        self._resync_bytes = resync_bytes
        self._idle_limit_s = idle_limit_s
        self._snapshot_messages = snapshot_messages
        self._channels: dict[str, Channel] = {}
        self._readers: set[Reader] = set()
        self._unread: dict[str, _Unread] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._is_leaving = self._is_closed = False
        self.on_watched: Callable[[str], None] = _ignore
        """Called with each chat that gets its first reader here."""

        self._lists = ChatLists(store, notifier, clock=clock, spawn=self._spawn)

    @asynccontextmanager
    async def open_tab(
        self,
        user_id: str,
        chat_id: str | None = None,
        after: str | None = None,
        *,
        is_owner: bool = True,
        show: Show | None = None,
    ) -> AsyncIterator[Reader | ListReader]:
        """Read a user's list of chats and, with `chat_id`, that chat woven into it (`open`): all that a tab shows.

        `is_owner=False`: the chat is another user's, and the caller has checked that this one may read it.
        """
        async with self._lists.open(user_id) as chats:
            if chat_id is None:
                yield chats
                return
            async with self.open(chat_id, after, user_id=user_id if is_owner else None, show=show) as reader:
                reader.attach(chats)
                yield reader

    @asynccontextmanager
    async def open(
        self,
        chat_id: str,
        after: str | None = None,
        *,
        user_id: str | None = None,
        show: Show | None = None,
        stays: Stays | None = None,
    ) -> AsyncIterator[Reader]:
        """Read a chat: a snapshot and the events after it, or only the events after a cursor (`start`: all events).

        `show` returns what this reader may see of an event; None hides the event. Such a reader is a guest, and begins
        with a snapshot whatever its cursor: what lies between may be edited away by now. While `stays` returns true,
        the reader survives `leave`. Raises `NotFound` if the chat does not exist, or is not this user's.
        """
        async with self._join(chat_id, show, stays) as (channel, reader):
            if after is None or show is not None:
                await reader.start(user_id)
            else:
                await self._resume(channel, reader, after, user_id)
            yield reader

    @asynccontextmanager
    async def follow(self, chat_id: str, after: str, *, stays: Stays | None = None) -> AsyncIterator[Reader]:
        """Read the events that follow a command. `after` is the cursor in its result.

        That cursor needs no check, so joining costs no query, if the command was just executed in this process.
        """
        unread = self._unread.pop(chat_id, None)
        async with self._join(chat_id, stays=stays) as (channel, reader):
            position = channel.loader.cursors.read(after)
            assert position is not None
            is_kept_up = channel.position is not None  # with what happens, for another reader
            channel.start(position)
            reader.start_at(position)
            if unread is None and not is_kept_up:  # a request that was repeated, or what came since was told to others
                channel.refresh()
            elif unread is not None and unread.seq > position.seq:  # something has happened since the command
                if unread.changes is None:
                    channel.refresh()
                else:
                    channel.receive(unread.changes)
            _pass_vacancy(channel, reader)
            yield reader

    @asynccontextmanager
    async def _join(
        self, chat_id: str, show: Show | None = None, stays: Stays | None = None
    ) -> AsyncIterator[tuple[Channel, Reader]]:
        channel = self._channels.get(chat_id) or self._open_channel(chat_id)
        reader = Reader(
            channel,
            buffer_bytes=self._buffer_bytes,
            resync_bytes=self._resync_bytes,
            metrics=self._metrics,
            show=show,
            stays=stays,
        )
        channel.listeners.add(reader)
        self._readers.add(reader)
        self._metrics.reader_joined()
        try:
            if self._is_closed or (self._is_leaving and not reader.stays):
                reader.end("shutdown")
            yield channel, reader
        finally:
            channel.listeners.discard(reader)
            self._readers.discard(reader)
            if not channel.listeners:
                self._close_channel(chat_id, channel)
            self._metrics.reader_disconnected()

    async def snapshot(self, chat_id: str) -> ChatSnapshot:
        """The chat as it is now, with the cursor to read on from."""
        return (await self._make_loader(chat_id).load_snapshot())[0]

    async def replay(self, chat_id: str, after: Position) -> AsyncIterator[FeedEvent]:
        """What the chat holds after this position, up to now. Raises `NotFound` if the chat does not exist."""
        loader = self._make_loader(chat_id)
        is_all = False
        while not is_all:
            steps, is_all = await loader.load_after(after)
            for step in steps:
                after = step.after
                if step.event is not None:
                    yield step.event

    async def run(self) -> None:
        """Wake readers, until cancelled."""
        with self.notifier.subscribe(only_from_others=True) as hints:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    tasks.create_task(self._poll_forever())
                    tasks.create_task(self._lists.run())
                    while True:
                        await self._act_on(await hints.wait())
                finally:
                    self._tasks = None

    def publish(self, rows: Sequence[JournalRow]) -> None:
        """Show rows that were just committed, by this process (the journal's `on_committed`) or by another (fanout.py).

        It does not wait, and it drops rows of a chat without readers: later readers find them in the store.
        """
        for row in rows:
            channel = self._channels.get(row.chat_id)
            if channel is None:
                self._note_unread(row.chat_id, _UNKNOWN)
            else:
                channel.receive(row)

    def publish_outcome(self, outcome: Outcome) -> None:
        """Show what a command has just committed in this process, for the store's `on_committed`.

        It does not wait. Where it does not follow what the readers of the chat have, they read the store.
        """
        if not outcome.wakes_readers:
            return
        channel = self._channels.get(outcome.chat_id)
        additions = outcome.additions
        if additions is None or additions.last_seq < outcome.seq:
            if channel is None:
                self._note_unread(outcome.chat_id, _UNKNOWN)
            else:
                channel.refresh()
        elif channel is None:
            known = self._unread.get(outcome.chat_id, _NOTHING_UNREAD)
            more = additions.to_changes(after=outcome.seq) if known.seq <= outcome.seq < additions.last_seq else None
            self._note_unread(outcome.chat_id, max(known.seq, additions.last_seq), more)
        else:
            channel.receive(additions.to_changes())

    def _note_unread(self, chat_id: str, seq: int, changes: Changes | None = None) -> None:
        """What a reader has to know who is about to follow a command of this chat, which has no readers."""
        self._unread.pop(chat_id, None)
        self._unread[chat_id] = _Unread(seq, changes)
        if len(self._unread) > _REMEMBERED:
            del self._unread[next(iter(self._unread))]

    @property
    def watched(self) -> Collection[str]:
        """The chats that have readers here."""
        return self._channels.keys()

    def leave(self) -> None:
        """End every reader, present and future, but those that stay: this process is about to shut down."""
        self._is_leaving = True
        self._lists.close()
        for reader in self._readers:
            if not reader.stays:
                reader.end("shutdown")

    @property
    def is_left(self) -> bool:
        """Whether no reader stays any more."""
        return not any(reader.stays for reader in self._readers)

    def close(self) -> None:
        """End every reader, present and future: this process is shutting down."""
        self._is_closed = True
        self._lists.close()
        for reader in self._readers:
            reader.end("shutdown")

    # --- joining ---

    def _open_channel(self, chat_id: str) -> Channel:
        channel = self._channels[chat_id] = Channel(self._make_loader(chat_id), spawn=self._spawn)
        self._unread.pop(chat_id, None)  # what follows is told to the channel
        self.on_watched(chat_id)
        return channel

    def _close_channel(self, chat_id: str, channel: Channel) -> None:
        if self._channels.get(chat_id) is channel:
            del self._channels[chat_id]

    def _make_loader(self, chat_id: str) -> Loader:
        return Loader(chat_id, self._store, metrics=self._metrics, snapshot_messages=self._snapshot_messages)

    async def _resume(self, channel: Channel, reader: Reader, after: str, user_id: str | None) -> None:
        position = channel.loader.cursors.read(after)
        found = await self._store.resume(channel.loader.chat_id, position)
        if found is None or (user_id is not None and found.owner_id != user_id):
            raise ChatNotFound
        channel.start(found.position)
        reader.resume_at(position if found.is_reached else None)
        _pass_vacancy(channel, reader)

    # --- waking ---

    async def _act_on(self, changed: Changed) -> None:
        if changed.everything:
            await self._poll(list(self._channels))
            return
        named = changed.chat_ids | changed.for_readers
        chat_ids = [chat_id for chat_id in named if chat_id in self._channels]
        for chat_id in named.difference(chat_ids):
            self._note_unread(chat_id, _UNKNOWN)
        if len(chat_ids) == 1:
            self._channels[chat_ids[0]].refresh()
        else:
            await self._poll(chat_ids)

    async def _poll_forever(self) -> None:
        for number in itertools.count(1):
            await self._poll(list(self._channels))
            if not number % _POLLS_PER_VACANCY:
                await self._notify_vacancies(list(self._channels))
            await self._clock.sleep(self._poll_interval_s)
            now_s = self._clock.monotonic()
            for reader in self._readers:
                reader.check_pace(now_s, idle_limit_s=self._idle_limit_s)

    async def _poll(self, chat_ids: Sequence[str]) -> None:
        """Load the positions of these chats, and let the channels that are behind catch up."""
        if not chat_ids:
            return
        try:
            positions = await self._store.positions(chat_ids)
        except Exception as error:
            _log.warning("polling for new events failed; readers are delayed: %r", error)
            return
        for chat_id in chat_ids:
            channel = self._channels.get(chat_id)
            position = positions.get(chat_id)
            if channel is not None and position is not None:
                channel.catch_up(position)
            elif channel is not None and channel.position is not None:
                channel.end("deleted")

    async def _notify_vacancies(self, chat_ids: Sequence[str]) -> None:
        """Notify the readers of running chats if no worker is alive (S90). No event does: nothing is committed then."""
        if not chat_ids:
            return
        asked = {chat_id: _read_seq(self._channels[chat_id]) for chat_id in chat_ids}
        try:
            running = await self._store.vacant(chat_ids)
        except Exception as error:
            _log.warning("asking for live workers failed: %r", error)
            return
        for chat_id, (turn_id, is_vacant) in running.items():
            channel = self._channels.get(chat_id)
            if channel is not None and _read_seq(channel) == asked[chat_id]:  # an event may have ended the turn
                channel.notify_vacancy(turn_id, is_vacant=is_vacant)

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        if self._tasks is None:
            return False
        self._tasks.create_task(work())
        return True


def _ignore(_chat_id: str) -> None:
    """No other process sends rows."""


def _read_seq(channel: Channel) -> int | None:
    return None if channel.position is None else channel.position.seq


def _pass_vacancy(channel: Channel, reader: Reader) -> None:
    """A reader that joins with a cursor learns what the others were notified of; a snapshot already shows it."""
    if channel.vacant_turn is not None:
        reader.set_vacancy(channel.vacant_turn, is_vacant=True)
