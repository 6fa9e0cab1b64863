"""`FeedHarness`: an app harness with a clock that only the test moves, and a chat that is written by hand.

`StreamedChat` is the driver of tests/store with a journal: what it writes goes through the journal and its flusher, and
the feed publishes it, as in a worker. `SeenEvents` reads along in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver
from tests.support.app_harness import AppHarness
from tests.support.engine import get_database
from tests.support.waiting import Watched, deadline, wait_for_task

from indelible.api.events import FeedEvent, Position
from indelible.app.compose import publish_outcome
from indelible.content import Finish, Part, ReasoningDelta, TextDelta, ToolCall, ToolResult
from indelible.errors import StoreFailed
from indelible.feed import Reader
from indelible.feed.events import covers
from indelible.feed.feed import POLL_INTERVAL_S
from indelible.machine import commands as c
from indelible.metrics import NoMetrics
from indelible.notify import Changed, LocalNotifier, Notifier
from indelible.store.journal.append import JournalRow
from indelible.store.journal.writer import Journal, JournalWriter
from indelible.store.outcome import Outcome
from indelible.store.payloads import ChatPatch
from indelible.store.queries.changes import Changes
from indelible.store.store import Store
from indelible.testing import ManualClock


class CountingStore(Store):
    """The real store; it notes what readers ask of it, and fails as often as the test says."""

    def __init__(self, engine: AsyncEngine, on_committed: Callable[[Outcome], None]) -> None:
        super().__init__(get_database(engine), on_committed=on_committed)
        self.calls: list[str] = []
        self.failures: dict[str, int] = {}
        self.watched = Watched()
        self.gate = asyncio.Event()
        self.gate.set()

    async def changes(self, chat_id: str, after: Position) -> Changes:
        """While the gate is closed, what was read is held back."""
        self._note("changes")
        changes = await super().changes(chat_id, after)
        self.watched.changed()
        await self.gate.wait()
        return changes

    async def positions(self, chat_ids: Sequence[str]) -> dict[str, Position]:
        self._note("positions")
        return await super().positions(chat_ids)

    async def wait_for_call(self, name: str) -> None:
        await self.watched.wait_until(lambda: name in self.calls, what=f"a call of {name}")

    def _note(self, name: str) -> None:
        self.calls.append(name)
        is_failing = self.failures.get(name, 0) > 0
        if is_failing:
            self.failures[name] -= 1
        self.watched.changed()
        if is_failing:
            raise StoreFailed("The database is away.")


class CountingMetrics(NoMetrics):
    def __init__(self) -> None:
        self.readers = 0
        self.resyncs = 0
        self.gaps = 0

    def reader_joined(self) -> None:
        self.readers += 1

    def reader_disconnected(self) -> None:
        self.readers -= 1

    def reader_resynced(self) -> None:
        self.resyncs += 1

    def gaps_found(self, count: int) -> None:
        self.gaps += count


class FeedHarness(AppHarness):
    clock: ManualClock
    store: CountingStore

    def __init__(self, engine: AsyncEngine, notifier: Notifier | None = None, **feed_options: Any) -> None:
        self.metrics = CountingMetrics()
        self.publishes_rows = True
        """While it does not, rows that are committed look as if another process had committed them."""

        self.tells_commands = True
        """The same of commands. Their hints arrive."""

        super().__init__(
            engine,
            notifier=notifier,
            clock=ManualClock(),
            metrics=self.metrics,
            poll_interval_s=POLL_INTERVAL_S,
            **feed_options,
        )
        self.journal = Journal(
            self.store, clock=ManualClock(skip_sleeps=True), on_committed=self._publish_rows, interval_s=0
        )

    def open_store(self, **_: Any) -> CountingStore:
        return CountingStore(self.engine, self._publish_outcome)

    def list_services(self) -> list[Coroutine[Any, Any, None]]:
        return [self.journal.run(), *super().list_services()]

    def _publish_outcome(self, outcome: Outcome) -> None:
        if self.tells_commands:
            publish_outcome(self.notifier, self.feed, outcome)
        else:
            assert isinstance(self.notifier, LocalNotifier)
            self.notifier.publish(Changed(frozenset({outcome.chat_id})))

    def _publish_rows(self, rows: Sequence[JournalRow]) -> None:
        if self.publishes_rows:
            self.feed.publish(rows)
            self.notifier.notify_streaming({row.chat_id for row in rows})

    async def create_chat(self, text: str | None = "Hello") -> StreamedChat:
        chat = StreamedChat(self)
        await chat.create(text)
        return chat

    async def create_streaming(self) -> StreamedChat:
        """A chat whose first attempt has begun."""
        chat = await (await self.create_chat()).acquire()
        await chat.start()
        return chat

    @asynccontextmanager
    async def read(self, chat: Driver, after: str | None = None) -> AsyncIterator[SeenEvents]:
        """Read a chat in a task of its own, until the block ends."""
        async with self.feed.open(chat.id, after) as reader:
            seen = SeenEvents(reader, chat)
            task = asyncio.create_task(seen.collect())
            try:
                yield seen
            finally:
                task.cancel()
                await wait_for_task(task, what="a reader")

    async def poll(self, times: int = 1) -> None:
        """Let a second pass, as often as that; the feed polls each time, and has polled when this returns."""
        for _ in range(times):
            await self._wait_for_timer()
            await self.clock.advance(POLL_INTERVAL_S)
        await self._wait_for_timer()

    async def _wait_for_timer(self) -> None:
        async with deadline("the feed's timer"):
            while not self.clock.pending:
                await self.clock.wait_for_timer()


class StreamedChat(Driver):
    """A chat whose worker writes through the journal."""

    def __init__(self, harness: FeedHarness) -> None:
        super().__init__(harness.store, harness.engine)
        self.harness = harness
        self.writer: JournalWriter | None = None

    async def acquire(self) -> StreamedChat:
        await self.do(c.Acquire(worker_id="live"))
        return self

    async def start(self) -> Outcome:
        outcome = await super().start()
        self.writer = self.harness.journal.open(self.id, self.attempt_id, self.epoch)
        return outcome

    async def write(self, *parts: Part | str) -> None:
        """One flush."""
        assert self.writer is not None
        for part in parts:
            self.writer.publish(TextDelta("1", part) if isinstance(part, str) else part)
        async with deadline("a flush of the journal"):
            await self.harness.journal.drain(self.writer)

    async def close(self, kind: type[c.WorkerCommand], *rest: Part, **fields: Any) -> Outcome:
        """End the attempt with this command; `rest` is what was not flushed yet."""
        assert self.writer is not None
        last = [*await self.writer.close(), *rest]
        self.writer = None
        return await self.end(kind, pending=last, **fields)


class SeenEvents(Watched):
    """What a reader has received so far. Whoever waits is woken by each event, and whenever the reader has no more."""

    def __init__(self, reader: Reader, chat: Driver) -> None:
        super().__init__()
        self.reader = reader
        self.events: list[FeedEvent] = []
        self.is_over = False
        self._chat = chat
        self._move_on = reader._move_on
        reader._move_on = self._note_empty  # type: ignore[method-assign]

    async def collect(self) -> None:
        async for event in self.reader:
            self.events.append(event)
            self.changed()
        self.is_over = True
        self.changed()

    async def _note_empty(self) -> None:
        """Its position may have moved without an event."""
        self.changed()
        await self._move_on()

    async def catch_up(self) -> list[FeedEvent]:
        """Wait until the reader has come as far as the chat has by now, is live, and asks the store nothing more."""
        here = (await Store(get_database(self._chat._engine)).positions([self._chat.id]))[self._chat.id]
        await self.wait_until(
            lambda: self._covers(here) and self.reader._cursor.is_live, what=f"a live reader at {here}"
        )
        return self.events

    def _covers(self, here: Position) -> bool:
        return self.reader.position is not None and covers(self.reader.position, here)

    async def wait_for(self, kind: str, count: int = 1) -> list[FeedEvent]:
        await self.wait_until(lambda: self.kinds.count(kind) >= count, what=f"{count} of {kind}")
        return self.events

    async def wait_for_text(self, text: str) -> None:
        """Wait until this is all text that came in parts."""
        await self.wait_until(lambda: self.text == text, what=f"the text {text!r}")

    async def wait_until_over(self) -> None:
        await self.wait_until(lambda: self.is_over, what="the end of the feed")

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def text(self) -> str:
        return read_text(self.events)


def read_text(events: Sequence[FeedEvent]) -> str:
    """All text that came in parts."""
    return "".join(part.text for event in events for part in event.parts)


async def say_everything(chat: StreamedChat) -> None:
    """A conversation with every kind of event, and every way in which an attempt can end."""
    call = ToolCall(id="call_1", name="weather", arguments="{}")
    asked = ToolCall(id="call_2", name="ask", arguments="{}")
    await chat.acquire()
    await chat.start()
    await chat.write(ReasoningDelta("r", "Hm"))
    await chat.write(ReasoningDelta("r", "m."))
    await chat.close(c.AnnounceRetry, retry={"delay_ms": 1000, "kind": "overloaded"})
    await chat.start()
    await chat.write(ReasoningDelta("r", "So"))
    await chat.start()  # which resets the attempt that showed nothing
    await chat.write("It is ")
    await chat.write("rai")
    await chat.do(c.Send(), "And Bergen?")
    await chat.close(c.CommitStep, failed=True)
    await chat.start()
    await chat.write("ning")
    await chat.write(call, Finish("tool_calls"))
    await chat.write(ToolResult(call_id="call_1", name="weather", output="rain"))
    await chat.close(c.CommitStep)
    await chat.start()
    await chat.close(c.CommitStep, TextDelta("1", "All of it in the last row."), Finish("tool_calls"))
    await chat.start()
    await chat.write("Let me")
    await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
    await chat.do(c.Interrupt())
    await chat.close(c.FinishInterruption, TextDelta("1", " thi"))
    await chat.start()
    await chat.write("Bergen: ")
    await chat.write("rain", Finish("stop"))
    await chat.close(c.FinishTurn)
    await chat.do(c.Edit(message_id=await chat.last_id("user")), "And Oslo?")
    await chat.acquire()
    await chat.start()
    await chat.write(asked, Finish("tool_calls"))
    await chat.close(c.AwaitAction, deadline_s=60)
    await chat.do(c.Interrupt())
    await chat.do(c.Send(), "Once more")
    await chat.acquire()
    await chat.start()
    await chat.write("I ca")
    await chat.close(c.Fail, error={"kind": "auth", "message": "No key."})
