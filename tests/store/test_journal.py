"""The journal on both databases: told means committed, and one chat's trouble is not another's.

Real databases throughout. Where a commit has to fail, a store that fails once stands before the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_read, begin_write, get_database, transact
from tests.support.stored import load_runs
from tests.support.tables import attempts, journal, users, workers
from tests.support.waiting import Watched

from indelible.content import (
    Finish,
    Part,
    ReasoningDelta,
    Text,
    TextDelta,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolProgress,
    ToolResult,
    ToolStarted,
    decode_parts,
    encode,
)
from indelible.content.assemble import assemble
from indelible.content.parts import merge_deltas
from indelible.errors import LeaseLost, Shutdown, StoreFailed
from indelible.machine.commands import Acquire, Create, FinishTurn, StartAttempt
from indelible.store.journal.append import Appended, BadRows, JournalRow, RunKey, RunStarted
from indelible.store.journal.writer import Journal, JournalWriter
from indelible.store.payloads import NewChat, StepResult
from indelible.store.queries.open_turn import AttemptName
from indelible.store.store import Store
from indelible.testing import ManualClock

NOW = datetime(2026, 11, 15, tzinfo=UTC)
DEADLINE_S = 100
NO_JSON = {"key": object()}


class WatchedStore(Store):
    """The real store; it counts transactions, and fails as often as it is told before it does its work.

    On `clock` a group takes `takes_s`.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(get_database(engine))
        self.clock = ManualClock(skip_sleeps=True)
        self.takes_s = 0.0
        self.groups: list[list[JournalRow]] = []
        self.failures: list[Exception] = []
        self.watched = Watched()
        self.gate = asyncio.Event()
        self.gate.set()

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        self.groups.append(list(rows))
        self.watched.changed()
        await self.gate.wait()
        if self.takes_s:
            self.clock.advance(self.takes_s)
        if self.failures:
            raise self.failures.pop(0)
        return await super().append(rows)


@pytest.fixture
async def store(engine: AsyncEngine) -> WatchedStore:
    return WatchedStore(engine)


class Flushing:
    """A journal with its flusher running, and what readers were told."""

    def __init__(self, store: WatchedStore, *, interval_s: float = 0, limit_bytes: int = 1 << 20) -> None:
        self.clock = ManualClock(skip_sleeps=True)
        self.told: list[JournalRow] = []
        self.journal = Journal(
            store, clock=self.clock, on_committed=self.told.extend, interval_s=interval_s, limit_bytes=limit_bytes
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Journal]:
        flusher = asyncio.create_task(self.journal.run())
        try:
            yield self.journal
        finally:
            flusher.cancel()
            await asyncio.wait([flusher])


async def start_attempt(store: Store, engine: AsyncEngine, name: str = "a") -> AttemptName:
    """A running chat with an open attempt."""
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id=f"user_{name}", name=name, created_at=NOW))
        await connection.execute(insert(workers).values(id=f"worker_{name}", started_at=NOW, heartbeat_at=NOW))
    words = NewChat(owner_id=f"user_{name}", blocks=[Text("hi")])
    created = await store.execute(f"chat_{name}", Create(with_message=True), words)
    held = await store.execute(f"chat_{name}", Acquire(worker_id=f"worker_{name}"))
    assert created.turn_id is not None
    started = await store.execute(f"chat_{name}", StartAttempt(epoch=held.epoch, turn_id=created.turn_id))
    assert started.attempt is not None
    return started.attempt


def open_writer(flushing: Flushing, attempt: AttemptName) -> JournalWriter:
    return flushing.journal.open(attempt.chat_id, attempt.id, attempt.epoch)


async def read_parts(engine: AsyncEngine, attempt_id: str) -> list[tuple[int, list[Part]]]:
    async with begin_read(engine) as connection:
        rows = await connection.execute(select(journal).where(journal.c.attempt_id == attempt_id).order_by(journal.c.n))
        return [(row.n, decode_parts(row.parts)) for row in rows]


async def test_what_readers_get_is_committed(store: WatchedStore, engine: AsyncEngine) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store)
    async with flushing.running() as running:
        writer = open_writer(flushing, attempt)
        for word in ("one ", "two ", "three"):
            assert writer.publish(TextDelta("1", word)) is None
            await running.drain(writer)
    assert [row.n for row in flushing.told] == [1, 2, 3]
    stored = await read_parts(engine, attempt.id)
    assert [(row.n, decode_parts(row.parts)) for row in flushing.told] == stored
    assert assemble(part for _, parts in stored for part in parts) == [Text("one two three")]


async def test_all_chats_share_one_transaction_and_neighbouring_deltas_one_part(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    names = [await start_attempt(store, engine, name) for name in "abc"]
    flushing = Flushing(store)
    writers = [open_writer(flushing, name) for name in names]
    for writer in writers:
        for word in ("to", "geth", "er"):
            writer.publish(TextDelta("1", word))
    async with flushing.running() as running:
        for writer in writers:
            await running.drain(writer)
    assert [len(group) for group in store.groups] == [3]
    for name in names:
        assert await read_parts(engine, name.id) == [(1, [TextDelta("1", "together")])]


async def test_an_idle_journal_flushes_at_once_and_a_busy_one_waits_for_its_interval(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store, interval_s=0.02)
    async with flushing.running() as running:
        writer = open_writer(flushing, attempt)
        for word in ("urgent", "at once"):
            writer.publish(TextDelta("1", word))
            await running.drain(writer)
        writer.publish(TextDelta("1", "later"))
        await flushing.clock.wait_for_timer()
        assert [row.n for row in flushing.told] == [1, 2]
        flushing.clock.advance(0.02)
        await running.drain(writer)
    assert [row.n for row in flushing.told] == [1, 2, 3]


async def test_a_part_for_an_attempt_that_somebody_ended_is_refused_and_nothing_of_it_is_kept(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    attempt = await start_attempt(store, engine)
    async with begin_write(engine) as connection:
        await connection.execute(
            update(attempts).where(attempts.c.id == attempt.id).values(outcome="reset", ended_at=NOW, last_n=0)
        )
    flushing = Flushing(store)
    async with flushing.running() as running:
        writer = open_writer(flushing, attempt)
        writer.publish(TextDelta("1", "from the grave"))
        await running.drain(writer)
        with pytest.raises(LeaseLost):
            writer.publish(TextDelta("1", "again"))
    assert flushing.told == []
    assert await read_parts(engine, attempt.id) == []


async def test_a_writer_with_an_old_epoch_changes_nothing(store: WatchedStore, engine: AsyncEngine) -> None:
    attempt = await start_attempt(store, engine)
    async with begin_write(engine) as connection:
        await connection.execute(update(attempts).values(epoch=attempt.epoch + 1))
    appended = await store.append(
        [JournalRow(attempt.chat_id, attempt.id, attempt.epoch, 1, encode([TextDelta("1", "late")]))]
    )
    assert appended == Appended(frozenset(), frozenset({attempt.id}))
    assert await read_parts(engine, attempt.id) == []


async def test_r5_the_same_row_again_is_a_success_and_another_one_is_not(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    attempt = await start_attempt(store, engine)
    row = JournalRow(attempt.chat_id, attempt.id, attempt.epoch, 1, encode([TextDelta("1", "once")]))
    for _ in range(2):
        assert (await store.append([row])).written == {attempt.id}
    assert await read_parts(engine, attempt.id) == [(1, [TextDelta("1", "once")])]
    with pytest.raises(BadRows):
        await store.append([row._replace(parts=encode([TextDelta("1", "twice")]))])
    assert await read_parts(engine, attempt.id) == [(1, [TextDelta("1", "once")])]


@pytest.mark.may_log("writing the journal failed; trying again")
async def test_r5_a_failed_flush_is_tried_again_with_the_same_bytes(store: WatchedStore, engine: AsyncEngine) -> None:
    attempt = await start_attempt(store, engine)
    store.failures = [StoreFailed("the connection was lost"), StoreFailed("and again")]
    flushing = Flushing(store)
    async with flushing.running() as running:
        writer = open_writer(flushing, attempt)
        writer.publish(TextDelta("1", "kept"))
        await running.drain(writer)
    assert len(store.groups) == 3
    assert store.groups[0] == store.groups[1] == store.groups[2]
    assert flushing.clock.slept == [0.05, 0.1]
    assert await read_parts(engine, attempt.id) == [(1, [TextDelta("1", "kept")])]


async def test_r6_one_bad_part_stops_only_its_own_chat(store: WatchedStore, engine: AsyncEngine) -> None:
    good, bad = [await start_attempt(store, engine, name) for name in ("good", "bad")]
    flushing = Flushing(store)
    writers = [open_writer(flushing, name) for name in (good, bad)]
    writers[0].publish(TextDelta("1", "fine"))
    writers[1].publish(ReasoningDelta("1", "bad", metadata=NO_JSON))
    async with flushing.running() as running:
        await running.drain(writers[0])
        await running.drain(writers[1])
    assert await read_parts(engine, good.id) == [(1, [TextDelta("1", "fine")])]
    with pytest.raises(TypeError):
        writers[1].publish(TextDelta("1", "more"))


async def test_r6_a_row_that_the_database_refuses_is_found_among_the_others(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    good, bad = [await start_attempt(store, engine, name) for name in ("good", "bad")]
    await store.append([JournalRow(bad.chat_id, bad.id, bad.epoch, 1, b"[]")])
    flushing = Flushing(store)
    writers = [open_writer(flushing, name) for name in (good, bad)]
    for writer in writers:
        writer.publish(TextDelta("1", "word"))
    async with flushing.running() as running:
        for writer in writers:
            await running.drain(writer)
    assert await read_parts(engine, good.id) == [(1, [TextDelta("1", "word")])]
    assert await read_parts(engine, bad.id) == [(1, [])]
    with pytest.raises(BadRows):
        writers[1].publish(TextDelta("1", "more"))


@pytest.mark.parametrize(
    "part",
    [
        TextDelta("1", "x" * 10_000),
        ToolProgress("call", "x" * 10_000),
        ToolCall(id="call", name="write", arguments='"' + "x" * 10_000 + '"'),
        ToolResult(call_id="call", name="search", output=["x" * 10_000], provider_executed=True),
    ],
    ids=lambda part: type(part).__name__,
)
async def test_a_slow_database_slows_the_loop_and_does_not_fill_the_memory(
    store: WatchedStore, engine: AsyncEngine, part: Part
) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store, limit_bytes=100_000)
    writer = open_writer(flushing, attempt)
    brakes = [writer.publish(part) for _ in range(10)]
    assert brakes[:9] == [None] * 9
    brake = brakes[9]
    assert brake is not None
    async with flushing.running():
        await brake
    assert [row.n for row in flushing.told] == [1]


async def test_r4_what_was_not_flushed_is_the_last_row_of_the_ending(store: WatchedStore, engine: AsyncEngine) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store)
    async with flushing.running() as running:
        writer = open_writer(flushing, attempt)
        writer.publish(TextDelta("1", "Hel"))
        await running.drain(writer)
        writer.publish(TextDelta("1", "lo"))
        writer.publish(Finish("stop"))
        rest = await writer.close()
    finish = FinishTurn(epoch=attempt.epoch, turn_id=attempt.turn_id, attempt_id=attempt.id)
    ended = await store.execute("chat_a", finish, StepResult(pending=rest))
    assert [message.text for message in ended.messages] == ["Hello"]
    assert [n for n, _ in await read_parts(engine, attempt.id)] == [1, 2]
    async with begin_read(engine) as connection:
        row = (await connection.execute(select(attempts))).one()
    assert (row.outcome, row.last_n) == ("complete", 2)


async def test_r4_closing_waits_for_a_row_that_is_on_its_way_so_that_no_part_is_lost_or_doubled(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    attempt = await start_attempt(store, engine)
    underway, go_on = asyncio.Event(), asyncio.Event()

    class SlowStore(WatchedStore):
        async def append(self, rows: Sequence[JournalRow]) -> Appended:
            underway.set()
            await go_on.wait()
            return await super().append(rows)

    flushing = Flushing(SlowStore(engine))
    async with flushing.running():
        writer = open_writer(flushing, attempt)
        writer.publish(TextDelta("1", "Hel"))
        await underway.wait()
        writer.publish(TextDelta("1", "lo"))
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        rest = await closing
    assert rest == [TextDelta("1", "lo")]
    assert await read_parts(engine, attempt.id) == [(1, [TextDelta("1", "Hel")])]


@pytest.mark.may_log("publishing .* committed rows failed")
async def test_readers_that_raise_do_not_stop_the_journal(store: WatchedStore, engine: AsyncEngine) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store)

    def fail(rows: Sequence[JournalRow]) -> None:
        raise RuntimeError("no ears")

    flushing.journal._on_committed = fail
    async with flushing.running() as running:
        writer = open_writer(flushing, attempt)
        for word in ("one", "two"):
            writer.publish(TextDelta("1", word))
            await running.drain(writer)
    assert [n for n, _ in await read_parts(engine, attempt.id)] == [1, 2]


async def test_r7_an_attempt_that_is_being_ended_keeps_its_parts_and_holds_up_nobody(engine: AsyncEngine) -> None:
    """On SQLite a writer has the whole file, so there is nobody to skip: the flush waits its turn."""
    store = WatchedStore(engine)
    ending, other = [await start_attempt(store, engine, name) for name in ("ending", "other")]
    flushing = Flushing(store)
    writers = [open_writer(flushing, name) for name in (ending, other)]

    def publish() -> None:
        for writer in writers:
            writer.publish(TextDelta("1", "word"))

    async with flushing.running() as running:
        if engine.dialect.name == "postgresql":
            async with begin_write(engine) as connection:
                await connection.execute(select(attempts).where(attempts.c.id == ending.id).with_for_update())
                publish()  # an idle journal writes at once, so not before the row is locked
                await running.drain(writers[1])
                assert [row.attempt_id for row in flushing.told] == [other.id]
                assert writers[0].committed < writers[0].accepted
        else:
            publish()
        await running.drain(writers[0])
    assert await read_parts(engine, ending.id) == [(1, [TextDelta("1", "word")])]


# --- nobody waits for what will not come ---


class HeldStore(WatchedStore):
    """Keeps each group until it is let go; `verdict`, once given, is the answer to the next one instead."""

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine)
        self.underway, self.let_go = asyncio.Event(), asyncio.Event()
        self.verdict: Appended | None = None

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        self.underway.set()
        await self.let_go.wait()
        if self.verdict is not None:
            verdict, self.verdict = self.verdict, None
            self.groups.append(list(rows))
            return verdict
        return await super().append(rows)


def make_change(attempt: AttemptName) -> tuple[RunStarted, ToolStarted]:
    change = RunStarted(RunKey(attempt.turn_id, attempt.step, 0), attempt.id, "c1", "pay", "{}", "once")
    return change, ToolStarted("c1", "pay")


async def test_draining_a_writer_that_ends_returns_without_a_flush(store: WatchedStore, engine: AsyncEngine) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store)
    writer = open_writer(flushing, attempt)
    recording = asyncio.create_task(writer.record(*make_change(attempt)))
    draining = asyncio.create_task(flushing.journal.drain(writer))
    await asyncio.sleep(0)
    writer.end(LeaseLost("gone"))
    async with asyncio.timeout(DEADLINE_S):
        await draining
        with pytest.raises(LeaseLost):
            await recording


async def test_draining_waits_only_for_what_was_taken_before(store: WatchedStore, engine: AsyncEngine) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store)
    writer = open_writer(flushing, attempt)

    def say_more(rows: Sequence[JournalRow]) -> None:
        writer.publish(TextDelta("1", "and on "))

    flushing.journal._on_committed = say_more
    writer.publish(TextDelta("1", "said"))
    async with asyncio.timeout(DEADLINE_S), flushing.running() as running:
        await running.drain(writer)
        await writer.record(*make_change(attempt))
    assert writer.committed < writer.accepted


async def test_parts_that_arrive_while_a_skipped_row_is_tried_again_are_flushed_after_it(engine: AsyncEngine) -> None:
    store = HeldStore(engine)
    attempt = await start_attempt(store, engine)
    store.verdict = Appended(frozenset(), frozenset())
    flushing = Flushing(store)
    async with asyncio.timeout(DEADLINE_S), flushing.running() as running:
        writer = open_writer(flushing, attempt)
        writer.publish(TextDelta("1", "skipped"))
        await store.underway.wait()
        writer.publish(TextDelta("1", "later"))
        store.let_go.set()
        await running.drain(writer)
    assert [len(group) for group in store.groups] == [1, 1, 1]
    assert await read_parts(engine, attempt.id) == [(1, [TextDelta("1", "skipped")]), (2, [TextDelta("1", "later")])]


async def test_a_change_of_the_ledger_that_is_underway_is_committed_before_its_attempt_is_closed(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store)
    writer = open_writer(flushing, attempt)
    async with asyncio.timeout(DEADLINE_S):
        recording = asyncio.create_task(writer.record(*make_change(attempt)))
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        async with flushing.running():
            rest = await closing
            await recording
    assert rest == []
    assert [run.name for run in await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)] == ["pay"]
    assert await read_parts(engine, attempt.id) == [(1, [ToolStarted("c1", "pay")])]


async def test_a_close_that_is_cancelled_leaves_the_writer_open(engine: AsyncEngine) -> None:
    store = HeldStore(engine)
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store)
    async with asyncio.timeout(DEADLINE_S), flushing.running() as running:
        writer = open_writer(flushing, attempt)
        writer.publish(TextDelta("1", "Hel"))
        await store.underway.wait()
        writer.publish(TextDelta("1", "lo"))
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        store.let_go.set()
        await running.drain(writer)
    assert await read_parts(engine, attempt.id) == [(1, [TextDelta("1", "Hel")]), (2, [TextDelta("1", "lo")])]


async def test_whoever_is_cancelled_while_it_records_leaves_the_change_to_be_written(engine: AsyncEngine) -> None:
    store = HeldStore(engine)
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store)
    async with asyncio.timeout(DEADLINE_S), flushing.running() as running:
        writer = open_writer(flushing, attempt)
        recording = asyncio.create_task(writer.record(*make_change(attempt)))
        await store.underway.wait()
        recording.cancel()
        await asyncio.wait([recording])
        store.let_go.set()
        await running.drain(writer)
    assert [run.name for run in await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)] == ["pay"]


async def test_an_adopted_attempt_has_one_writer_and_what_befalls_the_former_one_is_not_its_trouble(
    engine: AsyncEngine,
) -> None:
    store = HeldStore(engine)
    attempt = await start_attempt(store, engine)
    store.failures = [BadRows("not this one")]
    flushing = Flushing(store)
    async with asyncio.timeout(DEADLINE_S), flushing.running() as running:
        former = open_writer(flushing, attempt)
        former.publish(TextDelta("1", "old"))
        await store.underway.wait()
        adopted = open_writer(flushing, attempt)
        adopted.publish(TextDelta("1", "new"))
        store.let_go.set()
        await running.drain(former)
        await running.drain(adopted)
    with pytest.raises(LeaseLost):
        former.publish(TextDelta("1", "late"))
    assert await read_parts(engine, attempt.id) == [(1, [TextDelta("1", "new")])]


# --- every byte is given back once ---


async def test_a_change_is_recorded_however_full_the_memory_is(store: WatchedStore, engine: AsyncEngine) -> None:
    attempt = await start_attempt(store, engine)
    flushing = Flushing(store, limit_bytes=1)
    writer = open_writer(flushing, attempt)
    slow_down = writer.publish(TextDelta("1", "x" * 100_000))
    assert slow_down is not None
    async with asyncio.timeout(DEADLINE_S), flushing.running():
        await writer.record(*make_change(attempt))
        await slow_down
    assert [run.name for run in await transact(engine, load_runs, attempt.chat_id, attempt.turn_id)] == ["pay"]


@pytest.mark.parametrize("way", ["committed", "ended twice", "closed", "not encodable", "refused", "ended elsewhere"])
async def test_however_a_writer_ends_what_it_held_is_room_for_others_again(engine: AsyncEngine, way: str) -> None:
    store = HeldStore(engine)
    mine, other = [await start_attempt(store, engine, name) for name in ("mine", "other")]
    flushing = Flushing(store, limit_bytes=100_000)
    writer, quiet = open_writer(flushing, mine), open_writer(flushing, other)
    metadata = NO_JSON if way == "not encodable" else None
    if way == "refused":
        store.failures = [BadRows("this one")]
    if way == "ended elsewhere":
        store.verdict = Appended(frozenset(), frozenset({mine.id}))
    async with asyncio.timeout(DEADLINE_S), flushing.running() as running:
        assert writer.publish(ReasoningDelta("1", "x" * 60_000, metadata=metadata)) is None
        if way != "not encodable":
            await store.underway.wait()
        slow_down = writer.publish(TextDelta("1", "x" * 60_000)) if way != "not encodable" else None
        if way == "ended twice":
            writer.end(LeaseLost("gone"))
            writer.end(LeaseLost("gone again"))
        store.let_go.set()
        if way == "closed":
            await writer.close()
        if slow_down is not None:
            await slow_down
        await running.drain(writer)
        assert quiet.publish(TextDelta("1", "y" * 90_000)) is None
        await running.drain(quiet)
        assert flushing.journal._held_bytes == 0
        assert quiet.publish(TextDelta("1", "z" * 90_000)) is None


# --- merging ---


def make_deltas(id_: str) -> st.SearchStrategy[Part]:
    """Called once for each id: making strategies takes longer than drawing from them."""
    return st.one_of(
        st.builds(TextDelta, st.just(id_), st.text(max_size=3)),
        st.builds(ToolInputDelta, st.just(id_), st.text(max_size=3)),
        st.builds(
            ReasoningDelta,
            st.just(id_),
            st.text(max_size=3),
            signature=st.none() | st.just("s"),
            metadata=st.none() | st.just({"k": 1}),
        ),
        st.builds(TextStart, st.just(id_)),
    )


deltas = make_deltas("a") | make_deltas("b")


@given(st.lists(deltas, max_size=20))
def test_merging_deltas_changes_no_text(parts: list[Part]) -> None:
    merged = merge_deltas(parts)
    assert assemble(merged) == assemble(parts)
    assert len(merged) <= len(parts)
    assert merge_deltas(merged) == merged


async def test_whoever_waits_for_room_hears_that_the_journal_has_stopped(engine: AsyncEngine) -> None:
    store = HeldStore(engine)
    attempt = await start_attempt(store, engine)
    full = Journal(store, clock=ManualClock(), on_committed=lambda rows: None, limit_bytes=1)
    writer = full.open(attempt.chat_id, attempt.id, attempt.epoch)
    running = asyncio.create_task(full.run())
    waiting = writer.publish(TextDelta("1", "too much"))
    assert waiting is not None
    await store.underway.wait()
    running.cancel()
    store.let_go.set()
    with pytest.raises(Shutdown):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await running


@asynccontextmanager
async def writing(store: WatchedStore, engine: AsyncEngine, chats: int, **limits: Any) -> AsyncIterator[Writers]:
    """Writers that are past their first row, and a flusher that runs."""
    names = [await start_attempt(store, engine, f"{number:02}") for number in range(chats)]
    journal = Journal(store, clock=store.clock, on_committed=lambda rows: None, interval_s=0, **limits)
    writers = [journal.open(name.chat_id, name.id, name.epoch) for name in names]
    flusher = asyncio.create_task(journal.run())
    await speak(journal, writers, "first ")
    assert [len(group) for group in store.groups] == [chats], "the first row of an attempt waits for nobody"
    store.groups.clear()
    try:
        yield Writers(journal, writers, names)
    finally:
        flusher.cancel()
        await asyncio.wait([flusher])
        store.gate.set()


class Writers(NamedTuple):
    journal: Journal
    each: list[JournalWriter]
    names: list[AttemptName]


async def speak(journal: Journal, writers: Sequence[JournalWriter], word: str) -> None:
    for writer in writers:
        writer.publish(TextDelta("1", word))
    for writer in writers:
        await journal.drain(writer)


async def be_slow(store: WatchedStore, journal: Journal, writers: Sequence[JournalWriter]) -> None:
    """Flushes take so long, for so long, that the chats are spread over as many of them as they ever are."""
    store.takes_s = 0.1
    for _ in range(25):
        await speak(journal, writers, "word")
    store.groups.clear()


async def test_while_flushes_keep_up_all_chats_are_in_each(store: WatchedStore, engine: AsyncEngine) -> None:
    async with writing(store, engine, 12, rows_per_flush=2) as (journal, writers, _):
        for _ in range(20):
            await speak(journal, writers, "word")
    assert [len(group) for group in store.groups] == [12] * 20


async def test_when_flushes_take_long_each_writes_those_that_waited_longest_until_they_keep_up_again(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    async with writing(store, engine, 12, rows_per_flush=2) as (journal, writers, _):
        await be_slow(store, journal, writers)
        await speak(journal, writers, "word")
        chats = [[row.chat_id for row in group] for group in store.groups]
        assert [len(group) for group in chats] == [3, 3, 3, 3]
        assert [chat for group in chats for chat in group] == [writer.chat_id for writer in writers]
        store.takes_s = 0
        for _ in range(25):
            await speak(journal, writers, "word")
        store.groups.clear()
        await speak(journal, writers, "word")
        assert [len(group) for group in store.groups] == [12]


async def test_few_chats_are_all_in_one_flush_however_long_it_takes(store: WatchedStore, engine: AsyncEngine) -> None:
    async with writing(store, engine, 12, rows_per_flush=5) as (journal, writers, _):
        await be_slow(store, journal, writers)
        await speak(journal, writers[:5], "word")
    assert [len(group) for group in store.groups] == [5]


async def test_much_text_is_written_at_once_however_many_wait(store: WatchedStore, engine: AsyncEngine) -> None:
    async with writing(store, engine, 12, rows_per_flush=2, flush_bytes=10_000) as (journal, writers, _):
        await be_slow(store, journal, writers)
        await speak(journal, writers, "x" * 1_000)
    assert [len(group) for group in store.groups] == [12]


async def hold_up(store: WatchedStore, writer: JournalWriter, other: JournalWriter) -> None:
    """The other's row is on its way, and this writer's parts have to wait for it."""
    store.gate.clear()
    other.publish(TextDelta("1", "on its way"))
    await store.watched.wait_until(lambda: len(store.groups) == 1)
    writer.publish(TextDelta("1", "waiting"))


async def wait_for_row(writer: JournalWriter, begun: asyncio.Event) -> None:
    waits = writer.wait_for_row()
    assert waits is not None
    begun.set()
    await waits


async def start_waiting(writer: JournalWriter) -> asyncio.Task[None]:
    begun = asyncio.Event()
    waiting = asyncio.create_task(wait_for_row(writer, begun))
    await begun.wait()
    return waiting


async def test_an_attempt_reads_on_when_its_parts_are_in_a_row(store: WatchedStore, engine: AsyncEngine) -> None:
    async with writing(store, engine, 2) as (_, (writer, other), _):
        assert writer.wait_for_row() is None
        await hold_up(store, writer, other)
        waiting = await start_waiting(writer)
        store.gate.set()
        await asyncio.wait_for(waiting, DEADLINE_S)
        assert writer.wait_for_row() is None


@pytest.mark.parametrize(("is_pressed", "row"), [(False, "one two"), (True, "one ")], ids=["at ease", "under pressure"])
async def test_an_attempt_reads_before_its_row_is_made_and_under_pressure_while_it_is_written(
    store: WatchedStore, engine: AsyncEngine, is_pressed: bool, row: str
) -> None:
    async with writing(store, engine, 2) as (journal, writers, _):
        if is_pressed:
            await be_slow(store, journal, writers)
        store.gate.clear()
        writers[0].publish(TextDelta("1", "one "))
        waits = writers[0].wait_for_row()
        assert waits is not None
        await waits
        writers[0].publish(TextDelta("1", "two"))
        await store.watched.wait_until(lambda: len(store.groups) == 1)
        assert decode_parts(store.groups[0][0].parts) == [TextDelta("1", row)]


@pytest.mark.parametrize("how", ["cancelled", "ended"])
async def test_an_attempt_that_waits_for_its_row_can_be_stopped(
    store: WatchedStore, engine: AsyncEngine, how: str
) -> None:
    async with writing(store, engine, 2) as (_, (writer, other), _):
        await hold_up(store, writer, other)
        waiting = await start_waiting(writer)
        if how == "ended":
            assert writer.end(LeaseLost("gone")) == [TextDelta("1", "waiting")]
        else:
            waiting.cancel()
            await asyncio.wait([waiting])
            waiting = await start_waiting(writer)
            store.gate.set()
        await asyncio.wait_for(waiting, DEADLINE_S)


@pytest.mark.parametrize("is_first", [False, True], ids=["a later row", "its first row"])
@pytest.mark.may_log("writing the journal failed; trying again")
async def test_no_attempt_waits_for_a_database_that_fails(
    store: WatchedStore, engine: AsyncEngine, is_first: bool
) -> None:
    late = await start_attempt(store, engine, "late")
    async with writing(store, engine, 2) as (journal, (writer, other), _):
        store.failures = [StoreFailed("away")] * 3
        waits = journal.open(late.chat_id, late.id, late.epoch) if is_first else writer
        await hold_up(store, waits, other)
        if is_first:
            await store.watched.wait_until(lambda: len(store.groups) == 2)
            waits.publish(TextDelta("1", "waiting, too"))
        waiting = await start_waiting(waits)
        store.gate.set()
        await asyncio.wait_for(waiting, DEADLINE_S)


async def test_no_attempt_waits_for_a_database_that_hangs(store: WatchedStore, engine: AsyncEngine) -> None:
    async with writing(store, engine, 2) as (journal, (writer, other), _):
        await hold_up(store, writer, other)
        waiting = await start_waiting(writer)
        store.clock.advance(1.0)
        await asyncio.wait_for(waiting, DEADLINE_S)
        assert writer.wait_for_row() is None
        store.gate.set()
        await journal.drain(writer)
        assert journal.is_healthy


async def test_no_attempt_waits_for_a_journal_that_has_stopped_and_one_that_runs_again_writes_what_was_left(
    store: WatchedStore, engine: AsyncEngine
) -> None:
    async with writing(store, engine, 2) as (journal, (writer, other), _):
        await hold_up(store, writer, other)
        waiting = await start_waiting(writer)
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert writer.wait_for_row() is None
    again = asyncio.create_task(journal.run())
    await asyncio.sleep(0)
    await journal.drain(writer)
    await journal.drain(other)
    again.cancel()
    await asyncio.wait([again])
