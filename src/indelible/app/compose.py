"""The composition root of the library: it creates all components, starts them in order and stops them in reverse.

`worker`, `recording` and `feed` do not import each other; this is the one place that joins them. Only one program at a
time may run a worker on a SQLite file; `worker=False` opens the file next to it, to read and to send.

Must stay true (tests/app/test_app.py): everything that `open` started has ended when its block has.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from indelible.app.app import App
from indelible.clock import Clock, SystemClock
from indelible.errors import Invalid, ModelFailed
from indelible.feed import Feed
from indelible.feed.fanout import Fanout, find_password
from indelible.files.bytes import DATABASE, PLACES, ByteStore, DatabaseBytes, DirectoryBytes, find_directory
from indelible.files.s3 import open_s3
from indelible.files.store import FileLimits, FileStore
from indelible.metrics import NO_METRICS, Metrics
from indelible.models.catalog import DEMO, PRICES_UNKNOWN, Catalog
from indelible.models.protocol import Model, traits_of
from indelible.notify import LocalNotifier, Notifier, PostgresNotifier
from indelible.recording.recorder import DebugRecorder
from indelible.recording.storage import RecordStore
from indelible.redaction.secrets import KnownSecrets, list_process_secrets
from indelible.service.access import Budget
from indelible.service.stop import StopSweeper
from indelible.settings import Settings, load_settings
from indelible.store.database.address import Address, parse_address
from indelible.store.database.session_lock import LockSession
from indelible.store.database.sqlite_file import exclusive_file_lock
from indelible.store.database.transaction import Database
from indelible.store.journal.append import JournalRow
from indelible.store.journal.writer import Journal
from indelible.store.outcome import Outcome
from indelible.store.payloads import StoreLimits
from indelible.store.store import Store
from indelible.tools.toolset import AnyTool, Toolset, name_of
from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.presence import Presence
from indelible.worker.upkeep import FileSweeper
from indelible.worker.worker import Worker

_log: Final = logging.getLogger(__name__)
_MODEL_MEMBERS: Final = ("provider", "name", "context_limit", "stream")


@asynccontextmanager
async def open_app(
    database: str | Path | None = None,
    *,
    model: str | Model | None = None,
    models: Mapping[str, Model] | None = None,
    tools: Sequence[AnyTool] = (),
    client_tools: Sequence[AnyTool] = (),
    deps: Any = None,
    user: str = "local",
    settings: Settings | None = None,
    worker: bool = True,
    listed_models_only: bool = False,
    clock: Clock | None = None,
    metrics: Metrics = NO_METRICS,
) -> AsyncIterator[App]:
    """Open a database, or create it, and run a worker for its chats until the end of the block.

    database: a file, or a URL such as `postgresql://user:password@host/name`. Default: the `database` setting.
    model: a name, or a model of your own. Default: the `model` setting. models: further models of your own, by the name
        that a message or a retry may use. A name that no model can have is refused here, and wherever one is given.
    tools: typed functions or tools that the model may call. client_tools: tools that you run yourself; a reply
        pauses for them, and `chat.submit_tool_results` continues it.
    deps: any value; every tool gets it as `context.deps`: a connection, a client, a configuration.
    user: the name of the default user, who owns the chats of `app.create_chat` and `app.chats`; see `app.user`.
    worker: whether to run a worker. Without it the program only reads and sends, and another process replies.
    listed_models_only: whether a chat may use only the models in the settings `model` and `models`, and those without a
        key. A server does so, because whoever sends a message does not pay for the key.
    """
    _check_arguments(database, model, models, tools=tools, client_tools=client_tools, settings=settings)
    tools, client_tools = list(tools), list(client_tools)
    clock = clock or SystemClock()
    settings = settings or load_settings()
    own = None if isinstance(model, str) else model
    if isinstance(model, str):
        settings = settings.model_copy(update={"model": model})
    where = database if database is not None else settings.database
    body_error: Exception | None = None
    try:
        async with AsyncExitStack() as stack:
            catalog = Catalog(settings, clock=clock)
            stack.push_async_callback(catalog.aclose)
            known = _Models(
                catalog, own=own, named=models or {}, default=settings.model, listed_only=listed_models_only
            )
            for name in (*([settings.model] if own is None else []), *settings.models):
                known.check_configured(name)
            if settings.user_max_usd_per_day and (worker or listed_models_only):
                await known.warn_of_unlimited()
            if worker and any(name != DEMO for name in (settings.model, *settings.models)):
                await asyncio.to_thread(catalog.load)
            parts = await _put_together(
                stack,
                where,
                find=known.find,
                tools=tools,
                client_tools=client_tools,
                deps=deps,
                settings=settings,
                worker=worker,
                clock=clock,
                metrics=metrics,
            )
            try:
                names = list(dict.fromkeys([*(models or ()), *catalog.list_names()]))
                store, feed, files, working = parts
                owner_id = await store.ensure_user(user)
                app = App(
                    store,
                    feed,
                    clock=clock,
                    owner_id=owner_id,
                    files=files,
                    models=names,
                    default_model=settings.model,
                    check_model=known.check,
                    find_window=known.find_window,
                    tools=frozenset(map(name_of, tools)),
                    budget=Budget(
                        store.usage,
                        clock=clock,
                        max_tokens=settings.user_max_tokens_per_day,
                        max_usd=settings.user_max_usd_per_day,
                    ),
                    reserve=None if working is None else working.reserve,
                    stop_worker=None if working is None else working.stop,
                )
                stack.push_async_callback(app.close_readings)
                yield app
            except Exception as error:
                body_error = error
                raise
    except BaseExceptionGroup as group:
        if group.exceptions != (body_error,):
            raise
    if body_error is not None:
        raise body_error  # as it was raised, not wrapped in a group


def _check_arguments(
    database: object, model: object, models: object, *, tools: object, client_tools: object, settings: object
) -> None:
    """A mistake in the arguments is reported here, not in the first reply, and not as a file with an odd name."""
    if not isinstance(database, str | os.PathLike | None):
        raise TypeError(f"database: expected a path or a URL, not {database!r}.")
    if not isinstance(settings, Settings | None):
        raise TypeError(f"settings: expected indelible.settings.Settings, not {type(settings).__name__}.")
    if not isinstance(models, Mapping | None):
        raise TypeError(f"models: expected a dict of models by name, not {type(models).__name__}.")
    for name, given in (("tools", tools), ("client_tools", client_tools)):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise TypeError(f"{name}: expected a list of tools, not {given!r}.")
    if model is not None and not isinstance(model, str):
        _check_model_object("model", model)
    for name, given in (models or {}).items():
        _check_model_object(f"models[{name!r}]", given)


def _check_model_object(argument: str, model: object) -> None:
    """Raises `TypeError` if a part of the `Model` protocol is missing."""
    missing = [name for name in _MODEL_MEMBERS if not hasattr(model, name)]
    if isinstance(model, type):
        raise TypeError(f"{argument}: {model.__name__} is a class. Give an instance of it.")
    if missing:
        raise TypeError(
            f"{argument}: {model!r} is not a model, because it has no {', '.join(missing)}. "
            f"Give a model's name, or an object with {', '.join(_MODEL_MEMBERS)} (indelible.models.protocol.Model)."
        )


class _Models:
    """The models by name: `named` and those of the catalog. `own` answers where no name is given."""

    def __init__(
        self, catalog: Catalog, *, own: Model | None, named: Mapping[str, Model], default: str, listed_only: bool
    ) -> None:
        self._catalog = catalog
        self._own = own
        self._named = named
        self._default = default
        self._find_in_catalog = catalog.find_for_user if listed_only else catalog.find
        self._check_in_catalog = catalog.check_for_user if listed_only else catalog.check

    def find(self, name: str | None) -> Model:
        found = self._find_object(name)
        return self._find_in_catalog(name or self._default) if found is None else found

    def find_window(self, name: str | None) -> int | None:
        """The context window of a model, in tokens; None if it is unknown."""
        found = self._find_object(name)
        return self._catalog.find_window(name or self._default) if found is None else found.context_limit

    def check(self, name: str) -> None:
        """Raises `Invalid` for a name that no model can have, or that a user may not choose."""
        self._check(name, self._check_in_catalog)

    def check_configured(self, name: str) -> None:
        """The same for the operator's choice, whoever may use it."""
        self._check(name, self._catalog.check)

    async def warn_of_unlimited(self) -> None:
        """Say for which models the limit in dollars does not hold, because nobody knows what they cost."""
        objects = {**self._named, **({} if self._own is None else {self._own.name: self._own})}
        unpriced = [name for name in await asyncio.to_thread(self._catalog.list_unpriced) if name not in objects]
        unpriced += [name for name, model in objects.items() if traits_of(model).price is None]
        if unpriced:
            _log.warning("user_max_usd_per_day does not limit %s: %s", ", ".join(unpriced), PRICES_UNKNOWN)

    def _find_object(self, name: str | None) -> Model | None:
        return self._own if name is None and self._own is not None else self._named.get(name or self._default)

    def _check(self, name: str, check: Callable[[str], None]) -> None:
        if name not in self._named:
            try:
                check(name)
            except ModelFailed as failure:
                raise Invalid(f"model: {failure.message}") from failure


async def _put_together(
    stack: AsyncExitStack,
    where: str | Path,
    *,
    find: Callable[[str | None], Model],
    tools: Sequence[AnyTool],
    client_tools: Sequence[AnyTool],
    deps: Any,
    settings: Settings,
    worker: bool,
    clock: Clock,
    metrics: Metrics,
) -> tuple[Store, Feed, FileStore, Worker | None]:
    """Start everything; the stack stops it in reverse order: readers, worker, services, database, lock."""
    if worker:
        Toolset(tools, client=client_tools)  # an invalid tool fails here, not in the first reply
        stack.enter_context(exclusive_file_lock(where))
    notifier: Notifier = LocalNotifier()
    deleted = asyncio.Event()
    feed: Feed | None = None
    store = await stack.enter_async_context(
        Store.open(
            where,
            lease_timeout_s=settings.lease_timeout_s,
            limits=StoreLimits(
                queued=settings.queue_max,
                message_bytes=settings.message_max_bytes,
                system_bytes=settings.system_max_bytes,
                parameters_bytes=settings.parameters_max_bytes,
                tools_bytes=settings.tools_max_bytes,
                tool_result_bytes=settings.tool_result_max_bytes,
            ),
            on_committed=lambda outcome: _publish(notifier, feed, outcome, deleted),
        )
    )
    files = await open_files(stack, store, settings=settings, clock=clock)
    records = RecordStore(store.database)
    store.before_delete = partial(_forget_extras, records, store, clock=clock)
    address = parse_address(where)
    if not address.is_sqlite:
        notifier = PostgresNotifier(address.make_postgres_options(), clock=clock)
    feed = Feed(store, notifier, clock=clock, metrics=metrics)
    fanout = _make_fanout(settings, address, feed, notifier, is_worker=worker, clock=clock, metrics=metrics)
    services = await stack.enter_async_context(asyncio.TaskGroup())
    running = [services.create_task(notifier.run(), name="hints"), services.create_task(feed.run(), name="feed")]
    if fanout is not None:
        running.append(services.create_task(fanout.run(), name="rows between processes"))
    files.on_left = deleted.set
    open_session = None
    if not address.is_sqlite:
        open_session = partial(LockSession.open, address.make_postgres_options())
        if not worker:
            presence = Presence(
                store, notifier, clock=clock, beats_s=settings.heartbeat_interval_s, open_session=open_session
            )
            running.append(services.create_task(presence.run(), name="watching workers"))
    stops = StopSweeper(store, clock=clock, interval_s=settings.heartbeat_interval_s)
    running.append(services.create_task(stops.run(), name="ending stops"))
    running.append(services.create_task(FileSweeper(files, clock=clock, woken=deleted).run(), name="removing files"))
    stack.callback(lambda: [task.cancel() for task in running])
    made: Worker | None = None
    if worker:
        passwords = [address.password, find_password(settings.redis_url)]
        secrets = [*list_process_secrets(settings), *(password for password in passwords if password)]
        if address.is_sqlite:
            await store.retire_all()
        recorder = DebugRecorder(
            records,
            mode=settings.debug,
            retention_s=settings.debug_retention_s,
            lease_timeout_s=settings.lease_timeout_s,
            clock=clock,
            metrics=metrics,
            secrets=secrets,
        )
        running.append(services.create_task(recorder.run(), name="debug records"))
        stack.push_async_callback(recorder.drain)
        deps = WorkerDependencies(
            store=store,
            journal=make_journal(store, notifier, feed, fanout, settings=settings, clock=clock, metrics=metrics),
            clock=clock,
            settings=settings,
            find_model=find,
            tools=tools,
            client_tools=client_tools,
            tool_deps=deps,
            metrics=metrics,
            recorder=recorder,
            open_session=open_session,
            files=files,
            hide_secrets=KnownSecrets(secrets).hide,
        )
        made = Worker(deps, notifier)
        working = services.create_task(made.run(), name="worker")
        stack.push_async_callback(asyncio.wait, [working])
        stack.callback(made.stop)
        await made.ready.wait()
    stack.callback(feed.close)
    return store, feed, files, made


async def open_files(stack: AsyncExitStack, store: Store, *, settings: Settings, clock: Clock) -> FileStore:
    """The store of files. Those in the database can be read wherever new ones go."""
    place = await open_bytes(settings.files, store.database, clock=clock)
    stack.push_async_callback(place.close)
    limits = FileLimits(
        file_bytes=settings.file_max_bytes,
        user_files=settings.user_max_files,
        user_bytes=settings.user_max_file_bytes,
        types=settings.file_types,
    )
    return FileStore(store.database, [place, DatabaseBytes(store.database)], limits=limits)


async def open_bytes(
    place: str, database: Database, *, clock: Clock, environment: Mapping[str, str] | None = None
) -> ByteStore:
    """The byte store that the setting names. Raises `Invalid` if it names none, or one that cannot be used."""
    if place == DATABASE:
        return DatabaseBytes(database)
    directory = find_directory(place)
    if directory is not None:
        opened = DirectoryBytes(directory)
        await opened.open()
        return opened
    if place.startswith("s3://"):
        return open_s3(place, clock, os.environ if environment is None else environment)
    raise Invalid(f"files: unknown place. {PLACES}.")


async def _forget_extras(records: RecordStore, store: Store, chat_id: str, *, clock: Clock) -> None:
    """Remove what would make deleting a chat slow: its debug records, and its entries in the search index."""
    await records.forget_chat(chat_id, clock=clock)
    await store.forget_chat(chat_id)


def _publish(notifier: Notifier, feed: Feed | None, outcome: Outcome, deleted: asyncio.Event) -> None:
    publish_outcome(notifier, feed, outcome)
    if outcome.status is None:  # a deleted chat may leave files
        deleted.set()


def publish_outcome(notifier: Notifier, feed: Feed | None, outcome: Outcome) -> None:
    """Show a committed command to the readers of this process, and wake everybody else who has to act on it."""
    if feed is not None:
        feed.publish_outcome(outcome)
    if outcome.wakes_workers:
        notifier.notify([outcome.chat_id])
    elif outcome.wakes_readers:
        notifier.notify_readers([outcome.chat_id])


def _make_fanout(
    settings: Settings,
    address: Address,
    feed: Feed,
    notifier: Notifier,
    *,
    is_worker: bool,
    clock: Clock,
    metrics: Metrics,
) -> Fanout | None:
    if not settings.redis_url:
        return None
    if address.is_sqlite:
        _log.warning("redis_url has no effect: a SQLite file has one process.")
        return None
    fanout = Fanout(
        settings.redis_url,
        clock=clock,
        on_rows=feed.publish,
        on_unsent=notifier.notify_streaming,
        watched=lambda: feed.watched,
        is_worker=is_worker,
        metrics=metrics,
    )
    feed.on_watched = fanout.announce
    return fanout


def publish_rows(notifier: Notifier, feed: Feed, fanout: Fanout | None, rows: Sequence[JournalRow]) -> None:
    """Show committed rows to readers here, send them to those elsewhere, and wake readers who do not get them so."""
    feed.publish(rows)
    left = rows if fanout is None else fanout.publish(rows)
    if left:
        notifier.notify_streaming({row.chat_id for row in left})


def make_journal(
    store: Store,
    notifier: Notifier,
    feed: Feed,
    fanout: Fanout | None = None,
    *,
    settings: Settings,
    clock: Clock,
    metrics: Metrics = NO_METRICS,
) -> Journal:
    """The journal of a worker."""
    return Journal(
        store,
        clock=clock,
        on_committed=partial(publish_rows, notifier, feed, fanout),
        interval_s=settings.journal_interval_s,
        flush_bytes=settings.journal_flush_max_bytes,
        limit_bytes=settings.journal_max_pending_bytes,
        metrics=metrics,
    )
