"""Debug records on both databases: the recorded exchanges with providers, written, read and deleted.

A *run* is a turn, a title or a compaction, a *step* one model call of it with its retries, an *attempt* one HTTP
exchange (rules 7.1 to 7.3). The three are written separately, as they change: a run and a step when they begin and when
they end, an attempt when it is over. So a reader sees the exchanges of a step that is still running. The chat's own
list of attempts, which always exists, is in store/queries/history.py.

Records are best effort and nothing depends on them: no command reads them, no event mentions them, and writing them
takes no lock that a worker or a user waits for. They are never urgent (store/database/transaction.py): the journal goes
first, and every transaction here is short. A transaction holds no more than a megabyte, and the database accepts or
refuses it as a whole. A refused one is halved, and the halves are retried, until the faulty record is alone: the
others, perhaps of other chats, are still written.

Locks are acquired in one order: chats, runs, then their children. The lock on a chat only prevents its deletion. It is
the weakest there is (`FOR KEY SHARE`, which a foreign key takes anyway), and does not conflict with the `FOR NO KEY
UPDATE` of commands. While it is held no foreign key can fail, so deleting one chat does not cost the others their
records. Only a deletion that has begun is waited for, as the foreign key would do anyway. (`SKIP LOCKED` does not
avoid that: PostgreSQL does not skip a row that its deleter has updated before.)

A status only moves forward, because each upsert states when it may change an existing row. The first end stands: the
worker that ends a dead worker's run and that worker itself may both be right, and a reader may have seen the first.

A long run is large: two hundred steps are a hundred megabytes. So a run is read as a tree with the sizes of its
exchanges, and the exchanges are read one by one, with nothing held open between two. They were redacted by field name
before they were written. Text that looks like a key is hidden here, when a record is read: all code that shows or
exports records reads them through this class, so none can forget it (redaction/secrets.py).

Must stay true (tests/recording/test_records.py, test_refused_records.py, test_reading_records.py,
test_record_locks.py): what `RecordStore` says, sentence by sentence, on both databases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from indelible.api.records import (
    AttemptRecord,
    AttemptSummary,
    Exchanged,
    Record,
    RunRecord,
    RunSummary,
    RunTree,
    StepRecord,
    StepTree,
)
from indelible.clock import Clock
from indelible.concurrency.tasks import run_to_completion
from indelible.content import encode
from indelible.content.unicode import clean_text
from indelible.redaction.secrets import redact_keys
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable
from indelible.store.database.transaction import Database, Row, Transaction, to_time
from indelible.store.queries.liveness import build_alive_since

_Shown = TypeVar("_Shown", bound=msgspec.Struct)
_log: Final = logging.getLogger(__name__)
_READER: Final = ThreadPoolExecutor(1, thread_name_prefix="debug reading")
"""Searching a body for keys takes milliseconds. The loop's own threads may all be busy with tools for hours."""

GONE: Final = "The worker that ran it is gone."
REPLACED: Final = "The worker died; another worker continued."
CHUNK_S: Final = 0.02
"""How long a transaction deletes. Its commit takes about as long again, which makes 50 ms in all (R12)."""
_ATTEMPTS_AT_ONCE: Final = 4
"""How many exchanges, of up to half a megabyte each, are deleted between two clock checks."""

_RUN_COLUMNS: Final = ", ".join(f"debug_runs.{name}" for name in RunRecord.__struct_fields__)
_COUNTED: Final = "WHERE chat_id = debug_runs.chat_id AND run_id = debug_runs.id"
_SUMMARY: Final = f"""
    SELECT {_RUN_COLUMNS}, (SELECT count(*) FROM debug_steps {_COUNTED}) AS step_count,
        (SELECT count(*) FROM debug_attempts {_COUNTED}) AS attempt_count
    FROM debug_runs WHERE chat_id = $1
    """
_LIST: Final = f"{_SUMMARY} AND (CAST($2 AS TEXT) IS NULL OR id < $2) ORDER BY id DESC LIMIT $3"
_LIST_NEWER: Final = f"{_SUMMARY} AND id > $2 ORDER BY id LIMIT $3"
_FIND: Final = f"SELECT {_RUN_COLUMNS} FROM debug_runs WHERE chat_id = $1 AND id = $2"
_FIND_OF_USER: Final = f"""
    SELECT {_RUN_COLUMNS} FROM chats JOIN debug_runs ON debug_runs.chat_id = chats.id
    WHERE chats.owner_id = $1 AND debug_runs.id = $2
    """
_STEPS: Final = f"""
    SELECT {", ".join(StepRecord.__struct_fields__)} FROM debug_steps WHERE chat_id = $1 AND run_id = $2 ORDER BY step
    """
_SUMMARIES: Final = f"""
    SELECT {", ".join(Exchanged.__struct_fields__)}, length(request_body) AS request_bytes,
        length(response_body) AS response_bytes
    FROM debug_attempts WHERE chat_id = $1 AND run_id = $2 ORDER BY number
    """
_ATTEMPT: Final = f"""
    SELECT {", ".join(AttemptRecord.__struct_fields__)} FROM debug_attempts
    WHERE chat_id = $1 AND run_id = $2 AND step = $3 AND number = $4
    """
_FIND_OPEN: Final = "SELECT chat_id, id FROM debug_runs WHERE chat_id = ANY($1) AND ended_at IS NULL"
# A locked run is being written to, or another process is ending it.
_LEFT: Final = f"""
    SELECT chat_id, id FROM debug_runs
    WHERE ended_at IS NULL AND NOT EXISTS ({build_alive_since("$1")} AND workers.id = debug_runs.worker_id)
    FOR UPDATE SKIP LOCKED
    """
_LEFT_OF: Final = _LEFT.replace("WHERE", "WHERE chat_id = ANY($2) AND id = ANY($3) AND", 1)
_CLOSE: Final = """
    UPDATE debug_runs SET status = 'error', error = $1, ended_at = $2 WHERE chat_id = ANY($3) AND id = ANY($4)
    """
_OLDEST: Final = "SELECT chat_id, id FROM debug_runs {where} ORDER BY started_at LIMIT 1 FOR UPDATE SKIP LOCKED"
_BEFORE: Final = _OLDEST.format(where="WHERE started_at < $1")
_OF_CHAT: Final = _OLDEST.format(where="WHERE chat_id = $1")
_FORGET_SOME: Final = f"""
    DELETE FROM debug_attempts WHERE chat_id = $1 AND run_id = $2 AND (step, number) IN (
        SELECT step, number FROM debug_attempts WHERE chat_id = $1 AND run_id = $2 LIMIT {_ATTEMPTS_AT_ONCE}
    )
    """
_TIMES: Final = ("started_at", "head_at", "ended_at")

_TOGETHER_CHARS: Final = 1024 * 1024
"""The maximum length of all bodies in one transaction, in characters."""

_KINDS: Final = (RunRecord, StepRecord, AttemptRecord)
RunName = tuple[str, str]
"""The ids of a chat and of one of its runs. Run ids are unique, so two lists name a set of runs."""

_HOLD_CHATS: Final = "SELECT id FROM chats WHERE id = ANY($1) ORDER BY id FOR KEY SHARE"
_LOCK_RUNS: Final = """
    SELECT chat_id, id, ended_at FROM debug_runs WHERE chat_id = ANY($1) AND id = ANY($2)
    ORDER BY chat_id, id FOR NO KEY UPDATE
    """
_FIND_STEPS: Final = "SELECT chat_id, run_id, step FROM debug_steps WHERE chat_id = ANY($1) AND run_id = ANY($2)"
_RUN: Final = "FROM debug_runs WHERE chat_id = debug_steps.chat_id AND id = debug_steps.run_id"
_END_STEPS: Final = f"""
    UPDATE debug_steps
    SET status = (SELECT status {_RUN}), error = (SELECT error {_RUN}), ended_at = (SELECT ended_at {_RUN})
    WHERE chat_id = ANY($1) AND run_id = ANY($2) AND ended_at IS NULL
    """


def _build_upsert(table: str, kind: type[Record], key: str, change: str) -> str:
    """The values are the fields of a record, in their order."""
    names = kind.__struct_fields__
    values = ", ".join(f"${place}" for place in range(1, len(names) + 1))
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) ON CONFLICT ({key}) DO UPDATE SET {change}"


_END: Final = "status = excluded.status, error = excluded.error, ended_at = excluded.ended_at"
_WRITE_RUN: Final = _build_upsert(
    "debug_runs",
    RunRecord,
    "chat_id, id",
    f"{_END}, model = coalesce(excluded.model, debug_runs.model) WHERE debug_runs.ended_at IS NULL",
)
_WRITE_STEP: Final = _build_upsert(
    "debug_steps", StepRecord, "chat_id, run_id, step", f"{_END} WHERE debug_steps.ended_at IS NULL"
)
_WRITE_ATTEMPT: Final = _build_upsert(
    "debug_attempts",
    AttemptRecord,
    "chat_id, run_id, step, number",
    "status = excluded.status, ended_at = excluded.ended_at, error = coalesce(excluded.error, debug_attempts.error) "
    "WHERE excluded.status = 'failed'",
)


class RecordStore:
    """The records of all chats. The database must be up to date."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @run_to_completion
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
        refusals = [refusal for batch in _split_records(records) for refusal in await self._write_or_halve(batch)]
        if refusals:
            _log.warning("The database refused %d debug records: %s.", len(refusals), ", ".join(sorted({*refusals})))
        return len(refusals)

    async def _write_or_halve(self, batch: Sequence[Record]) -> list[str]:
        """Write this batch; returns the reason, one word, for each refused record."""
        try:
            await self._database.write(lambda transaction: _write_records(transaction, batch), slow=True)
        except (DatabaseUnreachable, DatabaseUnusable):
            raise
        except Exception as error:
            if len(batch) == 1:
                return [type(error).__name__]
            half = len(batch) // 2
            return await self._write_or_halve(batch[:half]) + await self._write_or_halve(batch[half:])
        return []

    async def list_runs(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[RunSummary]:
        """The runs of a chat, newest first: the newest, those next older than `before`, or next newer than `after`."""
        sql = _LIST if after is None else _LIST_NEWER
        rows = await self._database.read(
            lambda transaction: transaction.all(sql, chat_id, after or before, limit), single=True
        )
        return [_read(RunSummary, row) for row in (rows if after is None else rows[::-1])]

    async def load_tree(self, chat_id: str, run_id: str) -> RunTree | None:
        """A run of this chat with its steps and exchanges, of one moment; None if this chat has no such run.

        * However much was said in it, this is a line for each exchange.
        """
        return await self._database.read(lambda transaction: _load_tree(transaction, _FIND, chat_id, run_id))

    async def find_tree(self, owner_id: str, run_id: str) -> RunTree | None:
        """The same, of whichever chat of this user; None if no chat of this user has such a run.

        It looks into each of them, which is for people who type an id; a program knows the chat.
        """
        return await self._database.read(lambda transaction: _load_tree(transaction, _FIND_OF_USER, owner_id, run_id))

    async def load_attempt(self, chat_id: str, run_id: str, step: int, number: int) -> AttemptRecord | None:
        """One exchange with what was said in it; None if it is not there any more."""
        row = await self._database.read(
            lambda transaction: transaction.one(_ATTEMPT, chat_id, run_id, step, number), single=True
        )
        return None if row is None else await asyncio.get_running_loop().run_in_executor(_READER, _read_attempt, row)

    async def close_dead(self, *, lease_timeout_s: float) -> int:
        """End the runs of workers that are dead or gone, and their steps, as errors; how many runs it were.

        * A live worker's runs are left alone. Who is alive is judged by the database's clock.
        * With nothing to end it is one small question.
        """
        return await self._database.write(
            lambda transaction: _close_left(transaction, lease_timeout_s, _LEFT, error=GONE)
        )

    async def close_earlier(self, begun: Mapping[str, str], *, lease_timeout_s: float) -> int:
        """End what such workers left open in these chats before this run of each began; how many runs it were.

        * Whoever took the chat over did so by the same judgement, so whatever a takeover left open is ended.
        * A live worker's runs are left alone: it may have handed the chat over, and its last words be on their way.
        """
        found = await self._database.read(lambda transaction: transaction.all(_FIND_OPEN, list(begun)), single=True)
        earlier = [(run["chat_id"], run["id"]) for run in found if run["id"] < begun[run["chat_id"]]]
        if not earlier:
            return 0
        names = _list_names(earlier)
        return await self._database.write(
            lambda transaction: _close_left(transaction, lease_timeout_s, _LEFT_OF, *names, error=REPLACED)
        )

    async def forget_before(self, moment: datetime, *, clock: Clock, chunk_s: float = CHUNK_S) -> int:
        """Delete all runs that started before this moment; how many it were.

        * No transaction of it is longer than 50 ms by much, and a caller who is cancelled waits for one of them only.
        """
        return await self._forget(_BEFORE, moment, clock, chunk_s)

    async def forget_chat(self, chat_id: str, *, clock: Clock, chunk_s: float = CHUNK_S) -> int:
        """Delete the runs of a chat that is about to be deleted, in the same short transactions; how many it were."""
        return await self._forget(_OF_CHAT, chat_id, clock, chunk_s)

    async def _forget(self, oldest: str, due: datetime | str, clock: Clock, chunk_s: float) -> int:
        forgotten = 0
        while True:
            runs, is_last = await self._database.write(
                lambda transaction: _forget_chunk(transaction, oldest, due, clock, chunk_s), slow=True
            )
            forgotten += runs
            if is_last:
                return forgotten


# --- writing ---


def _split_records(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Split records into transactions: parents before children, each kind in the order given."""
    batch: list[Record] = []
    size_chars = 0
    for record in (record for kind in _KINDS for record in records if isinstance(record, kind)):
        body_chars = len(record.request_body) + len(record.response_body) if isinstance(record, AttemptRecord) else 0
        if batch and size_chars + body_chars > _TOGETHER_CHARS:
            yield batch
            batch, size_chars = [], 0
        batch.append(record)
        size_chars += body_chars
    if batch:
        yield batch


async def _write_records(transaction: Transaction, records: Sequence[Record]) -> None:
    given = [record for record in records if isinstance(record, RunRecord)]
    steps = [record for record in records if isinstance(record, StepRecord)]
    attempts = [record for record in records if isinstance(record, AttemptRecord)]
    chat_ids = list({record.chat_id for record in records})
    held = {row["id"] for row in await transaction.all(_HOLD_CHATS, chat_ids)}  # only from being deleted
    known = await _lock_runs(transaction, {_name_run(record) for record in records})

    runs = [run for run in given if run.chat_id in held]
    staying = known.keys() | {_name_run(run) for run in runs}
    steps = [step for step in steps if _name_run(step) in staying]
    places = {(*_name_run(step), step.step) for step in steps}
    attempts = [attempt for attempt in attempts if _name_run(attempt) in staying]
    elsewhere = {_name_run(each) for each in attempts if (*_name_run(each), each.step) not in places}
    places |= await _find_steps(transaction, elsewhere)
    attempts = [attempt for attempt in attempts if (*_name_run(attempt), attempt.step) in places]

    for statement, rows in (
        (_WRITE_RUN, [astuple(run) for run in runs]),
        (_WRITE_STEP, [astuple(step) for step in steps]),
        (_WRITE_ATTEMPT, [_encode_attempt(attempt) for attempt in attempts]),
    ):
        if rows:
            await transaction.many(statement, rows)
    ended = {name for name, has_ended in known.items() if has_ended}
    await _end_steps(transaction, ended | {_name_run(run) for run in runs if run.ended_at is not None})


def _name_run(record: Record) -> RunName:
    """The run that a record is, or belongs to."""
    return record.chat_id, record.id if isinstance(record, RunRecord) else record.run_id


async def _end_steps(transaction: Transaction, runs: Collection[RunName]) -> None:
    """End the open steps of runs that have ended, with the run's status."""
    if runs:
        await transaction.run(_END_STEPS, *_list_names(runs))


async def _lock_runs(transaction: Transaction, runs: Collection[RunName]) -> dict[RunName, bool]:
    """The existing ones of these runs, and whether each has ended. Runs are locked before their steps, in one order."""
    found = await transaction.all(_LOCK_RUNS, *_list_names(runs))
    return {(row["chat_id"], row["id"]): row["ended_at"] is not None for row in found}


async def _find_steps(transaction: Transaction, runs: Collection[RunName]) -> set[tuple[str, str, int]]:
    if not runs:
        return set()
    found = await transaction.all(_FIND_STEPS, *_list_names(runs))
    return {(row["chat_id"], row["run_id"], row["step"]) for row in found}


def _list_names(runs: Collection[RunName]) -> tuple[list[str], list[str]]:
    """The chats and the ids of these runs, as two lists."""
    return [chat_id for chat_id, _ in runs], [run_id for _, run_id in runs]


def _encode_attempt(attempt: AttemptRecord) -> list[Any]:
    headers = attempt.response_headers
    encoded = {
        "request_headers": encode(attempt.request_headers),
        "request_body": clean_text(attempt.request_body).encode(),
        "response_headers": None if headers is None else encode(headers),
        "response_body": clean_text(attempt.response_body).encode(),
    }
    return [encoded[name] if name in encoded else getattr(attempt, name) for name in AttemptRecord.__struct_fields__]


# --- reading ---


async def _load_tree(transaction: Transaction, find: str, *names: str) -> RunTree | None:
    run = await transaction.one(find, *names)
    if run is None:
        return None
    own = (run["chat_id"], run["id"])
    steps = await transaction.all(_STEPS, *own)
    attempts: dict[int, list[AttemptSummary]] = {step["step"]: [] for step in steps}
    for row in await transaction.all(_SUMMARIES, *own):
        attempts[row["step"]].append(_read(AttemptSummary, row))
    return _read(RunTree, run, steps=[_read(StepTree, step, attempts=attempts[step["step"]]) for step in steps])


# --- ending ---


async def _close_left(
    transaction: Transaction, lease_timeout_s: float, left: str, *among: list[str], error: str
) -> int:
    """End what dead workers left open among these runs."""
    now = await transaction.now()
    found = await transaction.all(left, now - timedelta(seconds=lease_timeout_s), *among)
    runs: list[RunName] = [(run["chat_id"], run["id"]) for run in found]
    if runs:
        await transaction.run(_CLOSE, error, now, *_list_names(runs))
        await _end_steps(transaction, runs)
    return len(runs)


# --- deleting ---


async def _forget_chunk(
    transaction: Transaction, oldest: str, due: datetime | str, clock: Clock, chunk_s: float
) -> tuple[int, bool]:
    """Delete for a moment; how many runs it were, and whether none is left."""
    runs = 0
    started_s = clock.monotonic()
    while (run := await transaction.one(oldest, due)) is not None:
        runs += await _forget_some(transaction, run["chat_id"], run["id"])
        if clock.monotonic() - started_s >= chunk_s:
            return runs, False
    return runs, True


async def _forget_some(transaction: Transaction, chat_id: str, run_id: str) -> int:
    """Delete a few exchanges of a run, and the run when none is left; returns how many runs were deleted."""
    if await transaction.run(_FORGET_SOME, chat_id, run_id) == _ATTEMPTS_AT_ONCE:
        return 0
    await transaction.run("DELETE FROM debug_runs WHERE chat_id = $1 AND id = $2", chat_id, run_id)
    return 1


# --- rows ---


def _read(kind: type[_Shown], row: Row, **more: Any) -> _Shown:
    return _hide_keys(kind(**_read_values(row), **more))


def _read_values(row: Row) -> dict[str, Any]:
    values = dict(row)
    return values | {name: to_time(values[name]) for name in _TIMES if name in values}


def _read_attempt(row: Row) -> AttemptRecord:
    headers = row["response_headers"]
    kept = {
        "request_headers": _read_headers(row["request_headers"]),
        "request_body": redact_keys(row["request_body"].decode()),
        "response_headers": None if headers is None else _read_headers(headers),
        "response_body": redact_keys(row["response_body"].decode()),
    }
    return _hide_keys(AttemptRecord(**(_read_values(row) | kept)))


def _read_headers(written: bytes) -> dict[str, str]:
    headers = msgspec.json.decode(written, type=dict[str, str])
    return {redact_keys(name): redact_keys(value) for name, value in headers.items()}


def _hide_keys(record: _Shown) -> _Shown:
    """The record, with text that looks like a key hidden in its error and its address."""
    texts = {name: getattr(record, name) for name in ("error", "url") if getattr(record, name, None)}
    return replace(record, **{name: redact_keys(text) for name, text in texts.items()}) if texts else record
