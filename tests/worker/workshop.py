"""A database with readers, and workers that are hired, dismissed and killed.

Everything is real but the model: the store, the journal, the feed, the workers, the library's own `Chat`. A worker
that is killed dies without a word: its tasks end, nothing is released, and its row in the database is all that is
left of it. `bury` takes that row away as well, so that a test need not wait until it is cold. By itself a row does not
get cold while a test runs: on a machine that stalls, a worker that lives would be taken for dead, and the test with it.
Whoever is to find the dead by their silence gets a store that thinks so sooner (`open_store`).

Nobody sleeps here. `until` reads a chat's feed and looks at the chat after every event.

When the workshop closes, every chat in it has to be whole (indelible.testing.invariants), and no task is left over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.app.compose import make_worker
from indelible.clock import Clock, SystemClock
from indelible.content import Message, Text, ToolResult
from indelible.errors import ModelFailed
from indelible.feed import Feed
from indelible.machine.commands import Command
from indelible.machine.events import FeedEvent
from indelible.metrics import NO_METRICS, Metrics
from indelible.models.protocol import Model
from indelible.notify import LocalNotifier
from indelible.recording.recorder import DebugRecorder
from indelible.service.results import ChatMessage
from indelible.settings import Settings, load_settings
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import chats
from indelible.store.payloads import C, Payload
from indelible.store.protocol import Outcome
from indelible.store.queries.chat_view import ChatView
from indelible.store.sql_store import SqlStore
from indelible.testing.invariants import StoredChat, find_faults, load_chat
from indelible.tools.toolset import AnyTool
from indelible.worker import Worker

M = TypeVar("M", Message, ChatMessage)
PATIENCE_S = 100.0
NEVER_S = 3600.0
"""Longer than any test."""

QUICK: dict[str, Any] = {
    "heartbeat_interval_s": 1,
    "lease_timeout_s": NEVER_S,
    "poll_interval_s": 0.5,
    "retry_base_s": 0,
    "tool_grace_s": 0.05,
    "auto_titles": False,
}


def quick(**changes: Any) -> Settings:
    """The settings of a worker in a hurry."""
    return load_settings(**{**QUICK, **changes})


class WatchedStore:
    """Stands before a store: something may be done right before and right after each command of its worker."""

    def __init__(
        self,
        store: SqlStore,
        *,
        before: Callable[[Command], Awaitable[None]] | None = None,
        after: Callable[[Command], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def execute(self, chat_id: str, command: C, payload: Payload[C] | None = None) -> Outcome:
        if self._before is not None:
            await self._before(command)
        outcome = await self._store.execute(chat_id, command, payload)
        if self._after is not None:
            await self._after(command)
        return outcome


class DeafNotifier(LocalNotifier):
    """Every hint is lost."""

    def notify(self, chat_ids: Iterable[str]) -> None:
        pass


class LongSleeps(SystemClock):
    """Real time, but for waits of half a minute, which end when the test says so."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.continue_ = asyncio.Event()

    async def sleep(self, delay_s: float) -> None:
        if delay_s != 30.0:
            await super().sleep(delay_s)
            return
        self.waiting.set()
        await self.continue_.wait()


class Hired:
    """A worker at work."""

    def __init__(self, worker: Worker, task: asyncio.Task[None]) -> None:
        self.worker = worker
        self.task = task


class Workshop:
    def __init__(self, engine: AsyncEngine, *, notifier: LocalNotifier | None = None) -> None:
        self.engine = engine
        self.clock: Clock = SystemClock()
        self.notifier = notifier or LocalNotifier()
        self.store = self.open_store()
        self.feed = Feed(self.store, self.notifier, clock=self.clock, poll_interval_s=0.5)
        self.hired: list[Hired] = []
        self.app: App

    def open_store(self, *, lease_timeout_s: float = NEVER_S) -> SqlStore:
        return SqlStore(
            self.engine, lease_timeout_s=lease_timeout_s, on_committed=lambda chat_id: self.notifier.notify([chat_id])
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Workshop]:
        self.app = App(self.store, self.feed, clock=self.clock, owner_id=await self.store.ensure_user("local"))
        reading = asyncio.create_task(self.feed.run())
        try:
            yield self
            for hired in self.hired:
                await self.dismiss(hired)
        finally:
            self.feed.close()
            left = [reading, *(hired.task for hired in self.hired)]
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=PATIENCE_S)
        for chat_id in await self.list_chats():
            stored = await load_chat(self.engine, chat_id)
            assert stored is not None
            assert find_faults(stored) == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    # --- workers ---

    async def hire(
        self,
        model: Model | None = None,
        *,
        models: dict[str, Model] | None = None,
        tools: Sequence[AnyTool] = (),
        client_tools: Sequence[AnyTool] = (),
        settings: Settings | None = None,
        store: Any = None,
        notifier: LocalNotifier | None = None,
        clock: Clock | None = None,
        metrics: Metrics = NO_METRICS,
        recorder: DebugRecorder | None = None,
    ) -> Hired:
        """A worker that answers with this model, from now on."""

        def find(name: str | None) -> Model:
            found = model if name is None else (models or {}).get(name)
            if found is None:
                raise ModelFailed(f"There is no model {name!r}.", kind="config")
            return found

        worker = make_worker(
            cast(SqlStore, store or self.store),
            notifier or self.notifier,
            self.feed,
            settings=settings or quick(),
            clock=clock or self.clock,
            find=find,
            tools=tools,
            client_tools=client_tools,
            metrics=metrics,
            recorder=recorder,
        )
        hired = Hired(worker, asyncio.create_task(worker.run()))
        self.hired.append(hired)
        testing = asyncio.current_task()
        assert testing is not None
        hired.task.add_done_callback(lambda task: _end_test(testing, task))
        waiting = asyncio.create_task(worker.ready.wait())
        await asyncio.wait([hired.task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.wait([waiting])
        return hired

    async def dismiss(self, hired: Hired) -> None:
        """It hands over and comes to its end. What it failed with, unless it was killed, fails the test."""
        hired.worker.stop()
        await asyncio.wait([hired.task], timeout=PATIENCE_S)
        assert hired.task.done(), "the worker does not come to its end"
        if not hired.task.cancelled():
            hired.task.result()

    async def kill(self, hired: Hired) -> None:
        """It is gone without a word; to everybody else it looks alive for a while."""
        hired.task.cancel()
        await asyncio.wait([hired.task])
        assert hired.task.cancelled()

    async def bury(self, hired: Hired) -> None:
        """It is known to be dead."""
        await self.store.retire(hired.worker.id)

    # --- chats ---

    async def list_chats(self) -> list[str]:
        async with begin_read(self.engine) as connection:
            return list((await connection.execute(select(chats.c.id))).scalars())

    async def load(self, chat: Chat) -> StoredChat:
        stored = await load_chat(self.engine, chat.id)
        assert stored is not None
        return stored

    async def until(self, chat: Chat, holds: Callable[[ChatView], bool]) -> ChatView:
        """Read the feed until this holds of the chat."""
        async with asyncio.timeout(PATIENCE_S), self.feed.open(chat.id) as events:
            async for _ in events:
                view = await self.store.view(chat.id, limit=1000)
                if holds(view):
                    return view
        raise AssertionError("the feed ended before it came true")

    async def until_said(self, chat: Chat, text: str) -> ChatView:
        """Read until the running reply shows this."""
        return await self.until(chat, lambda view: view.live is not None and text in read_text(view.live.blocks))

    async def until_rest(self, chat: Chat) -> ChatView:
        return await self.until(chat, lambda view: view.status in {"idle", "error"} and not view.queue)

    async def read_all(self, chat: Chat) -> list[FeedEvent]:
        """The whole feed of a chat that rests, from its beginning."""
        events: list[FeedEvent] = []
        seq = (await self.store.view(chat.id)).seq
        async with asyncio.timeout(PATIENCE_S), self.feed.open(chat.id, after="start") as reader:
            async for event in reader:
                events.append(event)
                if reader.position is not None and reader.position.seq >= seq:
                    return events
        raise AssertionError("the feed ended too early")


def _end_test(testing: asyncio.Task[Any], working: asyncio.Task[None]) -> None:
    """A worker that broke will not bring what the test waits for."""
    if not working.cancelled() and working.exception() is not None:
        testing.cancel("the worker broke")


# --- what was said ---


def read_text(blocks: Sequence[Any]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, Text))


def tell(messages: Sequence[Message | ChatMessage]) -> list[tuple[str, str]]:
    """Messages as role and text; of tool results, their output."""
    told: list[tuple[str, str]] = []
    for message in messages:
        outputs = "".join(str(block.output) for block in message.blocks if isinstance(block, ToolResult))
        told.append((message.role, read_text(message.blocks) + outputs))
    return told


def find_notices(messages: Sequence[Message | ChatMessage]) -> list[str]:
    return [read_text(message.blocks) for message in messages if message.role == "notice"]


def find_reply(messages: Sequence[M]) -> M:
    """The newest thing that a model said."""
    return [message for message in messages if message.role == "assistant"][-1]
