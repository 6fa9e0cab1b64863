"""Debug records on SQLite and on PostgreSQL. What is promised is in records.py.

Locks are taken in one order: chats, runs, then whatever is below. A chat is only kept from being deleted, by the
weakest lock there is (`FOR KEY SHARE`, the one that a foreign key takes anyway): commands lock it with `FOR NO KEY
UPDATE`, which goes together with that. With the chat held no foreign key can fail, so one chat that goes does not cost
the others their records. Only a deletion that has begun is waited for, as it would be by the foreign key. (`SKIP
LOCKED` is no way around it: PostgreSQL does not skip a row that its deleter has updated before.)

Statuses go forward because each upsert says when it may change a row that is there. The first end stands: the judge of
a dead worker and the worker itself may both be right, and the one that came first was read by somebody.

One transaction holds no more than a megabyte, and what it brings is refused together. Then it is halved, and the halves
are tried again, until the record that was to blame stands alone: the others, of other chats perhaps, do not pay for it.

Records never use the journal's lane (sql.py). On SQLite they stand in line with everybody else's writes, which is why
every transaction here is short. So is every read: an exchange comes alone, and nothing is held open between two.

Must stay true (tests/store/test_records.py, test_refused_records.py, test_reading_records.py, test_record_locks.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Row, Select, Table, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as insert_postgres
from sqlalchemy.dialects.sqlite import insert as insert_sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from indelible.clock import Clock
from indelible.content import encode
from indelible.store.engine import begin_read, begin_write
from indelible.store.failures import DatabaseUnreachable, DatabaseUnusable
from indelible.store.records import (
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
from indelible.store.snapshot import load_now
from indelible.store.tables import chats, debug_attempts, debug_runs, debug_steps, workers
from indelible.store.whole import to_its_end
from indelible.surrogates import clean_text

_log: Final = logging.getLogger(__name__)

GONE: Final = "The worker that ran it is gone."
REPLACED: Final = "The worker that ran it is gone, and another went on."
CHUNK_S: Final = 0.02
"""How long a transaction deletes. Its commit takes about as long again, so that it is done after 50 ms (R12)."""
_ATTEMPTS_AT_ONCE: Final = 4
"""Exchanges may be half a megabyte each: so many are deleted between two looks at the clock."""
_TOGETHER_CHARS: Final = 1024 * 1024
"""So much of what was said goes into one transaction."""


class SqlRecords:
    """See records.py for what it promises. The database is up to date."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def write(self, records: Sequence[Record]) -> int:
        refusals = [refusal for batch in _split(records) for refusal in await self._write_or_halve(batch)]
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

    @to_its_end
    async def _write_together(self, batch: Sequence[Record]) -> None:
        async with begin_write(self._engine) as connection:
            await _write(connection, batch)

    @to_its_end
    async def list_runs(self, chat_id: str, *, before: str | None = None, limit: int = 50) -> list[RunSummary]:
        wanted = select(debug_runs, _count(debug_steps, "step_count"), _count(debug_attempts, "attempt_count"))
        wanted = wanted.where(debug_runs.c.chat_id == chat_id)
        if before is not None:
            wanted = wanted.where(debug_runs.c.id < before)
        async with begin_read(self._engine) as connection:
            rows = await connection.execute(wanted.order_by(debug_runs.c.id.desc()).limit(limit))
            return [RunSummary(**row._mapping) for row in rows]

    @to_its_end
    async def load_tree(self, chat_id: str, run_id: str) -> RunTree | None:
        return await self._load_tree(select(debug_runs).where(debug_runs.c.chat_id == chat_id), run_id)

    @to_its_end
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
                attempts[row.step].append(AttemptSummary(**row._mapping))
        return RunTree(
            **run._mapping, steps=[StepTree(**step._mapping, attempts=attempts[step.step]) for step in steps]
        )

    @to_its_end
    async def load_attempt(self, run_id: str, step: int, number: int) -> AttemptRecord | None:
        key = (debug_attempts.c.run_id == run_id, debug_attempts.c.step == step, debug_attempts.c.number == number)
        async with begin_read(self._engine) as connection:
            row = (await connection.execute(select(debug_attempts).where(*key))).one_or_none()
            return None if row is None else _read_attempt(row)

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

    @to_its_end
    async def close_dead(self, *, dead_after_s: float) -> int:
        return await self._close_left(dead_after_s, error=GONE)

    @to_its_end
    async def close_earlier(self, begun: Mapping[str, str], *, dead_after_s: float) -> int:
        still_open = (debug_runs.c.chat_id.in_(begun), debug_runs.c.ended_at.is_(None))
        async with begin_read(self._engine) as connection:
            found = await connection.execute(select(debug_runs.c.id, debug_runs.c.chat_id).where(*still_open))
            earlier = [run.id for run in found if run.id < begun[run.chat_id]]
        if not earlier:
            return 0
        return await self._close_left(dead_after_s, debug_runs.c.id.in_(earlier), error=REPLACED)

    async def _close_left(self, dead_after_s: float, *among: ColumnElement[bool], error: str) -> int:
        """End what dead workers left open among these runs."""
        async with begin_write(self._engine) as connection:
            now = await load_now(connection)
            beating = select(workers.c.id).where(
                workers.c.id == debug_runs.c.worker_id, workers.c.heartbeat_at > now - timedelta(seconds=dead_after_s)
            )
            left = select(debug_runs.c.id).where(*among, debug_runs.c.ended_at.is_(None), ~beating.exists())
            # Whoever has one locked is writing to it or ending it as we would.
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

    @to_its_end
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


# --- writing -------------------------------------------------------------------------------


class _KnownRun(NamedTuple):
    chat_id: str
    has_ended: bool


def _split(records: Sequence[Record]) -> Iterator[list[Record]]:
    """What goes together: parents before children, of each kind in the order given."""
    batch: list[Record] = []
    size_chars = 0
    for record in (record for kind in _KINDS for record in records if isinstance(record, kind)):
        said_chars = len(record.request_body) + len(record.response_body) if isinstance(record, AttemptRecord) else 0
        if batch and size_chars + said_chars > _TOGETHER_CHARS:
            yield batch
            batch, size_chars = [], 0
        batch.append(record)
        size_chars += said_chars
    if batch:
        yield batch


async def _write(connection: AsyncConnection, records: Sequence[Record]) -> None:
    given = [record for record in records if isinstance(record, RunRecord)]
    steps = [record for record in records if isinstance(record, StepRecord)]
    attempts = [record for record in records if isinstance(record, AttemptRecord)]
    run_ids = {run.id for run in given} | {step.run_id for step in steps} | {attempt.run_id for attempt in attempts}
    chat_ids = {run.chat_id for run in given} | await _find_chats(connection, run_ids)
    held = await _hold_chats(connection, chat_ids)
    known = await _lock_runs(connection, run_ids, held)

    owners = {id_: run.chat_id for id_, run in known.items()}
    runs = [run for run in given if run.chat_id in held and owners.setdefault(run.id, run.chat_id) == run.chat_id]
    steps = [step for step in steps if step.run_id in owners]
    attempts = [attempt for attempt in attempts if attempt.run_id in owners]
    places = await _find_steps(connection, {attempt.run_id for attempt in attempts})
    places |= {(step.run_id, step.step) for step in steps}
    attempts = [attempt for attempt in attempts if (attempt.run_id, attempt.step) in places]

    await _upsert_runs(connection, runs)
    await _upsert_steps(connection, steps)
    await _upsert_attempts(connection, attempts)
    ended = {id_ for id_, run in known.items() if run.has_ended}
    await _end_steps(connection, ended | {run.id for run in runs if run.ended_at is not None})


async def _find_chats(connection: AsyncConnection, run_ids: Collection[str]) -> set[str]:
    found = select(debug_runs.c.chat_id).where(debug_runs.c.id.in_(run_ids))
    return set((await connection.execute(found)).scalars())


async def _hold_chats(connection: AsyncConnection, chat_ids: Collection[str]) -> set[str]:
    """Keep these chats from being deleted, and from nothing else; those that are there and stay."""
    found = select(chats.c.id).where(chats.c.id.in_(chat_ids)).order_by(chats.c.id)
    return set((await connection.execute(found.with_for_update(read=True, key_share=True))).scalars())


async def _lock_runs(
    connection: AsyncConnection, run_ids: Collection[str], chat_ids: Collection[str]
) -> dict[str, _KnownRun]:
    """The runs that are there, in chats that stay. Locked before their steps are, as whoever ends them does."""
    found = select(debug_runs.c.id, debug_runs.c.chat_id, debug_runs.c.ended_at).where(
        debug_runs.c.id.in_(run_ids), debug_runs.c.chat_id.in_(chat_ids)
    )
    locked = found.order_by(debug_runs.c.id).with_for_update(key_share=True)
    return {row.id: _KnownRun(row.chat_id, row.ended_at is not None) for row in await connection.execute(locked)}


async def _find_steps(connection: AsyncConnection, run_ids: Collection[str]) -> set[tuple[str, int]]:
    if not run_ids:
        return set()
    found = select(debug_steps.c.run_id, debug_steps.c.step).where(debug_steps.c.run_id.in_(run_ids))
    return {(row.run_id, row.step) for row in await connection.execute(found)}


async def _upsert_runs(connection: AsyncConnection, runs: Iterable[RunRecord]) -> None:
    new = _begin_insert(connection, debug_runs)
    later = {name: new.excluded[name] for name in ("status", "error", "ended_at")}
    later["model"] = func.coalesce(new.excluded.model, debug_runs.c.model)
    upsert = new.on_conflict_do_update(
        index_elements=[debug_runs.c.id], set_=later, where=debug_runs.c.ended_at.is_(None)
    )
    await _execute_all(connection, upsert, [asdict(run) for run in runs])


async def _upsert_steps(connection: AsyncConnection, steps: Iterable[StepRecord]) -> None:
    new = _begin_insert(connection, debug_steps)
    later = {name: new.excluded[name] for name in ("status", "error", "ended_at")}
    key = [debug_steps.c.run_id, debug_steps.c.step]
    upsert = new.on_conflict_do_update(index_elements=key, set_=later, where=debug_steps.c.ended_at.is_(None))
    await _execute_all(connection, upsert, [asdict(step) for step in steps])


async def _upsert_attempts(connection: AsyncConnection, attempts: Iterable[AttemptRecord]) -> None:
    new = _begin_insert(connection, debug_attempts)
    later = {name: new.excluded[name] for name in ("status", "ended_at")}
    later["error"] = func.coalesce(new.excluded.error, debug_attempts.c.error)
    key = [debug_attempts.c.run_id, debug_attempts.c.step, debug_attempts.c.number]
    upsert = new.on_conflict_do_update(index_elements=key, set_=later, where=new.excluded.status == "failed")
    await _execute_all(connection, upsert, [_write_attempt(attempt) for attempt in attempts])


def _begin_insert(connection: AsyncConnection, table: Table) -> Any:
    return (insert_sqlite if connection.dialect.name == "sqlite" else insert_postgres)(table)


async def _execute_all(connection: AsyncConnection, statement: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        await connection.execute(statement, rows)


async def _end_steps(connection: AsyncConnection, run_ids: Collection[str]) -> None:
    """What is open in runs that have ended ends as they did."""
    if not run_ids:
        return
    own = debug_runs.c.id == debug_steps.c.run_id
    ends = {name: select(debug_runs.c[name]).where(own).scalar_subquery() for name in ("status", "error", "ended_at")}
    still_open = (debug_steps.c.run_id.in_(run_ids), debug_steps.c.ended_at.is_(None))
    await connection.execute(update(debug_steps).where(*still_open).values(ends))


async def _close(connection: AsyncConnection, run_ids: Sequence[str], error: str, now: datetime) -> int:
    if run_ids:
        ended = {"status": "error", "error": error, "ended_at": now}
        await connection.execute(update(debug_runs).where(debug_runs.c.id.in_(run_ids)).values(ended))
        await _end_steps(connection, run_ids)
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


def _write_attempt(attempt: AttemptRecord) -> dict[str, Any]:
    headers = attempt.response_headers
    return {
        **asdict(attempt),
        "request_headers": encode(attempt.request_headers),
        "request_body": clean_text(attempt.request_body).encode(),
        "response_headers": None if headers is None else encode(headers),
        "response_body": clean_text(attempt.response_body).encode(),
    }


def _read_attempt(row: Row[Any]) -> AttemptRecord:
    headers = row.response_headers
    kept = {
        "request_headers": msgspec.json.decode(row.request_headers, type=dict[str, str]),
        "request_body": row.request_body.decode(),
        "response_headers": None if headers is None else msgspec.json.decode(headers, type=dict[str, str]),
        "response_body": row.response_body.decode(),
    }
    return AttemptRecord(**{**row._mapping, **kept})
