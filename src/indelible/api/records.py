"""What was recorded for debugging, as it is stored and shown: runs, their steps, and the exchanges with a provider.

A *run* is a turn, a title or a compaction, a *step* one model call of it with its retries, an *attempt* one HTTP
exchange (rules 7.1 to 7.3). `RunTree` has the sizes of the exchanges, `WholeRun` also what was in them.

recording/storage.py says what is promised of them; shapes.py has the chat's own list of attempts, which always
exists.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

RunKind = Literal["turn", "title", "compaction"]
RunStatus = Literal["in_progress", "completed", "error", "interrupted"]
AttemptStatus = Literal["completed", "failed"]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run with a model. It has an end exactly if it is no longer `in_progress`."""

    id: str
    chat_id: str
    turn_id: str | None
    kind: RunKind
    status: RunStatus
    worker_id: str
    model: str | None = None
    error: str | None = None
    started_at: datetime
    ended_at: datetime | None = None

    def __post_init__(self) -> None:
        _check_end(self.status, self.ended_at)


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of a run. It has an end exactly if it is no longer `in_progress`."""

    chat_id: str
    run_id: str
    step: int
    status: RunStatus
    error: str | None = None
    started_at: datetime
    ended_at: datetime | None = None

    def __post_init__(self) -> None:
        _check_end(self.status, self.ended_at)


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """How a finished exchange went. `head_at` is when the response began, if there was one."""

    chat_id: str
    run_id: str
    step: int
    number: int
    status: AttemptStatus
    status_code: int | None = None
    method: str
    url: str
    error: str | None = None
    started_at: datetime
    head_at: datetime | None = None
    ended_at: datetime


class AttemptRecord(Exchanged, frozen=True, kw_only=True):
    """One exchange, with its content."""

    request_headers: dict[str, str] = {}
    request_body: str = ""
    response_headers: dict[str, str] | None = None
    response_body: str = ""


class AttemptSummary(Exchanged, frozen=True, kw_only=True):
    """One exchange, with the sizes of its kept bodies."""

    request_bytes: int
    response_bytes: int


Record = RunRecord | StepRecord | AttemptRecord


class RunSummary(RunRecord, frozen=True, kw_only=True):
    """One line of a list."""

    step_count: int
    attempt_count: int


class StepTree(StepRecord, frozen=True, kw_only=True):
    attempts: list[AttemptSummary]


class RunTree(RunRecord, frozen=True, kw_only=True):
    """A run with its steps and exchanges in order, without the content."""

    steps: list[StepTree]


class WholeStep(StepRecord, frozen=True, kw_only=True):
    attempts: list[AttemptRecord]


class WholeRun(RunRecord, frozen=True, kw_only=True):
    """A run with all its content, in order."""

    steps: list[WholeStep]


def _check_end(status: RunStatus, ended_at: datetime | None) -> None:
    if (status == "in_progress") != (ended_at is None):
        raise ValueError(f"A record that is {status} must {'not ' if ended_at is not None else ''}have an end.")
