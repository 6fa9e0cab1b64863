"""Token buckets: so many per second on average, with bursts. In this process; replicas count for themselves.

A bucket that is full again is the same as none, so buckets are forgotten when there are many: memory is bounded by the
number of those who were busy lately.

Must stay true (tests/server/test_rate_limits.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_BUCKETS: Final = 10_000


class TokenBuckets:
    """`rate` per second and name, at most `burst` at once."""

    def __init__(self, rate: float, burst: float, *, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._monotonic = monotonic
        self._buckets: dict[str, tuple[float, float]] = {}  # what was left, and when

    def acquire(self, name: str) -> float:
        """Take one. 0 if there was one, otherwise the seconds until there is."""
        now_s = self._monotonic()
        left = self._count(name, now_s)
        if left < 1:
            return (1 - left) / self._rate
        if len(self._buckets) >= MAX_BUCKETS:
            self._forget_full(now_s)
        self._buckets[name] = (left - 1, now_s)
        return 0.0

    def give_back(self, name: str) -> None:
        """What was taken was not used."""
        if name in self._buckets:
            left, at_s = self._buckets[name]
            self._buckets[name] = (left + 1, at_s)

    def _count(self, name: str, now_s: float) -> float:
        left, at_s = self._buckets.get(name, (self._burst, now_s))
        return min(self._burst, left + (now_s - at_s) * self._rate)

    def _forget_full(self, now_s: float) -> None:
        kept = {name: found for name, found in self._buckets.items() if self._count(name, now_s) < self._burst}
        self._buckets = kept if len(kept) < MAX_BUCKETS else {}
