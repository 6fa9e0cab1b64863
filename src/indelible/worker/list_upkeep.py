"""What a worker does for lists in the background: the search index, and archiving chats that nobody uses.

The index is brought up to date every few seconds, a little at a time (store/lists/indexing.py). With `auto_archive_days`,
chats in which nothing was said for so long are archived, unless they are pinned, unread or busy; that is looked for
once an hour, and archiving is the same command as a user's. Several workers may do both at once: a chat is indexed
and archived once.

Must stay true (tests/worker/test_list_upkeep.py): a failure is logged and repeated by the next round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

from indelible.errors import Refused
from indelible.machine.commands import Archive
from indelible.worker.dependencies import WorkerDependencies

INDEX_INTERVAL_S: Final = 5.0
ARCHIVE_INTERVAL_S: Final = 3600.0
_CHATS_AT_A_TIME: Final = 200


class Survive(Protocol):
    def __call__(self, do: Callable[[], Awaitable[Any]], *, what: str) -> Awaitable[Any]:
        """Run something periodic; a failure is logged."""


async def keep_index(deps: WorkerDependencies, survive: Survive) -> None:
    """Keep the search index up to date, until cancelled."""
    index = partial(deps.store.lists.index, limit=_CHATS_AT_A_TIME)
    while True:
        while await survive(index, what="indexing messages") == _CHATS_AT_A_TIME:
            await deps.clock.sleep(0)
        await deps.clock.sleep(INDEX_INTERVAL_S)


async def archive_forever(deps: WorkerDependencies, survive: Survive) -> None:
    """Archive chats that nobody has used for `auto_archive_days`, until cancelled."""
    if not deps.settings.auto_archive_days:
        return
    while True:
        await survive(partial(_archive_stale, deps), what="archiving old chats")
        await deps.clock.sleep(ARCHIVE_INTERVAL_S)


async def _archive_stale(deps: WorkerDependencies) -> None:
    before = deps.clock.now() - timedelta(days=deps.settings.auto_archive_days)
    tried: set[str] = set()
    while stale := set(await deps.store.lists.stale(updated_before=before, limit=_CHATS_AT_A_TIME)) - tried:
        tried |= stale
        for chat_id in stale:
            with suppress(Refused):  # somebody has just used or deleted it
                await deps.store.execute(chat_id, Archive())
