"""One open run: the reports of the worker and the HTTP client, in order.

Entering a run makes it the `recording` of its task (models/http/hooks.py). Every exchange becomes an attempt
of the open step; an exchange while no step is open (a summary) belongs to the step that follows. In mode `all`,
records are published to the recorder (recorder.py) at once.

In mode `errors`, everything is held back until a step fails or is retried. Only then are the run and the records held
for this step published, and the rest of the step as it arrives: a successful step costs no write and no redaction. All
runs together hold 64 MiB at most; anything beyond that is dropped and counted.

Must stay true (tests/recording/test_recorder.py, test_recorder_in_trouble.py): every run that began has an end,
however it is left; a completed step stays completed; an error in recording never disturbs the exchange.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import Token
from datetime import UTC, datetime
from functools import wraps
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Protocol, Self

from msgspec.structs import replace

from indelible.api.records import Record, RunRecord, RunStatus, StepRecord
from indelible.api.shapes import DebugMode
from indelible.clock import Clock
from indelible.models.http.hooks import Exchange, HttpRequest, RecordingHook, recording
from indelible.recording.exchange import ExchangeRecord
from indelible.recording.http import ExchangeLog
from indelible.redaction.redact import redact_line
from indelible.redaction.secrets import KnownSecrets

P = ParamSpec("P")
_log: Final = logging.getLogger(__name__)
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
_ABANDONED: Final = "Abandoned."

QueueItem = Record | tuple[StepRecord, ExchangeRecord]
"""Something to write: a record, or an exchange of a step that is not redacted yet."""


class RecordQueue(Protocol):
    """Where a run puts its records. `held_bytes` is the memory that all runs together hold back."""

    clock: Clock
    known: KnownSecrets
    held_bytes: int

    def put(self, record: QueueItem) -> None: ...

    def count_dropped(self) -> None: ...


def _best_effort(do: Callable[Concatenate[RecordedRun, P], None]) -> Callable[Concatenate[RecordedRun, P], None]:
    """An error costs only the rest of this run's record; nothing else is affected."""

    @wraps(do)
    def do_or_give_up(run: RecordedRun, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not run.is_recording:
            return
        try:
            do(run, *args, **kwargs)
        except Exception as bug:
            run.give_up(bug)

    return do_or_give_up


class _Step:
    """An open step, and its records that are held back. `is_requested`: its number is known."""

    def __init__(self, record: StepRecord) -> None:
        self.record = record
        self.log = ExchangeLog()
        self.held: list[ExchangeRecord] = []
        self.held_bytes = 0
        self.is_requested = False
        self.is_published = False


class RecordedRun:
    """One open run: the `RecordingHook` of models/http/hooks.py, and the run log of the worker."""

    _run: RunRecord

    def __init__(self, recorder: RecordQueue, describe: Callable[[], RunRecord], mode: DebugMode) -> None:
        self.is_recording = mode != "off"
        self._recorder = recorder
        self._describe = describe
        self._mode = mode
        self._is_published = False
        self._step: _Step | None = None
        self._last_step = 0
        self._token: Token[RecordingHook | None] | None = None

    def __enter__(self) -> Self:
        self._begin_run()
        self._token = recording.set(self if self.is_recording else None)  # None hides an outer recording
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            with suppress(ValueError):  # left in another context than it was entered in
                recording.reset(self._token)
        if isinstance(error, Exception):
            self.end("error", f"Abandoned: {type(error).__name__}.")
        else:
            self.end("interrupted", _ABANDONED)

    def give_up(self, bug: Exception) -> None:
        """Record nothing more of this run. If it was published, end it now."""
        self.is_recording = False
        _log.warning("Recording of a run stopped: %s.", type(bug).__name__)
        try:
            self._recorder.count_dropped()
            if self._is_published and self._run.status == "in_progress":
                ended_at = max(datetime.now(UTC), self._run.started_at)
                self._recorder.put(replace(self._run, status="error", error=_ABANDONED, ended_at=ended_at))
        except Exception as worse:
            _log.warning("Its end could not be recorded either: %s.", type(worse).__name__)

    # --- what the worker reports ---

    @_best_effort
    def _begin_run(self) -> None:
        self._run = self._describe()
        if self._mode == "all":
            self._publish_run()

    @_best_effort
    def begin_step(self, step: int) -> None:
        """The model is called for this step; an earlier call for the same step has failed."""
        opened = self._step
        if opened is not None and not opened.is_requested and not opened.is_published:
            opened.record = replace(opened.record, step=step)  # it began with a summary
        if opened is None or opened.record.step != step:
            opened = self._open_step(step)
        elif opened.is_requested or any(_has_failed(attempt) for attempt in opened.log.attempts):
            self._publish_step(opened)
        opened.is_requested = True
        self._last_step = step
        if self._mode == "all":
            self._publish_step(opened)

    @_best_effort
    def note_failure(self) -> None:
        """The model call failed and will be retried: the records show why in the meantime."""
        if self._step is not None:
            self._publish_step(self._step)

    @_best_effort
    def end_step(self, status: RunStatus) -> None:
        self._close_step(status, None)

    @_best_effort
    def end(self, status: RunStatus, error: str | None = None) -> None:
        """The first end counts."""
        if self._run.status != "in_progress":
            return
        self._close_step(status, error)
        if status == "error":
            self._publish_run()
        error = None if error is None else redact_line(error, self._recorder.known)
        self._run = replace(self._run, status=status, error=error, ended_at=self._recorder.clock.now())
        if self._is_published:
            self._recorder.put(self._run)
        self.is_recording = False

    # --- what the HTTP client reports ---

    def begin(self, request: HttpRequest) -> Exchange | None:
        """Record an exchange. Without an open step it begins the next one."""
        self._open_next_step()
        if not self.is_recording or self._step is None:
            return None
        try:
            return self._step.log.begin(request)
        except Exception as bug:
            self.give_up(bug)
            return None

    @_best_effort
    def _open_next_step(self) -> None:
        if self._step is None:
            self._open_step(self._last_step + 1)

    def _note_attempt(self, step: _Step, attempt: ExchangeRecord) -> None:
        """Note a new or changed entry, including a late one of a step that is over: a failed close."""
        step.log.release(attempt.number)
        if step.is_published:
            self._recorder.put((step.record, attempt))
        elif step is self._step:
            self._hold(step, attempt)

    def _hold(self, step: _Step, attempt: ExchangeRecord) -> None:
        """Whether it is needed is only known when the step ends, and its tools may run for hours."""
        if self._recorder.held_bytes + attempt.size_bytes > MAX_HELD_BYTES:
            self._recorder.count_dropped()
            return
        step.held.append(attempt)
        step.held_bytes += attempt.size_bytes
        self._recorder.held_bytes += attempt.size_bytes

    def _release(self, step: _Step) -> list[ExchangeRecord]:
        """Return what was held back, and hold it no longer."""
        self._recorder.held_bytes -= step.held_bytes
        held, step.held, step.held_bytes = step.held, [], 0
        return held

    # --- steps ---

    def _open_step(self, number: int) -> _Step:
        self._close_step("completed", None)
        now = self._recorder.clock.now()
        run = self._run
        record = StepRecord(chat_id=run.chat_id, run_id=run.id, step=number, status="in_progress", started_at=now)
        step = _Step(record)
        step.log = ExchangeLog(
            clock=self._recorder.clock,
            known=self._recorder.known,
            on_change=lambda attempt: self._note_attempt(step, attempt),
            on_drop=self._recorder.count_dropped,
        )
        self._step = step
        return step

    def _close_step(self, status: RunStatus, error: str | None) -> None:
        """End the open step and drop every reference to it: a pooled connection may keep this run alive for long."""
        step = self._step
        if step is None:
            return
        step.log.finalise()
        if status == "error" or self._mode == "all":
            self._publish_step(step)
        if step.is_published:
            error = None if error is None else redact_line(error, self._recorder.known)
            self._recorder.put(replace(step.record, status=status, error=error, ended_at=self._recorder.clock.now()))
        self._release(step)
        self._last_step = step.record.step
        self._step = None

    # --- publishing ---

    def _publish_run(self) -> None:
        if not self._is_published:
            self._is_published = True
            self._recorder.put(self._run)

    def _publish_step(self, step: _Step) -> None:
        """Publish the step from now on, with the records held back so far."""
        if step.is_published:
            return
        self._publish_run()
        self._recorder.put(step.record)
        step.is_published = True
        for attempt in self._release(step):
            self._recorder.put((step.record, attempt))


def _has_failed(attempt: ExchangeRecord) -> bool:
    return attempt.status == "failed" or (attempt.status_code or 0) >= 400
