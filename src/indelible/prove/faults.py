"""Killing servers: every way in which one can fail, in an order determined by the seed, while the turns can bear it.

    sigkill        at a random instant
    sigterm        a graceful shutdown at a random instant; it has to exit with status 0
    sigstop        paused. With two servers: past its lease, so that it resumes without its chats
    redis          the Redis between the servers, if there is one; it is away for a moment
    a point        killed at a named place in its work (tools.py)

Ways are dealt like cards: each once before any is repeated. Two of them need two kills: a server that is killed while
it starts, or during a takeover, was restarted just before. If a point is not reached in time, the process is killed
where it is.

A turn that survives ten crashes, or three in a row without writing anything, is failed on purpose: the turn itself may
be what kills its workers (machine/decide.py). A proof must not cause that, so it waits until every running turn can
survive the next kill. The database has the takeovers of each open turn, except one: a turn whose holder has sent no
heartbeat since the last kill may be about to be taken over. That is never more than one, because a chat without a
holder cannot be lost again. Must stay true (tests/prove/test_budget.py).
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from indelible.machine.decide_worker import MAX_STALLED_TAKEOVERS, MAX_TAKEOVERS
from indelible.prove.redis import RedisServer
from indelible.prove.servers import END_S, ServerUnderTest
from indelible.prove.tools import CRASH_POINTS, CrashPoint
from indelible.store.commands.facts import load_progress
from indelible.store.database.transaction import Database, Row, Transaction

_BEFORE_ALL: Final = datetime(1970, 1, 1, tzinfo=UTC)

_RUNNING: Final = """
    SELECT t.chat_id, t.id, t.takeovers, t.stalled_takeovers, t.journal_rows_at_takeover, a.id AS attempt_id,
        c.holder IS NOT NULL AND c.holder NOT IN (SELECT id FROM workers WHERE heartbeat_at > $1) AS owed
    FROM turns AS t JOIN chats AS c ON c.id = t.chat_id
    LEFT JOIN attempts AS a ON a.chat_id = t.chat_id AND a.turn_id = t.id AND a.ended_at IS NULL
    WHERE t.ended_at IS NULL
    """


class KillBudget:
    """The crashes that the open turns of a database have had, and how many more they can survive."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last_death_at = _BEFORE_ALL

    async def note_death(self) -> None:
        """Call this after every kill."""
        self._last_death_at = await self._database.read(_load_now)

    async def can_bear(self, deaths: int) -> bool:
        """Whether there is an open turn, and every open turn would survive so many more kills."""
        since = self._last_death_at
        return await self._database.read(lambda transaction: _can_bear(transaction, since, deaths))


async def _load_now(transaction: Transaction) -> datetime:
    return await transaction.now()


async def _can_bear(transaction: Transaction, since: datetime, deaths: int) -> bool:
    running = await transaction.all(_RUNNING, since)
    for turn in running:
        progress = await load_progress(transaction, turn["chat_id"], turn["id"], turn["attempt_id"])
        if not _is_bearable(turn, progress, deaths + int(turn["owed"])):
            return False
    return bool(running)


def _is_bearable(turn: Row, progress: int, deaths: int) -> bool:
    stalled = turn["stalled_takeovers"] if progress == turn["journal_rows_at_takeover"] else 0
    return bool(turn["takeovers"] + deaths < MAX_TAKEOVERS and stalled + deaths < MAX_STALLED_TAKEOVERS)


# --- ways to kill ---


Way = Literal["sigkill", "sigterm", "sigstop", "redis"] | CrashPoint
WAYS: Final[tuple[Way, ...]] = ("sigkill", "sigterm", "sigstop", *CRASH_POINTS)
_AT_STARTUP: Final[frozenset[Way]] = frozenset({"at_start", "during_takeover"})
_LONGEST_WAIT_S: Final = 0.5
_LONGEST_LIFE_S: Final = 3.0
_PAUSE_S: Final = 0.5
_NOTICED_AFTER_S: Final = 1.0
"""Until a worker has polled again (`poll_interval_s`) and taken over the chats of one whose lease is over."""

_PASSES_AT_MOST: Final[dict[CrashPoint, int]] = {
    "before_flush": 8,
    "after_flush": 8,
    "before_notify": 4,
    "during_takeover": 4,
}

_POLL_INTERVAL_S: Final = 0.02


class FaultInjector:
    """`kills` counts kills (and pauses) by way; `faults` are servers that did not shut down gracefully.

    provoke: what to have users do so that a point is reached, such as to stop a reply.
    on_kill: called after each kill with their number.
    """

    def __init__(
        self,
        servers: Sequence[ServerUnderTest],
        budget: KillBudget,
        *,
        seed: int,
        ways: Sequence[Way],
        lease_timeout_s: float,
        drain_s: float = 0.0,
        redis: RedisServer | None = None,
        provoke: Mapping[CrashPoint, Callable[[], Coroutine[Any, Any, None]]],
        on_kill: Callable[[int], None],
    ) -> None:
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []
        self._servers = servers
        self._budget = budget
        self._chance = random.Random(seed)  # noqa: S311  (it only has to be reproducible)
        self._ways = ways if redis is None else (*ways, "redis")
        self._redis = redis
        self._deck: list[Way] = []
        self._drain_s = drain_s
        self._past_lease_s = lease_timeout_s + _NOTICED_AFTER_S
        self._provoke = provoke
        self._on_kill = on_kill

    async def kill(self, times: int, *, is_enough: Callable[[], bool]) -> None:
        """Kill `kills` times, or stop earlier."""
        while self.kills.total() < times and not is_enough():
            way = self._draw(times - self.kills.total())
            await asyncio.sleep(self._chance.uniform(0, _LONGEST_WAIT_S))
            while not await self._budget.can_bear(2 if way in _AT_STARTUP else 1):
                if is_enough():
                    return
                await asyncio.sleep(_POLL_INTERVAL_S)
            await self._inject(way, self._chance.choice(self._servers))

    def _draw(self, left: int) -> Way:
        if not self._deck:
            self._deck = self._chance.sample(self._ways, len(self._ways))
        way = self._deck.pop()
        return "sigkill" if way in _AT_STARTUP and left < 2 else way

    async def _inject(self, way: Way, server: ServerUnderTest) -> None:
        if way == "sigkill":
            await server.process.kill()
            await self._count(way)
            await server.start()
        elif way == "sigterm":
            await self._send_away(server)
        elif way == "sigstop":
            await self._put_to_sleep(server)
        elif way == "redis":
            await self._restart_redis()
        elif way in _AT_STARTUP:
            await self._kill_at_the_beginning(way, server)
        else:
            await self._kill_at(way, server)

    async def _put_to_sleep(self, server: ServerUnderTest) -> None:
        server.process.send(signal.SIGSTOP)
        await asyncio.sleep(self._past_lease_s if len(self._servers) > 1 else _PAUSE_S)
        server.process.send(signal.SIGCONT)
        await self._count("sigstop")

    async def _restart_redis(self) -> None:
        assert self._redis is not None
        await self._redis.kill()
        await self._count("redis")
        await asyncio.sleep(self._chance.uniform(0, _LONGEST_WAIT_S))
        await self._redis.start()

    async def _send_away(self, server: ServerUnderTest) -> None:
        server.process.send(signal.SIGTERM)
        code = await server.process.wait_for_end(within_s=END_S + self._drain_s)
        if code != 0:
            self.faults.append(f"a server that got SIGTERM exited with {code}")
        await server.process.kill()
        await self._count("sigterm")
        await server.start()

    async def _kill_at(self, point: CrashPoint, server: ServerUnderTest) -> None:
        passes = self._chance.randint(1, _PASSES_AT_MOST.get(point, 1))
        await server.process.arm(point, passes)
        # A user may have to wait until the server is back.
        provoking = asyncio.create_task(self._provoke[point]()) if point in self._provoke else None
        try:
            is_dead = await server.process.wait_for_end(within_s=_LONGEST_LIFE_S) is not None
            await server.process.kill()
            await self._count(point if is_dead else "sigkill")
            await server.start()
        finally:
            if provoking is not None:
                await provoking

    async def _kill_at_the_beginning(self, point: CrashPoint, server: ServerUnderTest) -> None:
        await server.process.kill()
        await self._count("sigkill")
        passes = self._chance.randint(1, _PASSES_AT_MOST.get(point, 1))
        was_reached = await server.start_doomed(point, passes, within_s=_LONGEST_LIFE_S + self._past_lease_s)
        await self._count(point if was_reached else "sigkill")
        await server.start()

    async def _count(self, way: str) -> None:
        self.kills[way] += 1
        await self._budget.note_death()
        self._on_kill(self.kills.total())
