"""Every error of Indelible, drawn once.

The class says what to do; the fields say what happened.

    IndelibleError
    ├── Refused        a rejected command; nothing was changed (HTTP 4xx)
    │   ├── NotAllowed     not allowed in this state (409)
    │   ├── NotFound       it names something that does not exist (404)
    │   │   ├── ChatNotFound       a chat (404)
    │   │   └── StoredFileNotFound     a file that was uploaded or made by a tool (404)
    │   ├── Invalid        malformed, whatever the state (422)
    │   ├── NotPermitted   this login may not do it (403)
    │   │   └── ReadOnly       the chat is shared with this user for reading alone (403)
    │   ├── TooMany        more than a limit allows (429)
    │   │   └── RateLimited    too much in a time; `retry_after_s` says when it is allowed again (429)
    │   ├── TooLarge       larger than a limit allows (413)
    │   └── UnsupportedType    a file of a type that is not accepted (415)
    ├── Lost           the right to write is gone: stop, write nothing
    │   └── LeaseLost      another worker holds the chat
    ├── ModelFailed    the model call failed; `kind` and `retryable` drive the retry policy
    ├── StoreFailed    the database failed; retry or crash, never continue as if it had worked
    ├── Interrupted    the user stopped the run; everything published is saved
    └── Shutdown       the process is shutting down; another worker resumes the turn

`TestBroken` is no `Exception`: a test did what it must not, and nothing handles it.

`Interrupted` and `Shutdown` are the two ways to end a run from outside. Neither is a kind of the other, and neither is
an `asyncio.CancelledError`: asyncio's cancellation carries no cause, so the loop asks its scope for the cause
(concurrency/scope.py) and raises accordingly.

Foreign errors are read once, at the edge: for providers that is models/failures/classify.py.

Must stay true (tests/test_errors.py): the tree above is the tree in this module, every failure kind has a row in
`RETRYABLE`, and every refusal one in `REFUSALS`.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

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


class TestBroken(BaseException):
    """A test did what it must not: nothing in Indelible handles this, so that it fails the test (indelible.testing).

    Everything else that a model or a tool raises, `SystemExit` and `KeyboardInterrupt` included, ends its turn only.
    """

    __test__ = False  # pytest: no test


class Refused(IndelibleError):
    """The command was rejected. Nothing was changed.

    `problem_kind` is its name over HTTP: the `kind` in the server's response, from which a client makes it again.
    """

    problem_kind: ClassVar[str] = "invalid"


def describe_not_allowed(command: str, state: str) -> str:
    """Why a command is refused; `command` is its name. One name has no verb."""
    action = "submit tool results" if command == "tool_results" else command.replace("_", " ")
    return f"Cannot {action} while the chat is {state}."


class NotAllowed(Refused):
    """The command is not allowed in this state."""

    problem_kind = "not_allowed"

    def __init__(self, *, command: str, state: str, detail: str | None = None) -> None:
        super().__init__(detail or describe_not_allowed(command, state))
        self.command = command
        self.state = state


class NotFound(Refused):
    """The command names a chat, message, turn or queued message that does not exist."""

    problem_kind = "not_found"


class ChatNotFound(NotFound):
    """There is no such chat, or none that this user may read. Over HTTP, a client gets `NotFound`."""

    def __init__(self, message: str = "Chat not found. It may have been deleted.") -> None:
        super().__init__(message)


class StoredFileNotFound(NotFound):
    """There is no such file, or none that this user may read. Over HTTP, a client gets `NotFound`."""

    def __init__(self, message: str = "File not found. It may have been deleted.") -> None:
        super().__init__(message)


class Invalid(Refused):
    """The command is malformed, whatever the state. `param` names a part of it that is not supported."""

    problem_kind = "invalid"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class NotPermitted(Refused):
    """The login may not do it: a token without the scope, or a user without the role."""

    problem_kind = "not_permitted"


class ReadOnly(NotPermitted):
    """The chat is another user's, who shares it for reading alone."""

    problem_kind = "read_only"


class TooMany(Refused):
    """The command would exceed a limit on the number of something."""

    problem_kind = "too_many"


class RateLimited(TooMany):
    """Too many requests, tokens or costs in a time."""

    problem_kind = "rate_limited"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLarge(Refused):
    """Something exceeds a size limit."""

    problem_kind = "too_large"


class UnsupportedType(Refused):
    """A file of this type is not accepted."""

    problem_kind = "unsupported_type"


REFUSALS: Final[dict[str, type[Refused]]] = {
    refusal.problem_kind: refusal
    for refusal in (
        NotAllowed,
        NotFound,
        Invalid,
        NotPermitted,
        ReadOnly,
        TooMany,
        RateLimited,
        TooLarge,
        UnsupportedType,
    )
}
"""Every refusal by its name over HTTP."""


class Lost(IndelibleError):
    """The right to write is gone. Stop, and write nothing more."""


class LeaseLost(Lost):
    """Another worker holds the chat now and resumes its turn; nothing is lost."""


class StoreFailed(IndelibleError):
    """A database operation failed."""


class Interrupted(IndelibleError):
    """The user stopped the run. Everything that was published is saved."""

    def __init__(self, message: str = "The reply was stopped.") -> None:
        super().__init__(message)


class Shutdown(IndelibleError):
    """The process is shutting down. The turn is not over: another worker resumes it."""

    def __init__(self, message: str = "The process is shutting down.") -> None:
        super().__init__(message)


class ModelFailed(IndelibleError):
    """A model call failed.

    `message` is for the user: it names the provider, what happened and what to do.
    `detail` is at most 500 characters of the provider's own message, scrubbed.
    `retry_after_s` is the wait that the provider asks for, already parsed, or None.
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
