"""A process as the feed sees it: a store, a journal, a notifier, and a chat that is spoken in.

Everything is real but the clock. `Talk` is the driver of tests/store with a voice: what it says goes through the
journal and its flusher, and the feed hears of it, as in a worker. `Seen` reads along in a task of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver

from indelible.clock import Clock
from indelible.content import Finish, Part, ReasoningDelta, TextDelta, ToolCall, ToolResult
from indelible.errors import StoreFailed
from indelible.feed import Feed, Reader
from indelible.feed.timeline import covers
from indelible.machine import commands as c
from indelible.machine.events import FeedEvent, Position
from indelible.metrics import NoMetrics
from indelible.notify import LocalNotifier, Notifier
from indelible.store.journal.append import JournalRow
from indelible.store.journal.writer import Journal, JournalWriter
from indelible.store.payloads import ChatPatch
from indelible.store.protocol import Outcome
from indelible.store.queries.changes import Changes
from indelible.store.sql_store import SqlStore
from indelible.testing import ManualClock

PATIENCE_S = 100


class CountingStore(SqlStore):
    """The real store; it counts what readers ask of it, and fails as often as it is told."""

    def __init__(self, engine: AsyncEngine, on_committed: Callable[[str], None]) -> None:
        super().__init__(engine, on_committed=on_committed)
        self.asked: list[str] = []
        self.failures: dict[str, int] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def changes(self, chat_id: str, after: Position) -> Changes:
        """While the gate is closed, what was read is held back."""
        self._note("changes")
        changes = await super().changes(chat_id, after)
        await self.gate.wait()
        return changes

    async def positions(self, chat_ids: Sequence[str]) -> dict[str, Position]:
        self._note("positions")
        return await super().positions(chat_ids)

    def _note(self, name: str) -> None:
        self.asked.append(name)
        if self.failures.get(name):
            self.failures[name] -= 1
            raise StoreFailed("The database is away.")


class Counted(NoMetrics):
    """What the feed told of itself."""

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


class Process:
    def __init__(
        self, engine: AsyncEngine, notifier: Notifier | None = None, clock: Clock | None = None, **settings: Any
    ) -> None:
        self.engine = engine
        self.manual = ManualClock()
        self.notifier = notifier or LocalNotifier()
        self.store = CountingStore(engine, lambda chat_id: self.notifier.notify([chat_id]))
        self.is_deaf = False
        """While it is, rows that are committed look as if another process had committed them."""

        self.counted = Counted()
        self.journal = Journal(
            self.store, clock=ManualClock(skip_sleeps=True), on_committed=self._publish_rows, interval_s=0
        )
        self.feed = Feed(self.store, self.notifier, clock=clock or self.manual, metrics=self.counted, **settings)

    def _publish_rows(self, rows: Sequence[JournalRow]) -> None:
        if not self.is_deaf:
            self.feed.publish(rows)
            self.notifier.notify_streaming({row.chat_id for row in rows})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Process]:
        tasks = [asyncio.create_task(work) for work in (self.journal.run(), self.feed.run(), self.notifier.run())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def talk(self, text: str | None = "Hello") -> Talk:
        talk = Talk(self)
        await talk.create(text)
        return talk

    @asynccontextmanager
    async def read(self, talk: Driver, after: str | None = None) -> AsyncIterator[Seen]:
        """Read a chat in a task of its own, until the block ends."""
        async with self.feed.open(talk.id, after) as reader:
            seen = Seen(reader, talk)
            task = asyncio.create_task(seen.collect())
            try:
                yield seen
            finally:
                task.cancel()
                await asyncio.wait([task])


class Talk(Driver):
    """A chat whose worker speaks through the journal."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.store, process.engine)
        self.process = process
        self.writer: JournalWriter | None = None

    async def hold(self) -> Talk:
        await self.do(c.Acquire(worker_id="live"))
        return self

    async def start(self) -> Outcome:
        outcome = await super().start()
        self.writer = self.process.journal.open(self.id, self.attempt_id, self.epoch)
        return outcome

    async def speak(self, *said: Part | str) -> None:
        """One flush."""
        assert self.writer is not None
        for part in said:
            self.writer.publish(TextDelta("1", part) if isinstance(part, str) else part)
        await self.process.journal.drain(self.writer)

    async def close(self, kind: type[c.WorkerCommand], *rest: Part, **fields: Any) -> Outcome:
        """End the attempt with this command; `rest` is what was not flushed yet."""
        assert self.writer is not None
        last = [*await self.writer.close(), *rest]
        self.writer = None
        return await self.end(kind, pending=last, **fields)


class Seen:
    """What a reader has been told so far."""

    def __init__(self, reader: Reader, talk: Driver) -> None:
        self.reader = reader
        self.events: list[FeedEvent] = []
        self.is_over = False
        self._talk = talk

    async def collect(self) -> None:
        async for event in self.reader:
            self.events.append(event)
        self.is_over = True

    async def everything(self) -> list[FeedEvent]:
        """Wait until the reader has come as far as the chat has by now."""
        here = (await SqlStore(self._talk._engine).positions([self._talk.id]))[self._talk.id]
        await wait_until(lambda: self.reader.position is not None and covers(self.reader.position, here))
        return self.events

    async def until(self, kind: str, count: int = 1) -> list[FeedEvent]:
        await wait_until(lambda: self.kinds.count(kind) >= count)
        return self.events

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def text(self) -> str:
        return read_text(self.events)


async def poll(process: Process, times: int = 1) -> None:
    """Let a second pass, as often as that, and each time let the feed look first at what there is."""
    for _ in range(times):
        await wait_until(lambda: process.manual.pending > 0)
        await process.manual.advance(1.0)
    await wait_until(lambda: process.manual.pending > 0)


async def wait_until(is_so: Callable[[], bool]) -> None:
    """Let the event loop turn until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0)


def read_text(events: Sequence[FeedEvent]) -> str:
    """All text that was told in parts."""
    return "".join(part.text for event in events for part in event.parts)


async def say_everything(talk: Talk) -> None:
    """A conversation with every kind of event, and every way in which an attempt can end."""
    call = ToolCall(id="call_1", name="weather", arguments="{}")
    asked = ToolCall(id="call_2", name="ask", arguments="{}")
    await talk.hold()
    await talk.start()
    await talk.speak(ReasoningDelta("r", "Hm"))
    await talk.speak(ReasoningDelta("r", "m."))
    await talk.close(c.AnnounceRetry, retry={"delay_ms": 1000, "kind": "overloaded"})
    await talk.start()
    await talk.speak(ReasoningDelta("r", "So"))
    await talk.start()  # which resets the attempt that showed nothing
    await talk.speak("It is ")
    await talk.speak("rai")
    await talk.do(c.Send(), "And Bergen?")
    await talk.close(c.CommitStep, failed=True)
    await talk.start()
    await talk.speak("ning")
    await talk.speak(call, Finish("tool_calls"))
    await talk.speak(ToolResult(call_id="call_1", name="weather", output="rain"))
    await talk.close(c.CommitStep)
    await talk.start()
    await talk.close(c.CommitStep, TextDelta("1", "All of it in the last row."), Finish("tool_calls"))
    await talk.start()
    await talk.speak("Let me")
    await talk.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
    await talk.do(c.Interrupt())
    await talk.close(c.FinishInterruption, TextDelta("1", " thi"))
    await talk.start()
    await talk.speak("Bergen: ")
    await talk.speak("rain", Finish("stop"))
    await talk.close(c.FinishTurn)
    await talk.do(c.Edit(message_id=await talk.last_id("user")), "And Oslo?")
    await talk.hold()
    await talk.start()
    await talk.speak(asked, Finish("tool_calls"))
    await talk.close(c.AwaitAction, deadline_s=60)
    await talk.do(c.Interrupt())
    await talk.do(c.Send(), "Once more")
    await talk.hold()
    await talk.start()
    await talk.speak("I ca")
    await talk.close(c.Fail, error={"kind": "auth", "message": "No key."})
