"""Wrong tokens: how many an address may send, and what that costs it and nobody else.

A secret of ours has 256 random bits and cannot be guessed, so it is looked up first, by one indexed read, and a valid
one is never refused because of what others at its address sent. Only wrong ones are counted: an address may send
`GUESSES` of them at once and one more every two seconds; beyond that the answer to a wrong one is 429. Nor do they
occupy the database: an address without a guess left looks up few at a time, and every lookup in progress counts.

The token in the settings is somebody's choice, and may be short enough to guess. If it is, being right must not help
who has used up their guesses: then it waits for a turn, one every two seconds, as every wrong one at this address does.
Few may wait.

An IPv6 host has a whole /64 to itself, so that counts as one address.

Must stay true (tests/server/test_guesses.py): a valid token gets in whatever else its address sends; nobody can try
a short one more often than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from indelible.clock import Clock
from indelible.errors import RateLimited
from indelible.server.connections import name_network
from indelible.server.limits import TokenBuckets

T = TypeVar("T")
GUESSES: Final = 30
"""So many wrong credentials at once from one address, and one more every two seconds."""
_PER_S: Final = 0.5
_MAX_LOOKUPS: Final = 4
MAX_IN_LINE: Final = 8


class Guesses:
    """One per process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = TokenBuckets(_PER_S, GUESSES, monotonic=clock.monotonic)
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)
        self._lines: dict[str, _Line] = {}

    async def find(
        self,
        address: str,
        load: Callable[[], Awaitable[T | None]],
        *,
        compare: Callable[[], Awaitable[T | None]] | None = None,
    ) -> T | None:
        """What `compare` finds, which compares with a secret that can be guessed, or else `load`.

        If both find nothing, that was a guess. Raises `RateLimited` if the address had none left.
        """
        network = name_network(address)
        if self._left.acquire(network):
            async with self._lookups:
                found = await load()
            if found is None and compare is not None and await self._wait_for_turn(network):
                found = await compare()
            if found is None:
                raise RateLimited("Too many failed logins from this address. Wait a minute.", retry_after_s=60)
            return found
        is_wrong = False
        try:
            found = None if compare is None else await compare()
            if found is None:
                is_wrong = compare is not None  # that was a guess, even if the database fails now
                found = await load()
                is_wrong = found is None
        finally:
            if not is_wrong:  # valid, or the database failed
                self._left.give_back(network)
        return found

    async def _wait_for_turn(self, network: str) -> bool:
        """Wait until this address may guess again. False: too many wait already."""
        line = self._lines.setdefault(network, _Line())
        if line.length >= MAX_IN_LINE:
            return False
        line.length += 1
        try:
            async with line.first:
                while wait_s := self._left.acquire(network):
                    await self._clock.sleep(wait_s)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[network]
        return True


class _Line:
    """Who waits at one address, in order."""

    def __init__(self) -> None:
        self.length = 0
        self.first = asyncio.Lock()
