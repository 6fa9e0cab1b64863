"""Named crash_points at which a server can be made to kill itself.

A kill from outside lands wherever the process happens to be. These land where it hurts: between a flush and its
commit, between a commit and telling of it, in a tool, in a stop, in a takeover. The product knows nothing of them: in
the process that `prove` starts, public methods of the store and the notifiers are wrapped before anything begins, and
the wrappers pass by the crash_points.

At an armed point the work stands still for a moment before the process dies, and everything else in it goes on: what
was done too early has time to be seen. The counting is per process, from the moment of arming.

Must stay true (tests/prove/test_crash_points.py): a process that was armed dies at the point by SIGKILL, and one that
was not is none the wiser.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, get_args

from indelible.machine.commands import Acquire, Command, FinishInterruption
from indelible.notify import LocalNotifier, PostgresNotifier
from indelible.store.sql_store import SqlStore

CrashPoint = Literal[
    "at_start",
    "during_takeover",
    "before_flush",
    "after_flush",
    "before_notify",
    "before_effect",
    "after_effect",
    "during_stop",
]
CRASH_POINTS: Final[tuple[CrashPoint, ...]] = get_args(CrashPoint)
_STANDSTILL_S: Final = 0.03


class CrashPoints:
    """Which point is armed, and how often it will still be passed before the end."""

    def __init__(self) -> None:
        self._armed: CrashPoint | None = None
        self._remaining = 0

    def arm(self, point: CrashPoint, count: int) -> None:
        """Die when this point is passed for the `count`-th time from now."""
        self._remaining = count
        self._armed = point

    async def pass_by(self, point: CrashPoint) -> None:
        if self._is_the_end(point):
            await asyncio.sleep(_STANDSTILL_S)
            _die()

    def pass_by_at_once(self, point: CrashPoint) -> None:
        """For work that cannot wait."""
        if self._is_the_end(point):
            _die()

    def _is_the_end(self, point: CrashPoint) -> bool:
        if point != self._armed:
            return False
        self._remaining -= 1
        return self._remaining == 0


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(crash_points: CrashPoints) -> None:
    """Let every store and notifier of this process pass by its crash_points. There is no way back."""
    _wrap(SqlStore, "beat", lambda _: ["at_start"], crash_points)
    _wrap(SqlStore, "execute", lambda arguments: _name_command(arguments[1]), crash_points, after=True)
    _wrap(SqlStore, "append", lambda _: ["before_flush"], crash_points)
    _wrap(SqlStore, "append", lambda _: ["after_flush"], crash_points, before=False, after=True)
    for notifier in (LocalNotifier, PostgresNotifier):
        _wrap_at_once(notifier, "notify", "before_notify", crash_points)


def _name_command(command: Command) -> Iterable[CrashPoint]:
    if isinstance(command, Acquire):
        return ["during_takeover"]
    return ["during_stop"] if isinstance(command, FinishInterruption) else []


def _wrap(
    owner: type,
    method: str,
    name_points: Callable[[tuple[Any, ...]], Iterable[CrashPoint]],
    crash_points: CrashPoints,
    *,
    before: bool = True,
    after: bool = False,
) -> None:
    original = getattr(owner, method)

    async def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        passed = list(name_points(arguments))
        if before:
            for point in passed:
                await crash_points.pass_by(point)
        done = await original(self, *arguments, **named)
        if after:
            for point in passed:
                await crash_points.pass_by(point)
        return done

    setattr(owner, method, wrapped)


def _wrap_at_once(owner: type, method: str, point: CrashPoint, crash_points: CrashPoints) -> None:
    original = getattr(owner, method)

    def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        crash_points.pass_by_at_once(point)
        return original(self, *arguments, **named)

    setattr(owner, method, wrapped)
