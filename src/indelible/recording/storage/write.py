"""Writing debug records: what goes into one transaction, and how (sql_records.py says what that promises).

Locks are acquired in one order: chats, runs, then their children. A chat is only kept from being deleted, by the
weakest lock there is (`FOR KEY SHARE`, the one that a foreign key needs anyway): commands lock it with `FOR NO KEY
UPDATE`, which goes together with that. With the chat held no foreign key can fail, so one chat that goes does not cost
the others their records. Only a deletion that has begun is waited for, as it would be by the foreign key. (`SKIP
LOCKED` is no way around it: PostgreSQL does not skip a row that its deleter has updated before.)

Statuses go forward because each upsert says when it may change a row that is there. The first end stands: the
worker that ends a dead worker's run and that worker itself may both be right, and a reader may have seen the first.

Every statement is built once: to build an upsert takes as long as to carry it out, and records are written while
replies are streamed.

Must stay true (tests/recording/test_records.py, test_refused_records.py, test_record_locks.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from msgspec.structs import asdict
from sqlalchemy import BindParameter, bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from indelible.content import encode
from indelible.content.unicode import clean_text
from indelible.recording.storage.protocol import AttemptRecord, Record, RunRecord, StepRecord
from indelible.store.database.dialect import upsert
from indelible.store.database.tables import chats, debug_attempts, debug_runs, debug_steps

_TOGETHER_CHARS: Final = 1024 * 1024
"""Bodies of so many characters go into one transaction."""

_KINDS: Final = (RunRecord, StepRecord, AttemptRecord)
_END: Final = ("status", "error", "ended_at")
_RUNS: Final[BindParameter[str]] = bindparam("run_ids", expanding=True)
_CHATS: Final[BindParameter[str]] = bindparam("chat_ids", expanding=True)

_FIND_CHATS: Final = select(debug_runs.c.chat_id).where(debug_runs.c.id.in_(_RUNS))
_HOLD_CHATS: Final = (
    select(chats.c.id).where(chats.c.id.in_(_CHATS)).order_by(chats.c.id).with_for_update(read=True, key_share=True)
)
_LOCK_RUNS: Final = (
    select(debug_runs.c.id, debug_runs.c.chat_id, debug_runs.c.ended_at)
    .where(debug_runs.c.id.in_(_RUNS))
    .order_by(debug_runs.c.id)
    .with_for_update(key_share=True)
)
_FIND_STEPS: Final = select(debug_steps.c.run_id, debug_steps.c.step).where(debug_steps.c.run_id.in_(_RUNS))
_END_STEPS: Final = (
    update(debug_steps)
    .where(debug_steps.c.run_id.in_(_RUNS), debug_steps.c.ended_at.is_(None))
    .values({
        name: select(debug_runs.c[name]).where(debug_runs.c.id == debug_steps.c.run_id).scalar_subquery()
        for name in _END
    })
)  # fmt: skip


class _Upserts(NamedTuple):
    runs: Any
    steps: Any
    attempts: Any


class _KnownRun(NamedTuple):
    chat_id: str
    has_ended: bool


def split_records(records: Sequence[Record]) -> Iterator[list[Record]]:
    """What goes together: parents before children, of each kind in the order given."""
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


async def write_records(connection: AsyncConnection, records: Sequence[Record]) -> None:
    given = [record for record in records if isinstance(record, RunRecord)]
    steps = [record for record in records if isinstance(record, StepRecord)]
    attempts = [record for record in records if isinstance(record, AttemptRecord)]
    run_ids = {run.id for run in given} | {step.run_id for step in steps} | {attempt.run_id for attempt in attempts}
    chat_ids = {run.chat_id for run in given} | await _find_chats(connection, run_ids - {run.id for run in given})
    held = await _hold_chats(connection, chat_ids)
    known = await _lock_runs(connection, run_ids)

    chat_of = {run.id: run.chat_id for run in given} | {id_: run.chat_id for id_, run in known.items()}
    staying = {id_ for id_, chat_id in chat_of.items() if chat_id in held}
    runs = [run for run in given if run.id in staying and run.chat_id == chat_of[run.id]]
    steps = [step for step in steps if step.run_id in staying]
    places = {(step.run_id, step.step) for step in steps}
    attempts = [attempt for attempt in attempts if attempt.run_id in staying]
    places |= await _find_steps(
        connection, {each.run_id for each in attempts if (each.run_id, each.step) not in places}
    )
    attempts = [attempt for attempt in attempts if (attempt.run_id, attempt.step) in places]

    upserts = _build_upserts(connection.dialect.name)
    await _upsert(connection, upserts.runs, [asdict(run) for run in runs])
    await _upsert(connection, upserts.steps, [asdict(step) for step in steps])
    await _upsert(connection, upserts.attempts, [_write_attempt(attempt) for attempt in attempts])
    ended = {id_ for id_, run in known.items() if run.has_ended}
    await end_steps(connection, ended | {run.id for run in runs if run.ended_at is not None})


async def end_steps(connection: AsyncConnection, run_ids: Collection[str]) -> None:
    """What is open in runs that have ended ends as they did."""
    if run_ids:
        await connection.execute(_END_STEPS, {"run_ids": list(run_ids)})


async def _find_chats(connection: AsyncConnection, run_ids: Collection[str]) -> set[str]:
    if not run_ids:
        return set()
    return set((await connection.execute(_FIND_CHATS, {"run_ids": list(run_ids)})).scalars())


async def _hold_chats(connection: AsyncConnection, chat_ids: Collection[str]) -> set[str]:
    """Keep these chats from being deleted, and from nothing else; returns those that exist."""
    return set((await connection.execute(_HOLD_CHATS, {"chat_ids": list(chat_ids)})).scalars())


async def _lock_runs(connection: AsyncConnection, run_ids: Collection[str]) -> dict[str, _KnownRun]:
    """The existing runs. They are locked before their steps, in the same order as when they are ended."""
    found = await connection.execute(_LOCK_RUNS, {"run_ids": list(run_ids)})
    return {row.id: _KnownRun(row.chat_id, row.ended_at is not None) for row in found}


async def _find_steps(connection: AsyncConnection, run_ids: Collection[str]) -> set[tuple[str, int]]:
    if not run_ids:
        return set()
    found = await connection.execute(_FIND_STEPS, {"run_ids": list(run_ids)})
    return {(row.run_id, row.step) for row in found}


async def _upsert(connection: AsyncConnection, statement: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        await connection.execute(statement, rows)


@cache
def _build_upserts(dialect: str) -> _Upserts:
    run, step, attempt = (upsert(dialect, table) for table in (debug_runs, debug_steps, debug_attempts))
    run_end = {name: run.excluded[name] for name in _END}
    run_end["model"] = func.coalesce(run.excluded.model, debug_runs.c.model)
    step_end = {name: step.excluded[name] for name in _END}
    failure = {name: attempt.excluded[name] for name in ("status", "ended_at")}
    failure["error"] = func.coalesce(attempt.excluded.error, debug_attempts.c.error)
    return _Upserts(
        run.on_conflict_do_update(
            index_elements=[debug_runs.c.id], set_=run_end, where=debug_runs.c.ended_at.is_(None)
        ),
        step.on_conflict_do_update(
            index_elements=[debug_steps.c.run_id, debug_steps.c.step],
            set_=step_end,
            where=debug_steps.c.ended_at.is_(None),
        ),
        attempt.on_conflict_do_update(
            index_elements=[debug_attempts.c.run_id, debug_attempts.c.step, debug_attempts.c.number],
            set_=failure,
            where=attempt.excluded.status == "failed",
        ),
    )


def _write_attempt(attempt: AttemptRecord) -> dict[str, Any]:
    headers = attempt.response_headers
    return {
        **asdict(attempt),
        "request_headers": encode(attempt.request_headers),
        "request_body": clean_text(attempt.request_body).encode(),
        "response_headers": None if headers is None else encode(headers),
        "response_body": clean_text(attempt.response_body).encode(),
    }
