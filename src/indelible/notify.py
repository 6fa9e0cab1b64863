"""Hints that a chat has changed: they let readers and workers act at once instead of at their next poll.

A hint names chats and carries nothing else; a subscriber then reads the database. So a hint may come twice or
never, and everything still works, a poll later. The design follows from that: sending does not wait and cannot fail,
hints are merged and never queued, and where some may have been lost (a lost connection) or are too many to name, the
hint is “every chat”.

There are two kinds. A chat has *changed* when a command was carried out on it that concerns readers and workers. Most
commands of a worker about its own chat concern readers alone, and so do the further parts of a running reply, many
times a second; readers of the same process have the parts already (`Feed.publish`), so the hint of those goes to other
processes only.

`LocalNotifier` serves one process, which is all that SQLite has. `PostgresNotifier` reaches the other processes on the
same database as well; subscribers of its own process receive a hint at once and not by way of the server. It has one
connection, which listens and sends and is never in a transaction. PostgreSQL orders commits that notify across the
whole database, so a process sends at most one notification every 50 ms, and never inside a transaction of the store
(R10).

Must stay true (tests/store/test_notify.py): `notify` raises nothing, whatever the server does; memory is bounded,
however slow a subscriber or a server is; after a lost connection every subscriber receives the hint “every chat”.

Polling makes up for lost hints: feed/feed.py does so for readers, worker/worker.py for workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, Self

import msgspec

from indelible.clock import Clock
from indelible.concurrency.tasks import Backoff

CHANNEL: Final = "indelible_chats"
MAX_PAYLOAD_BYTES: Final = 7_500
MAX_NAMED_CHATS: Final = 1_000
"""More changed chats than this are not named one by one."""

SEND_INTERVAL_S: Final = 0.05
CHECK_INTERVAL_S: Final = 30.0
"""A connection on which nothing was sent for so long is checked with a query."""

_ALL: Final = "*"
_FOR_READERS: Final = "~"
_ANSWER_TIMEOUT_S: Final = 10.0
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
_log: Final = logging.getLogger(__name__)


class Changed(msgspec.Struct, frozen=True):
    """The chats that may have changed: these, or every one there is. Ask with `chat_id in changed`.

    In `for_readers` are chats with something to read, but nothing to do for a worker.
    """

    chat_ids: frozenset[str] = frozenset()
    everything: bool = False
    for_readers: frozenset[str] = frozenset()

    def __contains__(self, chat_id: str) -> bool:
        return self.everything or chat_id in self.chat_ids or chat_id in self.for_readers


class Notifier(Protocol):
    """Passes hints from those who commit to those who subscribe. It belongs to one event loop."""

    def notify(self, chat_ids: Iterable[str]) -> None:
        """Publish that these chats have changed. Call it after the commit and outside any transaction.

        It does not wait and raises nothing. Subscribers of this process have the hint when it returns; those of other
        processes receive it soon, or never.
        """

    def notify_readers(self, chat_ids: Iterable[str]) -> None:
        """Publish that readers of these chats have something to read, and workers nothing to do. As `notify`."""

    def notify_streaming(self, chat_ids: Iterable[str]) -> None:
        """Publish, to other processes only, that running replies have more parts. As `notify` in everything else."""

    def subscribe(self, *, only_from_others: bool = False) -> Subscription:
        """Receive every hint from now on, until the subscription is closed. Subscribe first, then read.

        `only_from_others`: those of other processes, for whoever is told of this one's commits in another way.
        """

    async def run(self) -> None:
        """Carry hints to and from other processes until cancelled, whatever the connection does.

        It returns at once if there are no others. Without it, hints stay within the process.
        """


class Subscription:
    """The hints that one subscriber has not received yet: a set, so that a slow one costs no more than a quick one."""

    def __init__(self, subscriptions: set[Subscription], *, only_from_others: bool) -> None:
        self.only_from_others = only_from_others
        self._subscriptions = subscriptions
        self._pending = _Hints()
        self._woken = asyncio.Event()
        subscriptions.add(self)

    async def wait(self) -> Changed:
        """Wait until something has changed since the last call, and give all of it, once. For one task at a time."""
        await self._woken.wait()
        self._woken.clear()
        return self._pending.pop_all()

    def close(self) -> None:
        self._subscriptions.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive(self, changed: Changed) -> None:
        self._pending.add(changed)
        self._woken.set()


class LocalNotifier:
    """Within one process. See `Notifier` for what it promises."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def notify(self, chat_ids: Iterable[str]) -> None:
        self.publish(Changed(frozenset(chat_ids)), is_own=True)

    def notify_readers(self, chat_ids: Iterable[str]) -> None:
        self.publish(Changed(for_readers=frozenset(chat_ids)), is_own=True)

    def notify_streaming(self, chat_ids: Iterable[str]) -> None:
        """There are no other processes."""

    def subscribe(self, *, only_from_others: bool = False) -> Subscription:
        return Subscription(self._subscriptions, only_from_others=only_from_others)

    async def run(self) -> None:
        return

    def publish(self, changed: Changed, *, is_own: bool = False) -> None:
        """Give a hint to every subscriber; it may be “every chat”. `is_own`: it tells of a commit of this process."""
        if changed.everything or changed.chat_ids or changed.for_readers:
            for subscription in self._subscriptions:
                if not (is_own and subscription.only_from_others):
                    subscription.receive(changed)


class PostgresNotifier:
    """Between all processes on one PostgreSQL database. See `Notifier` for what it promises.

    `options` are those of `asyncpg.connect`. A pooler between us and the server must pass LISTEN through.
    """

    def __init__(self, options: Mapping[str, Any], *, clock: Clock, send_interval_s: float = SEND_INTERVAL_S) -> None:
        self._options = options
        self._clock = clock
        self._send_interval_s = send_interval_s
        self._local = LocalNotifier()
        self._unsent = _Hints()
        self._woken = asyncio.Event()
        self._backoff = Backoff(clock, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
        self._own_pid: int | None = None

    def notify(self, chat_ids: Iterable[str]) -> None:
        changed = Changed(frozenset(chat_ids))
        self._local.publish(changed, is_own=True)
        self._unsent.add(changed)
        self._woken.set()

    def notify_readers(self, chat_ids: Iterable[str]) -> None:
        changed = Changed(for_readers=frozenset(chat_ids))
        self._local.publish(changed, is_own=True)
        self._unsent.add(changed)
        self._woken.set()

    def notify_streaming(self, chat_ids: Iterable[str]) -> None:
        self._unsent.add(Changed(for_readers=frozenset(chat_ids)))
        self._woken.set()

    def subscribe(self, *, only_from_others: bool = False) -> Subscription:
        return self._local.subscribe(only_from_others=only_from_others)

    async def run(self) -> None:
        while True:
            try:
                await self._serve_one_connection()
            except Exception as error:
                _log.warning(
                    "notifications between processes are delayed; reconnecting in %g s: %r",
                    self._backoff.delay_s,
                    error,
                )
            await self._backoff.wait()

    async def _serve_one_connection(self) -> None:
        """Listen and send until the connection is lost. The payload that was being sent is dropped; the rest waits."""
        connection = await _connect(self._options)
        try:
            connection.add_termination_listener(lambda _: self._woken.set())
            await connection.execute("SET application_name = 'indelible notify'", timeout=_ANSWER_TIMEOUT_S)
            self._own_pid = connection.get_server_pid()
            await connection.add_listener(CHANNEL, self._receive)
            self._backoff.reset()
            self._local.publish(Changed(everything=True))  # hints were lost until now
            while not connection.is_closed():
                if payload := self._unsent.pop_payload():
                    await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, payload, timeout=_ANSWER_TIMEOUT_S)
                    await self._clock.sleep(self._send_interval_s)
                elif not await self._wait_for_work():
                    await connection.execute("SELECT 1", timeout=_ANSWER_TIMEOUT_S)
        finally:
            connection.terminate()
        _log.warning("the notification connection was lost; reconnecting")

    async def _wait_for_work(self) -> bool:
        """Wait for something to send, or for the end of the connection. False if neither came for a while."""
        self._woken.clear()
        quiet = False

        def give_up() -> None:
            nonlocal quiet
            quiet = True
            self._woken.set()

        alarm = self._clock.call_later(CHECK_INTERVAL_S, give_up)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()
        return not quiet

    def _receive(self, _connection: Any, sender_pid: int, _channel: str, payload: str) -> None:
        if sender_pid != self._own_pid:  # our own subscribers have it already
            self._local.publish(_read_payload(payload))


class _Hints:
    """Hints that wait, merged. The oldest leaves first, so that a chat that changes all the time delays no other."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._everything = False

    def add(self, changed: Changed) -> None:
        self._names.update(dict.fromkeys(changed.chat_ids))
        self._names.update(dict.fromkeys(_FOR_READERS + chat_id for chat_id in changed.for_readers))
        if changed.everything or len(self._names) > MAX_NAMED_CHATS:
            self._everything = True
        if self._everything:
            self._names.clear()

    def pop_all(self) -> Changed:
        changed = Changed(everything=True) if self._everything else _read_names(self._names)
        self._forget()
        return changed

    def pop_payload(self) -> str:
        """As many as fit into one notification; the others wait for the next. Empty if there are none."""
        if self._everything:
            self._forget()
            return _ALL
        fitting: list[str] = []
        size_bytes = 0
        for name in self._names:
            size_bytes += len(name.encode()) + 1
            if size_bytes > MAX_PAYLOAD_BYTES:
                break
            fitting.append(name)
        if self._names and not fitting:  # a name too long to send
            self._forget()
            return _ALL
        for name in fitting:
            del self._names[name]
        return " ".join(fitting)

    def _forget(self) -> None:
        self._names.clear()
        self._everything = False


def _read_payload(payload: str) -> Changed:
    return Changed(everything=True) if payload == _ALL else _read_names(payload.split())


def _read_names(names: Iterable[str]) -> Changed:
    for_readers = frozenset(name.removeprefix(_FOR_READERS) for name in names if name.startswith(_FOR_READERS))
    return Changed(frozenset(name for name in names if not name.startswith(_FOR_READERS)), for_readers=for_readers)


async def _connect(options: Mapping[str, Any]) -> Any:
    """A connection of our own to where the store connects, with the same options."""
    import asyncpg  # noqa: PLC0415  (it comes with the extra `postgres`)

    return await asyncpg.connect(**{"timeout": _ANSWER_TIMEOUT_S, **options})
