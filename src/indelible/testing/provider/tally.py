"""A counter that a test can wait for."""

from __future__ import annotations

import asyncio


class Tally:
    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def add(self) -> None:
        self.count += 1
        for wanted, waiter in self._waiting:
            if wanted <= self.count and not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, wanted: int) -> None:
        """Wait until the count reaches `wanted`."""
        if self.count >= wanted:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (wanted, waiter)
        self._waiting.append(entry)
        try:
            await waiter
        finally:
            self._waiting.remove(entry)
