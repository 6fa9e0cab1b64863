"""A cancellable piece of work, and why it was cancelled.

asyncio's cancellation carries no cause and can land at any await. So the cause lives here:
it is set *before* anything is cancelled, and code that meets a `CancelledError` (or a stream
that just ends, or a provider that says "cancelled") asks its scope what happened and believes
nothing else.

    interrupted   the user pressed Stop: keep everything, end the turn
    shutdown      the process is leaving: write nothing, another worker goes on
    silent        the provider sent nothing for too long: this attempt is over, try again
    lease_lost    another worker holds the chat: write nothing

The first cause stands, except that `lease_lost` replaces any other: whoever lost the chat may
not write, whatever else was going on. A child scope shares its parent's cause; `silent` gives way
to it, so an attempt that fell silent while the user pressed Stop was stopped.

`interrupt()` and its sisters are plain methods and may be called from any thread; whoever
registered with `on_cancel` is called on the event loop it registered from.

Must stay true (tests/concurrency/test_scope.py): a cause once set is never unset; every callback runs
exactly once, also when it is registered late.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from indelible.errors import IndelibleError, Interrupted, LeaseLost, Shutdown


class Cause(StrEnum):
    INTERRUPTED = "interrupted"
    SHUTDOWN = "shutdown"
    SILENT = "silent"
    LEASE_LOST = "lease_lost"


_ERRORS: Final[dict[Cause, type[IndelibleError]]] = {
    Cause.INTERRUPTED: Interrupted,
    Cause.SHUTDOWN: Shutdown,
    Cause.LEASE_LOST: LeaseLost,
}

_Callback = Callable[[], None]
_log: Final = logging.getLogger(__name__)


class CancelScope:
    """See the module header. As a context manager it leaves its parent at the end."""

    def __init__(self, parent: CancelScope | None = None) -> None:
        self._lock = threading.Lock()
        self._cause: Cause | None = None
        self._callbacks: dict[object, tuple[asyncio.AbstractEventLoop, _Callback]] = {}
        self._parent = parent
        self._leave_parent: _Callback = _nothing
        if parent is not None:
            self._leave_parent = parent.on_cancel(self._call_back)

    # --- asking ---

    @property
    def cause(self) -> Cause | None:
        """Why it was cancelled, or None while it is live."""
        own = self._cause
        inherited = self._parent.cause if self._parent is not None else None
        if inherited is Cause.LEASE_LOST or own is None or own is Cause.SILENT:
            return inherited or own
        return own

    @property
    def cancelled(self) -> bool:
        return self.cause is not None

    @property
    def interrupted(self) -> bool:
        return self.cause is Cause.INTERRUPTED

    def error(self) -> IndelibleError:
        """The error that a run ends with for this cause."""
        cause = self.cause
        if cause is None or cause not in _ERRORS:
            raise RuntimeError(f"a scope with cause {cause} does not end a run")
        return _ERRORS[cause]()

    def check(self) -> None:
        """Raise if the scope is cancelled."""
        if self.cancelled:
            raise self.error()

    # --- telling ---

    def interrupt(self) -> None:
        """The user wants it to stop."""
        self.cancel(Cause.INTERRUPTED)

    def shutdown(self) -> None:
        """The process is going away."""
        self.cancel(Cause.SHUTDOWN)

    def cancel(self, cause: Cause) -> None:
        """End the work, for this cause."""
        with self._lock:
            if self.cause is None or cause is Cause.LEASE_LOST:
                self._cause = cause
        self._call_back()

    # --- cancelling ---

    def on_cancel(self, callback: _Callback) -> _Callback:
        """Call `callback` once when the scope is cancelled (now, if it is); returns how to forget it."""
        key = object()
        with self._lock:
            self._callbacks[key] = (asyncio.get_running_loop(), callback)
        if self.cancelled:
            self._call_back()

        def forget() -> None:
            with self._lock:
                self._callbacks.pop(key, None)

        return forget

    def _call_back(self) -> None:
        with self._lock:
            due = list(self._callbacks.values())
            self._callbacks.clear()
        here = asyncio._get_running_loop()
        for loop, callback in due:
            if loop is here:
                try:
                    callback()
                except Exception:
                    _log.exception("a callback of a cancelled scope failed")
            elif not loop.is_closed():
                loop.call_soon_threadsafe(callback)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave_parent()


def _nothing() -> None:
    pass
