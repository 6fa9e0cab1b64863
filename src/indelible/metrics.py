"""The metrics protocol: one class for everything that the layers report (docs/operations.md).

The loop, the tools, the worker, the journal, the recorder and the feed each call the few methods that concern them,
and know nothing of Prometheus. The default is `NoMetrics`, a null object, so that no caller has to check for
None. The implementation that ships is server/health.py; only the server imports it.

Nothing here is called per token. What is measured between two parts is sampled by the attempt and reported once,
at its end.

Must stay true (tests/test_metrics.py): every name is counted; `NoMetrics` has every method; a library user
does not import prometheus_client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final


class Metrics:
    """Each method reports one event and does nothing by default. No method may raise or wait."""

    # --- the loop and its tools ---

    def step_ended(self, provider: str, model: str) -> None: ...

    def stream_retried(self, provider: str, model: str, *, kind: str, chain_broken: bool) -> None: ...

    def first_part_received(self, provider: str, model: str, *, seconds: float) -> None: ...

    def parts_received(self, provider: str, model: str, *, waits_s: Sequence[float]) -> None:
        """How long the attempt waited for its parts: a sample."""

    def prompt_sent(self, provider: str, model: str, *, size_bytes: int, messages: int) -> None: ...

    def tool_ran(self, name: str, *, seconds: float, size_bytes: int, truncated: bool, is_error: bool) -> None: ...

    def compacted(self, *, result: str) -> None: ...

    # --- the journal ---

    def flushed(self, *, parts: int, seconds: float) -> None: ...

    def parts_lost(self, count: int) -> None:
        """The database will never accept these parts. No reader has seen them; the turn fails."""

    # --- the worker ---

    def takeover_completed(self, *, after_s: float) -> None:
        """A chat of a dead worker was acquired, this long after that worker's last heartbeat."""

    def takeovers_mistaken(self, count: int) -> None:
        """So many turns of this worker were taken over while it lived, because its lock was found free.

        `takeover_seconds` of the other workers has them too: what was observed there stays.
        """

    def stop_ended(self, *, seconds: float) -> None:
        """A stop was carried out, this long after the worker saw it."""

    def stale_write_refused(self) -> None: ...

    def tool_ran_twice(self) -> None:
        """A call that had started before was started again, and its tool is not idempotent (P5: never)."""

    # --- the feed ---

    def reader_joined(self) -> None:
        """With `reader_disconnected`: the current number of readers (`feed_readers`)."""

    def reader_disconnected(self) -> None: ...

    def reader_resynced(self) -> None:
        """A reader was too slow and restarts from a snapshot (`feed_resyncs_total`)."""

    def gaps_found(self, count: int) -> None:
        """The logs lack entries that they should hold (`resume_gaps_total`, which stays at 0)."""

    # --- rows between processes ---

    def fanout_connected(self, *, is_connected: bool) -> None: ...

    def rows_published(self, count: int) -> None:
        """Rows that Redis took for another process."""

    def rows_unpublished(self, count: int) -> None:
        """Rows that readers elsewhere wait for and that Redis did not take: they read the database instead."""

    def rows_received(self, count: int) -> None: ...

    def rows_missed(self, count: int) -> None:
        """Rows that had not come when a later one did: readers read them from the database."""

    # --- recording ---

    def exchange_dropped(self) -> None:
        """An exchange with a provider could not be recorded. The exchange itself is not affected."""


class NoMetrics(Metrics):
    """Counts nothing."""


NO_METRICS: Final[Metrics] = NoMetrics()
"""The default of every `metrics` argument."""
