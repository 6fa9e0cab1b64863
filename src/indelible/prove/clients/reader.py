"""A reader of one chat over HTTP, like any other client: it reads from the beginning and never stops.

The client reconnects by itself, with its cursor, as often as the connection is lost. A restless reader also
disconnects every few events and reconnects. Either way it has one transcript (transcript.py), and a user who waits for
its progress waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from indelible.api.events import FeedEvent
from indelible.client.remote import RemoteService
from indelible.errors import IndelibleError
from indelible.prove.clients.transcript import ReaderTranscript


class SimulatedReader:
    """`reconnects` counts the reconnects."""

    def __init__(self, client: RemoteService, chat_id: str, *, restless_after: int | None = None) -> None:
        self.transcript = ReaderTranscript()
        self.reconnects = 0
        self._client = client
        self._chat_id = chat_id
        self._restless_after = restless_after
        self._changed = asyncio.Event()

    async def read(self) -> None:
        """Read without end. A server that does not come back is a fault of the transcript."""
        try:
            await self._read()
        except IndelibleError as error:
            self.transcript.faults.append(f"a reader had to give up: {error}")
            self._changed.set()

    async def _read(self) -> None:
        while True:
            async with self._open_feed() as feed:
                received = 0
                async for event in feed:
                    self.transcript.add(event)
                    self._changed.set()
                    received += 1
                    if received == self._restless_after:
                        break
            self._note_reconnect()

    def _open_feed(self) -> AbstractAsyncContextManager[AsyncIterator[FeedEvent]]:
        after = self.transcript.cursor or "start"
        return self._client.open_events(self._chat_id, after=after, on_reconnect=self._note_reconnect)

    async def wait_until(self, is_so: Callable[[ReaderTranscript], bool]) -> None:
        while not is_so(self.transcript):
            self._changed.clear()
            await self._changed.wait()

    def _note_reconnect(self) -> None:
        self.reconnects += 1
