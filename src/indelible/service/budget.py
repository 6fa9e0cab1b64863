"""How many tokens, and how many dollars, a user may spend in a day (UTC).

Only commands that start a reply are refused: reading, stopping and deleting cost nothing. The day's use is read before
each of them, so a user exceeds the limit by at most what is running. Without a limit nothing is read.

Must stay true (tests/service/test_budget.py): the limit is per user, ends at midnight UTC, and stops no running reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, time, timedelta
from typing import Final

from indelible.clock import Clock
from indelible.errors import RateLimited
from indelible.machine import commands
from indelible.machine.commands import Command
from indelible.store.queries.spent import Spent

NANOUSD: Final = 1_000_000_000
_STARTS_A_REPLY: Final = (
    commands.Send,
    commands.SendInterrupt,
    commands.SendSteer,
    commands.Edit,
    commands.Regenerate,
    commands.Retry,
    commands.Continue,
    commands.Compact,
    commands.PromoteQueued,
    commands.ToolResults,
)


class Budget:
    """`load_spent(user_id, since)` is what the user has spent. 0 means no limit."""

    def __init__(
        self,
        load_spent: Callable[[str, datetime], Awaitable[Spent]],
        *,
        clock: Clock,
        max_tokens: int = 0,
        max_usd: float = 0,
    ) -> None:
        self._load_spent = load_spent
        self._clock = clock
        self._max_tokens = max_tokens
        self._max_usd = max_usd

    async def check(self, user_id: str, command: Command) -> None:
        """Raises `RateLimited` if this command would start a reply beyond the limit."""
        starts = isinstance(command, _STARTS_A_REPLY) or (isinstance(command, commands.Create) and command.with_message)
        if not starts or not (self._max_tokens or self._max_usd):
            return
        now = self._clock.now()
        midnight = datetime.combine(now.date(), time(), tzinfo=now.tzinfo)
        spent = await self._load_spent(user_id, midnight)
        wait_s = (midnight + timedelta(days=1) - now).total_seconds()
        if self._max_tokens and spent.tokens >= self._max_tokens:
            told = f"Today's limit of {self._max_tokens:,} tokens is used up. It is renewed at midnight UTC."
            raise RateLimited(told, retry_after_s=wait_s)
        if self._max_usd and spent.cost_nanousd >= self._max_usd * NANOUSD:
            told = f"Today's limit of ${self._max_usd:,.2f} is used up. It is renewed at midnight UTC."
            raise RateLimited(told, retry_after_s=wait_s)
