"""Committed rows carried between processes by Redis or Valkey, so that readers elsewhere need not read them back.

A process that has readers announces their chats to all workers, and again every two seconds; an announcement expires.
A worker publishes a row after its commit, and only to the processes that have announced its chat: each has one channel,
its *inbox*, and a message holds all rows that wait for it, so a busy pair of processes shares the cost of a message
(docs/decisions/0023-fan-out.md). The receiving feed takes rows as if they had been committed here (`Feed.publish`): its
channel checks that `n` connects, and reads the database where it does not. So rows that are lost, doubled, delayed or
reordered cost latency and never a word. Whatever else happens in a chat is announced by a hint, as without Redis.

`publish` does not wait, and returns the rows that it cannot take: nobody has announced the chat, Redis is away, the
buffer is full, the row is large. Their readers get a hint instead (notify.py). So do those of rows that were on their
way when the connection was lost, or that nobody received.

A connection is used once a message to the own inbox has come back, and given up if that stops coming. The version of
the messages is part of the channels' names: processes that do not understand each other do not meet.

Must stay true (tests/feed/test_fanout.py, tests/feed/test_broken_fanout.py): every row that was not taken is hinted;
memory is bounded; nothing but the loss of latency follows from anything that Redis does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from indelible.clock import Clock
from indelible.concurrency.tasks import Backoff
from indelible.errors import Invalid
from indelible.ids import new_id
from indelible.metrics import NO_METRICS, Metrics
from indelible.store.journal.append import JournalRow

MAX_ROW_BYTES: Final = 64 * 1024
MAX_UNSENT_BYTES: Final = 1024 * 1024
RENEW_INTERVAL_S: Final = 2.0
EXPIRES_S: Final = 7.0
"""An announced chat is forgotten if it is not announced again for so long."""

_VERSION: Final = 1
_MAX_ANNOUNCED: Final = 1_000
_MAX_SILENT_TICKS: Final = 2
_CONNECT_TIMEOUT_S: Final = 5.0
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
_ROW_OVERHEAD_BYTES: Final = 128
# Every server speaks version 2. A limit for each read and write costs as much as the message: see `_renew`.
_OPTIONS: Final = {"protocol": 2, "client_name": "indelible", "socket_timeout": None, "decode_responses": False}
"""Those in the URL do not replace them."""
_EXAMPLES: Final = "Give redis://:password@host:6379/0, or rediss:// for TLS."
_log: Final = logging.getLogger(__name__)


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """Chats that are read in the process of this inbox."""

    inbox: str
    chat_ids: list[str]


class RowMessage(msgspec.Struct, frozen=True, array_like=True):
    """A row as it was committed."""

    chat_id: str
    attempt_id: str
    epoch: int
    n: int
    parts: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_read_rows: Final = msgspec.msgpack.Decoder(list[RowMessage]).decode
_read_announcement: Final = msgspec.msgpack.Decoder(Announcement).decode
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Fanout:
    """See the module header. The owner keeps `run` running in a task.

    `on_rows` takes rows of other processes, and `on_unsent` chats whose readers need a hint. `watched` returns the
    chats with readers here. `is_worker`: this process publishes rows.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        on_rows: Callable[[Sequence[JournalRow]], None],
        on_unsent: Callable[[Collection[str]], None],
        watched: Callable[[], Iterable[str]],
        is_worker: bool = True,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._url = url
        prefix = f"indelible:{_VERSION}:{make_connection(url).db}"  # channels have no number of their own
        self.inbox = f"{prefix}:rows:{new_id('process')}"
        self.announcements = f"{prefix}:readers"
        self._clock = clock
        self._on_rows = on_rows
        self._on_unsent = on_unsent
        self._watched = watched
        self._is_worker = is_worker
        self._metrics = metrics
        self._backoff = Backoff(clock, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
        self._is_connected = False
        self._silent_ticks = 0
        self._woken = asyncio.Event()
        self._is_renewing = False
        self._new: dict[str, None] = {}  # chats that are not announced yet
        self._inboxes: dict[str, dict[str, float]] = {}  # by chat: who reads it elsewhere, and until when
        self._unsent: dict[str, list[JournalRow]] = {}  # by inbox
        self._unsent_bytes = 0
        self._in_flight: dict[str, list[JournalRow]] = {}
        self._last: dict[str, tuple[str, int]] = {}  # by chat: the last row that came, to count gaps

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    def publish(self, rows: Sequence[JournalRow]) -> list[JournalRow]:
        """Send committed rows to the processes that read their chats; returns those that are not on their way."""
        left: list[JournalRow] = []
        wanted = 0
        for row in rows:
            inboxes = self._inboxes.get(row.chat_id)
            if not inboxes:
                left.append(row)
                continue
            size_bytes = len(row.parts)
            cost_bytes = (size_bytes + _ROW_OVERHEAD_BYTES) * len(inboxes)
            is_full = self._unsent_bytes + cost_bytes > MAX_UNSENT_BYTES
            if not self._is_connected or size_bytes > MAX_ROW_BYTES or is_full:
                left.append(row)
                wanted += 1
                continue
            self._unsent_bytes += cost_bytes
            for inbox in inboxes:
                self._unsent.setdefault(inbox, []).append(row)
            self._woken.set()
        if wanted:
            self._metrics.rows_unpublished(wanted)
        return left

    def announce(self, chat_id: str) -> None:
        """Ask for the rows of this chat, which has a reader here now, for as long as `watched` names it."""
        if len(self._new) < _MAX_ANNOUNCED:  # beyond that, all watched chats are announced together
            self._new[chat_id] = None
        else:
            self._is_renewing = True
        self._woken.set()

    async def run(self) -> None:
        """Carry rows until cancelled, whatever Redis does."""
        while True:
            try:
                await self._serve_one_connection()
            except Exception as error:
                _log.warning(
                    "Redis can't be used, so readers in other processes use the database; reconnecting in %g s: %s",
                    self._backoff.delay_s,
                    describe_failure(error),
                )
            await self._backoff.wait()

    async def _serve_one_connection(self) -> None:
        channels = (self.inbox, self.announcements) if self._is_worker else (self.inbox,)
        async with connect(self._url) as receiving, connect(self._url) as sending:
            await receiving.send_command("SUBSCRIBE", *channels)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._receive(receiving), name="rows of other processes")
                    tasks.create_task(self._renew(), name="announced chats")
                    tasks.create_task(self._send(sending), name="rows for other processes")
            finally:
                self._disconnect()

    def _disconnect(self) -> None:
        """What may not have arrived is hinted: it would otherwise wait for the next poll of its readers."""
        was_connected, self._is_connected = self._is_connected, False
        self._silent_ticks = 0
        rows = [row for rows in chain(self._unsent.values(), self._in_flight.values()) for row in rows]
        self._unsent, self._in_flight, self._unsent_bytes = {}, {}, 0
        self._hint(rows)
        if was_connected:
            self._metrics.fanout_connected(is_connected=False)

    def _hint(self, rows: Sequence[JournalRow]) -> None:
        if rows:
            self._metrics.rows_unpublished(len(rows))
            self._on_unsent({row.chat_id for row in rows})

    # --- announcing and sending ---

    async def _renew(self) -> None:
        while True:
            if self._silent_ticks == _MAX_SILENT_TICKS:
                raise ConnectionError("no message came back")
            self._silent_ticks += 1
            self._forget_expired()
            self._is_renewing = True
            self._woken.set()
            await self._clock.sleep(RENEW_INTERVAL_S)

    def _forget_expired(self) -> None:
        now_s = self._clock.monotonic()
        for chat_id, inboxes in list(self._inboxes.items()):
            for inbox in [inbox for inbox, until_s in inboxes.items() if until_s <= now_s]:
                del inboxes[inbox]
            if not inboxes:
                del self._inboxes[chat_id]
        watched = set(self._watched())
        self._last = {chat_id: last for chat_id, last in self._last.items() if chat_id in watched}

    async def _send(self, connection: Any) -> None:
        """Whatever has come together while the last messages were under way goes at once."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            rows, self._unsent, self._unsent_bytes = self._unsent, {}, 0
            self._in_flight = rows
            messages = [(inbox, _encode([row[:5] for row in waiting])) for inbox, waiting in rows.items()]
            messages += [(self.announcements, announcement) for announcement in self._make_announcements()]
            if self._is_renewing:
                self._is_renewing = False
                messages.append((self.inbox, _encode([])))
            packed = connection.pack_commands([("PUBLISH", *message) for message in messages])
            await connection.send_packed_command(packed, check_health=False)
            for inbox, _ in messages:
                self._settle(inbox, await connection.read_response())

    def _make_announcements(self) -> list[bytes]:
        chat_ids = list(self._watched() if self._is_renewing else self._new)
        self._new.clear()
        pieces = (chat_ids[start : start + _MAX_ANNOUNCED] for start in range(0, len(chat_ids), _MAX_ANNOUNCED))
        return [_encode(Announcement(self.inbox, piece)) for piece in pieces]

    def _settle(self, inbox: str, received: int) -> None:
        """The answer of Redis: how many received the message."""
        rows = self._in_flight.pop(inbox, [])
        if rows and received:
            self._metrics.rows_published(len(rows))
        elif rows:
            self._forget_inbox(inbox)
            self._hint(rows)

    def _forget_inbox(self, inbox: str) -> None:
        """Nobody is there any more, or not yet again."""
        for chat_id, inboxes in list(self._inboxes.items()):
            inboxes.pop(inbox, None)
            if not inboxes:
                del self._inboxes[chat_id]

    # --- receiving ---

    async def _receive(self, connection: Any) -> None:
        inbox = self.inbox.encode()
        while True:
            kind, channel, content = await connection.read_response()
            if kind != b"message":
                continue  # the subscription itself is confirmed
            try:
                if channel == inbox:
                    self._receive_rows(_read_rows(content))
                else:
                    self._note_readers(_read_announcement(content))
            except _UNREADABLE as error:
                _log.info("a message that nobody can read is ignored: %s", error)

    def _receive_rows(self, messages: Sequence[RowMessage]) -> None:
        self._silent_ticks = 0
        if not self._is_connected:
            self._is_connected = True
            self._backoff.reset()
            self._metrics.fanout_connected(is_connected=True)
        if messages:
            rows = [JournalRow(*msgspec.structs.astuple(message)) for message in messages]
            self._metrics.rows_received(len(rows))
            self._count_gaps(rows)
            self._on_rows(rows)

    def _count_gaps(self, rows: Sequence[JournalRow]) -> None:
        missing = 0
        for row in rows:
            attempt_id, n = self._last.get(row.chat_id, ("", 0))
            if attempt_id != row.attempt_id or row.n > n:
                missing += row.n - n - 1 if attempt_id == row.attempt_id else 0
                self._last[row.chat_id] = row.attempt_id, row.n
        if missing:
            self._metrics.rows_missed(missing)

    def _note_readers(self, announcement: Announcement) -> None:
        if announcement.inbox == self.inbox:
            return
        until_s = self._clock.monotonic() + EXPIRES_S
        for chat_id in announcement.chat_ids:
            self._inboxes.setdefault(chat_id, {})[announcement.inbox] = until_s


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    """A connection of the client library, without its pool: through that, a message costs twice as much."""
    connection = make_connection(url)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await connection.connect()
        yield connection
    finally:
        await connection.disconnect(nowait=True)


def make_connection(url: str) -> Any:
    """A connection that is not open yet. Raises `Invalid` if the URL, or what it needs, is wrong."""
    try:
        from redis.asyncio.connection import ConnectionPool, parse_url  # noqa: PLC0415  (from the extra `redis`)
    except ImportError as error:
        raise Invalid("redis_url needs a client: pip install 'indelible[redis]'.") from error
    try:
        options: dict[str, Any] = {**parse_url(url), **_OPTIONS}
        pool = ConnectionPool(**options)
        return pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError) as error:
        raise Invalid(f"redis_url can't be read. {_EXAMPLES}") from error


def find_password(url: str) -> str | None:
    """The password in this URL, which no log and no record may hold."""
    parts = urlsplit(url)
    password = parts.password or next(iter(parse_qs(parts.query).get("password", ())), None)
    return None if password is None else unquote(password)


def describe_failure(error: BaseException) -> str:
    """What went wrong, without the group of the tasks that it ended, and without the command that a server quotes."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error).partition(', with args')[0]}".removesuffix(": ")
