"""`Pen`: a model that streams what the test gives it, when the test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from indelible.content import Part
from indelible.testing import parts


class Pen:
    """Give it texts with `write`, any parts with `put`, and end the reply with `finish`."""

    def __init__(self) -> None:
        self._parts: asyncio.Queue[Part | None] = asyncio.Queue()

    def write(self, *chunks: str) -> None:
        for chunk in chunks:
            self._parts.put_nowait(parts.text_delta("1", chunk))

    def put(self, *given: Part) -> None:
        for part in given:
            self._parts.put_nowait(part)

    def finish(self) -> None:
        self._parts.put_nowait(None)

    async def stream(self, _call: Any) -> AsyncIterator[Part]:
        while (part := await self._parts.get()) is not None:
            yield part
        yield parts.finish()
