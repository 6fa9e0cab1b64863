"""Debug records on both databases: what is written goes forward only, whatever is written, and goes when it has to.

`KEPT_BY` names, sentence by sentence, a test that fails when a promise of `RecordStore` is not true any more.
How they are read, however long a run is, is test_reading_records.py; what a database does not take is
test_refused_records.py; what records wait for, and who waits for them, is test_record_locks.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.recording.recorded import LATER, NOON, count_rows, load_run, make_all, make_attempt, make_run, make_step
from tests.store.driver import Driver, dump
from tests.support.engine import begin_write, get_database
from tests.support.examples import count_examples
from tests.support.tables import workers

from indelible.api.records import Record, RunRecord, StepRecord
from indelible.errors import NotAllowed
from indelible.machine import commands as c
from indelible.machine.commands import Delete
from indelible.recording.storage import GONE, REPLACED, RecordStore
from indelible.store.store import Store
from indelible.testing import ManualClock

pytestmark = pytest.mark.both_databases

ENDS = ("completed", "error", "interrupted")
EXAMPLES = count_examples(15)
LAST = "run_zzz"

KEPT_BY = {
    "write": {
        "Write what is new": "a_run_comes_back_as_it_was_written_with_everything_in_it",
        "A run and a step go on": "the_first_end_stands_whatever_comes_later",
        "An exchange is written once": "a_close_that_failed_is_added_to_an_exchange_that_keeps_its_body",
        "What belongs to a chat": "what_belongs_to_a_chat_that_is_gone_is_left_out_and_the_rest_is_written",
        "What the database refuses": "what_the_database_refuses_costs_nothing_but_itself_and_what_hangs_on_it",
        "If the database is away": "a_database_that_takes_nothing_is_reported_and_what_was_recorded_is_written_later",
        "Writing all of it again": "a_part_of_a_story_and_then_all_of_it_is_all_of_it",
        "A step that is still open": "a_step_that_is_open_when_its_run_ends_ends_as_the_run_did",
        "Nobody who works": "a_command_does_not_wait_for_records_that_are_being_written",
        "No text is refused": "no_text_fails_a_write",
    },
    "list_runs": {"The runs of a chat": "the_pages_together_are_all_runs_of_the_chat_the_newest_first"},
    "load_tree": {
        "A run of this chat": "a_tree_is_the_run_without_its_bodies_and_has_their_sizes",
        "However much was said": "a_tree_of_a_large_run_is_small",
    },
    "find_tree": {
        "The same, of whichever": "a_run_is_found_by_its_id_alone_and_by_its_owner_only",
        "It looks into each": "a_run_is_found_by_its_id_alone_and_by_its_owner_only",
    },
    "load_attempt": {"One exchange with what was said": "an_exchange_is_loaded_alone_and_one_that_is_gone_is_none"},
    "close_dead": {
        "End the runs of workers": "what_a_dead_worker_left_open_is_ended_and_a_live_ones_is_not",
        "A live worker's runs": "what_a_dead_worker_left_open_is_ended_and_a_live_ones_is_not",
        "Who is alive": "a_worker_that_beats_again_is_alive_and_one_that_is_forgotten_is_gone",
        "With nothing to end": "a_question_that_is_asked_often_is_answered_from_an_index",
    },
    "close_earlier": {
        "End what such workers left open": "a_run_ends_what_dead_workers_left_open_before_it_in_its_chat_only",
        "Whoever took the chat over": "what_a_worker_left_open_is_ended_by_whoever_takes_its_chat_over",
        "A live worker's runs": "a_worker_that_handed_the_chat_over_tells_the_end_of_its_run_itself",
    },
    "forget_before": {
        "Delete all runs": "runs_that_began_too_long_ago_are_forgotten_with_all_that_is_in_them",
        "No transaction of it": "r12_forgetting_goes_in_short_transactions",
    },
    "forget_chat": {
        "Delete the runs of a chat": "r12_a_chat_that_is_deleted_loses_its_records_first_and_piece_by_piece"
    },
}


async def see(records: RecordStore, run: RunRecord) -> tuple[str, str | None, datetime | None]:
    """How a run stands."""
    found = await load_run(records, run.chat_id, run.id)
    assert found is not None
    return found.status, found.error, found.ended_at


# --- the promises ---


def list_sentences(name: str) -> list[str]:
    told = " ".join((inspect.getdoc(getattr(RecordStore, name)) or "").split()).replace(" * ", " ")
    return re.split(r"(?<=\.) (?=[A-Z`])", told)


def test_every_sentence_of_every_promise_is_kept_by_a_test() -> None:
    told = "".join(path.read_text() for path in Path(__file__).parents[1].glob("*/test_*.py"))
    tests = set(re.findall(r"def test_(\w+)\(", told))
    promises = {name for name, _ in inspect.getmembers(RecordStore, inspect.isfunction) if not name.startswith("_")}
    assert promises == set(KEPT_BY)
    for name, kept in KEPT_BY.items():
        for sentence in list_sentences(name):
            assert sum(sentence.startswith(beginning) for beginning in kept) == 1, sentence
        assert len(list_sentences(name)) == len(kept)
        assert set(kept.values()) <= tests


# --- what is written ---


async def test_a_run_comes_back_as_it_was_written_with_everything_in_it(chat: Driver, records: RecordStore) -> None:
    run = make_run(chat, status="error", model="demo-1", error="It failed.", ended_at=LATER)
    steps = [make_step(run, 1, status="completed", ended_at=LATER), make_step(run, 2, status="error", ended_at=LATER)]
    refused = make_attempt(run, 2, 1, status="failed", error="connection refused")
    answered = make_attempt(
        run,
        2,
        2,
        status_code=529,
        request_headers={"accept": "text/event-stream"},
        request_body='{"stream": true}',
        response_headers={"retry-after": "2"},
        response_body="data: {}\n\n",
        head_at=NOON + timedelta(seconds=1),
    )
    await records.write([run, *steps, answered, refused])

    whole = await load_run(records, chat.id, run.id)

    assert whole is not None
    assert RunRecord(**{name: getattr(whole, name) for name in RunRecord.__struct_fields__}) == run
    assert [StepRecord(**{n: getattr(step, n) for n in StepRecord.__struct_fields__}) for step in whole.steps] == steps
    assert [step.attempts for step in whole.steps] == [[], [refused, answered]]
    (line,) = await records.list_runs(chat.id)
    assert (line.id, line.step_count, line.attempt_count) == (run.id, 2, 2)


async def test_exchanges_are_there_while_their_step_still_runs(chat: Driver, records: RecordStore) -> None:
    run, step, attempt = make_all(chat)
    await records.write([run])
    await records.write([step])
    await records.write([attempt])
    await records.write([make_attempt(run, number=2)])
    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    assert (whole.status, whole.steps[0].status) == ("in_progress", "in_progress")
    assert [one.number for one in whole.steps[0].attempts] == [1, 2]


async def test_the_order_in_a_batch_does_not_matter_between_parents_and_children(
    chat: Driver, records: RecordStore
) -> None:
    run, step, attempt = make_all(chat)
    over = replace(step, status="error", error="step", ended_at=LATER)
    await records.write([attempt, step, replace(run, status="interrupted", ended_at=LATER), over, run])
    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    assert (whole.status, whole.steps[0].status, whole.steps[0].error) == ("interrupted", "error", "step")
    assert whole.steps[0].attempts == [attempt]


async def test_nothing_to_write_is_nothing(chat: Driver, records: RecordStore, engine: AsyncEngine) -> None:
    before = await dump(engine)
    await records.write([])
    assert await dump(engine) == before


def test_what_has_ended_says_when_and_what_has_not_does_not() -> None:
    known: dict[str, Any] = {"chat_id": "c", "run_id": "r", "step": 1, "started_at": NOON}
    for status in ENDS:
        with pytest.raises(ValueError, match=f"A record that is {status} must have an end"):
            StepRecord(**known, status=status)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not have an end"):
        StepRecord(**known, status="in_progress", ended_at=LATER)
    with pytest.raises(ValueError, match="must not have an end"):
        RunRecord(id="r", chat_id="c", turn_id=None, kind="title", status="in_progress", worker_id="w",
                  started_at=NOON, ended_at=LATER)  # fmt: skip


# --- forward only ---


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("later", ["in_progress", *ENDS])
async def test_the_first_end_stands_whatever_comes_later(
    chat: Driver, records: RecordStore, end: Any, later: Any
) -> None:
    run, step, _ = make_all(chat, model="demo-1")
    ended: dict[str, Any] = {"status": end, "error": "first", "ended_at": LATER}
    await records.write([run, step])
    await records.write([replace(step, **ended), replace(run, **ended)])
    too_late: dict[str, Any] = {"status": later, "error": "second"}
    too_late["ended_at"] = None if later == "in_progress" else LATER + timedelta(hours=1)

    await records.write([replace(run, **too_late, model="demo-2"), replace(step, **too_late)])

    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    assert (whole.status, whole.error, whole.ended_at, whole.model) == (end, "first", LATER, "demo-1")
    assert [(one.status, one.error, one.ended_at) for one in whole.steps] == [(end, "first", LATER)]


async def test_a_run_that_goes_on_may_learn_its_model_and_keeps_what_it_is(chat: Driver, records: RecordStore) -> None:
    run = make_run(chat)
    await records.write([run])
    other = replace(run, model="demo-1", kind="title", worker_id="dead", turn_id=None, started_at=LATER)
    await records.write([other])
    await records.write([run])
    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    assert (whole.model, whole.kind, whole.worker_id) == ("demo-1", "turn", "live")
    assert (whole.turn_id, whole.started_at) == (chat.turn_id, NOON)


async def test_a_close_that_failed_is_added_to_an_exchange_that_keeps_its_body(
    chat: Driver, records: RecordStore
) -> None:
    run, step, attempt = make_all(chat)
    attempt = replace(attempt, status_code=200, response_headers={"a": "b"}, response_body="all of it")
    await records.write([run, step, attempt])
    closed_at = LATER + timedelta(seconds=1)
    close = replace(attempt, status="failed", error="reset by peer", response_body="", ended_at=closed_at)
    await records.write([replace(close, response_headers=None, status_code=None)])
    for late in (attempt, replace(attempt, error="again"), replace(close, error=None)):
        await records.write([late])
        whole = await load_run(records, chat.id, run.id)
        assert whole is not None
        (kept,) = whole.steps[0].attempts
        assert (kept.status, kept.error) == ("failed", "reset by peer")
        assert (kept.status_code, kept.response_headers, kept.response_body) == (200, {"a": "b"}, "all of it")


async def test_a_later_record_of_a_completed_exchange_changes_nothing(chat: Driver, records: RecordStore) -> None:
    run, step, attempt = make_all(chat)
    await records.write([run, step, attempt])
    await records.write([replace(attempt, response_body="other", error="other", ended_at=LATER + timedelta(1))])
    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    assert whole.steps[0].attempts == [attempt]


@pytest.mark.parametrize("end", ENDS)
async def test_a_step_that_is_open_when_its_run_ends_ends_as_the_run_did(
    chat: Driver, records: RecordStore, end: Any
) -> None:
    run, step, _ = make_all(chat)
    other = make_run(chat)
    await records.write([run, step, make_step(run, 2, status="completed", ended_at=NOON), other, make_step(other)])
    await records.write([replace(run, status=end, error="told", ended_at=LATER)])
    await records.write([make_step(run, 3), make_attempt(run, 3)])

    whole = await load_run(records, chat.id, run.id)

    assert whole is not None
    seen = [(one.status, one.error, one.ended_at) for one in whole.steps]
    assert seen == [(end, "told", LATER), ("completed", None, NOON), (end, "told", LATER)]
    assert len(whole.steps[2].attempts) == 1
    beside = await load_run(records, chat.id, other.id)
    assert beside is not None
    assert (beside.status, beside.steps[0].status) == ("in_progress", "in_progress")


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told=st.lists(st.sampled_from(["in_progress", *ENDS]), min_size=1, max_size=6), data=st.data())
async def test_however_it_is_split_into_batches_a_story_ends_with_its_first_end(
    chat: Driver, records: RecordStore, told: Sequence[Any], data: st.DataObject
) -> None:
    run = make_run(chat)
    story: list[Record] = [run, make_step(run)]
    for number, status in enumerate(told):
        ended_at = None if status == "in_progress" else NOON + timedelta(seconds=number)
        story.append(make_step(run, status=status, error=str(number), ended_at=ended_at))
    while story:
        size = data.draw(st.integers(1, len(story)))
        await records.write(story[:size])
        del story[:size]
    ends = [(status, str(number)) for number, status in enumerate(told) if status != "in_progress"]
    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    (step,) = whole.steps
    assert (step.status, step.error) == (ends[0] if ends else ("in_progress", str(len(told) - 1)))


# --- what is gone ---


async def test_what_belongs_to_a_chat_that_is_gone_is_left_out_and_the_rest_is_written(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    gone = await Driver(chat.store, engine).create()
    left = make_all(gone)
    await records.write(left)
    await gone.do(c.Delete())
    assert await count_rows(engine) == [0, 0, 0]

    kept = make_all(chat)
    await records.write([*left, *kept, *make_all(gone)])

    assert await count_rows(engine) == [1, 1, 1]
    assert await load_run(records, chat.id, kept[0].id) is not None
    await records.write(left[1:])
    await records.write(left[2:])
    assert await count_rows(engine) == [1, 1, 1]


async def test_an_exchange_without_its_step_and_a_step_without_its_run_are_left_out(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    run, step, attempt = make_all(chat)
    await records.write([run, attempt])
    await records.write([make_step(make_run(chat)), step, make_attempt(run, 2), attempt])
    assert await count_rows(engine) == [1, 1, 1]


async def test_a_run_stays_in_its_chat(chat: Driver, records: RecordStore, engine: AsyncEngine) -> None:
    """An id names a run of its chat: the same one in another chat is another run, and what belongs to it goes there."""
    other = await Driver(chat.store, engine).create()
    run, step, attempt = make_all(chat)
    elsewhere = replace(run, chat_id=other.id, status="completed", ended_at=LATER)
    await records.write([run, make_step(elsewhere), make_attempt(elsewhere)])
    assert await count_rows(engine) == [1, 0, 0], "the other chat has no such run yet"
    await records.write([elsewhere, step, attempt, make_attempt(elsewhere)])
    assert await see(records, run) == ("in_progress", None, None)
    assert await see(records, elsewhere) == ("completed", None, LATER)
    whole = [await load_run(records, each.chat_id, each.id) for each in (run, elsewhere)]
    assert [each and [len(step.attempts) for step in each.steps] for each in whole] == [[1], []]


async def test_records_go_with_their_chat_and_no_others_do(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    other = await Driver(chat.store, engine).create()
    for _ in range(3):
        await records.write([*make_all(chat), *make_all(other)])
    await chat.do(c.Delete())
    assert await count_rows(engine) == [3, 3, 3]
    assert await records.list_runs(chat.id) == []
    assert len(await records.list_runs(other.id)) == 3


# --- odd text ---


@pytest.mark.parametrize("odd", ["nul \0", "half \ud83d", "whole \ud83d\ude00", "\udc00" * 3, "x" * 1024 * 1024])
async def test_no_text_fails_a_write(chat: Driver, records: RecordStore, odd: str) -> None:
    run = make_run(chat, model=odd, error=odd, status="error", ended_at=LATER, turn_id=odd)
    step = make_step(run, status="error", error=odd, ended_at=LATER)
    attempt = make_attempt(
        run,
        method=odd,
        url=odd,
        error=odd,
        status="failed",
        request_headers={odd: odd},
        request_body=odd,
        response_headers={odd: odd},
        response_body=odd,
    )
    await records.write([run, step, attempt])
    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    (kept,) = whole.steps[0].attempts
    said = odd.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert (kept.request_body, kept.response_body, kept.response_headers) == (said, said, {said: said})
    assert kept.url == (whole.error or "") == said.replace("\0", "\ufffd")


@pytest.mark.parametrize("odd", ["", "nul \0", "half \ud83d", "x" * 100_000, "%", "'"])
async def test_no_name_fails_a_question(chat: Driver, records: RecordStore, odd: str) -> None:
    await records.write(make_all(chat))
    assert await records.list_runs(odd) == []
    assert await load_run(records, chat.id, odd) is None
    assert await load_run(records, odd, odd) is None
    assert await records.find_tree(odd, odd) is None
    assert await records.load_attempt(odd, odd, 1, 1) is None
    assert len(await records.list_runs(chat.id, before=odd)) in {0, 1}
    assert await records.close_earlier({odd: odd}, lease_timeout_s=8) == 0


# --- reading ---


async def test_a_run_of_another_chat_is_none_of_this_one(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    other = await Driver(chat.store, engine).create()
    run = make_run(other)
    await records.write([run])
    assert await load_run(records, chat.id, run.id) is None
    assert await load_run(records, other.id, run.id) is not None
    assert await records.list_runs(chat.id) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_the_pages_together_are_all_runs_of_the_chat_the_newest_first(
    chat: Driver, records: RecordStore, engine: AsyncEngine, limit: int
) -> None:
    other = await Driver(chat.store, engine).create()
    ids = [f"run_{number}" for number in range(7)]
    await records.write([make_run(one, id=f"{id_}{one.id}") for id_ in ids for one in (chat, other)])
    seen: list[str] = []
    before: str | None = None
    while page := await records.list_runs(chat.id, before=before, limit=limit):
        assert len(page) <= limit
        seen += [run.id for run in page]
        before = seen[-1]
        assert len(seen) <= len(ids), "the list never ends"
    assert seen == [f"{id_}{chat.id}" for id_ in reversed(ids)]


async def test_a_list_counts_steps_and_exchanges_of_each_run(chat: Driver, records: RecordStore) -> None:
    empty, full = make_run(chat, id="run_1"), make_run(chat, id="run_2")
    steps = [make_step(full, step) for step in (1, 2, 3)]
    exchanges = [make_attempt(full, step, number) for step in (1, 2) for number in (1, 2)]
    await records.write([empty, full, *steps, *exchanges])
    counted = [(run.id, run.step_count, run.attempt_count) for run in await records.list_runs(chat.id)]
    assert counted == [("run_2", 3, 4), ("run_1", 0, 0)]


# --- what was left open ---


async def test_what_a_dead_worker_left_open_is_ended_and_a_live_ones_is_not(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    live = make_all(chat, worker_id="live")
    done = make_run(chat, worker_id="dead", status="completed", ended_at=LATER)
    left = [make_all(chat, worker_id=name, kind=kind) for name in ("dead", "gone") for kind in ("turn", "title")]
    settled = make_step(left[0][0], 2, status="completed", ended_at=LATER)
    await records.write([*live, done, settled, *(record for records_ in left for record in records_)])
    before = await dump(engine)

    started = datetime.now(UTC) - timedelta(seconds=60)
    assert await records.close_dead(lease_timeout_s=8) == 4

    for run, _, attempt in left:
        whole = await load_run(records, chat.id, run.id)
        assert whole is not None
        assert (whole.status, whole.error) == ("error", GONE)
        assert (whole.steps[0].status, whole.steps[0].error) == ("error", GONE)
        assert whole.steps[0].attempts == [attempt]
        assert whole.ended_at is not None
        assert started < whole.ended_at < started + timedelta(seconds=120), "by the database's clock"
        assert whole.steps[0].ended_at == whole.ended_at
    whole = await load_run(records, chat.id, left[0][0].id)
    assert whole is not None
    assert (whole.steps[1].status, whole.steps[1].ended_at) == ("completed", LATER)
    changed = {str(row) for row in await dump(engine)} - {str(row) for row in before}
    assert len(changed) == 8, "four runs and four steps"
    assert await records.close_dead(lease_timeout_s=8) == 0
    assert await see(records, live[0]) == ("in_progress", None, None)


async def test_a_worker_that_beats_again_is_alive_and_one_that_is_forgotten_is_gone(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    run = make_run(chat, worker_id="dead")
    await chat.store.beat("dead")
    await records.write([run])
    assert await records.close_dead(lease_timeout_s=8) == 0
    async with begin_write(engine) as connection:
        past = datetime.now(UTC) - timedelta(seconds=20)
        await connection.execute(update(workers).where(workers.c.id == "dead").values(heartbeat_at=past))
    assert await records.close_dead(lease_timeout_s=60) == 0
    await chat.store.retire("dead")
    assert await records.close_dead(lease_timeout_s=60) == 1


async def test_an_end_that_the_dead_one_tells_later_is_too_late(chat: Driver, records: RecordStore) -> None:
    run, step, attempt = make_all(chat, worker_id="dead")
    await records.write([run, step])
    await records.close_dead(lease_timeout_s=8)
    ended: dict[str, Any] = {"status": "completed", "ended_at": LATER}
    await records.write([replace(run, **ended), replace(step, **ended), attempt])
    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    assert (whole.status, whole.steps[0].status) == ("error", "error")
    assert whole.steps[0].attempts == [attempt], "what was exchanged is kept"


async def test_a_run_ends_what_dead_workers_left_open_before_it_in_its_chat_only(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    other = await Driver(chat.store, engine).create()
    kinds = (("turn", "dead"), ("compaction", "gone"), ("title", "dead"))
    left = [make_all(chat, id=f"run_{n}", kind=kind, worker_id=worker) for n, (kind, worker) in enumerate(kinds)]
    done = make_run(chat, id="run_3", worker_id="dead", status="interrupted", ended_at=LATER)
    beside, now = make_all(other, id="run_4", worker_id="dead"), make_all(chat, id="run_5", worker_id="dead")
    newer = make_all(chat, id="run_6", worker_id="dead")
    await records.write([*now, *newer, *beside, done, *(record for records_ in left for record in records_)])

    assert await records.close_earlier({chat.id: now[0].id}, lease_timeout_s=8) == 3

    for run, _, attempt in left:
        whole = await load_run(records, chat.id, run.id)
        assert whole is not None
        assert (whole.status, whole.error, whole.steps[0].status) == ("error", REPLACED, "error")
        assert whole.steps[0].ended_at == whole.ended_at
        assert whole.steps[0].attempts == [attempt]
    for run in (now[0], newer[0], beside[0]):
        assert await see(records, run) == ("in_progress", None, None), "not even its own, whatever its heartbeat does"
    assert await see(records, done) == ("interrupted", None, LATER)
    assert await records.close_earlier({chat.id: now[0].id}, lease_timeout_s=8) == 0


async def test_a_worker_that_handed_the_chat_over_tells_the_end_of_its_run_itself(
    chat: Driver, records: RecordStore
) -> None:
    await chat.store.beat("other")
    for kind in ("turn", "compaction", "title"):
        first, second = make_run(chat, kind=kind, worker_id="other"), make_run(chat, worker_id="live")
        await records.write([first, make_step(first)])
        await records.write([second])
        assert await records.close_earlier({chat.id: second.id}, lease_timeout_s=60) == 0
        assert await see(records, first) == ("in_progress", None, None)
        await records.write([replace(first, status="interrupted", error="handed over", ended_at=LATER)])
        assert await see(records, first) == ("interrupted", "handed over", LATER)


async def test_what_a_worker_left_open_is_ended_by_whoever_takes_its_chat_over(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    lease_timeout_s = chat.store.lease_timeout_s
    await chat.store.beat("frozen")
    await chat.work("frozen")
    left = make_run(chat, worker_id="frozen")
    await records.write([left])
    with pytest.raises(NotAllowed):
        await chat.do(c.Acquire(worker_id="live"))
    assert await records.close_earlier({chat.id: LAST}, lease_timeout_s=lease_timeout_s) == 0
    async with begin_write(engine) as connection:
        past = datetime.now(UTC) - timedelta(seconds=lease_timeout_s + 1)
        await connection.execute(update(workers).where(workers.c.id == "frozen").values(heartbeat_at=past))

    await chat.do(c.Acquire(worker_id="live"))

    assert await records.close_earlier({chat.id: LAST}, lease_timeout_s=lease_timeout_s) == 1
    assert (await see(records, left))[:2] == ("error", REPLACED)


# --- what is too old ---


async def test_runs_that_began_too_long_ago_are_forgotten_with_all_that_is_in_them(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    old = [make_all(chat, started_at=NOON - timedelta(days=number)) for number in (1, 2, 3)]
    ended = make_run(chat, started_at=NOON - timedelta(days=40), status="completed", ended_at=NOON + timedelta(days=1))
    young = [make_all(chat, started_at=at) for at in (NOON, NOON + timedelta(seconds=1))]
    await records.write([ended, *(record for records_ in (*old, *young) for record in records_)])

    assert await records.forget_before(NOON, clock=ManualClock()) == 4

    assert await count_rows(engine) == [2, 2, 2]
    assert {run.id for run in await records.list_runs(chat.id)} == {run.id for run, _, _ in young}
    assert await records.forget_before(NOON, clock=ManualClock()) == 0


async def test_r12_forgetting_goes_in_short_transactions(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    """A large run goes piece by piece. With no time for more than one piece each is a transaction of its own."""
    large = make_run(chat, started_at=NOON - timedelta(days=2))
    exchanges = [make_attempt(large, step, number) for step in range(1, 6) for number in range(1, 9)]
    small = make_all(chat, started_at=NOON - timedelta(days=1))
    await records.write([large, *(make_step(large, step) for step in range(1, 6)), *exchanges, *small])

    class Watch(ManualClock):
        """Asked once when a transaction begins and once after each piece of it."""

        asked = 0

        def monotonic(self) -> float:
            self.asked += 1
            return float(self.asked)

    watch = Watch()
    assert await records.forget_before(NOON, clock=watch, chunk_s=1) == 2
    assert await count_rows(engine) == [0, 0, 0]
    assert watch.asked // 2 > 10, "a few exchanges at a time"


async def test_r12_a_chat_that_is_deleted_loses_its_records_first_and_piece_by_piece(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    other = await Driver(Store(get_database(engine)), engine).create()
    large = make_run(chat)
    exchanges = [make_attempt(large, 1, number) for number in range(1, 41)]
    kept = make_all(other)
    await records.write([large, make_step(large, 1), *exchanges, *kept])

    assert await records.forget_chat(chat.id, clock=ManualClock(), chunk_s=0) == 1
    assert await count_rows(engine) == [1, 1, 1]

    await records.write([make_run(chat, id="run_late")])
    await chat.do(Delete())
    assert await count_rows(engine) == [1, 1, 1]
    assert [run.id for run in await records.list_runs(other.id)] == [kept[0].id]
