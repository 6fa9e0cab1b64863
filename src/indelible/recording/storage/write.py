"""Writing debug records: the content of one transaction, and its locks (for sql_records.py).

Locks are acquired in one order: chats, runs, then their children. The lock on a chat only prevents its deletion. It is
the weakest there is (`FOR KEY SHARE`, which a foreign key takes anyway), and does not conflict with the `FOR NO KEY
UPDATE` of commands. While it is held no foreign key can fail, so deleting one chat does not cost the others their
records. Only a deletion that has begun is waited for, as the foreign key would do anyway. (`SKIP LOCKED` does not
avoid that: PostgreSQL does not skip a row that its deleter has updated before.)

A status only moves forward, because each upsert states when it may change an existing row. The first end stands: the
worker that ends a dead worker's run and that worker itself may both be right, and a reader may have seen the first.

Must stay true (tests/recording/test_records.py, test_refused_records.py, test_record_locks.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import astuple

from indelible.api.records import AttemptRecord, Record, RunRecord, StepRecord
from indelible.content import encode
from indelible.content.unicode import clean_text
from indelible.store.database.transaction import Transaction

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


def _spell_upsert(table: str, kind: type[Record], key: str, change: str) -> str:
    """The values are the fields of a record, in their order."""
    names = kind.__struct_fields__
    values = ", ".join(f"${place}" for place in range(1, len(names) + 1))
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) ON CONFLICT ({key}) DO UPDATE SET {change}"


_END: Final = "status = excluded.status, error = excluded.error, ended_at = excluded.ended_at"
_WRITE_RUN: Final = _spell_upsert(
    "debug_runs",
    RunRecord,
    "chat_id, id",
    f"{_END}, model = coalesce(excluded.model, debug_runs.model) WHERE debug_runs.ended_at IS NULL",
)
_WRITE_STEP: Final = _spell_upsert(
    "debug_steps", StepRecord, "chat_id, run_id, step", f"{_END} WHERE debug_steps.ended_at IS NULL"
)
_WRITE_ATTEMPT: Final = _spell_upsert(
    "debug_attempts",
    AttemptRecord,
    "chat_id, run_id, step, number",
    "status = excluded.status, ended_at = excluded.ended_at, error = coalesce(excluded.error, debug_attempts.error) "
    "WHERE excluded.status = 'failed'",
)


def split_records(records: Sequence[Record]) -> Iterator[list[Record]]:
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


async def write_records(transaction: Transaction, records: Sequence[Record]) -> None:
    given = [record for record in records if isinstance(record, RunRecord)]
    steps = [record for record in records if isinstance(record, StepRecord)]
    attempts = [record for record in records if isinstance(record, AttemptRecord)]
    held = await _hold_chats(transaction, {record.chat_id for record in records})
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
    await end_steps(transaction, ended | {_name_run(run) for run in runs if run.ended_at is not None})


def _name_run(record: Record) -> RunName:
    """The run that a record is, or belongs to."""
    return record.chat_id, record.id if isinstance(record, RunRecord) else record.run_id


async def end_steps(transaction: Transaction, runs: Collection[RunName]) -> None:
    """End the open steps of runs that have ended, with the run's status."""
    if runs:
        await transaction.run(_END_STEPS, *list_names(runs))


async def _hold_chats(transaction: Transaction, chat_ids: Collection[str]) -> set[str]:
    """Keep these chats from being deleted, and from nothing else; returns those that exist."""
    return {row["id"] for row in await transaction.all(_HOLD_CHATS, list(chat_ids))}


async def _lock_runs(transaction: Transaction, runs: Collection[RunName]) -> dict[RunName, bool]:
    """The existing ones of these runs, and whether each has ended. Runs are locked before their steps, in one order."""
    found = await transaction.all(_LOCK_RUNS, *list_names(runs))
    return {(row["chat_id"], row["id"]): row["ended_at"] is not None for row in found}


async def _find_steps(transaction: Transaction, runs: Collection[RunName]) -> set[tuple[str, str, int]]:
    if not runs:
        return set()
    found = await transaction.all(_FIND_STEPS, *list_names(runs))
    return {(row["chat_id"], row["run_id"], row["step"]) for row in found}


def list_names(runs: Collection[RunName]) -> tuple[list[str], list[str]]:
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
