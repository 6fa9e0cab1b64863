"""One chat with readers in this process: a channel passes new events on to all its readers.

A channel has a position, which advances in two ways. If this process commits what comes next, a row or the events of a
command, or receives a row from the process that committed it (fanout.py), the channel passes it on immediately
(`Feed.publish`, `Feed.publish_outcome`), without a query. The channel loads everything else from the store, once for
all readers: after a hint that names this chat alone it loads at once (`refresh`), and after a poll of many chats it
loads if the chat is ahead of it (`catch_up`). A superfluous call finds nothing new; the next poll makes up for a
missing one.

What arrives while the channel loads is kept until it knows whether it follows its position. It keeps only a little,
because it loads what it has dropped.

`Loader` reads one chat as the store has it. A snapshot is the state of the chat and its position at one moment
(`Store.snapshot`, R9). The steps after a position come from the two logs, in the order of rule 6.2
(`Store.changes`); events.py builds them.

Must stay true: readers get every step once and in order, wherever the rows came from, and while rows connect there is
no query (tests/feed/test_channel.py); a hint costs no query for the position (tests/feed/test_hints.py); a snapshot and
the steps after its position are the whole chat, everything exactly once, and both raise `NotFound` for a deleted chat
(tests/feed/test_resume.py).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from msgspec.structs import replace

from indelible.api.events import ChatSnapshot, EndReason, EventBody, Position
from indelible.api.shapes import LiveBlocks
from indelible.errors import ChatNotFound, NotFound
from indelible.feed.events import Cursors, TimelineStep, build_timeline, follows, is_past, make_row_step
from indelible.metrics import Metrics
from indelible.store.journal.append import JournalRow
from indelible.store.queries.changes import Changes
from indelible.store.queries.chat_view import ChatView
from indelible.store.queries.history import Page
from indelible.store.store import Store

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], bool]
"""Start work in a task of the feed; False if the feed is not running."""

_MAX_EARLY: Final = 64
_log: Final = logging.getLogger(__name__)


class Listener(Protocol):
    def push(self, step: TimelineStep) -> None:
        """Accept the next step. It does not wait, however slow the listener is."""

    def set_vacancy(self, turn_id: str, *, is_vacant: bool) -> None:
        """Whether no worker is alive to answer this turn. It is computed and stored nowhere, and has no position."""

    def end(self, reason: EndReason) -> None:
        """Nothing follows."""


class Channel:
    """See the module header. `position` is None until `start`."""

    def __init__(self, loader: Loader, *, spawn: Spawn) -> None:
        self.loader = loader
        self.listeners: set[Listener] = set()
        self.position: Position | None = None
        self.vacant_turn: str | None = None
        self._spawn = spawn
        self._is_behind = False
        self._is_loading = False
        self._early: list[JournalRow | Changes] = []
        self._snapshot: weakref.ref[EventBody] | None = None

    def share(self, snapshot: TimelineStep) -> TimelineStep:
        """The snapshot, sharing the JSON of an equal snapshot that another reader still holds.

        The JSON of a large chat takes megabytes, and a reader holds it until its client has read it.
        """
        assert snapshot.event is not None
        other = None if self._snapshot is None else self._snapshot()
        if other is None or other.json != snapshot.event.json:
            self._snapshot = weakref.ref(snapshot.event.body)
            return snapshot
        return replace(snapshot, event=replace(snapshot.event, body=other))

    def start(self, position: Position) -> None:
        """Pass on what comes after this position. Only the first call counts."""
        if self.position is None:
            self.position = position
            if self._is_behind:
                self._load_soon()

    def refresh(self) -> None:
        """The chat has probably changed: load what is new, without asking how far the chat has come."""
        self._load_soon()

    def catch_up(self, known: Position) -> None:
        """The chat has reached at least this position: load what is new, if the channel is behind it."""
        here = self.position
        if here is None or known.seq > here.seq or (known.attempt == here.attempt and known.n > here.n):
            self._load_soon()

    def receive(self, new: JournalRow | Changes) -> None:
        """Pass on a row of this chat, or the changes of a command, that were just committed, if they connect."""
        if self.position is None or len(self._early) == _MAX_EARLY:
            self._is_behind = True
        elif self._is_loading:
            self._early.append(new)
        else:
            self._connect(new, self.position)

    def notify_vacancy(self, turn_id: str, *, is_vacant: bool) -> None:
        """Notify the readers when no worker is alive for their running chat, and when one is alive again."""
        self.vacant_turn = turn_id if is_vacant else None
        for listener in self.listeners:
            listener.set_vacancy(turn_id, is_vacant=is_vacant)

    def end(self, reason: EndReason) -> None:
        for listener in self.listeners:
            listener.end(reason)

    def _connect(self, new: JournalRow | Changes, here: Position) -> None:
        if isinstance(new, JournalRow):
            self._connect_row(new, here)
        elif follows(here, new):
            for step in build_timeline(self.loader.cursors, here, new):
                self._pass_on(step)
        elif not is_past(here, new):
            self._load_soon()

    def _connect_row(self, row: JournalRow, here: Position) -> None:
        if row.attempt_id != here.attempt or row.n > here.n + 1:
            self._load_soon()
        elif row.n == here.n + 1:
            self._pass_on(make_row_step(self.loader.cursors, here, row.attempt_id, row.n, row.parts))

    def _pass_on(self, step: TimelineStep) -> None:
        self.position = step.after
        if step.event is not None and step.event.kind == "status":
            self.vacant_turn = None
        for listener in self.listeners:
            listener.push(step)

    def _load_soon(self) -> None:
        self._is_behind = True
        if self.position is not None and not self._is_loading:
            self._is_loading = self._spawn(self._load)

    async def _load(self) -> None:
        """Load until nothing is new. If that fails, the next hint or poll leads here again."""
        try:
            while self._is_behind and self.listeners:
                self._is_behind = False
                await self._load_once()
        except NotFound:
            self.end("deleted")
        except Exception as error:
            _log.warning("loading new events of %s failed; its readers are delayed: %r", self.loader.chat_id, error)
        finally:
            self._is_loading = False
            self._early.clear()

    async def _load_once(self) -> None:
        assert self.position is not None
        steps, is_all = await self.loader.load_after(self.position)
        for step in steps:
            self._pass_on(step)
        early, self._early = self._early, []
        if not is_all:
            self._is_behind = True
            return
        for new in early:
            self._connect(new, self.position)


class Loader:
    """Loads one chat for its channel and its readers, and has its cursors."""

    def __init__(self, chat_id: str, store: Store, *, metrics: Metrics, snapshot_messages: int) -> None:
        self.chat_id = chat_id
        self.cursors = Cursors(chat_id)
        self._store = store
        self._metrics = metrics
        self._snapshot_messages = snapshot_messages

    async def load_after(self, position: Position) -> tuple[list[TimelineStep], bool]:
        """The steps after this position, or the first of them, and whether that is all."""
        changes = await self._store.changes(self.chat_id, position)
        if changes.missing:
            _log.error(
                "the logs of %s lack %d entries after %s; please report this", self.chat_id, changes.missing, position
            )
            self._metrics.gaps_found(changes.missing)
        return build_timeline(self.cursors, position, changes), changes.complete

    async def load_snapshot(self, user_id: str | None = None) -> tuple[ChatSnapshot, Position]:
        """The chat as it is now, and the position of a reader that has seen it. It has to be this user's, if given."""
        view, page = await self._store.snapshot(self.chat_id, limit=self._snapshot_messages)
        if user_id is not None and view.owner_id != user_id:
            raise ChatNotFound
        position = Position(view.seq) if view.live is None else Position(view.seq, view.live.attempt, view.live.n)
        return _make_snapshot(view, page, self.cursors.write(position)), position


def _make_snapshot(view: ChatView, page: Page, cursor: str) -> ChatSnapshot:
    return ChatSnapshot(
        id=view.id,
        status=view.status,
        cursor=cursor,
        title=view.title,
        model=view.model,
        debug=view.debug,
        archived=view.archived,
        usage=view.totals.usage,
        cost_usd=view.totals.cost_usd,
        turn=view.turn,
        error=view.error,
        retry=view.retry,
        queue=view.queue,
        live=None if view.live is None else LiveBlocks(attempt=view.live.attempt, blocks=view.live.blocks),
        action=view.action,
        messages=page.items,
        has_more=page.has_more,
    )
