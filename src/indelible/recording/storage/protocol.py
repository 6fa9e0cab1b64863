"""Debug records: the recorded exchanges with providers, and what a `RecordStore` promises.

A *run* is a turn, a title or a compaction, a *step* one model call of it with its retries, an *attempt* one HTTP
exchange (rules 7.1 to 7.3). The three are written separately, as they change: a run and a step when they begin and when
they end, an attempt when it is over. So a reader sees the exchanges of a step that is still running.

Records are best effort and nothing depends on them: no command reads them, no event mentions them, and writing them
takes no lock that a worker or a user waits for. They are already redacted (redaction/), and are deleted
with their chat, or when they are too old.

A long run is large: two hundred steps are a hundred megabytes. So a run is read as a tree with the sizes of its
exchanges, and the exchanges are read one by one; showing or exporting a run needs the memory of one of them
(export.py). Only `load_run` loads everything at once.

Must stay true (tests/recording/test_records.py): what `RecordStore` says, sentence by sentence, on both databases. The
implementation is sql_records.py. The chat's own list of attempts, which always exists, is in store/queries/history.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from indelible.api.records import AttemptRecord, Record, RunSummary, RunTree, WholeRun
from indelible.clock import Clock


class RecordStore(Protocol):
    async def write(self, records: Sequence[Record]) -> int:
        """Write what is new in these records, in short transactions; how many of them the database refused.

        * A run and a step go on from `in_progress` to one end, and the first end stands, whatever comes later.
        * An exchange is written once; only a failure is added to it later, and it keeps what was exchanged.
        * What belongs to a chat or a run that is gone is left out, and the rest is written.
        * What the database refuses costs nothing but itself and what would hang on it.
        * If the database is away this raises, and a part may be written. Writing all of it again does no harm.
        * A step that is still open when its run has ended ends as the run did.
        * Nobody who works on a chat waits for this, nor does it wait for them; only a deletion and this wait for
          each other.
        * No text is refused.
        """

    async def list_runs(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[RunSummary]:
        """The runs of a chat, newest first: the newest, those next older than `before`, or next newer than `after`."""

    async def load_tree(self, chat_id: str, run_id: str) -> RunTree | None:
        """A run of this chat with its steps and exchanges, of one moment; None if this chat has no such run.

        * However much was said in it, this is a line for each exchange.
        """

    async def find_tree(self, owner_id: str, run_id: str) -> RunTree | None:
        """The same, of whichever chat of this user; None if no chat of this user has such a run.

        It looks into each of them, which is for people who type an id; a program knows the chat.
        """

    async def load_attempt(self, chat_id: str, run_id: str, step: int, number: int) -> AttemptRecord | None:
        """One exchange with what was said in it; None if it is not there any more."""

    async def load_run(self, chat_id: str, run_id: str) -> WholeRun | None:
        """A run with everything in it, for whoever knows that it is small; None if this chat has no such run."""

    async def close_dead(self, *, lease_timeout_s: float) -> int:
        """End the runs of workers that are dead or gone, and their steps, as errors; how many runs it were.

        * A live worker's runs are left alone. Who is alive is judged by the database's clock.
        * With nothing to end it is one small question.
        """

    async def close_earlier(self, begun: Mapping[str, str], *, lease_timeout_s: float) -> int:
        """End what such workers left open in these chats before this run of each began; how many runs it were.

        * Whoever took the chat over did so by the same judgement, so whatever a takeover left open is ended.
        * A live worker's runs are left alone: it may have handed the chat over, and its last words be on their way.
        """

    async def forget_before(self, moment: datetime, *, clock: Clock) -> int:
        """Delete all runs that started before this moment; how many it were.

        * No transaction of it is longer than 50 ms by much, and a caller who is cancelled waits for one of them only.
        """

    async def forget_chat(self, chat_id: str, *, clock: Clock) -> int:
        """Delete the runs of a chat that is about to be deleted, in the same short transactions; how many it were."""
