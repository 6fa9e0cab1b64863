"""The live list of a user's chats, for every tab that shows it: the newest chats, then each change, once.

A hint (notify.py) names chats that may have changed. One query reads the lines of all hinted chats of all users, and
each line that differs from the one last sent goes to its owner's readers. After each round there is a pause, in which
hints are merged: a reply that streams on another replica hints many times a second and changes no line. So the cost
depends on what changes and not on the number of readers, and no reader polls. Because a hint may be lost, and a chat
becomes `pending` without a hint, each watched list is read again every half minute, with one query per user.

A reader keeps the latest line of each changed chat and no history. A slow reader with too many changed chats drops them
all and gets the whole list again (`chats`), so memory is bounded and no other reader waits.

Must stay true (tests/feed/test_chat_list.py): what a reader was sent, applied in order, is what the store has; another
user's chats are never sent; hundreds of readers of one user cost one query per round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Self

from indelible.api.events import EventBody, FeedEvent
from indelible.api.shapes import ChatSummary
from indelible.clock import Clock
from indelible.content import encode
from indelible.feed.channel import Spawn
from indelible.notify import Changed, Notifier
from indelible.store.store import Store

LISTED: Final = 50
PAUSE_S: Final = 0.1
POLL_INTERVAL_S: Final = 30.0
MAX_CHANGES: Final = 200
MAX_KNOWN: Final = 2_000
_log: Final = logging.getLogger(__name__)


class _Known(NamedTuple):
    """What was last sent of a chat."""

    version: int
    json: bytes


_REMOVED: Final = _Known(2**63 - 1, b"")


class ListReader:
    """One reader of a user's list: an async iterator of events. Made by `ChatLists.open`; for one task at a time."""

    def __init__(self, request_list: Callable[[ListReader], None]) -> None:
        self.on_change: Callable[[], None] | None = None
        """Called when there is something to read, instead of waking the reader itself."""
        self._request_list = request_list
        self._list: FeedEvent | None = None
        self._changes: dict[str, tuple[int, FeedEvent]] = {}
        self._awaits_list = True
        self.is_requesting = False
        """Whether a list was requested that nobody has begun to read yet."""
        self._is_ending = False
        self._is_over = False
        self._woken = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FeedEvent:
        while (event := self.get_nowait()) is None:
            if self._is_over:
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()
        return event

    def get_nowait(self) -> FeedEvent | None:
        """The next event, if there is one without waiting."""
        if self._is_ending and self.on_change is None and not self._is_over:
            self._is_over = True
            return _make_event("end", {"reason": "shutdown"})
        if self._is_over or self._awaits_list:
            return None
        if self._list is not None:
            event, self._list = self._list, None
            return event
        if self._changes:
            return self._changes.pop(next(iter(self._changes)))[1]
        return None

    # --- called by ChatLists ---

    def set_list(self, event: FeedEvent, versions: dict[str, int]) -> None:
        """Begin with this list, or begin again. Lines that are older than it are dropped."""
        self._list = event
        self._awaits_list = False
        self._changes = {id_: kept for id_, kept in self._changes.items() if kept[0] >= versions.get(id_, 0)}
        self._wake()

    def push(self, chat_id: str, version: int, event: FeedEvent) -> None:
        self._changes.pop(chat_id, None)  # the latest goes to the end
        self._changes[chat_id] = (version, event)
        if len(self._changes) > MAX_CHANGES:
            self._changes.clear()
            self._list = None
            self._awaits_list = True
            if not self.is_requesting:
                self.is_requesting = True
                self._request_list(self)
        self._wake()

    def end(self) -> None:
        self._is_ending = True
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        if self.on_change is not None:
            self.on_change()


class _Watched:
    """A user with readers. `known` is what they have been sent, of the chats that changed last."""

    def __init__(self) -> None:
        self.readers: set[ListReader] = set()
        self.known: dict[str, _Known] = {}

    def note(self, chat_id: str, known: _Known) -> None:
        self.known.pop(chat_id, None)
        self.known[chat_id] = known
        if len(self.known) > MAX_KNOWN:
            del self.known[next(iter(self.known))]


class ChatLists:
    """See the module header. `run` has to be running; `spawn` starts work in a task of the feed."""

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        *,
        clock: Clock,
        spawn: Spawn,
        pause_s: float = PAUSE_S,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self._store = store
        self._notifier = notifier
        self._clock = clock
        self._spawn = spawn
        self._pause_s = pause_s
        self._poll_interval_s = poll_interval_s
        self._watched: dict[str, _Watched] = {}
        self._has_readers = asyncio.Event()
        self._is_closed = False

    @asynccontextmanager
    async def open(self, user_id: str) -> AsyncIterator[ListReader]:
        """Read a user's list: first the newest chats, then changes."""
        watched = self._watched.setdefault(user_id, _Watched())
        reader = ListReader(lambda slow: self._reload_soon(user_id, slow))
        watched.readers.add(reader)
        self._has_readers.set()
        try:
            await self._send_list(user_id, reader)
            if self._is_closed:
                reader.end()
            yield reader
        finally:
            watched.readers.discard(reader)
            if not watched.readers and self._watched.get(user_id) is watched:
                del self._watched[user_id]
                if not self._watched:
                    self._has_readers.clear()

    async def run(self) -> None:
        """Send changes, until cancelled."""
        with self._notifier.subscribe() as hints:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._poll_forever())
                while True:
                    changed = await hints.wait()
                    if self._watched:
                        await self._act_on(changed)
                        await self._clock.sleep(self._pause_s)

    def close(self) -> None:
        """End every reader: this process is shutting down."""
        self._is_closed = True
        for watched in self._watched.values():
            for reader in watched.readers:
                reader.end()

    async def _poll_forever(self) -> None:
        while True:
            await self._has_readers.wait()
            await self._clock.sleep(self._poll_interval_s)
            await self._refresh(list(self._watched))

    async def _act_on(self, changed: Changed) -> None:
        if changed.everything:
            await self._refresh(list(self._watched))
            return
        chat_ids = list(changed.chat_ids | changed.for_readers)
        try:
            found = await self._store.summaries(chat_ids)
        except Exception as error:
            _log.warning("reading changed chats failed; lists are delayed: %r", error)
            return
        for owner_id, summary in found.values():
            if (watched := self._watched.get(owner_id)) is not None:
                if watched.known.get(summary.id) is _REMOVED:  # created again: a name of a client's leads to one id
                    del watched.known[summary.id]
                self._send_change(watched, summary)
        for chat_id in set(chat_ids) - set(found):
            self._send_removal(chat_id)

    async def _refresh(self, user_ids: list[str]) -> None:
        """Read the lists of these users again, and send what has changed."""
        for user_id in user_ids:
            try:
                listed = await self._store.list_chats(user_id, limit=LISTED)
            except Exception as error:
                _log.warning("reading lists of chats failed; they are delayed: %r", error)
                return
            watched = self._watched.get(user_id)
            if watched is not None:
                for summary in reversed(listed):
                    self._send_change(watched, summary)

    def _reload_soon(self, user_id: str, reader: ListReader) -> None:
        self._spawn(lambda: self._reload(user_id, reader))

    async def _reload(self, user_id: str, reader: ListReader) -> None:
        reader.is_requesting = False  # what is dropped from now on needs another list
        try:
            await self._send_list(user_id, reader)
        except Exception as error:
            _log.warning("reading a list of chats failed; its reader reconnects: %r", error)
            reader.end()

    async def _send_list(self, user_id: str, reader: ListReader) -> None:
        listed = await self._store.list_chats(user_id, limit=LISTED)
        event = _make_event("chats", {"items": listed, "version": round(self._clock.now().timestamp() * 1000)})
        versions = {summary.id: summary.version for summary in listed}
        watched = self._watched.get(user_id)
        if watched is not None:
            for summary in reversed(listed):  # what is new in it is news for the other readers
                self._send_change(watched, summary, listed_for=reader)
        reader.set_list(event, versions)

    def _send_change(self, watched: _Watched, summary: ChatSummary, *, listed_for: ListReader | None = None) -> None:
        json = encode(summary)
        known = watched.known.get(summary.id)
        if known is not None and (known.version > summary.version or known.json == json):
            return
        watched.note(summary.id, _Known(summary.version, json))
        event = FeedEvent("chat_changed", None, EventBody(json))
        for reader in watched.readers - {listed_for}:
            reader.push(summary.id, summary.version, event)

    def _send_removal(self, chat_id: str) -> None:
        """The removal stays known as the chat's last version: a list that was read before it must not bring it back."""
        for watched in self._watched.values():
            if watched.known.get(chat_id, _REMOVED) is not _REMOVED:
                watched.note(chat_id, _REMOVED)
                event = _make_event("chat_removed", {"id": chat_id})
                for reader in watched.readers:
                    reader.push(chat_id, _REMOVED.version, event)


def _make_event(kind: Any, data: dict[str, Any]) -> FeedEvent:
    return FeedEvent(kind, None, EventBody(encode(data)))
