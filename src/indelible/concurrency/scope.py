"""A cancellable piece of work, and why it was cancelled.

asyncio's cancellation carries no cause and can arrive at any await. So the cause lives here:
it is set *before* anything is cancelled, and code that catches a `CancelledError` (or meets a stream
that just ends, or a provider that says "cancelled") relies only on its scope to know what
happened.

    interrupted   the user pressed Stop: keep everything, end the turn
    shutdown      the process is shutting down: write nothing, another worker continues
    silent        the provider sent nothing for too long: this attempt is over, retry
    lease_lost    another worker holds the chat: write nothing

The first cause stands, except that `lease_lost` replaces any other: a worker that lost the chat may
not write, whatever else happened. A child scope shares its parent's cause, which overrides
`silent`: an attempt that fell silent while the user pressed Stop counts as stopped.

`interrupt()` and similar methods are plain and may be called from any thread; a callback
registered with `on_cancel` runs on the event loop it was registered from.

Must stay true (tests/concurrency/test_scope.py): a cause once set is never unset; every callback runs
exactly once, even if it is registered late.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from indelible.errors import IndelibleError, Interrupted, LeaseLost, Shutdown
from indelible.logs import get_logger


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
_log: Final = get_logger(__name__)


class CancelScope:
    """See the module header. As a context manager it detaches from its parent at the end."""

    def __init__(self, parent: CancelScope | None = None) -> None:
        self._lock = threading.Lock()
        self._cause: Cause | None = None
        self._callbacks: dict[object, tuple[asyncio.AbstractEventLoop, _Callback]] = {}
        self._parent = parent
        self._leave_parent: _Callback = _nothing
        if parent is not None:
            self._leave_parent = parent.on_cancel(self._call_back)

    # --- reading ---

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

    # --- causes ---

    def interrupt(self) -> None:
        """Cancel because the user pressed Stop."""
        self.cancel(Cause.INTERRUPTED)

    def shutdown(self) -> None:
        """Cancel because the process is shutting down."""
        self.cancel(Cause.SHUTDOWN)

    def cancel(self, cause: Cause) -> None:
        """Cancel the work for this cause."""
        with self._lock:
            if self.cause is None or cause is Cause.LEASE_LOST:
                self._cause = cause
        self._call_back()

    # --- cancelling ---

    def on_cancel(self, callback: _Callback) -> _Callback:
        """Call `callback` once when the scope is cancelled (now, if it already is); returns how to unregister it."""
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
        here: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):  # called from a thread without a loop
            here = asyncio.get_running_loop()
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
