"""Saving the last step of a turn: once, shielded, and once more if the save raises `Interrupted`.

`run` returns the last step unsaved, so that a runner can save it and end the turn in one transaction. What makes that
hard is a stop between the two, or during the save. `save_end` handles it for every runner: the save
outlasts a cancellation of its task; a save that raises `Interrupted`, or fails while the turn is being interrupted,
is followed by exactly one more, of an interrupted end that holds everything (rule 1.5); if that one fails too, the
host is notified and the turn has ended nevertheless, because the user asked for that. A runner that has lost
its lease saves nothing.

Must stay true (tests/loop/test_acceptance_stop.py, S8, S24 and S25): what was published is saved once, and the end that
is returned names the cause that the scope names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from indelible.concurrency.scope import CancelScope, Cause
from indelible.errors import Interrupted, Lost
from indelible.logs import get_logger
from indelible.loop.hooks import call_shielded
from indelible.loop.host import TurnHost
from indelible.loop.result import TurnEnd, TurnInterrupted, TurnLeaseLost, TurnShutDown

_log: Final = get_logger(__name__)

SaveEnd = Callable[[TurnEnd], Awaitable[Any] | Any]
"""Saves an end and its last step, if there is one. It receives every end except that of a lost lease."""


async def save_end(end: TurnEnd, save: SaveEnd, *, scope: CancelScope, host: TurnHost | None = None) -> TurnEnd:
    """Save how a turn ended; returns the actual end, because a stop may have arrived meanwhile.

    Raises what `save` raised, unless the turn is being interrupted, and `CancelledError` if the task was cancelled.
    """
    host = host or TurnHost()
    if isinstance(end, TurnLeaseLost):
        return end
    if _has_lost_lease(scope):
        return _lose(end, scope.error())
    if scope.cause is Cause.SHUTDOWN:
        end = _name_cause(end, scope)
    try:
        await call_shielded(scope, save, end)
    except (Exception, asyncio.CancelledError) as error:
        end = await _handle_failure(end, error, save, scope=scope, host=host)
    return _name_cause(end, scope)


async def _handle_failure(
    end: TurnEnd, error: BaseException, save: SaveEnd, *, scope: CancelScope, host: TurnHost
) -> TurnEnd:
    """The first save failed: try once more if a stop caused that; otherwise the error goes to the runner."""
    if isinstance(error, Lost) or _has_lost_lease(scope):
        return _lose(end, error if isinstance(error, Exception) else scope.error())
    if isinstance(error, Interrupted) and scope.cause is Cause.SHUTDOWN:
        return TurnShutDown(messages=end.messages, steps=end.steps)
    if isinstance(error, asyncio.CancelledError) and not scope.interrupted:
        raise error
    if isinstance(end, TurnInterrupted):
        if end.tried or not isinstance(error, Interrupted):
            await _report(error, scope=scope, host=host)
            return end
    elif not isinstance(error, Interrupted) and not scope.interrupted:
        raise error
    end = interrupt(end)
    try:
        await call_shielded(scope, save, end)
    except Lost as lost:
        return _lose(end, lost)
    except (Exception, asyncio.CancelledError) as second:
        if isinstance(second, asyncio.CancelledError) and not scope.interrupted:
            raise
        if not _has_lost_lease(scope):
            await _report(second, scope=scope, host=host)
    return end


def interrupt(end: TurnEnd) -> TurnInterrupted:
    """The same end, interrupted: for a stop that arrived before it was saved."""
    if isinstance(end, TurnInterrupted):
        return end
    step = end.step.interrupt() if end.step is not None else None
    steps = end.steps if step is None else [*end.steps[:-1], step]
    messages = end.messages
    if end.step is not None and step is not None:
        messages = [*end.messages[: len(end.messages) - len(end.step.messages())], *step.messages()]
    return TurnInterrupted(messages=messages, steps=steps, step=step)


def _name_cause(end: TurnEnd, scope: CancelScope) -> TurnEnd:
    """If a stop arrived during the save, everything is saved, and the turn has ended for that cause."""
    match scope.cause:
        case Cause.LEASE_LOST:
            return _lose(end, scope.error())
        case Cause.SHUTDOWN if not isinstance(end, TurnInterrupted):
            return TurnShutDown(messages=end.messages, steps=end.steps)
        case Cause.INTERRUPTED if not isinstance(end, TurnInterrupted):
            return TurnInterrupted(messages=end.messages, steps=end.steps)
        case _:
            return end


def _has_lost_lease(scope: CancelScope) -> bool:
    return scope.cause is Cause.LEASE_LOST


def _lose(end: TurnEnd, error: Exception) -> TurnEnd:
    return end if isinstance(end, TurnLeaseLost) else TurnLeaseLost(error=error)


async def _report(error: BaseException, *, scope: CancelScope, host: TurnHost) -> None:
    _log.error("the reply could not be saved after the stop: %r", error)
    try:
        await call_shielded(scope, host.report_unsaved, error)
    except Exception:
        _log.exception("report_unsaved failed")
