"""What the feed tells about itself: counted by whoever cares (metrics.py), by default nobody."""

from __future__ import annotations

from typing import Protocol


class FeedMetrics(Protocol):
    def reader_joined(self) -> None:
        """With `reader_left`: how many there are (`feed_readers`)."""

    def reader_left(self) -> None: ...

    def reader_resynced(self) -> None:
        """A reader was too slow and starts anew from a snapshot (`feed_resyncs_total`)."""

    def gaps_found(self, count: int) -> None:
        """The logs lack something that they should hold (`resume_gaps_total`, which stays at 0)."""
