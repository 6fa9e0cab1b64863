"""Reading on both databases: one moment, what came after it, and what was said long ago (R9, R11, S56, S57)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_read, begin_write, get_database, transact
from tests.support.tables import chats, events, journal, users

from indelible.content import Finish, Part, Text, TextDelta, decode_blocks, encode
from indelible.content.assemble import assemble
from indelible.errors import NotFound
from indelible.machine.commands import Acquire, Create, FinishTurn, Send, StartAttempt
from indelible.store.journal.append import JournalRow
from indelible.store.journal.pack import sweep
from indelible.store.payloads import NewChat, UserInput
from indelible.store.queries.chat_view import Live, load_events, load_rows, load_view
from indelible.store.queries.leases import beat, retire
from indelible.store.queries.open_turn import AttemptName
from indelible.store.store import Store
from indelible.testing import ManualClock

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
FAR_OFF = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id="user_1", name="ada", created_at=LONG_AGO))
    await transact(engine, beat, "worker_1")
    return Store(get_database(engine))


async def start(store: Store, chat_id: str = "chat_1") -> AttemptName:
    words = NewChat(owner_id="user_1", blocks=[Text("hi")])
    created = await store.execute(chat_id, Create(with_message=True), words)
    held = await store.execute(chat_id, Acquire(worker_id="worker_1"))
    assert created.turn_id is not None
    started = await store.execute(chat_id, StartAttempt(epoch=held.epoch, turn_id=created.turn_id))
    assert started.attempt is not None
    return started.attempt


async def say(store: Store, attempt: AttemptName, n: int, *parts: Part) -> None:
    appended = await store.append([JournalRow(attempt.chat_id, attempt.id, attempt.epoch, n, encode(list(parts)))])
    assert appended.written == {attempt.id}


async def finish(store: Store, attempt: AttemptName) -> None:
    command = FinishTurn(epoch=attempt.epoch, turn_id=attempt.turn_id, attempt_id=attempt.id)
    await store.execute("chat_1", command)


async def test_s56_s57_live_is_there_from_the_start_of_a_stream_to_its_end(store: Store, engine: AsyncEngine) -> None:
    attempt = await start(store)
    assert (await transact(engine, load_view, "chat_1", lease_timeout_s=3600)).live == Live(
        attempt=attempt.id, n=0, blocks=[]
    )
    await say(store, attempt, 1, TextDelta("1", "Hel"))
    assert (await transact(engine, load_view, "chat_1", lease_timeout_s=3600)).live == Live(
        attempt=attempt.id, n=1, blocks=[Text("Hel")]
    )
    await say(store, attempt, 2, TextDelta("1", "lo"), Finish("stop"))
    await finish(store, attempt)
    view = await transact(engine, load_view, "chat_1", lease_timeout_s=3600)
    assert view.live is None
    assert [message.text for message in view.messages] == ["hi", "Hello"]
    assert (view.status, view.turn, view.has_more) == ("idle", None, False)


async def test_r9_a_view_is_of_one_moment_whatever_is_written_meanwhile(store: Store, engine: AsyncEngine) -> None:
    """Between two statements of one read, a step is committed: the read must not see half of it."""
    attempt = await start(store)
    await say(store, attempt, 1, TextDelta("1", "Hello"), Finish("stop"))
    async with begin_read(engine) as connection:
        seq_before = (await connection.execute(select(chats.c.seq))).scalar_one()
        await finish(store, attempt)
        last = (await connection.execute(select(events.c.seq).order_by(events.c.seq.desc()))).scalars().first()
        assert last == seq_before
    after = await transact(engine, load_view, "chat_1", lease_timeout_s=3600)
    assert after.seq > seq_before


async def test_a_view_and_the_events_after_its_cursor_are_everything_exactly_once(
    store: Store, engine: AsyncEngine
) -> None:
    attempt = await start(store)
    view = await transact(engine, load_view, "chat_1", lease_timeout_s=3600)
    assert [event.seq for event in await transact(engine, load_events, "chat_1", after=0)] == list(
        range(1, view.seq + 1)
    )
    await say(store, attempt, 1, TextDelta("1", "Hello"), Finish("stop"))
    await finish(store, attempt)
    later = await transact(engine, load_events, "chat_1", after=view.seq)
    assert [event.seq for event in later] == list(range(view.seq + 1, view.seq + 1 + len(later)))
    ended = next(event for event in later if event.kind == "message")
    assert ended.payload == {"attempt": attempt.id, "last_n": 1}
    assert [event.kind for event in later] == ["message", "status"]


async def test_a_snapshot_is_the_view_and_the_last_messages_of_one_moment(store: Store, engine: AsyncEngine) -> None:
    attempt = await start(store)
    await say(store, attempt, 1, TextDelta("1", "Hello"))
    running, page = await store.snapshot("chat_1", limit=1)
    assert (running.live, running.messages) == (Live(attempt=attempt.id, n=1, blocks=[Text("Hello")]), [])
    assert [shown.role for shown in page.items] == ["user"]
    await say(store, attempt, 2, Finish("stop"))
    await finish(store, attempt)
    view, page = await store.snapshot("chat_1", limit=1)
    whole = await transact(engine, load_view, "chat_1", lease_timeout_s=3600)
    assert msgspec.structs.replace(whole, messages=[], has_more=False) == view
    assert (page.items, page.has_more) == ((await store.page("chat_1", limit=1)).items, True)
    assert [shown.id for shown in page.items] == [view.head_id]
    with pytest.raises(NotFound):
        await store.snapshot("chat_that_never_was")


async def test_a_running_chat_that_no_live_worker_holds_is_pending(store: Store, engine: AsyncEngine) -> None:
    await start(store)
    assert (await transact(engine, load_view, "chat_1", lease_timeout_s=3600)).status == "running"
    await transact(engine, retire, "worker_1")
    assert (await transact(engine, load_view, "chat_1", lease_timeout_s=3600)).status == "pending"
    async with begin_read(engine) as connection:
        assert (await connection.execute(select(chats.c.status))).scalar_one() == "running"


async def test_a_view_shows_the_queue_and_the_end_of_a_long_path(store: Store, engine: AsyncEngine) -> None:
    await start(store)
    queued = await store.execute("chat_1", Send(), UserInput(blocks=[Text("next")], model="demo", author_id="user_1"))
    view = await transact(engine, load_view, "chat_1", limit=1, lease_timeout_s=3600)
    assert [(row.id, decode_blocks(row.blocks), row.model) for row in view.queue] == [
        (queued.queued_id, [Text("next")], "demo")
    ]
    assert not view.has_more
    with pytest.raises(NotFound):
        await transact(engine, load_view, "chat_2", lease_timeout_s=3600)


async def test_r11_a_packed_attempt_reads_as_it_read_before_from_every_row(store: Store, engine: AsyncEngine) -> None:
    attempt = await start(store)
    for n in range(1, 6):
        await say(store, attempt, n, TextDelta("1", f"word {n} "))
    await say(store, attempt, 6, Finish("stop"))
    await finish(store, attempt)
    before = [await transact(engine, load_rows, attempt.chat_id, attempt.id, after=n) for n in range(8)]
    assert await sweep(get_database(engine), ended_before=FAR_OFF, clock=ManualClock()) == 1
    async with begin_read(engine) as connection:
        assert (await connection.execute(select(journal.c.n))).scalars().all() == [0]
    assert [await transact(engine, load_rows, attempt.chat_id, attempt.id, after=n) for n in range(8)] == before
    assert assemble(part for row in before[0] for part in row.parts)[0] == Text("word 1 word 2 word 3 word 4 word 5 ")


async def test_r11_a_sweep_leaves_alone_what_runs_and_what_is_young(store: Store, engine: AsyncEngine) -> None:
    running = await start(store)
    await say(store, running, 1, TextDelta("1", "Hello"))
    assert await sweep(get_database(engine), ended_before=FAR_OFF, clock=ManualClock()) == 0
    await say(store, running, 2, Finish("stop"))
    await finish(store, running)
    assert (
        await sweep(get_database(engine), ended_before=datetime.now(UTC) - timedelta(days=1), clock=ManualClock()) == 0
    )
    assert [row.n for row in await transact(engine, load_rows, running.chat_id, running.id)] == [1, 2]


async def test_r12_a_sweep_stops_when_its_time_is_up(store: Store, engine: AsyncEngine) -> None:
    for number in range(3):
        attempt = await start(store, f"chat_{number}")
        await say(store, attempt, 1, Finish("stop"))
        command = FinishTurn(epoch=attempt.epoch, turn_id=attempt.turn_id, attempt_id=attempt.id)
        await store.execute(f"chat_{number}", command)
    assert await sweep(get_database(engine), ended_before=FAR_OFF, clock=ManualClock(), time_s=0) == 1
    assert await sweep(get_database(engine), ended_before=FAR_OFF, clock=ManualClock(), time_s=1) == 2
