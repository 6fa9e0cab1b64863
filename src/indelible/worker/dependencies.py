"""What a worker works with, handed in by whoever puts the parts together (app.py)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from indelible.clock import Clock
from indelible.metrics import NO_METRICS, Metrics
from indelible.models.protocol import Model
from indelible.settings import Settings
from indelible.store.database.tables import DebugMode, RunKind, RunStatus
from indelible.store.journal.writer import Journal
from indelible.store.protocol import ChatStore
from indelible.store.queries.open_turn import OpenWork
from indelible.tools.toolset import AnyTool


class RunLog(Protocol):
    """What is recorded of one piece of work with a model. Nothing here raises or waits."""

    def begin_step(self, step: int) -> None:
        """The model is about to be asked for this step, for the first time or again."""

    def note_failure(self) -> None:
        """The model has failed, and will be asked again."""

    def end_step(self, status: RunStatus, error: str | None = None) -> None:
        """What became of the step. Once it is told, it stands."""

    def end(self, status: RunStatus, error: str | None = None) -> None:
        """What became of the run, and of a step that is still open."""


class Recorder(Protocol):
    """Takes note of what is exchanged with providers. The joint is made in app.py."""

    def record(
        self,
        *,
        chat_id: str,
        turn_id: str | None,
        kind: RunKind,
        model: str | None,
        worker_id: str,
        mode: DebugMode | None,
    ) -> AbstractContextManager[RunLog]:
        """What this task asks of providers until the end of the block is one run. Without a `mode` the setting holds.

        A block that is left without an end was given up.
        """

    async def clean_up(self) -> None:
        """Close what dead workers left open, and forget what is too old."""

    async def drain(self) -> None:
        """Wait until what was told is written, but not for long."""


class NoRunLog:
    """Nothing is recorded."""

    def begin_step(self, step: int) -> None: ...

    def note_failure(self) -> None: ...

    def end_step(self, status: RunStatus, error: str | None = None) -> None: ...

    def end(self, status: RunStatus, error: str | None = None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class WorkerDependencies:
    """`find_model(name)` gives the model of this name, None being the setting's, or raises `ModelFailed`."""

    store: ChatStore
    journal: Journal
    clock: Clock
    settings: Settings
    find_model: Callable[[str | None], Model]
    tools: Sequence[AnyTool] = ()
    client_tools: Sequence[AnyTool] = ()
    tool_deps: Any = None
    metrics: Metrics = NO_METRICS
    recorder: Recorder | None = None
    chance: Callable[[], float] = random.random

    def record(self, work: OpenWork, *, kind: RunKind, worker_id: str) -> AbstractContextManager[RunLog]:
        """Record a piece of work with a model, if anybody records."""
        if self.recorder is None:
            return nullcontext(NoRunLog())
        return self.recorder.record(
            chat_id=work.chat_id,
            turn_id=None if kind == "title" else work.turn_id,
            kind=kind,
            model=work.model or self.settings.model,
            worker_id=worker_id,
            mode=work.debug,
        )
