"""One exchange with a provider, as values; and the one seam where somebody may watch it.

`recording` is what client.py asks before it sends. It holds for the task that sets it and for all that this task
starts, so a turn is recorded by whoever begins it, and nobody between there and here knows of it. Nothing is imported
here that speaks HTTP: who only wants to watch need not pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Final, Protocol

import msgspec


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent. `headers` holds the key: it is for the wire only."""

    method: str = "POST"
    url: str
    headers: dict[str, str]
    body: bytes


class HttpResponse(Protocol):
    """What comes back: the head at once, the body in pieces as they arrive."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def method(self) -> str:
        """Of the request; a HEAD has no body."""

    async def read(self) -> bytes:
        """The next piece; empty at the end, and ever after."""

    async def aclose(self) -> None: ...


class Answer(HttpResponse, Protocol):
    """A response to somebody who may have heard enough before its body ends."""

    def settle(self) -> None:
        """All that was wanted has been read: to leave the rest unread is no failure of this exchange."""


class Sender(Protocol):
    """Whoever sends requests: client.py, or somebody who stands for it (recording/replay.py)."""

    def send(self, request: HttpRequest) -> AbstractAsyncContextManager[Answer]:
        """Send it; the answer's head is there when the block begins, and its body is closed when it ends."""


class Exchange(Protocol):
    """One request and its answer, seen by somebody. Nothing here raises or waits."""

    def failed(self, error: BaseException) -> None:
        """There is no answer: it could not be sent, or was cancelled meanwhile."""

    def wrap(self, response: HttpResponse) -> Answer:
        """The answer, to be read through what is returned."""


class RecordingHook(Protocol):
    def begin(self, request: HttpRequest) -> Exchange | None:
        """A request is about to be sent; None if nobody wants to see more of it."""


recording: Final[ContextVar[RecordingHook | None]] = ContextVar("recording", default=None)
"""Who sees the exchanges of this task; see the module header."""
