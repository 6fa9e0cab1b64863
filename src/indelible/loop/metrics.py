"""What the loop tells about itself: counted by whoever cares (metrics.py), by default nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from indelible.tools.run import ToolMetrics


class LoopMetrics(ToolMetrics, Protocol):
    def step_ended(self, provider: str, model: str) -> None: ...

    def stream_retried(self, provider: str, model: str, *, kind: str, chain_broken: bool) -> None: ...

    def first_part_came(self, provider: str, model: str, *, seconds: float) -> None: ...

    def parts_came(self, provider: str, model: str, *, waits_s: Sequence[float]) -> None:
        """How long parts were waited for: a sample of a whole attempt."""

    def prompt_sent(self, provider: str, model: str, *, size_bytes: int, messages: int) -> None: ...

    def compacted(self, *, result: str) -> None: ...
