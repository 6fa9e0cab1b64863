"""A recorded run is read as a tree and exchange by exchange, so that a long one is never in memory as a whole."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict, replace
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.recording.recorded import LATER, NOON, load_run, make_all, make_attempt, make_run, make_step
from tests.store.driver import OWNER, Driver
from tests.support.engine import begin_read, get_database
from tests.support.tables import debug_attempts

from indelible.api.records import Exchanged, Record, RunRecord, RunTree, StepRecord, WholeRun
from indelible.errors import NotFound
from indelible.machine import commands as c
from indelible.recording.replay import load_exchange, write_run
from indelible.recording.storage import RecordStore
from indelible.testing import ManualClock

pytestmark = pytest.mark.both_databases

LONG_STEPS = 64
BODY_BYTES = 64 * 1024
BOUND_BYTES = 2 * 1024 * 1024
"""A quarter of what the run holds."""


async def write_long_run(chat: Driver, records: RecordStore) -> RunRecord:
    """A run of many steps, each an exchange with two large bodies; together they are four times the bound."""
    run = make_run(chat)
    body = "é" * (BODY_BYTES // 2)
    await records.write([run])
    for step in range(1, LONG_STEPS + 1):
        await records.write([make_step(run, step), make_attempt(run, step, request_body=body, response_body=body)])
    return run


async def load_tree(records: RecordStore, run: RunRecord) -> RunTree:
    tree = await records.load_tree(run.chat_id, run.id)
    assert tree is not None
    return tree


async def keep_reading(pieces: AsyncIterator[bytes], seen: list[bytes]) -> None:
    seen.extend([piece async for piece in pieces])


class Watch:
    peak_bytes = 0


@contextmanager
def watch_memory() -> Iterator[Watch]:
    """How much more memory was in use at once than before."""
    watch = Watch()
    gc.collect()
    tracemalloc.start()
    try:
        yield watch
        _, watch.peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


# --- the tree ---


async def test_a_tree_is_the_run_without_its_bodies_and_has_their_sizes(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    run = make_run(chat, status="error", model="demo-1", error="It failed.", ended_at=LATER)
    steps = [make_step(run, 1, status="completed", ended_at=LATER), make_step(run, 2, status="error", ended_at=LATER)]
    unanswered = make_attempt(run, 2, 1, status="failed", error="connection refused", request_body="{}")
    answered = make_attempt(
        run, 2, 2, status_code=529, request_body="é €", response_headers={}, response_body="x" * 99, head_at=LATER
    )
    await records.write([run, *steps, answered, unanswered])

    tree = await load_tree(records, run)

    assert {name: getattr(tree, name) for name in RunRecord.__struct_fields__} == asdict(run)
    assert [{n: getattr(step, n) for n in StepRecord.__struct_fields__} for step in tree.steps] == list(
        map(asdict, steps)
    )
    assert tree.steps[0].attempts == []
    for line, record in zip(tree.steps[1].attempts, (unanswered, answered), strict=True):
        assert [getattr(line, name) for name in Exchanged.__struct_fields__] == [
            getattr(record, name) for name in Exchanged.__struct_fields__
        ]
    assert [(line.request_bytes, line.response_bytes) for line in tree.steps[1].attempts] == [(2, 0), (6, 99)]
    assert await records.load_tree((await Driver(chat.store, engine).create()).id, run.id) is None


async def test_a_run_is_found_by_its_id_alone_and_by_its_owner_only(chat: Driver, records: RecordStore) -> None:
    run, step, attempt = make_all(chat)
    await records.write([run, step, attempt])
    found = await records.find_tree(OWNER, run.id)
    assert found is not None
    assert found == await load_tree(records, run)
    stranger = await chat.store.ensure_user("somebody else")
    assert await records.find_tree(stranger, run.id) is None
    assert await records.find_tree(OWNER, "run_nope") is None


async def test_an_exchange_is_loaded_alone_and_one_that_is_gone_is_none(chat: Driver, records: RecordStore) -> None:
    run = make_run(chat)
    exchanges = [make_attempt(run, 1, number, response_body=f"body {number}") for number in (1, 2)]
    await records.write([run, make_step(run), *exchanges])
    (step,) = (await load_tree(records, run)).steps
    assert [await load_exchange(records, line) for line in step.attempts] == exchanges
    for place in ((1, 3), (2, 1), (0, 0)):
        assert await records.load_attempt(chat.id, run.id, *place) is None
    await records.forget_chat(chat.id, clock=ManualClock())
    with pytest.raises(NotFound, match="deleted while it was read"):
        await load_exchange(records, step.attempts[0])


# --- the document ---


async def test_the_pieces_together_are_the_run_with_everything_in_it(chat: Driver, records: RecordStore) -> None:
    odd = '"\\ \n\0 \x9b é 😀 ]}'
    for steps, attempts in ((0, 0), (1, 0), (1, 1), (3, 2)):
        run = make_run(chat, error=odd, status="error", ended_at=LATER)
        said: dict[str, Any] = {"request_headers": {odd: odd}, "response_body": odd * 3}
        places = [(step, number) for step in range(1, steps + 1) for number in range(1, attempts + 1)]
        told: list[Record] = [make_step(run, step, error=odd) for step in range(1, steps + 1)]
        told += [make_attempt(run, *place, **said) for place in places]
        await records.write([run, *told])

        document = b"".join([piece async for piece in write_run(records, await load_tree(records, run))])

        whole = await load_run(records, chat.id, run.id)
        assert msgspec.json.decode(document, type=WholeRun) == whole
        assert json.loads(document) == json.loads(msgspec.json.encode(whole))
        assert document.count(b"\n") == 1 + len(told), "a line each"


async def test_a_document_of_a_run_that_is_deleted_meanwhile_has_no_end(chat: Driver, records: RecordStore) -> None:
    run = make_run(chat)
    await records.write([run, *(make_step(run, step) for step in (1, 2)), make_attempt(run, 1), make_attempt(run, 2)])
    pieces = write_run(records, await load_tree(records, run))
    seen = [await anext(pieces) for _ in range(3)]
    await chat.do(c.Delete())
    with pytest.raises(NotFound, match="deleted while it was read"):
        await keep_reading(pieces, seen)
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(b"".join(seen))


async def test_what_comes_while_a_run_is_written_does_not_break_the_document(
    chat: Driver, records: RecordStore
) -> None:
    run, step, exchange = make_all(chat)
    await records.write([run, step, exchange])
    pieces = write_run(records, await load_tree(records, run))
    seen = [await anext(pieces)]
    await records.write([make_step(run, 2), make_attempt(run, 2), make_attempt(run, 1, 2)])
    await records.write([replace(exchange, status="failed", error="reset", ended_at=LATER + timedelta(seconds=1))])
    seen += [piece async for piece in pieces]
    told = msgspec.json.decode(b"".join(seen), type=WholeRun)
    assert [[attempt.error for attempt in step.attempts] for step in told.steps] == [["reset"]]


async def test_nothing_in_the_database_is_held_for_a_slow_reader(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    run, step, exchange = make_all(chat)
    await records.write([run, step, exchange, replace(exchange, number=2)])
    async for _ in write_run(records, await load_tree(records, run)):
        assert "Current Checked out connections: 0" in engine.pool.status()


# --- a long run ---


async def test_a_run_of_many_large_steps_is_read_in_little_memory(chat: Driver, records: RecordStore) -> None:
    run = await write_long_run(chat, records)
    read_bytes = 0
    with watch_memory() as watch:
        async for piece in write_run(records, await load_tree(records, run)):
            read_bytes += len(piece)
    assert read_bytes > 2 * LONG_STEPS * BODY_BYTES == 4 * BOUND_BYTES
    assert watch.peak_bytes < BOUND_BYTES


async def test_a_tree_of_a_large_run_is_small(chat: Driver, records: RecordStore) -> None:
    run, step, _ = make_all(chat)
    body = "x" * (2 * BOUND_BYTES)
    await records.write([run, step, make_attempt(run, request_body=body, started_at=NOON)])
    with watch_memory() as watch:
        tree = await load_tree(records, run)
    assert tree.steps[0].attempts[0].request_bytes == len(body)
    assert watch.peak_bytes < BOUND_BYTES // 4


async def test_what_looks_like_a_key_is_kept_as_it_was_and_hidden_from_whoever_reads_it(
    chat: Driver, engine: AsyncEngine
) -> None:
    """The list, the tree, one exchange and the export: there is no way to a record that goes around it."""
    records = RecordStore(get_database(engine))
    error, body = "Not with sk-canarycanary.", '{"text": "use Bearer canarycanarycanary, and then"}'
    run, step, attempt = make_all(chat, status="error", error=error, ended_at=LATER)
    said = {"request_body": body, "response_body": body, "request_headers": {"x-note": error}, "error": error}
    await records.write([run, replace(step, status="error", error=error, ended_at=LATER), replace(attempt, **said)])
    tree = await load_tree(records, run)
    pieces: list[bytes] = []
    await keep_reading(write_run(records, tree), pieces)
    shown = [repr(await records.list_runs(chat.id)), repr(tree), repr(await load_run(records, chat.id, run.id))]
    for text in (*shown, b"".join(pieces).decode()):
        assert "canary" not in text
        assert "Not with [redacted]." in text
    attempts = json.loads(b"".join(pieces))["steps"][0]["attempts"]
    assert json.loads(attempts[0]["request_body"]) == {"text": "use Bearer [redacted], and then"}
    async with begin_read(engine) as connection:
        (kept,) = (await connection.execute(select(debug_attempts.c.request_body))).scalars()
    assert kept == body.encode()
