"""Whether the process is ready, and what it counts for Prometheus.

For `/readyz`, reading the database is not enough: on a full disk, or with a file that has become read-only, every read
succeeds and every message is refused. So a readiness check also commits a write that changes nothing. Anybody may ask,
without a token, so it writes at most once a second, and only one check runs at a time.

Behind `GET /metrics` (docs/operations.md) is an `indelible.metrics.Metrics`. The promises (docs/glossary.md) are
counters that stay at zero. Each `PrometheusMetrics` has its own registry unless it is given one, so that two servers in
one process, or two tests, do not count into each other. Labels come from configuration, never from a model's output: a
tool name that no tool has is counted as `unknown`, so a model cannot grow the number of series. Users can choose model
names that need no key, so only the first ones get labels of their own, and all others are counted as `other`.

Must stay true (tests/server/test_files_and_forks.py): a server that cannot accept messages is not ready.
(tests/test_metrics.py, tests/server/test_served_metrics.py): the names and labels of docs/operations.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from indelible.app.app import App
from indelible.metrics import Metrics

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


_BYTES = (256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
_MESSAGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_FLUSH_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
MAX_MODELS = 50
"""More models than this share the label `other`: each one has 60 lines."""


class PrometheusMetrics(Metrics):
    """Counts into a registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._models: set[tuple[str, str]] = set()
        model = ("provider", "model")
        self._steps = self._count("steps", "Complete steps.", *model)
        self._retries = self._count(
            "stream_retries", "Attempts that failed and were tried again.", *model, "kind", "chain_broken"
        )
        self._first_part = self._measure("ttft_seconds", "Time to the first part.", _SECONDS, *model)
        self._between_parts = self._measure(
            "inter_part_seconds", "Time between two parts, of a sample of them.", _SECONDS, *model
        )
        self._prompt_bytes = self._measure("prompt_size_bytes", "Size of a prompt.", _BYTES, *model)
        self._prompt_messages = self._measure("message_count", "Messages in a prompt.", _MESSAGES, *model)
        self._tool_seconds = self._measure("tool_seconds", "How long a tool ran.", _SECONDS, "tool")
        self._tool_bytes = self._measure("tool_result_size_bytes", "Size of a tool's result.", _BYTES, "tool")
        self._tool_truncated = self._count("tool_result_truncated", "Truncated tool results.", "tool")
        self._tool_errors = self._count("tool_errors", "Tool calls that ended in an error.", "tool")
        self._compactions = self._count("compaction", "Attempts to summarise a conversation.", "result")
        self._flushes = self._measure("journal_flush_seconds", "How long a commit of the journal took.", _FLUSH_SECONDS)
        self._parts = self._count("journal_parts", "Parts of replies written to the journal.")
        self._takeovers = self._measure(
            "takeover_seconds", "From a dead worker's last heartbeat to the takeover.", _SECONDS
        )
        self._mistaken = self._count("takeovers_mistaken", "Turns taken over from this worker while it lived.")
        self._stops = self._measure("interrupt_seconds", "From seeing a stop to its end.", _SECONDS)
        self._chats = Gauge("chats", "Chats by state.", ["state"], namespace="indelible", registry=self.registry)
        self._stuck = Gauge(
            "stuck_chats",
            "Chats that need a worker and have none. Promised to be zero.",
            namespace="indelible",
            registry=self.registry,
        )
        self._readers = Gauge("feed_readers", "Readers connected now.", namespace="indelible", registry=self.registry)
        self._resyncs = self._count("feed_resyncs", "Readers that were too slow and restarted from a snapshot.")
        self._fanout = Gauge(
            "fanout_connected", "Whether Redis carries rows.", namespace="indelible", registry=self.registry
        )
        self._rows_published = self._count("fanout_rows_published", "Rows that Redis took for another process.")
        self._rows_unpublished = self._count(
            "fanout_rows_unpublished", "Rows that Redis did not take for readers elsewhere."
        )
        self._rows_received = self._count("fanout_rows_received", "Rows of other processes that Redis brought.")
        self._rows_missed = self._count("fanout_rows_missed", "Rows that Redis did not bring, found by a later one.")
        self._stale = self._count("stale_writes_refused", "Turns that ended because another worker held the chat.")
        self._unrecorded = self._count("debug_dropped", "Exchanges with providers that could not be recorded.")
        self._gaps = self._count("resume_gaps", "Entries missing from the logs. Promised to be zero.")
        self._lost = self._count("lost_parts", "Parts that the database refused. Promised to be zero.")
        self._twice = self._count("duplicate_tool_runs", "Not idempotent tools that ran twice. Promised to be zero.")

    def _count(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="indelible", registry=self.registry)

    def _measure(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace="indelible", registry=self.registry, buckets=buckets)

    def _name(self, provider: str, model: str) -> tuple[str, str]:
        """The labels of a model."""
        pair = (provider, model)
        if pair not in self._models:
            if len(self._models) >= MAX_MODELS:
                return "other", "other"
            self._models.add(pair)
        return pair

    # --- the loop ---

    def step_ended(self, provider: str, model: str) -> None:
        self._steps.labels(*self._name(provider, model)).inc()

    def stream_retried(self, provider: str, model: str, *, kind: str, chain_broken: bool) -> None:
        self._retries.labels(*self._name(provider, model), kind, "true" if chain_broken else "false").inc()

    def first_part_received(self, provider: str, model: str, *, seconds: float) -> None:
        self._first_part.labels(*self._name(provider, model)).observe(seconds)

    def parts_received(self, provider: str, model: str, *, waits_s: Sequence[float]) -> None:
        between = self._between_parts.labels(*self._name(provider, model))
        for wait_s in waits_s:
            between.observe(wait_s)

    def prompt_sent(self, provider: str, model: str, *, size_bytes: int, messages: int) -> None:
        self._prompt_bytes.labels(*self._name(provider, model)).observe(size_bytes)
        self._prompt_messages.labels(*self._name(provider, model)).observe(messages)

    def tool_ran(self, name: str, *, seconds: float, size_bytes: int, truncated: bool, is_error: bool) -> None:
        self._tool_seconds.labels(name).observe(seconds)
        self._tool_bytes.labels(name).observe(size_bytes)
        if truncated:
            self._tool_truncated.labels(name).inc()
        if is_error:
            self._tool_errors.labels(name).inc()

    def compacted(self, *, result: str) -> None:
        self._compactions.labels(result).inc()

    # --- the worker, the journal and the feed ---

    def flushed(self, *, parts: int, seconds: float) -> None:
        self._flushes.observe(seconds)
        self._parts.inc(parts)

    def parts_lost(self, count: int) -> None:
        self._lost.inc(count)

    def takeover_completed(self, *, after_s: float) -> None:
        self._takeovers.observe(after_s)

    def takeovers_mistaken(self, count: int) -> None:
        self._mistaken.inc(count)

    def stop_ended(self, *, seconds: float) -> None:
        self._stops.observe(seconds)

    def stale_write_refused(self) -> None:
        self._stale.inc()

    def tool_ran_twice(self) -> None:
        self._twice.inc()

    def chats_counted(self, by_state: dict[str, int], *, stuck: int) -> None:
        for state, count in by_state.items():
            self._chats.labels(state).set(count)
        self._stuck.set(stuck)

    def reader_joined(self) -> None:
        self._readers.inc()

    def reader_disconnected(self) -> None:
        self._readers.dec()

    def reader_resynced(self) -> None:
        self._resyncs.inc()

    def exchange_dropped(self) -> None:
        self._unrecorded.inc()

    def gaps_found(self, count: int) -> None:
        self._gaps.inc(count)

    # --- rows between processes ---

    def fanout_connected(self, *, is_connected: bool) -> None:
        self._fanout.set(is_connected)

    def rows_published(self, count: int) -> None:
        self._rows_published.inc(count)

    def rows_unpublished(self, count: int) -> None:
        self._rows_unpublished.inc(count)

    def rows_received(self, count: int) -> None:
        self._rows_received.inc(count)

    def rows_missed(self, count: int) -> None:
        self._rows_missed.inc(count)
