"""Everything that can go wrong, drawn once.

The class says what to do; the fields say what happened.

    IndelibleError
    ├── Refused        a command that was not carried out; nothing was changed (HTTP 4xx)
    │   ├── NotAllowed     not in this state (409)
    │   ├── NotFound       it names what is not there (404)
    │   ├── Invalid        it makes no sense (422)
    │   ├── TooMany        more than a limit allows (429)
    │   └── TooLarge       larger than a limit allows (413)
    ├── Lost           the right to write is gone: stop, write nothing
    │   └── LeaseLost      another worker holds the chat
    ├── ModelFailed    the model's answer failed; `kind` and `retryable` steer the retry policy
    ├── StoreFailed    the database failed; retry or crash, never go on as if it had worked
    ├── Interrupted    the run was stopped by the user; what was said has been kept
    └── Shutdown       the process is going away; somebody else continues the turn

`Interrupted` and `Shutdown` are the two ways a run is ended from outside. Neither is a kind
of the other, and neither is an `asyncio.CancelledError`: asyncio's cancellation carries no
cause, so the loop asks its scope for one (scope.py) and raises what the scope says.

Foreign errors are read once, at the edge: for providers that is models/failures/classify.py.

Must stay true (tests/test_errors.py): the tree above is the tree in this module, and every
failure kind has a row in `RETRYABLE`.
"""

from __future__ import annotations

from typing import Final, Literal

FailureKind = Literal[
    "overloaded",
    "rate_limit",
    "usage_limit",
    "auth",
    "config",
    "context_overflow",
    "timeout",
    "stream_silence_timeout",
    "server_error",
    "chain_broken",
    "content_filter",
    "missing_key",
    "unknown",
]

RETRYABLE: Final[dict[FailureKind, bool]] = {
    "overloaded": True,
    "rate_limit": True,
    "usage_limit": False,
    "auth": False,
    "config": False,
    "context_overflow": False,
    "timeout": True,
    "stream_silence_timeout": True,
    "server_error": True,
    "chain_broken": True,
    "content_filter": False,
    "missing_key": False,
    "unknown": False,
}


class IndelibleError(Exception):
    """The root of every error that Indelible raises on purpose."""


class Refused(IndelibleError):
    """The command was not carried out. Nothing was changed."""


class NotAllowed(Refused):
    """The command is not allowed in this state."""

    def __init__(self, *, command: str, state: str, detail: str | None = None) -> None:
        super().__init__(detail or f"{command} is not possible while the chat is {state}.")
        self.command = command
        self.state = state


class NotFound(Refused):
    """The command names a chat, message, turn or queued message that is not there."""


class Invalid(Refused):
    """The command makes no sense, whatever the state."""


class TooMany(Refused):
    """There would be more of something than a limit allows."""


class TooLarge(Refused):
    """Something is larger than a limit allows."""


class Lost(IndelibleError):
    """The right to write is gone. Stop, and write nothing more."""


class LeaseLost(Lost):
    """Another worker holds the chat now; it keeps what was said and goes on."""


class StoreFailed(IndelibleError):
    """The database did not do what it was asked."""


class Interrupted(IndelibleError):
    """The user stopped the run. Everything that was published has been kept."""

    def __init__(self, message: str = "The reply was stopped.") -> None:
        super().__init__(message)


class Shutdown(IndelibleError):
    """The process is going away. The turn is not over: somebody else continues it."""

    def __init__(self, message: str = "The process is shutting down.") -> None:
        super().__init__(message)


class ModelFailed(IndelibleError):
    """A model call failed.

    `message` is fit for the user: it names the provider, says what happened and what to do.
    `detail` is at most 500 characters of the provider's own words, scrubbed.
    `retry_after_s` is the provider's own wish, already parsed, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: FailureKind = "unknown",
        retryable: bool | None = None,
        status: int | None = None,
        provider: str | None = None,
        detail: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind: FailureKind = kind
        self.retryable = RETRYABLE.get(kind, False) if retryable is None else retryable
        self.status = status
        self.provider = provider
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def chain_broken(self) -> bool:
        return self.kind == "chain_broken"
