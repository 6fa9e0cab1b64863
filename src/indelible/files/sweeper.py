"""Removing files that nobody can see any more: at once when there are some, and now and then in any case.

A deleted chat, a deleted file and a failed upload only mark rows; this task removes the bytes, chunk by chunk, beside
everything else. Every process with an open app runs one. Several of them do each other no harm (SKIP LOCKED).

Must stay true (tests/files/test_file_uses.py): after a chat was deleted, its files are gone from the byte store without
anybody waiting for it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from indelible.clock import Clock
from indelible.errors import StoreFailed
from indelible.files.protocol import FileStore
from indelible.logs import get_logger

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
