"""What a worker works with, handed in by whoever puts the parts together (app.py)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from indelible.clock import Clock
from indelible.loop.metrics import LoopMetrics
from indelible.models.port import Model
from indelible.settings import Settings
from indelible.store.append import JournalRow
from indelible.store.journal import Journal
from indelible.store.port import ChatStore
from indelible.tools.box import AnyTool


class CommittedRows(Protocol):
    """Where what was committed goes, for readers in this process (feed)."""

    def attach(self, attempt_id: str, chat_id: str) -> None: ...

    def detach(self, attempt_id: str) -> None: ...

    def committed(self, rows: Sequence[JournalRow]) -> None: ...


class WorkerMetrics(LoopMetrics, Protocol):
    def chat_taken(self, *, after_s: float) -> None:
        """A chat was taken from a dead worker, this long after it was last heard of."""

    def stop_ended(self, *, seconds: float) -> None:
        """A stop was carried out, this long after the worker saw it."""

    def stale_write_refused(self) -> None: ...

    def tool_ran_twice(self) -> None:
        """A call that had begun before was begun again, and its tool is not idempotent. Promised to be never (P5)."""


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """`find_model(name)` gives the model of this name, None being the setting's, or raises `ModelFailed`."""

    store: ChatStore
    journal: Journal
    tail: CommittedRows
    clock: Clock
    settings: Settings
    find_model: Callable[[str | None], Model]
    tools: Sequence[AnyTool] = ()
    client_tools: Sequence[AnyTool] = ()
    metrics: WorkerMetrics | None = None
    chance: Callable[[], float] = random.random
