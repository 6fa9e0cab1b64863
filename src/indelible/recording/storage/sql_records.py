"""Debug records on SQLite and on PostgreSQL. What is promised is in protocol.py.

One transaction holds no more than a megabyte, and what it brings is refused together. Then it is halved, and the halves
are tried again, until the record that was to blame stands alone: the others, of other chats perhaps, do not pay for it.
What is locked meanwhile, and what an upsert may change, is write.py.

Records never use the journal's lane (store/sql_store.py). On SQLite they stand in line with everybody else's writes,
which is why every transaction here is short. So is every read: an exchange comes alone, and nothing is held open
between two.

Records were redacted by name before they were written. What looks like a key in a text is hidden here, as a record is
read: whatever shows or exports one reads it through this class, so none can forget to (redaction/patterns.py).

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
from sqlalchemy import ColumnElement, Row, Select, Table, bindparam, delete, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.clock import Clock
from indelible.concurrency.tasks import run_to_completion
from indelible.recording.storage.protocol import (
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
from indelible.recording.storage.write import end_steps, split_records, write_records
from indelible.redaction.patterns import redact_keys
from indelible.store.commands.facts import alive_workers, load_now
from indelible.store.database.engine import begin_read, begin_write
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable
from indelible.store.database.tables import chats, debug_attempts, debug_runs, debug_steps, workers

_Shown = TypeVar("_Shown", bound=msgspec.Struct)
_log: Final = logging.getLogger(__name__)
_READER: Final = ThreadPoolExecutor(1, thread_name_prefix="debug reading")
"""Searching a body for keys takes milliseconds. The loop's own threads may all be busy with tools for hours."""

GONE: Final = "The worker that ran it is gone."
REPLACED: Final = "The worker died; another worker continued."
CHUNK_S: Final = 0.02
"""How long a transaction deletes. Its commit takes about as long again, so that it is done after 50 ms (R12)."""
_ATTEMPTS_AT_ONCE: Final = 4
"""How many exchanges, of up to half a megabyte each, are deleted between two clock checks."""
_FIND_OPEN: Final = select(debug_runs.c.id, debug_runs.c.chat_id).where(
    debug_runs.c.chat_id.in_(bindparam("chat_ids", expanding=True)), debug_runs.c.ended_at.is_(None)
)


class SqlRecords:
    """See protocol.py for what it promises. The database is up to date."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def write(self, records: Sequence[Record]) -> int:
        refusals = [refusal for batch in split_records(records) for refusal in await self._write_or_halve(batch)]
        if refusals:
            _log.warning("The database refused %d debug records: %s.", len(refusals), ", ".join(sorted({*refusals})))
        return len(refusals)

    async def _write_or_halve(self, batch: Sequence[Record]) -> list[str]:
        """Why records of these were refused: a word for each that was."""
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

    @run_to_completion
    async def _write_together(self, batch: Sequence[Record]) -> None:
        async with begin_write(self._engine) as connection:
            await write_records(connection, batch)

    @run_to_completion
    async def list_runs(self, chat_id: str, *, before: str | None = None, limit: int = 50) -> list[RunSummary]:
        wanted = select(debug_runs, _count(debug_steps, "step_count"), _count(debug_attempts, "attempt_count"))
        wanted = wanted.where(debug_runs.c.chat_id == chat_id)
        if before is not None:
            wanted = wanted.where(debug_runs.c.id < before)
        async with begin_read(self._engine) as connection:
            rows = await connection.execute(wanted.order_by(debug_runs.c.id.desc()).limit(limit))
            return [_hide_keys(RunSummary(**row._mapping)) for row in rows]

    @run_to_completion
    async def load_tree(self, chat_id: str, run_id: str) -> RunTree | None:
        return await self._load_tree(select(debug_runs).where(debug_runs.c.chat_id == chat_id), run_id)

    @run_to_completion
    async def find_tree(self, owner_id: str, run_id: str) -> RunTree | None:
        own = select(chats.c.id).where(chats.c.id == debug_runs.c.chat_id, chats.c.owner_id == owner_id)
        return await self._load_tree(select(debug_runs).where(own.exists()), run_id)

    async def _load_tree(self, among: Select[Any], run_id: str) -> RunTree | None:
        own_steps = select(debug_steps).where(debug_steps.c.run_id == run_id).order_by(debug_steps.c.step)
        own_attempts = select(*_SUMMARY).where(debug_attempts.c.run_id == run_id).order_by(debug_attempts.c.number)
        async with begin_read(self._engine) as connection:
            run = (await connection.execute(among.where(debug_runs.c.id == run_id))).one_or_none()
            if run is None:
                return None
            steps = (await connection.execute(own_steps)).all()
            attempts: dict[int, list[AttemptSummary]] = {step.step: [] for step in steps}
            for row in await connection.execute(own_attempts):
                attempts[row.step].append(_hide_keys(AttemptSummary(**row._mapping)))
        trees = [_hide_keys(StepTree(**step._mapping, attempts=attempts[step.step])) for step in steps]
        return _hide_keys(RunTree(**run._mapping, steps=trees))

    @run_to_completion
    async def load_attempt(self, run_id: str, step: int, number: int) -> AttemptRecord | None:
        key = (debug_attempts.c.run_id == run_id, debug_attempts.c.step == step, debug_attempts.c.number == number)
        async with begin_read(self._engine) as connection:
            row = (await connection.execute(select(debug_attempts).where(*key))).one_or_none()
        return None if row is None else await asyncio.get_running_loop().run_in_executor(_READER, _read_attempt, row)

    async def load_run(self, chat_id: str, run_id: str) -> WholeRun | None:
        tree = await self.load_tree(chat_id, run_id)
        if tree is None:
            return None
        steps = []
        for step in tree.steps:
            attempts = [await self.load_attempt(run_id, line.step, line.number) for line in step.attempts]
            kept = [attempt for attempt in attempts if attempt is not None]
            steps.append(WholeStep(**{**asdict(step), "attempts": kept}))
        return WholeRun(**{**asdict(tree), "steps": steps})

    @run_to_completion
    async def close_dead(self, *, lease_timeout_s: float) -> int:
        return await self._close_left(lease_timeout_s, error=GONE)

    @run_to_completion
    async def close_earlier(self, begun: Mapping[str, str], *, lease_timeout_s: float) -> int:
        async with begin_read(self._engine) as connection:
            found = await connection.execute(_FIND_OPEN, {"chat_ids": list(begun)})
            earlier = [run.id for run in found if run.id < begun[run.chat_id]]
        if not earlier:
            return 0
        return await self._close_left(lease_timeout_s, debug_runs.c.id.in_(earlier), error=REPLACED)

    async def _close_left(self, lease_timeout_s: float, *among: ColumnElement[bool], error: str) -> int:
        """End what dead workers left open among these runs."""
        async with begin_write(self._engine) as connection:
            now = await load_now(connection)
            beating = alive_workers(now - timedelta(seconds=lease_timeout_s)).where(
                workers.c.id == debug_runs.c.worker_id
            )
            left = select(debug_runs.c.id).where(*among, debug_runs.c.ended_at.is_(None), ~beating.exists())
            # A locked run is being written to, or ended as here.
            found = await connection.execute(left.with_for_update(skip_locked=True))
            return await _close(connection, found.scalars().all(), error, now)

    async def forget_before(self, moment: datetime, *, clock: Clock, chunk_s: float = CHUNK_S) -> int:
        return await self._forget(debug_runs.c.started_at < moment, clock, chunk_s)

    async def forget_chat(self, chat_id: str, *, clock: Clock, chunk_s: float = CHUNK_S) -> int:
        return await self._forget(debug_runs.c.chat_id == chat_id, clock, chunk_s)

    async def _forget(self, due: ColumnElement[bool], clock: Clock, chunk_s: float) -> int:
        forgotten = 0
        while True:
            chunk = await self._forget_chunk(due, clock, chunk_s)
            forgotten += chunk.runs
            if chunk.is_last:
                return forgotten

    @run_to_completion
    async def _forget_chunk(self, due: ColumnElement[bool], clock: Clock, chunk_s: float) -> _Chunk:
        runs = 0
        async with begin_write(self._engine) as connection:
            started_s = clock.monotonic()
            while (run_id := await _find_oldest(connection, due)) is not None:
                runs += await _forget_some(connection, run_id)
                if clock.monotonic() - started_s >= chunk_s:
                    return _Chunk(runs, is_last=False)
        return _Chunk(runs, is_last=True)


class _Chunk(NamedTuple):
    """What one transaction has forgotten."""

    runs: int
    is_last: bool


# --- ending ---------------------------------------------------------------------------------


async def _close(connection: AsyncConnection, run_ids: Sequence[str], error: str, now: datetime) -> int:
    if run_ids:
        ended = {"status": "error", "error": error, "ended_at": now}
        await connection.execute(update(debug_runs).where(debug_runs.c.id.in_(run_ids)).values(ended))
        await end_steps(connection, run_ids)
    return len(run_ids)


# --- forgetting ----------------------------------------------------------------------------


async def _find_oldest(connection: AsyncConnection, due: ColumnElement[bool]) -> str | None:
    oldest = select(debug_runs.c.id).where(due).order_by(debug_runs.c.started_at).limit(1)
    found: str | None = (await connection.execute(oldest.with_for_update(skip_locked=True))).scalar()
    return found


async def _forget_some(connection: AsyncConnection, run_id: str) -> int:
    """Delete a few exchanges of a run, and the run when none is left; how many runs it were."""
    key = (debug_attempts.c.run_id, debug_attempts.c.step, debug_attempts.c.number)
    some = select(*key).where(debug_attempts.c.run_id == run_id).limit(_ATTEMPTS_AT_ONCE)
    deleted = await connection.execute(delete(debug_attempts).where(tuple_(*key).in_(some)))
    if deleted.rowcount == _ATTEMPTS_AT_ONCE:
        return 0
    await connection.execute(delete(debug_runs).where(debug_runs.c.id == run_id))
    return 1


# --- rows ----------------------------------------------------------------------------------

_KINDS: Final = (RunRecord, StepRecord, AttemptRecord)
_SUMMARY: Final = (
    *(debug_attempts.c[name] for name in Exchanged.__struct_fields__),
    func.length(debug_attempts.c.request_body).label("request_bytes"),
    func.length(debug_attempts.c.response_body).label("response_bytes"),
)


def _count(table: Table, name: str) -> Any:
    counted = select(func.count()).select_from(table).where(table.c.run_id == debug_runs.c.id)
    return counted.scalar_subquery().label(name)


def _read_attempt(row: Row[Any]) -> AttemptRecord:
    headers = row.response_headers
    kept = {
        "request_headers": _read_headers(row.request_headers),
        "request_body": redact_keys(row.request_body.decode()),
        "response_headers": None if headers is None else _read_headers(headers),
        "response_body": redact_keys(row.response_body.decode()),
    }
    return _hide_keys(AttemptRecord(**{**row._mapping, **kept}))


def _read_headers(written: bytes) -> dict[str, str]:
    headers = msgspec.json.decode(written, type=dict[str, str])
    return {redact_keys(name): redact_keys(value) for name, value in headers.items()}


def _hide_keys(record: _Shown) -> _Shown:
    """A record without what looks like a key in its error and its address."""
    texts = {name: getattr(record, name) for name in ("error", "url") if getattr(record, name, None)}
    return replace(record, **{name: redact_keys(text) for name, text in texts.items()}) if texts else record
