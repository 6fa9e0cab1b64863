"""An answer that does as it is told: pieces and errors in the order of its script, whoever wraps it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from indelible.models.http.hooks import HttpResponse
from indelible.recording import ExchangeLog, ExchangeRecord, wrap

SSE: Final = "text/event-stream"
JSON: Final = "application/json"


class Broken(Exception):
    """Raised by a script."""


class Answer:
    """Reads give what is scripted and then the end, even after a close; each close takes one of the close errors."""

    def __init__(
        self,
        *script: bytes | BaseException,
        content_type: str = SSE,
        closes: Iterable[BaseException | None] = (),
        headers: Mapping[str, str] | None = None,
        status: int = 200,
        method: str = "POST",
    ) -> None:
        self.status = status
        self.method = method
        self.headers: Mapping[str, str] = {"Content-Type": content_type, **(headers or {})}
        self.script = deque(script)
        self.closes = deque(closes)
        self.closed = 0

    async def read(self) -> bytes:
        if not self.script:
            return b""
        step = self.script.popleft()
        if isinstance(step, BaseException):
            raise step
        return step

    async def aclose(self) -> None:
        self.closed += 1
        error = self.closes.popleft() if self.closes else None
        if error is not None:
            raise error


class Waiting(Answer):
    """When its script is done it waits for ever."""

    def __init__(self, *script: bytes) -> None:
        super().__init__(*script, content_type=JSON)
        self.waits: list[str] = []
        self.is_waiting = asyncio.Event()

    async def read(self) -> bytes:
        if self.script:
            return await super().read()
        self.waits.append("begun")
        self.is_waiting.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.waits.append("left")
        return b""


def record(answer: HttpResponse) -> tuple[HttpResponse, ExchangeLog]:
    log = ExchangeLog()
    return wrap(answer, log), log


async def read_all(response: HttpResponse) -> bytes:
    pieces: list[bytes] = []
    while piece := await response.read():
        pieces.append(piece)
    return b"".join(pieces)


def only(log: ExchangeLog) -> ExchangeRecord:
    """The one entry there is."""
    (attempt,) = log.attempts
    return attempt
