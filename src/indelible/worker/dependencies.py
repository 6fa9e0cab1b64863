"""The dependencies of a worker. app/compose.py creates and passes them.

A worker knows the store, the journal, the models and the tools, and protocols for recording its runs. It does not know
that a feed exists: the journal passes committed rows to readers (`on_committed`), and app/compose.py connects the two.
So a worker runs unchanged in a process without readers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from indelible.api.records import RunKind, RunStatus
from indelible.api.shapes import DebugMode
from indelible.clock import Clock
from indelible.files.store import FileStore
from indelible.loop.attempt import ReplyLimits
from indelible.metrics import NO_METRICS, Metrics
from indelible.models.protocol import Model, traits_of
from indelible.settings import Settings
from indelible.store.journal.writer import Journal
from indelible.store.queries.open_turn import OpenWork
from indelible.store.store import Store
from indelible.tools.toolset import AnyTool
from indelible.worker.presence import OpenSession


class RunLog(Protocol):
    """The debug record of one run. Nothing here raises or waits."""

    def begin_step(self, step: int) -> None:
        """The model is about to be called for this step, for the first time or again."""

    def note_failure(self) -> None:
        """The model call failed and will be retried."""

    def end_step(self, status: RunStatus) -> None:
        """End the step with this status. The first call counts."""

    def end(self, status: RunStatus, error: str | None = None) -> None:
        """End the run, and a step that is still open, with this status."""


class Recorder(Protocol):
    """Records the exchanges with providers. app/compose.py connects it."""

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
        """The exchanges of this task until the end of the block are one run. Without a `mode` the setting applies.

        A block that is left without an end was abandoned.
        """

    async def clean_up(self) -> None:
        """Close what dead workers left open, and delete what is too old."""

    async def drain(self) -> None:
        """Wait until everything recorded so far is written, but not for long."""


class NoRunLog:
    """Nothing is recorded."""

    def begin_step(self, step: int) -> None: ...

    def note_failure(self) -> None: ...

    def end_step(self, status: RunStatus) -> None: ...

    def end(self, status: RunStatus, error: str | None = None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class WorkerDependencies:
    """`find_model(name)` returns the model with this name (None: the setting's), or raises `ModelFailed`.

    `open_session` opens a connection for the lock by which others see that this process is there (worker/presence.py).
    """

    store: Store
    journal: Journal
    clock: Clock
    settings: Settings
    find_model: Callable[[str | None], Model]
    files: FileStore
    tools: Sequence[AnyTool] = ()
    client_tools: Sequence[AnyTool] = ()
    tool_deps: Any = None
    metrics: Metrics = NO_METRICS
    recorder: Recorder | None = None
    open_session: OpenSession | None = None
    chance: Callable[[], float] = random.random
    hide_secrets: Callable[[str], str] = str

    def limit_reply(self, model: Model) -> ReplyLimits:
        """The limits of one reply of this model, by the settings."""
        settings = self.settings
        return ReplyLimits(
            silence_timeout_s=max(settings.silence_timeout_s, traits_of(model).silence_timeout_s),
            keep_alive_timeout_s=settings.keep_alive_timeout_s,
            max_characters=settings.reply_max_characters,
            grace_s=settings.tool_grace_s,
        )

    def record(self, work: OpenWork, *, kind: RunKind, worker_id: str) -> AbstractContextManager[RunLog]:
        """Record a run, if recording is on."""
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
