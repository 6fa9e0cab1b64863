"""The front door for Python programs: chats in a database, and a worker that answers them.

    async with indelible.open("chats.db", model="demo", tools=[weather]) as app:
        chat = await app.create()
        async for part in chat.send("Is it raining in Oslo?"):
            print(part.text, end="")

This is one of the two places where all parts are put together; the server is the other. Everything that a chat can
be told is a method of `Chat`, and each is one command of the machine: it either happened, durably, or raised and
changed nothing. Reading is separate from working: leaving a loop over `send` stops nothing, the reply goes on and is
kept, and `chat.events(after=cursor)` takes it up again from anywhere.

With SQLite one program works on a file at a time; `work=False` opens it beside one, to read and to send.

Must stay true (tests/app/test_app.py): what `open` started has ended when it returns; a reply that was read to its
end is the stored one, word by word.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from indelible.clock import Clock, SystemClock
from indelible.content import Block, File, Message, Text, ToolResult
from indelible.debug.recorder import DebugMetrics, Recorder
from indelible.errors import Invalid, NotFound
from indelible.events import FeedEvent
from indelible.feed import Feed, FeedMetrics, Tail
from indelible.ids import new_id
from indelible.machine import commands
from indelible.machine.commands import Command
from indelible.models.catalog import DEMO, Catalog
from indelible.models.port import Model
from indelible.notify import LocalNotifier, Notifier, PostgresNotifier
from indelible.reply import Reply
from indelible.settings import Settings, load_settings
from indelible.store.append import JournalRow
from indelible.store.journal import Journal, JournalMetrics
from indelible.store.listing import ChatSummary, Place
from indelible.store.lock import hold_alone
from indelible.store.port import NO_WORDS, Description, Outcome, Words
from indelible.store.read import QueuedMessage
from indelible.store.sql import SqlStore, StoreLimits
from indelible.tools.box import AnyTool, ToolBox
from indelible.worker import Worker, WorkerSetup
from indelible.worker.setup import WorkerMetrics

Content = str | Sequence[Block]
When = Literal["queue", "interrupt", "steer"]

_SENDS: dict[str, Callable[[], Command]] = {
    "queue": commands.Send,
    "interrupt": commands.SendInterrupt,
    "steer": commands.SendSteer,
}


class AppMetrics(WorkerMetrics, FeedMetrics, JournalMetrics, DebugMetrics, Protocol):
    """Everything that is counted; metrics.py has the one that ships."""


@asynccontextmanager
async def open_app(
    database: str | Path | None = None,
    *,
    model: str | Model | None = None,
    models: Mapping[str, Model] | None = None,
    tools: Sequence[AnyTool] = (),
    client_tools: Sequence[AnyTool] = (),
    user: str = "local",
    settings: Settings | None = None,
    work: bool = True,
    clock: Clock | None = None,
    metrics: AppMetrics | None = None,
) -> AsyncIterator[App]:
    """Open a database, new or not, and answer the chats in it until the end of the block.

    database: a file, or a URL such as `postgresql://user:password@host/name`. Otherwise the setting.
    model: who answers: a name, or a model of your own. Otherwise the setting. models: further ones of your own, by the
        name under which a message or a retry may ask for them.
    tools: typed functions or tools that the model may call. client_tools: those that you run yourself; a reply
        stops for them, and `chat.bring_results` goes on with it.
    user: the name under which the chats of this program are kept.
    work: whether to answer. Without it the database is only read and written to, and somebody else answers.
    """
    clock = clock or SystemClock()
    settings = settings or load_settings()
    if isinstance(model, str):
        settings = settings.model_copy(update={"model": model})
    where = database if database is not None else settings.database
    body_error: Exception | None = None
    try:
        async with AsyncExitStack() as stack:
            catalog = Catalog(settings, clock=clock)
            stack.push_async_callback(catalog.aclose)
            if work and any(name != DEMO for name in (settings.model, *settings.models)):
                await asyncio.to_thread(catalog.load)
            find = partial(_find, own=model, models=models or {}, settings=settings, catalog=catalog)
            parts = await _put_together(
                stack,
                where,
                find=find,
                tools=tools,
                client_tools=client_tools,
                settings=settings,
                work=work,
                clock=clock,
                metrics=metrics,
            )
            try:
                names = list(dict.fromkeys([*(models or ()), *catalog.list_names()]))
                yield App(*parts, clock=clock, owner_id=await parts[0].ensure_user(user), models=names)
            except Exception as error:
                body_error = error
                raise
    except BaseExceptionGroup as group:
        if group.exceptions != (body_error,):
            raise
    if body_error is not None:
        raise body_error  # as it was raised, not as one of a group


async def _put_together(
    stack: AsyncExitStack,
    where: str | Path,
    *,
    find: Callable[[str | None], Model],
    tools: Sequence[AnyTool],
    client_tools: Sequence[AnyTool],
    settings: Settings,
    work: bool,
    clock: Clock,
    metrics: AppMetrics | None,
) -> tuple[SqlStore, Feed]:
    """Start everything; the stack ends it in the reverse order: readers, worker, services, database, lock."""
    if work:
        ToolBox(tools, client=client_tools)  # whatever is wrong with them is told now, and not by the first reply
        stack.enter_context(hold_alone(where))
    notifier: Notifier = LocalNotifier()
    store = await stack.enter_async_context(
        SqlStore.open(
            where,
            dead_after_s=settings.dead_after_s,
            limits=StoreLimits(queued=settings.queue_max, message_bytes=settings.message_max_bytes),
            on_committed=lambda chat_id: notifier.notify([chat_id]),
        )
    )
    alone = store.url.get_backend_name() == "sqlite"
    if not alone:
        notifier = PostgresNotifier(store.url, clock=clock)
    tail = Tail()
    feed = Feed(store, notifier, tail, clock=clock, metrics=metrics)
    services = await stack.enter_async_context(asyncio.TaskGroup())
    running = [services.create_task(notifier.run(), name="hints"), services.create_task(feed.run(), name="feed")]
    stack.callback(lambda: [task.cancel() for task in running])
    if work:
        if alone:
            await store.retire_all()
        recorder = Recorder(
            store.records,
            mode=settings.debug,
            kept_s=settings.debug_kept_s,
            dead_after_s=settings.dead_after_s,
            clock=clock,
            metrics=metrics,
        )
        running.append(services.create_task(recorder.run(), name="debug records"))
        stack.push_async_callback(recorder.drain)
        worker = make_worker(
            store,
            notifier,
            tail,
            settings=settings,
            clock=clock,
            find=find,
            tools=tools,
            client_tools=client_tools,
            metrics=metrics,
            recorder=recorder,
        )
        working = services.create_task(worker.run(), name="worker")
        stack.push_async_callback(_wait_for, working)
        stack.callback(worker.stop)
        await worker.ready.wait()
    stack.callback(feed.close)
    return store, feed


def _find(
    name: str | None, *, own: str | Model | None, models: Mapping[str, Model], settings: Settings, catalog: Catalog
) -> Model:
    if name is None and own is not None and not isinstance(own, str):
        return own
    wanted = name or settings.model
    return models[wanted] if wanted in models else catalog.find(wanted)


async def _wait_for(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])


def make_worker(
    store: SqlStore,
    notifier: Notifier,
    tail: Tail,
    *,
    settings: Settings,
    clock: Clock,
    find: Callable[[str | None], Model],
    tools: Sequence[AnyTool] = (),
    client_tools: Sequence[AnyTool] = (),
    metrics: AppMetrics | None = None,
    recorder: Recorder | None = None,
) -> Worker:
    """A worker and its journal. Readers are told of what was committed: here by the tail, elsewhere by a hint."""

    def tell_readers(rows: Sequence[JournalRow]) -> None:
        tail.committed(rows)
        notifier.notify_saying(tail.name_chats(rows))

    journal = Journal(
        store,
        clock=clock,
        on_committed=tell_readers,
        interval_s=settings.journal_interval_s,
        flush_bytes=settings.journal_flush_max_bytes,
        limit_bytes=settings.journal_wait_max_bytes,
        metrics=metrics,
    )
    setup = WorkerSetup(
        store=store,
        journal=journal,
        tail=tail,
        clock=clock,
        settings=settings,
        find_model=find,
        tools=tools,
        client_tools=client_tools,
        metrics=metrics,
        recorder=recorder,
    )
    return Worker(setup, notifier)


class App:
    """What `indelible.open` gives: the chats of one user. `models` are the names of those that may be asked for."""

    def __init__(self, store: SqlStore, feed: Feed, *, clock: Clock, owner_id: str, models: Sequence[str] = ()) -> None:
        self.store = store
        self.feed = feed
        self.clock = clock
        self.owner_id = owner_id
        self.models = models

    async def create(
        self,
        message: Content | None = None,
        *,
        model: str | None = None,
        system: str | None = None,
        title: str | None = None,
    ) -> Chat:
        """A new chat; with a message it is answered at once."""
        chat_id = new_id("chat")
        words = Words(
            owner_id=self.owner_id,
            blocks=to_blocks(message) if message is not None else [],
            model=model,
            system_prompt=system,
            title=title,
        )
        await self.store.execute(chat_id, commands.Create(with_message=message is not None), words)
        return Chat(self, chat_id)

    async def chat(self, chat_id: str) -> Chat:
        """A chat that is there. Raises `NotFound` if this user has none of this id."""
        if await self.store.owner(chat_id) != self.owner_id:
            raise NotFound("There is no such chat.")
        return Chat(self, chat_id)

    async def chats(
        self, *, search: str | None = None, archived: bool = False, after: Place | None = None, limit: int = 50
    ) -> list[ChatSummary]:
        """The user's chats, the last changed first."""
        return await self.store.list_chats(self.owner_id, archived=archived, search=search, after=after, limit=limit)


@dataclass(frozen=True)
class Stopped:
    """What became of a wish to stop. `stopped` is False if nothing was running any more."""

    stopped: bool
    status: str
    turn: str | None


class Chat:
    """One chat. Its methods raise `Refused` (and change nothing) where the chat's state forbids them."""

    def __init__(self, app: App, chat_id: str) -> None:
        self.id = chat_id
        self._app = app

    # --- saying ---

    def send(self, content: Content, *, when: When = "queue", model: str | None = None) -> Reply:
        """Say something; what comes back is the reply, to be read part by part or awaited as a whole.

        when: "queue" waits for its turn, "interrupt" stops a running reply first, "steer" joins it.
        """
        return self._reply(_make_send(when), Words(blocks=to_blocks(content), model=model))

    async def post(self, content: Content, *, when: When = "queue", model: str | None = None) -> Outcome:
        """Say something and do not wait: when this returns, the message is safe."""
        return await self._do(_make_send(when), Words(blocks=to_blocks(content), model=model))

    def edit(self, message_id: str, content: Content, *, model: str | None = None) -> Reply:
        """Say something else instead. The old message and its replies stay, on a branch of their own."""
        return self._reply(commands.Edit(message_id=message_id), Words(blocks=to_blocks(content), model=model))

    def regenerate(self, message_id: str, *, model: str | None = None) -> Reply:
        """Have a reply written anew, beside the old one."""
        return self._reply(commands.Regenerate(message_id=message_id), Words(model=model))

    def retry(self, *, model: str | None = None) -> Reply:
        """After an error: try again, perhaps with another model. What was said is continued."""
        return self._reply(commands.Retry(), Words(model=model))

    def go_on(self, *, model: str | None = None) -> Reply:
        """Continue a reply that was cut."""
        return self._reply(commands.Continue(), Words(model=model))

    def bring_results(self, results: Sequence[ToolResult]) -> Reply:
        """Answer the calls that the reply stopped for, all of them."""
        call_ids = tuple(result.call_id for result in results)
        return self._reply(commands.ToolResults(call_ids=call_ids), Words(results=list(results)))

    def compact(self) -> Reply:
        """Have the model's view of the conversation shortened to a summary. It says nothing."""
        return self._reply(commands.Compact(), NO_WORDS)

    async def interrupt(self, *, turn: str | None = None, wait: bool = True) -> Stopped:
        """Stop the running reply and keep what it said. With `turn`, only if that one is still running."""
        outcome = await self._do(commands.Interrupt(turn_id=turn))
        if not outcome.effective or not wait or outcome.status != "interrupting":
            return Stopped(stopped=outcome.effective, status=str(outcome.status), turn=outcome.turn_id)
        stopping = Reply(self._app.feed, self.id, outcome)
        await stopping.wait_for_end()
        view = await self._app.store.view(self.id, limit=1)
        return Stopped(stopped=True, status=view.status, turn=view.turn)

    # --- reading ---

    async def messages(self, *, before: str | None = None, limit: int | None = None) -> list[Message]:
        """The conversation as people see it, oldest first: all of it, or the last `limit` above `before`."""
        found: list[Message] = []
        while True:
            path = await self._app.store.path(self.id, before=before, limit=limit)
            found = [*(message for message in path if message.visibility != "model"), *found]
            if limit is None or len(path) < limit or len(found) >= limit:
                return found if limit is None else found[-limit:]
            before = path[0].id

    async def events(self, *, after: str | None = None) -> AsyncGenerator[FeedEvent, None]:
        """The feed: a snapshot and then what happens, or what has happened since the cursor `after`."""
        async with self._app.feed.open(self.id, after=after) as events:
            async for event in events:
                yield event

    async def status(self) -> str:
        return (await self._app.store.view(self.id, limit=1)).status

    # --- the queue ---

    async def queue(self) -> list[QueuedMessage]:
        """What waits for its turn, in order."""
        return (await self._app.store.view(self.id, limit=1)).queue

    async def edit_queued(self, queued_id: str, content: Content) -> None:
        await self._do(commands.EditQueued(queued_id=queued_id), Words(blocks=to_blocks(content)))

    async def delete_queued(self, queued_id: str) -> None:
        await self._do(commands.DeleteQueued(queued_id=queued_id))

    async def reorder_queue(self, queued_ids: Sequence[str]) -> None:
        await self._do(commands.ReorderQueue(queued_ids=tuple(queued_ids)))

    async def promote_queued(self, queued_id: str) -> None:
        """Have this one answered now: a running reply is stopped for it."""
        await self._do(commands.PromoteQueued(queued_id=queued_id))

    # --- the chat itself ---

    async def switch(self, message_id: str) -> None:
        """Go to the branch that ends with this message."""
        await self._do(commands.SwitchHead(message_id=message_id))

    async def fork(self, message_id: str) -> Chat:
        """A new chat that begins with a copy of this one up to the message."""
        new_chat_id = new_id("chat")
        await self._app.store.fork(self.id, message_id, new_chat_id=new_chat_id, owner_id=self._app.owner_id)
        return Chat(self._app, new_chat_id)

    async def describe(self, description: Description) -> None:
        """Change title, labels, model and the like."""
        await self._do(commands.Describe(), Words(description=description))

    async def archive(self, *, archived: bool = True) -> None:
        await self._do(commands.Archive() if archived else commands.Unarchive())

    async def delete(self) -> None:
        """Remove the chat and everything that hangs on it. There is no way back."""
        await self._do(commands.Delete())

    def _reply(self, command: Command, words: Words) -> Reply:
        return Reply(self._app.feed, self.id, lambda: self._do(command, words))

    async def _do(self, command: Command, words: Words = NO_WORDS) -> Outcome:
        return await self._app.store.execute(self.id, command, words)


def _make_send(when: str) -> Command:
    if when not in _SENDS:
        raise Invalid(f"A message is sent when: {', '.join(_SENDS)}; not {when!r}.")
    return _SENDS[when]()


def to_blocks(content: Content) -> list[Block]:
    """What a user says, as blocks: a string is one text. Raises `Invalid` if it is nothing."""
    blocks: list[Block] = [Text(content)] if isinstance(content, str) else list(content)
    for block in blocks:
        if not isinstance(block, Text | File):
            raise Invalid(f"A message of the user holds text and files, not {type(block).__name__}.")
    if not any(isinstance(block, File) or block.text.strip() for block in blocks):
        raise Invalid("There is nothing in this message.")
    return blocks
