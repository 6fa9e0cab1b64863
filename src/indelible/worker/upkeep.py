"""Background work beside replies: the search index, archiving chats, and removing files that nobody can see any more.

The lists are part of the worker's clean-up, once a minute. The index is brought up to date in short transactions
(store/search_index.py); a search first does the same for its user, so the sweep only limits how much is left for a
search to do. With `auto_archive_days`, the worker looks once an hour for chats in which nothing was said for that long,
and archives them with the same command as a user would, unless they are pinned, unread or busy. Ephemeral chats that
nobody deleted are archived ten minutes after their turn (store/queries/listing.py). Several workers may do all of it at
once: a chat is indexed and archived once.

A deleted chat, a deleted file and a failed upload only mark rows; `FileSweeper` removes the bytes, chunk by chunk,
beside everything else, at once when there are some, and now and then in any case. Every process with an open app runs
one. Several of them do each other no harm (SKIP LOCKED).

Must stay true: a failure is logged and repeated by the next round (tests/worker/test_list_upkeep.py); after a chat was
deleted, its files are gone from the byte store without anybody waiting for it (tests/files/test_file_uses.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from indelible.clock import Clock
from indelible.errors import Refused, StoreFailed
from indelible.files.store import FileStore
from indelible.logs import get_logger
from indelible.machine.commands import Archive
from indelible.worker.dependencies import WorkerDependencies

ARCHIVE_INTERVAL_S: Final = 3600.0
EPHEMERAL_KEPT: Final = timedelta(minutes=10)
"""How long an ephemeral chat is there after its turn, at least: its client may still read it."""
_CHATS_AT_A_TIME: Final = 200


Survive = Callable[..., Awaitable[Any]]
"""Run something periodic, named by `what`; a failure is logged."""
FindUnused = Callable[..., Awaitable[list[str]]]
"""The ids of at most `limit` chats to archive, in which nothing was said since `updated_before`."""


class ListUpkeep:
    """One per worker. `survive` runs something and logs its failure."""

    def __init__(self, deps: WorkerDependencies, survive: Survive) -> None:
        self._deps = deps
        self._survive = survive
        self._archived_s: float | None = None

    async def run(self) -> None:
        """One round."""
        index = partial(self._deps.store.index, limit=_CHATS_AT_A_TIME)
        while await self._survive(index, what="indexing messages") == _CHATS_AT_A_TIME:
            continue
        ephemeral = partial(self._archive_all, self._deps.store.find_ephemeral, EPHEMERAL_KEPT)
        await self._survive(ephemeral, what="archiving ephemeral chats")
        now_s = self._deps.clock.monotonic()
        is_due = self._archived_s is None or now_s - self._archived_s >= ARCHIVE_INTERVAL_S
        if self._deps.settings.auto_archive_days and is_due:
            self._archived_s = now_s
            kept = timedelta(days=self._deps.settings.auto_archive_days)
            await self._survive(partial(self._archive_all, self._deps.store.stale, kept), what="archiving old chats")

    async def _archive_all(self, find: FindUnused, kept: timedelta) -> None:
        before = self._deps.clock.now() - kept
        tried: set[str] = set()
        while found := set(await find(updated_before=before, limit=_CHATS_AT_A_TIME)) - tried:
            tried |= found
            for chat_id in found:
                with suppress(Refused):  # somebody has just used or deleted it
                    await self._deps.store.execute(chat_id, Archive())


_log: Final = get_logger(__name__)
_INTERVAL_S: Final = 600.0
_AFTER_FAILURE_S: Final = 30.0


class FileSweeper:
    """Run it as a task. Setting `woken` asks for a sweep now."""

    def __init__(self, files: FileStore, *, clock: Clock, woken: asyncio.Event) -> None:
        self._files = files
        self._clock = clock
        self._woken = woken

    async def run(self) -> None:
        while True:
            self._woken.clear()
            wait_s = _INTERVAL_S
            try:
                while await self._files.sweep():
                    pass
            except StoreFailed as error:
                _log.warning("removing deleted files failed and will be retried: %s", error)
                wait_s = _AFTER_FAILURE_S
            except Exception:
                _log.exception("removing deleted files failed and will be retried")
                wait_s = _AFTER_FAILURE_S
            timer = self._clock.call_later(wait_s, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                timer.cancel()
