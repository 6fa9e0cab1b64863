"""Hints: merged, bounded, carried between processes by a real PostgreSQL, and never a reason to fail.

They stand beside the store's tests because they need the same server. The clock is moved by hand; what the server
does is waited for, with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.log_records import DATABASE_AWAY
from tests.support.waiting import poll_until

from indelible.clock import Clock
from indelible.notify import (
    CHANNEL,
    CHECK_INTERVAL_S,
    MAX_NAMED_CHATS,
    MAX_PAYLOAD_BYTES,
    SEND_INTERVAL_S,
    Changed,
    LocalNotifier,
    Notifier,
    PostgresNotifier,
    Subscription,
)
from indelible.store.database.address import parse_address
from indelible.testing import ManualClock

pytestmark = pytest.mark.may_log(*DATABASE_AWAY)

DEADLINE_S = 100.0
EVERYTHING = Changed(everything=True)
BACKENDS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'indelible notify'"


Options = dict[str, Any]


def get_options(address: str) -> Options:
    return parse_address(address).make_postgres_options()


def changed(*chat_ids: str) -> Changed:
    return Changed(frozenset(chat_ids))


async def hear(subscription: Subscription) -> Changed:
    async with asyncio.timeout(DEADLINE_S):
        return await subscription.wait()


@pytest.fixture(params=["local", "postgresql"])
def notifier(request: pytest.FixtureRequest) -> Notifier:
    """One that has no connection, because nothing runs it."""
    if request.param == "local":
        return LocalNotifier()
    return PostgresNotifier(get_options("postgresql://nobody@localhost:1/nothing"), clock=ManualClock())


# --- within a process ----------------------------------------------------------------------


async def test_a_hint_is_there_as_soon_as_it_was_given(notifier: Notifier) -> None:
    with notifier.subscribe() as first, notifier.subscribe() as second:
        notifier.notify(["a", "b"])
        assert await hear(first) == changed("a", "b")
        assert await hear(second) == changed("a", "b")


async def test_a_waiting_reader_is_woken(notifier: Notifier) -> None:
    with notifier.subscribe() as subscription:
        waiting = asyncio.create_task(hear(subscription))
        await asyncio.sleep(0)
        assert not waiting.done()

        notifier.notify(["a"])

        assert await waiting == changed("a")


async def test_a_hint_is_heard_once_and_no_hint_wakes_nobody(notifier: Notifier) -> None:
    with notifier.subscribe() as subscription:
        notifier.notify(["a"])
        await hear(subscription)
        notifier.notify([])
        waiting = asyncio.create_task(hear(subscription))
        await asyncio.sleep(0)
        assert not waiting.done()

        notifier.notify(["b"])

        assert await waiting == changed("b")


async def test_a_slow_reader_holds_a_set_and_never_a_growing_list(notifier: Notifier) -> None:
    with notifier.subscribe() as subscription:
        for _ in range(10_000):
            notifier.notify(["a", "b"])
        assert await hear(subscription) == changed("a", "b")

        notifier.notify(f"chat_{number}" for number in range(MAX_NAMED_CHATS))
        assert len((await hear(subscription)).chat_ids) == MAX_NAMED_CHATS


async def test_more_chats_than_anybody_wants_to_name_are_all_chats(notifier: Notifier) -> None:
    with notifier.subscribe() as subscription:
        for number in range(MAX_NAMED_CHATS + 1):
            notifier.notify([f"chat_{number}"])
        notifier.notify(["one_more"])

        heard = await hear(subscription)
        assert heard == EVERYTHING
        assert "any chat" in heard

        notifier.notify(["a"])
        assert await hear(subscription) == changed("a")


async def test_a_closed_subscription_hears_nothing_and_holds_nobody_up(notifier: Notifier) -> None:
    with notifier.subscribe() as left:
        pass
    with notifier.subscribe() as stayed:
        notifier.notify(["a"])
        assert await hear(stayed) == changed("a")

    waiting = asyncio.create_task(left.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_reader_that_gives_up_waiting_misses_nothing(notifier: Notifier) -> None:
    with notifier.subscribe() as subscription:
        waiting = asyncio.create_task(subscription.wait())
        await asyncio.sleep(0)
        notifier.notify(["a"])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        assert await hear(subscription) == changed("a")


# --- between processes ---------------------------------------------------------------------


@pytest.fixture
def options(migrated_postgres: str) -> Options:
    return get_options(migrated_postgres)


@asynccontextmanager
async def running(options: Options, clock: Clock) -> AsyncIterator[tuple[PostgresNotifier, Subscription]]:
    """A notifier that is connected, and a subscription that has heard so."""
    notifier = PostgresNotifier(options, clock=clock)
    with notifier.subscribe() as subscription:
        task = asyncio.create_task(notifier.run())
        try:
            assert await hear(subscription) == EVERYTHING
            yield notifier, subscription
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


class Onlooker:
    """Somebody else on the same database, who sees every notification and can end connections."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._payloads: asyncio.Queue[str] = asyncio.Queue()

    def take(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._payloads.put_nowait(payload)

    async def wait_for_payload(self) -> str:
        async with asyncio.timeout(DEADLINE_S):
            return await self._payloads.get()

    async def collect(self) -> list[str]:
        """All that was sent until now. Notifications arrive in order, so what comes before our own is all there is."""
        await self.connection.execute("SELECT pg_notify($1, 'until here')", CHANNEL)
        payloads: list[str] = []
        while (payload := await self.wait_for_payload()) != "until here":
            payloads.append(payload)
        return payloads

    async def end_connections(self) -> int:
        return len(await self.connection.fetch(f"SELECT pg_terminate_backend(pid) {BACKENDS}"))


@pytest.fixture
async def onlooker(migrated_postgres: str) -> AsyncIterator[Onlooker]:
    connection = await asyncpg.connect(migrated_postgres)
    found = Onlooker(connection)
    await connection.add_listener(CHANNEL, found.take)
    yield found
    await connection.close()


async def test_two_processes_hear_each_other_and_nobody_hears_an_echo(options: Options) -> None:
    clock = ManualClock(skip_sleeps=True)
    async with running(options, clock) as (ours, here), running(options, clock) as (theirs, there):
        ours.notify(["a", "b"])
        assert await hear(here) == changed("a", "b")
        assert await hear(there) == changed("a", "b")

        theirs.notify(["c"])
        assert await hear(there) == changed("c")
        assert await hear(here) == changed("c")


async def test_a_burst_is_one_notification_now_and_one_after_the_interval(options: Options, onlooker: Onlooker) -> None:
    clock = ManualClock()
    async with running(options, clock) as (notifier, _):
        notifier.notify(["first"])
        assert await onlooker.wait_for_payload() == "first"
        async with asyncio.timeout(DEADLINE_S):
            while clock.slept != [SEND_INTERVAL_S]:
                await asyncio.sleep(0)
        for number in range(500):
            notifier.notify([f"chat_{number % 3}"])
        await clock.advance(SEND_INTERVAL_S * 0.9)
        assert await onlooker.collect() == []

        await clock.advance(SEND_INTERVAL_S * 0.2)

        assert set((await onlooker.wait_for_payload()).split()) == {"chat_0", "chat_1", "chat_2"}
        await clock.advance(SEND_INTERVAL_S * 2)
        assert await onlooker.collect() == []


async def test_what_does_not_fit_waits_for_the_next_notification(options: Options, onlooker: Onlooker) -> None:
    chat_ids = [f"chat_{number:026}" for number in range(MAX_NAMED_CHATS)]
    async with running(options, ManualClock(skip_sleeps=True)) as (notifier, _):
        notifier.notify(chat_ids)
        payloads: list[str] = []
        while len(" ".join(payloads).split()) < len(chat_ids):
            payloads.append(await onlooker.wait_for_payload())

    assert sorted(" ".join(payloads).split()) == chat_ids
    assert len(payloads) == 5
    assert max(len(payload.encode()) for payload in payloads) <= MAX_PAYLOAD_BYTES


async def test_too_many_chats_are_all_chats_to_others_as_well(options: Options) -> None:
    clock = ManualClock(skip_sleeps=True)
    async with running(options, clock) as (ours, _), running(options, clock) as (_, there):
        ours.notify(f"chat_{number}" for number in range(MAX_NAMED_CHATS + 1))
        assert await hear(there) == EVERYTHING


async def test_a_name_too_long_to_send_is_all_chats_and_holds_up_no_other(options: Options, onlooker: Onlooker) -> None:
    async with running(options, ManualClock(skip_sleeps=True)) as (notifier, _):
        notifier.notify(["long" * MAX_PAYLOAD_BYTES])
        assert await onlooker.wait_for_payload() == "*"
        notifier.notify(["a"])
        assert await onlooker.wait_for_payload() == "a"


async def test_a_killed_listener_connects_again_and_tells_everybody_to_look(
    options: Options, onlooker: Onlooker
) -> None:
    async with running(options, ManualClock(skip_sleeps=True)) as (_, subscription):
        assert await onlooker.end_connections() >= 1
        assert await hear(subscription) == EVERYTHING

        await onlooker.connection.execute("SELECT pg_notify($1, 'a')", CHANNEL)
        assert await hear(subscription) == changed("a")


async def test_sending_without_a_connection_raises_nothing_and_is_made_up_for(
    options: Options, onlooker: Onlooker
) -> None:
    clock = ManualClock()
    async with running(options, clock) as (notifier, subscription):
        backing_off = asyncio.create_task(clock.wait_for_timer())
        await asyncio.sleep(0)
        await onlooker.end_connections()
        async with asyncio.timeout(DEADLINE_S):
            await backing_off

        notifier.notify(["a"])
        assert await hear(subscription) == changed("a")
        assert await onlooker.collect() == []

        await clock.advance(0.1)
        assert await hear(subscription) == EVERYTHING
        assert await onlooker.wait_for_payload() == "a"


async def test_a_connection_that_dies_while_sending_raises_nothing(options: Options, onlooker: Onlooker) -> None:
    async with running(options, ManualClock(skip_sleeps=True)) as (notifier, subscription):
        ended = asyncio.create_task(onlooker.end_connections())
        while not ended.done():
            notifier.notify(["a"])
            await asyncio.sleep(0)
        while await hear(subscription) != EVERYTHING:
            pass

        notifier.notify(["b"])
        while "b" not in (await onlooker.wait_for_payload()).split():
            pass


async def test_a_server_that_is_away_is_tried_again_ever_more_slowly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(skip_sleeps=True)
    away = get_options(f"postgresql://ada:hush@/chats?host={tmp_path}")
    notifier = PostgresNotifier(away, clock=clock)
    with notifier.subscribe() as subscription:
        task = asyncio.create_task(notifier.run())
        async with asyncio.timeout(DEADLINE_S):
            while len(clock.slept) < 9:
                notifier.notify(["a"])
                assert await hear(subscription) == changed("a")
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert clock.slept[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert "notifications" in caplog.text
    assert "hush" not in caplog.text


async def test_options_of_the_address_hold_here_too(migrated_postgres: str) -> None:
    patient = get_options(f"{migrated_postgres}{'&' if '?' in migrated_postgres else '?'}connect_timeout=15")
    async with running(patient, ManualClock()) as (notifier, subscription):
        notifier.notify(["a"])
        assert await hear(subscription) == changed("a")


async def test_a_quiet_connection_is_asked_whether_it_lives_and_is_in_no_transaction(
    options: Options, onlooker: Onlooker
) -> None:
    clock = ManualClock()
    await onlooker.end_connections()
    async with running(options, clock):
        backend = await onlooker.connection.fetchrow(f"SELECT pid, query {BACKENDS} AND state = 'idle'")
        assert backend["query"].startswith("LISTEN")

        await clock.advance(CHECK_INTERVAL_S)

        asked = f"SELECT count(*) {BACKENDS} AND pid = $1 AND query = 'SELECT 1' AND state = 'idle'"

        async def was_asked() -> bool:
            return bool(await onlooker.connection.fetchval(asked, backend["pid"]))

        await poll_until(was_asked, what="a question whether it lives")
