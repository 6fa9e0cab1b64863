"""One chat as the store has it, in steps.

A snapshot is the state of the chat and its position at one moment (`ChatStore.snapshot`, R9). The steps after a
position come from the two logs, in the order of rule 6.2 (`ChatStore.changes`); timeline.py builds them.

Must stay true (tests/feed/test_resume.py): a snapshot and the steps after its position are the whole chat, everything
exactly once. Both raise `NotFound` for a deleted chat.
"""

from __future__ import annotations

import logging
from typing import Final

from indelible.api.events import ChatSnapshot, LiveReply, Position
from indelible.errors import ChatNotFound
from indelible.feed.cursor import Cursors
from indelible.feed.timeline import TimelineStep, build_timeline
from indelible.metrics import Metrics
from indelible.store.protocol import ChatStore
from indelible.store.queries.chat_view import ChatView
from indelible.store.queries.history import Page

_log: Final = logging.getLogger(__name__)


class Loader:
    """Loads one chat for its channel and its readers, and has its cursors."""

    def __init__(self, chat_id: str, store: ChatStore, *, metrics: Metrics, snapshot_messages: int) -> None:
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
        live=None if view.live is None else LiveReply(attempt=view.live.attempt, blocks=view.live.blocks),
        action=view.action,
        messages=page.items,
        has_more=page.has_more,
    )
