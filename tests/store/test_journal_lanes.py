"""Two lanes over one journal: what is urgent waits for nobody, and an attempt has one row on its way at a time.

The database is a real one. `ParkedStore` stands before it: a group waits there until the test says what becomes of it.
So every order in which two lanes can meet can be played, without a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Final, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.test_journal import make_change, read_parts, start_attempt
from tests.support.engine import begin_write, close_databases, get_database, open_engine
from tests.support.examples import count_examples
from tests.support.tables import attempts, journal
from tests.support.waiting import Watched, deadline

from indelible.content import Part, TextDelta, ToolProgress, decode_parts
from indelible.errors import LeaseLost, Shutdown, StoreFailed
from indelible.ids import new_id
from indelible.store.journal.append import Appended, BadRows, JournalRow
from indelible.store.journal.writer import Journal, JournalWriter
from indelible.store.queries.open_turn import AttemptName
from indelible.store.store import Store
from indelible.testing import ManualClock

Fate = Literal["written", "failed", "answer lost", "skipped", "refused"]
FATES: Final[tuple[Fate, ...]] = ("written", "written", "written", "failed", "answer lost", "skipped", "refused")


class Group(NamedTuple):
    """Rows on their way to the database, and what shall become of them."""

    rows: list[JournalRow]
    fate: asyncio.Future[Fate]


class ParkedStore(Store):
    """The real store, which takes a group only when the test decides its fate; `is_open`: all are written at once.

    `doubled` are attempts that had two rows on their way at the same time.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(get_database(engine))
        self.parked: list[Group] = []
        self.given: list[list[JournalRow]] = []
        self.doubled: set[str] = set()
        self.watched = Watched()
        self.is_open = False

    async def append(self, rows: Sequence[JournalRow]) -> Appended:
        self.given.append(list(rows))
        if self.is_open:
            return await super().append(rows)
        group = Group(list(rows), asyncio.get_running_loop().create_future())
        busy = {row.attempt_id for parked in self.parked for row in parked.rows}
        self.doubled |= busy & {row.attempt_id for row in rows}
        self.parked.append(group)
        self.watched.changed()
        try:
            return await self._meet(group)
        finally:
            self.parked.remove(group)
            self.watched.changed()

    async def _meet(self, group: Group) -> Appended:
        fate = await group.fate
        if fate == "failed":
            raise StoreFailed("the connection was lost")
        if fate == "refused":
            raise BadRows("not these")
        if fate == "skipped":
            return Appended(frozenset(), frozenset())
        appended = await super().append(group.rows)
        if fate == "answer lost":
            raise StoreFailed("the answer was lost")
        return appended

    async def wait_for(self, *chats: str) -> Group:
        """The group with exactly these chats, as soon as it is on its way."""
        wanted = {f"chat_{name}" for name in chats}

        def find() -> list[Group]:
            return [group for group in self.parked if {row.chat_id for row in group.rows} == wanted]

        await self.watched.wait_until(lambda: bool(find()))
        return find()[0]

    def let_all_go(self) -> None:
        self.is_open = True
        for group in self.parked:
            if not group.fate.done():
                group.fate.set_result("written")


class Lanes:
    """A journal whose interval ends only when the test moves the clock."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.store = ParkedStore(engine)
        self.clock = ManualClock()
        self.told: list[JournalRow] = []
        self.journal = Journal(self.store, clock=self.clock, on_committed=self._tell, interval_s=0.02)

    def _tell(self, rows: Sequence[JournalRow]) -> None:
        self.told.extend(rows)
        self.store.watched.changed()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        flushers = asyncio.create_task(self.journal.run())
        try:
            yield
        finally:
            flushers.cancel()
            await asyncio.wait([flushers])

    async def wait_until_told(self, count: int) -> None:
        await self.store.watched.wait_until(lambda: len(self.told) == count)

    async def speak(self, writer: JournalWriter, word: str = "word") -> None:
        """A row of this writer, committed."""
        writer.publish(TextDelta("1", word))
        (await self.store.wait_for(writer.chat_id.removeprefix("chat_"))).fate.set_result("written")
        await self.journal.drain(writer)


@pytest.fixture
async def lanes(engine: AsyncEngine) -> Lanes:
    return Lanes(engine)


async def start_writers(lanes: Lanes, engine: AsyncEngine, *names: str) -> list[JournalWriter]:
    return [lanes.journal.open(each.chat_id, each.id, each.epoch) for each in await start_attempts(engine, *names)]


async def start_attempts(engine: AsyncEngine, *names: str) -> list[AttemptName]:
    return [await start_attempt(Store(get_database(engine)), engine, name) for name in names]


async def test_a_first_row_waits_neither_for_the_interval_nor_moves_it(lanes: Lanes, engine: AsyncEngine) -> None:
    old, new = await start_writers(lanes, engine, "old", "new")
    async with lanes.running():
        await lanes.speak(old)
        await lanes.speak(old)
        old.publish(TextDelta("1", "waits"))
        await lanes.clock.advance(0.015)
        assert lanes.store.parked == []
        await lanes.speak(new)
        assert [row.n for row in lanes.told if row.chat_id == old.chat_id] == [1, 2]
        await lanes.clock.advance(0.005)
        (await lanes.store.wait_for("old")).fate.set_result("written")
        await lanes.journal.drain(old)


async def test_a_ledger_change_waits_neither_for_a_flush_on_its_way_nor_for_other_chats(
    lanes: Lanes, engine: AsyncEngine
) -> None:
    (paying,) = await start_attempts(engine, "paying")
    writers = await start_writers(lanes, engine, "a", "b")
    payer = lanes.journal.open(paying.chat_id, paying.id, paying.epoch)
    async with lanes.running():
        for writer in (*writers, payer):
            await lanes.speak(writer)
        for writer in writers:
            writer.publish(TextDelta("1", "on its way"))
        regular = await lanes.store.wait_for("a", "b")
        recording = asyncio.create_task(payer.record(*make_change(paying)))
        (await lanes.store.wait_for("paying")).fate.set_result("written")
        await recording
        assert not regular.fate.done()


async def test_those_that_become_urgent_while_urgent_rows_are_on_their_way_go_together(
    lanes: Lanes, engine: AsyncEngine
) -> None:
    writers = await start_writers(lanes, engine, "a", "b", "c", "d")
    async with lanes.running():
        writers[0].publish(TextDelta("1", "alone"))
        first = await lanes.store.wait_for("a")
        for writer in writers[1:]:
            writer.publish(TextDelta("1", "together"))
            await asyncio.sleep(0)
        assert len(lanes.store.parked) == 1
        first.fate.set_result("written")
        (await lanes.store.wait_for("b", "c", "d")).fate.set_result("written")
        for writer in writers:
            await lanes.journal.drain(writer)


async def test_a_change_of_an_attempt_with_a_row_on_its_way_follows_it_at_once(
    lanes: Lanes, engine: AsyncEngine
) -> None:
    (name,) = await start_attempts(engine, "a")
    writer = lanes.journal.open(name.chat_id, name.id, name.epoch)
    async with lanes.running():
        await lanes.speak(writer)
        writer.publish(TextDelta("1", "regular"))
        regular = await lanes.store.wait_for("a")
        recording = asyncio.create_task(writer.record(*make_change(name)))
        await lanes.clock.advance(0)
        assert lanes.store.parked == [regular]
        regular.fate.set_result("written")
        await lanes.store.watched.wait_until(lambda: lanes.store.parked not in ([], [regular]))
        (urgent,) = lanes.store.parked
        assert (urgent.rows[0].n, len(urgent.rows[0].changes)) == (3, 1)
        urgent.fate.set_result("written")
        await recording
    assert [row.n for row in lanes.told] == [1, 2, 3]


async def test_an_adopted_attempt_writes_nothing_before_the_row_of_its_former_writer_is_settled(
    lanes: Lanes, engine: AsyncEngine
) -> None:
    (former,) = await start_writers(lanes, engine, "a")
    async with lanes.running():
        await lanes.speak(former)
        former.publish(TextDelta("1", "old"))
        last = await lanes.store.wait_for("a")
        adopted = lanes.journal.open(former.chat_id, former.attempt_id, former.epoch, n=2)
        adopted.publish(TextDelta("1", "new"))
        await lanes.clock.advance(1)
        assert lanes.store.parked == [last]
        last.fate.set_result("written")
        await lanes.store.watched.wait_until(lambda: lanes.store.parked not in ([], [last]))
        lanes.store.parked[0].fate.set_result("written")
        await lanes.journal.drain(adopted)
    assert [row.n for row in lanes.told] == [1, 2, 3]


@pytest.mark.may_log("writing the journal failed; trying again")
@pytest.mark.parametrize("which", ["urgent", "regular"])
async def test_a_lane_whose_rows_fail_holds_up_no_other_and_sends_the_same_rows_again(
    lanes: Lanes, engine: AsyncEngine, which: str
) -> None:
    old, new = await start_writers(lanes, engine, "old", "new")
    failing, other = (new, old) if which == "urgent" else (old, new)
    async with lanes.running():
        await lanes.speak(old)
        failing.publish(TextDelta("1", "kept"))
        failed = await lanes.store.wait_for(failing.chat_id.removeprefix("chat_"))
        failed.fate.set_result("failed")
        await lanes.clock.advance(0)
        await lanes.speak(other)
        assert not lanes.journal.is_healthy
        assert lanes.store.parked == []
        lanes.clock.advance(0.05)
        again = await lanes.store.wait_for(failing.chat_id.removeprefix("chat_"))
        assert again.rows == failed.rows
        again.fate.set_result("written")
        await lanes.journal.drain(failing)
        assert lanes.journal.is_healthy


@pytest.mark.may_log("writing the journal failed; trying again")
async def test_a_lane_that_failed_and_then_learned_that_a_row_is_refused_is_in_trouble_no_more(
    lanes: Lanes, engine: AsyncEngine
) -> None:
    """The database answered. Otherwise all attempts would read token by token until that lane has a row again."""
    faulty, other = await start_writers(lanes, engine, "faulty", "other")
    async with lanes.running():
        await lanes.speak(other)
        faulty.publish(TextDelta("1", "refused"))
        (await lanes.store.wait_for("faulty")).fate.set_result("failed")
        await lanes.store.watched.wait_until(lambda: not lanes.store.parked)
        await lanes.clock.advance(0.05)
        (await lanes.store.wait_for("faulty")).fate.set_result("refused")
        await lanes.store.watched.wait_until(lambda: not lanes.store.parked)
        await lanes.clock.advance(0)
        assert isinstance(faulty.over, BadRows)
        assert lanes.journal.is_healthy


async def test_a_row_that_was_skipped_waits_for_the_interval_whatever_waits_behind_it(
    lanes: Lanes, engine: AsyncEngine
) -> None:
    """Its attempt is being ended. In the urgent lane it would be tried again and again without a pause."""
    (name,) = await start_attempts(engine, "new")
    (old,) = await start_writers(lanes, engine, "old")
    new = lanes.journal.open(name.chat_id, name.id, name.epoch)
    async with lanes.running():
        await lanes.speak(old)
        await lanes.speak(old)
        new.publish(TextDelta("1", "skipped"))
        skipped = await lanes.store.wait_for("new")
        skipped.fate.set_result("skipped")
        recording = asyncio.create_task(new.record(*make_change(name)))
        await lanes.clock.advance(0)
        assert lanes.store.parked == []
        lanes.clock.advance(0.02)
        again = await lanes.store.wait_for("new")
        assert again.rows == skipped.rows
        again.fate.set_result("written")
        await lanes.store.watched.wait_until(lambda: lanes.store.parked not in ([], [again]))
        lanes.store.parked[0].fate.set_result("written")
        await recording


@pytest.mark.parametrize("which", ["urgent", "regular"])
async def test_closing_waits_for_a_row_in_whichever_lane_it_is(lanes: Lanes, engine: AsyncEngine, which: str) -> None:
    (writer,) = await start_writers(lanes, engine, "a")
    async with lanes.running():
        if which == "regular":
            await lanes.speak(writer)
        writer.publish(TextDelta("1", "on its way"))
        group = await lanes.store.wait_for("a")
        writer.publish(TextDelta("1", "rest"))
        closing = asyncio.create_task(writer.close())
        await lanes.clock.advance(1)
        assert not closing.done()
        assert lanes.store.parked == [group]
        group.fate.set_result("written")
        assert await closing == [TextDelta("1", "rest")]


async def test_when_the_journal_stops_both_lanes_end_and_whoever_waits_for_either_is_told(
    lanes: Lanes, engine: AsyncEngine
) -> None:
    old, new = await start_writers(lanes, engine, "old", "new")
    async with lanes.running():
        await lanes.speak(old)
        for writer in (old, new):
            writer.publish(TextDelta("1", "on its way"))
        for name in ("old", "new"):
            await lanes.store.wait_for(name)
        waiting = [asyncio.create_task(lanes.journal.drain(writer)) for writer in (old, new)]
        await asyncio.sleep(0)
    for each in waiting:
        with pytest.raises(Shutdown):
            await each
    on_their_way = {row for group in lanes.store.given[-2:] for row in group}
    lanes.store.let_all_go()
    async with lanes.running():
        await asyncio.sleep(0)
        for writer in (old, new):
            await lanes.journal.drain(writer)
    assert set(lanes.store.given[-1]) == on_their_way


# --- a paused attempt ---


async def test_an_attempt_reads_right_before_its_row_is_made_and_what_it_reads_is_in_it(
    lanes: Lanes, engine: AsyncEngine
) -> None:
    (writer,) = await start_writers(lanes, engine, "a")
    words = ["one", " two", "three", "four"]

    async def read() -> None:
        for word in words:
            writer.publish(TextDelta("1", word))
            await (writer.wait_for_row() or asyncio.sleep(0))

    async with lanes.running():
        await lanes.speak(writer)
        await lanes.speak(writer)
        reading = asyncio.create_task(read())
        for n, expected in enumerate(("one two", "three", "four"), 3):
            lanes.clock.advance(0.02)
            group = await lanes.store.wait_for("a")
            assert decode_parts(group.rows[0].parts) == [TextDelta("1", expected)]
            group.fate.set_result("written")
            await lanes.wait_until_told(n)
        await lanes.clock.advance(0.02)
        await reading


# --- every order ---

CHATS: Final = 3
EXAMPLES: Final = {"sqlite": 40, "postgresql": 15}
ACTIONS: Final = (
    "publish",
    "publish",
    "publish",
    "record",
    "pause",
    "close",
    "end",
    "adopt",
    "tick",
    "decide",
    "decide",
)
STEPS: Final = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, CHATS - 1), st.integers(0, 30)), min_size=5, max_size=50
)


def list_words(parts: Iterable[Part]) -> list[str]:
    return [part.message for part in parts if isinstance(part, ToolProgress)]


class Speaker:
    """A writer, what it accepted, and what became of that outside the journal."""

    def __init__(self, writer: JournalWriter, name: AttemptName, number: int) -> None:
        self.writer = writer
        self.name = name
        self.number = number
        self.said: list[str] = []
        self.recording: list[asyncio.Task[None]] = []
        self.closing: asyncio.Task[list[Part]] | None = None

    def make_word(self) -> str:
        word = f"{self.number}-{len(self.said)}"
        self.said.append(word)
        return word

    def publish(self) -> None:
        self.writer.publish(ToolProgress("call", self.make_word()))

    def record(self) -> None:
        change, _ = make_change(self.name)
        key = change.key._replace(call_index=1000 * self.number + len(self.said))
        recorded = change._replace(key=key, idempotency_key=f"{key}")
        self.recording.append(asyncio.create_task(self.writer.record(recorded, ToolProgress("call", self.make_word()))))


class Crowd:
    """Chats that speak, in a journal that meets every fate."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.lanes = Lanes(engine)
        self.speakers: list[list[Speaker]] = []
        self.pauses: list[asyncio.Future[None]] = []

    async def begin(self) -> None:
        for name in await start_attempts(self.engine, *(new_id("x") for _ in range(CHATS))):
            writer = self.lanes.journal.open(name.chat_id, name.id, name.epoch)
            self.speakers.append([Speaker(writer, name, 0)])

    async def step(self, action: str, chat: int, number: int) -> None:
        speaker = self.speakers[chat][-1]
        is_open = speaker.writer.over is None
        if action == "publish" and is_open:
            speaker.publish()
        elif action == "record" and is_open:
            speaker.record()
            await asyncio.sleep(0)  # it accepts the change as it begins
        elif action == "pause" and (pause := speaker.writer.wait_for_row()) is not None:
            self.pauses.append(asyncio.ensure_future(pause))
        elif action == "close" and is_open and speaker.closing is None:
            speaker.closing = asyncio.create_task(speaker.writer.close())
        elif action == "end" and is_open:
            speaker.writer.end(LeaseLost("gone"))
        elif action == "adopt" and speaker.closing is None:
            await self.adopt(chat)
        elif action == "tick":
            self.lanes.clock.advance(number / 1000)
        elif action == "decide" and self.lanes.store.parked:
            await self.decide(
                self.lanes.store.parked[number % len(self.lanes.store.parked)], FATES[number % len(FATES)]
            )
        await self.lanes.clock.advance(0)

    async def decide(self, group: Group, fate: Fate) -> None:
        if not group.fate.done():
            group.fate.set_result(fate)
            await self.lanes.store.watched.wait_until(lambda: group not in self.lanes.store.parked)

    async def adopt(self, chat: int) -> None:
        """As `Acquire` does it: the epoch is raised, and then the rows are read."""
        former = self.speakers[chat][-1]
        name = msgspec.structs.replace(former.name, epoch=former.name.epoch + 1)
        async with begin_write(self.engine) as connection:
            await connection.execute(update(attempts).where(attempts.c.id == name.id).values(epoch=name.epoch))
            counted = select(func.count()).select_from(journal).where(journal.c.attempt_id == name.id)
            n = (await connection.execute(counted)).scalar_one()
        writer = self.lanes.journal.open(name.chat_id, name.id, name.epoch, n=n)
        self.speakers[chat].append(Speaker(writer, name, former.number + 1))

    async def end(self) -> None:
        """Nothing fails any more, and time passes until everything is written."""
        self.lanes.store.let_all_go()
        everyone = [speaker for speakers in self.speakers for speaker in speakers]
        tasks: list[asyncio.Task[Any]] = []
        for each in everyone:
            tasks += [*each.recording, each.closing or asyncio.create_task(self.lanes.journal.drain(each.writer))]
        async with deadline("the end of everything that was accepted"):
            while not all(task.done() for task in tasks):
                await self.lanes.clock.advance(5)
                await asyncio.wait(tasks, timeout=0)
        await self.lanes.clock.advance(1)
        assert all(pause.done() for pause in self.pauses)
        for task in tasks:
            assert task.exception() is None or isinstance(task.exception(), LeaseLost | BadRows)

    async def check(self) -> None:
        assert not self.lanes.store.doubled
        for speakers in self.speakers:
            name = speakers[0].name
            stored = await read_parts(self.engine, name.id)
            assert [n for n, _ in stored] == list(range(1, len(stored) + 1))
            said = list_words(part for _, parts in stored for part in parts)
            words = [(int(word.partition("-")[0]), word) for word in said]
            assert words == sorted(words, key=lambda word: word[0]), "a former writer came after its successor"
            for speaker in speakers:
                self.check_words(speaker, [text for number, text in words if number == speaker.number])
            told = [row.n for row in self.lanes.told if row.attempt_id == name.id]
            assert told == sorted(set(told))
        held_bytes = sum(each.writer._waiting_bytes for speakers in self.speakers for each in speakers)
        assert self.lanes.journal._held_bytes == held_bytes == 0

    def check_words(self, speaker: Speaker, stored: list[str]) -> None:
        assert stored == speaker.said[: len(stored)]
        if speaker.closing is not None and speaker.closing.exception() is None:
            assert stored + list_words(speaker.closing.result()) == speaker.said
        elif speaker.writer.over is None:
            assert stored == speaker.said


async def play(engine: AsyncEngine, steps: list[tuple[str, int, int]]) -> None:
    crowd = Crowd(engine)
    await crowd.begin()
    async with crowd.lanes.running():
        for step in steps:
            await crowd.step(*step)
        await crowd.end()
    await crowd.check()


@pytest.mark.may_log("writing the journal failed; trying again")
def test_whatever_becomes_of_rows_in_both_lanes_every_part_is_in_one_row_and_in_order(migrated: str) -> None:
    kind = "postgresql" if migrated.startswith("postgresql") else "sqlite"
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        engine = runner.run(open_engine(migrated))
        stack.callback(lambda: runner.run(engine.dispose()))
        stack.callback(lambda: runner.run(close_databases()))

        @settings(max_examples=count_examples(EXAMPLES[kind]))
        @given(steps=STEPS)
        def speak(steps: list[tuple[str, int, int]]) -> None:
            runner.run(play(engine, steps))

        speak()
