"""Whether the database can be written, for `/readyz`.

Reading is not enough: on a full disk, or with a file that has become read-only, every read succeeds and every message
is refused. So a readiness check also commits a write that changes nothing. Anybody may ask, without a token, so it
writes at most once a second, and only one check runs at a time.

Must stay true (tests/server/test_files_and_forks.py): a server that cannot accept messages is not ready.
"""

from __future__ import annotations

import asyncio
from typing import Final

from indelible.app.app import App

KEPT_S: Final = 1.0


class Readiness:
    """One per process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._one_at_a_time = asyncio.Lock()
        self._found_ready_s: float | None = None

    async def check(self) -> None:
        """Raises `StoreFailed` if the database does not respond, or cannot be written."""
        async with self._one_at_a_time:
            await self._app.store.owner("nobody")  # any query will do
            now_s = self._app.clock.monotonic()
            if self._found_ready_s is None or now_s - self._found_ready_s >= KEPT_S:
                self._found_ready_s = None
                await self._app.store.check_writable(self._app.owner_id)
                self._found_ready_s = now_s
