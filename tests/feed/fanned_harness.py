"""`FannedHarness`: a feed harness whose rows also go through Redis, and two of them on one PostgreSQL.

Their feeds do not poll, because nobody moves their clocks, and what they receive by hint is noted: a row that arrives
came through Redis, or the test can name the hint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.feed_harness import CountingMetrics, FeedHarness, StreamedChat
from tests.store.driver import settle_in
from tests.support.engine import close_databases, open_engine
from tests.support.waiting import deadline, poll_until

from indelible.app.compose import publish_rows
from indelible.clock import Clock, SystemClock
from indelible.feed.fanout import Fanout
from indelible.notify import PostgresNotifier
from indelible.store.database.address import parse_address
from indelible.store.journal.append import JournalRow


class FanoutMetrics(CountingMetrics):
    def __init__(self) -> None:
        super().__init__()
        self.published = self.unpublished = self.received = self.missed = 0
        self.connected: list[bool] = []

    def fanout_connected(self, *, is_connected: bool) -> None:
        self.connected.append(is_connected)

    def rows_published(self, count: int) -> None:
        self.published += count

    def rows_unpublished(self, count: int) -> None:
        self.unpublished += count

    def rows_received(self, count: int) -> None:
        self.received += count

    def rows_missed(self, count: int) -> None:
        self.missed += count


class NotedHints(PostgresNotifier):
    """Chats of which somebody elsewhere was to learn that they have more rows."""

    def __init__(self, database: str) -> None:
        super().__init__(parse_address(database).make_postgres_options(), clock=SystemClock())
        self.streaming: list[str] = []
        self.is_mute = False

    def notify_streaming(self, chat_ids: Any) -> None:
        if self.is_mute:
            return
        self.streaming.extend(chat_ids)
        super().notify_streaming(chat_ids)


class FannedHarness(FeedHarness):
    """`change` may do with rows what it likes before the feed gets them."""

    notifier: NotedHints

    def __init__(self, engine: AsyncEngine, database: str, url: str, *, clock: Clock) -> None:
        super().__init__(engine, NotedHints(database))
        self.counted = FanoutMetrics()
        self.change: Callable[[Sequence[JournalRow]], Sequence[JournalRow]] = tuple
        self.fanout: Fanout | None = None
        if url:
            self.fanout = Fanout(
                url,
                clock=clock,
                on_rows=self._take,
                on_unsent=self.notifier.notify_streaming,
                watched=lambda: self.feed.watched,
                metrics=self.counted,
            )
            self.feed.on_watched = self.fanout.announce

    def list_services(self) -> list[Coroutine[Any, Any, None]]:
        fanout = [] if self.fanout is None else [self.fanout.run()]
        return [*fanout, *super().list_services()]

    def _publish_rows(self, rows: Sequence[JournalRow]) -> None:
        publish_rows(self.notifier, self.feed, self.fanout, rows)

    def _take(self, rows: Sequence[JournalRow]) -> None:
        self.feed.publish(self.change(rows))

    async def wait_for_redis(self, *, is_connected: bool = True) -> None:
        fanout = self.fanout
        assert fanout is not None
        await poll_until(lambda: fanout.is_connected is is_connected, what="Redis")

    async def receive_hints_of(self, other: FannedHarness) -> None:
        """Until every hint that the other process has given so far is here: they come in order."""
        with self.notifier.subscribe() as hints:
            other.notifier.notify(["chat_last"])
            async with deadline("the last hint"):
                while "chat_last" not in (await hints.wait()).chat_ids:
                    pass

    async def wait_for_answer(self) -> None:
        """Until the last message to its own inbox has come back."""
        fanout = self.fanout
        assert fanout is not None
        await poll_until(lambda: fanout._silent_ticks == 0, what="the own message")

    async def wait_for_published(self, count: int, *, unpublished: int = 0) -> None:
        """Rows count when Redis has answered, which may be after a reader has them."""
        counted = self.counted
        await poll_until(lambda: (counted.published, counted.unpublished) == (count, unpublished), what="its answers")

    async def wait_for_interest(self, chat: StreamedChat, *, exists: bool = True) -> None:
        """Until this process knows that another one reads the chat."""
        fanout = self.fanout
        assert fanout is not None
        await poll_until(lambda: (chat.id in fanout._inboxes) is exists, what="an announcement")


@asynccontextmanager
async def run_two(
    database: str,
    writing_url: str,
    reading_url: str | None = None,
    *,
    is_connected: bool = True,
    clock: Clock | None = None,
) -> AsyncIterator[tuple[FannedHarness, FannedHarness]]:
    """Two processes that share the database and Redis; the first one writes. Both listen for hints when they begin.

    A URL that is empty: this one does not use Redis.
    """
    clock = clock or SystemClock()
    here, there = await open_engine(database), await open_engine(database)
    await settle_in(here)
    writing = FannedHarness(here, database, writing_url, clock=clock)
    reading = FannedHarness(there, database, writing_url if reading_url is None else reading_url, clock=clock)
    with writing.notifier.subscribe() as hints_here, reading.notifier.subscribe() as hints_there:
        async with writing.running(), reading.running():
            for hints in (hints_here, hints_there):
                while not (await hints.wait()).everything:
                    pass
            for harness in (writing, reading):
                if harness.fanout is not None and is_connected:
                    await harness.wait_for_redis()
            yield writing, reading
    await close_databases()
    await here.dispose()
    await there.dispose()
