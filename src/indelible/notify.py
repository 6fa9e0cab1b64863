"""Saying that a chat has changed: a hint that lets readers look at once instead of at their next poll.

A hint names chats and says nothing about them; whoever hears it reads the database. So a hint may come
twice or never, and everything still works, a poll later. What follows from that is the whole design: sending does not
wait and cannot fail, hints are merged and never queued, and where some may have been missed (a lost connection) or
are too many to name, the hint is “all of them”.

There are two kinds. A chat has *changed* when a command was carried out on it; whoever works on chats looks then.
A running reply *says more* many times a second, which is news for readers alone; those of the same process have it
already from the journal (feed), so only other processes are told of that.

`LocalNotifier` serves one process, which is all that SQLite has. `PostgresNotifier` tells the other processes on the
same database as well. Its own readers hear of a change at once and not by way of the server. It has one connection,
which listens and sends and is never in a transaction. PostgreSQL orders commits that notify across the whole
database, so a process sends at most one notification every 50 ms, and never inside somebody's transaction (R10).

Must stay true (tests/store/test_notify.py): `notify` raises nothing, whatever the server does; memory is bounded,
however slow a reader or a server is; after a lost connection every reader is told to look at everything.

Who polls besides, and how often, is the business of those who read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final, Protocol, Self

import msgspec
from sqlalchemy import URL

from indelible.clock import Clock

CHANNEL: Final = "indelible_chats"
MAX_PAYLOAD_BYTES: Final = 7_500
MAX_NAMED_CHATS: Final = 1_000
"""More changed chats than this are not told one by one."""

SEND_INTERVAL_S: Final = 0.05
CHECK_INTERVAL_S: Final = 30.0
"""A connection on which nothing was sent for so long is asked whether it still lives."""

_ALL: Final = "*"
_SAYING: Final = "~"
_ANSWER_TIMEOUT_S: Final = 10.0
_FIRST_BACK_OFF_S: Final = 0.1
_LONGEST_BACK_OFF_S: Final = 5.0
_log: Final = logging.getLogger(__name__)


class Changed(msgspec.Struct, frozen=True):
    """The chats that may have changed: these, or every one there is. Ask with `chat_id in changed`.

    In `saying` a running reply has said more, and nothing else has changed.
    """

    chat_ids: frozenset[str] = frozenset()
    everything: bool = False
    saying: frozenset[str] = frozenset()

    def __contains__(self, chat_id: str) -> bool:
        return self.everything or chat_id in self.chat_ids or chat_id in self.saying


class Notifier(Protocol):
    """Passes hints from whoever committed to whoever reads. It belongs to one event loop, and is used only there."""

    def notify(self, chat_ids: Iterable[str]) -> None:
        """Say that these chats have changed. Call it after the commit and outside any transaction.

        It does not wait and raises nothing. Subscribers of this process can see the hint when it returns; those
        of other processes are told soon, or never.
        """

    def notify_saying(self, chat_ids: Iterable[str]) -> None:
        """Say, to other processes only, that running replies have said more. As `notify` in everything else."""

    def subscribe(self) -> Subscription:
        """Hear of every hint from now on, until the subscription is closed. Subscribe first, then read."""

    async def run(self) -> None:
        """Carry hints to and from other processes until cancelled, whatever the connection does.

        It returns at once if there are no others. Without it, hints stay within the process.
        """


class Subscription:
    """What one reader has not heard yet: a set, so that a slow reader costs no more than a quick one."""

    def __init__(self, subscriptions: set[Subscription]) -> None:
        self._subscriptions = subscriptions
        self._unheard = _Hints()
        self._stirred = asyncio.Event()
        subscriptions.add(self)

    async def wait(self) -> Changed:
        """Wait until something has changed since the last call, and give all of it, once. For one task at a time."""
        await self._stirred.wait()
        self._stirred.clear()
        return self._unheard.take_everything()

    def close(self) -> None:
        self._subscriptions.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hear(self, changed: Changed) -> None:
        self._unheard.add(changed)
        self._stirred.set()


class LocalNotifier:
    """Within one process. See `Notifier` for what it promises."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def notify(self, chat_ids: Iterable[str]) -> None:
        self.spread(Changed(frozenset(chat_ids)))

    def notify_saying(self, chat_ids: Iterable[str]) -> None:
        """There are no other processes."""

    def subscribe(self) -> Subscription:
        return Subscription(self._subscriptions)

    async def run(self) -> None:
        return

    def spread(self, changed: Changed) -> None:
        """Tell every subscriber, also that everything may have changed."""
        if changed.everything or changed.chat_ids or changed.saying:
            for subscription in self._subscriptions:
                subscription._hear(changed)


class PostgresNotifier:
    """Between all processes on one PostgreSQL database. See `Notifier` for what it promises.

    `url` is the engine's own (store/database/engine.py). A pooler between us and the server must pass LISTEN through.
    """

    def __init__(self, url: URL, *, clock: Clock, send_interval_s: float = SEND_INTERVAL_S) -> None:
        self._url = url
        self._clock = clock
        self._send_interval_s = send_interval_s
        self._local = LocalNotifier()
        self._unsent = _Hints()
        self._stirred = asyncio.Event()
        self._back_off_s = _FIRST_BACK_OFF_S
        self._own_pid: int | None = None

    def notify(self, chat_ids: Iterable[str]) -> None:
        changed = Changed(frozenset(chat_ids))
        self._local.spread(changed)
        self._unsent.add(changed)
        self._stirred.set()

    def notify_saying(self, chat_ids: Iterable[str]) -> None:
        self._unsent.add(Changed(saying=frozenset(chat_ids)))
        self._stirred.set()

    def subscribe(self) -> Subscription:
        return self._local.subscribe()

    async def run(self) -> None:
        while True:
            try:
                await self._serve_one_connection()
            except Exception as error:
                _log.warning("notifications between processes are delayed; reconnecting: %r", error)
            await self._clock.sleep(self._back_off_s)
            self._back_off_s = min(self._back_off_s * 2, _LONGEST_BACK_OFF_S)

    async def _serve_one_connection(self) -> None:
        """Listen and send until the connection is lost. What was being sent then is given up; the rest waits."""
        connection = await _connect(self._url)
        try:
            connection.add_termination_listener(lambda _: self._stirred.set())
            await connection.execute("SET application_name = 'indelible notify'", timeout=_ANSWER_TIMEOUT_S)
            self._own_pid = connection.get_server_pid()
            await connection.add_listener(CHANNEL, self._hear)
            self._back_off_s = _FIRST_BACK_OFF_S
            self._local.spread(Changed(everything=True))  # nobody listened until now
            while not connection.is_closed():
                if payload := self._unsent.take_payload():
                    await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, payload, timeout=_ANSWER_TIMEOUT_S)
                    await self._clock.sleep(self._send_interval_s)
                elif not await self._wait_for_work():
                    await connection.execute("SELECT 1", timeout=_ANSWER_TIMEOUT_S)
        finally:
            connection.terminate()
        _log.warning("the notification connection was lost; reconnecting")

    async def _wait_for_work(self) -> bool:
        """Wait for something to send, or for the end of the connection. False if neither came for a while."""
        self._stirred.clear()
        quiet = False

        def give_up() -> None:
            nonlocal quiet
            quiet = True
            self._stirred.set()

        alarm = self._clock.call_later(CHECK_INTERVAL_S, give_up)
        try:
            await self._stirred.wait()
        finally:
            alarm.cancel()
        return not quiet

    def _hear(self, _connection: Any, sender_pid: int, _channel: str, payload: str) -> None:
        if sender_pid != self._own_pid:  # our own readers know already
            self._local.spread(_read_payload(payload))


class _Hints:
    """Hints that wait, merged. The oldest leaves first, so that a chat that changes all the time delays no other."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._everything = False

    def add(self, changed: Changed) -> None:
        self._names.update(dict.fromkeys(changed.chat_ids))
        self._names.update(dict.fromkeys(_SAYING + chat_id for chat_id in changed.saying))
        if changed.everything or len(self._names) > MAX_NAMED_CHATS:
            self._everything = True
        if self._everything:
            self._names.clear()

    def take_everything(self) -> Changed:
        taken = Changed(everything=True) if self._everything else _read_names(self._names)
        self._forget()
        return taken

    def take_payload(self) -> str:
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
        if self._names and not fitting:  # a name too long to tell
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
    saying = frozenset(name.removeprefix(_SAYING) for name in names if name.startswith(_SAYING))
    return Changed(frozenset(name for name in names if not name.startswith(_SAYING)), saying=saying)


async def _connect(url: URL) -> Any:
    """A connection of our own to where the engine connects, with the same options."""
    import asyncpg  # noqa: PLC0415  (it comes with the extra `postgres`)

    _, options = url.get_dialect()().create_connect_args(url)
    timeout_s = float(options.pop("timeout", _ANSWER_TIMEOUT_S))
    return await asyncpg.connect(**options, timeout=timeout_s)
