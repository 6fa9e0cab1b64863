"""`AppHarness`: the app in this process, with workers that a test starts, stops and kills, and with servers.

Everything is real but the model: the database, the store, the journal, the feed, the workers, the library's own `Chat`.
A worker that is killed ends without a word: its tasks end, nothing is released, and its row in the database is all that
is left of it. `retire_worker` removes that row as well, so that a test need not wait until the lease has run out. By
itself no lease runs out while a test runs: on a machine that stalls, a worker that lives would be taken for dead, and
the test with it. A test about leases that run out opens a store with a shorter timeout (`open_store`).

A server (`start_server`) opens an app of its own on the same database, with its own worker, as the command does.

Nobody sleeps here. `wait_until` reads a chat's feed and looks at the chat after every event.

When the harness closes, every chat in the database has to be whole (indelible.testing.invariants), and no task is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple, Self, cast

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_read, get_database, get_name
from tests.support.messages import read_text
from tests.support.running_server import RunningServer, run_server
from tests.support.tables import chats
from tests.support.waiting import deadline, describe, wait_for_any, wait_for_task

from indelible.api.events import FeedEvent
from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.app.compose import make_journal, publish_outcome
from indelible.clock import Clock, SystemClock
from indelible.errors import ModelFailed
from indelible.feed import Feed
from indelible.files.bytes import DatabaseBytes
from indelible.files.store import FileStore
from indelible.machine.commands import Command
from indelible.metrics import NO_METRICS, Metrics
from indelible.models.protocol import Model
from indelible.notify import LocalNotifier, Notifier
from indelible.recording.recorder import DebugRecorder
from indelible.server.app import Server
from indelible.server.sse import DEFAULT_PACE, Pace
from indelible.settings import Settings, load_settings
from indelible.store.commands.begin import Place
from indelible.store.outcome import Outcome
from indelible.store.payloads import C, Payload
from indelible.store.queries.chat_view import ChatView
from indelible.store.store import Store
from indelible.testing import ScriptedModel
from indelible.testing.invariants import StoredChat, find_faults, load_chat
from indelible.tools.toolset import AnyTool
from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.presence import OpenSession
from indelible.worker.worker import Worker

NEVER_S: Final = 3600.0
"""Longer than any test."""

_CONNECTION: Final = "postgres connection"
_FAST: Final[dict[str, Any]] = {
    "heartbeat_interval_s": 1,
    "lease_timeout_s": NEVER_S,
    "poll_interval_s": 0.5,
    "retry_base_s": 0,
    "tool_grace_s": 0.05,
    "auto_titles": False,
}


def make_settings(**changes: Any) -> Settings:
    """Settings with which nothing takes long and no worker is taken for dead."""
    return load_settings(**{**_FAST, **changes})


@asynccontextmanager
async def serve_app(
    database: str,
    model: Model | str | None = None,
    *,
    models: Mapping[str, Model] | None = None,
    tools: Sequence[AnyTool] = (),
    client_tools: Sequence[AnyTool] = (),
    worker: bool = True,
    client_token: str | None = None,
    pace: Pace = DEFAULT_PACE,
    clock: Clock | None = None,
    only_health: bool = False,
    **settings: Any,
) -> AsyncIterator[RunningServer]:
    """A server with an app of its own, until the end of the block. Without a model, none may be asked."""
    name = model if isinstance(model, str) else "scripted"
    own = {} if isinstance(model, str) else {name: model or ScriptedModel()}
    chosen = make_settings(**{"model": name, "database": database, "port": 0, **settings})
    server = Server(
        chosen,
        models={**own, **(models or {})},
        tools=tools,
        client_tools=client_tools,
        worker=worker,
        pace=pace,
        clock=clock,
        only_health=only_health,
    )
    async with run_server(server, client_token=client_token) as running:
        yield running


class WatchedStore:
    """Stands before a store: something may be done right before and right after each command of its worker."""

    def __init__(
        self,
        store: Store,
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


class DroppingNotifier(LocalNotifier):
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


class RunningWorker(NamedTuple):
    worker: Worker
    task: asyncio.Task[None]


class AppHarness:
    """See the module header. `workers` are all that were started, in order.

    `reserve` is asked for a place when a message is accepted; a program asks its worker (`worker.reserve`).
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        notifier: Notifier | None = None,
        clock: Clock | None = None,
        metrics: Metrics = NO_METRICS,
        **feed_options: Any,
    ) -> None:
        self.engine = engine
        self.clock: Clock = clock or SystemClock()
        self.notifier = notifier or LocalNotifier()
        self.store = self.open_store()
        self.feed = Feed(
            self.store, self.notifier, clock=self.clock, metrics=metrics, **{"poll_interval_s": 0.5, **feed_options}
        )
        self.workers: list[RunningWorker] = []
        self.reserve: Callable[[str, str], Place | None] | None = None
        self._servers = AsyncExitStack()
        self._services: list[asyncio.Task[None]] = []
        self.app: App

    def open_store(self, *, lease_timeout_s: float = NEVER_S) -> Store:
        return Store(
            get_database(self.engine),
            lease_timeout_s=lease_timeout_s,
            on_committed=lambda outcome: publish_outcome(self.notifier, self.feed, outcome),
        )

    def list_services(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the workers for as long as the harness is open."""
        return [self.feed.run(), self.notifier.run()]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        """Everything runs until the end of the block; then everything is checked."""
        async with self.running():
            yield self
        await self.check()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """All that a second harness of a test needs, and what must end before the check.

        If the test fails, workers do not get to stop in good order.
        """
        owner_id = await self.store.ensure_user("local")
        self.app = App(self.store, self.feed, clock=self.clock, owner_id=owner_id, reserve=self._reserve)
        for service in self.list_services():
            self.start_service(service)
        try:
            async with self._servers:
                yield self
            for running in self.workers:
                await self.stop_worker(running)
        finally:
            self.feed.close()
            left = [*self._services, *(running.task for running in self.workers)]
            for task in left:
                task.cancel()
            async with deadline("the end of the harness's tasks"):
                await asyncio.wait(left)
        for task in self._services:
            assert task.cancelled() or task.exception() is None

    def _reserve(self, chat_id: str, owner_id: str) -> Place | None:
        return None if self.reserve is None else self.reserve(chat_id, owner_id)

    def start_service(self, service: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(service)
        self._services.append(task)
        return task

    async def check(self) -> None:
        """Every stored chat is whole, and nobody left a task behind."""
        for chat_id in await self.list_chat_ids():
            assert find_faults(await self._load(chat_id)) == []
        left = {task for task in asyncio.all_tasks() if task.get_name() != _CONNECTION}  # the database outlives us
        assert left == {asyncio.current_task()}

    # --- workers ---

    async def start_worker(
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
        open_session: OpenSession | None = None,
    ) -> RunningWorker:
        """Start a worker that answers with this model; returns when it is ready. If it breaks, the test ends."""

        def find(name: str | None) -> Model:
            found = model if name is None else (models or {}).get(name)
            if found is None:
                raise ModelFailed(f"There is no model {name!r}.", kind="config")
            return found

        opened = cast(Store, store or self.store)
        hints, settings, clock = notifier or self.notifier, settings or make_settings(), clock or self.clock
        deps = WorkerDependencies(
            store=opened,
            journal=make_journal(opened, hints, self.feed, settings=settings, clock=clock, metrics=metrics),
            clock=clock,
            settings=settings,
            find_model=find,
            tools=tools,
            client_tools=client_tools,
            metrics=metrics,
            recorder=recorder,
            open_session=open_session,
            files=FileStore(opened.database, [DatabaseBytes(opened.database)]),
        )
        worker = Worker(deps, hints)
        running = RunningWorker(worker, asyncio.create_task(worker.run()))
        self.workers.append(running)
        test = asyncio.current_task()
        assert test is not None
        running.task.add_done_callback(lambda task: _end_test(test, task))
        ready = asyncio.create_task(worker.ready.wait())
        await wait_for_any([running.task, ready], what="a worker that is ready")
        ready.cancel()
        await wait_for_task(ready)
        return running

    async def stop_worker(self, running: RunningWorker) -> None:
        """It hands over and ends. An error of its own, unless it was killed, fails the test."""
        running.worker.stop()
        await wait_for_task(running.task, what="the worker")
        if not running.task.cancelled():
            running.task.result()

    async def kill_worker(self, running: RunningWorker) -> None:
        """It ends without releasing anything; its lease goes on."""
        running.task.cancel()
        await wait_for_task(running.task, what="a killed worker")
        assert running.task.cancelled()

    async def retire_worker(self, running: RunningWorker) -> None:
        """Remove its row: from now on everybody knows that it is dead."""
        await self.store.retire(running.worker.id)

    # --- servers ---

    async def start_server(self, model: Model | str | None = None, **more: Any) -> RunningServer:
        """A server on the same database until the end of the test; see `serve_app` for what it may be given."""
        return await self._servers.enter_async_context(serve_app(get_name(self.engine), model, **more))

    # --- chats ---

    async def list_chat_ids(self) -> list[str]:
        async with begin_read(self.engine) as connection:
            return list((await connection.execute(select(chats.c.id))).scalars())

    async def load(self, chat: Chat) -> StoredChat:
        """All rows of a chat."""
        return await self._load(chat.id)

    async def _load(self, chat_id: str) -> StoredChat:
        stored = await load_chat(get_database(self.engine), chat_id)
        assert stored is not None
        return stored

    async def wait_until(self, chat: Chat, condition: Callable[[ChatView], bool]) -> ChatView:
        """Read the feed until this is true of the chat."""
        async with deadline(describe(condition)), self.feed.open(chat.id) as events:
            async for _ in events:
                view = await self.store.view(chat.id, limit=1000)
                if condition(view):
                    return view
        raise AssertionError("the feed ended too early")

    async def wait_for_text(self, chat: Chat, text: str) -> ChatView:
        """Read until the running reply shows this."""
        return await self.wait_until(chat, lambda view: view.live is not None and text in read_text(view.live.blocks))

    async def wait_for_end(self, chat: Chat) -> ChatView:
        """Read until every turn has ended, those of the queue as well."""
        return await self.wait_until(chat, lambda view: view.status in {"idle", "error"} and not view.queue)

    async def read_events(self, chat: Chat) -> list[FeedEvent]:
        """The whole feed of a chat in which nothing happens any more, from its beginning."""
        events: list[FeedEvent] = []
        seq = (await self.store.view(chat.id)).seq
        async with deadline(f"event {seq} of {chat.id}"), self.feed.open(chat.id, after="start") as reader:
            async for event in reader:
                events.append(event)
                if reader.position is not None and reader.position.seq >= seq:
                    return events
        raise AssertionError("the feed ended too early")


def _end_test(test: asyncio.Task[Any], working: asyncio.Task[None]) -> None:
    """A worker that broke will not do what the test waits for."""
    if not working.cancelled() and working.exception() is not None:
        test.cancel("the worker broke")
