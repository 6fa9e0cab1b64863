"""Debug records: what went to a provider and what came back, as it is kept, and what a keeper of records promises.

A *run* is one piece of work with a model, a *step* one model call of it with its retries, an *attempt* one HTTP
exchange (SPEC 7). The three are written apart, whenever there is news of one: a run and a step when they begin and when
they end, an attempt when it is over. So whoever looks sees the exchanges of a step that still runs.

Records are best effort and nothing hangs on them: no command looks at them, no event tells of them, and writing them
takes no lock that a worker or a user waits for. They were redacted before they came here (debug/redact.py), and go
with their chat, or when they are too old.

Must stay true (tests/store/test_records.py): what `RecordStore` says, sentence by sentence, on both databases.
The implementation is sql_records.py. The chat's own list of attempts, which is always there, is attempts.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from indelible.clock import Clock
from indelible.store.tables import RunKind, RunStatus

AttemptStatus = Literal["completed", "failed"]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work with a model. It has an end exactly if it is no longer `in_progress`."""

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

    run_id: str
    step: int
    status: RunStatus
    error: str | None = None
    started_at: datetime
    ended_at: datetime | None = None

    def __post_init__(self) -> None:
        _check_end(self.status, self.ended_at)


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange that is over. `head_at` is when the answer began, if there was one."""

    run_id: str
    step: int
    number: int
    status: AttemptStatus
    status_code: int | None = None
    method: str
    url: str
    request_headers: dict[str, str] = {}
    request_body: str = ""
    response_headers: dict[str, str] | None = None
    response_body: str = ""
    error: str | None = None
    started_at: datetime
    head_at: datetime | None = None
    ended_at: datetime


Record = RunRecord | StepRecord | AttemptRecord


class RunSummary(RunRecord, frozen=True, kw_only=True):
    """One line of a list."""

    step_count: int
    attempt_count: int


class WholeStep(StepRecord, frozen=True, kw_only=True):
    attempts: list[AttemptRecord]


class WholeRun(RunRecord, frozen=True, kw_only=True):
    """A run with everything in it, in order."""

    steps: list[WholeStep]


class RecordStore(Protocol):
    async def write(self, records: Sequence[Record]) -> None:
        """Write what is new in these records, in one transaction.

        * A run and a step go on from `in_progress` to one end, and the first end stands, whatever comes later.
        * An exchange is written once; only a failure is added to it later, and it keeps what was exchanged.
        * What belongs to a chat or a run that is gone is left out, and the rest is written.
        * A step that is still open when its run has ended ends as the run did.
        * Nobody who works on a chat waits for this, nor does it wait for them; only a deletion and this wait for
          each other.
        * No text is refused.
        """

    async def list_runs(self, chat_id: str, *, before: str | None = None, limit: int = 50) -> list[RunSummary]:
        """The runs of a chat, the newest first, from below the run `before` on."""

    async def load_run(self, chat_id: str, run_id: str) -> WholeRun | None:
        """A run of this chat with all its steps and exchanges, of one moment; None if this chat has no such run."""

    async def find_run(self, owner_id: str, run_id: str) -> WholeRun | None:
        """The same, of whichever chat of this user; None if no chat of this user has such a run."""

    async def close_dead(self, *, dead_after_s: float) -> int:
        """End the runs of workers that are dead or gone, and their steps, as errors; how many runs it were.

        * A live worker's runs are left alone. Who is alive is judged by the database's clock.
        * With nothing to end it is one small question.
        """

    async def close_earlier(self, chat_id: str, run_id: str) -> int:
        """End what runs that began before this one left open in its chat, as errors; how many runs it were.

        * Their own ends, if they are on their way, have to be written first: this one would be the first.
        * A title is made beside a turn, by whoever likes, and is left alone.
        """

    async def forget_before(self, moment: datetime, *, clock: Clock) -> int:
        """Delete all runs that started before this moment; how many it were.

        * No transaction of it is longer than 50 ms by much, and a caller who is cancelled waits for one of them only.
        """

    async def forget_chat(self, chat_id: str, *, clock: Clock) -> int:
        """Delete the runs of a chat that is about to be deleted, in the same short transactions; how many it were."""


def _check_end(status: RunStatus, ended_at: datetime | None) -> None:
    if (status == "in_progress") != (ended_at is None):
        raise ValueError(f"What is {status} has {'no end' if ended_at is not None else 'an end'}.")
