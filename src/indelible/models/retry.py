"""Whether to retry, and how long to wait first (rule 2.1).

Pure: randomness, elapsed time and the failure are arguments, and the result is a number of seconds. So a policy that
waits a quarter of an hour is tested in no time, and the loop decides when to read a clock.

The wait doubles from one second to a minute with full jitter, anything between zero and the whole, so that many chats
that failed together do not retry together. Once it has reached the minute, it is between two thirds and the whole, so
that a provider that is away for ten minutes is asked until then, whatever the jitter. The provider's own request is a
floor under that, up to five minutes. A broken chain and a context overflow are cured by another request, not by
waiting; if that failed too, the wait is the same as for any other failure.

There are two limits, and the first one reached ends the retries: 25 attempts, and a quarter of an hour, after which
no further attempt is started. A wait that would end after that is not begun. Neither limit cuts a running stream.

Must stay true (tests/models/test_retry.py): the bounds above, for all random values and all failures.

What may be retried at all is decided in models/failures/classify.py; compacting after an overflow is the loop's job.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from indelible.errors import FailureKind, ModelFailed

_RECOVERED_AT_ONCE: Final = frozenset({"chain_broken", "context_overflow"})
_CURES: Final = 3
_MAX_DOUBLINGS: Final = 64


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of retrying. The defaults are those of rule 2.1 and 10.14."""

    base_s: float = 1.0
    max_delay_s: float = 60.0
    retry_after_cap_s: float = 300.0
    max_attempts: int = 25
    budget_s: float = 900.0

    def delay_s(self, failed_attempts: int, failure: ModelFailed, chance: float) -> float:
        """How long to wait after this many failed attempts (from 1); `chance` is in [0, 1)."""
        if failure.kind in _RECOVERED_AT_ONCE and failed_attempts <= _CURES:
            return 0.0
        doublings = min(max(failed_attempts - 1, 0), _MAX_DOUBLINGS)
        whole_s = self.base_s * 2.0**doublings
        jittered_s = chance * whole_s if whole_s < self.max_delay_s else self.max_delay_s * (2 + chance) / 3
        requested_s = min(failure.retry_after_s or 0.0, self.retry_after_cap_s)
        return max(jittered_s, requested_s)

    def decide_retry(
        self, *, failed_attempts: int, elapsed_s: float, failure: ModelFailed, chance: float
    ) -> float | None:
        """How long to wait before the next attempt, or None for no retry.

        `elapsed_s` counts from the first attempt to now, after the one that just failed.
        """
        if not failure.retryable:
            return None
        delay_s = self.delay_s(failed_attempts, failure, chance)
        return delay_s if self.allows(failed_attempts, elapsed_s + delay_s) else None

    def allows(self, failed_attempts: int, elapsed_s: float) -> bool:
        """Whether another attempt may be started, this long after the first."""
        return failed_attempts < self.max_attempts and elapsed_s <= self.budget_s


class RetryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduled retry (rule 2.3). `attempt` is the number of the failed attempt, from 1."""

    attempt: int
    delay_ms: int
    kind: FailureKind
    provider: str | None
    status: int | None
    message: str
    retrying_at: datetime


def announce_retry(failure: ModelFailed, *, attempt: int, delay_s: float, now: datetime) -> RetryEvent:
    """The event that readers get before the wait."""
    return RetryEvent(
        attempt=attempt,
        delay_ms=round(delay_s * 1000),
        kind=failure.kind,
        provider=failure.provider,
        status=failure.status,
        message=failure.message,
        retrying_at=now + timedelta(seconds=delay_s),
    )
