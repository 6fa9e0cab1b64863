"""Killing servers: every way in which one can go away, in an order that the seed decides.

    sigkill        at a random instant
    sigterm        told to leave, at a random instant; it has to leave in good order
    sigstop        put to sleep. With another server beside it: past its lease, so that it wakes to find its chats gone
    a point        by itself, at a named place in its work (crash_points.py)

Ways are dealt like cards: each once before any comes again. Two of them need two deaths: a server that is killed
when it starts, or while it takes chats over, is one that was just restarted. Between two kills there is a random short
time, and as much more as the running turns need to be able to bear it (budget.py). A point that is not reached in
time is left for what it is, and the process is killed as it stands.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal

from indelible.prove.budget import Budget
from indelible.prove.crash_points import CRASH_POINTS, CrashPoint
from indelible.prove.servers import ServerUnderTest

Way = Literal["sigkill", "sigterm", "sigstop"] | CrashPoint
WAYS: Final[tuple[Way, ...]] = ("sigkill", "sigterm", "sigstop", *CRASH_POINTS)
_OF_THE_BEGINNING: Final[frozenset[Way]] = frozenset({"at_start", "during_takeover"})
_LONGEST_WAIT_S: Final = 0.5
_LONGEST_LIFE_S: Final = 3.0
_NAP_S: Final = 0.5
_NOTICED_AFTER_S: Final = 1.0
"""Until a worker has polled again (`poll_interval_s`) and taken over the chats of one whose lease is over."""
_PASSES_AT_MOST: Final[dict[CrashPoint, int]] = {
    "before_flush": 8,
    "after_flush": 8,
    "before_notify": 4,
    "during_takeover": 4,
}
_LOOK_EVERY_S: Final = 0.02


class FaultInjector:
    """`kills` counts deaths (and sleeps) by the way they came about; `faults` are servers that did not leave well.

    provoke: make somebody stop a reply, for a death in the middle of that.
    on_kill: told after each.
    """

    def __init__(
        self,
        servers: Sequence[ServerUnderTest],
        budget: Budget,
        *,
        seed: int,
        ways: Sequence[Way],
        lease_timeout_s: float,
        provoke: Callable[[], Coroutine[Any, Any, None]],
        on_kill: Callable[[int], None],
    ) -> None:
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []
        self._servers = servers
        self._budget = budget
        self._chance = random.Random(seed)  # noqa: S311  (it only has to be the same next time)
        self._ways = ways
        self._deck: list[Way] = []
        self._past_lease_s = lease_timeout_s + _NOTICED_AFTER_S
        self._provoke = provoke
        self._on_kill = on_kill

    async def kill(self, times: int, *, is_enough: Callable[[], bool]) -> None:
        """Kill so many times, or until it is enough."""
        while self.kills.total() < times and not is_enough():
            way = self._draw(times - self.kills.total())
            await asyncio.sleep(self._chance.uniform(0, _LONGEST_WAIT_S))
            while not await self._budget.can_bear(2 if way in _OF_THE_BEGINNING else 1):
                if is_enough():
                    return
                await asyncio.sleep(_LOOK_EVERY_S)
            await self._carry_out(way, self._chance.choice(self._servers))

    def _draw(self, left: int) -> Way:
        if not self._deck:
            self._deck = self._chance.sample(self._ways, len(self._ways))
        way = self._deck.pop()
        return "sigkill" if way in _OF_THE_BEGINNING and left < 2 else way

    async def _carry_out(self, way: Way, server: ServerUnderTest) -> None:
        if way == "sigkill":
            await server.process.kill()
            await self._count(way)
            await server.start()
        elif way == "sigterm":
            await self._send_away(server)
        elif way == "sigstop":
            await self._put_to_sleep(server)
        elif way in _OF_THE_BEGINNING:
            await self._kill_at_the_beginning(way, server)
        else:
            await self._kill_at(way, server)

    async def _put_to_sleep(self, server: ServerUnderTest) -> None:
        server.process.send(signal.SIGSTOP)
        await asyncio.sleep(self._past_lease_s if len(self._servers) > 1 else _NAP_S)
        server.process.send(signal.SIGCONT)
        await self._count("sigstop")

    async def _send_away(self, server: ServerUnderTest) -> None:
        server.process.send(signal.SIGTERM)
        code = await server.process.wait_for_end()
        if code != 0:
            self.faults.append(f"a server that was told to leave ended with {code}")
        await server.process.kill()
        await self._count("sigterm")
        await server.start()

    async def _kill_at(self, point: CrashPoint, server: ServerUnderTest) -> None:
        passes = self._chance.randint(1, _PASSES_AT_MOST.get(point, 1))
        server.process.arm(point, passes)
        # Whoever stops a reply may have to wait for the server to come back.
        provoking = asyncio.create_task(self._provoke()) if point == "during_stop" else None
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
