"""How many tokens, and how many dollars, a user may spend in a day (UTC).

Only commands that start a reply are refused: reading, stopping and deleting cost nothing. The sums of the day are read
before each of them, a few rows (store/lists/usage.py), so a user exceeds the limit by at most what is running. They
hold every attempt, and stay when its chat is deleted. Without a limit nothing is read. Dollars limit only what has a
known price; the start of a server and `indelible doctor` name the models of the settings that have none.

Must stay true (tests/service/test_budget.py): the limit is per user, ends at midnight UTC, and stops no running reply;
deleting a chat gives nothing back.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Protocol

from indelible.api.shapes import UsageDay
from indelible.clock import Clock
from indelible.errors import RateLimited
from indelible.machine import commands
from indelible.machine.commands import Command

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


class LoadUsage(Protocol):
    """`ListStore.usage`."""

    async def __call__(self, user_id: str, /, *, since: date, until: date) -> list[UsageDay]: ...


class Budget:
    """0 means no limit."""

    def __init__(self, load_usage: LoadUsage, *, clock: Clock, max_tokens: int = 0, max_usd: float = 0) -> None:
        self._load_usage = load_usage
        self._clock = clock
        self._max_tokens = max_tokens
        self._max_usd = max_usd

    async def check(self, user_id: str, command: Command) -> None:
        """Raises `RateLimited` if this command would start a reply beyond the limit."""
        starts = isinstance(command, _STARTS_A_REPLY) or (isinstance(command, commands.Create) and command.with_message)
        if not starts or not (self._max_tokens or self._max_usd):
            return
        now = self._clock.now().astimezone(UTC)
        today = now.date()
        used = await self._load_usage(user_id, since=today, until=today)
        wait_s = (datetime.combine(today + timedelta(days=1), time(), tzinfo=UTC) - now).total_seconds()
        if self._max_tokens and sum(line.input_tokens + line.output_tokens for line in used) >= self._max_tokens:
            detail = f"Today's limit of {self._max_tokens:,} tokens is used up. It is renewed at midnight UTC."
            raise RateLimited(detail, retry_after_s=wait_s)
        if self._max_usd and sum(line.cost or 0 for line in used) >= self._max_usd:
            detail = f"Today's limit of ${self._max_usd:,.2f} is used up. It is renewed at midnight UTC."
            raise RateLimited(detail, retry_after_s=wait_s)
