"""Debug records on SQLite and on PostgreSQL. protocol.py has the promises.

A transaction holds no more than a megabyte, and the database accepts or refuses it as a whole. A refused one is halved,
and the halves are retried, until the faulty record is alone: the others, perhaps of other chats, are still written.
write.py has the locks, and what an upsert may change.

Records are never urgent (store/database/transaction.py): the journal goes first. On SQLite they share a queue with
all other writes, which is why every transaction here is short. So is every read: exchanges are read one by one, and
nothing is held open between two.

Records were redacted by field name before they were written. Text that looks like a key is hidden here, when a record
is read: all code that shows or exports records reads them through this class, so none can forget it
(redaction/secrets.py).

Must stay true (tests/recording/test_records.py, test_refused_records.py, test_reading_records.py,
test_record_locks.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict, replace

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
    WholeRun,
    WholeStep,
)
from indelible.clock import Clock
from indelible.concurrency.tasks import run_to_completion
from indelible.recording.storage.write import RunName, end_steps, list_names, split_records, write_records
from indelible.redaction.secrets import redact_keys
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable
from indelible.store.database.transaction import Database, Row, Transaction, to_time

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
_LEFT: Final = """
    SELECT chat_id, id FROM debug_runs
    WHERE ended_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM workers WHERE workers.id = debug_runs.worker_id AND workers.heartbeat_at > $1
    )
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


class SqlRecords:
    """Implements protocol.py. The database must be up to date."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @run_to_completion
    async def write(self, records: Sequence[Record]) -> int:
        refusals = [refusal for batch in split_records(records) for refusal in await self._write_or_halve(batch)]
        if refusals:
            _log.warning("The database refused %d debug records: %s.", len(refusals), ", ".join(sorted({*refusals})))
        return len(refusals)

    async def _write_or_halve(self, batch: Sequence[Record]) -> list[str]:
        """Write this batch; returns the reason, one word, for each refused record."""
        try:
            await self._write_together(batch)
        except (DatabaseUnreachable, DatabaseUnusable):
            raise
        except Exception as error:
            if len(batch) == 1:
                return [type(error).__name__]
            half = len(batch) // 2
            return await self._write_or_halve(batch[:half]) + await self._write_or_halve(batch[half:])
        return []

    async def _write_together(self, batch: Sequence[Record]) -> None:
        await self._database.write(lambda transaction: write_records(transaction, batch), slow=True)

    async def list_runs(
        self, chat_id: str, *, before: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[RunSummary]:
        sql = _LIST if after is None else _LIST_NEWER
        rows = await self._database.read(
            lambda transaction: transaction.all(sql, chat_id, after or before, limit), single=True
        )
        return [_read(RunSummary, row) for row in (rows if after is None else rows[::-1])]

    async def load_tree(self, chat_id: str, run_id: str) -> RunTree | None:
        return await self._database.read(lambda transaction: _load_tree(transaction, _FIND, chat_id, run_id))

    async def find_tree(self, owner_id: str, run_id: str) -> RunTree | None:
        return await self._database.read(lambda transaction: _load_tree(transaction, _FIND_OF_USER, owner_id, run_id))

    async def load_attempt(self, chat_id: str, run_id: str, step: int, number: int) -> AttemptRecord | None:
        row = await self._database.read(
            lambda transaction: transaction.one(_ATTEMPT, chat_id, run_id, step, number), single=True
        )
        return None if row is None else await asyncio.get_running_loop().run_in_executor(_READER, _read_attempt, row)

    async def load_run(self, chat_id: str, run_id: str) -> WholeRun | None:
        tree = await self.load_tree(chat_id, run_id)
        if tree is None:
            return None
        steps = []
        for step in tree.steps:
            attempts = [await self.load_attempt(chat_id, run_id, line.step, line.number) for line in step.attempts]
            kept = [attempt for attempt in attempts if attempt is not None]
            steps.append(WholeStep(**{**asdict(step), "attempts": kept}))
        return WholeRun(**{**asdict(tree), "steps": steps})

    async def close_dead(self, *, lease_timeout_s: float) -> int:
        return await self._database.write(
            lambda transaction: _close_left(transaction, lease_timeout_s, _LEFT, error=GONE)
        )

    async def close_earlier(self, begun: Mapping[str, str], *, lease_timeout_s: float) -> int:
        found = await self._database.read(lambda transaction: transaction.all(_FIND_OPEN, list(begun)), single=True)
        earlier = [(run["chat_id"], run["id"]) for run in found if run["id"] < begun[run["chat_id"]]]
        if not earlier:
            return 0
        names = list_names(earlier)
        return await self._database.write(
            lambda transaction: _close_left(transaction, lease_timeout_s, _LEFT_OF, *names, error=REPLACED)
        )

    async def forget_before(self, moment: datetime, *, clock: Clock, chunk_s: float = CHUNK_S) -> int:
        return await self._forget(_BEFORE, moment, clock, chunk_s)

    async def forget_chat(self, chat_id: str, *, clock: Clock, chunk_s: float = CHUNK_S) -> int:
        return await self._forget(_OF_CHAT, chat_id, clock, chunk_s)

    async def _forget(self, oldest: str, due: datetime | str, clock: Clock, chunk_s: float) -> int:
        forgotten = 0
        while True:
            chunk = await self._database.write(
                lambda transaction: _forget_chunk(transaction, oldest, due, clock, chunk_s), slow=True
            )
            forgotten += chunk.runs
            if chunk.is_last:
                return forgotten


class _Chunk(NamedTuple):
    """What one transaction has deleted."""

    runs: int
    is_last: bool


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


# --- ending ---------------------------------------------------------------------------------


async def _close_left(
    transaction: Transaction, lease_timeout_s: float, left: str, *among: list[str], error: str
) -> int:
    """End what dead workers left open among these runs."""
    now = await transaction.now()
    found = await transaction.all(left, now - timedelta(seconds=lease_timeout_s), *among)
    runs: list[RunName] = [(run["chat_id"], run["id"]) for run in found]
    if runs:
        await transaction.run(_CLOSE, error, now, *list_names(runs))
        await end_steps(transaction, runs)
    return len(runs)


# --- deleting ----------------------------------------------------------------------------


async def _forget_chunk(
    transaction: Transaction, oldest: str, due: datetime | str, clock: Clock, chunk_s: float
) -> _Chunk:
    runs = 0
    started_s = clock.monotonic()
    while (run := await transaction.one(oldest, due)) is not None:
        runs += await _forget_some(transaction, run["chat_id"], run["id"])
        if clock.monotonic() - started_s >= chunk_s:
            return _Chunk(runs, is_last=False)
    return _Chunk(runs, is_last=True)


async def _forget_some(transaction: Transaction, chat_id: str, run_id: str) -> int:
    """Delete a few exchanges of a run, and the run when none is left; returns how many runs were deleted."""
    if await transaction.run(_FORGET_SOME, chat_id, run_id) == _ATTEMPTS_AT_ONCE:
        return 0
    await transaction.run("DELETE FROM debug_runs WHERE chat_id = $1 AND id = $2", chat_id, run_id)
    return 1


# --- rows ----------------------------------------------------------------------------------


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
