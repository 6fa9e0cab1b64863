"""Several processes on one PostgreSQL with a Redis between them, which is killed while replies stream.

Readers are in another process than the workers (`app`), so every row comes through Redis, or is read back from the
database. `CheckedReader` compares all that each of them saw with what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.faults.checked_reader import CheckedReader, reading, wait_for_words
from tests.support.process_harness import ENDLESS_LEASES, SHORT_LEASES, SLOWLY, ProcessHarness
from tests.support.waiting import poll_until

import indelible
from indelible.app.app import App
from indelible.metrics import Metrics
from indelible.prove.redis import RedisServer
from indelible.settings import load_settings

pytestmark = [
    pytest.mark.parametrize("migrated", ["postgresql"], indirect=True),
    pytest.mark.may_log("WARNING indelible.feed.fanout: Redis can't be used"),
]


class CountedRows(Metrics):
    def __init__(self) -> None:
        self.received = self.resyncs = self.gaps = 0
        self.is_connected = False

    def fanout_connected(self, *, is_connected: bool) -> None:
        self.is_connected = is_connected

    def rows_received(self, count: int) -> None:
        self.received += count

    def reader_resynced(self) -> None:
        self.resyncs += 1

    def gaps_found(self, count: int) -> None:
        self.gaps += count


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with RedisServer().running() as running:
        yield running


@pytest.fixture
def counted() -> CountedRows:
    return CountedRows()


@pytest.fixture
async def app(database: str, redis: RedisServer, counted: CountedRows) -> AsyncIterator[App]:
    settings = load_settings(redis_url=redis.url)
    async with indelible.open(database, worker=False, settings=settings, metrics=counted) as opened:
        yield opened


async def wait_for_rows(counted: CountedRows) -> None:
    before = counted.received
    await poll_until(lambda: counted.is_connected and counted.received > before, what="rows by Redis")


async def test_every_reader_gets_every_word_once_while_redis_is_killed_again_and_again(
    harness: ProcessHarness, app: App, redis: RedisServer, counted: CountedRows
) -> None:
    for _ in range(2):
        await harness.start_worker(redis_url=redis.url, **ENDLESS_LEASES)
    readers = [CheckedReader(await app.create_chat(SLOWLY), restless=number % 2 > 0) for number in range(6)]
    async with reading(*readers):
        for _ in range(3):
            await wait_for_rows(counted)
            await wait_for_words(readers, 5)
            await redis.kill()
            await wait_for_words(readers, 5)
            await redis.start()
        await wait_for_rows(counted)
        harness.finish_replies()
        for reader in readers:
            await reader.wait_for_ends(1)
    for reader in readers:
        stored = await reader.check(harness.engine)
        assert [turn.outcome for turn in stored.turns] == ["complete"]
    assert counted.resyncs == counted.gaps == 0


async def test_a_takeover_while_redis_is_away_loses_nothing(
    harness: ProcessHarness, app: App, redis: RedisServer, counted: CountedRows
) -> None:
    """The worker dies with rows in its buffer for Redis; all of them are in the database."""
    first, _ = [await harness.start_worker(redis_url=redis.url, **SHORT_LEASES) for _ in range(2)]
    readers = [CheckedReader(await app.create_chat(SLOWLY)) for _ in range(4)]
    async with reading(*readers):
        await wait_for_rows(counted)
        await wait_for_words(readers, 5)
        await redis.kill()
        await first.kill()
        await wait_for_words(readers, 5)
        await redis.start()
        await wait_for_rows(counted)
        harness.finish_replies()
        for reader in readers:
            await reader.wait_for_ends(1)
    for reader in readers:
        await reader.check(harness.engine)
    assert counted.resyncs == counted.gaps == 0
