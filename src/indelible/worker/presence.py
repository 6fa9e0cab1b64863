"""Being there: a worker says that it lives, and every process sees which other workers are gone.

A worker's heartbeat renews its lease, on every database, and that covers everything: a process that is frozen, a host
that vanishes. But others have to wait until the lease has run out. A process that was killed can be known to be gone
within a second: on PostgreSQL each worker also holds a lock of a session (store/database/session_lock.py), and its
heartbeat carries the lock's key. Every process looks for free locks of workers whose lease has not run out. If one is
free at two looks (`Absences`), the worker is declared gone, in a statement that looks a third time. Everybody who asks
who is alive then gets the same answer (store/queries/liveness.py), and a hint names its chats.

The guess may be wrong: a connection can be cut under a living process, which needs some milliseconds to take its lock
again. That is made rare: a heartbeat carries no key while no lock is held, and is sent at once when that changes; and a
process that has lost its own connection, as all have when the server restarts, or that meets a server which has just
started, judges nobody until the others have had time to come back. A wrong guess costs time and never a word, because
epochs fence (store/queries/leases.py). The worker's next heartbeat finds that it was declared gone, and takes back what
was counted as takeovers.

Must stay true (tests/worker/test_presence.py, tests/faults/test_killed_worker.py): a killed worker's chats go on before
its lease has run out; a living worker is not declared gone when connections are cut or the server restarts; where locks
of sessions do not hold, only the lease counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from indelible.clock import Clock
from indelible.concurrency.tasks import Backoff
from indelible.errors import Refused, StoreFailed
from indelible.logs import get_logger
from indelible.metrics import NO_METRICS, Metrics
from indelible.notify import Notifier
from indelible.store.database.session_lock import FreeLock, LockSession, make_key
from indelible.store.store import Store

CHECK_INTERVAL_S: Final = 0.25
IDLE_INTERVAL_S: Final = 1.0
"""While no other worker holds a chat, there is nothing to take over."""

APART_S: Final = 0.3
"""How far apart two looks are at least that find a worker gone."""

_SOON_S: Final = 0.31
"""When the second one is due: a little later."""

_SAME_ABSENCE_S: Final = 3.0
"""A look that finds a lock free this long after the last one is the first one again: this process was frozen."""

BLIND_S: Final = 5.0
"""How long nobody is judged after the own connection was lost, or the server started. `_LONGEST_DELAY_S` is shorter."""

_BRIEF_S: Final = 1.0
"""A process without a worker that ends sooner opens no connection for this."""

_FIRST_DELAY_S: Final = 0.02
_LONGEST_DELAY_S: Final = 1.0
_log: Final = get_logger(__name__)

OpenSession = Callable[[Callable[[], object]], Awaitable[LockSession]]
"""Open a session for locks; the argument is called when its connection ends."""


class Absences:
    """The locks that were free at the last look, and since when. The times are of one monotonic clock."""

    def __init__(self) -> None:
        self._since_s: dict[FreeLock, float] = {}
        self._last_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._since_s)

    def note(self, free: Sequence[FreeLock], *, asked_s: float, answered_s: float) -> list[FreeLock]:
        """The locks that a look has found free, and when; returns those that stayed free.

        The server looked some time between the question and the answer: two looks are as far apart as it is certain.
        """
        if asked_s - self._last_s > _SAME_ABSENCE_S:
            self._since_s.clear()
        self._since_s = {lock: self._since_s.get(lock, answered_s) for lock in free}
        self._last_s = answered_s
        return [lock for lock, since_s in self._since_s.items() if asked_s - since_s >= APART_S]

    def forget(self) -> None:
        self._since_s.clear()


class Presence:
    """Of a process; with a `worker_id` it has a worker. Without `open_session` the lease alone counts.

    `beats_s` is the heartbeat's interval.
    """

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        *,
        clock: Clock,
        beats_s: float,
        worker_id: str | None = None,
        open_session: OpenSession | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._store = store
        self._notifier = notifier
        self._clock = clock
        self._beats_s = beats_s
        self._worker_id = worker_id
        self._open_session = open_session
        self._metrics = metrics
        self._key: Final = make_key()
        self._holding: LockSession | None = None
        self._is_proved = False
        self._absences = Absences()
        self._blind_s = 0.0
        self._must_beat = asyncio.Event()
        self._must_check = asyncio.Event()

    async def run(self) -> None:
        """Run it as a task, for as long as the process has its worker."""
        async with asyncio.TaskGroup() as group:
            if self._worker_id is not None:
                group.create_task(self._beat_on(self._worker_id), name="heartbeat")
            if self._open_session is not None:
                group.create_task(self._watch(self._open_session), name="watching other workers")

    # --- saying that it lives ---

    async def _beat_on(self, worker_id: str) -> None:
        doubts = 0
        while True:
            self._must_beat.clear()
            try:
                if not await self._store.beat(worker_id, lock_key=self._find_held_key()):
                    doubts = 2  # a takeover may have been under way just now: once more at the next heartbeat
                if doubts:
                    await self._revive(worker_id)
                    doubts -= 1
            except (StoreFailed, Refused) as error:
                _log.warning("the heartbeat failed and will be retried: %s", error)
            except Exception:
                _log.exception("the heartbeat failed and will be retried")
            await self._wait(self._must_beat, self._beats_s)

    def _find_held_key(self) -> int | None:
        return None if self._holding is None or self._holding.is_lost else self._key

    async def _revive(self, worker_id: str) -> None:
        returned = await self._store.revive(worker_id)
        self._metrics.takeovers_mistaken(len(returned))
        _log.info("this worker lives, but was declared gone; %d of its turns have another worker", len(returned))

    # --- seeing who is gone ---

    async def _watch(self, open_session: OpenSession) -> None:
        backoff = Backoff(self._clock, first_s=_FIRST_DELAY_S, longest_s=_LONGEST_DELAY_S)
        if self._worker_id is None:
            await self._clock.sleep(_BRIEF_S)
        while True:
            try:
                session = await open_session(self._note_loss)
                try:
                    if not await self._acquire_lock(session):
                        return
                    await self._check_on(session, backoff)
                finally:
                    session.terminate()
                    self._holding = None
            except Exception as error:
                _log.info("the connection for locks is opened again: %r", error)
            self._absences.forget()
            self._blind_s = BLIND_S  # what happened to this connection may have happened to all
            await backoff.wait()

    def _note_loss(self) -> None:
        self._must_beat.set()
        self._must_check.set()

    async def _acquire_lock(self, session: LockSession) -> bool:
        """False if locks of sessions do not hold here. A process without a worker only looks."""
        if self._worker_id is None:
            return True
        if not self._is_proved:
            self._is_proved = await session.prove(self._clock)
            if not self._is_proved:
                _log.info("locks of sessions do not hold here: only the end of its lease tells that a worker is gone")
                return False
        await session.hold(self._key)
        self._holding = session
        self._must_beat.set()
        return True

    async def _check_on(self, session: LockSession, backoff: Backoff) -> None:
        """Look again and again, until the session is lost."""
        blind_s = max(self._blind_s, BLIND_S - await session.find_server_age())
        blind_until_s = self._clock.monotonic() + blind_s
        while not session.is_lost:
            self._must_check.clear()
            asked_s = self._clock.monotonic()
            found = await session.check(self._worker_id, lease_timeout_s=self._store.lease_timeout_s)
            answered_s = self._clock.monotonic()
            if any(lock.key == self._key for lock in found.free):
                self._is_proved = False
                raise StoreFailed("The server has forgotten the lock of a session that is still open.")
            if asked_s >= blind_until_s:
                for lock in self._absences.note(found.free, asked_s=asked_s, answered_s=answered_s):
                    await self._declare_gone(lock)
            pause_s = CHECK_INTERVAL_S if found.others_are_busy else IDLE_INTERVAL_S
            await self._wait(self._must_check, _SOON_S if self._absences else pause_s)
            backoff.reset()

    async def _declare_gone(self, lock: FreeLock) -> None:
        try:
            chat_ids = await self._store.declare_gone(lock.worker_id, lock.key)
        except (StoreFailed, Refused) as error:
            _log.info("%s seems to be gone, and will be looked for again: %s", lock.worker_id, error)
            return
        if chat_ids:
            _log.info("%s is gone; its %d chats can be taken over", lock.worker_id, len(chat_ids))
            self._notifier.notify(chat_ids)

    async def _wait(self, woken: asyncio.Event, longest_s: float) -> None:
        timer = self._clock.call_later(longest_s, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()
