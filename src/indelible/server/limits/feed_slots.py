"""How many feeds a user may have open at a time, in this process.

A feed holds a connection, two tasks and a reader for as long as its client likes. A slot is taken when the response
starts and given back when it ends, however it ends, so a feed whose client has hung up counts no longer.

Must stay true (tests/server/test_feed_limits.py): a refused feed leaves nothing behind; a closed one makes room.
"""

from __future__ import annotations

from collections import Counter

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from indelible.errors import TooMany


class FeedSlots:
    """One per process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def check(self, user_id: str) -> None:
        """Raises `TooMany` if no slot is left. A request whose stream needs one asks before it changes anything."""
        if self._open.get(user_id, 0) >= self._limit:
            raise TooMany(f"Too many feeds are open (limit {self._limit:,}). Close one first.")

    def acquire(self, user_id: str) -> None:
        self.check(user_id)
        self._open[user_id] += 1

    def give_back(self, user_id: str) -> None:
        self._open[user_id] -= 1
        if not self._open[user_id]:
            del self._open[user_id]


class WithSlot(Response):
    """A response that takes one of its user's slots for as long as it runs."""

    def __init__(self, response: Response, slots: FeedSlots, user_id: str) -> None:
        super().__init__()
        self._response = response
        self._slots = slots
        self._user_id = user_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._slots.acquire(self._user_id)
        try:
            await self._response(scope, receive, send)
        finally:
            self._slots.give_back(self._user_id)
