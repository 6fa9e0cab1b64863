"""What may be set for the requests of a task: who records them, and when the next chunk of a reply is read.

Both are context variables, so they apply to the task that sets them and to all tasks that this one starts: the code
that begins a turn decides, and no code in between knows of it.

client.py reads `recording` before it sends: an exchange with a provider as values, and the one seam where it can be
recorded. This module imports no HTTP library, so a recorder need not pay for one.

Tokens arrive one by one, but nobody sees them one by one: the journal writes them in rows. A reader that is woken for
every token spends most of its time on waking. So http_model.py asks `reading_pace` before each read, and awaits what it
returns. Meanwhile tokens gather in the socket's buffer. A stop cancels this wait as it cancels a read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Final, Protocol

import msgspec


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request. `headers` include the key: send them, never store them."""

    method: str = "POST"
    url: str
    headers: dict[str, str]
    body: bytes


class HttpResponse(Protocol):
    """A response: the head at once, the body in chunks as they arrive."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def method(self) -> str:
        """The method of the request; the response to a HEAD has no body."""

    async def read(self) -> bytes:
        """The next chunk; empty at the end and from then on."""

    async def aclose(self) -> None: ...


class Answer(HttpResponse, Protocol):
    """A response whose reader may be done before the body ends."""

    def settle(self) -> None:
        """Everything needed has been read: leaving the rest unread is not a failure of this exchange."""


class Sender(Protocol):
    """Sends requests: client.py, or its replacement for replays (recording/replay.py)."""

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[Answer]:
        """Send the request. The block begins with the response's head; its body is closed when the block ends."""


class Exchange(Protocol):
    """The recording of one request and its response. Its methods neither raise nor wait."""

    def failed(self, error: BaseException) -> None:
        """There is no response: sending failed or was cancelled."""

    def wrap(self, response: HttpResponse) -> Answer:
        """Wrap the response. The caller reads through the returned object."""


class RecordingHook(Protocol):
    def begin(self, request: HttpRequest) -> Exchange | None:
        """A request is about to be sent. None means that it is not recorded."""


recording: Final[ContextVar[RecordingHook | None]] = ContextVar("recording", default=None)
"""The recorder of this task's exchanges; see the module header."""

Pace = Callable[[], Awaitable[None] | None]
"""Returns what to await before the next read, or None to read at once."""

reading_pace: Final[ContextVar[Pace | None]] = ContextVar("reading_pace", default=None)
