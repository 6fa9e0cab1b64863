"""The process and the event loop that opened a database: nobody else can use it.

Its threads and connections do not exist in a forked child, where a caller would wait for ever. In another event loop a
commit would wake readers and workers from a thread that is not theirs. Both are mistakes of the program, and each gets
an error that names the remedy.

Must stay true (tests/app/test_misuse.py): using an open database elsewhere, or after it was closed, fails at once and
changes nothing.
"""

from __future__ import annotations

import asyncio
import os

from indelible.errors import StoreFailed


class Owner:
    """The owner is known from the first use on: a database may be created before its loop runs."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raises `StoreFailed` in another process or event loop."""
        if os.getpid() != self._process:
            raise StoreFailed(
                f"{self._where} was opened before this process was forked. Open it again in this process."
            )
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise StoreFailed(
                f"{self._where} was opened in another event loop. Use it in that loop only "
                "(asyncio.run_coroutine_threadsafe), or open it again in this one with worker=False."
            )


def make_closed(where: str) -> StoreFailed:
    """The error for a database that was closed."""
    return StoreFailed(f"{where} is closed. Use it inside its `async with` block, or open it again.")
